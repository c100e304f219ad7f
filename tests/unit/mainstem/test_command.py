"""What is common to all commands."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mainstem import command, installed_version
from mainstem.ports import free_ports


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["mainstem", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return ended.value.code


def test_the_version_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"mainstem {installed_version()}\n"


@pytest.mark.parametrize("before", [True, False], ids=["before the command", "after it"])
def test_the_address_may_stand_before_or_after_the_command(
    before: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = ["--bootstrap-servers", f"127.0.0.1:{free_ports()}"]
    arguments = [*address, "topic", "list"] if before else ["topic", "list", *address]
    assert run(monkeypatch, *arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"Error: No broker listens at {address[1]} (connection refused)")
    assert shown.err.count("\n") == 1


def test_the_address_of_the_command_line_goes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAINSTEM_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    address = f"127.0.0.1:{free_ports()}"
    assert run(monkeypatch, "topic", "list") == 1
    assert "127.0.0.1:1 " in capsys.readouterr().err
    assert run(monkeypatch, "topic", "list", "-b", address) == 1
    assert address in capsys.readouterr().err


def test_a_defect_is_a_sentence_and_a_traceback_only_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ValueError("impossible")

    monkeypatch.setattr(command, "app", broken)
    assert run(monkeypatch) == 1
    assert capsys.readouterr().err.startswith("Error: ValueError: impossible (unexpected")


def test_help_does_not_load_what_it_does_not_need() -> None:
    program = (
        "import sys; import mainstem.command; "
        "print([name for name in ('pyspark', 'pyarrow', 'deltalake', 'pandas', 'kazoo', 'uvloop', 'numpy') "
        "if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
