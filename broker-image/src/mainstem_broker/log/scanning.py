"""Walking the batches of a segment file: headers alone, or whole batches.

In scope: how much is read at a time. Out of scope: what a walk is for (reads, recovery, dump).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mainstem_broker.errors import CorruptMessage
from mainstem_broker.log.files import LogFile
from mainstem_broker.protocol.batches import HEADER_BYTES, BatchHeader, parse_batch_header
from mainstem_broker.protocol.markers import MARKER_BYTES_MAX, Marker, read_marker
from mainstem_broker.runtime.page_cache import read_at

# Between two index entries lie 4096 bytes by default, so one read finds what an index look-up left open.
_HEADERS_READ_BYTES: Final = 4096
_BATCHES_READ_BYTES: Final = 4 * 1024 * 1024


def scan_headers(file: LogFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """The (position, header) of every batch from `position` to `end`; a partial one at the end is left out.

    Raises:
        CorruptMessage, UnsupportedForMessageFormat: the bytes at some position are no batch.
    """
    block = b""
    block_at = position
    while position + HEADER_BYTES <= end:
        within = position - block_at
        if within + HEADER_BYTES > len(block):
            block = read_at(file, min(_HEADERS_READ_BYTES, end - position), position)
            block_at, within = position, 0
        header = parse_batch_header(block, within)
        if position + header.size_bytes > end:
            return
        yield position, header
        position += header.size_bytes


def header_at(file: LogFile, position: int, end: int) -> BatchHeader:
    """The header of the whole batch at `position`, which ends at `end` or before.

    Raises:
        CorruptMessage, UnsupportedForMessageFormat: there is none.
    """
    for _, header in scan_headers(file, position, end):
        return header
    raise CorruptMessage(f"{file.path} holds no whole batch at byte {position}.")


def marker_at(file: LogFile, position: int, header: BatchHeader) -> Marker | None:
    """The transaction marker in the batch at `position`; None if the batch, of `header`, holds none."""
    if not header.is_control or header.size_bytes > MARKER_BYTES_MAX:
        return None
    return read_marker(header, read_at(file, header.size_bytes, position))


def scan_batches(file: LogFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """As `scan_headers`, with the bytes of each batch; they are valid until the next iteration.

    Raises:
        CorruptMessage, UnsupportedForMessageFormat: the bytes at some position are no batch.
    """
    block = memoryview(b"")
    block_at = position
    while position + HEADER_BYTES <= end:
        within = position - block_at
        if within + HEADER_BYTES > len(block):
            block = _read(file, position, min(_BATCHES_READ_BYTES, end - position))
            block_at, within = position, 0
        header = parse_batch_header(block, within)
        if position + header.size_bytes > end:
            return
        if within + header.size_bytes > len(block):
            size = max(header.size_bytes, min(_BATCHES_READ_BYTES, end - position))
            block = _read(file, position, size)
            block_at, within = position, 0
        yield position, header, block[within : within + header.size_bytes]
        position += header.size_bytes


def _read(file: LogFile, position: int, size_bytes: int) -> memoryview:
    return memoryview(read_at(file, size_bytes, position))
