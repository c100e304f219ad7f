"""The files that hold the producers of a log at certain offsets, and the restoring from them.

In scope: `NNNNNNNNNNNNNNNNNNNN.snapshot` in a log's directory: naming, writing, choosing, removing, and
reading on in the log from there. Out of scope: their content (`producer_snapshot_format`), and when the log's
end moves (`partition_log`).

A snapshot is named after the offset up to which it holds: the state after every batch before that offset.
Snapshots are written when a segment begins (so each segment but the first has one under its name), repeatedly
within a long segment, on a clean stop, and after truncation. They are never flushed to the disk: a snapshot
that a crash tore or lost is noticed by its checksum or its absence, and an older one with more of the log
serves as well. Only one from before a truncation would be wrong, so its caller says up to which
offset snapshots are valid. A snapshot below the first segment does not count: the batches between are gone.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

import structlog

from mainstem_broker.errors import ProtocolError
from mainstem_broker.log.checkpoints import TEMPORARY_SUFFIX
from mainstem_broker.log.producer_snapshot_format import decode_snapshot, encode_snapshot
from mainstem_broker.log.producers import Producers
from mainstem_broker.log.scanning import marker_at, scan_headers
from mainstem_broker.log.segment import Segment, is_named_by_offset, segment_path

logger = structlog.get_logger(__name__)

SNAPSHOT_SUFFIX: Final = ".snapshot"
_NAME_DIGITS: Final = 20


class ProducerSnapshots:
    """The snapshots of one log. `offsets` are theirs, rising. Where not said otherwise, removing may raise
    OSError.
    """

    def __init__(self, directory: Path, names: Iterable[str] | None = None) -> None:
        """Take the files that are there; `names` are those in the directory, where they are known."""
        self._directory = directory
        self.offsets = sorted(
            int(path.stem)
            for path in (directory.iterdir() if names is None else map(Path, names))
            if path.suffix == SNAPSHOT_SUFFIX and len(path.stem) == _NAME_DIGITS and is_named_by_offset(path)
        )

    def _path(self, offset: int) -> Path:
        return segment_path(self._directory, offset, SNAPSHOT_SUFFIX)

    def keep(self, offset: int, producers: Producers) -> None:
        """Write the state at `offset` unless that is there, or nothing is before it.

        One that cannot be written is reported: the log can do without.
        """
        if offset == 0 or offset in self.offsets:
            return
        path = self._path(offset)
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            temporary.write_bytes(encode_snapshot(producers))
            temporary.rename(path)
        except OSError as error:
            logger.warning("producer snapshot not written", path=str(path), error=str(error))
            return
        self.offsets = sorted([*self.offsets, offset])

    def restore(self, segments: Sequence[Segment], end_offset: int) -> Producers:
        """The state at `end_offset`: the newest snapshot that can be read, and the log from there.

        `segments` are the log's; `end_offset` is where one of them begins or the last one ends. Costs the
        headers of the batches after the snapshot. What cannot be read is reported and left out. May raise
        OSError.
        """
        start, producers = self._newest(segments[0].base_offset, end_offset)
        for segment in segments:
            if segment.next_offset <= start or segment.base_offset > end_offset:
                continue
            self.keep(segment.base_offset, producers)
            if segment.base_offset == end_offset:
                break
            try:
                # When a batch was appended is not written down; not later than this, in any case.
                appended_ms = os.fstat(segment.file.descriptor).st_mtime_ns // 1_000_000
                start_position = segment.find(max(start, segment.base_offset))
                begin = segment.size_bytes if start_position is None else start_position[0]
                for position, header in scan_headers(segment.file, begin, segment.size_bytes):
                    if header.producer_id >= 0 and header.base_offset >= start:
                        marker = marker_at(segment.file, position, header)
                        producers.update(header, header.base_offset, appended_ms, marker)
            except ProtocolError as error:
                logger.warning(
                    "producers of a broken segment are unknown",
                    directory=str(self._directory),
                    base_offset=segment.base_offset,
                    why=str(error),
                )
            if segment is not segments[-1]:
                segment.release_file()
        return producers

    def _newest(self, offset_min: int, offset_max: int) -> tuple[int, Producers]:
        for offset in reversed(self.offsets):
            if offset > offset_max:
                continue
            if offset < offset_min:
                break
            path = self._path(offset)
            try:
                producers = decode_snapshot(path.read_bytes())
            except (ValueError, FileNotFoundError) as error:
                logger.warning("producer snapshot is broken and dropped", path=str(path), why=str(error))
                self._remove([offset])
            else:
                producers.restored_at(offset)
                return offset, producers
        return 0, Producers()

    # Leaving

    def remove_after(self, offset: int) -> None:
        """Drop those of a log that now ends at `offset`."""
        self._remove([at for at in self.offsets if at > offset])

    def remove_before(self, offset: int) -> None:
        """Drop those of a log whose first segment now begins at `offset`."""
        self._remove([at for at in self.offsets if at < offset])

    def remove_orphans(self, base_offsets: Collection[int]) -> None:
        """Drop all that are not of one of the segments that begin at `base_offsets`, but the newest two.

        One that stays because the disk failed does no harm.
        """
        try:
            self._remove([at for at in self.offsets[:-2] if at not in base_offsets])
        except OSError as error:
            logger.warning("producer snapshot not removed", directory=str(self._directory), error=str(error))

    def remove_all(self) -> None:
        self._remove(self.offsets)

    def _remove(self, offsets: Collection[int]) -> None:
        gone = set(offsets)
        for offset in sorted(gone, reverse=True):
            self._path(offset).unlink(missing_ok=True)
        self.offsets = [offset for offset in self.offsets if offset not in gone]
