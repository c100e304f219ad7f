"""Protobuf values to columns, as Google's library reads them (R28, R31)."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from mainstem_loader.columns import ColumnError, Columns
from mainstem_registry.schemas.schema import PARSERS

EVERYTHING: Final = """
syntax = "proto3";
package s;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum E { A = 0; B = 1; NEG = -1; }
message M {
  int64 id = 1; string name = 2; double x = 3; bool b = 4; E e = 5; google.protobuf.Timestamp at = 6;
  optional int32 o = 7; bytes y = 8; repeated int32 p = 9; repeated string rs = 10; map<string, int64> m = 11;
  In inn = 12; repeated In ins = 13; uint64 u = 14; sint32 s32 = 15; sint64 s64 = 16; fixed32 f32 = 17;
  fixed64 f64 = 18; sfixed32 sf32 = 19; sfixed64 sf64 = 20; float f = 21; uint32 u32 = 22;
  google.protobuf.Int64Value w = 23; M rec = 24; google.protobuf.Struct st = 25;
  oneof k { string k1 = 26; In k2 = 27; }
  repeated int64 unpacked = 28 [packed = false]; map<int32, In> mm = 29; repeated E es = 30;
  repeated double ds = 31; repeated sint64 ss = 32; repeated google.protobuf.Timestamp ts = 33;
  map<string, E> me = 34;
  message In { string a = 1; int32 b = 2; optional In2 c = 3; }
  message In2 { repeated string z = 1; }
}
"""
ORDER: Final = """
syntax = "proto3";
message Order {
  int32 id = 1;
  optional string note = 2;
  message Line { string sku = 1; message Tax { double rate = 1; } }
  repeated Line lines = 3;
}
message Other { string word = 1; }
"""


def schema_of(text: str) -> Any:
    from mainstem_loader.payload.protobuf_schema import parse_schema

    return parse_schema(PARSERS["PROTOBUF"](text, ()).serialized, ())


class Reading:
    """A reader of values of given schemas, by their ids."""

    def __init__(self, *texts: str, fixed: Columns | None = None) -> None:
        from mainstem_loader.payload.protobuf_payload import ProtobufPayload

        self.schemas = dict(enumerate(map(schema_of, texts), 1))
        self.payload = ProtobufPayload(fixed or {}, self._schema)

    def _schema(self, schema_id: int) -> Any:
        if schema_id not in self.schemas:
            raise ColumnError(f"the schema registry does not know the id {schema_id} of a schema")
        return self.schemas[schema_id]

    def new(self, schema_id: int = 1, *indexes: int) -> Any:
        return self.schemas[schema_id].message(indexes or (0,)).message_class()

    def rows(self, *values: bytes | None) -> dict[int, dict[str, Any]]:
        parsed = self.payload.parse(pa.array(values, pa.binary()))
        return dict(zip(parsed.rows.tolist(), parsed.columns.to_pylist(), strict=True))

    def dead(self, *values: bytes | None) -> dict[int, str]:
        return dict(self.payload.parse(pa.array(values, pa.binary())).dead)


def value(message: Any, schema_id: int = 1, indexes: bytes = b"\0") -> bytes:
    body: bytes = message.SerializeToString()
    return b"\0" + schema_id.to_bytes(4, "big") + indexes + body


def random_message(new: Any, chance: random.Random) -> Any:
    """A message of EVERYTHING with some of its fields set."""
    message = new()
    if chance.random() < 0.8:
        message.id = chance.choice([0, 1, -1, 2**63 - 1, -(2**63), chance.getrandbits(40)])
        message.name = chance.choice(["", "é", "x" * chance.randint(0, 300)])
    if chance.random() < 0.5:
        message.x, message.f = chance.random(), chance.random()
    message.b, message.e = chance.random() < 0.5, chance.choice([0, 1, -1, 7])
    if chance.random() < 0.7:
        message.at.seconds, message.at.nanos = chance.randint(-(10**9), 10**9), chance.randrange(10**9)
    if chance.random() < 0.5:
        message.o = chance.choice([0, -5, 2**31 - 1])
    message.y = chance.randbytes(chance.randint(0, 5))
    message.p.extend(chance.choice([0, -1, 300, 2**31 - 1]) for _ in range(chance.randint(0, 4)))
    message.rs.extend(chance.choice(["", "a", "ü"]) for _ in range(chance.randint(0, 4)))
    for _ in range(chance.randint(0, 3)):
        message.m[chance.choice("abc")] = chance.randint(-5, 5)
        random_inner(message.mm[chance.randint(-2, 2)], chance)
        random_inner(message.ins.add(), chance)
        message.ts.add().seconds = chance.randrange(10**9)
        message.me[chance.choice("xy")] = chance.choice([0, 1])
    if chance.random() < 0.6:
        random_inner(message.inn, chance)
    message.u, message.f64 = chance.choice([0, 2**64 - 1]), chance.choice([0, 2**64 - 1])
    message.s32, message.s64 = chance.choice([-(2**31), 2**31 - 1, 0]), chance.choice([-(2**63), 5])
    message.f32, message.u32 = chance.choice([0, 2**32 - 1]), chance.choice([0, 2**32 - 1])
    message.sf32, message.sf64 = chance.choice([0, -7]), chance.choice([0, -7])
    if chance.random() < 0.5:
        message.w.value = chance.choice([0, 9])
    if chance.random() < 0.3:
        message.rec.id = 5
        message.st["a"] = 1.5
    match chance.randrange(3):
        case 0:
            message.k1 = "s"
        case 1:
            random_inner(message.k2, chance)
    message.unpacked.extend(range(chance.randint(0, 3)))
    message.es.extend([0, 1, 9][: chance.randint(0, 3)])
    message.ds.extend([1.5] * chance.randint(0, 3))
    message.ss.extend([-1, 2**40] * chance.randint(0, 2))
    return message


def random_inner(inner: Any, chance: random.Random) -> None:
    inner.a, inner.b = chance.choice(["q", ""]), chance.randint(-3, 3)
    if chance.random() < 0.5:
        inner.c.z.extend(["1", "2"][: chance.randint(0, 2)])


def read_by_library(message_type: Any, body: bytes) -> dict[str, Any] | None:
    """The row of a message as Google's library reads it; None if it refuses."""
    from google.protobuf.message import DecodeError

    from mainstem_loader.payload.protobuf_payload import _members

    try:
        members = _members(message_type, message_type.message_class.FromString(body))
    except (DecodeError, ValueError):
        return None
    fields = message_type.fields.values()
    table = pa.table({one.name: pa.array([members[one.name]], one.column) for one in fields})
    (row,) = table.to_pylist()
    return comparable(row)


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose maps have one order. Text: NaN is not equal to itself."""
    return {
        name: str(sorted(one, key=str) if isinstance(one, list) and name in ("m", "mm", "me") else one)
        for name, one in row.items()
    }


@pytest.mark.parametrize("seed", range(3))
def test_every_type_is_read_as_the_library_reads_it(seed: int) -> None:
    chance = random.Random(seed)
    reading = Reading(EVERYTHING)
    messages = [random_message(reading.new, chance) for _ in range(400)]
    rows = reading.rows(*(value(message) for message in messages))
    message_type = reading.schemas[1].message((0,))
    for at, message in enumerate(messages):
        assert comparable(rows[at]) == read_by_library(message_type, message.SerializeToString())


@pytest.mark.parametrize("seed", range(3))
def test_damaged_bytes_are_dead_if_the_library_refuses_them_and_read_alike_if_not(seed: int) -> None:
    chance = random.Random(seed)
    reading = Reading(EVERYTHING)
    values = []
    for _ in range(400):
        damaged = bytearray(value(random_message(reading.new, chance)))
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(6, len(damaged))
            match chance.randrange(5):
                case 0:
                    del damaged[max(at, 7) :]
                case 1:
                    damaged += chance.randbytes(3)
                case _:
                    damaged[at] = chance.randrange(256)
        values.append(bytes(damaged))
    rows, dead = reading.rows(*values), reading.dead(*values)
    message_type = reading.schemas[1].message((0,))
    for at, damaged_value in enumerate(values):
        expected = read_by_library(message_type, damaged_value[6:])
        assert (expected is None) == (at in dead), dead.get(at)
        if expected is not None:
            assert comparable(rows[at]) == expected


def test_what_is_not_set_is_its_default_or_null_as_the_schema_has_it() -> None:
    reading = Reading(EVERYTHING)
    (row,) = reading.rows(value(reading.new())).values()
    assert (row["id"], row["name"], row["b"], row["e"], row["u"]) == (0, "", False, "A", Decimal(0))
    assert (row["o"], row["at"], row["inn"], row["w"], row["k1"], row["rec"]) == (None,) * 6
    assert (row["p"], row["m"]) == ([], [])


def test_numbers_of_an_enum_without_a_name_and_messages_inside_themselves_are_texts() -> None:
    reading = Reading(EVERYTHING)
    message = reading.new()
    message.e, message.rec.name = 7, "inner"
    message.st["a"] = 1.5
    (row,) = reading.rows(value(message)).values()
    assert (row["e"], row["rec"], row["st"]) == ("7", '{"name": "inner"}', '{"a": 1.5}')


def test_values_name_their_message_by_its_position() -> None:
    reading = Reading(ORDER)
    order, other = reading.new(), reading.new(1, 1)
    order.id, other.word = 7, "w"
    line, tax = reading.new(1, 0, 0), reading.new(1, 0, 0, 0)
    line.sku, tax.rate = "k", 0.5
    rows = reading.rows(
        value(order),
        value(order, indexes=b"\2\0"),
        value(other, indexes=b"\2\2"),
        value(line, indexes=b"\4\0\0"),
        value(tax, indexes=b"\6\0\0\0"),
        None,
    )
    names = [{name for name, one in row.items() if one not in (None, [])} for row in rows.values()]
    assert names == [{"id"}, {"id"}, {"word"}, {"sku"}, {"rate"}, set()]


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (b"plain", "the value begins with byte 112"),
        (b"\0\0\0\0\1", "ends behind the id of its schema"),
        (b"\0\0\0\0\1\2\6", "the schema has no message at [3]"),
        (b"\0\0\0\0\1\2\1", "the schema has no message at [-1]"),
        (b"\0\0\0\0\1\3", "the position of the value's message is not valid"),
        (b"\0\0\0\0\1\2", "the position of the value's message is not valid"),
        (b"\0\0\0\0\1\xff\xff\xff\xff\xff\xff\xff", "the position of the value's message is not valid"),
        (b"\0\0\0\0\1\0\x08", "not what schema 1 says"),
        (b"\0\0\0\0\1\0\x12\x7f", "not what schema 1 says"),
        (b"\0\0\0\0\1\0\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\1", "not what schema 1 says"),
        (b"\0\0\0\0\1\0\x12\1\xff", "not what schema 1 says"),
        (b"\0\0\0\0\1\0\0\0", "not what schema 1 says"),
        (b"\0\0\0\0\x09\0", "does not know the id 9"),
    ],
)
def test_what_cannot_be_read_is_dead_with_its_reason_and_others_are_rows(damaged: bytes, reason: str) -> None:
    reading = Reading(ORDER)
    order = reading.new()
    order.id = 7
    values = (value(order), damaged, value(order))
    assert reason in reading.dead(*values)[1]
    assert list(reading.rows(*values)) == [0, 2]


def test_schemas_of_several_versions_meet_in_one_table() -> None:
    newer = ORDER.replace("int32 id", "int64 id").replace("string sku = 1;", "string sku = 1; int32 n = 2;")
    reading = Reading(ORDER, newer)
    old, new = reading.new(1), reading.new(2)
    old.lines.add().sku = "a"
    line = new.lines.add()
    new.id, line.sku, line.n = 2**40, "b", 3
    first, second = reading.rows(value(old), value(new, 2)).values()
    assert (first["id"], first["lines"]) == (0, [{"sku": "a", "n": None}])
    assert (second["id"], second["lines"]) == (2**40, [{"sku": "b", "n": 3}])


def test_values_that_do_not_fit_their_column_any_more_go_to_the_rest() -> None:
    reading = Reading(ORDER, fixed={"id": pa.string()})
    order = reading.new()
    order.id, order.note = 7, "n"
    (row,) = reading.rows(value(order)).values()
    assert (row["_rest"], row["note"]) == ('{"id": 7}', "n")


def test_a_map_that_does_not_fit_its_column_is_an_object_of_the_rest() -> None:
    text = 'syntax = "proto3"; message M { map<uint64, bool> m = 1; map<bool, uint64> n = 2; }'
    reading = Reading(text, fixed={"m": pa.string(), "n": pa.string()})
    message = reading.new()
    message.m[2**64 - 1], message.m[5] = True, False
    message.n[True] = 7
    ((_, row),) = reading.rows(value(message)).items()
    assert json.loads(row["_rest"]) == {"m": {str(2**64 - 1): True, "5": False}, "n": {"true": "7"}}


def test_fields_out_of_order_unknown_fields_and_repeated_ones_are_read_as_the_library_reads_them() -> None:
    reading = Reading(ORDER)
    message_type = reading.schemas[1].message((0,))
    bodies: Sequence[bytes] = (
        b"\x12\1n\x08\7",  # note before id
        b"\x08\1\x08\2\x08\3",  # the last id counts
        b"\x08\7\x98\x06\5\xa2\x06\2xx\xad\x06abcd\xb1\x06abcdefgh",  # unknown fields of every wire type
        b"\x0a\1x\x08\7",  # id with the wire type of a string is unknown
        b"\x08\7\xa3\x06\x08\1\xa4\x06",  # an unknown group
        b"\x1a\3\x0a\1a" * 100,  # many lines
        b"\x1a\3\x0a\1a" * 1000 + b"\x08\7",  # more than are read together
    )
    rows = reading.rows(*(b"\0\0\0\0\1\0" + body for body in bodies))
    for at, body in enumerate(bodies):
        assert comparable(rows[at]) == read_by_library(message_type, body), body[:20]


def test_groups_closed_enums_and_defaults_of_proto2_are_read_as_the_library_reads_them() -> None:
    reading = Reading(
        """
        message A {
          repeated group Item = 1 { optional int32 q = 1; }
          optional E e = 2 [default = TWO];
          optional string s = 3 [default = "d"];
          repeated E es = 4;
        }
        enum E { ONE = 1; TWO = 2; }
        """
    )
    message_type = reading.schemas[1].message((0,))
    bodies = (
        b"",
        b"\x10\1\x1a\1x",
        b"\x10\x09",  # no number of E
        b"\x20\1\x20\x09\x20\2",
        b"\x0b\x08\5\x0c\x0b\x0c",  # two groups
        b"\x0a\2\x08\5",  # a group's number with another wire type
    )
    rows = reading.rows(*(b"\0\0\0\0\1\0" + body for body in bodies))
    for at, body in enumerate(bodies):
        assert comparable(rows[at]) == read_by_library(message_type, body), body
    assert rows[0]["e"] is None and rows[2]["e"] is None
    assert rows[4]["item"] == [{"q": 5}, {"q": None}]


HOSTILE: Final = {
    "messages that double at each level": (
        "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(25))
        + "message M25 { int32 x = 1; }",
        "more than 10000 fields",
    ),
    "a chain of messages": (
        "".join(f"message M{n} {{ M{n + 1} a = 1; }}" for n in range(40)) + "message M40 { int32 x = 1; }",
        "nested more than 32 levels deep",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_schemas_that_no_table_can_hold_make_dead_letters(text: str, reason: str) -> None:
    reading = Reading(f'syntax = "proto3"; {text}')
    assert reason in reading.dead(b"\0\0\0\0\1\0\x0a\0")[0]


def test_members_that_differ_in_case_alone_make_their_message_json() -> None:
    reading = Reading('syntax = "proto3"; message A { B b = 1; } message B { int32 x = 1; int32 X = 2; }')
    message = reading.new()
    message.b.x = 5
    (row,) = reading.rows(value(message)).values()
    assert row == {"b": '{"x": 5}'}


NODE: Final = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
message Node {
  int32 id = 1; Node child = 2; google.protobuf.Timestamp ts = 3; google.protobuf.Struct st = 4;
}
"""


@pytest.mark.parametrize("place", ["st", "child.st", "child.ts", "child.child.ts"])
def test_a_message_that_has_no_json_is_dead_and_its_neighbors_are_rows(place: str) -> None:
    """R31: one record does not fail the load."""
    reading = Reading(NODE)
    good, bad = reading.new(), reading.new()
    good.id = 7
    good.child.ts.seconds = 0
    *path, field = place.split(".")
    part = bad
    for name in path:
        part = getattr(part, name)
    if field == "st":
        part.st["x"] = math.inf
    else:
        part.ts.seconds = 253_402_300_800
    values = (value(good), value(bad), value(good))
    assert "not what schema 1 says: " in reading.dead(*values)[1]
    assert [row["child"] for row in reading.rows(*values).values()] == ['{"ts": "1970-01-01T00:00:00Z"}'] * 2


def test_an_empty_message_and_one_without_columns_are_rows() -> None:
    reading = Reading('syntax = "proto3"; message A { B b = 1; } message B {}')
    assert reading.rows(b"\0\0\0\0\1\0", b"\0\0\0\0\1\0\x0a\0") == {0: {}, 1: {}}


@pytest.mark.parametrize("text", ["no base64", "AAAA"])
def test_what_is_no_descriptor_is_refused(text: str) -> None:
    from mainstem_loader.payload.protobuf_schema import NoDescriptorError, parse_schema

    with pytest.raises(NoDescriptorError):
        parse_schema(text, ())


def test_a_descriptor_without_messages_makes_dead_letters() -> None:
    from mainstem_loader.payload.protobuf_schema import parse_schema

    with pytest.raises(ColumnError, match="no message at"):
        parse_schema("CgA=", ()).message((0,))
