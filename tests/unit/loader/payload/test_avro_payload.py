"""Avro values to columns: decoded many at a time as fastavro decodes each, whatever the bytes (R31)."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem_loader.columns import ColumnError
from mainstem_loader.payload import avro_payload
from mainstem_loader.payload.avro_columns import ColumnDecoder, is_supported
from mainstem_loader.payload.avro_payload import AvroPayload
from mainstem_loader.payload.avro_schema import WriterSchema, parse_writer_schema
from mainstem_loader.payload.readers import ParsedPayload
from mainstem_loader.table.delta import delta_schema
from mainstem_registry.schemas.schema import PARSERS

Schemas = dict[int, Any]


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def encoded(schema: Any, value: Any, schema_id: int = 1) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + stream.getvalue()


def source_of(schemas: Schemas) -> Callable[[int], WriterSchema]:
    def schema_of(schema_id: int) -> WriterSchema:
        if schema_id not in schemas:
            raise ColumnError(f"the schema registry does not know the id {schema_id} of a schema")
        return parse_writer_schema(json.dumps(schemas[schema_id]))

    return schema_of


def parse(
    schemas: Schemas, *values: bytes | None, fixed: dict[str, pa.DataType] | None = None
) -> ParsedPayload:
    return AvroPayload(fixed or {}, source_of(schemas)).parse(pa.array(values, pa.binary()))


def test_every_type_has_its_column() -> None:
    schema = record(
        ("flag", "boolean"), ("i", "int"), ("l", "long"), ("f", "float"), ("d", "double"),
        ("b", "bytes"), ("s", "string"), ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        ("x", {"type": "fixed", "name": "F", "size": 2}), ("n", ["null", "string"]),
        ("a", {"type": "array", "items": ["null", "long"]}), ("m", {"type": "map", "values": "long"}),
        ("r", {"type": "record", "name": "Inner", "fields": [{"name": "y", "type": "int"}]}),
        ("u", ["null", "string", "long"]), ("nothing", "null"),
        ("born", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("money", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("clock", {"type": "int", "logicalType": "time-millis"}),
    )  # fmt: skip
    at = datetime(2026, 11, 23, 8, 0, 0, 5000, tzinfo=UTC)
    value = {
        "flag": True, "i": -7, "l": 1 << 40, "f": 0.5, "d": 1.25, "b": b"\xff", "s": "é", "e": "B",
        "x": b"ab", "n": None, "a": [1, None, 3], "m": {"k": 1}, "r": {"y": 5}, "u": 9, "nothing": None,
        "born": date(2026, 11, 23), "at": at, "money": Decimal("12.34"), "clock": 1000,
    }  # fmt: skip
    plain = json.loads(json.dumps(schema).replace(', "logicalType": "time-millis"', ""))
    parsed = parse({1: schema}, encoded(plain, value))
    assert parsed.dead == []
    (row,) = parsed.columns.to_pylist()
    assert row == {
        **{name: item for name, item in value.items() if name != "nothing"},
        "m": [("k", 1)],
        "u": {"string": None, "long": 9},
    }


def test_schemas_of_several_versions_meet_in_one_table_in_the_order_of_the_records() -> None:
    old, new = record(("x", "int")), record(("x", "long"), ("y", "string"))
    parsed = parse(
        {1: old, 2: new},
        encoded(old, {"x": 1}),
        encoded(new, {"x": 1 << 40, "y": "b"}, 2),
        None,
        encoded(old, {"x": 3}),
    )
    assert parsed.rows.tolist() == [0, 1, 2, 3]
    assert parsed.columns.to_pylist() == [
        {"x": 1, "y": None}, {"x": 1 << 40, "y": "b"}, {"x": None, "y": None}, {"x": 3, "y": None},
    ]  # fmt: skip


def test_values_without_a_schema_that_can_be_read_are_dead_with_the_reason() -> None:
    schema = record(("x", "int"))
    good = encoded(schema, {"x": 1})
    parsed = parse({1: schema}, b"", b"\0\0\0\0", b'{"x": 1}', b"\0\0\0\0\7\2", good[:-1], good + b"\0", good)
    assert parsed.rows.tolist() == [6]
    assert [row for row, _ in parsed.dead] == [0, 1, 2, 3, 4, 5]
    reasons = " | ".join(reason for _, reason in parsed.dead)
    assert "too few for the id" in reasons
    assert "begins with byte 123" in reasons
    assert "does not know the id 7" in reasons
    assert "not what schema 1 says: it ends too early" in reasons
    assert "1 bytes are left over" in reasons


MAP = {"type": "map", "values": "long"}
MAP_OF_DOUBLES = pa.map_(pa.string(), pa.float64())
MISFIT, ZERO = f'{{"x": {{"k": {2**60 + 1}}}}}', '{"x": {"k": -0.0}}'


@pytest.mark.parametrize(
    ("current", "values", "column", "rest"),
    [
        (pa.float64(), [("long", 3)], [3.0], [None]),
        (pa.int64(), [("double", 2.0), ("double", 2.5)], [2, None], [None, '{"x": 2.5}']),
        (pa.string(), [("bytes", b"a"), ("bytes", b"\xff")], ["a", None], [None, '{"x": "\\u00ff"}']),
        (pa.string(), [("long", 3)], None, ['{"x": 3}']),
        (MAP_OF_DOUBLES, [(MAP, {"k": 3}), (MAP, {"k": 2**60 + 1})], [[("k", 3.0)], None], [None, MISFIT]),
        (pa.map_(pa.string(), pa.int64()), [({**MAP, "values": "double"}, {"k": -0.0})], None, [ZERO]),
        (pa.map_(pa.string(), pa.string()), [(MAP, {"k": 3, '"': 4})], None, ['{"x": {"k": 3, "\\"": 4}}']),
        (pa.string(), [({"type": "array", "items": MAP}, [{"k": 3}, {}])], None, ['{"x": [{"k": 3}, {}]}']),
    ],
    ids=[
        "long in doubles",
        "double in longs",
        "bytes in strings",
        "long in strings",
        "map of longs in one of doubles",
        "map of doubles in one of longs",
        "map of longs in one of strings",
        "maps in strings",
    ],
)
def test_a_tables_column_keeps_its_type_and_what_does_not_fit_is_set_apart(
    current: pa.DataType, values: list[tuple[Any, Any]], column: list[Any] | None, rest: list[str | None]
) -> None:
    schema = record(("x", values[0][0]))
    parsed = parse({1: schema}, *(encoded(schema, {"x": value}) for _, value in values), fixed={"x": current})
    assert parsed.dead == []
    assert ("x" in parsed.columns.column_names) == (column is not None)
    if column is not None:
        assert parsed.columns.column("x").to_pylist() == column
        assert parsed.columns.schema.field("x").type == current
    result = parsed.columns.column("_rest").to_pylist() if "_rest" in parsed.columns.column_names else None
    assert (result or [None]) == rest


def test_a_column_that_no_table_has_yet_widens() -> None:
    reader = AvroPayload({}, source_of({1: record(("x", "int")), 2: record(("x", "double"))}))
    first, second = encoded(record(("x", "int")), {"x": 1}), encoded(record(("x", "double")), {"x": 0.5}, 2)
    reader.parse(pa.array([first], pa.binary()))
    assert reader.found_columns() == {"x": pa.int64()}
    parsed = reader.parse(pa.array([first, second], pa.binary()))
    assert parsed.columns.column("x").to_pylist() == [1.0, 0.5]
    assert reader.found_columns() == {"x": pa.float64()}


def test_a_map_that_no_table_has_yet_widens_and_rounds_no_number() -> None:
    longs, doubles = record(("x", MAP)), record(("x", {**MAP, "values": "double"}))
    schemas = {1: longs, 2: doubles}
    small, large = encoded(longs, {"x": {"k": 1}}), encoded(longs, {"x": {"k": 2**60 + 1}})
    other = encoded(doubles, {"x": {"k": 0.5}}, 2)
    assert rows_of_maps(parse(schemas, small, other)) == [{"k": 1.0}, {"k": 0.5}]
    assert rows_of_maps(parse(schemas, other, small)) == [{"k": 0.5}, {"k": 1.0}]
    parsed = parse(schemas, large, other)
    assert parsed.columns.column("_rest").to_pylist() == [MISFIT, None]
    assert parsed.columns.schema.field("x").type == MAP_OF_DOUBLES


def rows_of_maps(parsed: ParsedPayload) -> list[dict[str, float]]:
    return [dict(entries or ()) for entries in parsed.columns.column("x").to_pylist()]


@pytest.mark.parametrize(
    ("current", "values", "wider"),
    [
        (pa.int64(), [("double", 2.0), ("double", 2.5)], pa.float64()),
        (pa.int64(), [("double", 2.0)], None),
        (pa.int64(), [("string", "2.5")], None),
        (pa.float64(), [("long", 3)], None),
        (pa.list_(pa.int64()), [({"type": "array", "items": "double"}, [2.5])], pa.list_(pa.float64())),
        (pa.map_(pa.string(), pa.int64()), [({**MAP, "values": "double"}, {"k": 2.5})], MAP_OF_DOUBLES),
    ],
    ids=["fraction", "whole", "string", "long in doubles", "array", "map"],
)
def test_a_reader_reports_the_columns_that_doubles_would_make_whole(
    current: pa.DataType, values: list[tuple[Any, Any]], wider: pa.DataType | None
) -> None:
    schema = record(("x", values[0][0]))
    reader = AvroPayload({"x": current}, source_of({1: schema}))
    reader.parse(pa.array([encoded(schema, {"x": value}) for _, value in values], pa.binary()))
    assert reader.wider_columns() == ({} if wider is None else {"x": wider})


def test_a_recursive_type_is_a_column_of_json() -> None:
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "x", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
    }
    parsed = parse({1: node}, encoded(node, {"x": 1, "next": {"x": 2, "next": None}}))
    (row,) = parsed.columns.to_pylist()
    assert row["x"] == 1
    assert json.loads(row["next"]) == {"x": 2, "next": None}


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (["null", "int"], "null"),
        ("string", None),
        ("int", 2**31),
        ({"type": "array", "items": "int"}, {}),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, 7),
        ({"type": "record", "name": "Inner", "fields": [{"name": "y", "type": "int", "default": "1"}]}, []),
    ],
)
def test_an_invalid_default_changes_no_record(kind: Any, default: object) -> None:
    """Schema registries store such defaults, and a writer's schema does not use them."""
    schema = record(("x", kind))
    schema["fields"][0]["default"] = default
    text = json.dumps(schema)
    assert PARSERS["AVRO"](text, ())
    assert parse_writer_schema(text).root.names == ["x"]
    assert parse_writer_schema('"R"', [text]).root.names == ["x"]
    assert parse({1: schema}, b"\0\0\0\0\1\0").dead == []


@pytest.mark.parametrize(("precision", "is_decimal"), [(2, True), (3, False)])
def test_a_decimal_with_more_digits_than_its_bytes_hold_is_its_underlying_type(
    precision: int, is_decimal: bool
) -> None:
    """Avro's specification has implementations ignore an invalid logical type."""
    fixed = {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": precision}
    parsed = parse({1: record(("x", fixed))}, b"\0\0\0\0\1\7")
    assert parsed.columns.to_pylist() == [{"x": Decimal(7) if is_decimal else b"\7"}]


AT = datetime(2026, 11, 23, 8, tzinfo=UTC)
DATE = {"type": "int", "logicalType": "date"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 3}
ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}


@pytest.mark.parametrize(
    ("types", "branch", "value"),
    [
        ([ENUM, "string"], "string", "A"),
        ([ENUM, "string"], "E", "A"),
        ([{"type": "fixed", "name": "F", "size": 1}, "bytes"], "bytes", b"a"),
        ([{**record(("x", "int")), "name": "N"}, {"type": "map", "values": "int"}], "map", {"x": 1}),
        (["string", MILLIS], "long", AT),
        (["int", MILLIS], "long", AT),
        ([DATE, MILLIS], "long", AT),
        ([DATE, MILLIS], "int", AT.date()),
        ([DATE, "long"], "long", 5),
        ([DATE, "string"], "int", AT.date()),
        (["string", MONEY], "bytes", Decimal(7)),
        (["int", "long"], "int", 5),
        (["int", "long"], "long", 5),
        ([{"type": "int", "doc": "d"}, "long"], "long", 1 << 40),
        ([{"type": "int", "doc": "d"}, "long"], "int", 5),
        (["double", {"type": "float"}], "float", 0.5),
        (["double", {"type": "float"}], "double", 1e300),
        (["int", "long", "float", "double"], "double", 2.0),
    ],
)
def test_a_value_of_a_union_is_in_the_member_of_its_type(types: list[Any], branch: str, value: Any) -> None:
    schema = record(("u", ["null", *types]))
    parsed = parse({1: schema}, encoded(schema, {"u": (branch, value)}))
    ((name, found),) = [(name, one) for name, one in parsed.columns.to_pylist()[0]["u"].items() if one]
    assert (name, dict(found) if branch == "map" else found) == (branch, value)


@pytest.mark.parametrize(
    "invalid",
    [
        {**MONEY, "precision": 64, "scale": -127}, {**MONEY, "scale": 4}, {**MONEY, "precision": "3"},
        {**MONEY, "type": "fixed", "name": "F", "size": 1}, {"type": "bytes", "logicalType": ["decimal"]},
    ],
)  # fmt: skip
def test_a_logical_type_that_is_not_valid_is_ignored(invalid: dict[str, Any]) -> None:
    """Specification 1.12, "Logical Types": the values are those of the type that is stored."""
    (stored,) = parse_writer_schema(json.dumps(record(("x", invalid)))).root.parts
    assert (stored.kind, stored.arrow) == (invalid["type"], pa.binary())


def test_the_number_of_a_union_is_one_in_json_too() -> None:
    union = ["int", "long", "float", "double"]
    schema = record(("o", {**TWICE, "fields": [{"name": name, "type": union} for name in ("a", "A")]}))
    value = {"o": {"a": ("int", 5), "A": ("float", float("nan"))}}
    assert row_of(parse({1: schema}, encoded(schema, value))) == {"o": '{"a": 5, "A": "NaN"}'}
    symbols = {"type": "enum", "name": "E", "symbols": ["int", "float"]}
    parsed = parse({1: record(("e", symbols))}, encoded(record(("e", symbols)), {"e": "float"}))
    assert parsed.columns.to_pylist() == [{"e": "float"}]


def named(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {**record(*fields), "name": name}


def row_of(parsed: ParsedPayload) -> dict[str, Any]:
    """The only row, of columns that a Delta table can have."""
    assert parsed.dead == []
    delta_schema(parsed.columns.schema)
    (row,) = parsed.columns.to_pylist()
    return {name: item for name, item in row.items() if item is not None}


def test_members_of_a_union_with_equal_names_have_their_namespaces_too() -> None:
    types = [named(f"com.{name}", (name[0], "int")) for name in ("a.Event", "b.event", "c.E")]
    schema = record(("u", ["null", *types]))
    parsed = parse({1: schema}, encoded(schema, {"u": ("com.b.event", {"b": 5})}))
    assert row_of(parsed) == {"u": {"com_a_Event": None, "com_b_event": {"b": 5}, "E": None}}


TWICE = named("N", ("a", "int"), ("A", "bytes"))


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (TWICE, {"a": 1, "A": b"x"}, '{"a": 1, "A": "x"}'),
        ({"type": "array", "items": TWICE}, [{"a": 1, "A": b"x"}], '[{"a": 1, "A": "x"}]'),
        (["null", TWICE], {"a": 1, "A": b"\xff"}, '{"a": 1, "A": "\\u00ff"}'),
        ([named("a.b_c.E", ("x", "int")), named("a_b.c.E", ("y", "int"))], ("a_b.c.E", {"y": 5}), '{"y": 5}'),
        ([named("Map", ("x", "int")), {"type": "map", "values": "int"}], ("map", {"k": 5}), '{"k": 5}'),
    ],
)
def test_what_has_members_that_differ_in_case_alone_is_json(kind: Any, value: Any, text: str) -> None:
    schema = record(("o", kind))
    assert row_of(parse({1: schema}, encoded(schema, {"o": value}))) == {"o": text}


def test_fields_of_the_payload_that_differ_in_case_alone_are_a_column_and_a_rest() -> None:
    schema = record(("id", "int"), ("ID", "int"))
    assert row_of(parse({1: schema}, encoded(schema, {"id": 1, "ID": 2}))) == {"id": 1, "_rest": '{"ID": 2}'}


def test_an_array_of_json_whose_items_take_no_bytes_cannot_exhaust_memory_either() -> None:
    schema = record(("a", {"type": "array", "items": named("N", ("n", "null"), ("N", "null"))}))
    with pytest.raises(ColumnError, match="take no bytes"):
        parse_writer_schema(json.dumps(schema))


def test_an_array_whose_items_take_no_bytes_cannot_exhaust_memory() -> None:
    schema = record(("x", {"type": "array", "items": "null"}))
    parsed = parse({1: schema}, b"\0\0\0\0\1" + b"\xfe\xff\xff\xff\x7f" + b"\0")
    assert "take no bytes" in parsed.dead[0][1]


def test_records_that_double_at_each_level_are_refused_at_once() -> None:
    kind: Any = "int"
    for level in range(28):
        # The second mention is the name alone, so the text grows by one line a level.
        second = kind if level == 0 else kind["name"]
        kind = named(f"L{level}", ("a", kind), ("b", second))
    with pytest.raises(ColumnError, match="more than 10000 fields"):
        parse_writer_schema(json.dumps(kind))


def test_a_long_array_is_decoded_too() -> None:
    schema = record(("x", {"type": "array", "items": "int"}))
    values = [{"x": list(range(500))}, {"x": []}, {"x": [7]}]
    parsed = parse({1: schema}, *(encoded(schema, value) for value in values))
    assert parsed.columns.to_pylist() == values


# Against fastavro.

leaves = st.sampled_from(
    ["boolean", "int", "long", "float", "double", "bytes", "string", "null"]
    + [{"type": "long", "logicalType": "timestamp-micros"}, {"type": "enum", "symbols": ["A", "B"]}]
    + [{"type": "fixed", "size": 3}]
)


def _compound(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = children.filter(lambda child: child != "null")
    return st.one_of(
        st.builds(lambda kind: {"type": "array", "items": kind}, some),
        st.builds(lambda kind: {"type": "map", "values": kind}, some),
        some.filter(lambda child: not isinstance(child, list)).map(lambda child: ["null", child]),
        some.filter(lambda child: not isinstance(child, list)).map(lambda child: [child, "null"]),
        st.lists(children, min_size=1, max_size=3).map(
            lambda kinds: {
                "type": "record",
                "fields": [{"name": f"f{at}", "type": kind} for at, kind in enumerate(kinds)],
            }
        ),
    )


def _named(node: Any, chance: list[int]) -> Any:
    if isinstance(node, list):
        return [_named(branch, chance) for branch in node]
    if not isinstance(node, dict):
        return node
    node = dict(node)
    if node["type"] in ("record", "enum", "fixed"):
        chance[0] += 1
        node["name"] = f"N{chance[0]}"
    for key in ("items", "values"):
        if key in node:
            node[key] = _named(node[key], chance)
    if "fields" in node:
        node["fields"] = [{**item, "type": _named(item["type"], chance)} for item in node["fields"]]
    return node


records = (
    st.recursive(leaves, _compound, max_leaves=6)
    .map(lambda kind: record(("first", "int"), ("second", kind)))
    .map(lambda schema: _named(schema, [0]))
)


def _random_value(chance: random.Random, node: Any) -> Any:
    if isinstance(node, list):
        return _random_value(chance, chance.choice(node))
    kind = node if isinstance(node, str) else node["type"]
    match kind:
        case "null":
            return None
        case "boolean":
            return chance.random() < 0.5
        case "int":
            return chance.choice([0, -1, 63, 64, 2**31 - 1, -(2**31), chance.randrange(2**20)])
        case "long":
            if isinstance(node, dict):
                return chance.randrange(2**50)
            return chance.choice([0, 1, 2**63 - 1, -(2**63), chance.randrange(2**40)])
        case "float" | "double":
            return chance.choice([0.0, -1.5, 3.0])
        case "bytes":
            return chance.randbytes(chance.randrange(5))
        case "string":
            return chance.choice(["", "a", "é" * 40, "x" * 200])
        case "enum":
            return chance.choice("AB")
        case "fixed":
            return chance.randbytes(3)
        case "array":
            return [_random_value(chance, node["items"]) for _ in range(chance.randrange(4))]
        case "map":
            return {f"k{at}": _random_value(chance, node["values"]) for at in range(chance.randrange(3))}
    return {item["name"]: _random_value(chance, item["type"]) for item in node["fields"]}


def test_an_array_of_minus_two_to_the_63rd_items_is_corrupt() -> None:
    """The one number without a positive counterpart, in ten bytes, and the size of such a block."""
    schema = record(("items", {"type": "array", "items": "long"}))
    body = encoded(schema, {"items": []})[:5] + b"\xff" * 9 + b"\x01" + b"\x00"
    parsed = parse({1: schema}, body, encoded(schema, {"items": [7]}))
    assert parsed.rows.tolist() == [1]
    assert [position for position, _ in parsed.dead] == [0]


@settings(max_examples=200)
@given(records, st.integers(0, 2**32))
def test_many_at_a_time_gives_what_one_by_one_gives(schema: Any, seed: int) -> None:
    chance = random.Random(seed)
    values = [encoded(schema, _random_value(chance, schema)) for _ in range(20)]
    for at in range(20):
        if chance.random() < 0.2:  # corrupt: a byte changed, cut off, or added
            body = bytearray(values[at])
            place = chance.randrange(5, len(body) + 1)
            body[place:] = chance.choice([b"", bytes([chance.randrange(256)]) + body[place + 1 :]])
            values[at] = bytes(body)
    together = parse({1: schema}, *values)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(avro_payload, "is_supported", lambda _: False)
        alone = parse({1: schema}, *values)
    assert together.rows.tolist() == alone.rows.tolist()
    assert [row for row, _ in together.dead] == [row for row, _ in alone.dead]
    assert together.columns.to_pylist() == alone.columns.to_pylist()


@settings(max_examples=200)
@given(records, st.lists(st.binary(max_size=30), min_size=1, max_size=10))
def test_no_bytes_break_the_decoder(schema: Any, bodies: list[bytes]) -> None:
    root = parse_writer_schema(json.dumps(schema)).root
    if is_supported(root):
        edges = np.cumsum([0, *map(len, bodies)])
        data = np.frombuffer(b"".join(bodies), dtype=np.uint8)
        decoded = ColumnDecoder(data, edges[:-1], edges[1:]).decode(root)
        assert decoded is None or len(decoded[0]) == len(decoded[1]) == len(bodies)
    parsed = parse({1: schema}, *(b"\0\0\0\0\1" + body for body in bodies))
    assert len(parsed.rows) + len(parsed.dead) == len(bodies)
