"""The lanes find the same records as the loop, whatever the bytes between look like."""

from __future__ import annotations

import random
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.loader.batch_bytes import Record, record_bytes, varint

from mainstem_loader.kafka import record_walk
from mainstem_loader.kafka.record_walk import read_varint, record_starts


def laid_out(
    batches: list[list[bytes]], gap: int
) -> tuple[bytes, np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """Batches of records with `gap` bytes of header between: the bytes, where each begins and ends, the
    counts, and where the records really begin.
    """
    plain = bytearray()
    begins, ends, starts = [], [], []
    for records in batches:
        plain += b"\xff" * gap
        begins.append(len(plain))
        starts += list(accumulate((len(record) for record in records[:-1]), initial=len(plain)))
        plain += b"".join(records)
        ends.append(len(plain))
    counts = [len(records) for records in batches]
    return bytes(plain), np.array(begins), np.array(ends), np.array(counts), starts


def value_of(kind: str, size: int, chance: random.Random) -> bytes:
    match kind:
        case "text":
            return bytes(chance.choices(range(32, 127), k=size))
        case "zeros":
            return bytes(size)
        case "noise":
            return chance.randbytes(size)
        case _:
            # Records inside of a record: the worst that a guess can meet.
            inner = b""
            while len(inner) < size:
                inner += record_bytes(Record(0, 0, None, b"x" * chance.randrange(40)), 0, 0)
            return inner[:size]


@pytest.mark.parametrize("kind", ["text", "zeros", "noise", "records"])
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32), gap=st.sampled_from([0, 61]), largest=st.sampled_from([1, 60, 300, 300, 9000])
)
def test_lanes_and_loop_agree_with_the_truth(kind: str, seed: int, gap: int, largest: int) -> None:
    chance = random.Random(seed)
    batches = [
        [
            record_bytes(Record(index, 0, None, value_of(kind, chance.randrange(largest), chance)), 0, 0)
            for index in range(chance.randrange(1, 40))
        ]
        for _ in range(chance.randrange(1, 12))
    ]
    plain, begins, ends, counts, starts = laid_out(batches, gap)
    for lane_bytes, lanes_min in ((256, 0), (4096, 0), (256, 10**9)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(record_walk, "LANE_BYTES", lane_bytes)
            patch.setattr(record_walk, "LANES_MIN", lanes_min)
            result = record_starts(plain, begins, ends, counts)
        assert result is not None
        assert result.tolist() == starts


@pytest.mark.parametrize("lanes_min", [0, 10**9], ids=["lanes", "loop"])
@given(seed=st.integers(0, 2**32))
def test_batches_that_are_not_filled_by_their_records_are_refused(lanes_min: int, seed: int) -> None:
    chance = random.Random(seed)
    batches = [[record_bytes(Record(i, 0, None, b"v" * i), 0, 0) for i in range(40)] for _ in range(5)]
    plain, begins, ends, counts, _ = laid_out(batches, 0)
    wrong = chance.randrange(5)
    if chance.random() < 0.5:
        counts[wrong] += chance.choice([-1, 1, 1000])
    else:
        ends[wrong] += chance.choice([-1, 1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_walk, "LANE_BYTES", 64)
        patch.setattr(record_walk, "LANES_MIN", lanes_min)
        assert record_starts(plain, begins, ends, counts) is None


@pytest.mark.parametrize("lanes_min", [0, 10**9], ids=["lanes", "loop"])
@example(plain=b"\x80" * 9 + b"\x02\0\0", count=1)
@given(plain=st.binary(min_size=12, max_size=300), count=st.integers(1, 20))
def test_random_bytes_never_do_harm(lanes_min: int, plain: bytes, count: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_walk, "LANE_BYTES", 32)
        patch.setattr(record_walk, "LANES_MIN", lanes_min)
        result = record_starts(plain, np.array([0]), np.array([len(plain)]), np.array([count]))
    assert result is None or len(result) == count


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_of_all_lengths_are_read(number: int) -> None:
    raw, behind = read_varint(varint(number) + b"rest", 0)
    assert (raw >> 1) ^ -(raw & 1) == number
    assert behind == len(varint(number))


@pytest.mark.parametrize("broken", [b"\x80" * 5, b"\x80" * 11 + b"\0"], ids=["cut off", "too long"])
def test_what_is_no_varint_is_refused(broken: bytes) -> None:
    with pytest.raises(IndexError):
        read_varint(broken, 0)
