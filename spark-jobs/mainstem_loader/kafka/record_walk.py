"""Where each record of a batch begins: the one thing that cannot be read for all records at once.

A record begins where the one before ends, and says its length in front, as a zigzag varint. A loop in Python
that follows this chain costs more than all the rest of decoding. So where there is enough to read, the bytes
are cut into lanes of about equal length, one batch or a part of one each, and numpy takes one step in all
lanes at a time.

A lane in the middle of a batch begins at a guess: a place where three records in a row look like records (an
even length, a zero byte of attributes). Guesses cannot do harm. The first lane of a batch begins rightly, so
if every lane ends exactly where the next one begins, all of them do; a batch where one does not is walked by
the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from mainstem_loader.arrow_arrays import Bytes, Flags, Int64s

# Longer lanes need fewer guesses, more lanes need fewer steps; measured best for records of 100 to 200 bytes.
LANE_BYTES: Final = 32 * 1024
# With fewer, a step of numpy in all lanes costs more than as many steps of Python.
LANES_MIN: Final = 96

# A record has at least attributes, two deltas, two lengths and a header count, of one byte each.
_RECORD_BYTES_MIN: Final = 6
_LIKENESS_STEPS: Final = 3

VARINT_BYTES_MAX: Final = 10


def _sizes_by_first_bytes() -> Int64s:
    """For the first two bytes of a record, little endian, the size of the record with its length; 0 if the
    length has more than two bytes.
    """
    both = np.arange(1 << 16, dtype=np.int64)
    first, second = both & 0xFF, both >> 8
    short = 1 + (first >> 1)
    long = 2 + (((first & 0x7F) | (second << 7)) >> 1)
    return np.where(first < 0x80, short, np.where(second < 0x80, long, 0))


_SIZE: Final = _sizes_by_first_bytes()
# The same for the loop, to which lists are faster: by the first byte, and what the second adds.
_ONE_BYTE: Final = [1 + (byte >> 1) for byte in range(0x80)]
_TWO_BYTES: Final = [2 + ((byte & 0x7F) >> 1) for byte in range(0x100)]
_SECOND_BYTE: Final = [byte << 6 for byte in range(0x80)]


def record_starts(plain: bytes, begins: Int64s, ends: Int64s, counts: Int64s) -> Int64s | None:
    """The position of every record.

    Args:
        plain: holds the records of all batches, uncompressed.
        begins, ends: of each batch's records in `plain`, rising.
        counts: how many records each batch says it has, at least 1.

    Returns:
        `sum(counts)` positions, rising; None if a batch is not filled by as many records.
    """
    if np.any(counts * _RECORD_BYTES_MIN > ends - begins):
        return None
    if len(begins) + int(((ends - begins) // LANE_BYTES).sum()) < LANES_MIN:
        return _walk_loop(plain, begins, ends, counts)
    data = np.frombuffer(plain, dtype=np.uint8)
    lane_begins, lane_ends, batch_of = _cut_lanes(data, begins, ends, counts)
    starts, reached = _walk_lanes(plain, data, lane_begins, lane_ends)
    wrong = np.unique(batch_of[reached != lane_ends])
    if wrong.size:
        repaired = _walk_loop(plain, begins[wrong], ends[wrong], counts[wrong])
        if repaired is None:
            return None
        right = ~np.isin(np.searchsorted(begins, starts, side="right") - 1, wrong)
        starts = np.sort(np.concatenate((starts[right], repaired)))
    record_counts = np.searchsorted(starts, ends) - np.searchsorted(starts, begins)
    return starts if np.array_equal(record_counts, counts) else None


def read_varint(plain: bytes, position: int) -> tuple[int, int]:
    """One varint, not yet unzigzagged, and the position behind it.

    Raises:
        IndexError: it does not end in `plain`, or is longer than 64 bits need.
    """
    value = 0
    for index in range(VARINT_BYTES_MAX):
        byte = plain[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise IndexError("a varint is too long")


def _walk_loop(plain: bytes, begins: Int64s, ends: Int64s, counts: Int64s) -> Int64s | None:
    parts: list[Int64s] = []
    for begin, end, count in zip(begins.tolist(), ends.tolist(), counts.tolist(), strict=True):
        try:
            # One more step than records, to see where the last one ends.
            part = np.fromiter(_steps(plain, begin, count), dtype=np.int64, count=count + 1)
        except IndexError:
            return None
        if part[-1] != end:
            return None
        parts.append(part[:-1])
    return np.concatenate(parts)


def _steps(plain: bytes, position: int, count: int) -> Iterator[int]:
    """Where `count` records begin, and where the last one ends. Raises IndexError past the end of `plain`."""
    # Globals in locals: this is the hottest loop of the loader.
    one, two, more = _ONE_BYTE, _TWO_BYTES, _SECOND_BYTE
    yield position
    for _ in range(count):
        byte = plain[position]
        if byte < 0x80:
            position += one[byte]
        elif (second := plain[position + 1]) < 0x80:
            position += two[byte] + more[second]
        else:
            length, position = read_varint(plain, position)
            position += length >> 1
            if position > len(plain):
                raise IndexError("a record ends past the end")
        yield position


def _cut_lanes(data: Bytes, begins: Int64s, ends: Int64s, counts: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Begins and ends of lanes, and the batch each lies in."""
    cuts = (ends - begins) // LANE_BYTES
    batch_of_cut = np.repeat(np.arange(len(begins)), cuts)
    number = np.arange(len(batch_of_cut)) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    targets = begins[batch_of_cut] + (number + 1) * LANE_BYTES
    # Of a stretch twice as long as a record is on average, nearly all hold a beginning.
    stretch = int(min(LANE_BYTES // 2, 2 * np.max((ends - begins) // counts) + 16))
    guessed = _guess_starts(data, targets, ends[batch_of_cut], stretch)
    lane_begins = np.unique(np.concatenate((begins, guessed)))
    batch_of = np.searchsorted(begins, lane_begins, side="right") - 1
    lane_ends = np.append(lane_begins[1:], ends[-1])
    lane_ends = np.minimum(lane_ends, ends[batch_of])
    return lane_begins, lane_ends, batch_of


def _guess_starts(data: Bytes, targets: Int64s, ends: Int64s, stretch: int) -> Int64s:
    """For most of `targets` the first place behind it that looks like the beginning of a record."""
    window = data.take(targets[:, None] + np.arange(stretch + 2), mode="clip")
    rows, columns = np.nonzero(_look_alike(window[:, :-2], window[:, 1:-1], window[:, 2:]))
    places, bounds = targets[rows] + columns, ends[rows]
    position = places
    alike = places < bounds
    for _ in range(_LIKENESS_STEPS):
        following = position + _size_at(data, position)
        alike &= (following == bounds) | ((following < bounds) & _looks_alike_at(data, following))
        position = np.where(following < bounds, following, position)
    rows, places = rows[alike], places[alike]
    _, first = np.unique(rows, return_index=True)
    return places[first]


def _looks_alike_at(data: Bytes, positions: Int64s) -> Flags:
    return _look_alike(
        data.take(positions, mode="clip"),
        data.take(positions + 1, mode="clip"),
        data.take(positions + 2, mode="clip"),
    )


def _look_alike(first: Bytes, second: Bytes, third: Bytes) -> Flags:
    """Whether three bytes may begin a record: an even length of one or two bytes, then zero attributes."""
    one_byte = (first < 0x80) & (first >= 2 * _RECORD_BYTES_MIN) & (second == 0)
    two_bytes = (first >= 0x80) & (second < 0x80) & (third == 0)
    alike: Flags = ((first & 1) == 0) & (one_byte | two_bytes)
    return alike


def _size_at(data: Bytes, positions: Int64s) -> Int64s:
    both = data.take(positions, mode="clip").astype(np.uint16)
    both |= data.take(positions + 1, mode="clip").astype(np.uint16) << 8
    return _SIZE.take(both)


def _walk_lanes(plain: bytes, data: Bytes, begins: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
    """All positions that lanes pass, rising within a lane and lane after lane, and where each lane came
    out.
    """
    reached = np.empty(len(begins), dtype=np.int64)
    counts = np.empty(len(begins), dtype=np.int64)
    steps: list[tuple[Int64s, Int64s]] = []
    lanes, position, bounds = np.arange(len(begins)), begins, ends
    while len(lanes):
        steps.append((lanes, position))
        sizes = _size_at(data, position)
        if not sizes.all():
            sizes = _with_long_sizes(plain, position, sizes)
        position = position + sizes
        on_the_way = position < bounds
        if not on_the_way.all():
            ended = lanes[~on_the_way]
            reached[ended] = position[~on_the_way]
            counts[ended] = len(steps)
            lanes, position, bounds = lanes[on_the_way], position[on_the_way], bounds[on_the_way]
    firsts = np.cumsum(counts) - counts
    starts = np.empty(int(counts.sum()), dtype=np.int64)
    for number, (lanes, position) in enumerate(steps):
        starts[firsts[lanes] + number] = position
    return starts, reached


def _with_long_sizes(plain: bytes, positions: Int64s, sizes: Int64s) -> Int64s:
    """Fills in the sizes of records whose length has more than two bytes. What is no varint ends its lane."""
    for index in np.flatnonzero(sizes == 0).tolist():
        try:
            length, behind = read_varint(plain, int(positions[index]))
        except IndexError:
            length, behind = 2 * len(plain), 0
        sizes[index] = min(behind - int(positions[index]) + (length >> 1), len(plain) + 1)
    return sizes
