"""The files that docstrings and comments name exist, so that a reader who follows them arrives."""

from __future__ import annotations

import fnmatch
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.support.documentation import FILES, REPOSITORY

PYTHON_FILES: Final = [path for path in FILES if path.endswith(".py")]
PROGRAMS: Final = frozenset({"broker-image", "command", "operator", "schema-registry", "spark-jobs"})
_PYTHON_FILE: Final = re.compile(r"`([\w./*-]+\.py)`")


def file_names(source: str) -> Iterator[str]:
    """The names of Python files between backticks in the strings and comments of a module."""
    if _PYTHON_FILE.search(source) is None:
        return  # reading the tokens of all files takes seconds
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from _PYTHON_FILE.findall(token.string)


def names_a_file(name: str, named_in: str, files: list[str]) -> bool:
    """Whether `name`, or a pattern such as `*/plan.py`, is the end of a path; in a program, of its own."""
    top = named_in.split("/")[0]
    own_files = [file for file in files if file.split("/")[0] == top] if top in PROGRAMS else files
    return bool(fnmatch.filter([f"/{file}" for file in own_files], f"*/{name}"))


@pytest.mark.parametrize("folder", sorted({path.split("/")[0] for path in PYTHON_FILES}))
def test_every_python_file_that_a_docstring_or_comment_names_exists(folder: str) -> None:
    missing = [
        f"{path} names {name}"
        for path in PYTHON_FILES
        if path.split("/")[0] == folder
        for name in file_names(Path(REPOSITORY / path).read_text())
        if not names_a_file(name, path, PYTHON_FILES)
    ]
    assert not missing


def test_names_of_files_are_compared_by_whole_folders_and_names() -> None:
    files = ["command/mainstem/cli/up.py", "operator/mainstem_operator/topics/plan.py"]
    assert names_a_file("cli/up.py", "command/mainstem/errors.py", files)
    assert names_a_file("*/plan.py", "operator/mainstem_operator/proofs.py", files)
    assert not names_a_file("p.py", "command/mainstem/errors.py", files)
    assert not names_a_file("plan.py", "command/mainstem/errors.py", files), "it is another program's"
    assert names_a_file("up.py", "tests/interop/test_command_up.py", files)
