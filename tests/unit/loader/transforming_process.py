"""A process that loads through a transform and dies at the line of code where it is told to; run by path.

    python transforming_process.py '{"bootstrap_servers": …, "warehouse": …, "die_at_line": 120}'

Lines are counted as they are executed, in the modules that load, stage, commit and deliver. Prints their
number. Each record becomes two rows, except that odd numbers are left out.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
from tests.unit.loader.transform.frames_without_spark import FramesExecutor, Views

from mainstem_loader import load_topic, produce_rows, task_runs
from mainstem_loader.settings import LoadSettings
from mainstem_loader.table import commits, delivery, delta
from mainstem_loader.transform.definition import Transform

TRACED = {module.__file__ for module in (load_topic, produce_rows, task_runs, commits, delivery, delta)}


def doubled_and_filtered(views: Views) -> pa.Table:
    records = views["records"].select(["n", "_partition", "_offset", "_timestamp"])
    numbers: list[Any] = records["n"].to_pylist()
    even = records.filter(pa.array([number % 2 == 0 for number in numbers]))
    return pa.concat_tables([even, even])


def main(order: dict[str, Any]) -> None:
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            count += 1
            if count == order["die_at_line"]:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    settings = LoadSettings(
        order["bootstrap_servers"],
        "t",
        Path(order["warehouse"]),
        max_records=order["max_records"],
        max_rejected_share=1,
        retry_ms=300,
        transform=Transform(sql="SELECT 1"),
    )
    sys.settrace(trace)
    load_topic.load_topic(settings, FramesExecutor(doubled_and_filtered))
    sys.settrace(None)
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
