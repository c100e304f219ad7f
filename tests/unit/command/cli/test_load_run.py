"""What `mainstem load` refuses leaves no trace (R29, R36)."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainstem.cli.main import app
from mainstem.errors import BadInput, CommandError
from mainstem.kafka.client import Cluster


def _topic_exists(_cluster: Cluster, _name: str) -> None:
    pass


def _topic_is_unknown(_cluster: Cluster, name: str) -> None:
    raise BadInput(f"There is no topic {name}.")


@pytest.mark.parametrize(
    ("warehouse", "options", "reason"),
    [
        ("with%20percent", [], "'%' is not what it is in a path"),
        ("with#hash", [], "'#' is not what it is in a path"),
        ("new", ["--table", "a[1]"], "'[' is another character"),
        ("new", ["--payload", "raw", "--event-time", "at"], "Raw values have no fields"),
        ("new", ["--catalog", "http://catalog"], "Delta tables are in no catalog"),
    ],
)
def test_a_load_that_is_refused_makes_no_folder(
    warehouse: str, options: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "topic", _topic_exists)
    result = CliRunner().invoke(app, ["load", "clicks", "-w", str(tmp_path / warehouse), *options])
    assert isinstance(result.exception, CommandError)
    assert reason in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_a_load_of_an_unknown_topic_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "topic", _topic_is_unknown)
    result = CliRunner().invoke(app, ["load", "clicks", "-w", str(tmp_path / "new")])
    assert isinstance(result.exception, BadInput)
    assert not list(tmp_path.iterdir())
