"""`scripts/setup` with a Python that only pretends to install packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PYTHON = """#!/bin/sh
case "$*" in
    "-m venv .venv")
        mkdir -p .venv/bin
        cp "$0" .venv/bin/python
        echo "command = $0 -m venv $(pwd -P)/.venv" > .venv/pyvenv.cfg ;;
    *"--editable ."*) ;;
    *"pip install"*)
        for number in $(seq 40); do echo "Collecting package-$number>=1 (from mainstem)"; done
        echo "  Downloading package-40.whl (434.2 MB)"
        echo "Installing collected packages: all" ;;
esac
"""
JAVA = """#!/bin/sh
echo 'openjdk version "17.0.15"' >&2
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with nothing but what setup reads, and programs in `bin` that do nothing."""
    folder = tmp_path / "checkout"
    for name in ("pyproject.toml", "locks/all.txt", "scripts/setup", "scripts/needs.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name)
    (folder / "bin").mkdir()
    for name, program in (("python3", PYTHON), ("java", JAVA)):
        (folder / "bin" / name).write_text(program)
        (folder / "bin" / name).chmod(0o755)
    return folder


def set_up(checkout: Path) -> list[str]:
    ended = subprocess.run(
        [checkout / "scripts" / "setup", "demo"],
        env={**os.environ, "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.processes
def test_progress_is_shown_and_a_second_run_does_nothing(checkout: Path) -> None:
    locked = (checkout / "locks" / "all.txt").read_text().splitlines()
    total = sum("==" in line for line in locked)
    assert set_up(checkout) == [
        "setup: installing Python packages into .venv (some minutes the first time)",
        f"setup: 20 of about {total} packages: package-20",
        f"setup: 40 of about {total} packages: package-40",
        "setup: unpacking the packages",
    ]
    assert set_up(checkout) == []


@pytest.mark.processes
def test_the_environment_of_a_copied_checkout_is_built_again(checkout: Path, tmp_path: Path) -> None:
    set_up(checkout)
    (checkout / ".venv" / "of-the-original").touch()
    copy = Path(shutil.copytree(checkout, tmp_path / "copy"))
    first, *rest = set_up(copy)
    assert first == f"setup: .venv was made in {checkout.resolve()}/.venv: building it again here"
    assert rest[-1] == "setup: unpacking the packages"
    assert not (copy / ".venv" / "of-the-original").exists()
    assert (checkout / ".venv" / "of-the-original").exists(), "the original is left alone"
    assert set_up(copy) == []
