"""What a group of KIP-848 has to store, and the answers that wait for it. Pure.

An answer is given when all is stored that it rests on: what its request changed, and what others changed
before. A record whose write failed is written again with the next ones, as it is then; until then nobody
hears of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mainstem_broker.group.consumer_records import ConsumerGroupKey, ConsumerGroupValue
from mainstem_broker.group.messages import (
    Answer,
    AnyAnswer,
    Decisions,
    HeartbeatAnswer,
    StoreRecords,
)


class Outbox:
    """`value_of` tells what a record is to say now; None: a tombstone."""

    def __init__(self, value_of: Callable[[ConsumerGroupKey], ConsumerGroupValue | None]) -> None:
        self._value_of = value_of
        self._changed: dict[ConsumerGroupKey, None] = {}
        """Keys of records that are to be written, in that order."""
        self._answers: list[Answer] = []
        self._tickets = 0
        self._under_way: dict[int, tuple[tuple[ConsumerGroupKey, ...], tuple[Answer, ...]]] = {}
        """By ticket, the records that are being stored, and the answers that wait for them."""

    @property
    def is_empty(self) -> bool:
        return not (self._changed or self._under_way)

    def changed(self, key: ConsumerGroupKey) -> None:
        self._changed.pop(key, None)
        self._changed[key] = None

    def answer(self, request: int, answer: AnyAnswer) -> None:
        self._answers.append(Answer(request, answer))

    def decided(self) -> Decisions:
        """What came of a call: records to store, and those answers that need not wait."""
        answers = tuple(self._answers)
        self._answers.clear()
        if self._changed:
            keys = tuple(self._changed)
            self._changed.clear()
            self._tickets += 1
            self._under_way[self._tickets] = keys, answers
            records = tuple((key, self._value_of(key)) for key in keys)
            return Decisions(records=(StoreRecords(self._tickets, records),))
        if self._under_way:
            last = next(reversed(self._under_way))
            keys, waiting = self._under_way[last]
            self._under_way[last] = keys, waiting + answers
            return Decisions()
        return Decisions(answers)

    def stored(self, ticket: int, error_code: int) -> Decisions:
        """The records of this ticket are stored, or it is not known whether they are."""
        keys, answers = self._under_way.pop(ticket, ((), ()))
        if error_code:
            self._changed = {**dict.fromkeys(keys), **self._changed}
            answers = _failed(answers, error_code)
        return Decisions(answers)

    def close(self, error_code: int) -> Decisions:
        """Nothing more is stored: whoever waits gets this error."""
        waiting = tuple(held for _, answers in self._under_way.values() for held in answers)
        self._under_way.clear()
        self._changed.clear()
        return Decisions(_failed(waiting, error_code))


def _failed(answers: tuple[Answer, ...], error_code: int) -> tuple[Answer, ...]:
    return tuple(
        Answer(
            held.request,
            HeartbeatAnswer(None, error_code=error_code)
            if isinstance(held.answer, HeartbeatAnswer)
            else replace(held.answer, error_code=error_code),
        )
        for held in answers
    )
