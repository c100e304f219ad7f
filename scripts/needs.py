"""What `make demo` and `make test` need of a machine: one table with each need, its check and what helps.

`scripts/setup` runs this file before it installs anything, with the Python that it found and no packages.
Everything that is missing is reported at once. Standard output names the Debian packages that the setup is to
install, where it can; exit status 1 says that the user has to do something first, which standard error names.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JAVA_MIN: Final = 17
INSTALL_BYTES: Final = 3_000_000_000
"""The packages take 1.7 GB, and pip unpacks them beside that."""
WORK_BYTES: Final = 1_000_000_000
"""Logs and data of what runs then."""
MEMORY_BYTES: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found on a machine."""

    can_install: bool
    """Whether the setup may install Debian packages: as root."""
    is_ci: bool
    programs: frozenset[str]
    java: int | None
    """The major version."""
    has_venv: bool
    is_installed: bool
    """Whether the Python packages are there."""
    disk_bytes: int
    """What is free where there is least of it: in the checkout or in the folder for temporary files."""
    memory_bytes: int | None
    """What is free; None where nothing tells it."""


@dataclass(frozen=True, slots=True)
class Need:
    """One line of the table."""

    sentence: str
    """What is missing, and what to do, for who has to do it; `{package}` is `package`."""
    is_met: Callable[[Machine], bool]
    package: str = ""
    """The Debian package that brings it, if one does."""
    purposes: tuple[str, ...] = ("demo", "test")
    is_optional: bool = False
    """Whether tests are left out without it. In CI none are."""


def _disk_bytes_min(machine: Machine) -> int:
    return WORK_BYTES + (0 if machine.is_installed else INSTALL_BYTES)


NEEDS: Final = (
    Need(
        "Java 17 or newer, for ZooKeeper and Spark: install it (Debian: apt-get install {package})",
        lambda machine: machine.java is not None and machine.java >= JAVA_MIN,
        package="default-jre-headless",  # Debian 12 has no other than 17, and Debian 13 none below 21
    ),
    Need(
        "Python's venv module: install it (Debian: apt-get install {package})",
        lambda machine: machine.has_venv or machine.is_installed,
        package="python3-venv",
    ),
    Need(
        "the command kcat: install it (Debian: apt-get install {package})",
        lambda machine: "kcat" in machine.programs,
        package="kcat",
        purposes=("test",),
    ),
    Need(
        "Maven, for tests with Apache Kafka's tools: install it (Debian: apt-get install {package})",
        lambda machine: "mvn" in machine.programs,
        package="maven",
        purposes=("test",),
        is_optional=True,
    ),
    Need(
        "free disk: 4 GB before the Python packages are installed, and 1 GB after that, in the checkout and"
        " in the folder for temporary files. Make room",
        lambda machine: machine.disk_bytes >= _disk_bytes_min(machine),
    ),
    Need(
        "free memory: 2 GB. End other programs",
        lambda machine: machine.memory_bytes is None or machine.memory_bytes >= MEMORY_BYTES,
    ),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What has to happen before the Python packages can be installed."""

    packages: tuple[str, ...]
    """Debian packages that the setup installs."""
    refusals: tuple[str, ...]
    """What the user has to do; the setup ends."""
    notes: tuple[str, ...]
    """What is left out."""


def missing(machine: Machine, purpose: str) -> Answer:
    """Compare a machine with the table."""
    packages: list[str] = []
    refusals: list[str] = []
    notes: list[str] = []
    for need in NEEDS:
        if purpose not in need.purposes or need.is_met(machine):
            continue
        sentence = need.sentence.format(package=need.package)
        if need.package and machine.can_install:
            packages.append(need.package)
        elif need.is_optional and not machine.is_ci:
            notes.append(f"left out without {sentence}.")
        else:
            refusals.append(f"missing: {sentence}, then run this again.")
    return Answer(tuple(packages), tuple(refusals), tuple(notes))


def look(*, may_install: bool) -> Machine:
    """Find out about this machine."""
    programs = frozenset(name for name in ("java", "kcat", "mvn", "apt-get") if shutil.which(name))
    return Machine(
        can_install=may_install and os.getuid() == 0 and "apt-get" in programs,
        is_ci="CI" in os.environ,
        programs=programs,
        java=_java_version() if "java" in programs else None,
        has_venv=importlib.util.find_spec("ensurepip") is not None,
        is_installed=any(Path(".venv").glob(".ready-*")),
        disk_bytes=free_disk_bytes(),
        memory_bytes=free_memory_bytes(),
    )


def free_disk_bytes() -> int:
    """What is free where there is least of it: in the current folder or in that for temporary files."""
    return min(shutil.disk_usage(folder).free for folder in (".", tempfile.gettempdir()))


def free_memory_bytes() -> int | None:
    """What programs can still get; None where it cannot be read, as anywhere but on Linux."""
    meminfo = Path("/proc/meminfo")
    memory = re.search(r"MemAvailable: +([0-9]+)", meminfo.read_text("ascii")) if meminfo.exists() else None
    return None if memory is None else int(memory[1]) * 1024


def _java_version() -> int | None:
    printed = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r' version "([0-9]+)', printed)
    return None if found is None else int(found[1])


def main(purpose: str, *, may_install: bool) -> int:
    """Print what is missing; the answer is the exit code."""
    answer = missing(look(may_install=may_install), purpose)
    for line in (*answer.refusals, *answer.notes):
        sys.stderr.write(f"setup: {line}\n")
    sys.stdout.write(" ".join(answer.packages))
    return 1 if answer.refusals else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], may_install="--installed" not in sys.argv))
