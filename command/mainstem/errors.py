"""The errors that the command raises on purpose, and the name under which a message refers to the program.

Each error's text is one sentence: what is wrong and what to do. `cli.main` prints it and exits with
`exit_code`; no other module prints errors.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import ClassVar


class CommandError(Exception):
    """Base of all errors that the command raises on purpose; `str()` gives the sentence to print."""

    exit_code: ClassVar[int] = 1


class BadInput(CommandError):
    """An argument, an option or an input file is invalid; nothing was done."""

    exit_code = 2  # the exit code of shell utilities and of click for wrong usage


class ClusterUnreachable(CommandError):
    """No broker at the given addresses answered."""


class ClusterRefused(CommandError):
    """A broker answered with an error; the text is the broker's, with advice where there is any."""


class StackError(CommandError):
    """The local stack could not be started, kept running or stopped."""


def program_name() -> str:
    """The command to type to run this program again: `mainstem`, or the path by which it was started."""
    name = "mainstem"
    if shutil.which(name) is not None:
        return name
    path = Path(sys.argv[0])
    return str(path) if path.name == name else name
