"""Many seeds, on all cores: `python -m tests.cluster.soak --seeds 100000`; `make soak` does that.

Stops at the first seeds that fail and tells them; the last line is the sum.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import structlog
from tests.cluster.classic_bugs import BUGS, RARE_BUGS, put_back
from tests.cluster.simulation import Failed, Outcome, run

FAILURES_MAX = 5
MEMORY = Path("/dev/shm")
"""Files of a simulation need no disk."""

AnyOutcome = TypeVar("AnyOutcome")


def nothing() -> None:
    """No bug."""


def quiet() -> None:
    """Brokers log what they do; here the history tells it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def attempt(seed: int) -> Outcome | str:
    """What became of a seed; a text if it failed."""
    try:
        return run(seed)
    except Failed as failure:
        return str(failure)


def attempts(
    seeds: Sequence[int], processes: int, prepare: Callable[[], None]
) -> Generator[Outcome | str, None, None]:
    """The outcomes in the order of the seeds; `prepare` is called in each process that runs some."""
    chunk = max(1, min(25, len(seeds) // (4 * processes)))
    yield from attempts_of(attempt, seeds, processes, prepare, chunk)


def attempts_of(
    live: Callable[[int], AnyOutcome | str],
    seeds: Sequence[int],
    processes: int,
    prepare: Callable[[], None],
    chunk: int = 1,
) -> Generator[AnyOutcome | str, None, None]:
    """As `attempts`, for another simulation; `live` returns what became of a seed, a text if it failed.

    A process is given `chunk` seeds at once. If the generator is closed, or the timeout of a test interrupts
    it, the processes are ended: on a busy machine what they are at takes minutes, in which pytest would end
    its own process (`faulthandler_timeout`), and with it a worker of pytest-xdist.
    """
    others = active_children()
    # New processes rather than forks: a fork of one that tested with librdkafka's clients crashes when it
    # collects those clients as garbage, as it has none of their threads.
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        pool = ProcessPoolExecutor(
            processes, get_context("spawn"), initializer=_prepare, initargs=(prepare, folder)
        )
        try:
            yield from pool.map(live, seeds, chunksize=chunk)
        except BaseException:
            for process in active_children():
                if process not in others:
                    process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _prepare(prepare: Callable[[], None], folder: str) -> None:
    tempfile.tempdir = folder  # which is deleted also when this process is terminated
    quiet()
    prepare()
    # Little of a history becomes garbage before it ends: to look for some as often as Python does by itself
    # takes a sixth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 10, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--bug", choices=sorted({**BUGS, **RARE_BUGS}), help="a fault to put back first; see classic_bugs.py"
    )
    parser.add_argument("--outcomes", action="store_true", help="tell what became of each seed")
    arguments = parser.parse_args()
    prepare = partial(put_back, arguments.bug) if arguments.bug else nothing
    begun_s = time.monotonic()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    acknowledgements = reads = done = failures = 0
    virtual_s = 0.0
    for outcome in attempts(seeds, arguments.processes, prepare):
        done += 1
        if isinstance(outcome, str):
            failures += 1
            print(outcome, flush=True)
            if failures == FAILURES_MAX:
                break
        else:
            if arguments.outcomes:
                print(outcome)
            acknowledgements += outcome.acknowledgements
            reads += outcome.reads
            virtual_s += outcome.virtual_s
        if done % 500 == 0:
            print(f"{done} seeds, {failures} failed, {time.monotonic() - begun_s:.0f} s", flush=True)
    print(
        f"{done} seeds from {arguments.first}: {failures} failed; {acknowledgements} records acknowledged,"
        f" {reads} read, {virtual_s / 3600:.1f} hours lived through in {time.monotonic() - begun_s:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
