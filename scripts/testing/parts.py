"""What `make test` and `make trials` consist of: checks, and groups of tests with the way to run them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Final

BIN: Final = ".venv/bin"
PYTHON: Final = f"{BIN}/python"

GATE_SEED: Final = 1
UNSTABLE: Final = "tests/unstable.toml"


@dataclass(frozen=True, slots=True)
class Check:
    """A program whose exit status says whether the tree is in order."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tests:
    """A run of pytest."""

    name: str
    arguments: tuple[str, ...]
    needs_kubernetes: bool = False
    """Whether a cluster of kind is made for it and removed after it."""
    is_beside: bool = False
    """Whether the next part runs at the same time, since this one mostly waits."""


def side_by_side(processes: int) -> tuple[str, ...]:
    """Modules begin in the order of the command line; the tests of one stay in one process."""
    return ("-n", str(processes), "--dist", "loadscope", "--no-loadscope-reorder")


CHECKS: Final = (
    Check("lint", (f"{BIN}/ruff", "check", ".")),
    Check("format", (f"{BIN}/ruff", "format", "--check", ".")),
    Check("types", (PYTHON, "-m", "scripts.check_types")),
    Check("contracts", (f"{BIN}/lint-imports",)),
    Check("compile", (PYTHON, "-m", "scripts.compile")),
)

WAITING_FIRST: Final = ("tests/unit/operator", "tests/unit/loader")
"""Unit tests that wait more than they compute: beside the cluster that is being made they cost the others
nothing, and at the end of the part two cores would be idle."""

# Tests that start processes are in the gate only if they are marked: one for each promise and stock client.
# Most of them wait for other processes, so four of them side by side keep two cores busy. The cluster is made
# beside the checks, and its tests wait for it and for its pods beside the unit tests. Most simulations take
# one core, so two run side by side.
GATE: Final = (
    *CHECKS,
    Tests(
        "end-to-end",
        ("-n", "3", "--timeout", "600", "-m", "gate", "tests/e2e"),
        needs_kubernetes=True,
        is_beside=True,
    ),
    Tests("unit", (*side_by_side(3), "-m", "not trial", *WAITING_FIRST, "tests/unit")),
    Tests("interop", (*side_by_side(4), "-m", "gate", "tests/interop")),
    Tests("simulations", (*side_by_side(2), "-m", "gate", "tests/cluster", "tests/faults")),
)

# Tests in tests/faults measure how long clients stand still, and those in tests/cluster use all cores: they
# have the machine to themselves.
TRIALS: Final = (
    *CHECKS,
    Tests("unit", (*side_by_side(4), "tests/unit")),
    Tests("interop", (*side_by_side(4), "tests/interop")),
    Tests("simulations", ("tests/cluster",)),
    Tests("faults", ("tests/faults",)),
    Tests("end-to-end", ("--timeout", "600", "tests/e2e"), needs_kubernetes=True),
)


def can_make_kubernetes() -> bool:
    """Whether this machine can run a cluster of kind."""
    return sys.platform == "linux" and os.getuid() == 0
