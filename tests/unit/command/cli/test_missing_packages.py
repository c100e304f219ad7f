"""A command whose package is not installed, as in the broker's image, says so in a sentence (R36)."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from mainstem.cli.main import main


def test_a_command_without_its_package_says_how_to_install_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "topic.yaml"
    manifest.write_text("{kind: Topic}")
    with (
        patch.object(sys, "argv", ["mainstem", "apply", str(manifest)]),
        patch.dict(sys.modules, {"mainstem_operator.brokers.admin": None}),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert ended.value.code == 1
    needed = "mainstem_operator.brokers.admin"
    reported = f"Error: This needs {needed}, which is not installed here: pip install 'mainstem[all]'.\n"
    assert capsys.readouterr().err == reported
