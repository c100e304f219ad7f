"""Requests of each schema as bytes, ordinary but for one field: for kio's writer writes no odd ones."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, Final
from uuid import UUID

from tests.unit.broker.protocol.schema_strategies import Shape, request_schema

from mainstem_broker.protocol.kio_schemas import FIXED
from mainstem_broker.protocol.primitives import encode_unsigned_varint

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
