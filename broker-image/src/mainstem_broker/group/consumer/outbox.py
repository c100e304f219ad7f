"""Records that a consumer group has to store, and the answers that wait for them. Pure.

An answer is given when everything that it is based on is stored: what its own request changed, and what
others changed before. A record whose write failed is written again with the next ones, with its value at
that time; until then it is not visible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mainstem_broker.group.consumer.records import ConsumerGroupKey, ConsumerGroupValue
from mainstem_broker.group.messages import (
    Answer,
    AnyAnswer,
    Decisions,
    HeartbeatAnswer,
    StoreRecords,
)


@dataclass(slots=True)
class _Write:
    """Records that are being stored, and the answers that wait for them."""

    keys: tuple[ConsumerGroupKey, ...]
    answers: list[Answer] = field(default_factory=list)


class Outbox:
    """`value_of` returns the current value of a record; None: a tombstone."""

    def __init__(self, value_of: Callable[[ConsumerGroupKey], ConsumerGroupValue | None]) -> None:
        self._value_of = value_of
        self._changed: dict[ConsumerGroupKey, None] = {}
        """Keys of the records to be written next, in that order."""
        self._answers: list[Answer] = []
        self._last_ticket = 0
        self._writes: dict[int, _Write] = {}
        """By ticket, oldest first."""

    @property
    def is_empty(self) -> bool:
        return not (self._changed or self._writes)

    def changed(self, key: ConsumerGroupKey) -> None:
        self._changed.pop(key, None)  # so that it is written in the order of the last changes
        self._changed[key] = None

    def answer(self, request_number: int, answer: AnyAnswer) -> None:
        self._answers.append(Answer(request_number, answer))

    def decided(self) -> Decisions:
        """The decisions of a call: records to store, and answers that need not wait for any."""
        answers = self._answers
        self._answers = []
        if self._changed:
            keys = tuple(self._changed)
            self._changed.clear()
            self._last_ticket += 1
            self._writes[self._last_ticket] = _Write(keys, answers)
            records = tuple((key, self._value_of(key)) for key in keys)
            return Decisions(records=(StoreRecords(self._last_ticket, records),))
        if self._writes:
            # This call changed nothing, but its answers may show what earlier calls have changed.
            self._writes[next(reversed(self._writes))].answers += answers
            return Decisions()
        return Decisions(tuple(answers))

    def stored(self, ticket: int, error_code: int) -> Decisions:
        """The records of this ticket are stored, or with an error code may be lost."""
        write = self._writes.pop(ticket, None)
        if write is None:
            return Decisions()
        if not error_code:
            return Decisions(tuple(write.answers))
        # These first: they are older than what has changed since.
        self._changed = {**dict.fromkeys(write.keys), **self._changed}
        return Decisions(_failed(write.answers, error_code))

    def close(self, error_code: int) -> Decisions:
        """Store nothing more; answers that wait become this error."""
        answers = [answer for write in self._writes.values() for answer in write.answers]
        self._writes.clear()
        self._changed.clear()
        return Decisions(_failed(answers, error_code))


def _failed(answers: list[Answer], error_code: int) -> tuple[Answer, ...]:
    return tuple(
        Answer(
            waiting.number,
            HeartbeatAnswer(None, error_code=error_code)
            if isinstance(waiting.answer, HeartbeatAnswer)
            else replace(waiting.answer, error_code=error_code),
        )
        for waiting in answers
    )
