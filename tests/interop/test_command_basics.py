"""The command as a process: what is common to all commands."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.support.clusters import Cluster
from tests.support.command_line import environment, mainstem, mainstem_fails

from mainstem import installed_version
from mainstem.ports import free_ports


def test_the_installed_command_answers_and_help_is_instant() -> None:
    installed = Path(sys.executable).with_name("mainstem")
    seconds: list[float] = []
    for _ in range(3):
        started = time.monotonic()
        shown = subprocess.run([installed, "--help"], capture_output=True, text=True, check=True, timeout=60)
        seconds.append(time.monotonic() - started)
    for name in ("up", "topic", "produce", "consume", "log", "load", "sql", "demo"):
        assert f" {name} " in shown.stdout
    assert min(seconds) < 1.0  # 0.2 s on an idle machine; this one is shared


def test_the_version_is_that_of_the_distribution() -> None:
    assert mainstem("--version").stdout.decode() == f"mainstem {installed_version()}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "describe", "clicks"],
        ["produce", "clicks"],
        ["consume", "clicks", "--until-end"],
        ["topic", "delete", "clicks", "--yes"],
    ],
    ids=" ".join,
)
def test_a_cluster_that_is_not_there_is_told_within_seconds(arguments: Sequence[str]) -> None:
    address = f"127.0.0.1:{free_ports()}"
    started = time.monotonic()
    sentence = mainstem_fails(*arguments, "-b", address)
    assert time.monotonic() - started < 3
    assert sentence.startswith(f"No broker listens at {address} (connection refused)")
    assert "mainstem up" in sentence
    assert "--bootstrap-servers" in sentence


def test_an_address_that_is_none_is_told() -> None:
    assert "'nonsense' is not an address" in mainstem_fails("topic", "list", "-b", "nonsense", exit_code=2)


def test_wrong_usage_is_answered_with_the_usage() -> None:
    ended = mainstem("topic", "create", exit_code=2)
    assert b"Usage: " in ended.stderr
    assert b"Missing argument" in ended.stderr


def test_names_of_topics_are_completed_from_the_cluster(local_stack: Cluster) -> None:
    mainstem("topic", "create", "completed-one", "--if-not-exists", cluster=local_stack)
    mainstem("topic", "create", "completed-two", "--if-not-exists", cluster=local_stack)
    asked: Mapping[str, str] = {
        "_MAINSTEM_COMPLETE": "complete_bash",
        "COMP_WORDS": "mainstem topic describe completed-",
        "COMP_CWORD": "3",
    }
    program = "from mainstem.command import app; app(prog_name='mainstem')"
    answered = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment(local_stack, **asked),
        timeout=60,
        check=False,
    )
    assert answered.stdout.split() == ["completed-one", "completed-two"]
    mainstem("topic", "delete", "completed-one", "completed-two", "--yes", cluster=local_stack)
