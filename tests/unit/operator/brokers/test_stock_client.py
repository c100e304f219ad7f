"""A client that finds no broker is replaced: its addresses may be those of brokers that are gone (R25)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from mainstem_operator.brokers import raw_protocol, stock_client
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.brokers.raw_protocol import RawProtocol
from mainstem_operator.brokers.stock_client import StockClient


class PlayedAdmin:
    """An AdminClient that knows the addresses which brokers had when it was created."""

    created: list[PlayedAdmin]
    address: str

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.known_address = type(self).address
        type(self).created.append(self)

    def ask(self) -> str:
        if self.known_address != type(self).address:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return "answer"

    def describe_cluster(self, request_timeout: float) -> Any:
        nodes = [SimpleNamespace(id=0, host=self.known_address, port=9092)]
        return SimpleNamespace(result=lambda: SimpleNamespace(controller=nodes[0], nodes=nodes))


@pytest.fixture(autouse=True)
def admins(monkeypatch: pytest.MonkeyPatch) -> list[PlayedAdmin]:
    PlayedAdmin.created, PlayedAdmin.address = [], "10.0.0.1"
    monkeypatch.setattr(stock_client, "AdminClient", PlayedAdmin)
    return PlayedAdmin.created


async def test_after_a_call_that_found_no_broker_the_next_one_finds_those_of_now(
    admins: list[PlayedAdmin],
) -> None:
    client = StockClient("events:9092")
    assert await client.call(lambda admin: admin.ask()) == "answer"
    assert len(admins) == 1
    PlayedAdmin.address = "10.0.0.2"
    with pytest.raises(BrokersUnreachable):
        await client.call(lambda admin: admin.ask())
    assert await client.call(lambda admin: admin.ask()) == "answer"
    assert len(admins) == 2


async def test_a_call_that_failed_on_the_client_before_does_not_cost_the_present_one(
    admins: list[PlayedAdmin],
) -> None:
    client = StockClient("events:9092")
    for _ in range(2):
        await client.call(lambda admin: admin.ask())
        client.forget("no answer", admins[0])  # the second time from a call that took longer
    assert await client.call(lambda admin: admin.ask()) == "answer"
    assert len(admins) == 2


async def test_brokers_that_answer_no_raw_request_are_looked_up_again(
    admins: list[PlayedAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(address: tuple[str, int], request: Any, **_: Any) -> str:
        if address[0] != PlayedAdmin.address:
            raise ConnectionRefusedError
        return "answer"

    monkeypatch.setattr(raw_protocol, "ask", ask)
    raw = RawProtocol(StockClient("events:9092"))
    assert await raw.ask_any("request") == "answer"
    PlayedAdmin.address = "10.0.0.2"
    with pytest.raises(BrokersUnreachable):
        await raw.ask_any("request")
    assert await raw.ask_any("request") == "answer"


async def test_the_log_says_once_that_no_broker_answers_and_once_that_they_do_again(
    admins: list[PlayedAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes may be lost for days, and a call ends every half minute (R25)."""
    reachable = True

    def ask(*_: Any, **__: Any) -> str:
        if not reachable:
            raise ConnectionRefusedError
        return "answer"

    monkeypatch.setattr(raw_protocol, "ask", ask)
    client = StockClient("events:9092")
    raw = RawProtocol(client)
    with capture_logs() as lines:
        for _ in range(2):
            assert await client.call(lambda admin: admin.ask()) == "answer"
            for _ in range(3):
                with pytest.raises(BrokersUnreachable):
                    await client.call(refuse_to_answer)
            # The bootstrap server answers, and those that it names do not.
            reachable = False
            for _ in range(3):
                with pytest.raises(BrokersUnreachable):
                    await raw.ask_any("request")
            reachable = True
            for _ in range(3):
                assert await raw.ask_any("request") == "answer"
    events = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert events == ["no broker answers", "brokers answer again"] * 2


async def test_a_refusal_is_an_answer(admins: list[PlayedAdmin]) -> None:
    client = StockClient("events:9092")
    with capture_logs() as lines:
        for _ in range(2):
            with pytest.raises(BrokersUnreachable):
                await client.call(refuse_to_answer)
        with pytest.raises(BrokersRefused):
            await client.call(refuse)
    assert [line["event"] for line in lines] == ["no broker answers", "brokers answer again"]


async def test_one_call_that_a_restarted_broker_cut_off_is_no_silence_of_all(
    admins: list[PlayedAdmin],
) -> None:
    client = StockClient("events:9092")
    with capture_logs() as lines:
        for _ in range(2):
            with pytest.raises(BrokersUnreachable):
                await client.call(refuse_to_answer)
            assert await client.call(lambda admin: admin.ask()) == "answer"
    assert lines == []


def refuse_to_answer(admin: PlayedAdmin) -> None:
    raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def refuse(admin: PlayedAdmin) -> None:
    raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


async def test_a_refusal_does_not_cost_the_connection(admins: list[PlayedAdmin]) -> None:
    client = StockClient("events:9092")
    with pytest.raises(BrokersRefused):
        await client.call(refuse)
    assert await client.call(lambda admin: admin.ask()) == "answer"
    assert len(admins) == 1


async def test_addresses_are_refreshed_every_few_seconds(admins: list[PlayedAdmin]) -> None:
    await StockClient("events:9092").call(lambda admin: admin.ask())
    assert admins[0].settings["topic.metadata.refresh.interval.ms"] <= 10_000
