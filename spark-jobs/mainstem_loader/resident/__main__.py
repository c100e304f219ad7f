"""`python -m mainstem_loader.resident FILE`: keep the tables of all topics of a file fresh.

Ends with 0 after SIGTERM or Ctrl-C, and with 1 when it cannot go on; the error output says why. Killing it
loses nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mainstem_loader.arguments import whole_number
from mainstem_loader.errors import LoaderError
from mainstem_loader.resident.process import Resident, loading_with, serve_pages
from mainstem_loader.spark.executors import SparkExecutor

PORT: Final = 9404
WORKERS: Final = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal, and return the exit code."""
    options = _parser().parse_args(arguments)
    # Tasks of all loads get their turn, or those of a large one would hold up the others.
    executor = SparkExecutor(f"local[{options.cores}]", {"spark.scheduler.mode": "FAIR"})
    try:
        with executor:
            resident = Resident(options.file, loading_with(executor), executor.is_alive, options.workers)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: resident.stop())
            with serve_pages(options.port, resident.page):
                resident.run()
    except LoaderError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mainstem_loader.resident", description="Keep the tables of topics fresh."
    )
    parser.add_argument("file", type=Path, help="names the topics; read again when it changes")
    parser.add_argument("--cores", type=whole_number, default=os.cpu_count() or 1)
    parser.add_argument(
        "--workers", type=whole_number, default=WORKERS, help="loads side by side; %(default)s"
    )
    parser.add_argument(
        "--port", type=whole_number, default=PORT, help="of the pages /status and /healthz; %(default)s"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
