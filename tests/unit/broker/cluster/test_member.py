from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from kazoo.client import KazooClient
from structlog.testing import capture_logs
from tests.unit.broker.cluster.members import WAIT_MS, Member, client_of, end_session, joined
from tests.unit.broker.server.peers import run, until

from mainstem_broker.cluster import controllership, znodes
from mainstem_broker.cluster.view import Delta
from mainstem_broker.cluster.zookeeper import Conflict, Create, Operation, ZooKeeperUnavailable
from mainstem_broker.errors import RequestTimedOut, StartupError
from mainstem_broker.replica.state import NO_LEADER

pytestmark = pytest.mark.processes


# --- Joining and leaving (R18) ---


def test_a_broker_registers_is_elected_and_is_gone_when_it_leaves(servers: str, shell: KazooClient) -> None:
    async def test() -> None:
        async with joined(1, servers) as member:
            registration = json.loads(shell.get("/brokers/ids/1")[0])
            assert (registration["host"], registration["port"]) == ("127.0.0.1", 9091)
            assert member.view.brokers[1].epoch == shell.get("/brokers/ids/1")[1].czxid
            assert json.loads(shell.get("/controller")[0])["brokerid"] == 1
            assert shell.get("/controller_epoch")[0] == b"1"
            assert member.is_controller
            assert member.view.controller_id == 1
        assert shell.get_children("/brokers/ids") == []
        assert shell.exists("/controller") is None
        assert set(shell.get_children("/")) >= {
            "admin",
            "brokers",
            "cluster",
            "config",
            "consumers",
            "mainstem",
        }

    run(test())


def test_all_brokers_learn_the_id_that_the_first_one_gave_the_cluster(servers: str) -> None:
    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            assert one.view.cluster_id == two.view.cluster_id
            assert len(one.view.cluster_id) == 22
        async with joined(3, servers) as later:
            assert later.view.cluster_id == one.view.cluster_id

    run(test())


def test_brokers_see_each_other_come_and_go(servers: str) -> None:
    async def test() -> None:
        async with joined(1, servers) as one:
            async with joined(2, servers) as two:
                await one.until(lambda: one.view.brokers.keys() == {1, 2})
                await two.until(lambda: two.view.brokers.keys() == {1, 2})
                assert (two.view.controller_id, two.is_controller) == (1, False)
            await one.until(lambda: one.view.brokers.keys() == {1})

    run(test())


def owned_by_another_session(shell: KazooClient, host: str = "127.0.0.1") -> None:
    endpoint = znodes.Endpoint("PLAINTEXT", "PLAINTEXT", host, 9091)
    data = znodes.BrokerRegistration(1, (endpoint,), None).encode(0)
    shell.create("/brokers/ids/1", data, ephemeral=True, makepath=True)


def test_the_registration_of_an_earlier_life_at_the_same_address_is_taken_over_at_once(
    servers: str, shell: KazooClient
) -> None:
    owned_by_another_session(shell)
    old_epoch = shell.get("/brokers/ids/1")[1].czxid

    async def test() -> None:
        async with joined(1, servers) as member:
            stat = shell.get("/brokers/ids/1")[1]
            assert stat.ephemeralOwner == member.session_id
            assert stat.czxid > old_epoch

    run(test())


def test_a_stale_registration_that_vanishes_meanwhile_does_not_stop_the_start(
    servers: str, shell: KazooClient
) -> None:
    owned_by_another_session(shell)

    async def test() -> None:
        member = Member(1, servers, "127.0.0.1", 4000)
        multi = member._zookeeper.multi

        async def too_late(operations: Sequence[Operation]) -> list[Any]:
            if any(getattr(operation, "path", "") == "/brokers/ids/1" for operation in operations):
                member._zookeeper.multi = multi  # type: ignore[method-assign]  # only once
                shell.delete("/brokers/ids/1")
            return await multi(operations)

        member._zookeeper.multi = too_late  # type: ignore[method-assign]  # stands in between
        try:
            await member.connect()
            await member.load()
            await member.join(stopped_uncleanly=False)
            assert shell.get("/brokers/ids/1")[1].ephemeralOwner == member.session_id
        finally:
            await member.leave()

    run(test())


@pytest.mark.parametrize("is_done", [False, True], ids=["the call is lost", "only its answer is lost"])
@pytest.mark.parametrize("name", ["ensure_paths", "create", "get", "children", "multi"])
def test_a_start_goes_on_when_zookeeper_was_away_for_a_moment(name: str, is_done: bool, servers: str) -> None:
    async def test() -> None:
        member = Member(1, servers, "127.0.0.1", 4000)
        call = getattr(member._zookeeper, name)
        calls = count()

        async def lose_some(*arguments: Any, **more: Any) -> Any:
            is_lost = next(calls) in (0, 2)
            if is_done or not is_lost:
                answer = await call(*arguments, **more)
            if is_lost:
                raise ZooKeeperUnavailable("ZooKeeper gave no answer (ConnectionLoss); ask again.")
            return answer

        setattr(member._zookeeper, name, lose_some)
        try:
            await member.connect()
            await member.load()
            await member.join(stopped_uncleanly=False)
            assert next(calls) > 1
            assert set(member.view.brokers) == {1}
        finally:
            await member.leave()

    run(test())


def test_a_start_ends_with_a_sentence_when_zookeeper_stays_away(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        member = Member(1, servers, "127.0.0.1", 4000)
        monkeypatch.setattr(member, "_connection_timeout_ms", 300)

        async def away(*_arguments: Any) -> Any:
            raise ZooKeeperUnavailable("ZooKeeper gave no answer (ConnectionLoss); ask again.")

        try:
            await member.connect()
            monkeypatch.setattr(member._zookeeper, "get", away)
            with pytest.raises(StartupError, match=r"lost during the start, and not back within 300 ms: see"):
                await member.join(stopped_uncleanly=False)
        finally:
            await member.leave()

    run(test())


def test_a_broker_of_the_same_id_elsewhere_is_outlasted_if_it_goes(servers: str, shell: KazooClient) -> None:
    owned_by_another_session(shell, "10.0.0.9")

    async def test() -> None:
        async def go() -> None:
            await asyncio.sleep(0.2)
            shell.delete("/brokers/ids/1")

        going = asyncio.create_task(go())
        async with joined(1, servers) as member:
            assert shell.get("/brokers/ids/1")[1].ephemeralOwner == member.session_id
        await going

    run(test())


def test_a_broker_of_the_same_id_elsewhere_that_stays_refuses_the_start_with_its_address(
    servers: str, shell: KazooClient
) -> None:
    owned_by_another_session(shell, "10.0.0.9")

    async def test() -> None:
        with pytest.raises(
            StartupError, match=r"Broker id 1 is already registered from 10\.0\.0\.9:9091: give this broker"
        ):
            async with joined(1, servers, session_timeout_ms=1000):
                raise AssertionError("it must not join")

    run(test())
    assert json.loads(shell.get("/brokers/ids/1")[0])["host"] == "10.0.0.9"


# --- Topics ---


def test_a_topic_is_seen_by_all_from_its_creation_to_its_end(servers: str, shell: KazooClient) -> None:
    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            topic_id = await two.create("t", [1, 2], {"retention.ms": "5"})
            for member in (one, two):
                await member.until(lambda member=member: member.knows("t", topic_id))
                assert {index: state.leader for index, state in member.states_of("t").items()} == {0: 1, 1: 2}
                assert member.view.topics["t"].config == {"retention.ms": "5"}
                assert member.told("t") == {0, 1}

            await one.administration.grow_topic("t", {2: (2,)})
            for member in (one, two):
                await member.until(lambda member=member: len(member.states_of("t")) == 3)
                assert member.told("t") == {0, 1, 2}

            await two.administration.change_config("topics/t", lambda _: {"segment.ms": "7"})
            for member in (one, two):
                await member.until(
                    lambda member=member: member.view.topics["t"].config == {"segment.ms": "7"}
                )
                assert any("topics/t" in delta.configs for delta in member.news)

            await two.administration.delete_topic("t", topic_id)
            for member in (one, two):
                await member.until(lambda member=member: "t" not in member.view.topics)
                assert ("t", topic_id) in [item for delta in member.news for item in delta.deleted]
                assert member.view.pending_deletions == set()
            assert shell.exists("/brokers/topics/t") is None
            assert shell.exists("/config/topics/t") is None
            assert shell.exists("/admin/delete_topics/t") is None

    run(test())


def test_settings_of_brokers_are_heard_of_by_all(servers: str) -> None:
    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            await one.administration.change_config("brokers/<default>", lambda _: {"log.retention.ms": "5"})
            await two.until(lambda: two.view.dynamic_broker_config(2) == ({}, {"log.retention.ms": "5"}))
            assert any("brokers/<default>" in delta.configs for delta in two.news)

    run(test())


def test_elections_that_settings_for_all_brokers_allow_are_held_at_once(servers: str) -> None:
    async def test() -> None:
        async with joined(1, servers) as one:
            async with joined(2, servers) as two:
                await one.until(lambda: 2 in one.view.brokers)
                await one.create_replicated("t", [(2, 1)])
                await two.until(lambda: two.knows("t"))
                alone = replace(two.states_of("t")[0], isr=(2,), partition_epoch=1)
                assert await two.states.change_state("t", 0, alone, {}) == alone
            await one.until(lambda: one.states_of("t")[0].leader == NO_LEADER)
            allowed = {"unclean.leader.election.enable": "true"}
            await one.administration.change_config("brokers/<default>", lambda _: allowed)
            await one.until(lambda: one.states_of("t")[0].leader == 1)
            assert one.states_of("t")[0].recovering

    run(test())


def test_elections_go_by_settings_for_all_brokers_that_were_read_in_the_same_pass(servers: str) -> None:
    """Else records are lost by an election that was forbidden before it was held."""

    async def test() -> None:
        async with joined(1, servers) as one:
            change = one.administration.change_config
            await change("brokers/<default>", lambda _: {"unclean.leader.election.enable": "true"})
            await one.until(lambda: one.unclean)
            async with joined(2, servers) as two:
                await one.until(lambda: 2 in one.view.brokers)
                await one.create_replicated("t", [(2, 1)])
                await two.until(lambda: two.knows("t"))
                alone = replace(two.states_of("t")[0], isr=(2,), partition_epoch=1)
                assert await two.states.change_state("t", 0, alone, {}) == alone
                await one.until(lambda: one.states_of("t")[0].isr == (2,))
                await one.hold_back()
                await change("brokers/<default>", lambda _: {"unclean.leader.election.enable": "false"})
            one.let_go()
            await one.until(lambda: 2 not in one.view.brokers)
            assert one.states_of("t")[0].leader == NO_LEADER

    run(test())


def test_a_topic_of_many_partitions_is_written_in_several_steps(servers: str) -> None:
    count = 2 * znodes.STATES_PER_MULTI + 10

    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            topic_id = await two.create("t", [1, 2] * (count // 2))
            await two.until(lambda: two.knows("t"))
            assert two.told("t") == set(range(count))
            await one.administration.delete_topic("t", topic_id)
            await two.until(lambda: "t" not in two.view.topics)

    run(test())


def test_the_partitions_of_a_dead_broker_lose_their_leader_and_get_it_back(servers: str) -> None:
    async def test() -> None:
        async with joined(1, servers) as one:
            async with joined(2, servers):
                await one.create("t", [2])
                await one.until(lambda: one.knows("t"))
            await one.until(lambda: one.states_of("t")[0].leader == NO_LEADER)
            assert one.states_of("t")[0].isr == (2,)
            async with joined(2, servers) as two:
                await two.until(lambda: two.knows("t"))
                assert (two.states_of("t")[0].leader, two.states_of("t")[0].leader_epoch) == (2, 2)

    run(test())


def test_a_lone_broker_that_restarts_leads_on_at_once_under_a_new_epoch(
    servers: str, shell: KazooClient
) -> None:
    async def test() -> None:
        async with joined(1, servers) as member:
            await member.create("t", [1])
            await member.until(lambda: member.knows("t"))
        async with joined(1, servers) as member:
            await member.until(lambda: member.states_of("t")[0].leader_epoch == 1)
            await member.catch_up(8000)
            assert member.states_of("t")[0].leader == 1
            stat = shell.get("/brokers/topics/t/partitions/0/state")[1]
            assert stat.version == 1, "one write: it was never without a leader"

    run(test())


def test_wishes_made_while_nobody_leads_are_carried_out_by_the_next_controller(servers: str) -> None:
    async def test() -> None:
        async with joined(2, servers) as two:
            async with joined(1, servers) as one:
                gone = await one.create("gone", [2])
                await one.until(lambda: one.knows("gone"))
                await two.hold_back()
                await one.create("t", [2])
                await one.administration.delete_topic("gone", gone)
            two.let_go()
            await two.until(lambda: two.knows("t") and "gone" not in two.view.topics)

    run(test())


# --- Following the feed ---


def test_a_broker_that_lags_takes_nothing_of_an_earlier_topic_for_the_later_one(servers: str) -> None:
    """Both begin at version 0 of their states: by name alone, the first would win for ever."""

    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            await two.until(lambda: two.view.brokers.keys() == {1, 2})
            await two.hold_back()
            for leader in (1, 2):
                topic_id = await one.create("t", [leader])
                await one.until(lambda: one.knows("t", topic_id))  # noqa: B023  # awaited within the turn
                if leader == 1:
                    await one.administration.delete_topic("t", topic_id)
                    await one.until(lambda: "t" not in one.view.topics)
            two.let_go()
            await two.until(lambda: two.knows("t", topic_id))
            await two.catch_up(8000)
            assert two.states_of("t") == one.states_of("t")
            assert two.states_of("t")[0].leader == 2
            assert two.view.pending_deletions == set()

    run(test())


def numbered(number: int, _: Mapping[str, str]) -> Mapping[str, str]:
    return {"x": str(number)}


def test_a_broker_for_which_the_feed_has_a_gap_loads_everything(
    servers: str, shell: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllership, "FEED_ENTRIES_KEPT", 3)

    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            gone = await one.create("gone", [1])
            await two.until(lambda: two.knows("gone"))
            await two.hold_back()
            await one.administration.delete_topic("gone", gone)
            await one.create("t", [2], {"retention.ms": "5"})
            for number in range(12):
                await one.administration.change_config("brokers/2", partial(numbered, number))
                await one.catch_up(8000)
            numbers = [znodes.change_number(name) for name in shell.get_children("/mainstem/changes")]
            assert len(numbers) <= 2 * 3 + 2, "the controller trims the feed"
            assert min(numbers) > two._last_change + 1
            two.let_go()
            await two.until(lambda: two.knows("t"))
            assert "gone" not in two.view.topics
            assert ("gone", gone) in [item for delta in two.news for item in delta.deleted]
            assert two.view.topics["t"].config == {"retention.ms": "5"}
            assert two.view.broker_configs["2"] == {"x": "11"}
            assert two.told("t") == {0}

    run(test())


def test_a_state_that_a_move_ended_with_is_read_with_the_assignment(servers: str, shell: KazooClient) -> None:
    """Where everything is read, the move may have ended after topics were, and before states are."""

    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            await one.create_replicated("t", [(1, 2)])
            await two.until(lambda: two.knows("t"))
            await two.hold_back()
            known = two.view.topics["t"].assignment
            shell.set(znodes.topic_path("t"), replace(known, replicas={0: (1,)}).encode())
            before = two.states_of("t")[0]
            moved = replace(before, leader_epoch=1, isr=(1,), assignment_version=known.version + 1)
            shell.set(znodes.state_path("t", 0), znodes.encode_state(moved))
            delta = Delta()
            await two._read_states([("t", 0)], delta)
            assert two.view.topics["t"].assignment.replicas == {0: (1,)}
            assert two.states_of("t")[0].isr == (1,)
            assert delta.partitions == {("t", 0)}

    run(test())


def test_states_of_a_topic_that_was_created_again_meanwhile_are_not_the_new_ones(servers: str) -> None:
    async def test() -> None:
        async with joined(1, servers) as one:
            await one.create("t", [1])
            await one.until(lambda: one.knows("t"))
            await one.hold_back()
            before = one.view.topics["t"]
            later = znodes.encode_state(replace(before.states[0], assignment_version=1))
            client_of(one).set(znodes.state_path("t", 0), later)
            other = replace(before.assignment, topic_id=UUID(int=9))

            async def read_another(names: Iterable[str], delta: Delta) -> set[str]:
                one.view.set_topic(other, {})
                return set(names)

            one._read_topics = read_another  # type: ignore[method-assign]  # stands in between
            await one._read_states([("t", 0)], Delta())
            assert one.view.topics["t"].topic_id == UUID(int=9)
            assert one.states_of("t") == {}

    run(test())


def test_states_are_taken_though_the_assignment_was_written_anew(servers: str, shell: KazooClient) -> None:
    """As by who restores ZooKeeper's tree node by node: no assignment will ever have that version."""

    async def test() -> None:
        async with joined(1, servers) as one:
            await one.create("t", [1])
            await one.until(lambda: one.knows("t"))
            await one.hold_back()
            state = replace(one.states_of("t")[0], assignment_version=7)
            shell.set(znodes.state_path("t", 0), znodes.encode_state(state))
            with capture_logs() as logs:
                await one._read_states([("t", 0)], Delta())
            assert one.states_of("t")[0].assignment_version == 0
            assert [entry["event"] for entry in logs] == [
                "assignment older than its states: it was written anew"
            ]

    run(test())


def test_states_wait_for_an_assignment_that_cannot_be_read(servers: str, shell: KazooClient) -> None:
    """Whether their replicas are still the known ones is not known."""

    async def test() -> None:
        async with joined(1, servers) as one:
            await one.create("t", [1])
            await one.until(lambda: one.knows("t"))
            await one.hold_back()
            before = one.states_of("t")[0]
            readable = one.view.topics["t"].assignment.encode()
            shell.set(znodes.topic_path("t"), b"no assignment")
            moved = replace(before, leader_epoch=1, assignment_version=2)
            shell.set(znodes.state_path("t", 0), znodes.encode_state(moved))
            await one._read_states([("t", 0)], Delta())
            assert one.states_of("t")[0] == before
            shell.set(znodes.topic_path("t"), readable)
            await one._read_states([("t", 0)], Delta())
            assert one.states_of("t")[0].leader_epoch == 1

    run(test())


def test_all_hear_of_a_state_that_was_written_by_hand_when_one_announces_it(
    servers: str, shell: KazooClient
) -> None:
    """The leader whose proposals it refuses does, and tells nothing of a topic that it does not know."""

    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            await one.create_replicated("t", [(1, 2)])
            await one.until(lambda: one.knows("t"))
            later = replace(one.states_of("t")[0], leader=2, leader_epoch=5)
            shell.set(znodes.state_path("t", 0), znodes.encode_state(later))
            held = await one.states.read_state("t", 0)
            assert held is not None
            await one.states.announce("unheard-of", 0, held)
            await one.states.announce("t", 0, held)
            for member in (one, two):
                await member.until(lambda member=member: member.states_of("t")[0] == held)

    run(test())


def test_news_that_a_failing_pass_had_heard_are_told_by_the_next(servers: str) -> None:
    """Or the broker would lead a partition whose replica it never opened."""

    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            follow = two._read_feed
            failures: list[int] = []

            async def failing(delta: Delta) -> None:
                await follow(delta)
                if delta.partitions and not failures:
                    failures.append(1)
                    raise ZooKeeperUnavailable("The connection broke just now.")

            two._read_feed = failing  # type: ignore[method-assign]  # stands in between
            topic_id = await one.create("t", [2])
            await two.until(lambda: bool(failures) and two.knows("t") and two.told("t") == {0})
            await one.administration.delete_topic("t", topic_id)
            await two.until(lambda: any(delta.deleted for delta in two.news))

    run(test())


def test_news_are_told_once(servers: str) -> None:
    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            topic_id = await one.create("t", [2])
            await two.until(lambda: two.told("t"))
            await one.administration.delete_topic("t", topic_id)
            await two.until(lambda: "t" not in two.view.topics)
            await one.create("u", [2])
            await two.until(lambda: two.told("u"))
            assert [delta.partitions for delta in two.news if delta.partitions] == [{("t", 0)}, {("u", 0)}]
            assert [delta.deleted for delta in two.news if delta.deleted] == [[("t", topic_id)]]

    run(test())


@pytest.mark.parametrize("failure", [RuntimeError("a mistake of ours"), ZooKeeperUnavailable("no answer")])
def test_after_any_failure_a_pass_looks_at_everything_again(servers: str, failure: Exception) -> None:
    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            read = two._read_brokers
            failures: list[int] = []

            async def failing(delta: Delta) -> None:
                two._brokers_stale = False  # as the real one does first
                if not failures:
                    failures.append(1)
                    raise failure
                await read(delta)

            two._read_brokers = failing  # type: ignore[method-assign]  # stands in between
            async with joined(3, servers):
                await two.until(lambda: two.view.brokers.keys() == {1, 2, 3})
            assert failures
            assert one.is_controller

    with capture_logs():
        run(test())


def test_a_view_catches_up_with_what_was_written_before_the_call(servers: str) -> None:
    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            for number in range(10):
                await one.create(f"t{number}", [1])
                await two.catch_up(8000)
                assert f"t{number}" in two.view.topics

    run(test())


def test_to_catch_up_ends_with_the_time_when_nothing_answers(servers: str) -> None:
    async def test() -> None:
        async with joined(1, servers) as member:
            await member.hold_back()
            await member.catch_up(20)
            with pytest.raises(RequestTimedOut, match="has not carried this out yet"):
                await member.wait_until(lambda: False, 20)

    run(test())


def test_nodes_that_people_wrote_wrongly_are_left_out_and_told(servers: str, shell: KazooClient) -> None:
    async def test() -> None:
        async with joined(1, servers) as one:
            await one.create("t", [1])
            await one.until(lambda: one.knows("t"))
        for path, data in {
            "/brokers/topics/bad": b"{",
            "/brokers/topics/old": b'{"version":1,"partitions":{"0":[1]}}',
            "/brokers/ids/abc": b"{}",
            "/brokers/ids/77": b"[]",
            "/config/brokers/1": b"\xff",
            "/config/topics/t": b"[]",
        }.items():
            if shell.exists(path):
                shell.set(path, data)
            else:
                shell.create(path, data)
        with capture_logs() as lines:
            async with joined(1, servers) as one:
                await one.until(lambda: one.knows("t"))
                assert list(one.view.topics) == ["t"]
                assert list(one.view.brokers) == [1]
                assert one.view.topics["t"].config == {}
        assert {line["event"] for line in lines} >= {"znode ignored"}

    run(test())


# --- The controller ---


def test_there_is_one_controller_and_the_next_has_the_next_epoch(servers: str, shell: KazooClient) -> None:
    async def test() -> None:
        async with joined(2, servers) as two:
            async with joined(1, servers) as one:
                assert [member.is_controller for member in (one, two)] == [False, True]
                await two.hold_back()
                shell.delete("/controller")
                await one.until(lambda: one.is_controller)
                assert shell.get("/controller_epoch")[0] == b"2"
                two.let_go()
                await two.until(lambda: not two.is_controller and two.view.controller_id == 1)
            await two.until(lambda: two.is_controller)
            assert shell.get("/controller_epoch")[0] == b"3"

    run(test())


def test_a_controller_that_was_replaced_without_knowing_writes_nothing(
    servers: str, shell: KazooClient
) -> None:
    """Fencing: every write checks the version of /controller_epoch."""

    async def test() -> None:
        async with joined(1, servers) as one:
            await one.hold_back()
            shell.delete("/controller")
            async with joined(2, servers) as two:
                assert two.is_controller
                assert one.is_controller, "it has not heard of it"
                with pytest.raises(Conflict, match="Check /controller_epoch"):
                    await one.controllership.write([Create("/written", b"")])
                assert shell.exists("/written") is None
                one.let_go()
                await one.until(lambda: not one.is_controller)
                assert two.is_controller

    run(test())


def test_a_controller_elected_by_a_write_whose_answer_was_lost_leads(
    servers: str, shell: KazooClient
) -> None:
    async def test() -> None:
        async with joined(1, servers) as one:
            multi = one._zookeeper.multi
            lost: list[int] = []

            async def losing(operations: Sequence[Operation]) -> list[Any]:
                results = await multi(operations)
                if (
                    any(getattr(operation, "path", "") == "/controller" for operation in operations)
                    and not lost
                ):
                    lost.append(1)
                    raise ZooKeeperUnavailable("The answer was lost.")
                return results

            one._zookeeper.multi = losing  # type: ignore[method-assign]  # stands in between
            one.controllership.is_held = False
            shell.delete("/controller")
            await one.until(lambda: bool(lost) and one.is_controller)
            assert shell.get("/controller_epoch")[0] == b"2"
            await one.create("t", [1])
            await one.until(lambda: one.knows("t"))
            assert one.states_of("t")[0].controller_epoch == 2

    run(test())


def test_states_that_another_wrote_first_are_read_and_planned_anew(servers: str, shell: KazooClient) -> None:
    async def test() -> None:
        async with joined(1, servers) as one:
            await one.create("t", [1])
            await one.until(lambda: one.knows("t"))
            async with joined(2, servers):
                await one.create("u", [2])
                await one.until(lambda: one.knows("u"))
                path = "/brokers/topics/u/partitions/0/state"
                shell.set(path, shell.get(path)[0])  # its version is now another than the controller knows
            await one.until(lambda: one.states_of("u")[0].leader == NO_LEADER)
            assert one.states_of("u")[0].partition_epoch == 2

    run(test())


def test_a_deletion_goes_on_where_a_controller_died(servers: str, shell: KazooClient) -> None:
    """With the partitions' nodes gone and the topic's own still there."""

    async def test() -> None:
        async with joined(2, servers) as two:
            async with joined(1, servers) as one:
                topic_id = await one.create("t", [1, 1])
                await two.until(lambda: two.knows("t"))
                await two.hold_back()
                await one.administration.delete_topic("t", topic_id)
                shell.delete("/brokers/topics/t/partitions/1", recursive=True)
            two.let_go()
            await two.until(lambda: "t" not in two.view.topics)
            assert shell.exists("/brokers/topics/t") is None
            assert shell.exists("/admin/delete_topics/t") is None
            assert await two.administration.deleted_topics() == {topic_id: "t"}

    run(test())


# --- Lost sessions ---


def registered(shell: KazooClient, member: Member) -> bool:
    stat = shell.exists(f"/brokers/ids/{member.broker_id}")
    return stat is not None and stat.ephemeralOwner == member.session_id != 0


def test_a_broker_that_lost_its_session_registers_anew_and_knows_what_it_missed(
    servers: str, shell: KazooClient
) -> None:
    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            topic_id = await one.create("t", [1, 2])
            await two.until(lambda: two.knows("t"))
            old_session, old_epoch = two.session_id, two.view.brokers[2].epoch
            await end_session(two, servers)
            await one.create("u", [1])
            await until(lambda: registered(shell, two))
            assert two.session_id != old_session
            await two.until(lambda: two.knows("t", topic_id) and two.knows("u"))
            await one.until(lambda: 2 in one.view.brokers and one.view.brokers[2].epoch > old_epoch)
            await one.until(
                lambda: one.states_of("t")[1].leader == 2 and one.states_of("t")[1].leader_epoch >= 1
            )

    run(test())


def test_a_controller_that_lost_its_session_leads_no_more_and_may_be_elected_again(
    servers: str, shell: KazooClient
) -> None:
    async def test() -> None:
        async with joined(1, servers) as one:
            await end_session(one, servers)
            await until(lambda: registered(shell, one) and one.is_controller)
            assert shell.get("/controller_epoch")[0] == b"2"
            await one.create("t", [1])
            await one.until(lambda: one.knows("t"))
            assert one.states_of("t")[0].controller_epoch == 2

    run(test())


def test_a_session_lost_just_after_the_registration_is_not_taken_for_registered(
    servers: str, shell: KazooClient
) -> None:
    """The news of the loss comes before the write's answer is looked at."""

    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            multi = two._zookeeper.multi
            lost: list[int] = []

            async def losing(operations: Sequence[Operation]) -> list[Any]:
                results = await multi(operations)
                if (
                    any(getattr(operation, "path", "") == "/brokers/ids/2" for operation in operations)
                    and not lost
                ):
                    lost.append(two.session_id)
                    await end_session(two, servers)
                    await until(lambda: two.session_id not in (0, lost[0]))
                return results

            two._zookeeper.multi = losing  # type: ignore[method-assign]  # stands in between
            await end_session(two, servers)
            await until(lambda: bool(lost) and two.session_id not in (0, lost[0]) and registered(shell, two))
            await one.until(lambda: 2 in one.view.brokers)

    run(test())


def test_wishes_of_a_lost_session_fail_with_an_error_that_clients_retry(servers: str) -> None:
    async def test() -> None:
        async with joined(1, servers) as one:
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: one.create("t", [1]),
                lambda: one.administration.change_config("brokers/1", lambda _: {}),
                one.administration.deleted_topics,
            ]
            client_of(one).stop()
            for call in calls:
                with pytest.raises(ZooKeeperUnavailable):
                    await call()

    run(test())


def test_to_leave_before_joining_and_to_leave_twice_are_no_errors(servers: str) -> None:
    async def test() -> None:
        member = Member(1, servers, "127.0.0.1", 4000)
        await member.leave()
        other = Member(1, servers, "127.0.0.1", 4000)
        await other.connect()
        await other.leave()
        await other.leave()

    run(test())


# --- Lives, and stopping ---


def test_each_registration_begins_a_new_life_and_an_unclean_stop_is_noted(servers: str) -> None:
    """KIP-903: what a life after an unclean stop says of its logs is not trusted."""

    async def test() -> None:
        lives = []
        for stopped_uncleanly in (True, False, True, False):
            async with joined(1, servers, stopped_uncleanly=stopped_uncleanly) as one:
                me = one.view.brokers[1]
                lives.append((me.incarnation, me.last_unclean))
                assert one.office.is_held_by(me.incarnation)
            assert not one.office.is_held_by(me.incarnation), "it has left"
        assert lives == [(0, 0), (1, 0), (2, 2), (3, 2)]

    run(test())


def test_a_broker_that_retires_gives_its_leaderships_away_before_it_goes(servers: str) -> None:
    """R20: controlled shutdown."""

    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            await two.until(lambda: two.view.brokers.keys() == {1, 2})
            await one.until(lambda: one.view.brokers.keys() == {1, 2})
            await one.create_replicated("t", [(2, 1), (1, 2), (2,)])
            await two.until(lambda: two.knows("t"))
            retiring = asyncio.ensure_future(two.retire(WAIT_MS))
            await two.until(lambda: two.view.brokers[2].leaving)
            # What its replicas do then: a leader hands over by itself.
            await two.until(lambda: two.states_of("t")[1].isr == (1,))
            given = replace(two.states_of("t")[0], leader=1, leader_epoch=1, partition_epoch=1)
            assert await two.states.change_state("t", 0, given, {}) == given
            await retiring
            states = two.states_of("t")
            assert {index: (state.leader, state.isr) for index, state in states.items()} == {
                0: (1, (1,)),
                1: (1, (1,)),
                2: (2, (2,)),
            }
            assert [states[index].leader_epoch for index in range(3)] == [1, 0, 0]
            assert two.states.lives().keys() == {1}

    run(test())


def test_a_broker_that_was_taken_for_dead_registers_anew_in_a_new_life(
    servers: str, shell: KazooClient
) -> None:
    async def test() -> None:
        async with joined(1, servers) as one, joined(2, servers) as two:
            await one.until(lambda: 2 in one.view.brokers)
            await one.create("t", [2])
            await one.until(lambda: one.knows("t"))
            await one.controllership.fence(2, 0)
            await one.until(lambda: 2 in one.view.brokers and one.view.brokers[2].incarnation == 1)
            await until(lambda: two.office.is_held_by(1) and two.office.is_open())
            assert not two.office.is_held_by(0)
            await one.until(lambda: one.states_of("t")[0].incarnations == {2: 1})
            assert registered(shell, two)

    run(test())


def test_quotas_and_settings_of_groups_are_heard_of_and_found_at_the_start(servers: str) -> None:
    entities = ("users/alice", "users/bob/clients/app", "clients/<default>", "groups/g")
    wanted = {entity: {"a": str(number)} for number, entity in enumerate(entities)}

    def take(config: Mapping[str, str], _: Mapping[str, str]) -> Mapping[str, str]:
        return config

    async def test() -> None:
        async with joined(1, servers) as one:
            for entity, config in wanted.items():
                await one.administration.change_config(entity, partial(take, config))
            await one.until(lambda: one.view.entity_configs == wanted)
            assert set(entities) <= {entity for delta in one.news for entity in delta.configs}
            async with joined(2, servers) as two:
                assert two.view.entity_configs == wanted, "they were there before it came"
                await one.administration.change_config("users/alice", lambda _: {})
                await two.until(lambda: "users/alice" not in two.view.entity_configs)

    run(test())
