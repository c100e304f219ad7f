"""Random lives of a group of KIP-848: what may never happen, whatever members do (R14).

Members here do as clients do: they read what they are assigned, give up what is taken from them after a
while, lose answers, crash, come back. Failing runs print the steps that lead there (hypothesis).
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.unit.broker.group.consumer.played_consumer_group import (
    SESSION_MS,
    PlayedConsumerGroup,
    PlayedTopics,
    subscription,
    topic_id,
)

from mainstem_broker.errors import (
    CoordinatorNotAvailable,
    FencedMemberEpoch,
    IllegalGeneration,
    RebalanceInProgress,
    UnknownMemberId,
)
from mainstem_broker.group.consumer.group import ConsumerState
from mainstem_broker.group.consumer.records import Partitions

NAMES = ("a", "b", "c", "d")
TOPICS = st.sampled_from([("t",), ("t",), ("t", "u"), ("u",)])


@dataclass
class Client:
    """What a client believes.

    - `reads`: what it reads, until it has given it up.
    - `alive_ms`: when it last heard from the coordinator; after a session's length it stops by itself.
    - `has_lost_an_answer`: after which clients say everything again.
    """

    topics: tuple[str, ...]
    epoch: int
    reads: Partitions
    assigned: Partitions
    alive_ms: int
    classic: bool = False
    has_lost_an_answer: bool = False


class ConsumerGroupLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.played = PlayedConsumerGroup(topics=PlayedTopics({"t": 4, "u": 2}))
        self.clients: dict[str, Client] = {}

    # --- What clients do ---

    @rule(name=st.sampled_from(NAMES), topics=TOPICS, lost=st.booleans())
    def join(self, name: str, topics: tuple[str, ...], lost: bool) -> None:
        assume(name not in self.clients or not self.clients[name].classic)
        client = self.clients[name] = Client(topics, 0, frozenset(), frozenset(), self.played.now_ms)
        answer = self.played.join(name, topics=topics)
        assert answer.error_code == 0
        if not lost:
            self._take(client, answer.member_epoch, answer.assignment)

    @rule(name=st.sampled_from(NAMES), lost=st.booleans(), full=st.booleans())
    def heartbeat(self, name: str, lost: bool, full: bool) -> None:
        client = self.clients.get(name)
        if client is None or client.classic:
            return
        if client.epoch == 0:
            self.join(name, client.topics, lost)
            return
        if full or client.has_lost_an_answer:
            number = self.played.ask(
                name, client.epoch, owned=client.reads, topics=client.topics, rebalance_ms=60_000
            )
        else:
            number = self.played.ask(name, client.epoch, owned=client.reads)
        answer = self.played.heard(number)
        client.has_lost_an_answer = lost
        if answer.error_code:
            assert answer.error_code in (FencedMemberEpoch.code, UnknownMemberId.code)
            self._lose_all(client)
        elif not lost:
            self._take(client, answer.member_epoch, answer.assignment)

    @rule(name=st.sampled_from(NAMES))
    def give_up_what_is_taken_and_read_what_is_given(self, name: str) -> None:
        client = self.clients.get(name)
        if client is not None and self.played.now_ms - client.alive_ms < SESSION_MS:
            client.reads = client.assigned

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None and client.epoch and not client.classic:
            self.played.leave(name)

    @rule(name=st.sampled_from(NAMES))
    def crash(self, name: str) -> None:
        self.clients.pop(name, None)

    # --- What clients of the classic protocol do ---

    @rule(name=st.sampled_from(NAMES), eager=st.booleans())
    def classic_join_and_sync(self, name: str, eager: bool) -> None:
        client = self.clients.get(name)
        if client is not None and not client.classic:
            return
        if client is None:
            client = Client(("t",), -1, frozenset(), frozenset(), self.played.now_ms, classic=True)
            self.clients[name] = client
        if eager:
            client.reads = frozenset()
        owned = (number for _, number in client.reads)
        joined = self.played.classic_join(name, metadata=subscription(owned=owned, generation=client.epoch))
        assert joined.error_code == 0
        client.alive_ms, client.epoch = self.played.now_ms, joined.generation
        error_code, numbers = self.played.classic_sync(name, joined.generation)
        if error_code:
            assert error_code == RebalanceInProgress.code
            return
        client.assigned = frozenset((topic_id("t"), number) for number in numbers)
        # It revokes before it reads anything new.
        client.reads &= client.assigned
        client.reads = client.assigned

    @rule(name=st.sampled_from(NAMES))
    def classic_heartbeat(self, name: str) -> None:
        client = self.clients.get(name)
        if client is None or not client.classic:
            return
        try:
            self.played.classic_heartbeat(name, client.epoch)
            client.alive_ms = self.played.now_ms
        except RebalanceInProgress:
            client.alive_ms = self.played.now_ms
            self.classic_join_and_sync(name, eager=False)
        except (UnknownMemberId, IllegalGeneration):
            self._lose_all(client)

    # --- What else happens ---

    @rule(ms=st.sampled_from([1, 5_000, 30_000, SESSION_MS]))
    def time_passes(self, ms: int) -> None:
        self.played.pass_time(ms)
        for client in self.clients.values():
            if self.played.now_ms - client.alive_ms >= SESSION_MS:
                client.reads = frozenset()  # it knows that its session is over

    @rule(name=st.sampled_from(["t", "u"]), count=st.integers(1, 8))
    def a_topic_grows(self, name: str, count: int) -> None:
        self.played.topics.set(name, max(count, self.played.topics.partition_count(name)))

    @rule()
    def another_broker_takes_over(self) -> None:
        self.played.restart()

    @rule(name=st.sampled_from(NAMES), topics=TOPICS)
    def a_write_fails(self, name: str, topics: tuple[str, ...]) -> None:
        assume(name not in self.clients or not self.clients[name].classic)
        self.played.stores_at_once = False
        number = self.played.ask_join(name, topics=topics)
        while self.played.unstored:
            self.played.store(error_code=CoordinatorNotAvailable.code)
        self.played.stores_at_once = True
        self.clients[name] = Client(topics, 0, frozenset(), frozenset(), self.played.now_ms)
        assert self.played.heard(number).error_code in (0, CoordinatorNotAvailable.code)

    def _take(self, client: Client, epoch: int, assignment: Partitions | None) -> None:
        client.epoch, client.alive_ms = epoch, self.played.now_ms
        if assignment is not None:
            client.assigned = assignment

    def _lose_all(self, client: Client) -> None:
        client.epoch = -1 if client.classic else 0
        client.reads = client.assigned = frozenset()

    # --- What holds ---

    @invariant()
    def no_partition_is_read_by_two(self) -> None:
        taken: set[object] = set()
        for client in self.clients.values():
            assert taken.isdisjoint(client.reads)
            taken |= client.reads

    @invariant()
    def no_partition_is_held_by_two(self) -> None:
        held: set[object] = set()
        for member in self.played.group.members.values():
            assert held.isdisjoint(member.current.held)
            held |= member.current.held

    @invariant()
    def epochs_are_in_order(self) -> None:
        group = self.played.group
        assert group.assignment_epoch <= group.epoch
        assert all(member.current.epoch <= group.assignment_epoch for member in group.members.values())

    @invariant()
    def all_requests_are_answered(self) -> None:
        assert len(self.played.answers) == self.played.requests

    def teardown(self) -> None:
        """In the end, when all do as they should, all have their share and every partition is read."""
        for _ in range(12):
            for name, client in self.clients.items():
                if client.classic:
                    self.classic_heartbeat(name)
                    if client.epoch == -1:
                        self.classic_join_and_sync(name, eager=False)
                else:
                    self.heartbeat(name, lost=False, full=False)
                    self.give_up_what_is_taken_and_read_what_is_given(name)
                self.no_partition_is_read_by_two()
            self.played.pass_time(SESSION_MS // 8)
        group = self.played.group
        assert set(group.members) == set(self.clients)
        if not self.clients:
            return
        assert group.state is ConsumerState.STABLE
        topics = {topic for client in self.clients.values() for topic in client.topics}
        subscribed = {
            (topic_id(topic), number)
            for topic in topics
            for number in range(self.played.topics.partition_count(topic))
        }
        assert set().union(*(client.reads for client in self.clients.values())) == subscribed


ConsumerGroupLife.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestConsumerGroupLife = ConsumerGroupLife.TestCase
