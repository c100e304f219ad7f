"""A group of KIP-848 whose members, clock, topics and log are played; every answer is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from mainstem_broker.coordinator.record_primitives import INT16, INT32, string
from mainstem_broker.group.bridge.mixed_group import MixedGroup
from mainstem_broker.group.consumer.group import ConsumerPolicy
from mainstem_broker.group.consumer.records import (
    ConsumerGroupKey,
    ConsumerGroupValue,
    Partitions,
    decode_value,
)
from mainstem_broker.group.embedded_protocol import decode_assignment
from mainstem_broker.group.messages import (
    AnyAnswer,
    Commit,
    ConsumerHeartbeat,
    Decisions,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    StoreRecords,
    Sync,
    SyncAnswer,
    TopicVisibility,
)
from mainstem_broker.group.records import decode_key

SESSION_MS = 45_000
REBALANCE_MS = 60_000


@dataclass
class PlayedTopics:
    """Topics by name with their partition counts; `set` changes one, 0 takes it away."""

    counts: dict[str, int] = field(default_factory=lambda: {"t": 6})
    version: int = 0

    def set(self, name: str, count: int) -> None:
        self.counts[name] = count
        if not count:
            del self.counts[name]
        self.version += 1

    def topic_id(self, name: str) -> UUID | None:
        return topic_id(name) if name in self.counts else None

    def name(self, topic_id: UUID) -> str | None:
        return next((name for name in self.counts if self.topic_id(name) == topic_id), None)

    def names(self) -> Iterable[str]:
        return self.counts

    def partition_count(self, name: str) -> int:
        return self.counts.get(name, 0)


def topic_id(name: str) -> UUID:
    return UUID(bytes=name.encode().rjust(16, b"\0"))


def some(*numbers: int, topic: str = "t") -> Partitions:
    return frozenset((topic_id(topic), number) for number in numbers)


def subscription(topics: Sequence[str] = ("t",), owned: Iterable[int] = (), generation: int = -1) -> bytes:
    """Of version 2, as cooperative members send it; `owned` of topic "t"."""
    numbers = list(owned)
    parts = [INT16.pack(2), INT32.pack(len(topics)), *map(string, topics), b"\xff\xff\xff\xff"]
    parts += [INT32.pack(1), string("t"), INT32.pack(len(numbers)), *map(INT32.pack, numbers)]
    return b"".join((*parts, INT32.pack(generation)))


@dataclass
class PlayedConsumerGroup:
    """Carries out a group's decisions. With `stores_at_once` off, a test stores by `store`.

    `log` is what the records in the log say in the end; `restart` makes a group of it, as another broker
    does. With `hides_topics`, members may see all topics but those in `hidden`, by member id; `set_hidden`
    changes that.
    """

    members_max: int = 100
    stores_at_once: bool = True
    hides_topics: bool = False
    hidden: dict[str, frozenset[str]] = field(default_factory=dict)
    rules_version: int = 0
    topics: PlayedTopics = field(default_factory=PlayedTopics)
    group: MixedGroup = field(init=False)
    now_ms: int = 1_000
    answers: dict[int, AnyAnswer] = field(default_factory=dict)
    unstored: list[StoreRecords] = field(default_factory=list)
    log: dict[ConsumerGroupKey, ConsumerGroupValue] = field(default_factory=dict)
    requests: int = 0

    def __post_init__(self) -> None:
        self.policy = ConsumerPolicy(
            lambda _: SESSION_MS, self.members_max, ("uniform", "range"), hides_topics=self.hides_topics
        )
        self.group = MixedGroup("group", self.policy, self.topics)

    # --- What happens ---

    def ask(
        self,
        member_id: str,
        epoch: int,
        *,
        owned: Partitions | None = None,
        topics: tuple[str, ...] | None = None,
        regex: str | None = None,
        instance_id: str | None = None,
        rack_id: str | None = None,
        rebalance_ms: int | None = None,
        assignor: str | None = None,
    ) -> int:
        """Send a heartbeat, and answer the request's number."""
        self.requests += 1
        request = ConsumerHeartbeat(
            self.requests,
            member_id,
            epoch,
            instance_id,
            rack_id,
            rebalance_ms,
            topics,
            regex,
            assignor,
            owned,
            "client",
            "/127.0.0.1",
            self._visibility(member_id) if self.hides_topics else None,
        )
        self.carry_out(self.group.consumer_heartbeat(request, self.now_ms))
        return self.requests

    def set_hidden(self, member_id: str, *topics: str) -> None:
        """As a change of ACLs does."""
        self.hidden[member_id] = frozenset(topics)
        self.rules_version += 1

    def _visibility(self, member_id: str) -> TopicVisibility:
        return TopicVisibility(
            lambda name: name not in self.hidden.get(member_id, ()), (member_id, self.rules_version)
        )

    def heartbeat(
        self, member_id: str, epoch: int, *, owned: Partitions | None = None, instance_id: str | None = None
    ) -> HeartbeatAnswer:
        return self.heard(self.ask(member_id, epoch, owned=owned, instance_id=instance_id))

    def ask_join(
        self,
        member_id: str,
        *,
        topics: tuple[str, ...] | None = ("t",),
        rebalance_ms: int = REBALANCE_MS,
        **how: Any,
    ) -> int:
        """Send the first heartbeat of a member; `how` are other arguments of `ask`."""
        return self.ask(member_id, 0, owned=frozenset(), topics=topics, rebalance_ms=rebalance_ms, **how)

    def join(self, member_id: str, **how: Any) -> HeartbeatAnswer:
        return self.heard(self.ask_join(member_id, **how))

    def leave(self, member_id: str, *, instance_id: str | None = None, epoch: int = -1) -> HeartbeatAnswer:
        return self.heard(self.ask(member_id, epoch, instance_id=instance_id))

    def classic_join(
        self,
        member_id: str,
        *,
        metadata: bytes | None = None,
        protocol: str = "cooperative-sticky",
        protocol_type: str = "consumer",
        instance_id: str | None = None,
        must_know_id: bool = False,
        session_ms: int = SESSION_MS,
    ) -> JoinAnswer:
        self.requests += 1
        request = Join(
            self.requests,
            member_id,
            f"fresh-{self.requests}",
            instance_id,
            "client",
            "/127.0.0.1",
            session_ms,
            REBALANCE_MS,
            protocol_type,
            ((protocol, subscription() if metadata is None else metadata),),
            must_know_id,
            may_skip_assignment=False,
        )
        self.carry_out(self.group.join(request, self.now_ms))
        answer = self.answers[self.requests]
        assert isinstance(answer, JoinAnswer)
        return answer

    def classic_sync(
        self, member_id: str, generation: int, protocol: str | None = None
    ) -> tuple[int, set[int]]:
        """The error code, and the numbers of the partitions of "t"."""
        self.requests += 1
        request = Sync(self.requests, member_id, None, generation, None, protocol, ())
        self.carry_out(self.group.sync(request, self.now_ms))
        answer = self.answers[self.requests]
        assert isinstance(answer, SyncAnswer)
        return answer.error_code, {number for _, number in decode_assignment(answer.assignment)}

    def classic_heartbeat(self, member_id: str, generation: int) -> None:
        try:
            self.group.heartbeat(member_id, None, generation, self.now_ms)
        finally:
            self.carry_out(self.group.decided())

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        version: int = 9,
        *,
        numbers: Iterable[int] = (),
        is_transactional: bool = False,
    ) -> None:
        """Of offsets of these partitions of topic "t"."""
        partitions = [("t", number) for number in numbers]
        commit = Commit(member_id, None, epoch, version, is_transactional, partitions)
        self.group.check_commit(commit, self.now_ms)

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
        """The oldest records that were to be stored are, or fail."""
        store = self.unstored.pop(0)
        if not error_code:
            for key, value in store.records:
                self.log.pop(key, None)
                if value is not None:
                    encoded = decode_key(key.encode())
                    assert isinstance(encoded, ConsumerGroupKey)
                    self.log[encoded] = decode_value(encoded, value.encode())
        self.carry_out(self.group.stored(store.ticket, error_code, self.now_ms))

    def restart(self) -> None:
        """Another coordinator takes over, with what is stored."""
        self.carry_out(self.group.close(16))
        self.unstored.clear()
        self.group = MixedGroup.restore("group", self.policy, self.topics, self.log, self.now_ms)

    def carry_out(self, decisions: Decisions) -> None:
        for answer in decisions.answers:
            assert answer.number not in self.answers, f"request {answer.number} was answered twice"
            self.answers[answer.number] = answer.answer
        self.unstored += decisions.records
        while self.stores_at_once and self.unstored:
            self.store()

    # --- What came of it ---

    def heard(self, number: int) -> HeartbeatAnswer:
        answer = self.answers[number]
        assert isinstance(answer, HeartbeatAnswer)
        return answer

    def is_waiting(self, number: int) -> bool:
        return number not in self.answers

    def settle(self, *member_ids: str) -> None:
        """Have members heartbeat, as clients do, until each has its target."""
        for _ in range(10):
            for member_id in member_ids:
                current = self.group.members[member_id].current
                self.heartbeat(member_id, current.epoch, owned=current.assigned)
            if all(self.group.members[one].is_settled(self.group.epoch) for one in member_ids):
                return
        raise AssertionError("the members do not come to their targets")

    def assigned(self, member_id: str) -> set[int]:
        """The numbers of its partitions, of whatever topic."""
        return {number for _, number in self.group.members[member_id].current.assigned}
