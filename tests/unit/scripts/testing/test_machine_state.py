from __future__ import annotations

from scripts.testing.machine_state import ResourceWitness, described, shortages, worst


def test_the_worst_is_the_least_that_was_left_of_each() -> None:
    assert worst((1.0, 5, 70), (3.0, 4, 90)) == (3.0, 4, 70)
    assert worst((1.0, None, 70), (0.5, None, 60)) == (1.0, None, 60)


def test_a_witness_ends_when_it_is_stopped_and_says_what_it_noticed() -> None:
    assert "of disk free" in described(ResourceWitness().stop())


def test_little_memory_or_disk_is_a_shortage() -> None:
    assert shortages((99.0, 2_000_000_000, 2_000_000_000)) == []
    assert shortages((1.0, None, 2_000_000_000)) == []
    full, memory = shortages((1.0, 100_000_000, 0))
    assert "the disk was full: 0.0 GB" in full
    assert "memory ran out: 0.1 GB" in memory
