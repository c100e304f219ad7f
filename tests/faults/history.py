"""What clients saw while faults happened, as values: the material that `checker.py` judges.

In scope: the kinds of events, and the list that the threads of a workload add to. Not here: any client. Times
are seconds of one monotonic clock, those of the events as those of the faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple

from tests.support.machine_pauses import Pause, paused_s

FROM_OUTSIDE: Final = "outside"


class Delivery(Enum):
    """What a producer's settings promise.

    - ONCE: no retries. A message is in the log once if it was acknowledged, and at most once if it was not;
      what is there is in the order of sending.
    - RETRIED: retries without idempotence: a message may be there several times, and out of order.
    - EXACTLY_ONCE: retries with idempotence (R11): as ONCE.
    """

    ONCE = "once"
    RETRIED = "retried"
    EXACTLY_ONCE = "exactly-once"


class Value(NamedTuple):
    """A unique message: the `sequence`-th of `producer` to a partition. On the wire: `producer/sequence`."""

    producer: str
    sequence: int

    def encode(self) -> bytes:
        return f"{self.producer}/{self.sequence}".encode()

    @classmethod
    def decode(cls, data: bytes) -> Value:
        """The value of a record; one that is not of this form is of the producer `FROM_OUTSIDE`."""
        producer, _, sequence = data.decode(errors="replace").rpartition("/")
        return cls(producer, int(sequence)) if sequence.isdecimal() else cls(FROM_OUTSIDE, -1)

    def __str__(self) -> str:
        return f"{self.producer}/{self.sequence}"


class Sent(NamedTuple):
    """Noted before the client library is given the message."""

    partition: int
    value: Value
    at_s: float


class Acknowledged(NamedTuple):
    """`offset` None: stored, but the client does not know where.

    So librdkafka says of a batch whose answers were lost, and that the broker has, but no longer remembers
    among the last five of its producer.
    """

    partition: int
    value: Value
    offset: int | None
    at_s: float


class Failed(NamedTuple):
    """The client gave up on a message, for `error`, librdkafka's name of it. It may be in the log or not."""

    partition: int
    value: Value
    error: str
    at_s: float


class Read(NamedTuple):
    reader: str
    partition: int
    offset: int
    value: Value
    at_s: float


class Watermark(NamedTuple):
    """The latest offset that a consumer may know, as `broker` told it: asked `asked_s`, answered `at_s`."""

    broker: str
    partition: int
    offset: int
    asked_s: float
    at_s: float


class Fault(NamedTuple):
    """What was done to the cluster, in words, and when."""

    name: str
    at_s: float


@dataclass(slots=True)
class History:
    """Events in the order in which each thread noted them. Lists are appended to by several threads."""

    deliveries: Mapping[str, Delivery] = field(default_factory=dict)
    """What each producer promises, by its name."""
    faults: list[Fault] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    watermarks: list[Watermark] = field(default_factory=list)
    producer_errors: list[str] = field(default_factory=list)
    """What producers were told beside the failures of messages, without news of connections."""
    complaints: list[str] = field(default_factory=list)
    """What a client library reported that no client should ever be told, such as a log that was truncated."""
    pauses: list[Pause] = field(default_factory=list)
    """When the machine stood still: no broker could have answered then."""

    def first_acknowledgement_after_s(self, moment_s: float, producer: str | None = None) -> dict[int, float]:
        """By partition: how long after `moment_s` a message was acknowledged that was sent after it.

        Of any producer, or of that one.
        """
        acknowledged = list(self.acknowledged)  # before those that were sent: the workload may go on
        sent_at_s = {(event.partition, event.value): event.at_s for event in self.sent}
        results: dict[int, float] = {}
        for event in acknowledged:
            if producer not in (None, event.value.producer):
                continue
            if event.partition not in results and sent_at_s[event.partition, event.value] >= moment_s:
                results[event.partition] = event.at_s - moment_s
        return results

    def longest_silence_s(self, from_s: float, to_s: float, producer: str | None = None) -> dict[int, float]:
        """By partition: the longest stretch of that time without one, of any producer or of that one.

        Pauses of the machine do not count.
        """
        times: dict[int, list[float]] = {event.partition: [from_s] for event in self.sent}
        for event in self.acknowledged:
            if from_s <= event.at_s <= to_s and producer in (None, event.value.producer):
                times[event.partition].append(event.at_s)
        return {
            partition: longest_gap_s([*moments, to_s], self.pauses) for partition, moments in times.items()
        }


def longest_gap_s(moments: Sequence[float], pauses: Sequence[Pause] = ()) -> float:
    """The longest time between two moments that follow each other, without the machine's pauses."""
    gaps_s = (
        later - earlier - paused_s(pauses, earlier, later) for earlier, later in pairwise(sorted(moments))
    )
    return max(gaps_s, default=0.0)
