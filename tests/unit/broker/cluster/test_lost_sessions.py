from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from kazoo.client import KazooClient
from tests.unit.broker.cluster.members import Member, client_of, end_session, is_registered, joined
from tests.unit.broker.server.peers import until

from mainstem_broker.cluster.zookeeper import Operation, ZooKeeperUnavailable

pytestmark = pytest.mark.processes


async def test_a_session_lost_just_after_the_registration_is_not_taken_for_registered(
    servers: str, shell: KazooClient
) -> None:
    """The news of the loss comes before the write's answer is looked at."""

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
        await until(lambda: bool(lost) and two.session_id not in (0, lost[0]) and is_registered(shell, two))
        await one.until(lambda: 2 in one.view.brokers)


async def test_wishes_of_a_lost_session_fail_with_an_error_that_clients_retry(one: Member) -> None:
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: one.create("t", [1]),
        lambda: one.administration.change_config("brokers/1", lambda _: {}),
        one.administration.deleted_topics,
    ]
    client_of(one).stop()
    for call in calls:
        with pytest.raises(ZooKeeperUnavailable):
            await call()


async def test_to_leave_before_joining_and_to_leave_twice_are_no_errors(servers: str) -> None:
    member = Member(1, servers, "127.0.0.1", 4000)
    await member.leave()
    other = Member(1, servers, "127.0.0.1", 4000)
    await other.connect()
    await other.leave()
    await other.leave()
