"""Refuses texts on the command line that no command can use, before the command runs.

Python keeps the bytes of an argument that are not UTF-8 as surrogates. confluent_kafka crashes on them, with
no exception to report, and so does a client that gets an empty name of a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mainstem.errors import BadInput
from mainstem.records.text import is_utf8

_BYTES: Final = frozenset({"header", "key_separator", "null_text", "record_format"})
"""Parameters whose texts are parts of records or of the output, which need not be UTF-8."""


def check_texts_of(command: Any) -> None:
    """Make `command`, or all commands of a group, check their texts first."""
    subcommands = getattr(command, "commands", None)
    if subcommands is not None:
        for subcommand in subcommands.values():
            check_texts_of(subcommand)
        return
    run = command.invoke

    def check_and_run(context: Any) -> Any:
        for parameter in command.params:
            _check(parameter, context.params.get(parameter.name))
        return run(context)

    command.invoke = check_and_run


def _check(parameter: Any, value: object) -> None:
    is_argument = parameter.param_type_name == "argument"
    name = (parameter.metavar or parameter.name.upper()).strip("[].") if is_argument else parameter.opts[0]
    for text in _texts(value):
        if parameter.name not in _BYTES and not is_utf8(text):
            raise BadInput(f"{name} takes UTF-8 text, not {text!r}.")
        if is_argument and not text and parameter.default != "":
            raise BadInput(f"{name} must not be empty.")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        yield from (item for item in value if isinstance(item, str))
