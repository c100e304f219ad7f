"""What the counts of all sides say about each window. Pure.

    produced    what producers posted, without what failed
    stored      what the log holds
    settled     what the log holds below the offsets up to which the table is loaded
    loaded, dead    what the table and its dead letters hold

What retention has deleted is counted by the rows and dead letters below the log's start offset: they were
stored. Without a table, a window of which records may have been deleted is not judged. Neither are windows
whose missing records may belong to transactions that were aborted or are open, nor any of a compacted topic.

Records are missing in the log where fewer are stored than produced, and missing in the table where fewer are
loaded or dead than settled. More than that are duplicates: a producer without idempotence that sent again, or
a producer that is not audited.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mainstem.audit.counts import WINDOW_MS, CountKey, ProducerCounts


class WindowState(StrEnum):
    """What a window's counts say, in order of urgency."""

    MISSING = "missing"
    DUPLICATES = "duplicates"
    OPEN = "open"
    UNAUDITED = "unaudited"
    COMPLETE = "complete"


class UnauditedReason(StrEnum):
    """Why a window is `UNAUDITED`."""

    NOT_COUNTED = "no producer has counted its records"
    EXPIRED = "retention has deleted records"
    COMPACTED = "the topic is compacted"
    UNCOMMITTED = "records belong to aborted or open transactions"


@dataclass(frozen=True, slots=True)
class StoredCounts:
    """The records of a window in the log.

    Attributes:
        stored, settled: see the module.
        late: those that came after a record of a later window in their partition.
        lateness_ms_max: how far the latest of them was behind.
        uncommitted: records beyond `stored`, of aborted and open transactions.
    """

    stored: int = 0
    settled: int = 0
    late: int = 0
    lateness_ms_max: int = 0
    uncommitted: int = 0

    def plus(self, other: StoredCounts) -> StoredCounts:
        """The counts of two partitions, or of two blocks of one."""
        return StoredCounts(
            self.stored + other.stored,
            self.settled + other.settled,
            self.late + other.late,
            max(self.lateness_ms_max, other.lateness_ms_max),
            self.uncommitted + other.uncommitted,
        )


@dataclass(frozen=True, slots=True)
class LoadedCounts:
    """The records of a window in the table. `expired`: those of both that the log no longer has."""

    loaded: int = 0
    dead: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class Observations:
    """What was read of one topic.

    Attributes:
        produced: posts of producers, combined.
        stored, loaded: by window.
        expired_before_ms: retention has deleted records, and windows that begin before this may lack some;
            None if the log is whole. Only needed where there is no table.
        has_table: whether the topic has a table to compare with.
        has_rows_of_transform: whether it has one whose rows are not records.
        is_compacted: whether the log is compacted, so that it holds fewer records than were stored.
        read_ms: when, in ms since 1970. Producers post later than they send, so younger counts are not final.
    """

    produced: Mapping[CountKey, ProducerCounts]
    stored: Mapping[int, StoredCounts]
    loaded: Mapping[int, LoadedCounts] = field(default_factory=dict)
    expired_before_ms: int | None = None
    has_table: bool = False
    has_rows_of_transform: bool = False
    is_compacted: bool = False
    read_ms: int = 0


@dataclass(frozen=True, slots=True)
class WindowVerdict:
    """One window. Counts are None where they are not known.

    Attributes:
        window_ms: its beginning.
        produced, failed, unconfirmed: of all producers; None if none has posted.
        stored, pending: in the log, and of these those that the table is still to load.
        missing_in_log, missing_in_table, duplicates: see the module.
        producers: those whose records may be missing or doubled.
        reason: why the window is unaudited; None if it is not.
    """

    window_ms: int
    state: WindowState
    produced: int | None
    failed: int
    unconfirmed: int
    stored: int | None
    pending: int
    loaded: int | None
    dead: int | None
    missing_in_log: int
    missing_in_table: int
    duplicates: int
    late: int
    lateness_ms_max: int
    producers: tuple[str, ...]
    reason: UnauditedReason | None = None

    @property
    def missing(self) -> int:
        """How many records are missing, wherever."""
        return self.missing_in_log + self.missing_in_table

    @property
    def completeness(self) -> float | None:
        """The share of the produced records that arrived, in the table where there is one; may be above 1.
        None if nothing was produced, as far as is known.
        """
        if not self.produced:
            return None
        arrived = self.stored if self.loaded is None else self.loaded + (self.dead or 0) + self.pending
        return None if arrived is None else arrived / self.produced


def verdicts(topic: str, observations: Observations, in_flight_ms: int) -> list[WindowVerdict]:
    """A verdict for each window of which anything is known, in order of time.

    Args:
        topic: whose windows.
        observations: of all sides.
        in_flight_ms: records that were under way in a post younger than this are not missing yet.
    """
    by_window: dict[int, list[tuple[str, ProducerCounts]]] = defaultdict(list)
    for key, counts in observations.produced.items():
        if key.topic == topic:
            by_window[key.window_ms].append((key.producer, counts))
    windows = sorted({*by_window, *observations.stored, *observations.loaded})
    return [_verdict(window_ms, by_window[window_ms], observations, in_flight_ms) for window_ms in windows]


def _verdict(
    window_ms: int,
    posts: Sequence[tuple[str, ProducerCounts]],
    observations: Observations,
    in_flight_ms: int,
) -> WindowVerdict:
    total = ProducerCounts()
    for _, counts in posts:
        total = total.plus(counts)
    log = observations.stored.get(window_ms, StoredCounts())
    table = observations.loaded.get(window_ms, LoadedCounts()) if observations.has_table else None
    in_table = 0 if table is None else table.loaded + table.dead
    expires = observations.expired_before_ms is not None and window_ms < observations.expired_before_ms
    pending = log.stored - log.settled
    expired = 0 if table is None else table.expired
    stored, settled = log.stored + expired, log.settled + expired
    is_stored_known = not expires or table is not None
    is_compacted = observations.is_compacted
    surplus = stored - total.expected
    under_way = sum(
        counts.unconfirmed for _, counts in posts if observations.read_ms - counts.posted_ms < in_flight_ms
    )
    is_log_comparable = bool(posts) and is_stored_known and not is_compacted
    missing_in_log = max(-surplus - under_way - log.uncommitted, 0) if is_log_comparable else 0
    missing_in_table = 0 if table is None else max(settled - in_table, 0)
    # The table still has what compaction has removed from the log.
    doubled_in_table = 0 if table is None or is_compacted else max(in_table - settled, 0)
    duplicates = (max(surplus, 0) if posts and is_stored_known else 0) + doubled_in_table
    is_open = bool(pending and table is not None) or (posts and surplus < 0 and bool(under_way))
    reason: UnauditedReason | None = None
    if missing_in_log or missing_in_table:
        state = WindowState.MISSING
    elif duplicates:
        state = WindowState.DUPLICATES
    elif is_open or window_ms + WINDOW_MS > observations.read_ms:
        state = WindowState.OPEN
    elif is_compacted:
        state, reason = WindowState.UNAUDITED, UnauditedReason.COMPACTED
    elif not posts:
        state, reason = WindowState.UNAUDITED, UnauditedReason.NOT_COUNTED
    elif not is_stored_known:
        state, reason = WindowState.UNAUDITED, UnauditedReason.EXPIRED
    elif surplus < 0 and log.uncommitted:
        state, reason = WindowState.UNAUDITED, UnauditedReason.UNCOMMITTED
    else:
        state = WindowState.COMPLETE
    suspects = [producer for producer, counts in posts if counts.unconfirmed] or [
        producer for producer, _ in posts
    ]
    return WindowVerdict(
        window_ms=window_ms,
        state=state,
        produced=total.expected if posts else None,
        failed=total.failed,
        unconfirmed=total.unconfirmed,
        stored=stored if is_stored_known else None,
        pending=pending if table is not None else 0,
        loaded=None if table is None else table.loaded,
        dead=None if table is None else table.dead,
        missing_in_log=missing_in_log,
        missing_in_table=missing_in_table,
        duplicates=duplicates,
        late=log.late,
        lateness_ms_max=log.lateness_ms_max,
        producers=tuple(sorted(suspects)) if missing_in_log or (duplicates and not doubled_in_table) else (),
        reason=reason,
    )
