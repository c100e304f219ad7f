"""The HTTP server over a real broker, and over an event loop that stands still (R37)."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.ports import own_ports
from tests.unit.broker.server.peers import until
from tests.unit.broker.server.test_broker import config, create, running

from mainstem_broker.errors import StartupError
from mainstem_broker.server import health_server
from mainstem_broker.server.broker import Broker
from mainstem_broker.server.health import Health, Phase
from mainstem_broker.server.health_server import HealthServer
from mainstem_broker.server.metrics import Metrics

pytestmark = pytest.mark.processes


def fetch(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read()


async def get(port: int, path: str) -> tuple[int, Any]:
    status, body = await asyncio.to_thread(fetch, port, path)
    return status, json.loads(body) if path != "/metrics" else body.decode()


@pytest.fixture
def port() -> int:
    return own_ports()


async def test_a_broker_that_serves_is_ready_and_says_what_it_holds(
    tmp_path: Path, servers: str, port: int
) -> None:
    async with running(tmp_path, servers, settings={"http.port": str(port)}) as broker:
        await create(broker, "t")
        assert await get(port, "/livez") == (200, {"alive": True})
        assert await get(port, "/readyz") == (200, {"ready": True, "reasons": []})
        status, body = await get(port, "/status")
        assert status == 200
        assert body["brokerId"] == 1
        assert body["state"] == "running"
        assert body["liveBrokers"] == [1]
        assert body["controller"] == 1
        assert (body["replicas"], body["leaders"], body["mayStop"], body["blockers"]) == (1, 1, True, [])


async def test_metrics_are_in_prometheus_format_with_units_in_their_names(
    tmp_path: Path, servers: str, port: int
) -> None:
    async with running(tmp_path, servers, settings={"http.port": str(port)}) as broker:
        await create(broker, "t")
        await until(lambda: broker.context.replicas.find("t", 0))
        status, text = await get(port, "/metrics")
        assert status == 200
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert families["mainstem_broker_leaders"].samples[0].value == 1
        assert families["mainstem_log_end_offset"].samples[0].labels == {"topic": "t", "partition": "0"}
        phases = {one.labels["phase"]: one.value for one in families["mainstem_broker_phase"].samples}
        assert phases == {"starting": 0, "running": 1, "stopping": 0}
        assert "process_resident_memory_bytes" in families
        assert "mainstem_loop_lag_seconds" in families
        assert "mainstem_disk_loads" in families
        assert "mainstem_client_connections" in families


async def test_a_broker_that_starts_or_stops_is_alive_and_not_ready(
    tmp_path: Path, servers: str, port: int
) -> None:
    async with running(tmp_path, servers, settings={"http.port": str(port)}) as broker:
        for phase in (Phase.STARTING, Phase.STOPPING):
            broker._health.phase = phase
            status, body = await get(port, "/readyz")
            assert status == 503
            assert str(phase) in body["reasons"][0]
            assert (await get(port, "/livez"))[0] == 200
        broker._health.phase = Phase.RUNNING


async def test_an_event_loop_that_stands_still_is_not_alive(
    tmp_path: Path, servers: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_server, "LOOP_ANSWER_S", 0.1)

    async with running(tmp_path, servers, settings={"http.port": str(port)}):
        with ThreadPoolExecutor() as executor:
            status, body = executor.submit(fetch, port, "/livez").result()  # the loop waits: the fault
        assert status == 503
        assert b"event loop" in body


async def test_a_path_that_is_not_served_says_which_are(tmp_path: Path, servers: str, port: int) -> None:
    async with running(tmp_path, servers, settings={"http.port": str(port)}):
        status, body = await get(port, "/health")
        assert status == 404
        assert "/readyz" in body["error"]


async def test_a_port_that_is_taken_is_reported_before_anything_is_touched(
    tmp_path: Path, servers: str, port: int
) -> None:
    async with running(tmp_path, servers, settings={"http.port": str(port)}):
        with pytest.raises(StartupError, match=f"http.port {port}"):
            Broker(config(tmp_path, servers, 2, {"http.port": str(port)}))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_probes_reach_it_by_ipv4_and_by_ipv6(host: str) -> None:
    server = HealthServer(0, Mock(spec=Health), Mock(spec=Metrics))
    server.start()
    try:
        assert await asyncio.to_thread(fetch, server.port, "/livez", host) == (200, b'{"alive": true}\n')
    finally:
        await asyncio.to_thread(server.close)
