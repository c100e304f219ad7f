"""The controllership over a ZooKeeper in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs
from tests.cluster.simulated_zookeeper import SimulatedZooKeeper, ZooKeeperServer
from tests.unit.broker.cluster.small_clusters import (
    TOPIC_ID,
    create_topic,
    empty_server,
    feed,
    register,
    session_with,
    view_of,
    written_states,
)
from tests.unit.broker.server.peers import until

from mainstem_broker.cluster import controller as controller_module
from mainstem_broker.cluster import controllership as module
from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.controller import ElectionPolicy
from mainstem_broker.cluster.controllership import Controllership
from mainstem_broker.cluster.view import ClusterView, Delta
from mainstem_broker.cluster.zookeeper import (
    Conflict,
    Create,
    Delete,
    Operation,
    SetData,
    ZooKeeperUnavailable,
)
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.runtime.turns import ITEMS_PER_TURN


def controllership_of(
    broker_id: int, zookeeper: SimulatedZooKeeper, view: ClusterView | None = None
) -> Controllership:
    return Controllership(zookeeper, broker_id, view or ClusterView(), lambda _: ElectionPolicy())


def nobody() -> None:
    """Whoever would hear of changes."""


def epoch_of(server: ZooKeeperServer) -> bytes:
    node = server.get(znodes.CONTROLLER_EPOCH)
    assert node is not None
    return node.data


class Elected(NamedTuple):
    server: ZooKeeperServer
    zookeeper: SimulatedZooKeeper
    view: ClusterView
    controllership: Controllership


async def elected(replicas: Mapping[int, tuple[int, ...]], lives: Mapping[int, int] | None = None) -> Elected:
    """The topic "t", of which nothing is planned yet, and broker 1 as the controller that knows it."""
    server = empty_server()
    create_topic(server, replicas)
    view = view_of(lives or {1: 0}, replicas)
    zookeeper = await session_with(server)
    controllership = controllership_of(1, zookeeper, view)
    await controllership.seek(nobody)
    return Elected(server, zookeeper, view, controllership)


async def leading(replicas: Mapping[int, tuple[int, ...]], lives: Mapping[int, int] | None = None) -> Elected:
    """The same, once the controller has written the topic's states."""
    result = await elected(replicas, lives)
    await result.controllership.lead(Delta())
    return result


def delete_topic(server: ZooKeeperServer, view: ClusterView) -> None:
    """Somebody asks for the deletion of "t", and the controller has heard of it."""
    server.multi([Create(znodes.deletion_path("t"), b"")], 0)
    view.pending_deletions.add("t")


# --- Winning and losing ---


async def test_the_first_who_seeks_holds_the_controllership_and_others_learn_who_it_is() -> None:
    server = empty_server()
    views = {1: ClusterView(), 2: ClusterView()}
    first = controllership_of(1, await session_with(server), views[1])
    second = controllership_of(2, await session_with(server), views[2])
    await first.seek(nobody)
    await second.seek(nobody)
    assert (first.is_held, second.is_held) == (True, False)
    assert [view.controller_id for view in views.values()] == [1, 1]
    assert epoch_of(server) == b"1"


async def test_a_waiting_broker_hears_that_the_controllership_is_free_and_holds_it_in_a_new_epoch() -> None:
    server = empty_server()
    one, two = await session_with(server), await session_with(server)
    first, second = controllership_of(1, one), controllership_of(2, two)
    await first.seek(nobody)
    heard: list[int] = []
    await second.seek(lambda: heard.append(1))
    await one.stop()
    await until(lambda: heard)
    await second.seek(nobody)
    assert second.is_held
    assert epoch_of(server) == b"2"


async def test_the_slower_one_has_to_look_again() -> None:
    server = empty_server()
    zookeeper = await session_with(server)
    slow = controllership_of(2, zookeeper)
    multi = zookeeper.multi

    async def too_late(operations: Sequence[Operation]) -> list[Any]:
        server.multi([SetData(znodes.CONTROLLER_EPOCH, b"1")], 0)
        server.multi([Create(znodes.CONTROLLER, znodes.encode_controller(1, 0))], 0)
        return await multi(operations)

    zookeeper.multi = too_late  # type: ignore[method-assign]  # stands in between
    heard: list[int] = []
    await slow.seek(lambda: heard.append(1))
    assert heard
    assert not slow.is_held
    assert epoch_of(server) == b"1"


async def test_an_election_whose_answer_was_lost_counts_when_it_is_seen() -> None:
    server = empty_server()
    zookeeper = await session_with(server)
    controllership = controllership_of(1, zookeeper)
    multi = zookeeper.multi

    async def losing(operations: Sequence[Operation]) -> list[Any]:
        await multi(operations)
        raise ZooKeeperUnavailable("The answer was lost.")

    zookeeper.multi = losing  # type: ignore[method-assign]  # stands in between
    with pytest.raises(ZooKeeperUnavailable):
        await controllership.seek(nobody)
    assert (controllership.is_held, epoch_of(server)) == (False, b"1")
    zookeeper.multi = multi  # type: ignore[method-assign]  # as it was
    await controllership.seek(nobody)
    assert controllership.is_held
    await controllership.write([Create("/written", b"")])
    assert epoch_of(server) == b"1"


async def test_a_controller_that_was_replaced_writes_nothing_and_finds_out() -> None:
    """R20: fenced by the epoch."""

    server = empty_server()
    old, new = (
        controllership_of(1, await session_with(server)),
        controllership_of(2, await session_with(server)),
    )
    await old.seek(nobody)
    server.multi([Delete(znodes.CONTROLLER)], 0)
    await new.seek(nobody)
    assert old.is_held, "it has not heard of it"
    with pytest.raises(Conflict, match="Check /controller_epoch"):
        await old.write([Create("/written", b"")])
    assert server.get("/written") is None
    await old.seek(nobody)
    assert not old.is_held


# --- States ---


async def test_states_are_written_with_the_feeds_entry_that_carries_them() -> None:
    server, _, view, controllership = await elected({0: (1, 2), 1: (2, 1)}, lives={1: 3, 2: 5})
    delta = Delta()
    await controllership.lead(delta)
    assert delta.partitions == {("t", 0), ("t", 1)}
    assert written_states(server) == view.topics["t"].states
    assert [state.leader for state in written_states(server).values()] == [1, 2]
    (entry,) = feed(server)
    assert {(topic_id, index) for topic_id, index, _ in entry.states} == {(TOPIC_ID, 0), (TOPIC_ID, 1)}
    before = len(feed(server))
    await controllership.lead(Delta())
    assert len(feed(server)) == before, "there is nothing left to do"


async def test_after_a_write_that_failed_everything_is_planned_anew() -> None:
    server, zookeeper, _, controllership = await elected({0: (1,)})
    multi = zookeeper.multi

    async def failing(operations: Sequence[Operation]) -> list[Any]:
        raise ZooKeeperUnavailable("The connection broke.")

    zookeeper.multi = failing  # type: ignore[method-assign]  # stands in between
    with pytest.raises(ZooKeeperUnavailable):
        await controllership.lead(Delta())
    zookeeper.multi = multi  # type: ignore[method-assign]  # as it was
    await controllership.lead(Delta())
    assert list(written_states(server)) == [0]


async def test_only_topics_that_have_to_be_looked_at_again_are_planned() -> None:
    server, _, view, controllership = await leading({0: (1,)})
    view.set_topic(znodes.TopicAssignment("t", TOPIC_ID, {0: (1,), 1: (1,)}, version=1), {})
    await controllership.lead(Delta())
    assert list(written_states(server)) == [0]
    controllership.look_again(["t"])
    await controllership.lead(Delta())
    assert list(written_states(server)) == [0, 1]


async def test_states_of_many_partitions_are_planned_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """R40: the controller's clients do not wait while it looks at all partitions after a broker's death."""
    replicas = dict.fromkeys(range(3 * ITEMS_PER_TURN), (1,))
    controllership = (await leading(replicas)).controllership
    in_turn = most = looks = 0
    elect = controller_module.elect

    def count(*arguments: Any) -> PartitionState | None:
        nonlocal in_turn, most, looks
        in_turn, looks = in_turn + 1, looks + 1
        most = max(most, in_turn)
        return elect(*arguments)

    async def others() -> None:
        nonlocal in_turn
        while True:
            in_turn = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(controller_module, "elect", count)
    task = asyncio.create_task(others())
    controllership.look_again()
    await controllership.lead(Delta())
    task.cancel()
    assert (looks, most) == (3 * ITEMS_PER_TURN, ITEMS_PER_TURN)


async def test_many_states_are_written_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(znodes, "STATES_PER_MULTI", 2)

    server = empty_server()
    replicas = dict.fromkeys(range(5), (1,))
    create_topic(server, replicas)
    controllership = controllership_of(1, await session_with(server), view_of({1: 0}, replicas))
    await controllership.seek(nobody)
    await controllership.lead(Delta())
    assert sorted(written_states(server)) == [0, 1, 2, 3, 4]
    assert [len(entry.states) for entry in feed(server)] == [2, 2, 1]


async def test_a_topic_is_deleted_with_all_its_nodes_and_who_held_it_is_noted() -> None:
    server, _, view, controllership = await leading({0: (1, 2)}, lives={1: 0, 2: 0})
    claim = znodes.Claim(2, 0, 1, 1)
    server.multi([Create(znodes.claim_path("t", 0, 2), claim.encode())], 0)
    delete_topic(server, view)
    delta = Delta()
    await controllership.lead(delta)
    assert delta.deleted == [("t", TOPIC_ID)]
    assert (server.children(znodes.TOPICS), server.children(znodes.DELETE_TOPICS)) == ([], [])
    assert server.children(znodes.DELETED_TOPICS) == [znodes.encode_uuid(TOPIC_ID)]
    assert feed(server)[-1].deleted == (("t", TOPIC_ID),)


async def test_the_nodes_of_a_topic_with_many_partitions_are_read_together() -> None:
    """R20, R40: a read for each of them, one after another, would hold up elections."""
    replicas = dict.fromkeys(range(400), (1,))
    server, zookeeper, view, controllership = await leading(replicas)
    delete_topic(server, view)
    reads: list[int] = []
    children_of_many = zookeeper.children_of_many

    async def count(paths: Sequence[str]) -> list[list[str]]:
        reads.append(len(paths))
        return await children_of_many(paths)

    zookeeper.children_of_many = count  # type: ignore[method-assign]  # counts
    delta = Delta()
    await controllership.lead(delta)
    assert delta.deleted == [("t", TOPIC_ID)]
    assert reads == [1, 1, 400], "one round for each level"


@pytest.mark.parametrize(
    "stray",
    ["/brokers/topics/t/x", "/brokers/topics/t/partitions/x", "/brokers/topics/t/partitions/0/state/x"],
)
async def test_nodes_of_others_below_a_topic_go_with_it(stray: str) -> None:
    server, _, view, controllership = await leading({0: (1,)})
    server.ensure(f"{stray}/y")
    delete_topic(server, view)
    delta = Delta()
    await controllership.lead(delta)
    assert delta.deleted == [("t", TOPIC_ID)]
    assert (server.children(znodes.TOPICS), server.children(znodes.DELETE_TOPICS)) == ([], [])


async def test_a_topic_that_cannot_be_deleted_holds_up_nothing_else() -> None:
    """Or this broker would publish no change any more: a Conflict ends the pass that leads."""
    server, zookeeper, view, controllership = await leading({0: (1,)})
    delete_topic(server, view)
    multi = zookeeper.multi

    async def refuse_the_last(operations: Sequence[Operation]) -> list[Any]:
        if Delete(znodes.topic_path("t")) in operations:
            raise Conflict("Delete /brokers/topics/t: NotEmptyError")  # a node appeared just before
        return await multi(operations)

    zookeeper.multi = refuse_the_last  # type: ignore[method-assign]  # stands in between
    with capture_logs() as logs:
        await controllership.lead(Delta())
    assert [(entry["event"], entry["topic"]) for entry in logs] == [("topic not deleted yet", "t")]
    assert controllership.is_unfinished
    zookeeper.multi = multi  # type: ignore[method-assign]
    delta = Delta()
    await controllership.lead(delta)
    assert delta.deleted == [("t", TOPIC_ID)]


async def test_a_feed_that_cannot_be_trimmed_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEED_ENTRIES_KEPT", 1)
    server = empty_server()
    for _ in range(3):
        server.multi([Create(znodes.CHANGE_PREFIX, znodes.Change().encode(), sequential=True)], 0)
    server.ensure(f"{znodes.CHANGE_PREFIX}{0:010d}/stray")
    controllership = controllership_of(1, await session_with(server))
    await controllership.seek(nobody)
    with capture_logs() as logs:
        await controllership.trim_feed(range(3))
    assert [entry["event"] for entry in logs] == ["feed not trimmed: remove what lies below its entries"]


async def test_the_feed_is_trimmed_to_its_newest_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEED_ENTRIES_KEPT", 3)

    server = empty_server()
    for _ in range(7):
        server.multi([Create(znodes.CHANGE_PREFIX, znodes.Change().encode(), sequential=True)], 0)
    controllership = controllership_of(1, await session_with(server))
    await controllership.seek(nobody)
    await controllership.trim_feed(range(6))
    assert len(feed(server)) == 7, "not worth it yet"
    await controllership.trim_feed(range(7))
    assert [znodes.change_number(name) for name in server.children(znodes.CHANGES)] == [4, 5, 6]


# --- Fencing brokers whose process is gone ---


def is_registered(server: ZooKeeperServer, broker_id: int) -> bool:
    return server.get(znodes.broker_path(broker_id)) is not None


async def test_the_controller_fences_a_broker_in_the_life_that_was_watched_and_in_no_other() -> None:
    with capture_logs() as lines:
        server = empty_server()
        gone = await session_with(server)
        register(server, 2, gone.session_id)
        controllership = controllership_of(1, await session_with(server))
        await controllership.seek(nobody)
        await controllership.fence(2, 7)
        assert is_registered(server, 2)
        await controllership.fence(2, 0)
        assert not is_registered(server, 2)
        await controllership.fence(2, 0)  # it is gone already
    assert [line["event"] for line in lines if "fenced" in line["event"]] == ["broker not fenced"] * 2


async def test_anyone_fences_the_controller_and_its_controllership_goes_with_it() -> None:
    server = empty_server()
    one, two = await session_with(server), await session_with(server)
    register(server, 1, one.session_id)
    controller, other = controllership_of(1, one), controllership_of(2, two)
    await controller.seek(nobody)
    await other.seek(nobody)
    await other.fence(1, 0)
    assert not is_registered(server, 1)
    assert server.get(znodes.CONTROLLER) is None
    await other.seek(nobody)
    assert other.is_held


async def test_who_is_not_controller_fences_nobody_else() -> None:
    server = empty_server()
    one, two, three = [await session_with(server) for _ in range(3)]
    register(server, 3, three.session_id)
    await controllership_of(1, one).seek(nobody)
    await controllership_of(2, two).fence(3, 0)
    assert is_registered(server, 3)


async def test_the_controllership_of_a_later_session_is_left_alone() -> None:
    """The broker has come back as controller while its former registration still stands."""

    server = empty_server()
    former, present, two = [await session_with(server) for _ in range(3)]
    register(server, 1, former.session_id)
    await controllership_of(1, present).seek(nobody)
    await controllership_of(2, two).fence(1, 0)
    assert not is_registered(server, 1)
    assert server.get(znodes.CONTROLLER) is not None


# --- Leaders that are absent (R41) ---


async def test_a_leader_that_was_absent_and_has_registered_meanwhile_is_not_replaced() -> None:
    """It leads on, as it has read what was elected before it registered."""
    server = empty_server()
    create_topic(server, {0: (1, 2)})
    register(server, 1, session=99)
    view = view_of({1: 0, 2: 0}, {0: (1, 2)})
    controllership = controllership_of(2, await session_with(server), view)
    await controllership.seek(nobody)
    await controllership.lead(Delta())
    view.set_brokers(broker for broker in list(view.brokers.values()) if broker.broker_id == 2)
    view.absent_incarnations = {1: 0}
    server.multi([SetData(znodes.incarnation_path(1), znodes.encode_incarnation(0))], 99)
    controllership.look_again()
    await controllership.lead(Delta())
    assert written_states(server)[0].leader == 1
    view.absent_incarnations = {1: 1}
    controllership.look_again()
    await controllership.lead(Delta())
    assert written_states(server)[0].leader == 2
