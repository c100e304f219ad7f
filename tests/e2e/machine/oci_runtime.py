#!/usr/bin/python3
"""An OCI runtime that asks runc for no more than this machine may give.

Docker gives a `--privileged` container every capability, and a machine that lacks one of them (a virtual
machine or a container without CAP_SYS_RESOURCE, for example) makes runc fail. kind's nodes are such
containers, and kind has no setting for it. So this stands before runc as Docker's default runtime: it takes
out of the container's description what the machine withholds, then becomes runc. On a full machine it
changes nothing.

Runs by itself, outside the project: only the standard library.
"""

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

CAP_SYS_RESOURCE = 24
# Linux' names in the order of their bits (capability.h).
CAPABILITIES = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
]


def main(arguments: list[str]) -> None:
    """Fit the description that `arguments` name to the machine, then become runc."""
    described = description(arguments)
    if described is not None:
        content = json.loads(described.read_text())
        fit(content.get("process") or content, bounding_set())
        described.write_text(json.dumps(content))
    os.execvp("runc", ["runc", *arguments])


def description(arguments: list[str]) -> Path | None:
    """The file that describes the process which these arguments of runc start; None if they start none.

    `create` and `run` name a bundle with a config.json, `exec` a file of its own.
    """
    for option, file in (("--bundle", "config.json"), ("-b", "config.json"), ("--process", ""), ("-p", "")):
        if option in arguments:
            return Path(arguments[arguments.index(option) + 1]) / file
    if "create" in arguments or "run" in arguments:
        return Path("config.json")
    return None


def bounding_set() -> int:
    """The capabilities that any process of this machine can have, as bits."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd:")), 16)


def fit(process: dict[str, Any], allowed: int) -> None:
    """Take out of a process (OCI runtime specification, `process`) what is not allowed."""
    names = {f"CAP_{name}" for bit, name in enumerate(CAPABILITIES) if allowed >> bit & 1}
    for kind, expected in (process.get("capabilities") or {}).items():
        process["capabilities"][kind] = [name for name in expected if name in names]
    if allowed >> CAP_SYS_RESOURCE & 1:
        return
    if process.get("oomScoreAdj", 0) < 0:
        process["oomScoreAdj"] = 0
    for limit in process.get("rlimits") or []:
        number = getattr(resource, limit["type"], None)
        hard = resource.RLIM_INFINITY if number is None else resource.getrlimit(number)[1]
        if hard != resource.RLIM_INFINITY:
            limit["hard"] = min(limit["hard"], hard)
            limit["soft"] = min(limit["soft"], hard)


if __name__ == "__main__":
    main(sys.argv[1:])
