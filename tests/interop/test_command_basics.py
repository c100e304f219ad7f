"""The command as a process: what is common to all commands."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.clusters import SharedCluster
from tests.support.command_line import completions, mainstem, mainstem_fails, modules_imported_by
from tests.support.ports import own_ports
from tests.support.topics import unique_name

from mainstem import installed_version

LIBRARIES_OF_HELP = {"annotated_doc", "confluent_kafka", "mainstem", "orjson", "rich", "shellingham", "typer"}
REFUSED_SECONDS_MAX = 10.0  # the command starts within about one second; librdkafka tries for a minute


def test_the_installed_command_lists_its_commands() -> None:
    installed = Path(sys.executable).with_name("mainstem")
    shown = subprocess.run([installed, "--help"], capture_output=True, text=True, check=True, timeout=60)
    for name in ("up", "topic", "produce", "consume", "log", "load", "sql", "demo"):
        assert f" {name} " in shown.stdout


def test_help_loads_no_library_that_only_some_commands_need() -> None:
    """Spark, Arrow and the like take seconds to import. A wall-clock bound would measure the machine."""
    loaded = {name.partition(".")[0] for name in modules_imported_by("--help")} - sys.stdlib_module_names
    libraries = {name for name in loaded if not name.startswith("_")}
    assert libraries <= LIBRARIES_OF_HELP


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
def test_a_cluster_that_does_not_run_is_reported_within_seconds(arguments: Sequence[str]) -> None:
    address = f"127.0.0.1:{own_ports()}"
    started = time.monotonic()
    sentence = mainstem_fails(*arguments, "-b", address)
    assert time.monotonic() - started < REFUSED_SECONDS_MAX
    assert sentence.startswith(f"No broker listens at {address} (connection refused)")
    assert "mainstem up" in sentence
    assert "--bootstrap-servers" in sentence


def test_a_malformed_address_is_refused() -> None:
    assert "'nonsense' is not an address" in mainstem_fails("topic", "list", "-b", "nonsense", exit_code=2)


def test_wrong_usage_is_answered_with_the_usage() -> None:
    ended = mainstem("topic", "create", exit_code=2)
    assert b"Usage: " in ended.stderr
    assert b"Missing argument" in ended.stderr


def test_names_of_topics_are_completed_from_the_cluster(local_stack: SharedCluster) -> None:
    prefix = unique_name("completed")
    names = [f"{prefix}-one", f"{prefix}-two"]
    for name in names:
        mainstem("topic", "create", name, cluster=local_stack)
    assert completions(f"mainstem topic describe {prefix}-", local_stack) == names
    mainstem("topic", "delete", *names, "--yes", cluster=local_stack)
