"""The account of what arrived: lost, duplicate, out of order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.trials.ledger import PartitionLedger, judge


def account(arrived: list[int], sent: int, refused: set[int] | None = None) -> PartitionLedger:
    ledger = PartitionLedger(sent=sent, refused=refused or set())
    for number in arrived:
        ledger.arrived(number)
    return ledger


@pytest.mark.parametrize(
    ("arrived", "lost", "duplicate", "reordered"),
    [
        ([0, 1, 2, 3], [], [], []),
        ([0, 1, 3], [2], [], []),
        ([0, 1], [2, 3], [], []),
        ([], [0, 1, 2, 3], [], []),
        ([0, 1, 1, 2, 3], [], [1], []),
        ([0, 1, 2, 3, 0, 1], [], [0, 1], []),
        ([0, 2, 1, 3], [], [], [1]),
        ([3, 0, 1, 2], [], [], [0, 1, 2]),
        ([0, 2, 1, 1], [3], [1], [1]),
    ],
)
def test_what_is_wrong_is_named(
    arrived: list[int], lost: list[int], duplicate: list[int], reordered: list[int]
) -> None:
    ledger = account(arrived, sent=4)
    assert (ledger.lost(), ledger.duplicate, ledger.reordered) == (lost, duplicate, reordered)
    assert ledger.complete == (not lost)


def test_what_was_refused_may_be_missing_and_may_be_there() -> None:
    assert account([0, 2], sent=4, refused={1, 3}).complete
    assert account([0, 1, 2, 3], sent=4, refused={1, 3}).complete
    verdict = judge({0: account([0, 1, 2], sent=4, refused={1, 3})})
    assert (verdict.sent, verdict.acknowledged, verdict.flawless) == (4, 2, True)


@given(st.integers(0, 60), st.integers(0, 2**32), st.data())
def test_every_fault_is_found_once(sent: int, seed: int, data: st.DataObject) -> None:
    chosen = random.Random(seed)
    numbers = list(range(sent))
    lost = set(chosen.sample(numbers, chosen.randint(0, sent)))
    kept = [number for number in numbers if number not in lost]
    duplicate = chosen.sample(kept, chosen.randint(0, len(kept)))
    ledger = account(kept + duplicate, sent)
    assert (ledger.lost(), ledger.reordered) == (sorted(lost), [])
    assert sorted(ledger.duplicate) == sorted(duplicate)
    shuffled = data.draw(st.permutations(kept))
    assert account(shuffled, sent).lost() == sorted(lost)
    assert (not account(shuffled, sent).reordered) == (shuffled == kept)


def test_a_verdict_counts_all_partitions_and_names_the_first_of_each_fault() -> None:
    verdict = judge({0: account([0, 1, 1], sent=2), 1: account([1], sent=30)})
    assert (verdict.sent, verdict.lost, verdict.duplicate, verdict.reordered) == (32, 29, 1, 0)
    assert not verdict.flawless
    assert verdict.examples["duplicate"] == ["0: 1"]
    assert verdict.examples["lost"][:2] == ["1: 0", "1: 2"]
    assert len(verdict.examples["lost"]) == 10
