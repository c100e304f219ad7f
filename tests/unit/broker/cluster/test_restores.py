"""Trees of ZooKeeper that were restored from an older backup (R43)."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.cluster.invariants import Ledger
from tests.cluster.network import Network
from tests.cluster.simulated_broker import SimulatedBroker
from tests.cluster.simulated_zookeeper import SimulatedZooKeeper, ZooKeeperServer
from tests.cluster.virtual_time import run_in_virtual_time
from tests.unit.broker.cluster.planned_clusters import (
    CONTROLLER_EPOCH,
    UNCLEAN_RETURN,
    Life,
    carry_out,
    one_partition,
    plan,
    planned,
)
from tests.unit.broker.cluster.small_clusters import (
    ENDPOINT,
    create_topic,
    empty_server,
    register,
    session_with,
)

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.controller import ElectionPolicy
from mainstem_broker.cluster.controllership import Controllership
from mainstem_broker.cluster.elections import ElectionType, elect_on_request
from mainstem_broker.cluster.feed_reader import FeedReader
from mainstem_broker.cluster.producer_ids import ProducerIds
from mainstem_broker.cluster.registration import Registration
from mainstem_broker.cluster.restores import (
    EPOCHS_PER_RESTORE,
    IDS_PER_RESTORE,
    beyond,
    doubted,
    is_behind,
    is_doubted,
    is_outdated,
    may_be_restored,
)
from mainstem_broker.cluster.view import ClusterView, Delta
from mainstem_broker.cluster.znodes import NO_LOG, Claim, Restores
from mainstem_broker.cluster.zookeeper import Create, Delete, Operation, ZooKeeperSession
from mainstem_broker.errors import StartupError
from mainstem_broker.log.checkpoints import TreePosition
from mainstem_broker.replica.partition_state import NO_LEADER

KNOWN = TreePosition(1, 50)


@pytest.mark.parametrize(
    ("tree", "known", "behind", "restored"),
    [
        (TreePosition(1, 50), KNOWN, False, False),
        (TreePosition(1, 90), KNOWN, False, False),
        (TreePosition(1, 49), KNOWN, True, True),
        (TreePosition(0, 90), KNOWN, True, True),  # a second time, from a backup before the first one
        (TreePosition(2, 20), KNOWN, False, True),  # another broker has noticed
        (TreePosition(0, 90), None, False, True),
    ],
)
def test_r43_a_tree_is_older_if_it_is_behind_what_was_read_before(
    tree: TreePosition, known: TreePosition | None, behind: bool, restored: bool
) -> None:
    assert is_behind(tree, known) is behind
    assert may_be_restored(tree, [known]) is restored


def test_r43_a_data_directory_with_an_earlier_position_decides_about_the_logs() -> None:
    """It was out of use at the start that noticed the restore: nothing of it was set aside."""
    tree, before, since = TreePosition(1, 6), TreePosition(0, 200), TreePosition(1, 5)
    assert may_be_restored(tree, [since, before])
    assert may_be_restored(tree, [since, None])
    assert not may_be_restored(tree, [since, since])
    assert not may_be_restored(tree, []), "there are no logs"


def test_r43_numbers_after_a_restore_are_above_those_after_any_earlier_one() -> None:
    """Whatever backup each one goes back to: those in between have given numbers that it does not know of."""
    backups, largest = [7], 90
    for restores in range(1, 8):
        starts = [beyond(backup, restores, 100) for backup in backups]
        assert min(starts) > largest
        largest = max(starts) + 90
        backups.append(largest)


def test_r43_numbers_go_on_above_those_of_another_cluster() -> None:
    """As the leader epochs of logs that Apache Kafka wrote."""
    assert beyond(512, 1, 100) == 612


# --- Elections ---

FIRST_EPOCH = EPOCHS_PER_RESTORE
"""After the first restore."""
CLEAN = {1: Life(8), 2: Life(8), 3: Life(8)}
UNCLEAN = ElectionPolicy(unclean=True)


def restored(
    replicas: tuple[int, ...] = (1, 2, 3), live: dict[int, Life] | None = None, *claims: Claim
) -> ClusterView:
    """A tree from a backup in which broker 1 led epoch 4 and 2 was in sync; all have registered since."""
    view = one_partition(CLEAN if live is None else live, replicas, 1, (1, 2)[: len(replicas)])
    view.restores = Restores(1, view.topics["t"].states[0].controller_epoch)
    view.topics["t"].claims[0] = {claim.broker_id: claim for claim in claims}
    return view


def test_r43_a_state_from_a_backup_is_doubted_once_and_then_trusts_nobody() -> None:
    view = restored()
    state = view.topics["t"].states[0]
    assert is_outdated(state, view.restores)
    expected = doubted(state, (1, 2, 3), 1)
    assert (expected.leader, expected.leader_epoch, expected.isr) == (
        NO_LEADER,
        FIRST_EPOCH,
        (1, 2, 3),
    )
    (change,) = plan(view, UNCLEAN)
    assert change.state.controller_epoch == CONTROLLER_EPOCH
    carry_out(view, [change])
    assert is_doubted(view.topics["t"].states[0])
    assert planned(view, UNCLEAN) is None, "who comes first need not have the longest log"


def test_a_state_that_was_written_since_is_not_outdated() -> None:
    view = restored()
    state = view.topics["t"].states[0]
    assert not is_outdated(state, Restores(1, state.controller_epoch - 1))
    assert not is_outdated(doubted(state, (1, 2, 3), 1), view.restores)


A_LOG, AN_OLDER_ONE = (9, 50), (4, 60)
EMPTY = (-1, 0)
NONE = (NO_LOG, NO_LOG)


@pytest.mark.parametrize(
    ("claims", "leader"),
    [
        ({1: AN_OLDER_ONE, 2: A_LOG, 3: AN_OLDER_ONE}, 2),
        ({1: NONE, 2: AN_OLDER_ONE, 3: A_LOG}, 3),  # not in sync at the backup
        ({1: A_LOG, 2: A_LOG}, None),  # broker 3 may have a longer one
        ({1: EMPTY, 2: EMPTY, 3: EMPTY}, 1),  # there were never records
        ({1: (-1, 50), 2: NONE, 3: EMPTY}, 1),  # there were, and retention has deleted them
        ({1: NONE, 2: NONE, 3: NONE}, None),  # moved to other brokers since, or deleted
        ({1: NONE, 2: EMPTY, 3: NONE}, None),  # created by a broker that did not know of the restore
    ],
)
def test_r43_after_a_restore_all_replicas_claim_and_the_longest_log_leads(
    claims: dict[int, tuple[int, int]], leader: int | None
) -> None:
    view = restored((1, 2, 3), None, *(Claim(broker, 8, *length) for broker, length in claims.items()))
    carry_out(view, plan(view))
    state = planned(view)
    if leader is None:
        assert state is None
        return
    assert state is not None
    assert (state.leader, state.isr, state.recovering) == (leader, (leader,), False)
    assert state.leader_epoch == FIRST_EPOCH + 1


def test_r43_the_new_epoch_is_above_those_of_all_logs() -> None:
    """As where nobody noticed an earlier restore."""
    latest = FIRST_EPOCH + 9
    view = restored((1, 2), None, Claim(1, 8, 4, 10), Claim(2, 8, latest, 10))
    carry_out(view, plan(view))
    state = planned(view)
    assert state is not None
    assert (state.leader, state.leader_epoch) == (2, latest + 1)


@pytest.mark.parametrize(("length", "leader"), [(A_LOG, 1), (NONE, None)])
def test_r43_a_single_replica_leads_if_it_has_a_log(length: tuple[int, int], leader: int | None) -> None:
    view = restored((1,), {1: UNCLEAN_RETURN}, Claim(1, UNCLEAN_RETURN.incarnation, *length))
    carry_out(view, plan(view))
    state = planned(view)
    assert (None if state is None else state.leader) == leader


def test_r43_an_unclean_election_by_request_takes_the_longest_log_that_is_there() -> None:
    view = restored((1, 2, 3), {1: Life(8), 2: Life(8)}, Claim(1, 8, *NONE), Claim(2, 8, *A_LOG))
    carry_out(view, plan(view))
    topic = view.topics["t"]
    state = elect_on_request(
        ElectionType.UNCLEAN, topic.states[0], (1, 2, 3), view.brokers, UNCLEAN, topic.claims[0]
    )
    assert (state.leader, state.recovering) == (2, True)


# --- The note in ZooKeeper ---


async def registered(zookeeper: ZooKeeperSession, broker_id: int, known_restores: int | None) -> Registration:
    async def vacate(_session: int) -> list[Operation]:
        return []

    registration = Registration(
        zookeeper, znodes.BrokerRegistration(broker_id, (ENDPOINT,), None), 1_000, vacate
    )
    registration.known_restores = known_restores
    await registration.register()
    return registration


def test_r43_the_first_broker_that_notices_a_restore_ends_all_that_is_from_before_it() -> None:
    """Registrations from the backup last until their sessions run out."""

    async def story() -> None:
        server = empty_server()
        ghost = server.open_session()
        register(server, 3, ghost)
        server.multi([Create(znodes.CONTROLLER, znodes.encode_controller(3, 0), ephemeral=True)], ghost)
        running = asyncio.Event()
        running.set()
        sessions = [
            SimulatedZooKeeper(server, random.Random(1), 1.0, lambda _: None, running) for _ in range(3)
        ]
        for session in sessions:
            await session.start(1)
        first = await registered(sessions[0], 1, 4)
        assert first.restores == znodes.Restores(5, 0)
        assert server.children(znodes.BROKER_IDS) == ["1"]
        assert server.get(znodes.CONTROLLER) is None
        epoch = server.get(znodes.CONTROLLER_EPOCH)
        assert epoch is not None
        assert epoch.data == b"1"
        block = server.get(znodes.PRODUCER_ID_BLOCK)
        assert block is not None
        assert znodes.decode_producer_id_block(block.data).start == 5 * IDS_PER_RESTORE

        second = await registered(sessions[1], 2, 4)
        assert second.restores == first.restores, "it is noted once"
        third = await registered(sessions[2], 3, None)
        assert third.restores == first.restores
        assert server.children(znodes.BROKER_IDS) == ["1", "2", "3"]

    run_in_virtual_time(story())


# --- Starts that do not end ---


def test_r43_a_start_that_is_stopped_early_leaves_a_restore_to_be_noticed_by_the_next_one() -> None:
    """It has not set aside yet what was moved to this broker since the backup."""

    async def story() -> None:
        server = empty_server()
        add_entries(server, 9)
        server.multi([Create(znodes.RESTORES, Restores(1, 0).encode())], 0)
        source = random.Random(1)
        broker = SimulatedBroker(1, server, Network(source, 0.0), source, Ledger(server, "t"))
        broker.disks.tree_position = known = TreePosition(0, 7)
        await broker.start(stops_early=True)
        await broker.stop()
        assert broker.disks.tree_position == known
        await broker.start()
        await broker.stop()
        assert broker.disks.tree_position > TreePosition(1, 7)

    run_in_virtual_time(story())


# --- Brokers that were not stopped ---


@pytest.mark.parametrize("loads", [True, False], ids=["a new session", "the same session"])
@pytest.mark.parametrize("is_empty", [True, False], ids=["empty", "older"])
def test_r43_a_broker_that_runs_takes_nothing_from_an_older_tree(loads: bool, is_empty: bool) -> None:
    """What was made since the backup would seem deleted, and its logs would be."""

    async def story() -> None:
        server = empty_server()
        fresh = server.backup()
        add_entries(server, 2)
        older = server.backup()
        create_topic(server, {0: (1,)})
        add_entries(server, 1)
        zookeeper = await session_with(server)
        view = ClusterView()
        controllership = Controllership(zookeeper, 1, view, lambda _: ElectionPolicy())
        reader = FeedReader(zookeeper, view, controllership, lambda _: None)
        await reader.load(Delta())
        assert (reader.last_number, list(view.topics)) == (2, ["t"])

        server.restore(fresh if is_empty else older, 1.0)
        delta = Delta()
        for _ in range(2):
            with pytest.raises(StartupError, match="restart this broker"):
                await (reader.load(delta) if loads else reader.read_feed(delta))
        assert (delta.deleted, list(view.topics)) == ([], ["t"])

    run_in_virtual_time(story())


@pytest.mark.parametrize("is_new", [True, False], ids=["a start", "a running broker"])
def test_a_feed_whose_entries_were_removed_by_hand_is_no_older_tree(is_new: bool) -> None:
    """R43: an entry that somebody has put a child below is not trimmed, and they are asked to remove that."""

    async def story() -> None:
        server = empty_server()
        zookeeper = await session_with(server)
        view = ClusterView()
        controllership = Controllership(zookeeper, 1, view, lambda _: ElectionPolicy())
        add_entries(server, 10)
        reader = FeedReader(zookeeper, view, controllership, lambda _: None)
        if not is_new:
            await reader.load(Delta())
        server.multi([Delete(f"{znodes.CHANGES}/{name}") for name in server.children(znodes.CHANGES)], 0)
        for _ in range(2):
            await reader.load(Delta())
            await reader.read_feed(Delta())
        assert reader.last_number == 9
        add_entries(server, 1)
        await reader.read_feed(Delta())
        assert reader.last_number == 10

    run_in_virtual_time(story())


def add_entries(server: ZooKeeperServer, count: int) -> None:
    for _ in range(count):
        server.multi([Create(znodes.CHANGE_PREFIX, znodes.Change().encode(), sequential=True)], 0)


def test_r43_producer_ids_that_were_taken_before_a_restore_was_noticed_are_not_given() -> None:
    """By a broker that could not notice it, as its disk was replaced."""

    async def story() -> None:
        server = empty_server()
        source = random.Random(1)
        ledger, network = Ledger(server, "t"), Network(source, 0.0)
        one, two = (SimulatedBroker(broker_id, server, network, source, ledger) for broker_id in (1, 2))
        ledger.brokers = {1: one, 2: two}
        add_entries(server, 9)
        two.disks.tree_position = TreePosition(0, 99)
        await one.start()
        await one.spawn(one.member.producer_ids.take())
        await two.start()
        caught_up: bool = await one.spawn(one.member.catch_up(5_000))
        assert caught_up, "it has registered anew"
        later_id: int = await one.spawn(one.member.producer_ids.take())
        assert later_id >= IDS_PER_RESTORE

    run_in_virtual_time(story())


def test_r43_a_block_of_producer_ids_moves_the_end_of_the_feed() -> None:
    """Or a tree from before it could not be told from the present one."""

    async def story() -> None:
        server = empty_server()
        assert await ProducerIds(await session_with(server), 1).take() == 0
        assert len(server.children(znodes.CHANGES)) == 1

    run_in_virtual_time(story())
