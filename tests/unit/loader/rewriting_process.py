"""A process that rewrites rows or loads them through a transform, and dies at the line of code where it is
told to; run by path.

    python rewriting_process.py '{"bootstrap_servers": …, "warehouse": …, "job": "replace",
                                  "die_at_line": 120}'

Lines are counted as they are executed, in the modules that decide, stage, commit and deliver. Prints their
number.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.unit.loader.loading_process import Lines
from tests.unit.loader.transform.frames_without_spark import FramesExecutor, Views

from mainstem_loader import copied_days, load_topic, maintain_table, produce_rows, rewrite_rows, task_runs
from mainstem_loader.chosen_offsets import ChosenOffsets
from mainstem_loader.payload.event_time import TimeUnit
from mainstem_loader.settings import LoadSettings
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.table import commits, delivery, delta, delta_store, sweep
from mainstem_loader.transform.definition import Transform

DECIDING = (copied_days, load_topic, maintain_table, produce_rows, rewrite_rows, task_runs)
TRACED = {module.__file__ for module in (*DECIDING, commits, delivery, delta, delta_store, sweep)}


def doubled_evens(views: Views) -> pa.Table:
    """Two rows of each record with an even number."""
    records = views["records"].select(["n", "_partition", "_offset", "_timestamp"])
    numbers: list[Any] = records["n"].to_pylist()
    even = records.filter(pa.array([number % 2 == 0 for number in numbers]))
    return pa.concat_tables([even, even])


def run(job: str, settings: LoadSettings) -> None:
    everything, executor = ChosenOffsets(), InProcessExecutor()
    match job:
        case "append" | "replace":
            rewrite_rows.backfill(settings, everything, job == "replace", executor)
        case "rewind":
            rewrite_rows.rewind(settings, everything)
        case "merge":
            maintain_table.maintain(settings, executor=executor)
        case "transform":
            load_topic.load_topic(settings, FramesExecutor(doubled_evens))
        case _:
            rewrite_rows.replay_dead_letters(settings, everything, executor)


def main(order: dict[str, Any]) -> None:
    lines = Lines(TRACED, order["die_at_line"])
    settings = LoadSettings(
        order["bootstrap_servers"],
        "t",
        Path(order["warehouse"]),
        event_time_field=None if order["job"] == "transform" else "at",
        event_time_unit=TimeUnit.SECONDS if order["job"] == "replay" else TimeUnit.MILLISECONDS,
        max_rejected_share=1,
        retry_ms=300,
        transform=Transform(sql="SELECT 1") if order["job"] == "transform" else None,
    )
    sys.settrace(lines.trace)
    run(order["job"], settings)
    sys.settrace(None)
    sys.stdout.write(f"{lines.count}\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
