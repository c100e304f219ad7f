"""The Docker engine: the one that runs here, or one of our own until `stop`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.machine import kernel_settings
from tests.e2e.machine.commands import MachineError, run, say, succeeds
from tests.e2e.machine.settings import DISK_FREE_MIN_BYTES, MACHINE, Places
from tests.e2e.machine.tools import install_packages, make_tool

_START_SECONDS_MAX: Final = 60
_STOP_SECONDS_MAX: Final = 60
_DEBIAN_DOCKER: Final = Path("/usr/bin/docker")
_BRIDGE: Final = "docker0"


@dataclass(frozen=True, slots=True)
class Engine:
    """A Docker engine that answers; `environment` is what a client of it needs."""

    environment: dict[str, str]

    def docker(self, *arguments: str | Path, standard_input: bytes | None = None) -> str:
        """Run a docker command and return its output.

        Raises:
            MachineError: docker's own reason.
        """
        return run(["docker", *arguments], environment=self.environment, standard_input=standard_input)

    def has_image(self, name: str) -> bool:
        return bool(self.docker("images", "--quiet", name).strip())

    def pull(self, name: str) -> bool:
        """Whether the image is here or could be fetched."""
        return self.has_image(name) or succeeds(
            ["docker", "pull", "--quiet", name], self.environment, seconds=600
        )


def find(places: Places) -> Engine | None:
    """The engine that answers: DOCKER_HOST's or Docker's own default, else ours; None if neither does."""
    path = f"{places.programs}{os.pathsep}{os.environ['PATH']}"
    own = {
        "DOCKER_HOST": f"unix://{places.docker_socket}",
        "DOCKER_BUILDKIT": "0",
    }  # Debian's has no BuildKit
    for environment in ({}, own):
        engine = Engine(environment | {"PATH": path})
        if succeeds(["docker", "info"], engine.environment):
            return engine
    return None


def start(places: Places) -> Engine:
    """The engine that runs, or a new one of our own: with its own data, socket and process id file.

    Raises:
        MachineError: there is none and it cannot be started here.
    """
    running = find(places)
    if running is not None:
        return running
    if os.geteuid() != 0:
        raise MachineError("No Docker engine answers. Start one, or run as root: sudo make e2e")
    install_packages({"dockerd": "docker.io", "iptables": "iptables"})
    if _DEBIAN_DOCKER.exists():  # the client of the same package, whatever else is called docker here
        make_tool(places, "docker", _DEBIAN_DOCKER)
    data = places.cache / "docker"
    for folder in (data, places.run, places.logs):
        folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(data).free
    if free < DISK_FREE_MIN_BYTES:
        raise MachineError(
            f"{data} has {free // 10**9} GB free of the {DISK_FREE_MIN_BYTES // 10**9} GB needed: "
            "make room, or set E2E_CACHE to a folder on a larger disk."
        )
    kernel_settings.remember(_kernel_file(places))
    kernel_settings.forward_packets()
    _start_daemon(places, data)
    engine = find(places)
    if engine is None:
        raise MachineError(f"dockerd does not answer: see {places.logs / 'dockerd.log'}.")
    return engine


def _start_daemon(places: Places, data: Path) -> None:
    runtime = places.cache / "oci-runtime"
    shutil.copy(MACHINE / "oci_runtime.py", runtime)
    configuration = places.cache / "dockerd.json"
    configuration.write_text(
        json.dumps(
            {
                "data-root": str(data),
                "exec-root": str(places.run / "docker"),
                "pidfile": str(_pid_file(places)),
                "hosts": [f"unix://{places.docker_socket}"],
                "runtimes": {"fitted": {"path": str(runtime)}},
                "default-runtime": "fitted",
                "log-opts": {"max-size": "20m"},
            }
        )
    )
    say("starting a Docker engine of our own (`make e2e-down` ends it)")
    with (places.logs / "dockerd.log").open("ab") as log:
        daemon = subprocess.Popen(
            ["dockerd", "--config-file", str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # it outlives this program and its terminal
        )
    deadline = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < deadline and daemon.poll() is None:
        if places.docker_socket.exists() and find(places) is not None:
            return
        time.sleep(0.2)
    raise MachineError(f"dockerd did not start: see {places.logs / 'dockerd.log'}.")


def stop(places: Places) -> None:
    """End our own engine, if it runs, and put the machine's kernel and network as they were."""
    pid = _own_daemon(places)
    if pid is not None:
        say("stopping the Docker engine")
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        while _own_daemon(places) is not None:
            if time.monotonic() > deadline:
                raise MachineError(
                    f"dockerd (process {pid}) does not end: see {places.logs / 'dockerd.log'}."
                )
            time.sleep(0.2)
        _remove_network()
    kernel_settings.put_back(_kernel_file(places))
    shutil.rmtree(places.run, ignore_errors=True)


def _own_daemon(places: Places) -> int | None:
    """The process id of our dockerd; None when it has ended, whoever has its number now."""
    try:
        pid = int(_pid_file(places).read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if str(places.cache / "dockerd.json").encode() in command else None


def _remove_network() -> None:
    """Remove the bridge and the packet filter's chains that dockerd leaves when it ends."""
    if Path(f"/sys/class/net/{_BRIDGE}").exists():
        run(["ip", "link", "delete", _BRIDGE])
    for family in ("iptables", "ip6tables"):
        if shutil.which(f"{family}-save") is None:
            continue
        rules = run([f"{family}-save"]).splitlines(keepends=True)
        kept = "".join(line for line in rules if "DOCKER" not in line and _BRIDGE not in line)
        if kept != "".join(rules):
            run([f"{family}-restore"], standard_input=kept.encode())


def _pid_file(places: Places) -> Path:
    return places.run / "docker.pid"


def _kernel_file(places: Places) -> Path:
    return places.run / "kernel-settings.json"
