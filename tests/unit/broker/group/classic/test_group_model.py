"""Random lives of a group: what may never happen, whatever members do and in whatever order (R14).

Failing runs print the steps that lead there (hypothesis).
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.broker.group.classic.played_group import PlayedGroup

from mainstem_broker.errors import NotCoordinator, ProtocolError
from mainstem_broker.group.classic.group import ClassicGroup
from mainstem_broker.group.classic.rebalancing import ClassicPolicy, ClassicState
from mainstem_broker.group.messages import JoinAnswer, SyncAnswer

PROTOCOLS = st.sampled_from(
    [
        (("range", b"1"),),
        (("range", b"2"), ("sticky", b"2")),
        (("sticky", b"3"), ("range", b"3")),
        (("sticky", b"4"),),
    ]
)
INSTANCES = st.sampled_from([None, None, "a", "b"])


class GroupLife(RuleBasedStateMachine):
    """Members that obey nothing: ids, generations and instance ids from any earlier answer."""

    ids: Bundle[str] = Bundle("ids")

    @initialize(delay_ms=st.sampled_from([0, 1_000]), members_max=st.sampled_from([2, 100]))
    def begin(self, delay_ms: int, members_max: int) -> None:
        self.played = PlayedGroup(delay_ms, members_max, stores_at_once=False)
        self.requests: set[int] = set()
        self.seen = 0
        self.highest = 0
        self.members_of: dict[int, frozenset[str]] = {}
        self.closed = False

    def _note(self, number: int) -> None:
        self.requests.add(number)

    @rule(
        target=ids,
        instance_id=INSTANCES,
        protocols=PROTOCOLS,
        version=st.sampled_from([0, 4, 9]),
        session_ms=st.integers(1, 20_000),
        rebalance_ms=st.integers(0, 20_000),
    )
    def join_first(self, **how: Any) -> str:
        fresh_id = f"member-{len(self.requests)}"
        self._note(self.played.join(fresh_id=fresh_id, **how))
        return fresh_id

    @rule(
        member_id=ids,
        instance_id=INSTANCES,
        protocols=PROTOCOLS,
        version=st.sampled_from([0, 4, 9]),
        session_ms=st.integers(1, 20_000),
    )
    def join_again(self, member_id: str, **how: Any) -> None:
        self._note(self.played.join(member_id, **how))

    @rule(member_id=ids, instance_id=INSTANCES, lag=st.sampled_from([0, 0, 0, 1, -1]))
    def sync(self, member_id: str, instance_id: str | None, lag: int) -> None:
        given = [(member.member_id, member.member_id.encode()) for member in self.played.group.members]
        generation = self.played.group.generation - lag
        self._note(self.played.sync(member_id, given, generation=generation, instance_id=instance_id))

    @rule(member_id=ids, instance_id=INSTANCES)
    def heartbeat(self, member_id: str, instance_id: str | None) -> None:
        try:
            self.played.heartbeat(member_id, instance_id=instance_id)
        except ProtocolError:
            pass

    @rule(member_id=ids, instance_id=INSTANCES)
    def leave(self, member_id: str, instance_id: str | None) -> None:
        try:
            self.played.leave(member_id, instance_id)
        except ProtocolError:
            pass

    @rule(error_code=st.sampled_from([0, 0, 0, 15]))
    def store(self, error_code: int) -> None:
        if self.played.unstored:
            self.played.store(error_code)

    @rule(ms=st.integers(0, 30_000))
    def pass_time(self, ms: int) -> None:
        self.played.pass_time(ms)

    @rule()
    def move_to_another_coordinator(self) -> None:
        """The old one lets go; the new one knows what was stored."""
        played = self.played
        played.carry_out(played.group.close(NotCoordinator.code))
        self.everyone_who_asked_is_answered()
        played.unstored.clear()
        if played.stored:
            stored = played.stored[-1].group
            played.group = ClassicGroup.restore("group", ClassicPolicy(0, 100), stored, played.now_ms)
        else:
            played.group = ClassicGroup("group", ClassicPolicy(0, 100))
        self.highest = played.group.generation
        self.members_of.clear()

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.played.group.generation >= self.highest
        self.highest = self.played.group.generation

    @invariant()
    def a_generation_has_one_set_of_members(self) -> None:
        """A leader that learns of a generation again, learns of the same members."""
        answers = list(self.played.answers.values())
        for answer in answers[self.seen :]:
            if isinstance(answer, JoinAnswer) and not answer.error_code and answer.members:
                members = frozenset(member.instance_id or member.member_id for member in answer.members)
                assert self.members_of.setdefault(answer.generation, members) == members
        self.seen = len(answers)

    @invariant()
    def who_waits_is_a_member(self) -> None:
        group = self.played.group
        waiting = {
            number
            for member in group.members
            for number in (member.joining, member.syncing)
            if number is not None
        } | {number for number, _ in group._returning.values()}
        assert waiting == self.requests - self.played.answers.keys()

    @invariant()
    def phases_hold_what_they_promise(self) -> None:
        group = self.played.group
        joining = [member for member in group.members if member.joining is not None]
        syncing = [member for member in group.members if member.syncing is not None]
        assert (group.members.leader is None) == (len(group.members) == 0)
        if group.state is ClassicState.EMPTY:
            assert len(group.members) == 0
        if group.state is ClassicState.PREPARING_REBALANCE:
            assert not syncing
            assert group.wake_ms is not None
        if group.state in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
            assert not joining
            assert group.members.leader in group.members
            assert all(any(name == group.protocol for name, _ in one.protocols) for one in group.members)
        if group.state is ClassicState.STABLE:
            assert not syncing
        if group.state in (ClassicState.EMPTY, ClassicState.DEAD):
            assert not joining
            assert not syncing

    def everyone_who_asked_is_answered(self) -> None:
        assert self.requests <= self.played.answers.keys()
        assert len(self.played.group.members) == 0

    def teardown(self) -> None:
        if not hasattr(self, "played"):
            return
        # Nobody says anything any more: in time the group is empty, and everyone was answered.
        self.played.stores_at_once = True
        while self.played.unstored:
            self.played.store()
        self.played.pass_time(1_000_000)
        assert self.played.group.state is ClassicState.EMPTY
        self.everyone_who_asked_is_answered()
        assert all(isinstance(answer, JoinAnswer | SyncAnswer) for answer in self.played.answers.values())


TestGroupLife = GroupLife.TestCase
TestGroupLife.settings = settings(max_examples=150, stateful_step_count=40)
