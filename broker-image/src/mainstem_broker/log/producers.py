"""What a log knows of the producers that wrote to it with ids: idempotence, decided without files (KIP-98).

Lives here: the state of each producer, the check of a client's batch against it, what truncation and the
passing of time do to it, and the bytes of a snapshot. Must not: files (`producer_snapshots`), and when a
check is due (the leader's append, never replication).

A producer numbers its records per partition. For each producer id the log remembers its epoch and its last
five batches, as many as a client may have in flight. A client's batch is then

- a duplicate, if epoch and sequence numbers are those of a remembered batch: it is not written again;
- in order, if it continues the last batch (2^31-1 is followed by 0), or begins a higher epoch with 0;
- in order whatever its number is, if nothing is known of the producer: its records may have left with
  retention long ago, or the state with its expiry (KIP-360);
- refused otherwise: INVALID_PRODUCER_EPOCH for a lower epoch, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap and
  for duplicates too old to be remembered.

Clients take it that whatever they sent before an acknowledged batch is stored, too. So two things are other
than in Apache Kafka, where nothing is known of a producer and its first batch may yet come:

- A batch may be refused, for want of in-sync replicas or by a broker that leads a moment later, while others
  are on their way behind it, which must not overtake it: what was refused is remembered for a while
  (`note_refusal`).
- What does not begin with 0 has to come twice (`may_be_overtaking`). When the leader changes, librdkafka's
  thread for the new one can find nothing in flight a moment before the thread for the old one puts back what
  was refused there, and begins with what came after. Sent again, all is in order.

Time is the time of append as this broker's clock has it, never what the producer says of its records: some
send -1 (redpanda#3824). Only a batch stamped by a leader (LogAppendTime) carries that leader's time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from crc32c import crc32c

from mainstem_broker.config import INT32_MAX
from mainstem_broker.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from mainstem_broker.protocol.batches import BatchHeader

BATCHES_REMEMBERED: Final = 5
"""As many requests as an idempotent client has in flight (`max.in.flight.requests.per.connection`)."""

REFUSALS_MAX: Final = 1_000
REFUSAL_MS_MAX: Final = 120_000
"""Clients give a record up after this time by default (`delivery.timeout.ms`)."""

NONE: Final = -1

_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")


class RememberedBatch(NamedTuple):
    """A batch that was written. `offset_delta` is its last offset's distance from its first."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerState:
    """One producer in one log.

    - `epoch`: rises when the producer begins anew; its sequence numbers then begin with 0.
    - `next_sequence`: what a batch must begin with; 0 while the epoch has written nothing.
    - `batches`: the last ones of this epoch, oldest first.
    - `last_timestamp_ms`: when it last wrote; it expires by that.
    - `coordinator_epoch`: of the coordinator whose marker ended its last transaction, or -1.
    - `transaction_first_offset`: of its open transaction, or -1.
    - `forgot`: whether there were batches that are not in `batches`.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "forgot",
        "last_timestamp_ms",
        "next_sequence",
        "transaction_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.batches: list[RememberedBatch] = []  # no deque: it would take 600 bytes for five
        self.last_timestamp_ms = NONE
        self.coordinator_epoch = NONE
        self.transaction_first_offset = NONE
        self.forgot = False

    @property
    def last_sequence(self) -> int:
        """Of the last batch; -1 while the epoch has written none."""
        return self.batches[-1].last_sequence if self.batches else NONE

    def add(self, batch: RememberedBatch) -> None:
        self.batches.append(batch)
        if len(self.batches) > BATCHES_REMEMBERED:
            del self.batches[0]
            self.forgot = True
        self.next_sequence = (batch.last_sequence + 1) & INT32_MAX

    def begin_epoch(self, epoch: int) -> None:
        self.forgot = self.forgot or bool(self.batches)
        self.batches.clear()
        self.epoch = epoch
        self.next_sequence = 0


class _Refusal(NamedTuple):
    """The first batch of an unknown producer that was refused, though it may be sent again."""

    epoch: int
    sequence: int
    at_ms: int

    def comes_after(self, header: BatchHeader) -> bool:
        """Whether it matters less than this one: it is of a former epoch, or was sent later."""
        if self.epoch != header.producer_epoch:
            return self.epoch < header.producer_epoch
        return 0 < (self.sequence - header.base_sequence) & INT32_MAX <= INT32_MAX // 2


class Producers:
    """All producers of a log, by id. `unsaved_batches` counts those taken in since someone last reset it."""

    def __init__(self) -> None:
        self.unsaved_batches = 0
        self._states: dict[int, ProducerState] = {}
        self._refusals: dict[int, _Refusal] = {}
        self._last_marker_offset = NONE

    @property
    def states(self) -> Mapping[int, ProducerState]:
        return self._states

    # Deciding

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """The batch that a client's batch repeats, or None if it is new and comes in order.

        Raises:
            InvalidProducerEpoch: a later instance of the producer has written already.
            OutOfOrderSequenceNumber: batches before this one are missing.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            self._check_refusal(header)
            return None
        epoch, sequence = header.producer_epoch, header.base_sequence
        if epoch == state.epoch:
            if sequence == state.next_sequence:
                return None
            last_sequence = (sequence + header.last_offset_delta) & INT32_MAX
            for batch in state.batches:
                if batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta:
                    return batch
            raise OutOfOrderSequenceNumber(
                f"Producer {header.producer_id} goes on with sequence number {sequence}, but"
                f" {state.next_sequence} is next at epoch {epoch}."
            )
        if epoch < state.epoch:
            raise InvalidProducerEpoch(
                f"Producer {header.producer_id} is at epoch {state.epoch}, not {epoch} any more."
            )
        if sequence != 0:
            raise OutOfOrderSequenceNumber(
                f"Producer {header.producer_id} begins epoch {epoch} with sequence number {sequence}, not 0."
            )
        return None

    def _check_refusal(self, header: BatchHeader) -> None:
        refusal = self._refusals.get(header.producer_id)
        if refusal is None or refusal.epoch != header.producer_epoch:
            return
        ahead = (header.base_sequence - refusal.sequence) & INT32_MAX
        if 0 < ahead <= INT32_MAX // 2:
            raise OutOfOrderSequenceNumber(
                f"Producer {header.producer_id} begins with sequence number {header.base_sequence}, but"
                f" {refusal.sequence} was refused before and has to come again first."
            )

    def may_be_overtaking(self, header: BatchHeader) -> bool:
        """Whether it is the first that comes of a producer, and not the first that it sent.

        Then it is to be refused, noted, and taken when it comes again, unless an earlier one has come.
        """
        if header.base_sequence == 0 or header.producer_id in self._states:
            return False
        refusal = self._refusals.get(header.producer_id)
        return refusal is None or refusal.epoch < header.producer_epoch

    def note_refusal(self, header: BatchHeader, now_ms: int) -> None:
        """A client's batch was not written for a reason that passes: others must not overtake it."""
        producer_id = header.producer_id
        known = self._refusals.get(producer_id)
        if producer_id < 0 or producer_id in self._states:
            return
        if known is not None and not known.comes_after(header):
            return
        if len(self._refusals) >= REFUSALS_MAX:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[producer_id] = _Refusal(header.producer_epoch, header.base_sequence, now_ms)

    def forget_refusals(self) -> None:
        """What was refused here may have been taken elsewhere, and be lost."""
        self._refusals.clear()

    # Following the log

    def update(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Take in a batch that was written at `base_offset`; its producer id is not -1.

        `now_ms` is the time of the append, as far as it is known.
        """
        self.unsaved_batches += 1
        producer_id = header.producer_id
        epoch = header.producer_epoch
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(epoch)
            self._refusals.pop(producer_id, None)
        elif epoch != state.epoch:
            state.begin_epoch(epoch)
        timestamp_ms = header.max_timestamp if header.log_append_time else now_ms
        state.last_timestamp_ms = timestamp_ms
        if header.is_control:
            state.transaction_first_offset = NONE
            self._last_marker_offset = base_offset
            return
        delta = header.last_offset_delta
        state.add(
            RememberedBatch(
                (header.base_sequence + delta) & INT32_MAX, base_offset + delta, delta, timestamp_ms
            )
        )
        if header.is_transactional and state.transaction_first_offset == NONE:
            state.transaction_first_offset = base_offset

    def truncate_to(self, end_offset: int) -> bool:
        """Take back every batch that reaches `end_offset` or beyond; False if that takes reading the log.

        Nothing has changed then. It takes reading when a producer's last batch before `end_offset` is not
        remembered, or a transaction's end is taken back. Otherwise fewer than five batches may be left of a
        producer, which is enough: what was taken back was sent after them, and no more than five are in
        flight.
        """
        if self._last_marker_offset >= end_offset:
            return False
        touched = {
            producer_id: state
            for producer_id, state in self._states.items()
            if state.batches and state.batches[-1].last_offset >= end_offset
        }
        if any(state.forgot and state.batches[0].last_offset >= end_offset for state in touched.values()):
            return False
        for producer_id, state in touched.items():
            while state.batches and state.batches[-1].last_offset >= end_offset:
                state.batches.pop()
            if not state.batches:
                del self._states[producer_id]
                continue
            state.next_sequence = (state.last_sequence + 1) & INT32_MAX
            if state.transaction_first_offset >= end_offset:
                state.transaction_first_offset = NONE
        return True

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that have not written for `expiration_ms`; answers how many those were.

        One with an open transaction is kept. Refusals that no client can still be waiting for go too.
        """
        expired = [
            producer_id
            for producer_id, state in self._states.items()
            if state.transaction_first_offset == NONE and now_ms - state.last_timestamp_ms >= expiration_ms
        ]
        for producer_id in expired:
            del self._states[producer_id]
        self._refusals = {
            producer_id: refusal
            for producer_id, refusal in self._refusals.items()
            if now_ms - refusal.at_ms < REFUSAL_MS_MAX
        }
        return len(expired)

    # Snapshots

    def encode(self) -> bytes:
        """The content of a `.snapshot` file, in Apache Kafka's format. Big endian:

            byte 0   version               int16   1
            byte 2   crc                   uint32  CRC-32C of the bytes from byte 6 on
            byte 6   count                 int32
            byte 10  entries, 46 bytes each:
                     producer id           int64
                     epoch                 int16
                     last sequence         int32   -1 for none, as the next two
                     last offset           int64   -1
                     offset delta          int32   0
                     last timestamp        int64   ms; Kafka means the record's, here it is the append's
                     coordinator epoch     int32   -1 for none
                     transaction's first   int64   offset of the open transaction, -1 for none

        Kafka writes one entry for a producer, its last batch. Here each remembered batch has one, oldest
        first: whoever reads for Kafka keeps the last, and a restart while five batches are in flight
        forgets none of them.
        """
        entries = [
            _ENTRY.pack(
                producer_id,
                state.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.offset_delta,
                batch.timestamp_ms if batch is not state.batches[-1] else state.last_timestamp_ms,
                state.coordinator_epoch,
                state.transaction_first_offset,
            )
            for producer_id, state in self._states.items()
            for batch in state.batches
        ]
        entries += [
            _ENTRY.pack(
                producer_id,
                state.epoch,
                NONE,
                NONE,
                0,
                state.last_timestamp_ms,
                state.coordinator_epoch,
                state.transaction_first_offset,
            )
            for producer_id, state in self._states.items()
            if not state.batches
        ]
        content = _COUNT.pack(len(entries)) + b"".join(entries)
        return _SNAPSHOT_HEAD.pack(_VERSION, crc32c(content)) + content

    @classmethod
    def decode(cls, data: bytes) -> Producers:
        """What `encode` wrote, or Apache Kafka.

        Raises:
            ValueError: it is not that; the message says what is wrong.
        """
        if len(data) < _SNAPSHOT_HEAD.size + _COUNT.size:
            raise ValueError(f"it is only {len(data)} bytes long")
        version, crc = _SNAPSHOT_HEAD.unpack_from(data)
        content = memoryview(data)[_SNAPSHOT_HEAD.size :]
        if version != _VERSION:
            raise ValueError(f"its version is {version}, and only {_VERSION} is known")
        if crc32c(content) != crc:
            raise ValueError("it does not match its checksum")
        (count,) = _COUNT.unpack_from(content)
        entries = content[_COUNT.size :]
        if len(entries) != count * _ENTRY.size:
            raise ValueError(f"it promises {count} entries in {len(entries)} bytes")
        producers = cls()
        for (
            producer_id,
            epoch,
            sequence,
            offset,
            delta,
            timestamp_ms,
            coordinator_epoch,
            first,
        ) in _ENTRY.iter_unpack(entries):
            state = producers._states.get(producer_id)
            if state is None or state.epoch != epoch:
                state = producers._states[producer_id] = ProducerState(epoch)
            state.last_timestamp_ms = timestamp_ms
            state.coordinator_epoch = coordinator_epoch
            state.transaction_first_offset = first
            state.forgot = True
            if offset >= 0:
                state.add(RememberedBatch(sequence, offset, delta, timestamp_ms))
        return producers
