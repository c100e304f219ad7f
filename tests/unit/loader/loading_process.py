"""A process that loads until nothing is left, says where it is, and dies where it is told to; run by path.

    python loading_process.py '{"bootstrap_servers": …, "topic": …, "warehouse": …, "max_records": …,
                                "format": "iceberg", "spark": false, "die_at": "commit",
                                "die_at_line": null}'

Writes a line to its output for each stage it enters, and `done` when the table has all. `die_at` names a
stage at whose beginning it kills itself: `commit` is between files and commit, `dead letters` between commit
and the delivery of dead letters. `die_at_line` is the number of a line of code, counted as they are executed
in the modules that commit, their libraries for Iceberg included; then `lines` and their number follow `done`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from mainstem_loader import adapt_table
from mainstem_loader import load_topic as job
from mainstem_loader.columns import TableFormat
from mainstem_loader.load_topic import LoadOutcome, LoadProgress, LoadSettings, load_topic
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.table import adaptation, commits, delivery, delta, delta_store, sweep
from mainstem_loader.table.iceberg_catalog import IcebergCatalog


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def traced_files(table_format: TableFormat) -> set[str | None]:
    modules = [job, adapt_table, adaptation, commits, delivery, delta, delta_store, sweep]
    if table_format is TableFormat.ICEBERG:
        import pyiceberg.catalog
        import pyiceberg.catalog.sql
        import pyiceberg.table
        import pyiceberg.table.update.snapshot

        from mainstem_loader.table import iceberg_catalog, iceberg_state, iceberg_store, synced_files

        modules += [iceberg_catalog, iceberg_state, iceberg_store, synced_files]
        modules += [pyiceberg.catalog, pyiceberg.catalog.sql, pyiceberg.table]
        modules += [pyiceberg.table.update.snapshot]
    return {module.__file__ for module in modules}


class Lines:
    """Counts the lines of some files that are executed, and ends the process at one of them."""

    def __init__(self, files: set[str | None], die_at: int | None) -> None:
        self.count = 0
        self._files = files
        self._die_at = die_at

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        if event == "line":
            self.count += 1
            if self.count == self._die_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


def main(order: dict[str, Any]) -> None:
    table_format = TableFormat(order.get("format", "delta"))
    settings = LoadSettings(
        order["bootstrap_servers"],
        order["topic"],
        Path(order["warehouse"]),
        catalog=IcebergCatalog() if table_format is TableFormat.ICEBERG else None,
        max_records=order["max_records"],
        spark_master="local[2]" if order["spark"] else None,
        max_rejected_share=1,
    )
    lines = Lines(traced_files(table_format), order.get("die_at_line"))
    if "die_at_line" in order:
        sys.settrace(lines.trace)

    def on_progress(progress: LoadProgress) -> None:
        say(progress.stage.value)
        if progress.stage.value == order["die_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    while True:
        executor = None if order["spark"] else InProcessExecutor()
        if load_topic(settings, executor, on_progress).outcome is LoadOutcome.UP_TO_DATE:
            sys.settrace(None)
            say("done")
            if "die_at_line" in order:
                say(f"lines {lines.count}")
            return


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
