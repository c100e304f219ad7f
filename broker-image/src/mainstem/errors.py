"""The command's errors: each is one sentence that tells a person what is wrong and what to do.

`command.main` prints the sentence and exits with `exit_code`; nothing else in the package prints errors.
"""

from __future__ import annotations

from typing import ClassVar


class CommandError(Exception):
    """Root of everything the command raises on purpose; `str()` of it is the sentence to show."""

    exit_code: ClassVar[int] = 1


class BadInput(CommandError):
    """What was typed, or read from a file, does not make sense; nothing was done."""

    exit_code = 2  # as the shell's own utilities and click answer wrong usage


class ClusterUnreachable(CommandError):
    """No broker of the given addresses answered."""


class ClusterRefused(CommandError):
    """A broker answered, and said no; the sentence is the broker's, with what to do where we know it."""


class StackError(CommandError):
    """The local stack could not be started, kept or stopped."""
