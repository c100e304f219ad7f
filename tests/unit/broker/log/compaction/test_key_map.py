"""The map of keys against a dict."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem_broker.log.compaction.key_map import (
    BYTES_PER_SLOT,
    EMPTY,
    LOAD_FACTOR,
    OFFSETS_MAX,
    KeyHash,
    KeyMap,
)

# Long keys repeat a short piece: 4,105 bytes at random would be half of what Hypothesis draws for an example.
KEYS = st.one_of(
    st.binary(max_size=9),
    st.sampled_from([b"\0" * n for n in range(9)]),
    st.builds(
        lambda piece, length: (piece * length)[:length],
        st.binary(min_size=1, max_size=9),
        st.integers(4090, 4105),
    ),
)


def columns(keys: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    data = np.frombuffer(b"".join(keys) or b"\0", dtype=np.uint8)
    lengths = np.array([len(key) for key in keys], dtype=np.int64)
    return data, np.cumsum(lengths) - lengths, lengths


@settings(max_examples=50)
@given(st.lists(st.lists(KEYS, max_size=12), max_size=6), st.lists(KEYS, max_size=5), st.integers(0, 2**32))
def test_it_answers_the_newest_offset_of_each_key(
    rounds: list[list[bytes]], others: list[bytes], seed: int
) -> None:
    key_hash, key_map, newest = KeyHash(seed), KeyMap(0, 0), dict[bytes, int]()
    offset = 0
    for keys in rounds:
        high, low = key_hash.hash(*columns(keys))
        key_map.add(high, low, np.arange(offset, offset + len(keys)))
        newest |= {key: offset + number for number, key in enumerate(keys)}
        offset += len(keys)
    assert key_map.count == len(newest)
    questions = [*newest, *others]
    answers = key_map.newest(*key_hash.hash(*columns(questions)))
    assert answers.tolist() == [newest.get(key, EMPTY) for key in questions]


def test_r5_hashing_many_keys_takes_little_more_memory_than_the_hashes() -> None:
    """An index of 8 bytes for each byte of the keys would take 64 MB here, of which there are 8 MB."""
    key_count, length = 200_000, 40
    data = np.random.default_rng(5).integers(0, 256, size=key_count * length, dtype=np.uint8)
    starts = np.arange(key_count, dtype=np.int64) * length
    key_hash = KeyHash(seed=5)
    tracemalloc.start()
    try:
        high, low = key_hash.hash(data, starts, np.full(key_count, length, dtype=np.int64))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 40_000_000
    for row in (0, 26_213, 26_214, key_count - 1):  # around the border of the keys that are hashed at once
        alone = key_hash.hash(data, starts[row : row + 1], np.array([length], dtype=np.int64))
        assert (high[row], low[row]) == (alone[0][0], alone[1][0])


def test_keys_that_want_the_same_slots_are_kept_apart() -> None:
    """All in one corner of the table, which wraps around its end."""
    key_map = KeyMap(0, 0)
    high = np.full(500, (1 << 64) - 1, dtype=np.uint64)
    low = (np.arange(500, dtype=np.uint64) % 250) << np.uint64(32)
    key_map.add(high, low, np.arange(500))
    assert key_map.count == 250
    assert key_map.newest(high[:250], low[:250]).tolist() == list(range(250, 500))


def test_a_map_too_small_for_one_batch_grows_while_it_is_empty() -> None:
    key_map = KeyMap(0, 0)
    key_map.make_room_for(5000)
    assert key_map.room >= 5000
    key_map.add(np.array([1], dtype=np.uint64), np.array([1], dtype=np.uint64), np.array([1]))
    key_map.make_room_for(50_000)
    assert key_map.room < 50_000


def test_r5_128_mib_take_six_million_keys() -> None:
    """As many as Apache Kafka's default takes, and more."""
    assert int(134_217_728 / BYTES_PER_SLOT * LOAD_FACTOR) == 6_291_456


def test_offsets_far_from_zero_are_kept_up_to_the_last_one_that_a_slot_can_hold() -> None:
    """Also with a hash whose bits are all set: only the offset behind the last one means an empty slot."""
    base_offset = 10**15
    key_map = KeyMap(0, base_offset)
    high = np.array([(1 << 64) - 1, 1, 0], dtype=np.uint64)
    low = np.array([(1 << 64) - (1 << 32), 0, 0], dtype=np.uint64)
    offsets = np.array([base_offset + OFFSETS_MAX - 1, base_offset, base_offset + 2**31], dtype=np.int64)
    assert key_map.newest(high, low).tolist() == [EMPTY] * 3
    key_map.add(high, low, offsets)
    assert key_map.count == 3
    assert key_map.newest(high, low).tolist() == offsets.tolist()
    assert key_map.end_offset_max == int(offsets[0]) + 1


def test_keys_of_which_half_the_hash_is_equal_are_kept_apart() -> None:
    key_map = KeyMap(0, 0)
    high = np.array([5, 5, 6], dtype=np.uint64)
    low = np.array([1, 2, 1], dtype=np.uint64) << np.uint64(32)
    key_map.add(high, low, np.arange(3))
    assert (key_map.count, key_map.newest(high, low).tolist()) == (3, [0, 1, 2])
