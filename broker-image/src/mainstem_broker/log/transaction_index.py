"""The aborted transactions of one segment: the index that lets readers skip their records.

In scope: the file's format, and the search in one segment. Out of scope: which segments a read touches
(`segment_list`), and when a transaction ends (`producers`).

`NNNNNNNNNNNNNNNNNNNN.txnindex` lies beside the segment that holds the abort marker, wherever the transaction
began, and only where there is one. It holds entries of 34 bytes, big endian, as in Apache Kafka:

    byte 0   version             int16   0
    byte 2   producer id         int64
    byte 10  first offset        int64   of the transaction in this partition
    byte 18  last offset         int64   the marker's
    byte 26  last stable offset  int64   after this abort, as far as open transactions determine it

Entries are in the order of their markers, so last offsets rise and last stable offsets never fall. A reader
up to offset X needs no entry behind the first one whose last stable offset is X or higher: transactions that
end later begin at that offset or behind it.

The file has no checksum. A crash may leave it short or torn, but only behind the recovery point; recovery
makes it anew from the markers of such a segment.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted, from its first offset to that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The entries, in memory as in the file. Any method that names it may raise OSError."""

    SUFFIX: Final = ".txnindex"
    ENTRY: Final = struct.Struct(">hqqqq")

    __slots__ = ("_entries", "_written_bytes", "path")

    def __init__(self, path: Path) -> None:
        """An index taken for empty, whatever the file holds: `load` or `clear` comes next."""
        self.path = path
        self._entries = bytearray()
        self._written_bytes = 0

    def __len__(self) -> int:
        return len(self._entries) // self.ENTRY.size

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for _, *fields in self.ENTRY.iter_unpack(self._entries):
            yield AbortedTransaction(*fields)

    @property
    def is_written(self) -> bool:
        return self._written_bytes == len(self._entries)

    def load(self, base_offset: int, end_offset: int) -> bool:
        """Take the file's entries; False if they cannot be those of a segment with these offsets.

        No file is an empty index. May raise OSError.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        self._entries = bytearray(content)
        self._written_bytes = len(content)
        return is_sound(content, base_offset, end_offset)

    def append(self, transaction: AbortedTransaction) -> None:
        """Add an entry in memory; `write` brings it to the file."""
        self._entries += self.ENTRY.pack(_VERSION, *transaction)

    def write(self) -> None:
        """Bring the entries that are only in memory to the file. May raise OSError; repeatable."""
        if self.is_written:
            return
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            unwritten = self._entries[self._written_bytes :]
            if os.pwrite(descriptor, unwritten, self._written_bytes) != len(unwritten):
                raise OSError(28, "No space left on device", str(self.path))
        finally:
            os.close(descriptor)
        self._written_bytes = len(self._entries)

    def truncate_to(self, end_offset: int) -> None:
        """Drop the entries whose marker is at `end_offset` or later. May raise OSError."""
        kept_bytes = self.ENTRY.size * self._first_ending_at(end_offset)
        if kept_bytes == 0:
            self.clear()
            return
        del self._entries[kept_bytes:]
        if self._written_bytes > kept_bytes:
            os.truncate(self.path, kept_bytes)
            self._written_bytes = kept_bytes

    def clear(self) -> None:
        """Drop all entries, and the file. May raise OSError."""
        self._entries.clear()
        self._written_bytes = 0
        self.path.unlink(missing_ok=True)

    def search(self, from_offset: int, to_offset: int, aborted: list[AbortedTransaction]) -> bool:
        """Add to `aborted` the transactions with offsets in [`from_offset`, `to_offset`).

        Answers whether no later segment can hold more of them.
        """
        for number in range(self._first_ending_at(from_offset), len(self)):
            _, *fields = self.ENTRY.unpack_from(self._entries, number * self.ENTRY.size)
            transaction = AbortedTransaction(*fields)
            if transaction.first_offset < to_offset:
                aborted.append(transaction)
            if transaction.last_stable_offset >= to_offset:
                return True
        return False

    def _first_ending_at(self, offset: int) -> int:
        """The number of the first entry whose last offset is `offset` or higher."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.ENTRY.unpack_from(self._entries, middle * self.ENTRY.size)[3] < offset:
                low = middle + 1
            else:
                high = middle
        return low


def is_sound(content: bytes, base_offset: int, end_offset: int) -> bool:
    """Whether `content` is an index that a segment with the offsets [base, end) can have."""
    if len(content) % TransactionIndex.ENTRY.size:
        return False
    before, stable_before = base_offset - 1, -1
    for version, _, first, last, stable in TransactionIndex.ENTRY.iter_unpack(content):
        if version != _VERSION or not 0 <= first <= last or not before < last < end_offset:
            return False
        if stable < stable_before:
            return False
        before, stable_before = last, stable
    return True
