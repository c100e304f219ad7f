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
    ("arguments", "name"),
    [
        (("group", "describe", NOT_UTF8), "GROUP"),
        (("topic", "create", NOT_UTF8), "TOPIC"),
        (("topic", "create", "clicks", "-c", f"{NOT_UTF8}=1"), "--config"),
        (("topic", "list", "-X", f"client.id={NOT_UTF8}"), "--client-property"),
        (("-X", f"client.id={NOT_UTF8}", "topic", "list"), "--client-property"),
        (("-b", f"{NOT_UTF8}:9092", "topic", "list"), "--bootstrap-servers"),
        (("consume", "clicks", "--group", NOT_UTF8), "--group"),
        (("zk", "get", NOT_UTF8), "PATH"),
    ],
)
def test_names_and_settings_that_are_not_utf8_are_refused(
    arguments: tuple[str, ...],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *arguments) == 2
    assert f"Error: {name} takes UTF-8 text, not '" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("group", "describe", ""), "GROUP"),
        (("group", "reset-offsets", "", "--to", "end"), "GROUP"),
        (("topic", "create", ""), "TOPIC"),
        (("schema", "show", ""), "SUBJECT"),
        (("user", "create", ""), "NAME"),
    ],
)
def test_empty_names_are_refused(
    arguments: tuple[str, ...],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *arguments) == 2
    assert f"Error: {name} must not be empty." in capsys.readouterr().err


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
