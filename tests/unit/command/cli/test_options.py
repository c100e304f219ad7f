"""Options: settings as NAME=VALUE, and one meaning for each short flag."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import typer

from mainstem.cli.main import app
from mainstem.cli.options import headers_of, settings_of
from mainstem.errors import BadInput


def test_settings_are_cut_at_the_first_equals_sign_and_later_ones_win() -> None:
    assert settings_of(["a=1", " b = x=y ", "a=2", "c="]) == {"a": "2", "b": "x=y", "c": ""}


def test_no_settings_are_none() -> None:
    assert settings_of(None) == {}


@pytest.mark.parametrize("pair", ["", "a", "=1", " =1"])
def test_a_setting_without_a_name_or_an_equals_sign_is_refused(pair: str) -> None:
    with pytest.raises(BadInput, match="--header takes NAME=VALUE"):
        settings_of([pair], "--header")


def _options(command: object) -> Iterator[tuple[str, str]]:
    """Each short flag with the long option that it stands for, of a command and all below it."""
    for parameter in command.params:  # type: ignore[attr-defined]
        flags = [flag for flag in (*parameter.opts, *parameter.secondary_opts) if flag.startswith("-")]
        long_flags = [flag for flag in flags if flag.startswith("--")]
        yield from ((flag, long_flags[0]) for flag in flags if not flag.startswith("--"))
    for subcommand in getattr(command, "commands", {}).values():
        yield from _options(subcommand)


def test_a_short_flag_means_one_option_in_all_commands() -> None:
    meanings: dict[str, set[str]] = {}
    for flag, option in _options(typer.main.get_command(app)):
        meanings.setdefault(flag, set()).add(option)
    assert {"-b", "-o", "-n", "-p"} <= meanings.keys()
    assert {flag: sorted(options) for flag, options in meanings.items() if len(options) > 1} == {}


def test_headers_are_all_sent_in_their_order_and_as_they_are() -> None:
    """R22: Kafka's headers are a list; names may repeat, and blanks are part of a value."""
    assert headers_of(["a=1", "a=2", "b= x ", "c=", "d=e=f"]) == [
        ("a", b"1"),
        ("a", b"2"),
        ("b", b" x "),
        ("c", b""),
        ("d", b"e=f"),
    ]
    for wrong in ("a", "=1"):
        with pytest.raises(BadInput, match="takes NAME=VALUE"):
            headers_of([wrong])


def test_a_header_of_any_bytes_has_a_name_that_is_text() -> None:
    assert headers_of([os.fsdecode(b"a=\xff")]) == [("a", b"\xff")]
    with pytest.raises(BadInput, match="is not UTF-8 text"):
        headers_of([os.fsdecode(b"\xff=a")])
