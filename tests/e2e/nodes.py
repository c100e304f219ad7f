"""Nodes that are taken away and given back: on kind, whose nodes are this machine's containers."""

from __future__ import annotations

import json
import subprocess
from typing import Final

from tests.e2e.kubectl import kubectl, poll

NOTICED_SECONDS_MAX: Final = 90.0
"""Until a lost node is reported as not ready: the grace period of kind.yaml and what a busy machine adds."""


def workers() -> list[str]:
    """Names of the nodes that run no control plane."""
    result = kubectl("get", "nodes", "--selector=!node-role.kubernetes.io/control-plane", "--output=name")
    return sorted(line.removeprefix("node/") for line in result.split())


def address_of(node: str) -> str:
    """The address at which this machine and other nodes reach a node."""
    addresses = json.loads(kubectl("get", "node", node, "--output=json"))["status"]["addresses"]
    return next(str(entry["address"]) for entry in addresses if entry["type"] == "InternalIP")


def is_ready(node: str) -> bool:
    """Whether the control plane takes the node for ready."""
    conditions = json.loads(kubectl("get", "node", node, "--output=json"))["status"]["conditions"]
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def wait_for_ready(node: str, *, ready: bool = True) -> None:
    """Wait until the control plane has noticed that a node is back, or gone."""
    assert poll(lambda: is_ready(node) is ready, NOTICED_SECONDS_MAX), f"{node} ready={ready} was not noticed"


def power_off(node: str) -> None:
    """End a node at once, as by its power switch: SIGKILL to all of it."""
    _docker("kill", node)


def start(node: str) -> None:
    """Switch a node on again; its disk is as it was."""
    _docker("start", node)


def _docker(*arguments: str) -> str:
    finished = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.returncode == 0, f"docker {' '.join(arguments)}: {finished.stderr.strip()}"
    return finished.stdout
