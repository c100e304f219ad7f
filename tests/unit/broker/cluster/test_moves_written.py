"""How wishes, ends of moves and requested elections reach ZooKeeper, over one in memory."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from tests.cluster.simulated_zookeeper import SimulatedZooKeeper
from tests.unit.broker.cluster.small_clusters import TOPIC_ID, empty_server, feed, session_with

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.administration import Administration
from mainstem_broker.cluster.controller import ElectionPolicy
from mainstem_broker.cluster.controllership import Controllership
from mainstem_broker.cluster.reassignment import Move, with_moves
from mainstem_broker.cluster.state_writer import StateWriter
from mainstem_broker.cluster.view import ClusterView, Delta
from mainstem_broker.cluster.znodes import BrokerRegistration, TopicAssignment
from mainstem_broker.cluster.zookeeper import Create, SetData
from mainstem_broker.errors import UnknownTopicOrPartition
from mainstem_broker.replica.partition_state import NO_LEADER, PartitionState

STATE = PartitionState(2, 4, (1, 2, 3), 1, 0, incarnations={1: 0, 2: 0, 3: 0})


class World:
    """Brokers 1 to 3 live, t-0 is led by 2 and held by `replicas`; broker 1 becomes controller."""

    def __init__(self, move: Move, state: PartitionState = STATE) -> None:
        self.server = empty_server()
        self.server.ensure(znodes.partition_path("t", 0))
        for broker in (1, 2, 3):
            self.server.multi([Create(znodes.incarnation_path(broker), znodes.encode_incarnation(0))], 0)
        assignment = with_moves(TopicAssignment("t", TOPIC_ID, {0: ()}), {0: move})
        self.server.multi([SetData(znodes.topic_path("t"), assignment.encode())], 0)
        self.server.multi([Create(znodes.state_path("t", 0), znodes.encode_state(state))], 0)
        self.view = ClusterView()
        self.view.set_brokers(BrokerRegistration(broker, (), None) for broker in (1, 2, 3))
        self.view.set_topic(self.assignment, {})
        self.view.set_state("t", 0, state)
        self.delta = Delta()

    @property
    def assignment(self) -> TopicAssignment:
        node = self.server.get(znodes.topic_path("t"))
        assert node is not None
        return TopicAssignment.decode("t", node.data, node.version)

    @property
    def state(self) -> PartitionState:
        node = self.server.get(znodes.state_path("t", 0))
        assert node is not None
        return znodes.decode_state(node.data, node.version)

    @property
    def feed(self) -> list[znodes.Change]:
        return feed(self.server)

    async def session(self) -> SimulatedZooKeeper:
        return await session_with(self.server)

    async def controller(self) -> Controllership:
        controllership = Controllership(await self.session(), 1, self.view, lambda _: ElectionPolicy())
        await controllership.seek(lambda: None)
        assert controllership.is_held
        return controllership


MOVE = Move((3, 2, 1), adding=(3,), removing=(1,))


# --- The controller ---


async def test_states_and_assignment_end_a_move_in_one_write_that_the_feed_tells_of() -> None:
    world = World(MOVE)
    await (await world.controller()).lead(world.delta)
    assert (world.assignment.replicas, world.assignment.adding_replicas) == ({0: (3, 2)}, {})
    assert (world.state.leader, world.state.isr, world.state.leader_epoch) == (2, (2, 3), 5)
    (entry,) = world.feed
    assert entry.topics == ("t",)
    assert entry.states == ((TOPIC_ID, 0, world.state),)
    assert world.view.topics["t"].assignment == world.assignment, "known at once"
    assert world.view.topics["t"].states[0] == world.state
    assert ("t", 0) in world.delta.partitions


async def test_a_move_does_not_end_over_an_in_sync_set_that_changed_meanwhile() -> None:
    world = World(MOVE)
    controllership = await world.controller()
    shrunk = STATE.with_isr((1, 2), {}, 1)
    world.server.multi([SetData(znodes.state_path("t", 0), znodes.encode_state(shrunk), 0)], 0)
    await controllership.lead(world.delta)
    assert world.assignment.adding_replicas == {0: (3,)}
    assert world.state == shrunk
    world.view.set_state("t", 0, shrunk)
    await controllership.lead(world.delta)
    assert world.assignment.adding_replicas == {0: (3,)}, "3 is no longer in sync"
    grown = shrunk.with_isr((1, 2, 3), {3: 0}, 1)
    world.server.multi([SetData(znodes.state_path("t", 0), znodes.encode_state(grown), 1)], 0)
    world.view.set_state("t", 0, grown)
    controllership.look_again(["t"])
    await controllership.lead(world.delta)
    assert world.assignment.replicas == {0: (3, 2)}


async def test_a_move_does_not_end_over_another_wish() -> None:
    world = World(MOVE)
    controllership = await world.controller()
    other = with_moves(world.assignment, {0: MOVE.towards((1, 2))})
    world.server.multi([SetData(znodes.topic_path("t"), other.encode())], 0)
    await controllership.lead(world.delta)
    assert world.state == STATE
    world.view.set_topic(world.assignment, {})
    await controllership.lead(world.delta)
    assert world.assignment.replicas == {0: (1, 2)}
    assert (world.state.leader, world.state.leader_epoch, world.state.isr) == (2, 5, (1, 2))


async def test_a_controller_that_was_replaced_ends_no_move() -> None:
    world = World(MOVE)
    controllership = await world.controller()
    world.server.multi([SetData(znodes.CONTROLLER_EPOCH, b"2")], 0)
    await controllership.lead(world.delta)
    assert world.state == STATE
    assert world.assignment.adding_replicas == {0: (3,)}


LOST = PartitionState(1, 4, (1,), 1, 0, incarnations={1: 0})


async def test_an_unclean_election_that_was_asked_for_is_held_once() -> None:
    world = World(Move((1, 2, 3)), LOST)
    controllership = await world.controller()
    del world.view.brokers[1]
    controllership.request_unclean_election(TOPIC_ID, 0)
    controllership.request_unclean_election(TOPIC_ID, 7)
    controllership.request_unclean_election(UUID(int=9), 0)
    await controllership.lead(world.delta)
    assert (world.state.leader, world.state.recovering) == (2, True)
    written = len(world.feed)
    await controllership.lead(world.delta)
    assert len(world.feed) == written


async def test_an_election_that_has_become_impossible_is_forgotten() -> None:
    world = World(Move((1, 2, 3)), LOST)
    controllership = await world.controller()
    world.view.brokers.clear()
    controllership.request_unclean_election(TOPIC_ID, 0)
    await controllership.lead(world.delta)
    world.view.brokers[2] = BrokerRegistration(2, (), None)
    controllership.look_again()
    await controllership.lead(world.delta)
    assert world.state.leader == NO_LEADER


# --- Leaders ---


async def test_a_leader_cannot_bring_back_who_was_moved_away() -> None:
    world = World(Move((1, 2)), LOST)
    states = StateWriter(await world.session(), 1, world.view)
    back = world.state.with_isr((1, 3), {3: 0}, 1)
    assert await states.change_state("t", 0, back, {3: 0}) == world.state
    assert world.state.isr == (1,)


async def test_a_leader_that_has_not_heard_of_a_moves_end_changes_nothing_until_it_has_read_of_it() -> None:
    world = World(Move((1, 2, 3), removing=(3,)), replace(STATE, leader=1, isr=(1, 2)))
    reports: list[str] = []
    await (await world.controller()).lead(world.delta)
    assert world.state.assignment_version == world.assignment.version
    world.view.topics["t"].assignment = replace(world.assignment, replicas={0: (1, 2, 3)}, version=0)
    states = StateWriter(await world.session(), 1, world.view, reports.append)
    back = world.state.with_isr((1, 2, 3), {3: 0}, 1)
    assert await states.change_state("t", 0, back, {3: 0}) == world.state
    assert (world.state.isr, reports) == ((1, 2), ["t"])
    world.view.set_topic(world.assignment, {})
    shrunk = world.state.with_isr((1,), {}, 1)
    assert await states.change_state("t", 0, shrunk, {}) == shrunk
    assert world.state.assignment_version == shrunk.assignment_version, "it stays with the state"


# --- Wishes ---


async def test_a_wish_is_made_over_whatever_others_wrote_meanwhile() -> None:
    world = World(Move((1, 2)))
    administration = Administration(await world.session(), 1)
    seen = []

    def change(assignment: TopicAssignment) -> TopicAssignment:
        seen.append(assignment.replicas)
        if len(seen) == 1:
            grown = replace(assignment, replicas={**assignment.replicas, 1: (2,)})
            world.server.multi([SetData(znodes.topic_path("t"), grown.encode())], 0)
        return with_moves(assignment, {0: Move(assignment.replicas[0]).towards((3,))})

    version = await administration.change_assignment("t", TOPIC_ID, change)
    assert version == world.assignment.version
    assert world.assignment.replicas == {0: (3, 1, 2), 1: (2,)}
    assert [entry.topics for entry in world.feed] == [("t",)]


async def test_a_wish_that_changes_nothing_writes_nothing() -> None:
    world = World(Move((1, 2)))
    administration = Administration(await world.session(), 1)
    version = await administration.change_assignment("t", TOPIC_ID, lambda assignment: assignment)
    assert (version, world.feed) == (world.assignment.version, [])


async def test_no_wish_is_written_for_a_topic_that_is_gone_or_another_one() -> None:
    world = World(Move((1, 2)))
    administration = Administration(await world.session(), 1)
    with pytest.raises(UnknownTopicOrPartition, match="deleted and created again"):
        await administration.change_assignment("t", UUID(int=2), lambda assignment: assignment)
    with pytest.raises(UnknownTopicOrPartition, match="no topic 'u'"):
        await administration.change_assignment("u", TOPIC_ID, lambda assignment: assignment)
    assert world.feed == []


async def test_elections_are_asked_for_through_the_feed() -> None:
    world = World(Move((1, 2)))
    await Administration(await world.session(), 2).ask_for_elections([(TOPIC_ID, 0, 1)])
    assert [entry.elections for entry in world.feed] == [((TOPIC_ID, 0, 1),)]
