from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from kazoo.client import KazooClient
from tests.support.waiting import let_pass_async
from tests.unit.broker.cluster.members import Member, joined

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.zookeeper import Operation, ZooKeeperUnavailable
from mainstem_broker.errors import StartupError

pytestmark = pytest.mark.processes


async def test_all_brokers_learn_the_id_that_the_first_one_gave_the_cluster(servers: str) -> None:
    async with joined(1, servers) as one, joined(2, servers) as two:
        assert one.view.cluster_id == two.view.cluster_id
        assert len(one.view.cluster_id) == 22
    async with joined(3, servers) as later:
        assert later.view.cluster_id == one.view.cluster_id


async def test_all_brokers_answer_logins_of_unknown_users_by_one_secret(servers: str) -> None:
    """R38: or the salt of a user that does not exist would change from broker to broker, and in a restart."""
    async with joined(1, servers) as one, joined(2, servers) as two:
        for member in (one, two):
            await member.read_scram_secret()
        assert one.view.scram_decoys.secret == two.view.scram_decoys.secret
        assert len(one.view.scram_decoys.secret) == 32
    async with joined(1, servers) as later:
        await later.read_scram_secret()
        assert later.view.scram_decoys.secret == one.view.scram_decoys.secret


def owned_by_another_session(shell: KazooClient, host: str = "127.0.0.1") -> None:
    endpoint = znodes.Endpoint("PLAINTEXT", "PLAINTEXT", host, 9091)
    data = znodes.BrokerRegistration(1, (endpoint,), None).encode(0)
    shell.create("/brokers/ids/1", data, ephemeral=True, makepath=True)


async def test_the_registration_of_an_earlier_life_at_the_same_address_is_taken_over_at_once(
    servers: str, shell: KazooClient
) -> None:
    owned_by_another_session(shell)
    old_epoch = shell.get("/brokers/ids/1")[1].czxid

    async with joined(1, servers) as member:
        stat = shell.get("/brokers/ids/1")[1]
        assert stat.ephemeralOwner == member.session_id
        assert stat.czxid > old_epoch


async def test_a_stale_registration_that_vanishes_meanwhile_does_not_stop_the_start(
    servers: str, shell: KazooClient
) -> None:
    owned_by_another_session(shell)

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


@pytest.mark.parametrize("is_done", [False, True], ids=["the call is lost", "only its answer is lost"])
@pytest.mark.parametrize("name", ["ensure_paths", "create", "get", "children", "multi"])
async def test_a_start_goes_on_when_zookeeper_was_away_for_a_moment(
    name: str, is_done: bool, servers: str
) -> None:
    member = Member(1, servers, "127.0.0.1", 4000)
    call = getattr(member._zookeeper, name)
    calls = count()

    async def lose_some(*arguments: Any, **more: Any) -> Any:
        is_lost = next(calls) in (0, 2)
        if is_done or not is_lost:
            answer = await call(*arguments, **more)
        if is_lost:
            raise ZooKeeperUnavailable("ZooKeeper gave no answer (ConnectionLoss); try again.")
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


async def test_a_start_ends_with_a_sentence_when_zookeeper_stays_away(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(1, servers, "127.0.0.1", 4000)

    async def away(*_arguments: Any) -> Any:
        raise ZooKeeperUnavailable("ZooKeeper gave no answer (ConnectionLoss); try again.")

    try:
        await member.connect()
        monkeypatch.setattr(member, "_connection_timeout_s", 0.3)
        monkeypatch.setattr(member._zookeeper, "get", away)
        with pytest.raises(StartupError, match=r"lost during the start, and not back within 0\.3 s: see"):
            await member.join(stopped_uncleanly=False)
    finally:
        await member.leave()


async def test_a_broker_of_the_same_id_elsewhere_is_outlasted_if_it_goes(
    servers: str, shell: KazooClient
) -> None:
    owned_by_another_session(shell, "10.0.0.9")

    async def go() -> None:
        await let_pass_async(0.2, "the other broker goes while it is waited for")
        shell.delete("/brokers/ids/1")

    going = asyncio.create_task(go())
    async with joined(1, servers) as member:
        assert shell.get("/brokers/ids/1")[1].ephemeralOwner == member.session_id
    await going


async def test_a_broker_of_the_same_id_elsewhere_that_stays_refuses_the_start_with_its_address(
    servers: str, shell: KazooClient
) -> None:
    owned_by_another_session(shell, "10.0.0.9")

    with pytest.raises(
        StartupError, match=r"Broker id 1 is already registered from 10\.0\.0\.9:9091: give this broker"
    ):
        async with joined(1, servers, session_timeout_ms=1000):
            raise AssertionError("it must not join")

    assert json.loads(shell.get("/brokers/ids/1")[0])["host"] == "10.0.0.9"
