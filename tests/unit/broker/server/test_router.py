from __future__ import annotations

import asyncio
import gc
import struct
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any, Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from tests.unit.broker.api.brokers import LocalBroker, batch, make
from tests.unit.broker.protocol.schema_strategies import (
    REQUESTS,
    encode_request,
    entities,
    request_schema,
    response_schema,
)

from mainstem_broker.api import api_table
from mainstem_broker.api.api_table import APIS
from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.config.listener_config import ListenerConfig
from mainstem_broker.errors import InvalidRequestBytes
from mainstem_broker.security.login import API_VERSIONS_KEY, SASL_AUTHENTICATE_KEY, SASL_HANDSHAKE_KEY, Login
from mainstem_broker.security.principals import ANONYMOUS, Principal
from mainstem_broker.security.scram_credentials import ScramCredential, ScramMechanism
from mainstem_broker.server.client_software import UNKNOWN, ClientSoftware
from mainstem_broker.server.connection import Answer, Connection, Hold, Later
from mainstem_broker.server.listener_security import Logins
from mainstem_broker.server.router import Router


class Caller:
    """All that the router asks of a connection."""

    peer = "127.0.0.1:1"
    principal = Principal("alice")
    login = None
    software = UNKNOWN


CALLER = cast(Connection, Caller())


@pytest.fixture
def broker(tmp_path: Path) -> LocalBroker:
    return LocalBroker(tmp_path)


def handle(broker: LocalBroker, frame: bytes) -> Answer:
    return Router(broker.context, "PLAINTEXT", {}).handle(CALLER, memoryview(frame).toreadonly())


def request(key: int, version: int, values: dict[str, Any] | None = None, correlation_id: int = 5) -> bytes:
    return encode_request(make(request_schema(key, version), values or {}), correlation_id, "client")


def response(key: int, version: int, answer: Answer) -> Any:
    """What a client reads; checks the correlation id."""
    assert isinstance(answer, list)
    frame = b"".join(part if isinstance(part, bytes) else cast(Any, part).read() for part in answer)
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 5)
    schema = response_schema(key, version)
    _, header_bytes = entity_reader(schema.__header_schema__)(memoryview(frame), 4)
    entity, _ = entity_reader(schema)(memoryview(frame), 4 + header_bytes)
    return entity


def test_a_handler_is_given_the_principal_of_the_connection(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts: list[RequestContext] = []

    def handler(_broker: BrokerContext, _request: Any, context: RequestContext) -> None:
        contexts.append(context)

    monkeypatch.setitem(api_table.APIS, 60, replace(APIS[60], handler=handler))
    handle(broker, request(60, 0))

    assert str(contexts[0].principal) == "User:alice"
    assert str(ANONYMOUS) == "User:ANONYMOUS"


async def test_a_request_without_its_right_gets_neither_to_its_handler_nor_to_zookeeper(
    tmp_path: Path,
) -> None:
    """R38"""
    secured = LocalBroker(tmp_path, {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"})
    answer = response(48, 1, handle(secured, request(48, 1, {"components": [], "strict": False})))
    assert answer.error_code == ErrorCode.cluster_authorization_failed
    assert answer.error_message == "User:alice may not DescribeConfigs Cluster:kafka-cluster."
    assert secured.cluster.times_caught_up == 0


@pytest.mark.parametrize(
    ("version", "name", "expected"),
    [
        (3, "librdkafka", ClientSoftware("librdkafka", "2.11.0")),
        (4, "librdkafka", ClientSoftware("librdkafka", "2.11.0")),
        (4, "a" * 65, UNKNOWN),
        (2, None, UNKNOWN),
    ],
)
def test_the_software_that_a_client_names_is_noted(
    broker: LocalBroker, version: int, name: str | None, expected: ClientSoftware
) -> None:
    """KIP-511."""
    caller = Caller()
    said = {} if name is None else {"client_software_name": name, "client_software_version": "2.11.0"}
    frame = memoryview(request(18, version, said)).toreadonly()
    answer = Router(broker.context, "PLAINTEXT", {}).handle(cast(Connection, caller), frame)
    assert response(18, version, answer).error_code.value == 0
    assert caller.software == expected


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(
    ("name", "software_version"),
    [
        ("", "1"),
        ("a", ""),
        ("a b", "1"),
        ("-a", "1"),
        ("a", "1-"),
        ("a", "ä"),
        ("a", "1\n"),
        ("a" * 32768, "1"),
    ],
)
def test_software_of_another_form_is_refused_as_in_kafka_and_the_next_request_is_answered(
    broker: LocalBroker, version: int, name: str, software_version: str
) -> None:
    """KIP-511: INVALID_REQUEST, and no versions."""
    caller = Caller()
    router = Router(broker.context, "PLAINTEXT", {})
    said = {"client_software_name": name, "client_software_version": software_version}
    frame = memoryview(request(18, version, said)).toreadonly()
    refused = response(18, version, router.handle(cast(Connection, caller), frame))
    assert refused.error_code == ErrorCode.invalid_request
    assert refused.api_keys == ()
    assert caller.software == UNKNOWN
    frame = memoryview(request(18, 2)).toreadonly()
    assert response(18, 2, router.handle(cast(Connection, caller), frame)).error_code == ErrorCode.none


@pytest.mark.parametrize("version", [5, 9, 32767, -1])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0_with_the_range_to_use(
    broker: LocalBroker, version: int
) -> None:
    """KIP-511: never close, or the client cannot find out (streamnative/kop#176)."""
    frame = struct.pack(">hhih", 18, version, 5, -1) + b"whatever a later version says"
    answer = response(18, 0, handle(broker, frame))
    assert answer.error_code == ErrorCode.unsupported_version
    assert [(a.api_key, a.min_version, a.max_version) for a in answer.api_keys] == [(18, 0, 4)]


@pytest.mark.parametrize(
    ("key", "version", "reason"),
    [
        (4, 0, "API key 4 is not served here"),
        (-1, 0, "API key -1 is not served here"),
        (999, 0, "API key 999 is not served here"),
        (0, 2, "Produce version 2 is not served here; 3 to 12 are"),
        (1, 18, "Fetch version 18 is not served here; 4 to 17 are"),
        (3, -1, "Metadata version -1 is not served here; 0 to 12 are"),
    ],
)
def test_what_is_not_served_closes_the_connection_with_the_range(
    broker: LocalBroker, key: int, version: int, reason: str
) -> None:
    with pytest.raises(InvalidRequestBytes, match=reason):
        handle(broker, struct.pack(">hhih", key, version, 5, -1) + bytes(50))


def test_a_body_that_does_not_follow_its_schema_closes_the_connection(broker: LocalBroker) -> None:
    with pytest.raises(InvalidRequestBytes, match="API key 3 version 1 cannot be read"):
        handle(broker, struct.pack(">hhih", 3, 1, 5, -1) + b"\0\0\0\x09")


def list_offsets(index: int) -> bytes:
    partitions = [{"partition_index": index, "timestamp": -1}]
    return request(2, 9, {"topics": [{"name": "t", "partitions": partitions}]})


async def test_a_request_for_a_partition_not_led_here_first_hears_the_news(broker: LocalBroker) -> None:
    held = handle(broker, list_offsets(0))
    assert isinstance(held, Hold)
    broker.cluster.on_catch_up = partial(broker.create, "t")
    await held.ready
    (topic,) = response(2, 9, held.then()).topics
    assert topic.partitions[0].error_code == ErrorCode.none
    led = handle(broker, list_offsets(0))
    assert not isinstance(led, Hold), "and then no more"


async def test_a_request_about_the_cluster_first_hears_the_news(broker: LocalBroker) -> None:
    """A topic is made at one broker and grown at another, by the next request of the same program."""

    grown = {"name": "t", "count": 1, "assignments": None}
    held = handle(broker, request(37, 3, {"topics": [grown]}))
    assert isinstance(held, Hold)
    broker.cluster.on_catch_up = partial(broker.create, "t")
    await held.ready
    answer = held.then()
    assert isinstance(answer, Later)
    (result,) = response(37, 3, answer.encode(await answer.body)).results
    assert result.error_code == ErrorCode.invalid_partitions, "it is known, and has one"


async def test_what_is_produced_after_the_news_is_what_was_sent_though_the_buffer_was_used_again(
    broker: LocalBroker,
) -> None:
    data = [{"index": 0, "records": batch([b"sent"])}]
    sent = request(0, 9, {"acks": 1, "topic_data": [{"name": "t", "partition_data": data}]})
    buffer = bytearray(sent)
    held = Router(broker.context, "PLAINTEXT", {}).handle(CALLER, memoryview(buffer).toreadonly())
    assert isinstance(held, Hold)
    buffer[:] = bytes(len(buffer))
    broker.create("t")
    await held.ready
    (topic,) = response(0, 9, held.then()).responses
    assert topic.partition_responses[0].error_code == ErrorCode.none
    fetched = broker.partition("t").log.read(0, 1_000, 1, True)
    assert fetched.slice is not None
    assert b"sent" in fetched.slice.read()


HANDLED_S_MAX: Final = 0.5
"""Of this thread's time, for a request of at most a few kilobytes: ten times what the loop may stand still,
since tracing slows it down, and the first request of an API imports and builds its codec. No timeout
of asyncio ends what never awaits."""
HANDLED_BYTES_MAX: Final = 32 * 1024 * 1024
"""A codec's modules take a few megabytes; memory that grew by a claimed count would be gigabytes."""


@settings(max_examples=150)
@given(key_and_version=st.sampled_from(REQUESTS), data=st.data())
async def test_whatever_a_client_asks_it_gets_an_answer_or_a_reason(
    tmp_path_factory: pytest.TempPathFactory, key_and_version: tuple[int, int], data: st.DataObject
) -> None:
    """R40. Every well-formed request, with any values: nothing but InvalidRequestBytes may come out, and it
    takes neither the loop nor memory for long."""
    key, version = key_and_version
    entity = data.draw(entities(request_schema(key, version)))
    broker = LocalBroker(tmp_path_factory.mktemp("data"))
    broker.create("t", (1, 2))
    broker.append("t", [b"a"])
    frame = encode_request(entity, 5, None)
    gc.disable()  # what other tests left behind is no part of the request
    started_s = thread_time()
    try:
        tracemalloc.start()
        try:
            answer = handle(broker, frame)
            peak_bytes = tracemalloc.get_traced_memory()[1]
            handled_s = thread_time() - started_s
        finally:
            tracemalloc.stop()
            gc.enable()
        assert handled_s < HANDLED_S_MAX
        assert peak_bytes < HANDLED_BYTES_MAX
        async with asyncio.timeout(0.01):
            if isinstance(answer, Hold):
                await answer.ready
                answer = answer.then()
            if isinstance(answer, Later):
                body = await answer.body
                answer = None if body is None else answer.encode(body)
            if answer is not None:
                assert response(key, version, answer) is not None
    except TimeoutError:
        pass  # a long poll, or a creation that waits
    except InvalidRequestBytes:
        assert APIS[key].name == "Produce", "acks=0"


# --- Logins (R38) ---

METADATA_KEY: Final = 3


def no_credential(user: str, mechanism: ScramMechanism) -> ScramCredential:
    raise AssertionError(f"PLAIN reads no credential: {user}, {mechanism}")


class Stranger:
    """A connection to a listener with SASL, whose client has not logged in; `ends` are why it is closed."""

    def __init__(self, broker: LocalBroker) -> None:
        self.peer = "127.0.0.1:1"
        self.principal = ANONYMOUS
        self.software = UNKNOWN
        self.request_bytes_max = 1 << 20
        self.login: Login | None = None
        self.ends: list[str] = []
        self._router = Router(broker.context, "LOGIN", {})
        broker.context.config.values["connection.failed.authentication.delay.ms"] = 0
        settings = {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": 'PlainLoginModule required user_alice="secret";',
            "sasl.server.max.receive.size": "524288",
            "connections.max.reauth.ms": "0",
        }
        Logins(ListenerConfig(settings, "LOGIN"), no_credential).begin(cast(Connection, self))

    def finish(self, reason: str) -> None:
        self.ends.append(reason)

    def send(self, frame: bytes) -> Answer:
        return self._router.handle(cast(Connection, self), memoryview(frame).toreadonly())

    def choose(self, mechanism: str = "PLAIN", version: int = 1) -> Any:
        handshake = request(SASL_HANDSHAKE_KEY, version, {"mechanism": mechanism})
        return self.send(handshake)


async def test_no_other_request_than_api_versions_and_the_handshake_is_answered_before_a_login(
    broker: LocalBroker,
) -> None:
    for api_key in {-1, *APIS, 32_767} - {API_VERSIONS_KEY, SASL_HANDSHAKE_KEY}:
        stranger = Stranger(broker)
        assert stranger.send(struct.pack(">hhih", api_key, 0, 1, -1)) is None, api_key
        assert stranger.ends == ["its login failed"]
    stranger = Stranger(broker)
    assert response(API_VERSIONS_KEY, 0, stranger.send(request(API_VERSIONS_KEY, 0))).api_keys
    assert stranger.ends == []
    assert stranger.request_bytes_max == 524_288, "sasl.server.max.receive.size"


@pytest.mark.parametrize("api_key", [API_VERSIONS_KEY, METADATA_KEY])
async def test_a_request_between_the_messages_of_a_login_ends_it(broker: LocalBroker, api_key: int) -> None:
    stranger = Stranger(broker)
    answer = response(SASL_HANDSHAKE_KEY, 1, stranger.choose())
    assert (answer.error_code, answer.mechanisms) == (ErrorCode.none, ("PLAIN",))
    assert stranger.send(request(api_key, 0)) is None
    assert stranger.ends == ["its login failed"]


async def test_a_login_by_messages_names_the_principal_or_ends(broker: LocalBroker) -> None:
    for password, error in (("secret", ErrorCode.none), ("wrong", ErrorCode.sasl_authentication_failed)):
        stranger = Stranger(broker)
        stranger.choose()
        message = {"auth_bytes": f"\0alice\0{password}".encode()}
        answer = stranger.send(request(SASL_AUTHENTICATE_KEY, 1, message))
        if isinstance(answer, Later):
            answer = answer.encode(await answer.body)
        assert response(SASL_AUTHENTICATE_KEY, 1, answer).error_code == error
        assert stranger.principal == (ANONYMOUS if error else Principal("alice"))
        assert stranger.ends == (["its login failed"] if error else [])
        assert stranger.request_bytes_max == (524_288 if error else 1 << 20)
        assert (stranger.send(request(60, 0)) is None) == bool(error)


@pytest.mark.parametrize(("password", "is_right"), [("secret", True), ("wrong", False)])
async def test_a_handshake_of_version_0_is_followed_by_messages_without_headers(
    broker: LocalBroker, password: str, is_right: bool
) -> None:
    """As older clients log in (KIP-43)."""
    stranger = Stranger(broker)
    stranger.choose(version=0)
    answer = stranger.send(f"\0alice\0{password}".encode())
    assert answer == ([bytes(4)] if is_right else None), "an empty message, or the end"
    assert stranger.ends == ([] if is_right else ["its login failed"])
    if is_right:
        assert stranger.send(request(60, 0)) is not None


async def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(broker: LocalBroker) -> None:
    stranger = Stranger(broker)
    answer = stranger.choose("SCRAM-SHA-256")
    assert isinstance(answer, Later)
    result = response(SASL_HANDSHAKE_KEY, 1, answer.encode(await answer.body))
    assert (result.error_code, result.mechanisms) == (ErrorCode.unsupported_sasl_mechanism, ("PLAIN",))
    assert stranger.ends == ["its login failed"]
