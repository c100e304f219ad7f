"""`mainstem apply`: its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mainstem.cli import apply as apply_command
from mainstem.cli.main import app
from mainstem_operator.standalone import Applied


@pytest.mark.parametrize(("status", "exit_code"), [("True", 0), ("False", 1), ("Unknown", 1)])
def test_an_object_that_is_not_ready_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str, exit_code: int
) -> None:
    """R36. The state of a group that brokers refuse to describe is unknown."""
    applied = [
        Applied("Topic", "clicks", {"conditions": [{"type": "Ready", "status": "True"}]}),
        Applied("ConsumerGroup", "readers", {"conditions": [{"type": "Ready", "status": status}]}),
    ]
    monkeypatch.setattr(apply_command, "_apply", lambda *_: applied)
    (tmp_path / "manifests.yaml").write_text("")
    result = CliRunner().invoke(app, ["apply", str(tmp_path / "manifests.yaml"), "-b", "127.0.0.1:1"])
    assert result.exit_code == exit_code, result.output
