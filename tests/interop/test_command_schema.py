"""`mainstem up --schema-registry` and `mainstem schema` against it (R31, R36)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.command_line import error_of, mainstem
from tests.support.ports import own_ports
from tests.support.waiting import wait_until

from mainstem.schema_registry import registry_is_ready

pytestmark = pytest.mark.processes

USER: dict[str, Any] = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
SETTINGS = ("group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=500")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a stack with a registry, run by `mainstem up --detach`."""
    folder = tmp_path_factory.mktemp("stack") / "local"
    port, registry_port = own_ports(1), own_ports(1)
    settings = [part for setting in SETTINGS for part in ("--config", setting)]
    place: list[str | int | Path] = ["--data", folder, "--port", port]
    registry: list[str | int] = ["--schema-registry", "--schema-registry-port", registry_port]
    mainstem("up", "--detach", *place, *registry, *settings)
    try:
        yield folder
    finally:
        mainstem("down", "--data", folder)
        assert not registry_is_ready(f"http://127.0.0.1:{registry_port}")


def state_of(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "stack.json").read_text())
    return state


@pytest.fixture
def url(stack: Path) -> str:
    return str(state_of(stack)["schema_registry"]["url"])


def test_a_schema_is_checked_registered_shown_and_deleted(url: str, tmp_path: Path) -> None:
    first, wider = tmp_path / "first.avsc", tmp_path / "wider.avsc"
    first.write_text(json.dumps(USER))
    wider.write_text(json.dumps({**USER, "fields": [*USER["fields"], {"name": "age", "type": "int"}]}))

    output = mainstem("schema", "register", "users-value", first, "--registry", url).stderr.decode()
    assert "users-value version 1 has this schema, with id 1." in output
    refused = mainstem("schema", "check", "users-value", wider, "--registry", url, exit_code=1)
    assert "default value" in refused.stderr.decode()
    refused = mainstem("schema", "register", "users-value", wider, "--registry", url, exit_code=1)
    assert "incompatible" in error_of(refused)

    mainstem("schema", "compatibility", "users-value", "--set", "forward", "--registry", url)
    shown = mainstem("schema", "compatibility", "users-value", "--registry", url)
    assert shown.stdout.decode().strip() == "FORWARD"
    mainstem("schema", "check", "users-value", wider, "--registry", url)
    answer = mainstem("schema", "register", "users-value", wider, "--registry", url, "--output", "json")
    assert json.loads(answer.stdout) == {"subject": "users-value", "version": 2, "id": 2}

    rows = json.loads(mainstem("schema", "list", "--registry", url, "--output", "json").stdout)
    assert rows == [
        {
            "subject": "users-value", "versions": 2, "newest": 2, "id": 2, "type": "AVRO",
            "compatibility": "FORWARD",
        }
    ]  # fmt: skip
    shown = mainstem("schema", "show", "users-value", "--version", "1", "--registry", url)
    assert json.loads(shown.stdout) == USER
    assert json.loads(mainstem("schema", "show", "--id", "1", "--registry", url).stdout) == USER

    mainstem("schema", "delete", "users-value", "--registry", url)
    refused = mainstem("schema", "delete", "users-value", "--permanent", "--registry", url, exit_code=2)
    assert "--yes" in error_of(refused)
    mainstem("schema", "delete", "users-value", "--permanent", "--yes", "--registry", url)
    refused = mainstem("schema", "show", "users-value", "--registry", url, exit_code=1)
    assert error_of(refused) == "Subject 'users-value' not found."


def test_mistakes_are_reported_in_one_sentence(url: str, tmp_path: Path) -> None:
    missing = mainstem("schema", "register", "a", tmp_path / "none", "--registry", url, exit_code=2)
    assert "cannot be read" in error_of(missing)
    nowhere = mainstem("schema", "list", "--registry", "http://127.0.0.1:1", exit_code=1)
    assert "mainstem up --schema-registry" in error_of(nowhere)
    assert "subject or --id" in error_of(mainstem("schema", "show", "--registry", url, exit_code=2))


def test_the_stack_restarts_a_registry_that_was_killed_and_status_shows_it(stack: Path, url: str) -> None:
    before = state_of(stack)["schema_registry"]["pid"]
    psutil.Process(before).kill()
    wait_until(
        lambda: state_of(stack)["schema_registry"]["pid"] not in (None, before) and registry_is_ready(url),
        "the registry is started again",
        seconds=90,
    )
    status = json.loads(mainstem("status", "--data", stack, "--output", "json").stdout)
    assert status["schema_registry"]["state"] == "up"
    assert status["ready"]
    os.kill(status["schema_registry"]["pid"], 0)
