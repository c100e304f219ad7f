"""A process that rewrites rows and dies at the line of code where it is told to; run by path.

    python rewriting_process.py '{"bootstrap_servers": …, "warehouse": …, "job": "replace",
                                  "die_at_line": 120}'

Lines are counted as they are executed, in the modules that decide, commit and deliver. Prints their number.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from mainstem_loader import copied_days, maintain_table, rewrite_rows
from mainstem_loader.chosen_offsets import ChosenOffsets
from mainstem_loader.payload.event_time import TimeUnit
from mainstem_loader.settings import LoadSettings
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.table import commits, delivery, delta, delta_store, sweep

TRACED = {
    module.__file__
    for module in (copied_days, maintain_table, rewrite_rows, commits, delivery, delta, delta_store, sweep)
}


def run(job: str, settings: LoadSettings) -> None:
    everything, executor = ChosenOffsets(), InProcessExecutor()
    match job:
        case "append" | "replace":
            rewrite_rows.backfill(settings, everything, job == "replace", executor)
        case "rewind":
            rewrite_rows.rewind(settings, everything)
        case "merge":
            maintain_table.maintain(settings, executor=executor)
        case _:
            rewrite_rows.replay_dead_letters(settings, everything, executor)


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
        event_time_field="at",
        event_time_unit=TimeUnit.SECONDS if order["job"] == "replay" else TimeUnit.MILLISECONDS,
        max_rejected_share=1,
        retry_ms=300,
    )
    sys.settrace(trace)
    run(order["job"], settings)
    sys.settrace(None)
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
