"""What became of a trial, as a file in `trials/results`: failed runs stay on record, too."""

from __future__ import annotations

import datetime as dt
import json
import platform
import subprocess
from pathlib import Path
from typing import Final

from scripts.testing.verdict import PartResult

RESULTS: Final = Path("trials/results")


def write_result(result: PartResult, seed: int, machine: str) -> Path:
    """Write the file; its name is the time and the trial's name."""
    now = dt.datetime.now(dt.UTC)
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    content = {
        "trial": result.name,
        "date": now.isoformat(timespec="seconds"),
        "commit": commit,
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {machine}",
        "seed": seed,
        "repeat": f"make trials TRIAL={result.name} SEED={seed}",
        "seconds": round(result.seconds),
        "passed": result.has_passed,
        "tests": len(result.record.collected) if result.record else 0,
        "skipped": result.record.skipped if result.record else {},
        "failures": {failure.test: failure.error for failure in result.failures},
        "unstable": {failure.test: failure.error for failure in result.unstable},
        "defect": result.defect,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{now:%Y-%m-%d-%H%M}-{result.name}.json"
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path
