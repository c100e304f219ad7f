"""The newest offset of each key, in memory of a fixed size.

An open-addressing hash table with 16 bytes for each slot: 96 bits of a key's hash, and its newest offset in
32 bits, relative to the first offset that the map is about. 128 MiB take 6.29 million keys. A pass that would
reach further than 2^32 - 2 offsets ends before that.

Keys with equal hashes would be taken for one key, and the older record would be lost; so the hash is a
universal one with multipliers drawn anew for each map, and two keys that collide cannot be prepared. For two
given keys the chance is 2^-96. A map of n keys has n^2 / 2 pairs: with 6.29 million keys the chance that any
two of them collide is 2.5 * 10^-16, and twice that again for as many keys that are only looked up. A thousand
such passes a day have one collision in three billion years.

All operations take arrays. numpy hashes the keys, and compiled loops (`record_walk`) search for them.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mainstem_broker.log.compaction.record_walk import SLOT_COLUMNS, empty_slots, newest_offsets, put_keys

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Bytes = NDArray[np.uint8]

BYTES_PER_SLOT: Final = 8 * SLOT_COLUMNS
LOAD_FACTOR: Final = 0.75
"""Above, linear probing takes ever more steps: 8.5 on average for a key that is not there, 50 at 0.9."""
SLOTS_MIN: Final = 1024
OFFSETS_MAX: Final = 2**32 - 1
"""Relative offsets that a slot can hold: all bits set means that the slot is empty."""
EMPTY: Final = -1

_HALF: Final = np.uint64(32)
_WORD_BYTES: Final = 4
_WORDS_MAX: Final = 1024
"""Longer keys, of more than 4 KiB, are hashed one by one."""
_HASHED_BYTES: Final = 1024 * 1024
"""Keys that are hashed at once, 65,536 of 16 bytes: numpy needs 20 times as much memory meanwhile."""


class KeyHash:
    """A hash of 96 bits, drawn from a family in which two different keys of a length rarely meet.

    Three multilinear hashes of 32 bits (Carter and Wegman: sums of 32-bit words times random 64-bit numbers,
    of which the upper half counts), each with multipliers of its own.
    """

    def __init__(self, seed: int | None = None) -> None:
        """Draw the multipliers; a `seed` makes them repeatable, for tests."""
        generator = np.random.default_rng(secrets.randbits(128) if seed is None else seed)
        self._multipliers = generator.integers(0, 1 << 64, size=(3, _WORDS_MAX + 2), dtype=np.uint64)
        self._long_key_seed = generator.bytes(32)

    def hash(self, data: Bytes, starts: Int64s, lengths: Int64s) -> tuple[UInt64s, UInt64s]:
        """The hash of each key, given where keys lie in `data`; no length is negative.

        The first 64 bits; and the other 32, above 32 bits of zero.
        """
        high = np.empty(len(starts), dtype=np.uint64)
        low = np.empty(len(starts), dtype=np.uint64)
        order = np.argsort(lengths, kind="stable")
        ordered = lengths[order]
        bounds = np.flatnonzero(np.diff(ordered)) + 1
        for rows in np.split(order, bounds) if len(order) else ():
            length = int(lengths[rows[0]])
            if length > _WORDS_MAX * _WORD_BYTES:
                high[rows], low[rows] = self._hash_long(data, starts[rows], length)
                continue
            at_once = _HASHED_BYTES // max(length, _WORD_BYTES)
            for first in range(0, len(rows), at_once):
                some = rows[first : first + at_once]
                high[some], low[some] = self._hash_rows(data, starts[some], length)
        return high, low

    def _hash_rows(self, data: Bytes, starts: Int64s, length: int) -> tuple[UInt64s, UInt64s]:
        word_count = -(-length // _WORD_BYTES)
        padded = np.zeros((len(starts), word_count * _WORD_BYTES), dtype=np.uint8)
        padded[:, :length] = data[starts[:, None] + np.arange(length)]
        words = padded.view("<u4").astype(np.uint64)
        parts = []
        for multipliers in self._multipliers:
            # Constant terms keep apart keys of zeros of different lengths.
            constant = np.uint64((int(multipliers[-1]) + int(multipliers[-2]) * length) % (1 << 64))
            parts.append((words @ multipliers[:word_count] + constant) >> _HALF)
        return (parts[0] << _HALF) | parts[1], parts[2] << _HALF

    def _hash_long(self, data: Bytes, starts: Int64s, length: int) -> tuple[UInt64s, UInt64s]:
        digests = b"".join(
            hashlib.blake2b(
                data[start : start + length].tobytes(), digest_size=16, key=self._long_key_seed
            ).digest()
            for start in starts.tolist()
        )
        halves = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
        return halves[:, 0], halves[:, 1] >> _HALF << _HALF


def bytes_for_keys(count: int) -> int:
    """The memory of a map that takes `count` keys."""
    return BYTES_PER_SLOT * (int(count / LOAD_FACTOR) + 1)


class KeyMap:
    """`count` keys of at most `count_max`. Offsets are added in rising order; the last one of a key stays.

    Offsets are at least `base_offset`, and less than `end_offset_max`.
    """

    def __init__(self, memory_bytes: int, base_offset: int) -> None:
        self._base_offset = base_offset
        self.end_offset_max = base_offset + OFFSETS_MAX
        slots = max(memory_bytes // BYTES_PER_SLOT, SLOTS_MIN)
        self._allocate(slots)

    def _allocate(self, slots: int) -> None:
        self.count = 0
        self.count_max = int(slots * LOAD_FACTOR)
        self._slot_count = np.uint64(slots)
        self._slots = empty_slots(slots)

    def make_room_for(self, keys: int) -> None:
        """Grow an empty map that could not take `keys`, so that every pass makes progress."""
        if self.count == 0 and keys > self.count_max:
            self._allocate(bytes_for_keys(keys) // BYTES_PER_SLOT)

    @property
    def room(self) -> int:
        return self.count_max - self.count

    def add(self, high: UInt64s, low: UInt64s, offsets: Int64s) -> None:
        """Note the offsets of keys; at most `room` of the keys may be new."""
        columns = self._columns(high, low)
        self.count += put_keys(self._slots, *columns, offsets.tobytes(), self._base_offset)

    def newest(self, high: UInt64s, low: UInt64s) -> Int64s:
        """The newest offset of each key; `EMPTY` for keys that are not in the map."""
        newest = newest_offsets(self._slots, *self._columns(high, low), self._base_offset)
        return np.frombuffer(memoryview(newest), dtype=np.int64)

    def _columns(self, high: UInt64s, low: UInt64s) -> tuple[bytes, bytes, bytes]:
        # The upper 32 bits, scaled to the number of slots, say where the search for a key begins.
        first = ((high >> _HALF) * self._slot_count) >> _HALF
        return first.tobytes(), high.tobytes(), low.tobytes()
