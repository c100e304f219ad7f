"""The row, or dead letter, of a value is the same alone and in any block of others (R30)."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.loader.payload.test_avro_payload import encoded, record, source_of
from tests.unit.loader.payload.test_protobuf_payload import EVERYTHING, Reading, random_message, value

from mainstem_loader.columns import REST_COLUMN, TIMESTAMP_TYPE, Columns
from mainstem_loader.payload.avro_payload import AvroPayload
from mainstem_loader.payload.json_payload import JsonPayload
from mainstem_loader.payload.readers import PayloadReader

NewReader = Callable[[Columns], PayloadReader]
Outcomes = list[str]


def outcomes(new_reader: NewReader, fixed: Columns, block: Sequence[bytes | None]) -> Outcomes:
    """What becomes of each value: its row without nulls, or the reason against it."""
    parsed = new_reader(fixed).parse(pa.array(block, pa.binary()))
    found = {row: f"dead: {reason}" for row, reason in parsed.dead}
    for row, fields in zip(parsed.rows.tolist(), parsed.columns.to_pylist(), strict=True):
        assert row not in found
        found[row] = repr(sorted((name, item) for name, item in fields.items() if item is not None))
    return [found[row] for row in range(len(block))]


def check_all_cuts(
    new_reader: NewReader, fixed: Columns, values: Sequence[bytes | None], chance: random.Random
) -> None:
    """Compare the values alone with blocks of several sizes and orders."""
    alone = [outcomes(new_reader, fixed, [one])[0] for one in values]
    for size in (2, 9, len(values)):
        order = chance.sample(range(len(values)), len(values))
        for begin in range(0, len(order), size):
            block = order[begin : begin + size]
            together = outcomes(new_reader, fixed, [values[at] for at in block])
            assert together == [alone[at] for at in block]


ARRAY: Final = {"type": "array", "items": "long"}
DATE: Final = {"type": "int", "logicalType": "date"}
MILLIS: Final = {"type": "long", "logicalType": "timestamp-millis"}
MICROS: Final = {"type": "long", "logicalType": "timestamp-micros"}
MONEY: Final = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
ENUM: Final = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
PLAIN: Final = {"date": "int", "timestamp-millis": "long", "timestamp-micros": "long", "decimal": "bytes"}

AVRO: Final = {
    1: record(("x", "double"), ("s", "string"), ("at", MICROS), ("a", ARRAY)),
    2: record(("x", "long"), ("s", "bytes"), ("at", MILLIS), ("day", DATE), ("e", ENUM)),
    3: record(("x", ["null", "float"]), ("m", MONEY), ("u", ["null", "string", "long", "double"])),
    4: record(("s", "string"), ("x", "string"), ("k", {"type": "map", "values": ["null", "double"]})),
    5: record(("day", DATE), ("a", ARRAY), ("x", "long"), ("e", "string")),
}
LONGS: Final = (0, -1, 2**53 + 1, 2**63 - 1, -(2**63), 1 << 60, 253_402_300_799_999, -62_135_596_800_001)
DOUBLES: Final = (0.0, -0.0, 2.0, 0.5, 1e19, 1e300, math.nan, math.inf, -math.inf)


def without_logical_types(node: Any) -> Any:
    """The schema by which integers and bytes are written as they are, also those that mean nothing."""
    if isinstance(node, list):
        return [without_logical_types(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "logicalType" in node:
        return PLAIN[node["logicalType"]]
    return {key: without_logical_types(item) for key, item in node.items()}


def random_avro(chance: random.Random, node: Any) -> Any:
    if isinstance(node, list):
        return random_avro(chance, chance.choice(node))
    match node if isinstance(node, str) else node["type"]:
        case "null":
            return None
        case "int":
            return chance.choice([0, -1, 2**31 - 1, -(2**31), 2_932_896, 2_932_897, -719_162, -719_163])
        case "long":
            return chance.choice(LONGS)
        case "float" | "double":
            return chance.choice([x for x in DOUBLES if node == "double" or not 1e38 < abs(x) < math.inf])
        case "string":
            return chance.choice(["", "a", "é" * 40])
        case "bytes":
            return chance.choice([b"", b"\x01", b"\xff", b"\x00\x98\x96\x7f", b"\x27\x0f", b"\x27\x10"])
        case "enum":
            return chance.choice("AB")
        case "array":
            return [chance.choice(LONGS) for _ in range(chance.choice([0, 1, 3, 100]))]
        case "map":
            keys = chance.sample(["", "a.b", '"', "é", "A", "a"], chance.randrange(4))
            return {key: random_avro(chance, node["values"]) for key in keys}
    return {item["name"]: random_avro(chance, item["type"]) for item in node["fields"]}


def now_and_then_damaged(body: bytes, chance: random.Random) -> bytes:
    """The value; one of five has another byte behind the id of its schema."""
    if chance.random() >= 0.2:
        return body
    byte, at = chance.randrange(256), chance.randrange(5, len(body))
    return body[:at] + bytes([byte]) + body[at + 1 :]


@pytest.mark.parametrize("seed", range(3))
def test_avro_values_have_the_same_rows_alone_and_in_blocks(seed: int) -> None:
    chance = random.Random(seed)
    values: list[bytes | None] = [None, b"", b"\0\0\0\0\1", b"\0\0\0\0\x09\2"]
    for _ in range(60):
        schema_id = chance.choice(list(AVRO))
        plain = without_logical_types(AVRO[schema_id])
        body = encoded(plain, random_avro(chance, plain), schema_id)
        values.append(now_and_then_damaged(body, chance))
    source = source_of(AVRO)

    def new_reader(fixed: Columns) -> AvroPayload:
        return AvroPayload(fixed, source)

    whole = new_reader({})
    whole.parse(pa.array(values, pa.binary()))
    check_all_cuts(new_reader, whole.found_columns(), values, chance)
    other: dict[str, pa.DataType] = {
        "x": pa.int64(),
        "s": pa.binary(),
        "at": pa.string(),
        "m": pa.decimal128(6, 1),
        "day": pa.int64(),
    }
    check_all_cuts(new_reader, other, [one for one in values if one is None or one[4:5] != b"\3"], chance)
    check_all_cuts(new_reader, {**whole.found_columns(), **other}, values, chance)


CHANGED: Final = """
syntax = "proto2";
message C {
  optional double id = 1 [default = -0.0]; optional bytes name = 2; optional int64 x = 3;
  optional string at = 6;
  optional E e = 5 [default = B]; repeated E es = 30; map<string, uint64> m = 11; optional uint64 u = 14;
  enum E { A = 0; B = 1; }
}
"""


def changed_message(new: Any, chance: random.Random) -> Any:
    message = new()
    for name, choices in {"id": DOUBLES, "x": LONGS, "name": (b"", b"\xff", b"a")}.items():
        if chance.random() < 0.7:
            setattr(message, name, chance.choice(choices))
    message.u = chance.choice([0, 2**64 - 1, 5])
    for key in chance.sample(["", "a.b", '"', "é"], chance.randrange(3)):
        message.m[key] = chance.choice([0, 2**64 - 1])
    return message


@pytest.mark.parametrize("seed", range(3))
def test_protobuf_values_have_the_same_rows_alone_and_in_blocks(seed: int) -> None:
    chance = random.Random(seed)
    reading = Reading(EVERYTHING, CHANGED)
    values: list[bytes | None] = [None, b"", b"\0\0\0\0\1", b"\0\0\0\0\x09\0", b"\0\0\0\0\1\0"]
    for _ in range(40):
        if chance.random() < 0.5:
            message = random_message(lambda: reading.new(1), chance)
            message.x, message.f = chance.choice(DOUBLES), chance.choice([math.nan, -0.0, math.inf])
            if chance.random() < 0.2:
                message.at.seconds = chance.choice([253_402_300_800, -62_135_596_801, 2**62])
            body = value(message)
        else:
            body = value(changed_message(lambda: reading.new(2), chance), 2)
            body += chance.choice([b"", b"\x28\x07", b"\xf0\x01\x07\xf0\x01\x01"])  # numbers without a name
        values.append(now_and_then_damaged(body, chance))

    def new_reader(fixed: Columns) -> Any:
        return Reading(EVERYTHING, CHANGED, fixed=fixed).payload

    whole = new_reader({})
    whole.parse(pa.array(values, pa.binary()))
    check_all_cuts(new_reader, whole.found_columns(), values, chance)
    other: dict[str, pa.DataType] = {
        "x": pa.int64(),
        "id": pa.int64(),
        "u": pa.int64(),
        "name": pa.string(),
        "at": pa.int64(),
    }
    check_all_cuts(new_reader, {**whole.found_columns(), **other}, values, chance)


def test_the_first_value_settles_the_type_of_a_column_whatever_the_number_of_its_schema() -> None:
    """R30: as it does if the load ends behind it."""
    schemas = {1: record(("x", "string")), 2: record(("x", "long"))}
    values = [encoded(schemas[2], {"x": 5}, 2), encoded(schemas[1], {"x": "a"}, 1)]
    parsed = AvroPayload({}, source_of(schemas)).parse(pa.array(values, pa.binary()))
    assert parsed.columns.to_pylist() == [{"x": 5, "_rest": None}, {"x": None, "_rest": '{"x": "a"}'}]
    texts = 'syntax = "proto3"; message M { string x = 1; }', 'syntax = "proto3"; message M { int64 x = 1; }'
    reading = Reading(*texts)
    messages = [_of(reading, 2, 5), _of(reading, 1, "a")]
    assert reading.rows(*messages) == {0: {"x": 5, "_rest": None}, 1: {"x": None, "_rest": '{"x": "a"}'}}


def _of(reading: Reading, schema_id: int, x: Any) -> bytes:
    message = reading.new(schema_id)
    message.x = x
    return value(message, schema_id)


@pytest.mark.parametrize("digits", [4, 5])
def test_a_decimal_with_too_many_digits_is_dead_and_its_neighbors_are_rows(digits: int) -> None:
    """R31: one record does not fail the load."""
    schema, plain = record(("m", MONEY)), record(("m", "bytes"))
    numbers = [10**digits - 1, 1]
    values = [encoded(plain, {"m": number.to_bytes(5, "big", signed=True)}) for number in numbers]
    parsed = AvroPayload({}, source_of({1: schema})).parse(pa.array(values, pa.binary()))
    is_row = digits == 4
    assert parsed.columns.to_pylist()[-1] == {"m": Decimal("0.01")}
    assert parsed.rows.tolist() == ([0, 1] if is_row else [1])
    assert list(parsed.dead) == (
        [] if is_row else [(0, "not what schema 1 says: a decimal has more than 4 digits")]
    )


JSON_COLUMNS: Final[Columns] = {
    "n": pa.int64(),
    "d": pa.float64(),
    "s": pa.string(),
    "l": pa.list_(pa.int64()),
    "o": pa.struct([("n", pa.int64()), ("l", pa.list_(pa.float64())), ("s", pa.string())]),
    "a": pa.list_(pa.struct([("n", pa.int64())])),
    "t": TIMESTAMP_TYPE,
    "z": pa.timestamp("us"),
    "day": pa.date32(),
    "times": pa.list_(pa.struct([("t", TIMESTAMP_TYPE)])),
}
NO_TYPE: Final[st.SearchStrategy[Any]] = st.sampled_from(
    [[], {}, [[]], [{}], [None], [None, None], [None, []], {"x": []}, [None, {"y": []}]]
)
SCALARS: Final = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([0.5, 2.0, -0.0, "x", True]))
LISTS: Final = st.lists(SCALARS, max_size=2)
VALUES: Final = st.one_of(SCALARS, LISTS, NO_TYPE)
TIMES: Final = st.sampled_from(
    [
        "2024-02-29",
        "0001-01-01",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31",
        "9999-12-31T23:59:59-00:01",
        "0000-12-31",
        "soon",
        None,
        7,
    ]
)
# What has the form of a time is a string where the type of the field is not known.
TIME_OBJECTS: Final = st.fixed_dictionaries({}, optional={"t": TIMES, "x": TIMES.filter(lambda x: x != 7)})
OBJECTS: Final = st.fixed_dictionaries({}, optional={"n": SCALARS, "l": LISTS, "s": SCALARS, "e": NO_TYPE})
JSON_RECORDS: Final = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys("ndsl", VALUES),
        "o": st.one_of(OBJECTS, VALUES),
        "a": st.one_of(VALUES, st.lists(st.one_of(st.none(), OBJECTS), max_size=2)),
        "e": NO_TYPE,
        "f": NO_TYPE,
        **dict.fromkeys(("t", "z", "day"), TIMES),
        "times": st.lists(st.one_of(st.none(), TIME_OBJECTS), max_size=2),
    },
)


def without_nulls(item: Any) -> Any:
    if isinstance(item, dict):
        return {name: without_nulls(member) for name, member in item.items() if member is not None}
    return [without_nulls(one) for one in item] if isinstance(item, list) else item


def json_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The row of each record, `_rest` without its spelling; a member that is null is as good as none."""
    block = pa.array([json.dumps(one).encode() for one in records], pa.binary())
    parsed = JsonPayload(JSON_COLUMNS).parse(block)
    assert (parsed.rows.tolist(), parsed.dead) == (list(range(len(records))), [])
    rows = parsed.columns.to_pylist()
    for row in rows:
        if row.get(REST_COLUMN) is not None:
            row[REST_COLUMN] = json.loads(row[REST_COLUMN])
    return [without_nulls(row) for row in rows]


@example([{"t": "9999-12-31T23:59:59-00:01"}, {"t": "2024-02-29"}])
@example([{"times": [{"t": "2024-02-29", "x": "0000-12-31"}, {"t": "0000-12-31"}]}, {"day": "0001-01-01"}])
@example([{}, {"n": 2.0, "f": [None, None]}])
@example([{}, {"o": {"n": 2.0, "e": []}, "f": [None, None]}])
@example([{}, {"n": 2.0, "s": 5, "f": [None, None]}])
@given(st.lists(JSON_RECORDS, min_size=2, max_size=4))
def test_json_values_have_the_same_rows_alone_and_in_blocks(records: list[dict[str, Any]]) -> None:
    assert json_rows(records) == [json_rows([one])[0] for one in records]
