"""What is common to all commands."""

from __future__ import annotations

import sys

import pytest
from tests.support.command_line import modules_imported_by
from tests.support.ports import held_port

from mainstem import installed_version
from mainstem.cli import main as command
from mainstem.cli.lazy import LazyCommand

LAZY_COMMANDS = [lazy for commands in command.COMMANDS.values() for lazy in commands]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["mainstem", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return ended.value.code


def test_the_version_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"mainstem {installed_version()}\n"


@pytest.mark.parametrize("before", [True, False], ids=["before the command", "after it"])
def test_the_address_may_stand_before_or_after_the_command(
    before: bool, closed_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = ["--bootstrap-servers", f"127.0.0.1:{closed_port}"]
    arguments = [*address, "topic", "list"] if before else ["topic", "list", *address]
    assert run(monkeypatch, *arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"Error: No broker listens at {address[1]} (connection refused)")
    assert shown.err.count("\n") == 1


def test_the_address_of_the_command_line_goes_before_the_environment(
    closed_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with held_port() as other_port:
        monkeypatch.setenv("MAINSTEM_BOOTSTRAP_SERVERS", f"127.0.0.1:{other_port}")
        assert run(monkeypatch, "topic", "list") == 1
        assert f"127.0.0.1:{other_port} " in capsys.readouterr().err
        assert run(monkeypatch, "topic", "list", "-b", f"127.0.0.1:{closed_port}") == 1
        assert f"127.0.0.1:{closed_port} " in capsys.readouterr().err


def test_a_defect_is_a_sentence_and_a_traceback_only_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ValueError("impossible")

    monkeypatch.setattr(command, "app", broken)
    assert run(monkeypatch) == 1
    assert capsys.readouterr().err.startswith("Error: ValueError: impossible (unexpected")


@pytest.mark.parametrize("lazy", LAZY_COMMANDS, ids=lambda it: it.name)
def test_the_list_of_commands_says_what_their_own_help_says(lazy: LazyCommand) -> None:
    assert lazy.load().get_short_help_str(10_000) == lazy.help


@pytest.mark.processes
def test_a_command_imports_no_other_family() -> None:
    imported = modules_imported_by("topic", "--help")
    assert imported & {lazy.module for lazy in LAZY_COMMANDS} == {"mainstem.cli.topic"}
