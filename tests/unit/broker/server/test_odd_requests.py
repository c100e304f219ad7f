"""Requests that are odd, and valid by their schema, are answered: none closes the connection (R40).

Each variant has one field with a value that programs forget: the ends of integers and times, null where it is
allowed, no element or the same one twice, tagged fields in another form. What is odd is read off the schemas,
so a field of a later version is covered when it comes. Bytes are written here, for kio writes no odd ones.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from tests.support.waiting import settle
from tests.unit.broker.api.brokers import LocalBroker
from tests.unit.broker.protocol.schema_strategies import REQUESTS, Shape, request_schema
from tests.unit.broker.server.test_router import handle

from mainstem_broker.api.api_table import APIS
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.protocol.codec import decode_header, decode_request
from mainstem_broker.protocol.kio_schemas import FIXED
from mainstem_broker.protocol.primitives import encode_unsigned_varint
from mainstem_broker.server.connection import Hold, Later
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC

TOPIC_ID: Final = UUID(int=7)
NAMES: Final[Mapping[str, str]] = {
    "client_software_name": "kafka",
    "client_software_version": "4.4.0",
    "coordinator_keys": "g",
    "group": "g",
    "group_id": "g",
    "group_ids": "g",
    "groups": "g",
    "groups_names": "g",
    "key": "g",
    "name": "t",
    "resource_name": "t",
    "subscribed_topic_names": "t",
    "topic": "t",
    "topic_names": "t",
    "transactional_id": "x",
    "transactional_ids": "x",
}
"""Values of texts that name what the broker has. Other texts are empty."""
NUMBERS: Final[Mapping[str, int]] = {"acks": 1}
"""Numbers that are not 0: a Produce request with acks=0 closes the connection if it fails, as in Kafka."""
LONGEST: Final = "x" * 32_767
"""As long as a text of Kafka's protocol can be."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A field, and bytes in place of those of its ordinary value."""

    path: str
    what: str
    content: bytes


class Bytes:
    """A request of a schema as bytes, ordinary but for one variant."""

    def __init__(self, schema: Any, variant: Variant | None = None) -> None:
        self.flexible: bool = schema.__flexible__
        self._variant = variant
        header = struct.pack(">hhih", schema.__api_key__, schema.__version__, 5, -1)
        self.content = header + (b"\0" if self.flexible else b"") + self.of_struct(schema, "")

    def of_struct(self, schema: Any, path: str) -> bytes:
        tagged = []
        content = b""
        for field in fields(schema):
            shape, place = Shape.of(field), path + field.name
            if shape.tag is None:
                content += self.of_field(field, place)
            elif self._variant is not None and self._variant.path == place:
                tagged.append(self._variant.content)
        if self.flexible:
            content += tagged[0] if tagged else self._odd(path + "tags", b"\0")
        return content

    def of_field(self, field: Field[Any], place: str) -> bytes:
        shape = Shape.of(field)
        if shape.repeated:
            return self._odd(place, self.count(1) + self.of_one(shape, field.name, place))
        if shape.is_struct and shape.optional:
            return self._odd(place, b"\x01" + self.of_struct(shape.inner, place + "."))
        return self._odd(place, self.of_one(shape, field.name, place))

    def of_one(self, shape: Shape, name: str, place: str) -> bytes:
        if shape.is_struct:
            return self.of_struct(shape.inner, place + ".")
        if shape.kafka_type == "uuid":
            return TOPIC_ID.bytes
        if shape.kafka_type == "string":
            return self.text(NAMES.get(name, ""))
        if shape.kafka_type in ("bytes", "records"):
            return encode_unsigned_varint(1) if self.flexible else struct.pack(">i", 0)
        return struct.pack(">" + FIXED[shape.kafka_type or ""], NUMBERS.get(name, 0))

    def _odd(self, place: str, ordinary: bytes) -> bytes:
        variant = self._variant
        return ordinary if variant is None or variant.path != place else variant.content

    def count(self, number: int | None) -> bytes:
        """Of an array; None: the array is null."""
        if self.flexible:
            return encode_unsigned_varint(0 if number is None else number + 1)
        return struct.pack(">i", -1 if number is None else number)

    def text(self, value: str) -> bytes:
        encoded = value.encode()
        if self.flexible:
            return encode_unsigned_varint(len(encoded) + 1) + encoded
        return struct.pack(">h", len(encoded)) + encoded


def variants(key: int, version: int) -> list[Variant]:
    schema = request_schema(key, version)
    return list(_variants(Bytes(schema), schema, ""))


def _variants(ordinary: Bytes, schema: Any, path: str) -> Iterator[Variant]:
    flexible = ordinary.flexible
    for field in fields(schema):
        shape, place = Shape.of(field), path + field.name
        if shape.tag is not None:
            if shape.optional and shape.kafka_type == "string":
                yield Variant(place, "tagged null", b"\x01" + bytes((shape.tag, 1, 0)))
                yield Variant(place, "tagged text", b"\x01" + bytes((shape.tag, 2, 2)) + b"c")
            continue
        one = ordinary.of_one(shape, field.name, place)
        if shape.repeated:
            yield Variant(place, "no element", ordinary.count(0))
            yield Variant(place, "the same twice", ordinary.count(2) + one + one)
            if shape.optional:
                yield Variant(place, "null", ordinary.count(None))
                if not flexible:
                    yield Variant(place, "a negative count", struct.pack(">i", -2))
        elif shape.is_struct:
            if shape.optional:
                yield Variant(place, "null", b"\xff")
                yield Variant(place, "present by another byte", b"\x00" + one)
        elif shape.kafka_type in ("string", "bytes", "records"):
            if shape.optional:
                yield Variant(place, "null", b"\0" if flexible else _legacy_length(shape, -1))
                if not flexible:
                    yield Variant(place, "a negative length", _legacy_length(shape, -2))
            if shape.kafka_type == "string":
                yield Variant(place, "empty", ordinary.text(""))
                yield Variant(place, "long", ordinary.text(LONGEST))
        elif shape.kafka_type == "uuid":
            yield Variant(place, "zero", bytes(16))
        else:
            for what, content in _ends(FIXED[shape.kafka_type or ""]):
                yield Variant(place, what, content)
        if shape.is_struct:
            yield from _variants(ordinary, shape.inner, place + ".")
    if flexible:
        unknown = encode_unsigned_varint(9_999) + b"\x02ab"
        yield Variant(path + "tags", "an unknown tagged field", b"\x01" + unknown)
        yield Variant(path + "tags", "the same tagged field twice", b"\x02" + unknown + unknown)


def _legacy_length(shape: Shape, length: int) -> bytes:
    return struct.pack(">h" if shape.kafka_type == "string" else ">i", length)


def _ends(letter: str) -> Iterator[tuple[str, bytes]]:
    if letter == "d":
        for value in (float("nan"), float("inf"), -float("inf"), -0.0, 5e-324):
            yield str(value), struct.pack(">d", value)
    elif letter == "?":
        yield "true", b"\x01"
        yield "true by another byte", b"\x02"
    else:
        size = struct.calcsize(letter)
        if letter.islower():
            for number in (-(2 ** (8 * size - 1)), -1, 1, 2 ** (8 * size - 1) - 1):
                yield str(number), struct.pack(">" + letter, number)
        else:
            yield "the greatest", b"\xff" * size


SERVED: Final = [pytest.param(key, version, id=f"{APIS[key].name}-v{version}") for key, version in REQUESTS]


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_an_odd_request_is_read(key: int, version: int) -> None:
    refused = []
    for variant in variants(key, version):
        frame = memoryview(Bytes(request_schema(key, version), variant).content).toreadonly()
        header, position = decode_header(frame)
        try:
            decode_request(header, frame, position, APIS[key].model_for(version))
        except Exception as error:  # noqa: BLE001  # all that differ are of interest
            refused.append(f"{variant.path} {variant.what}: {error}")
    assert not refused, "\n".join(refused)


def _models() -> Iterator[tuple[int, int]]:
    """Each served version that differs from the one below for a handler: the lowest, and the models."""
    for key, api in APIS.items():
        for version in sorted({api.min_version, *api.models}):
            yield key, version


@pytest.fixture
async def coordinating(tmp_path: Path) -> AsyncIterator[LocalBroker]:
    """A broker that leads a topic, and coordinates all groups and transactions."""
    broker = LocalBroker(tmp_path)
    broker.create("t", topic_id=TOPIC_ID)
    broker.create(OFFSETS_TOPIC)
    broker.create(TRANSACTIONS_TOPIC)
    for shards in (broker.context.groups.shards, broker.context.transactions.shards):
        shards.follow(0)
        await shards.loading(0)
    yield broker
    for shards in (broker.context.groups.shards, broker.context.transactions.shards):
        await shards.stop()


@pytest.mark.parametrize(
    ("key", "version"),
    [pytest.param(key, version, id=f"{APIS[key].name}-v{version}") for key, version in _models()],
)
async def test_an_odd_request_is_answered(coordinating: LocalBroker, key: int, version: int) -> None:
    """Or waits: a longest wait of 24 days is valid, too."""
    refused = []
    for variant in variants(key, version):
        if "t" not in coordinating.view.topics:  # a variant before has deleted it
            coordinating.create("t", topic_id=TOPIC_ID)
        frame = Bytes(request_schema(key, version), variant).content
        try:
            await answer(coordinating, frame)
        except Exception as error:  # noqa: BLE001  # all that differ are of interest
            refused.append(f"{variant.path} {variant.what}: {type(error).__name__} {error}")
    assert not refused, "\n".join(refused)


async def answer(broker: LocalBroker, frame: bytes) -> None:
    """What the connection does with the request, up to where it has to wait."""
    given = handle(broker, frame)
    while isinstance(given, Hold):
        ready = asyncio.ensure_future(given.ready)
        await settle()
        if not ready.done():
            ready.cancel()
            return
        ready.result()
        given = given.then()
    if isinstance(given, Later):
        body = asyncio.ensure_future(given.body)
        await settle()
        if not body.done():
            body.cancel()
            return
        made = body.result()
        if made is not None:
            given.encode(made)
