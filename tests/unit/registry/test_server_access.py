"""The HTTP API with logins: nothing but the probes is open, and leaders see the user's own login (R38)."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aiohttp import encode_basic_auth, web
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs
from tests.unit.registry.fake_topic import FakeTopic

from mainstem_registry import store
from mainstem_registry.client_security import Brokers
from mainstem_registry.election import Election
from mainstem_registry.logins import LoginRefused, Logins
from mainstem_registry.metrics import Metrics
from mainstem_registry.records import Record
from mainstem_registry.registry import Registry
from mainstem_registry.server import Server
from mainstem_registry.store import Store
from mainstem_registry.tls import client_context

PASSWORD = "a-secret-of-alice"
ALICE = {"Authorization": encode_basic_auth("alice", PASSWORD)}
REFUSED: tuple[dict[str, str], ...] = (
    {},
    {"Authorization": encode_basic_auth("alice", "x")},
    {"Authorization": encode_basic_auth("bob", "x")},
)
BROKERS = Brokers("127.0.0.1:1")


async def log_in(user: str, password: str) -> None:
    if (user, password) != ("alice", PASSWORD):
        raise LoginRefused


@asynccontextmanager
async def instance(
    monkeypatch: pytest.MonkeyPatch,
    leader_url: str,
    peers: ssl.SSLContext | None = None,
    records: Sequence[Record] = (),
) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    """A client of an instance with logins that has read a topic with `records` and hands its writes to the
    leader."""

    async def prepared(_: Store) -> None: ...

    monkeypatch.setattr(store, "AIOKafkaConsumer", FakeTopic(list(records)).consumer)
    monkeypatch.setattr(Store, "_prepare_topic", prepared)
    reader = Store(BROKERS, "_schemas")
    await reader.start()
    member = Election(BROKERS, "_schemas", "group", "http://this-one", 1000)
    member._learn(leader_url)
    server = Server(Registry(reader, member), Metrics(), Logins(log_in), peers)
    try:
        async with TestClient(TestServer(server.application())) as client:
            yield client
    finally:
        await reader.stop()


def routes_of(application: web.Application) -> list[tuple[str, str]]:
    return [
        (route.method, route.resource.canonical)
        for route in application.router.routes()
        if route.resource is not None and route.method != "HEAD"
    ]


async def test_every_path_but_those_of_probes_needs_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = set()
    async with instance(monkeypatch, "http://127.0.0.1:1") as client:
        routes = [*routes_of(client.app), ("GET", "/nothing"), ("PATCH", "/subjects"), ("GET", "/livez/")]
        assert len(routes) > 30
        for method, path in routes:
            for headers in REFUSED:
                answer = await client.request(
                    method, path.format(subject="s", version="1", id="1"), headers=headers
                )
                if path in ("/livez", "/readyz"):
                    assert answer.status == 200
                    continue
                assert answer.status == 401, (method, path)
                assert answer.headers["WWW-Authenticate"].startswith("Basic ")
                answers.add(await answer.text())
        assert len(answers) == 1  # what is wrong, and whether a path exists, is not said
        assert (await client.get("/subjects", headers=ALICE)).status == 200
        assert (await client.get("/metrics", headers=ALICE)).status == 200


async def test_a_write_reaches_the_leader_with_the_login_of_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    async def leader(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"compatibility": "FULL"})

    leading = web.Application()
    leading.add_routes([web.put("/config", leader)])
    async with TestServer(leading) as leading_server:
        url = str(leading_server.make_url("")).rstrip("/")
        with capture_logs() as lines:
            async with instance(monkeypatch, url) as client:
                answer = await client.put("/config", json={"compatibility": "FULL"}, headers=ALICE)
                assert answer.status == 200
    assert seen == [ALICE["Authorization"]]
    assert PASSWORD not in repr(lines)


async def test_a_login_is_not_sent_to_a_leader_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of the group that is no instance could name any address (R38)."""
    async with instance(monkeypatch, "http://127.0.0.1:1", client_context(None)()) as client:
        answer = await client.put("/config", json={"compatibility": "FULL"}, headers=ALICE)
        assert (await answer.json())["error_code"] == 50003
        assert "no TLS" in await answer.text()
