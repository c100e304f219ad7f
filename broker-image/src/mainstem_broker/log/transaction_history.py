"""The transactions and producers of a partition, as its batches show them.

In scope: what `mainstem log transactions` shows of a log. Out of scope: the index of aborted transactions and
the state that a running log keeps (`transaction_index`, `producers`): this reads the batches alone, so it is
right where those files are missing or wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from mainstem_broker.log.dump import BatchDump, Problem, dump_log, dump_snapshot
from mainstem_broker.log.producer_snapshots import SNAPSHOT_SUFFIX
from mainstem_broker.log.segment import segment_path

UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class TransactionInLog:
    """A transaction with records here; offsets are included.

    `last_offset` is that of the last batch while it is open, else that of the marker. `last_written_ms` is
    the largest timestamp of its last batch, -1 if that lies below the log's start.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    last_written_ms: int


@dataclass(frozen=True, slots=True)
class ProducerInLog:
    """The last batch of a producer. `last_sequence` is -1 for markers, and for what coordinators write."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    last_written_ms: int


@dataclass(slots=True)
class TransactionHistory:
    """A log from its start to its end.

    - `open`: by producer id.
    - `aborted`: in the order of their markers.
    - `committed_count`: committed transactions that have records or had some before compaction.
    - `producers`: by producer id.
    - `problems`: why batches could not be read.
    """

    path: Path
    open: dict[int, TransactionInLog] = field(default_factory=dict)
    aborted: list[TransactionInLog] = field(default_factory=list)
    committed_count: int = 0
    producers: dict[int, ProducerInLog] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def take(self, batch: BatchDump) -> None:
        """The next batch of the log."""
        producer_id = batch.producer_id
        if producer_id < 0:
            return
        # A batch without a sequence number has none for its last record either.
        last_sequence = (
            UNKNOWN
            if batch.base_sequence < 0
            else (batch.base_sequence + batch.last_offset - batch.base_offset) & 0x7FFFFFFF
        )
        self.producers[producer_id] = ProducerInLog(
            producer_id, batch.producer_epoch, last_sequence, batch.last_offset, batch.max_timestamp
        )
        if batch.is_control:
            self._end(batch)
        elif batch.is_transactional:
            transaction = self.open.get(producer_id) or TransactionInLog(
                producer_id, batch.producer_epoch, batch.base_offset, batch.last_offset, batch.max_timestamp
            )
            self.open[producer_id] = replace(
                transaction, last_offset=batch.last_offset, last_written_ms=batch.max_timestamp
            )

    def _end(self, batch: BatchDump) -> None:
        if batch.marker == "commit":
            self.committed_count += 1
        if batch.marker is None:
            return
        transaction = self.open.pop(batch.producer_id, None)
        if transaction is not None and batch.marker == "abort":
            self.aborted.append(
                replace(transaction, last_offset=batch.last_offset, last_written_ms=batch.max_timestamp)
            )


def read_history(path: Path) -> TransactionHistory:
    """The history of the log in a directory, or of the one segment that `path` names.

    What was open at the log's start is taken from the snapshot of producers there, if there is one.

    Raises:
        NotALog: there is no segment.
    """
    history = TransactionHistory(path)
    segments = dump_log(path)
    start_offset = segments[0].base_offset
    snapshot_path = segment_path(segments[0].path.parent, start_offset, SNAPSHOT_SUFFIX)
    if snapshot_path.is_file():
        snapshot = dump_snapshot(snapshot_path)
        history.problems += snapshot.problems
        for producer in snapshot.producers:
            if producer.transaction_first_offset >= 0:
                history.open[producer.producer_id] = TransactionInLog(
                    producer.producer_id,
                    producer.producer_epoch,
                    producer.transaction_first_offset,
                    max(producer.last_offset, producer.transaction_first_offset),
                    UNKNOWN,
                )
    for segment in segments:
        for batch in segment:
            history.take(batch)
        history.problems += segment.problems
    return history
