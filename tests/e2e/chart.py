"""The chart as Helm renders it, without a release."""

from __future__ import annotations

import subprocess
from typing import Any

import yaml
from tests.e2e.installation import CHART


def rendered_chart(release: str, namespace: str, **values: str) -> list[dict[str, Any]]:
    """Every object of the chart with these values, hooks included.

    Raises:
        AssertionError: Helm failed; with its words.
    """
    settings = [f"--set={name}={value}" for name, value in values.items()]
    command = ["helm", "template", release, str(CHART), f"--namespace={namespace}", "--kube-version=1.34.0"]
    finished = subprocess.run([*command, *settings], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
    return [item for item in yaml.safe_load_all(finished.stdout) if item]
