"""A group whose members, clock and log are played: what a test says happens, and every answer is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mainstem_broker.group.classic.group import ClassicGroup
from mainstem_broker.group.classic.rebalancing import ClassicPolicy
from mainstem_broker.group.messages import (
    AnyAnswer,
    Commit,
    Decisions,
    Join,
    JoinAnswer,
    Store,
    Sync,
    SyncAnswer,
)

SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE = (("range", b"subscription"),)


@dataclass
class PlayedGroup:
    """Carries out a group's decisions. With `stores_at_once` off, a test stores by `store`."""

    initial_delay_ms: int = 0
    members_max: int = 100
    stores_at_once: bool = True
    group: ClassicGroup = field(init=False)
    now_ms: int = 1_000
    answers: dict[int, AnyAnswer] = field(default_factory=dict)
    unstored: list[Store] = field(default_factory=list)
    stored: list[Store] = field(default_factory=list)
    _requests: int = 0

    def __post_init__(self) -> None:
        self.group = ClassicGroup("group", ClassicPolicy(self.initial_delay_ms, self.members_max))

    # --- What happens ---

    def join(
        self,
        member_id: str = "",
        *,
        fresh_id: str = "",
        instance_id: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 3,
    ) -> int:
        """Send a join, and answer the request's number."""
        self._requests += 1
        number = self._requests
        request = Join(
            number,
            member_id,
            fresh_id or f"member-{number}",
            instance_id,
            "client",
            "/127.0.0.1",
            session_ms,
            rebalance_ms,
            protocol_type,
            protocols,
            must_know_id=version >= 4,
            may_skip_assignment=version >= 9,
        )
        self.carry_out(self.group.join(request, self.now_ms))
        return number

    def sync(
        self,
        member_id: str,
        assignments: Sequence[tuple[str, bytes]] = (),
        *,
        generation: int | None = None,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> int:
        self._requests += 1
        number = self._requests
        request = Sync(
            number,
            member_id,
            instance_id,
            self.group.generation if generation is None else generation,
            protocol_type,
            protocol,
            tuple(assignments),
        )
        self.carry_out(self.group.sync(request, self.now_ms))
        return number

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> None:
        generation = self.group.generation if generation is None else generation
        self.group.heartbeat(member_id, instance_id, generation, self.now_ms)

    def commit(self, member_id: str, generation: int, instance_id: str | None = None) -> None:
        self.group.check_commit(Commit(member_id, instance_id, generation, 9), self.now_ms)

    def leave(self, member_id: str, instance_id: str | None = None) -> None:
        self.carry_out(self.group.leave(member_id, instance_id, self.now_ms))

    def pass_time(self, ms: int) -> None:
        """Let time pass, waking the group when it wants to be."""
        until_ms = self.now_ms + ms
        wakes = Counter[int]()
        while self.group.wake_ms is not None and self.group.wake_ms <= until_ms:
            self.now_ms = max(self.now_ms, self.group.wake_ms)
            wakes[self.now_ms] += 1
            assert wakes[self.now_ms] < 10, "the group wants to be woken again and again"
            self.carry_out(self.group.tick(self.now_ms))
        self.now_ms = until_ms

    def store(self, error_code: int = 0) -> None:
        """The oldest record that was to be stored is, or fails."""
        store = self.unstored.pop(0)
        if not error_code:
            self.stored.append(store)
        self.carry_out(self.group.stored(store.ticket, error_code, self.now_ms))

    def carry_out(self, decisions: Decisions) -> None:
        for answer in decisions.answers:
            assert answer.number not in self.answers, f"request {answer.number} was answered twice"
            self.answers[answer.number] = answer.answer
        self.unstored += decisions.stores
        while self.stores_at_once and self.unstored:
            self.store()

    # --- What came of it ---

    def joined(self, number: int) -> JoinAnswer:
        answer = self.answers[number]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, number: int) -> SyncAnswer:
        answer = self.answers[number]
        assert isinstance(answer, SyncAnswer)
        return answer

    def is_waiting(self, number: int) -> bool:
        return number not in self.answers

    # --- Whole phases ---

    def stable(self, count: int = 2) -> list[str]:
        """Bring so many dynamic members to a stable generation; the first is the leader."""
        ids: list[str] = []
        for _ in range(count):
            number = self.join()
            if ids:
                for member_id in ids:
                    self.join(member_id)
            ids.append(self.joined(number).member_id)
            self.sync_all(ids)
        return ids

    def sync_all(self, ids: Sequence[str]) -> None:
        leader = self.group.members.leader
        assert leader is not None
        for member_id in ids:
            if member_id != leader:
                self.sync(member_id)
        self.sync(leader, [(member_id, member_id.encode()) for member_id in ids])
