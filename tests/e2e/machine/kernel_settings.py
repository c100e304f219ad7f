"""Settings of the machine's kernel that an engine and privileged kubelets change, to be put back after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

_CHANGED: Final = (
    "net/ipv4/ip_forward",  # ours: Docker would otherwise turn it on itself and forbid all other forwarding
    "vm/overcommit_memory",  # the kubelet's, as the next two
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_SYSCTL: Final = Path("/proc/sys")


def remember(file: Path) -> None:
    """Write the settings as they are to `file`, unless an earlier start has."""
    if not file.exists():
        results = {
            name: (_SYSCTL / name).read_text().strip() for name in _CHANGED if (_SYSCTL / name).exists()
        }
        file.write_text(json.dumps(results))


def forward_packets() -> None:
    """Let containers reach each other through this machine."""
    (_SYSCTL / "net/ipv4/ip_forward").write_text("1")


def put_back(file: Path) -> None:
    """Set everything as it was when `remember` wrote `file`."""
    if file.exists():
        for name, value in json.loads(file.read_text()).items():
            (_SYSCTL / name).write_text(value)
        file.unlink()
