"""Transactions live through failovers, delayed markers and compaction (R9, R11, R12)."""

from __future__ import annotations

import asyncio
import contextvars
import os
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.cluster.soak import attempts_of, nothing
from tests.cluster.transactions.bugs import BUGS, put_back
from tests.cluster.transactions.simulation import Outcomes, run
from tests.cluster.transactions.soak import attempt
from tests.cluster.virtual_time import OWNER, Process, run_in_virtual_time

PROCESSES = os.cpu_count() or 1
GATE_SEEDS = range(60)
MORE_SEEDS = range(60, 300)
"""A history takes 0.4 to 0.5 s of a core: 300 take 75 s on two cores."""
SEEDS_IT_TOOK = {
    "answer_the_end_before_it_is_replicated": 58,
    "append_repeated_batches_again": 1,
    "begin_transactions_without_the_coordinator": 1,
    "compact_by_records_of_aborted_transactions": 7,
    "drop_tombstones_while_older_segments_have_their_keys": 1,
    "forget_offsets_of_open_transactions_at_a_failover": 80,
    "keep_the_verification_when_a_marker_is_skipped": 81,
    "leave_decided_transactions_to_the_former_coordinator": 1,
    "leave_transactions_open_past_their_timeout": 2,
    "move_the_last_stable_offset_before_the_markers": 1,
    "send_markers_before_the_decision_is_replicated": 134,
    "send_markers_without_the_coordinators_epoch": 3,
    "show_offsets_before_their_transaction_ends": 1,
}
"""By bug: the number of seeds, from 0 on, that it took when it was measured. The last of them is tried first.
Changes of the simulation and of the broker change it, so ten times as many are tried, and at least 200."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", [GATE_SEEDS, MORE_SEEDS], ids=["0-59", "60-299"])
def test_r11_through_histories_of_trouble_transactions_are_all_or_nothing(seeds: range) -> None:
    outcomes = list(attempts_of(attempt, seeds, PROCESSES, nothing))
    failures = [outcome for outcome in outcomes if not isinstance(outcome, Outcomes)]
    assert not failures, f"{len(failures)} of {len(seeds)} seeds failed, the first:\n{failures[0]}"
    lived = [outcome for outcome in outcomes if isinstance(outcome, Outcomes)]
    assert sum(outcome.committed for outcome in lived) > 3 * len(seeds)
    assert sum(outcome.aborted for outcome in lived) > len(seeds)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_bug_that_is_put_back_is_found(bug: str) -> None:
    """A simulation that finds nothing says something only if it would."""
    seeds_max = max(200, 10 * SEEDS_IT_TOOK[bug])
    # The first alone: it finds the bug, and what other processes do meanwhile is in vain.
    for seeds, processes in ([SEEDS_IT_TOOK[bug] - 1], 1), (range(seeds_max), PROCESSES):
        outcomes = attempts_of(attempt, seeds, processes, partial(put_back, bug))
        for seed, outcome in zip(seeds, outcomes, strict=True):
            if isinstance(outcome, str):
                print(f"{bug}: found by seed {seed}: {outcome}")  # noqa: T201
                outcomes.close()
                return
    pytest.fail(f"{bug}: not found in {seeds_max} seeds")


def test_a_seed_makes_the_same_history_again(tmp_path: Path) -> None:
    with capture_logs():
        assert run(3, tmp_path / "first") == run(3, tmp_path / "second")


def test_a_killed_process_writes_nothing_more() -> None:
    """Lives of a broker share their files: a timer of one would write into the log of the next."""
    done: list[str] = []

    async def work(name: str) -> None:
        done.append(name)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        process = Process()
        context = contextvars.copy_context()
        context.run(OWNER.set, process)
        context.run(loop.call_later, 1, done.append, "timer")
        process.kill()
        left = loop.create_task(work("task"), context=context)
        await asyncio.sleep(2)
        assert left.cancelled()

    run_in_virtual_time(main())
    assert done == []
