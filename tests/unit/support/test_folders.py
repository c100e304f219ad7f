"""What tests write lies under the root of their run, and the rule that they write nowhere else."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.support.documentation import FILES, REPOSITORY
from tests.support.folders import SOCKET_PATH_BYTES_MAX, new_folder, temporary_files_in

TESTS: Final = [path for path in FILES if path.startswith("tests/") and path.endswith(".py")]
MAY_CHOOSE: Final = (
    "tests/support/folders.py",
    "tests/unit/support/test_folders.py",
    # Programs that run by themselves. The machine keeps what it built for later runs.
    "tests/e2e/machine/",
    "tests/cluster/soak.py",
)
FIXED_ROOTS: Final = ("/tmp", "/var/tmp", "/dev/shm")
HOME: Final = ("Path.home", "os.path.expanduser", "pathlib.Path.home")
WRITES: Final = {"write_text", "write_bytes", "mkdir", "touch", "unlink", "rename", "symlink_to"}


def test_temporary_files_lie_under_the_root_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    assert new_folder().is_relative_to(base)
    assert Path(tempfile.gettempdir()).is_relative_to(base)
    assert Path(os.environ["TMPDIR"]).is_relative_to(base)


@pytest.mark.processes
def test_processes_make_their_temporary_files_there_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    program = "import tempfile; print(tempfile.gettempdir())"
    output = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert Path(output.stdout.strip()).is_relative_to(tmp_path_factory.getbasetemp())


def test_a_root_in_which_sockets_have_too_long_paths_is_refused() -> None:
    before = tempfile.gettempdir()
    root = Path("/" + "r" * (SOCKET_PATH_BYTES_MAX - 40))
    with pytest.raises(ValueError, match="--basetemp"), temporary_files_in(root):
        pass
    assert tempfile.gettempdir() == before


def test_the_root_before_is_put_back() -> None:
    before, variable = tempfile.gettempdir(), os.environ["TMPDIR"]
    root = Path("/r")
    with temporary_files_in(root):
        assert Path(tempfile.gettempdir()) == root
    assert (tempfile.gettempdir(), os.environ["TMPDIR"]) == (before, variable)


def choices_of(source: str) -> Iterator[int]:
    """The lines that choose a place outside the run: by `tempfile`, a fixed path, HOME or the source tree."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module="tempfile"):
                yield node.lineno
            case ast.Import(names=names) if any(name.name == "tempfile" for name in names):
                yield node.lineno
            case ast.Constant(value=str(text)) if any(
                text == root or text.startswith(f"{root}/") for root in FIXED_ROOTS
            ):
                yield node.lineno
            case ast.Attribute(attr="home" | "expanduser") if ast.unparse(node) in HOME:
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr=name, value=place)) if name in WRITES:
                if any(part in ast.unparse(place) for part in ("__file__", "REPOSITORY")):
                    yield node.lineno


def test_places_outside_the_run_are_found() -> None:
    source = """import tempfile
from tempfile import mkdtemp
Path("/tmp/a")
open(f"/tmp/{name}")
Path.home() / "a"
Path(__file__).with_name("a").write_text("")
(REPOSITORY / "a").mkdir()
Path(__file__).read_text()
Path("/tmpfs")
(tmp_path / "a").write_text("")
"""
    assert sorted(choices_of(source)) == [1, 2, 3, 4, 5, 6, 7]


def test_tests_write_only_under_the_root_of_their_run() -> None:
    found = [
        f"{path}:{line}"
        for path in TESTS
        if not path.startswith(MAY_CHOOSE)
        for line in choices_of(Path(REPOSITORY / path).read_text())
    ]
    assert not found, (
        f"{', '.join(found)}: write to tmp_path, or to new_folder() of tests.support.folders: both lie under"
        " the root of the run."
    )
