"""What the broker and its compacting process send each other: pickles, each behind its length.

Imports nothing that only the process needs: numpy would slow down the start of every broker.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.log.compaction.facts import CompactedGroup, SegmentFacts
from mainstem_broker.log.transaction_index import AbortedTransaction

LENGTH: Final = struct.Struct(">I")
"""Before each message: how many bytes it has."""


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """What a pass is about. `segments` are all of the log, oldest first, the newest included."""

    directory: Path
    config: TopicConfig
    segments: tuple[SegmentFacts, ...]
    first_dirty_offset: int
    end_offset: int
    now_ms: int
    last_offsets: Mapping[int, int]
    map_bytes: int
    aborted: tuple[AbortedTransaction, ...] = ()
    """The aborted transactions with records below `end_offset`."""
    marker_epochs: Mapping[int, int] = field(default_factory=dict)
    """By producer id: the epoch of each live producer that has written nothing in it, so that only a marker
    tells it."""


@dataclass(frozen=True, slots=True)
class CompactionEnd:
    """The pass is over: all before `map_end_offset` is clean."""

    map_end_offset: int
    keys: int
    records_indexed: int


@dataclass(frozen=True, slots=True)
class Order:
    """A job, and how many bytes a second it may read and write (`log.cleaner.io.max.bytes.per.second`)."""

    job: CompactionJob
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class CompactionFailed:
    """Why a pass has ended early. `error_number` is that of the operating system's error, 0 for other
    reasons.
    """

    reason: str
    error_number: int


Message = CompactedGroup | CompactionEnd | CompactionFailed
