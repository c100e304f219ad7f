"""Who is watched, and when a broker is taken for dead; the watched are real sockets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from structlog.testing import capture_logs
from tests.support.waiting import let_pass_async
from tests.unit.broker.server.peers import until

from mainstem_broker.cluster.member import ClusterMember
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.znodes import BrokerRegistration, Endpoint
from mainstem_broker.replica.lease import Lease
from mainstem_broker.server import failure_detector as module
from mainstem_broker.server.failure_detector import FailureDetector

US = 1


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSAL_INTERVAL_S", 0.005)
    monkeypatch.setattr(module, "RECONNECT_DELAY_S", 0.02)
    monkeypatch.setattr(module, "PROBE_INTERVAL_S", 0.02)


class PlayedMember:
    """Member and controllership in one; `fenced` has who was, in which life."""

    def __init__(self, *, is_controller: bool = True) -> None:
        self.view = ClusterView(controller_id=US if is_controller else 2)
        self.is_controller = is_controller
        self.is_connected = True
        self.controllership = self
        self.fenced: list[tuple[int, int]] = []

    async def fence(self, broker_id: int, incarnation: int) -> None:
        self.fenced.append((broker_id, incarnation))

    def live(self, *ports: int, life: int = 0, listener: str = "PLAINTEXT") -> None:
        """Brokers 1, 2 ... listen at these ports."""
        self.view.set_brokers(
            BrokerRegistration(
                number, (Endpoint(listener, "PLAINTEXT", "127.0.0.1", port),), None, incarnation=life
            )
            for number, port in enumerate(ports, 1)
        )


class Watched:
    """A broker's port: how many connections it has had, and which are open."""

    def __init__(self) -> None:
        self.had = 0
        self.open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.had += 1
        self.open.add(writer)
        try:
            await reader.read()
        except ConnectionError:
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    async def has_had(self, times: int) -> None:
        await until(lambda: self.had == times)

    def hang_up(self) -> None:
        for writer in tuple(self.open):
            writer.close()

    def die(self) -> None:
        if self._server is not None:
            self._server.close()
        self.hang_up()


@asynccontextmanager
async def watching(member: PlayedMember, lease: Lease | None = None) -> AsyncIterator[FailureDetector]:
    lease = lease or Lease(lambda: 0.0, 1.0)
    deathwatch = FailureDetector(cast(ClusterMember, member), lease, US, lambda: "PLAINTEXT")
    try:
        yield deathwatch
    finally:
        await deathwatch.stop()
        assert deathwatch._watches == {}


async def test_a_broker_that_hangs_up_and_refuses_is_fenced_in_the_life_that_was_watched() -> None:
    """R20: no need to wait for its session's end."""
    with capture_logs():
        member, watched = PlayedMember(), Watched()
        member.live(0, await watched.listen(), life=4)
        async with watching(member) as deathwatch:
            deathwatch.look_again()
            await until(lambda: watched.open)
            assert member.fenced == []
            watched.die()
            await until(lambda: member.fenced)
            assert set(member.fenced) == {(2, 4)}


async def test_a_broker_that_hangs_up_and_accepts_again_is_alive() -> None:
    member, watched = PlayedMember(), Watched()
    member.live(0, await watched.listen())
    async with watching(member) as deathwatch:
        deathwatch.look_again()
        for times in (1, 2, 3):
            await watched.has_had(times)
            watched.hang_up()
        await watched.has_had(4)
        assert member.fenced == []
    watched.die()


async def test_a_broker_that_was_never_there_is_fenced_and_again_if_that_did_not_help(
    closed_port: int,
) -> None:
    with capture_logs():
        member = PlayedMember()
        member.live(0, closed_port)
        async with watching(member) as deathwatch:
            deathwatch.look_again()
            await until(lambda: len(member.fenced) == 2)


async def test_a_broker_that_cannot_be_reached_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off is not gone: it keeps its leaderships until its session ends."""
    tries: list[int] = []

    async def unreachable(host: str, port: int, **_: object) -> None:
        tries.append(port)
        raise OSError("No route to host.")

    monkeypatch.setattr(asyncio, "open_connection", unreachable)

    member = PlayedMember()
    member.live(0, 9)
    async with watching(member) as deathwatch:
        deathwatch.look_again()
        await until(lambda: len(tries) == 5)
        assert member.fenced == []


async def test_the_controller_watches_everyone_and_everyone_the_controller(closed_port: int) -> None:
    for is_controller, expected in ((True, {(2, 0), (3, 0)}), (False, {(2, 0)})):
        member = PlayedMember(is_controller=is_controller)
        member.live(closed_port, closed_port, closed_port)
        async with watching(member) as deathwatch:
            deathwatch.look_again()
            assert deathwatch._watches.keys() == expected


async def test_watches_end_with_the_lives_and_the_controllership_that_they_are_for(closed_port: int) -> None:
    member = PlayedMember()
    async with watching(member) as deathwatch:
        member.live(closed_port, closed_port, closed_port)
        deathwatch.look_again()
        kept = deathwatch._watches[2, 0]
        deathwatch.look_again()
        assert deathwatch._watches[2, 0] is kept
        member.live(closed_port, closed_port, life=1)
        deathwatch.look_again()
        assert deathwatch._watches.keys() == {(2, 1)}
        await until(kept.cancelled)
        member.is_controller = False
        deathwatch.look_again()
        assert not deathwatch._watches


async def test_a_broker_without_the_listener_between_brokers_is_not_watched() -> None:
    member = PlayedMember()
    member.live(9, 9, listener="OTHER")
    async with watching(member) as deathwatch:
        deathwatch.look_again()
        assert not deathwatch._watches


# --- Without ZooKeeper (R41) ---


async def test_nobody_is_fenced_without_zookeeper_and_the_log_says_why() -> None:
    with capture_logs() as lines:
        member, watched = PlayedMember(), Watched()
        member.live(0, await watched.listen(), life=4)
        async with watching(member) as deathwatch:
            deathwatch.look_again()
            await until(lambda: watched.open)
            member.is_connected = False
            watched.die()
            await until(lambda: any("until ZooKeeper is back" in line["event"] for line in lines))
            assert member.fenced == []
            member.is_connected = True
            await until(lambda: member.fenced)


async def test_without_zookeeper_a_refused_connection_stands_in_for_a_grant(closed_port: int) -> None:
    now_s = [0.0]
    lease = Lease(lambda: now_s[0], 1.0)
    member, watched = PlayedMember(), Watched()
    member.live(0, await watched.listen(), closed_port)
    lease.begin(0)
    async with watching(member, lease) as deathwatch:
        lease.answered(0.0)
        deathwatch.start()
        await let_pass_async(0.1, "somebody would be asked by then")
        assert watched.had == 0, "nobody is asked while ZooKeeper answers"
        now_s[0] = 0.5
        await until(lambda: lease.has_refused(3, -math.inf))
        await until(lambda: watched.had > 0)
        assert not lease.has_refused(2, -math.inf)
    watched.die()
