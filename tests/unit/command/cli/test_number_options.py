"""Numbers on the command line are plain digits, as in Apache Kafka's tools (R21)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import typer

from mainstem.cli.main import app
from mainstem.cli.number_options import decimal, integer

SPELLINGS = ("1_000", "5_0", "\u0665\u0660", " 50", "50 ", "0x32", "nan", "1e999", "", "9" * 5000)


def readers() -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Every option and argument of every command: its name, and how it reads one text."""
    todo: list[tuple[str, Any]] = [("mainstem", typer.main.get_command(app))]
    while todo:
        path, command = todo.pop()
        context = command.make_context(path, [], resilient_parsing=True)
        for parameter in command.params:
            if not getattr(parameter, "is_flag", False) and parameter.callback is None:
                is_list = parameter.multiple or parameter.nargs == -1
                yield f"{path} {parameter.opts[0]}", partial(read, parameter, context, is_list=is_list)
        todo += [(f"{path} {name}", command.commands[name]) for name in getattr(command, "commands", {})]


def read(parameter: Any, context: Any, text: str, *, is_list: bool) -> Any:
    """The value; None if the text is refused, by whatever the library's exception is."""
    try:
        value = parameter.process_value(context, [text] if is_list else text)
    except Exception:  # noqa: BLE001  # the library has classes of its own, which no release promises
        return None
    return value[0] if is_list else value


def test_every_number_of_every_command_is_written_in_plain_digits() -> None:
    numeric = [
        (name, reader)
        for name, reader in readers()
        if any(isinstance(reader(text), int | float) for text in ("50", "5000"))
    ]
    names = {name for name, _ in numeric}
    assert {
        "mainstem consume --partition",
        "mainstem load backfill --partition",
        "mainstem bench produce --linger-ms",
        "mainstem broker describe broker",
    } <= names
    lax = {name: text for name, reader in numeric for text in SPELLINGS if reader(text) is not None}
    assert lax == {}


@pytest.mark.parametrize(
    ("settings", "text", "value"),
    [
        (integer(), "-5", -5),
        (integer(), "+5", 5),
        (integer(1), "9223372036854775807", 2**63 - 1),
        (decimal(0, 100), "0.5", 0.5),
        (decimal(0, 100), "100", 100.0),
    ],
)
def test_a_number_is_read(settings: dict[str, Any], text: str, value: float) -> None:
    assert settings["parser"](text) == value
    assert type(settings["parser"](text)) is type(value)
    assert settings["parser"](value) == value, "defaults are numbers already"


@pytest.mark.parametrize(
    ("settings", "text", "reason"),
    [
        (integer(1), "1_000", "'1_000' is not a whole number, such as 1000. Write it in plain digits."),
        (integer(1), "0.5", "is not a whole number"),
        (integer(1), "0", "0 is less than 1."),
        (integer(1, 65_535), "65536", "65536 is more than 65535."),
        (integer(1), "9223372036854775808", "9223372036854775808 is more than 9223372036854775807."),
        (integer(maximum=5), "-9223372036854775809", "is less than -9223372036854775808."),
        (decimal(0, 100), "nan", "'nan' is not a number, such as 1000 or 0.5"),
        (decimal(0, 100), "100.5", "100.5 is more than 100."),
    ],
)
def test_what_is_no_number_or_out_of_bounds_is_refused(
    settings: dict[str, Any], text: str, reason: str
) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        settings["parser"](text)
    assert reason in str(refused.value)
    assert (settings["min"], settings["max"]) != (None, None), "the help shows them"


def test_numbers_of_partitions_and_replicas_are_those_of_the_client() -> None:
    """librdkafka ends with an error of its own at larger ones."""
    largest: dict[str, int] = {}
    for name, reader in readers():
        if name.rpartition(" ")[2] in ("--partitions", "--replication-factor"):
            assert reader("100001") is None, name
            largest[name] = max(number for number in (10_000, 100_000) if reader(str(number)) is not None)
    assert largest["mainstem topic create --partitions"] == 100_000
    assert largest["mainstem topic alter --partitions"] == 100_000
    assert largest["mainstem verify --partitions"] == 100_000
    assert largest["mainstem topic create --replication-factor"] == 10_000
