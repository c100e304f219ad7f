"""What is common to all commands."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command_line import modules_imported_by
from tests.support.ports import held_port

from mainstem import installed_version
from mainstem.cli import main as command
from mainstem.cli.lazy import LazyCommand
from mainstem.kafka import client

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


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("apply", "-"), "There is nothing to read: standard input is closed."),
        (("schema", "register", "s", "-"), "There is nothing to read: standard input is closed."),
        (("produce", "clicks"), "There is nothing to read: standard input is closed, and no file is named."),
        (("schema", "delete", "s", "--permanent"), "Deleting s for good needs --yes without a terminal."),
    ],
)
def test_a_closed_standard_input_is_no_terminal_and_has_no_text(
    arguments: tuple[str, ...],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run(monkeypatch, *arguments, "-X", "client.id=test") == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_stream_changes_no_exit_code(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, stream, None)
    assert run(monkeypatch, "--version") == 0
    assert run(monkeypatch, "-b", "nonsense", "topic", "list") == 2
    getattr(sys, stream).close()


def test_a_manifest_that_is_not_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_bytes(b"\xff\xfe")
    assert run(monkeypatch, "apply", str(file)) == 2
    assert capsys.readouterr().err == f"Error: {file} cannot be read (it is not text).\n"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_at_any_time_ends_a_command_without_a_traceback(
    number: signal.Signals, exit_code: int
) -> None:
    """Even while it is being imported, as here."""
    program = f"""
import builtins, os, signal
from mainstem.__main__ import main
original = builtins.__import__
def interrupted(name, *rest):
    if name == "mainstem.cli.main":
        os.kill(os.getpid(), {number.value})
    return original(name, *rest)
builtins.__import__ = interrupted
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (exit_code, "", "")


@pytest.mark.parametrize("arguments", [("group", "list"), ("acl", "list"), ("user", "list")], ids=" ".join)
def test_a_port_that_never_answers_is_named_with_its_option(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "_CONNECT_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(client, "_QUESTION_TIMEOUT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert run(monkeypatch, *arguments, "-b", address) == 1
    assert capsys.readouterr().err.startswith(f"Error: No broker at {address} (--bootstrap-servers) answered")


@pytest.mark.parametrize("lazy", LAZY_COMMANDS, ids=lambda it: it.name)
def test_the_list_of_commands_says_what_their_own_help_says(lazy: LazyCommand) -> None:
    assert lazy.load().get_short_help_str(10_000) == lazy.help


@pytest.mark.processes
def test_a_command_imports_no_other_family() -> None:
    imported = modules_imported_by("topic", "--help")
    assert imported & {lazy.module for lazy in LAZY_COMMANDS} == {"mainstem.cli.topic"}
