"""The command `mainstem` run as a process, and what it answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.clusters import Cluster

MAINSTEM = [sys.executable, "-c", "from mainstem.command import main; main()"]


def environment(cluster: Cluster | None = None, **more: str) -> dict[str, str]:
    """The environment of a command that is to talk to `cluster`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAINSTEM_")}
    if cluster is not None:
        inherited["MAINSTEM_BOOTSTRAP_SERVERS"] = cluster.bootstrap_servers
    return {**inherited, **more}


def mainstem(
    *arguments: str | int | Path, cluster: Cluster | None = None, stdin: bytes = b"", exit_code: int = 0
) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end, which is to be `exit_code`."""
    ended = subprocess.run(
        [*MAINSTEM, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env=environment(cluster),
        timeout=120,
        check=False,
    )
    assert ended.returncode == exit_code, ended.stdout.decode() + ended.stderr.decode()
    assert b"Traceback" not in ended.stderr
    return ended


def mainstem_json(*arguments: str | int | Path, cluster: Cluster, stdin: bytes = b"") -> Any:
    """Run the command with `--output json` and read its answer."""
    return json.loads(mainstem(*arguments, "--output", "json", cluster=cluster, stdin=stdin).stdout)


def error_of(ended: subprocess.CompletedProcess[bytes]) -> str:
    """The sentence that a failed command ends with; nothing is on stdout then."""
    assert ended.stdout == b""
    lines = ended.stderr.decode().splitlines()
    assert lines[-1].startswith("Error: ")
    return lines[-1].removeprefix("Error: ")


def mainstem_fails(
    *arguments: str | int | Path, cluster: Cluster | None = None, stdin: bytes = b"", exit_code: int = 1
) -> str:
    """Run a command that fails; its sentence."""
    return error_of(mainstem(*arguments, cluster=cluster, stdin=stdin, exit_code=exit_code))
