"""Many histories of transactions, on all cores: `python -m tests.cluster.transactions.soak --seeds 2000`.

Stops at the first seed that fails; with `--bug` that is the number of seeds that the bug took.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial

from tests.cluster.soak import attempts_of, nothing
from tests.cluster.transactions.bugs import BUGS, put_back
from tests.cluster.transactions.simulation import Failed, Outcomes, run
from tests.support.folders import temporary_folder


def attempt(seed: int) -> Outcomes | str:
    """What became of a seed; a text if it failed."""
    with temporary_folder() as directory:
        try:
            return run(seed, directory)
        except Failed as failure:
            return str(failure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--bug", choices=sorted(BUGS), help="a fault to put back first; see bugs.py")
    arguments = parser.parse_args()
    prepare = partial(put_back, arguments.bug) if arguments.bug else nothing
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    begun_s = time.monotonic()
    committed = aborted = 0
    outcomes = attempts_of(attempt, seeds, arguments.processes, prepare)
    for count, outcome in enumerate(outcomes, start=1):
        if isinstance(outcome, str):
            print(f"{outcome}\nfailed after {count} seeds, {time.monotonic() - begun_s:.0f} s", flush=True)
            outcomes.close()
            return 1
        committed += outcome.committed
        aborted += outcome.aborted
    elapsed_s = time.monotonic() - begun_s
    print(f"{len(seeds)} seeds: {committed} transactions committed, {aborted} aborted, in {elapsed_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
