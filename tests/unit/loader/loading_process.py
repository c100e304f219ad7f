"""A process that loads until nothing is left, says where it is, and dies where it is told to; run by path.

    python loading_process.py '{"bootstrap_servers": …, "topic": …, "warehouse": …, "max_records": …,
                                "spark": false, "die_at": "commit"}'

Writes a line to its output for each stage it enters, and `done` when the table has all. `die_at` names a
stage at whose beginning it kills itself: `commit` is between files and commit, `dead letters` between commit
and the delivery of dead letters.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from mainstem_loader.executors import InProcessExecutor
from mainstem_loader.load_topic import LoadOutcome, LoadProgress, LoadSettings, load_topic


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(order: dict[str, Any]) -> None:
    settings = LoadSettings(
        order["bootstrap_servers"], order["topic"], Path(order["warehouse"]), max_records=order["max_records"]
    )

    def on_progress(progress: LoadProgress) -> None:
        say(progress.stage.value)
        if progress.stage.value == order["die_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    while True:
        executor = None if order["spark"] else InProcessExecutor()
        if load_topic(settings, executor, on_progress).outcome is LoadOutcome.UP_TO_DATE:
            say("done")
            return


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
