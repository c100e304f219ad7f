"""Clusters live through trouble of every kind and keep what they promised (R8, R19, R20, R22)."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.cluster.classic_bugs import BUGS, put_back
from tests.cluster.simulation import Outcome
from tests.cluster.soak import attempts, nothing

PROCESSES = os.cpu_count() or 1
SEEDS = range(2_000)
SEEDS_MAX_FOR_A_BUG = 2_000
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_through_2000_histories_of_trouble_nothing_promised_is_lost() -> None:

    outcomes = list(attempts(SEEDS, PROCESSES, nothing))
    failures = [outcome for outcome in outcomes if not isinstance(outcome, Outcome)]
    assert not failures, f"{len(failures)} of {len(SEEDS)} seeds failed, the first:\n{failures[0]}"
    assert sum(outcome.acknowledgements for outcome in outcomes if isinstance(outcome, Outcome)) > 50_000


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_bug_that_is_put_back_is_found(bug: str) -> None:
    """A simulation that finds nothing says something only if it would."""
    outcomes = attempts(range(SEEDS_MAX_FOR_A_BUG), PROCESSES, partial(put_back, bug))
    for seeds, outcome in enumerate(outcomes, start=1):
        if not isinstance(outcome, Outcome):
            print(f"{bug}: found by seed {seeds - 1}, after {seeds} seeds: {outcome.splitlines()[0]}")  # noqa: T201
            outcomes.close()
            return
    pytest.fail(f"{bug}: not found in {SEEDS_MAX_FOR_A_BUG} seeds")


def test_a_seed_makes_the_same_history_in_every_process() -> None:
    """Also where Python's hashes differ, which order sets."""
    told = [
        subprocess.run(
            [sys.executable, "-m", "tests.cluster.soak", "--seeds", "3", "--first", "7", "--outcomes"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.rpartition(" lived through")[0]
        for hash_seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert told[0].count("Outcome(") == 3
