from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest
from kazoo.client import KazooClient
from structlog.testing import capture_logs
from tests.unit.broker.cluster.members import Member, client_of, joined

from mainstem_broker.cluster import controllership, znodes
from mainstem_broker.cluster.view import Delta
from mainstem_broker.cluster.zookeeper import ZooKeeperUnavailable
from mainstem_broker.errors import RequestTimedOut

pytestmark = pytest.mark.processes


async def test_a_broker_that_lags_takes_nothing_of_an_earlier_topic_for_the_later_one(servers: str) -> None:
    """Both begin at version 0 of their states: by name alone, the first would win for ever."""

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


def numbered(number: int, _: Mapping[str, str]) -> Mapping[str, str]:
    return {"x": str(number)}


async def test_a_broker_for_which_the_feed_has_a_gap_loads_everything(
    servers: str, shell: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllership, "FEED_ENTRIES_KEPT", 3)

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
        assert min(numbers) > two._reader._last_number + 1
        two.let_go()
        await two.until(lambda: two.knows("t"))
        assert "gone" not in two.view.topics
        assert ("gone", gone) in [item for delta in two.news for item in delta.deleted]
        assert two.view.topics["t"].config == {"retention.ms": "5"}
        assert two.view.broker_configs["2"] == {"x": "11"}
        assert two.told("t") == {0}


async def test_a_state_that_a_move_ended_with_is_read_with_the_assignment(
    servers: str, shell: KazooClient
) -> None:
    """Where everything is read, the move may have ended after topics were, and before states are."""

    async with joined(1, servers) as one, joined(2, servers) as two:
        await one.create_replicated("t", [(1, 2)])
        await two.until(lambda: two.knows("t"))
        await two.hold_back()
        current = two.view.topics["t"].assignment
        shell.set(znodes.topic_path("t"), replace(current, replicas={0: (1,)}).encode())
        before = two.states_of("t")[0]
        moved = replace(before, leader_epoch=1, isr=(1,), assignment_version=current.version + 1)
        shell.set(znodes.state_path("t", 0), znodes.encode_state(moved))
        delta = Delta()
        await two._reader._read_states([("t", 0)], delta)
        assert two.view.topics["t"].assignment.replicas == {0: (1,)}
        assert two.states_of("t")[0].isr == (1,)
        assert delta.partitions == {("t", 0)}


async def test_states_of_a_topic_that_was_created_again_meanwhile_are_not_the_new_ones(one: Member) -> None:
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

    one._reader.read_topics = read_another  # type: ignore[method-assign]  # stands in between
    await one._reader._read_states([("t", 0)], Delta())
    assert one.view.topics["t"].topic_id == UUID(int=9)
    assert one.states_of("t") == {}


async def test_states_are_taken_though_the_assignment_was_written_anew(
    one: Member, shell: KazooClient
) -> None:
    """As by who restores ZooKeeper's tree node by node: no assignment will ever have that version."""

    await one.create("t", [1])
    await one.until(lambda: one.knows("t"))
    await one.hold_back()
    state = replace(one.states_of("t")[0], assignment_version=7)
    shell.set(znodes.state_path("t", 0), znodes.encode_state(state))
    with capture_logs() as logs:
        await one._reader._read_states([("t", 0)], Delta())
    assert one.states_of("t")[0].assignment_version == 0
    assert [entry["event"] for entry in logs] == ["assignment older than its states: it was replaced"]


async def test_states_wait_for_an_assignment_that_cannot_be_read(one: Member, shell: KazooClient) -> None:
    """Whether their replicas are still the known ones is not known."""

    await one.create("t", [1])
    await one.until(lambda: one.knows("t"))
    await one.hold_back()
    before = one.states_of("t")[0]
    readable = one.view.topics["t"].assignment.encode()
    shell.set(znodes.topic_path("t"), b"no assignment")
    moved = replace(before, leader_epoch=1, assignment_version=2)
    shell.set(znodes.state_path("t", 0), znodes.encode_state(moved))
    await one._reader._read_states([("t", 0)], Delta())
    assert one.states_of("t")[0] == before
    shell.set(znodes.topic_path("t"), readable)
    await one._reader._read_states([("t", 0)], Delta())
    assert one.states_of("t")[0].leader_epoch == 1


async def test_all_hear_of_a_state_that_was_written_by_hand_when_one_announces_it(
    servers: str, shell: KazooClient
) -> None:
    """The leader whose proposals it refuses does, and tells nothing of a topic that it does not know."""

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
            await member.until(partial(lambda of: of.states_of("t")[0] == held, member))


async def test_news_that_a_failing_pass_had_heard_are_reported_by_the_next(servers: str) -> None:
    """Or the broker would lead a partition whose replica it never opened."""

    async with joined(1, servers) as one, joined(2, servers) as two:
        follow = two._reader.read_feed
        failures: list[int] = []

        async def failing(delta: Delta) -> None:
            await follow(delta)
            if delta.partitions and not failures:
                failures.append(1)
                raise ZooKeeperUnavailable("The connection broke just now.")

        two._reader.read_feed = failing  # type: ignore[method-assign]  # stands in between
        topic_id = await one.create("t", [2])
        await two.until(lambda: bool(failures) and two.knows("t") and two.told("t") == {0})
        await one.administration.delete_topic("t", topic_id)
        await two.until(lambda: any(delta.deleted for delta in two.news))


async def test_news_are_reported_once(servers: str) -> None:
    async with joined(1, servers) as one, joined(2, servers) as two:
        topic_id = await one.create("t", [2])
        await two.until(lambda: two.told("t"))
        await one.administration.delete_topic("t", topic_id)
        await two.until(lambda: "t" not in two.view.topics)
        await one.create("u", [2])
        await two.until(lambda: two.told("u"))
        assert [delta.partitions for delta in two.news if delta.partitions] == [{("t", 0)}, {("u", 0)}]
        assert [delta.deleted for delta in two.news if delta.deleted] == [[("t", topic_id)]]


@pytest.mark.parametrize("failure", [RuntimeError("a mistake of ours"), ZooKeeperUnavailable("no answer")])
async def test_after_any_failure_a_pass_looks_at_everything_again(servers: str, failure: Exception) -> None:
    with capture_logs():
        async with joined(1, servers) as one, joined(2, servers) as two:
            read = two._reader.read_brokers
            failures: list[int] = []

            async def failing(delta: Delta) -> None:
                if not failures:
                    failures.append(1)
                    raise failure
                await read(delta)

            two._reader.read_brokers = failing  # type: ignore[method-assign]  # stands in between
            async with joined(3, servers):
                await two.until(lambda: two.view.brokers.keys() == {1, 2, 3})
            assert failures
            assert one.is_controller


async def test_a_view_catches_up_with_what_was_written_before_the_call(servers: str) -> None:
    async with joined(1, servers) as one, joined(2, servers) as two:
        for number in range(10):
            await one.create(f"t{number}", [1])
            await two.catch_up(8000)
            assert f"t{number}" in two.view.topics


async def test_to_catch_up_ends_with_the_time_when_nothing_answers(one: Member) -> None:
    await one.hold_back()
    await one.catch_up(20)
    with pytest.raises(RequestTimedOut, match="is not complete yet"):
        await one.wait_until(lambda: False, 20)


async def test_nodes_that_people_wrote_wrongly_are_left_out_and_reported(
    servers: str, shell: KazooClient
) -> None:
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
