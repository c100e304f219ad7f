"""Decisions of a classic group that its current call has not returned yet. Pure."""

from __future__ import annotations

from mainstem_broker.group.classic.records import GroupMetadata
from mainstem_broker.group.messages import Answer, Decisions, JoinAnswer, Store, SyncAnswer


class Outbox:
    """Answers and records in the order in which they were decided."""

    def __init__(self) -> None:
        self._answers: list[Answer] = []
        self._stores: list[Store] = []
        self._last_ticket = 0

    def answer(self, request_number: int, answer: JoinAnswer | SyncAnswer) -> None:
        self._answers.append(Answer(request_number, answer))

    def store(self, record: GroupMetadata) -> int:
        """Have a record written; returns the ticket that the outcome will come back with."""
        self._last_ticket += 1
        self._stores.append(Store(self._last_ticket, record))
        return self._last_ticket

    def decided(self) -> Decisions:
        decisions = Decisions(tuple(self._answers), tuple(self._stores))
        self._answers.clear()
        self._stores.clear()
        return decisions
