"""Protobuf in the registry: texts mean what protoc says, and hostile ones are refused cheaply (R31)."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.proto_messages import compiled_files

from mainstem_registry import operations
from mainstem_registry.errors import RegistryError
from mainstem_registry.requests import SchemaRequest
from mainstem_registry.schemas.limits import Steps
from mainstem_registry.schemas.schema import PARSERS, Reference, SchemaText
from mainstem_registry.state import RegistryState

ORDERS: Final = """
// What a shop sells.
syntax = "proto3";
package shop.v1;

import "google/protobuf/timestamp.proto";
import "google/type/money.proto";

option java_package = "com.example";

message Order {
  option deprecated = true;
  reserved 7, 20 to 30, 100 to max;
  reserved "old";
  message Line { string sku = 1; uint32 count = 2; }
  int64 id = 1 [deprecated = true];  // unique
  map<string, Line> lines_by_sku = 2;
  message Second { repeated int32 n = 1 [packed=false]; }
  optional string note = 3 [json_name = "remark"];
  oneof kind { string gift = 4; Second b = 5; }
  map<int32, Status> m = 6;
  google.protobuf.Timestamp at = 8;
  repeated double p = 9;
  google.type.Money price = 11;
  Order parent = 12;
}
enum Status { option allow_alias = true; NONE = 0; ZERO = 0; NEG = -1 [deprecated = true]; }
service Shop {
  rpc Get(Order) returns (stream Order) { option deprecated = true; }
  rpc Put(stream shop.v1.Order) returns (.shop.v1.Order);
}
"""
OLD: Final = """
syntax = "proto2";
package p;
message M {
  required int32 a = 1 [default = -0x10];
  optional string s = 2 [default = "a\\n\\"q\\" \\x41" 'b'];
  optional bytes y = 3 [default = "\\000\\xffz'"];
  optional float f = 4 [default = -1.5e3];
  optional double d = 5 [default = -inf];
  optional bool b = 6 [default = true];
  optional E e = 7 [default = TWO];
  repeated group Item = 8 { optional int32 q = 1; message In {} optional In i = 2; }
  extensions 100 to 199, 500 to max [verification = UNVERIFIED];
  oneof o { string x = 9; group G = 10 { optional int32 z = 1; } }
  optional uint64 u = 12 [default = 18446744073709551615];
  optional double big = 13 [default = 1e20];
  extend M { optional int32 inner = 101; }
}
enum E { ONE = 1; TWO = 2; reserved -5 to -2, 9; reserved "GONE"; }
extend M { repeated group Ex = 102 { optional int32 v = 1; } optional string ext = 100; }
"""
EDITION: Final = """
edition = "2023";
package e;
option features.field_presence = IMPLICIT;
message A {
  int32 a = 1;
  string b = 2 [features.field_presence = EXPLICIT];
  repeated int32 c = 3 [features.repeated_field_encoding = EXPANDED];
  reserved x, y;
  B m = 4 [features.message_encoding = DELIMITED];
}
message B {
  enum F { option features.enum_type = CLOSED; Q = 5; }
  F f = 1 [features.field_presence = LEGACY_REQUIRED];
}
"""


def parse(text: str, *references: tuple[str, str]) -> Any:
    return PARSERS["PROTOBUF"](text, references)


def proto3(text: str) -> str:
    return f'syntax = "proto3"; {text}'


def descriptor_of(schema: Any) -> Any:
    from google.protobuf import descriptor_pb2

    return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.serialized))


def without_decoration(file: Any) -> Any:
    """A descriptor without what says nothing of data, or follows from the rest."""

    def clear(message: Any) -> None:
        for field in (*message.field, *message.extension):
            field.ClearField("json_name")
            for name in ("edition_defaults", "targets", "feature_support", "retention"):
                field.options.ClearField(name)
            if not field.options.ListFields():
                field.ClearField("options")
        for part in message.extension_range:
            part.ClearField("options")
        for enum in message.enum_type:
            clear_enum(enum)
        for nested in message.nested_type:
            clear(nested)

    def clear_enum(enum: Any) -> None:
        for value in enum.value:
            value.options.ClearField("feature_support")
            if not value.options.ListFields():
                value.ClearField("options")

    for name in ("source_code_info", "name"):
        file.ClearField(name)
    for message in file.message_type:
        clear(message)
    for enum in file.enum_type:
        clear_enum(enum)
    for field in file.extension:
        field.ClearField("json_name")
        field.ClearField("options")
    return file


@pytest.mark.parametrize("text", [ORDERS, OLD, EDITION], ids=["proto3", "proto2", "edition 2023"])
def test_a_text_means_what_protoc_says(text: str) -> None:
    expected = compiled_files({"tested.proto": text})[-1]
    assert str(without_decoration(descriptor_of(parse(text)))) == str(without_decoration(expected))


def known_texts() -> dict[str, str]:
    import grpc_tools

    folder = Path(grpc_tools.__file__).parent / "_proto"
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.glob("google/protobuf/*.proto"))
    }


def test_the_files_of_protobuf_itself_mean_what_protoc_says() -> None:
    texts = known_texts()
    expected = {file.name: file for file in compiled_files(texts)}
    assert len(expected) >= 11
    for name, text in texts.items():
        others = [(other, one) for other, one in texts.items() if other != name]
        schema = parse(text, *(others if name.endswith("features.proto") else ()))
        assert str(without_decoration(descriptor_of(schema))) == str(without_decoration(expected[name])), name


@pytest.mark.parametrize("text", [ORDERS, OLD, EDITION], ids=["proto3", "proto2", "edition 2023"])
def test_a_descriptor_becomes_a_text_of_the_same_meaning(text: str) -> None:
    schema = parse(text)
    of_descriptor = parse(schema.serialized)
    assert of_descriptor.canonical.startswith(("syntax = ", "edition = "))
    assert of_descriptor.normalized == schema.normalized == parse(schema.normalized).normalized
    assert str(descriptor_of(of_descriptor).message_type) == str(descriptor_of(schema).message_type)


def test_messages_keep_their_positions_beside_the_hidden_messages_of_maps() -> None:
    text = proto3(
        "message A { message X {} map<string, X> m = 2; message Y {} int32 i = 1;"
        " message Z {} map<int32, Y> n = 3; }"
    )
    names = ["X", "MEntry", "Y", "Z", "NEntry"]
    for schema in (parse(text), parse(parse(text).serialized)):
        (message,) = descriptor_of(schema).message_type
        assert [nested.name for nested in message.nested_type] == names
        assert [field.name for field in message.field] == ["m", "i", "n"]


def test_comments_layout_and_custom_options_make_no_new_version_and_stay_in_the_text() -> None:
    state = RegistryState()
    commented = proto3('import "o.proto"; /* why */ message A { int32 a = 1 [(o.x) = {y: [1, 2]}]; } // end')
    options = SchemaRequest(SchemaText("PROTOBUF", proto3("package o;")))
    apply(state, operations.register(state, "options", options, normalize=False))
    references = (Reference("o.proto", "options", 1),)
    request = SchemaRequest(SchemaText("PROTOBUF", commented, references))
    first = operations.register(state, "s", request, normalize=False)
    apply(state, first)
    assert first.version.schema.text == commented
    plain = proto3('import "o.proto";\nmessage A {\n  int32 a = 1;\n}\n')
    for text in (plain, parse(plain, ("o.proto", proto3("package o;"))).serialized):
        again = SchemaRequest(SchemaText("PROTOBUF", text, references))
        registration = operations.register(state, "s", again, normalize=False)
        assert (registration.version.number, registration.records) == (1, ())
        assert operations.look_up(state, "s", again, normalize=False, deleted=False).number == 1


def apply(state: RegistryState, registration: operations.Registration) -> None:
    for record in registration.records:
        assert state.apply(record)


# Who can read what.

BASE: Final = proto3(
    "package p; message A { int32 a = 1; string b = 2; B c = 3; } message B { int32 x = 1; }"
)
TABLE: dict[str, tuple[str, str, bool]] = {
    "the same": (BASE, BASE, True),
    "a field more": (BASE.replace("B c = 3;", "B c = 3; int32 d = 4;"), BASE, True),
    "a field less": (BASE.replace("string b = 2;", ""), BASE, True),
    "another name": (BASE.replace("b = 2", "bb = 2"), BASE, True),
    "an integer of another size": (BASE.replace("int32 a", "uint64 a"), BASE, True),
    "an enum for an integer": (BASE.replace("int32 a", "E a") + "enum E { Z = 0; }", BASE, True),
    "bytes for a string": (BASE.replace("string b", "bytes b"), BASE, True),
    "many strings for one": (BASE.replace("string b", "repeated string b"), BASE, True),
    "many numbers for one": (BASE.replace("int32 a", "repeated int32 a"), BASE, False),
    "a zigzag for an integer": (BASE.replace("int32 a", "sint32 a"), BASE, False),
    "a fixed size for an integer": (BASE.replace("int32 a", "fixed32 a"), BASE, False),
    "a double for a float": (
        proto3("message A { double a = 1; }"), proto3("message A { float a = 1; }"), False,
    ),
    "a string for a number": (BASE.replace("int32 a", "string a"), BASE, False),
    "a message for a string": (BASE.replace("string b", "B b"), BASE, False),
    "another message": (BASE.replace("B c", "A c"), BASE, False),
    "a message that changed inside": (BASE.replace("int32 x", "string x"), BASE, False),
    "another package": (BASE.replace("package p", "package q"), BASE, False),
    "a message more": (BASE + "message C {}", BASE, True),
    "a message less": (BASE, BASE + "message C {}", False),
    "messages in another order": (
        proto3("message A {} message B {}"), proto3("message B {} message A {}"), True,
    ),
    "a map for its entries": (
        proto3("message A { map<int32, string> m = 1; }"),
        proto3("message A { repeated E m = 1; message E { int32 key = 1; string value = 2; } }"),
        False,
    ),
    "a map with other values": (
        proto3("message A { map<int32, string> m = 1; }"),
        proto3("message A { map<int32, int32> m = 1; }"),
        False,
    ),
    "a required field more": ("message A { required int32 a = 1; }", "message A {}", False),
    "a required field less": ("message A {}", "message A { required int32 a = 1; }", False),
    "one field moves into a oneof": (
        proto3("message A { oneof o { int32 a = 1; int32 b = 2; } }"),
        proto3("message A { int32 a = 1; }"),
        True,
    ),
    "two fields move into a oneof": (
        proto3("message A { oneof o { int32 a = 1; int32 b = 2; } }"),
        proto3("message A { int32 a = 1; int32 b = 2; }"),
        False,
    ),
    "a field moves into a oneof that was there": (
        proto3("message A { oneof o { int32 a = 1; int32 b = 2; } }"),
        proto3("message A { oneof o { int32 a = 1; } int32 b = 2; }"),
        False,
    ),
    "a field leaves its oneof": (
        proto3("message A { oneof o { int32 a = 1; } int32 b = 2; }"),
        proto3("message A { oneof o { int32 a = 1; int32 b = 2; } }"),
        False,
    ),
    "a field becomes optional": (
        proto3("message A { optional int32 a = 1; optional int32 b = 2; }"),
        proto3("message A { int32 a = 1; int32 b = 2; }"),
        True,
    ),
    "messages that contain one another": (
        proto3("message A { B b = 1; A a = 2; } message B { A a = 1; repeated B b = 2; }"),
        proto3("message A { B b = 1; A a = 2; } message B { A a = 1; B b = 2; }"),
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "can_read"), TABLE.values(), ids=TABLE)
def test_who_can_read_what(reader: str, writer: str, can_read: bool) -> None:
    problems = parse(reader).problems_reading(parse(writer), Steps())
    assert (not problems) is can_read, problems


def test_a_chain_of_ten_thousand_messages_is_compared() -> None:
    chain = "".join(f"message M{n} {{ M{n + 1} a = 1; }}" for n in range(10_000))
    schema = parse(proto3(chain + "message M10000 { int32 a = 1; }"))
    other = parse(proto3(chain + "message M10000 { string a = 1; }"))
    assert schema.problems_reading(schema, Steps()) == []
    (problem,) = schema.problems_reading(other, Steps())
    assert problem.startswith("the field M10000.a (1) is of kind integer")


# What is refused.

WRONG: dict[str, tuple[str, str]] = {
    "nothing": ("word", "neither Protobuf text nor the descriptor"),
    "another language": ('{"type": "record", "name": "A", "fields": []}', "a definition is expected here"),
    "no descriptor": ("AAAA" * 1000, "neither Protobuf text nor the descriptor"),
    "a length beyond the end": (base64.b64encode(b"\n\xff\xff\xff\x7f").decode(), "neither Protobuf text"),
    "an unknown syntax": ('syntax = "proto4";', "line 1: the syntax 'proto4'"),
    "a line": (proto3("\nmessage A {\n  int32 = 1;\n}"), "line 3: a name is missing"),
    "a label that is missing": ("message A { int32 a = 1; }", "optional, repeated or required is missing"),
    "a required field of proto3": (proto3("message A { required int32 a = 1; }"), "no required fields"),
    "a type that is nowhere": (proto3("message A { B b = 1; }"), "couldn't resolve name 'B'"),
    "a name twice": (proto3("message A {} message A {}"), "duplicate symbol 'A'"),
    "a number twice": (proto3("message A { int32 a = 1; int32 b = 1; }"), "duplicate field number"),
    "a number of 0": (proto3("message A { int32 a = 0; }"), "must be between 1 and 536870911"),
    "a number of Protobuf's own": (proto3("message A { int32 a = 19000; }"), "reserved for Protobuf"),
    "a reserved number": (proto3("message A { reserved 1 to 5; int32 a = 3; }"), "uses 3, which is reserved"),
    "a reserved name": (proto3('message A { reserved "a"; int32 a = 3; }'), "uses 'a', which is reserved"),
    "an enum that begins late": (proto3("enum E { A = 1; }"), "must be 0 in proto3"),
    "an alias": (proto3("enum E { A = 0; B = 0; }"), "without allow_alias"),
    "a key that is a float": (proto3("message A { map<float, int32> a = 1; }"), "a map's key is"),
    "an empty oneof": (proto3("message A { oneof o { } }"), "has no fields"),
    "an absent import": (proto3('import "other.proto";'), "no file 'other.proto' to import"),
    "an import of itself": (proto3('import "(schema)";'), "no file '(schema)' to import"),
    "messages too deep": (proto3("message M {" * 40_000), "deeper than 32 levels"),
    "braces without end": (proto3("option (a) = " + "{" * 150_000), "'}' is missing"),
    "a comment without end": (proto3("/*" * 400_000), "means nothing here"),
    "a string without end": ("'" + "\\'" * 400_000, "means nothing here"),
    "a number without end": (proto3("message A { int32 a = " + "9" * 500_000 + "; }"), "whole one"),
    "too many words": (proto3("message A {" + "int32 a = 1;" * 50_000 + "}"), "more than 200000 words"),
    "too long": (proto3("// " + "x" * 2**20), "longer than 1048576 bytes"),
    "bytes": ("\x00" * 100, "means nothing here"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused_with_its_reason(text: str, words: str) -> None:
    with pytest.raises(RegistryError) as refused:
        parse(text)
    assert refused.value.code == 42201
    assert words in refused.value.message


def test_imports_are_found_by_the_names_of_references() -> None:
    address = ("common/address.proto", proto3("package c; message Address { string city = 1; }"))
    text = proto3('import "common/address.proto"; message P { c.Address home = 1; }')
    assert ".c.Address home = 1;" in parse(text, address).normalized
    through = ("all.proto", proto3('import public "common/address.proto";'))
    assert parse(text.replace("common/address", "all"), address, through)
    hidden = ("all.proto", proto3('import "common/address.proto";'))
    with pytest.raises(RegistryError, match=r"whose file 'common/address\.proto' is not imported"):
        parse(text.replace("common/address", "all"), address, hidden)


@pytest.mark.parametrize(
    ("references", "words"),
    [
        ({"a": 'import "b";', "b": 'import "a";'}, "in a circle: a -> b -> a"),
        ({"a": 'import "a";'}, "in a circle: a -> a"),
        ({"a": 'import "gone";'}, "the import 'a': there is no file 'gone'"),
        ({"a": "message"}, "neither Protobuf text"),
        ({"a": "message X { optional int32 y = 1; } " * 20_000}, "more than 200000 words"),
    ],
)
def test_imports_that_cannot_be_followed_are_refused(references: dict[str, str], words: str) -> None:
    with pytest.raises(RegistryError) as refused:
        parse(proto3('import "a";'), *references.items())
    assert words in refused.value.message


def test_descriptors_that_no_text_could_have_are_refused() -> None:
    from google.protobuf import descriptor_pb2

    def refusal(file: Any) -> str:
        with pytest.raises(RegistryError) as refused:
            parse(base64.b64encode(file.SerializeToString()).decode())
        return refused.value.message

    file = descriptor_pb2.FileDescriptorProto(name="x", syntax="proto3")
    message = file.message_type.add(name="A { } message B")
    assert "'A { } message B' is not a name" in refusal(file)
    message.name = "A"
    field = message.field.add(name="a", number=1, label=1, type=11, type_name=".B")
    assert "couldn't resolve name '.B'" in refusal(file)
    field.type, field.oneof_index = 5, 7
    assert "in a oneof that does not exist" in refusal(file)
    field.ClearField("oneof_index")
    field.number = -1
    assert "must be between 1" in refusal(file)
    field.number = 1
    message.nested_type.add(name="E").options.map_entry = True
    assert "the map 'E' belongs to no field" in refusal(file)
    deep = descriptor_pb2.FileDescriptorProto(name="x", syntax="proto3")
    inner = deep.message_type.add(name="N")
    for _ in range(80):
        inner = inner.nested_type.add(name="N")
    assert "deeper than 32 levels" in refusal(deep)
