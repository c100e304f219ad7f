"""Texts that no command can use end as a sentence, not as a crash of a library (R21)."""

from __future__ import annotations

import os
import sys

import pytest

from mainstem.cli import main as command
from mainstem.cli.argument_texts import check_texts_of
from mainstem.cli.lazy import LazyCommand

NOT_UTF8 = os.fsdecode(b"\xff")
LAZY_COMMANDS = {lazy.name: lazy for commands in command.COMMANDS.values() for lazy in commands}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["mainstem", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "name", "reason"),
    [
        (("group", "describe", NOT_UTF8), "GROUP", "takes UTF-8 text, not '"),
        (("topic", "create", NOT_UTF8), "TOPIC", "takes UTF-8 text, not '"),
        (("topic", "create", "clicks", "-c", f"{NOT_UTF8}=1"), "--config", "takes UTF-8 text, not '"),
        (("topic", "list", "-X", f"client.id={NOT_UTF8}"), "--client-property", "takes UTF-8 text, not '"),
        (("-X", f"client.id={NOT_UTF8}", "topic", "list"), "--client-property", "takes UTF-8 text, not '"),
        (("-b", f"{NOT_UTF8}:9092", "topic", "list"), "--bootstrap-servers", "takes UTF-8 text, not '"),
        (("consume", "clicks", "--group", NOT_UTF8), "--group", "takes UTF-8 text, not '"),
        (("zk", "get", NOT_UTF8), "PATH", "takes UTF-8 text, not '"),
        (("group", "describe", ""), "GROUP", "must not be empty."),
        (("group", "reset-offsets", "", "--to", "end"), "GROUP", "must not be empty."),
        (("topic", "create", ""), "TOPIC", "must not be empty."),
        (("schema", "show", ""), "SUBJECT", "must not be empty."),
        (("user", "create", ""), "NAME", "must not be empty."),
    ],
)
def test_texts_that_are_not_utf8_and_empty_names_are_refused(
    arguments: tuple[str, ...],
    name: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *arguments) == 2
    assert f"Error: {name} {reason}" in capsys.readouterr().err


@pytest.mark.parametrize("lazy", LAZY_COMMANDS.values(), ids=lambda it: it.name)
def test_every_command_checks_its_texts(lazy: LazyCommand) -> None:
    todo = [lazy.load()]
    while todo:
        loaded = todo.pop()
        if (subcommands := getattr(loaded, "commands", None)) is not None:
            todo += subcommands.values()
        else:
            assert loaded.invoke.__module__ == check_texts_of.__module__


def test_characters_that_the_output_does_not_have_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "app", lambda: "\u00fc".encode("ascii"))
    assert run(monkeypatch) == 1
    assert "characters that ascii does not have: set PYTHONIOENCODING=utf-8." in capsys.readouterr().err
