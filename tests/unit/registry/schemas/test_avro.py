"""Avro compatibility: the specification's "Schema Resolution" as a table, and fastavro as the judge (R31)."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem_registry.errors import RegistryError
from mainstem_registry.schemas import avro
from mainstem_registry.schemas.avro import PRIMITIVES
from mainstem_registry.schemas.limits import Steps

PROMOTED = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"),
    ("float", "double"), ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip
"""(writer, reader), from the specification."""


def parse(value: Any) -> avro.AvroSchema:
    return avro.parse(json.dumps(value), ())


def reads(reader: Any, writer: Any) -> bool:
    return not parse(reader).problems_reading(parse(writer), Steps())


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


@pytest.mark.parametrize("reader", sorted(PRIMITIVES))
@pytest.mark.parametrize("writer", sorted(PRIMITIVES))
def test_primitive_types_are_promoted_as_the_specification_says(writer: str, reader: str) -> None:
    assert reads(reader, writer) == (writer == reader or (writer, reader) in PROMOTED)


X = {"name": "x", "type": "int"}
TABLE: dict[str, tuple[Any, Any, bool]] = {
    "a field that only the writer has is skipped": (record(), record(X), True),
    "a field that only the reader has needs a default": (record(X), record(), False),
    "a default stands for what is missing": (record({**X, "default": 0}), record(), True),
    "a null default counts": (
        record({"name": "x", "type": ["null", "int"], "default": None}), record(), True,
    ),
    "fields are found by alias": (record({"name": "y", "type": "int", "aliases": ["x"]}), record(X), True),
    "fields may come in another order": (
        record(X, {"name": "y", "type": "int"}), record({"name": "y", "type": "int"}, X), True,
    ),
    "a field's type must fit": (record({"name": "x", "type": "string"}), record(X), False),
    "names of records count": (record(X, name="A"), record(X, name="B"), False),
    "namespaces do not": (record(X, name="a.A"), record(X, name="b.A"), True),
    "an alias stands for a name": (record(X, name="A", aliases=["B"]), record(X, name="B"), True),
    "enums may gain symbols": (enum("A", "B"), enum("A"), True),
    "enums may not lose symbols": (enum("A"), enum("A", "B"), False),
    "unless there is a default": (enum("A", default="A"), enum("A", "B"), True),
    "a fixed keeps its size": (
        {"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8}, False,
    ),
    "a union reads one of its types": (["null", "int"], "int", True),
    "a union reads what a branch promotes": (["null", "long"], "int", True),
    "a type reads a union only if it reads all branches": ("int", ["null", "int"], False),
    "a union may gain branches": (["null", "int", "string"], ["null", "int"], True),
    "a union may not lose branches": (["null"], ["null", "int"], False),
    "a type reads a union of what it reads": ("double", ["int", "float"], True),
    "arrays by their items": ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
    "maps by their values": ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, False),
    "an array is no map": ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, False),
    "logical types do not count": ("long", {"type": "long", "logicalType": "timestamp-millis"}, True),
}  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "expected"), TABLE.values(), ids=list(TABLE))
def test_resolution(reader: Any, writer: Any, expected: bool) -> None:
    assert reads(reader, writer) == expected


json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.sampled_from(["record", "enum", "int", "array", "A"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "name",
                    "fields",
                    "symbols",
                    "items",
                    "values",
                    "size",
                    "default",
                    "aliases",
                    "namespace",
                ]
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=10,
)


@settings(max_examples=300)
@given(json_values)
def test_any_json_is_a_schema_or_refused(value: Any) -> None:
    try:
        schema = parse(value)
    except RegistryError as error:
        assert error.code == 42201
    else:
        assert not schema.problems_reading(schema, Steps())
        assert avro.parse(schema.canonical, ()).canonical == schema.canonical
        assert avro.parse(schema.normalized, ()).normalized == schema.normalized
        for text in (schema.canonical, schema.normalized):
            assert avro.parse(text, ()).identity == schema.identity


def linked(**extra: Any) -> dict[str, Any]:
    node = record({"name": "next", "type": ["null", "Node"], "default": None}, name="Node")
    node["fields"].append({"name": "x", "type": "int", **extra})
    return node


def test_recursive_types_are_compared_once() -> None:
    assert reads(linked(), linked())
    without = record({"name": "next", "type": ["null", "Node"], "default": None}, name="Node")
    assert not reads(linked(), without)
    assert reads(linked(default=1), without)


def test_what_was_assumed_of_a_branch_that_failed_is_forgotten() -> None:
    # The first branch fails at `b` after `a` was judged inside it; the second needs that judgement again.
    inner_old = record({"name": "loop", "type": ["null", "Outer"], "default": None}, name="Inner")
    outer_old = record({"name": "a", "type": inner_old}, {"name": "b", "type": "string"}, name="Outer")
    inner_new = record({"name": "loop", "type": ["null", "Outer"], "default": None}, name="Inner")
    outer_new = record({"name": "a", "type": inner_new}, {"name": "b", "type": "int"}, name="Outer")
    assert not reads(outer_new, outer_old)
    assert not reads([outer_new, "null"], [outer_old])
    assert not reads(
        record({"name": "x", "type": [outer_new, "Inner"]}), record({"name": "x", "type": outer_old})
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('"nothing"', "not defined"),
        ("{}", "type"),
        ("3", "Invalid schema"),
        ('{"type":"record","name":"A"}', "fields"),
        ('{"type":"record","name":"A","fields":[{"name":"x"}]}', "type"),
        ('{"type":"enum","name":"E","symbols":["A","A"]}', "Invalid schema"),
        ('{"type":"fixed","name":"F"}', "size"),
        ('{"type":"array"}', "items"),
        ("[" * 500 + "]" * 500, "deeper"),
        ('{"type":"array","items":' * 200 + '"int"' + "}" * 200, "deeper"),
        ("[" + ",".join(['"int"'] * 60_000) + "]", "more than"),
        ('"' + "x" * (1024 * 1024) + '"', "bytes"),
    ],
    ids=range(14),
)
def test_texts_that_are_no_schema_are_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(RegistryError, match=reason) as refused:
        avro.parse(text, ())
    assert refused.value.code == 42201
    assert len(str(refused.value)) < 2000


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (["int", "int"], "two branches 'int'"),
        (["null", {"type": "array", "items": "int"}, {"type": "array", "items": "string"}], "'array'"),
        (["null", ["int"]], "union contains another"),
        ({"type": "map", "values": ["int", "int"]}, "two branches"),
        (record({"name": "a", "type": "int"}, {"name": "a", "type": "string"}), "two fields 'a'"),
        (record({"name": "a-b", "type": "int"}), "name 'a-b'"),
        (record({"name": "a.b", "type": "int"}), "name 'a.b'"),
        (record({"name": "", "type": "int"}), "name ''"),
        (record(name="1R"), "name '1R'"),
        (record({"name": "x", "type": record({"name": "a b", "type": "int"}, name="In")}), "name 'a b'"),
        ({"type": "fixed", "name": "F", "size": -1}, "negative size"),
    ],
)
def test_a_new_schema_is_one_that_javas_library_reads(value: Any, reason: str) -> None:
    with pytest.raises(RegistryError, match=reason) as refused:
        avro.check_new(parse(value))
    assert refused.value.code == 42201


@pytest.mark.parametrize(
    "value",
    [
        ["null", "int", record(name="A"), record(name="B"), {"type": "fixed", "name": "n.F", "size": 0}],
        record({"name": "_a1", "type": "int"}, {"name": "gr\u00f6\u00dfe", "type": "int"}, name="a.b.C"),
        {"type": "enum", "name": "E", "symbols": ["A", "_B"]},
        {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]},
        [],
    ],
)
def test_a_new_schema_that_javas_library_reads_is_taken(value: Any) -> None:
    avro.check_new(parse(value))


@pytest.mark.parametrize(
    "attributes",
    [
        {"precision": 64, "scale": -127}, {"precision": 2, "scale": 3}, {"precision": "10"}, {"precision": 0},
        {"precision": 20, "type": "fixed", "name": "F", "size": 2},
    ],
)  # fmt: skip
def test_a_logical_type_that_is_not_valid_is_ignored(attributes: dict[str, Any]) -> None:
    """Specification 1.12, "Logical Types". Java's library and other registries take such a schema."""
    schema = parse({"type": "bytes", "logicalType": "decimal", **attributes})
    avro.check_new(schema)
    assert schema.root.kind == attributes.get("type", "bytes")


FIXED = {"type": "fixed", "name": "F", "size": 2}
PART = record({"name": "a", "type": "int"}, {"name": "b", "type": "string", "default": "z"}, name="Part")
JAVA_ACCEPTS: tuple[tuple[Any, str], ...] = (
    ("int", "2147483647"), ("int", "-2147483648"),
    ("long", "9223372036854775807"), ("long", "-9223372036854775808"),
    ("float", "1"), ("float", "1e39"), ("double", "18446744073709551616"),
    ("double", '"NaN"'), ("float", '"-Infinity"'), ("double", '" 1.5f "'),
    ("bytes", '"\\u00ff"'), ("bytes", '"\\u0100"'), (FIXED, '"abc"'), (FIXED, '""'),
    (enum("A", "B"), '"C"'),
    (["null", "int"], "null"), (["null", "int"], "1"), (["int", "null"], "null"), (["int", "double"], "1.5"),
    ({"type": "array", "items": ["null", "int"]}, "[null, 1]"), ({"type": "map", "values": "int"}, "{}"),
    (PART, '{"a": 1}'), (PART, '{"a": 1, "c": 5}'),
    (record({"name": "d", "type": "double", "default": "NaN"}, name="Part"), "{}"),
    (["null", "R"], "null"), ({"type": "array", "items": "R"}, "[]"),
)  # fmt: skip
JAVA_REFUSES: tuple[tuple[Any, str], ...] = (
    ("int", "2147483648"), ("int", "-2147483649"), ("int", "1.0"), ("int", "1e2"), ("int", '"1"'),
    ("int", "true"), ("int", "null"),
    ("long", "9223372036854775808"), ("long", "-9223372036854775809"), ("long", "1.0"), ("long", "1e18"),
    ("float", "true"), ("double", "null"), ("double", '"nan"'), ("double", '"INF"'), ("double", '"1_0"'),
    ("double", '""'), (["double", "null"], '"NaN"'), ({"type": "array", "items": "double"}, '["NaN"]'),
    ("bytes", "1"), (FIXED, "1"), (enum("A"), "1"), ("string", "1"), ("null", "0"), ("boolean", '"true"'),
    (["null", "int"], '"x"'), (["null", "int"], "2147483648"), ([], "null"),
    ({"type": "array", "items": "int"}, '[1, "a"]'), ({"type": "array", "items": "int"}, "{}"),
    ({"type": "map", "values": "int"}, '{"a": "b"}'), ({"type": "map", "values": "int"}, "[]"),
    (PART, "{}"), (PART, '{"a": 2147483648}'), (PART, '{"a": 1, "b": 5}'), (PART, "[]"), (PART, "null"),
    (["null", "R"], "{}"), ("R", '{"x": null}'), ({"type": "array", "items": "R"}, "[{}]"),
)  # fmt: skip
"""Types and defaults in JSON, with the verdicts of Apache Avro for Java 1.12.0 (`Schema.Parser.parse`)."""


def with_default(type_: Any, default: str) -> str:
    return (
        f'{{"type":"record","name":"R","fields":[{{"name":"x","type":{json.dumps(type_)},'
        f'"default":{default}}}]}}'
    )


@pytest.mark.parametrize(("type_", "default"), JAVA_ACCEPTS)
def test_a_default_that_javas_library_takes_is_taken(type_: Any, default: str) -> None:
    avro.check_new(avro.parse(with_default(type_, default), ()))


@pytest.mark.parametrize(("type_", "default"), JAVA_REFUSES)
def test_a_default_that_javas_library_refuses_is_refused(type_: Any, default: str) -> None:
    with pytest.raises(RegistryError, match=r"the default of the field 'x', .+, is no value of its type, "):
        avro.check_new(avro.parse(with_default(type_, default), ()))


def test_a_schema_that_another_registry_stored_is_read_whatever_its_defaults() -> None:
    """Confluent's registry looks at defaults only if `avro.validate.defaults` is set."""
    stored = avro.parse(with_default("int", '"a"'), ())
    assert not stored.problems_reading(parse(record()), Steps())


def test_a_default_that_rests_on_another_one_is_refused_with_the_name_of_the_other() -> None:
    inner = record({"name": "a", "type": "int", "default": "no number"}, name="Inner")
    with pytest.raises(RegistryError, match="the default of the field 'a', \"no number\", is no value"):
        avro.check_new(avro.parse(with_default(inner, "{}"), ()))


def test_the_default_of_an_enum_is_one_of_its_symbols() -> None:
    avro.check_new(parse(enum("A", "B", default="B")))
    avro.check_new(parse(enum("A", "B", default=None)))  # Java's library ignores what is no text
    with pytest.raises(RegistryError, match="the default of the enum 'E', 'C', is none of its symbols"):
        avro.check_new(parse(enum("A", "B", default="C")))


def test_a_default_that_fits_no_branch_is_judged_once_by_each_type() -> None:
    """Each union has two records whose field is the union before: there are two million ways through them."""
    inner: Any = "int"
    default: Any = "no number"
    for level in range(21):
        first = record({"name": "x", "type": inner}, name=f"A{level}")
        again = [f"A{level - 1}", f"B{level - 1}"] if level else "int"
        inner = [first, record({"name": "x", "type": again}, name=f"B{level}")]
        default = {"x": default}
    with pytest.raises(RegistryError, match="is no value of its type, a union of record 'A20', record 'B20'"):
        avro.check_new(avro.parse(with_default(inner, json.dumps(default)), ()))


@pytest.mark.parametrize("records", [1, 1000])
def test_defaults_whose_check_would_take_too_long_are_refused(records: int) -> None:
    """Each of a thousand parts is compared with each of a thousand fields, of one record or of as many.

    A stored schema is read all the same.
    """
    fields = [{"name": f"x{number}", "type": "int", "default": 0} for number in range(1000 // records)]
    branches = [record(*fields, name=f"P{number}") for number in range(records)]
    items = [*branches, {"type": "map", "values": "string"}]
    part = {"x0": "no number"} if records > 1 else {}
    default = json.dumps([part] * 1000)
    schema = avro.parse(with_default({"type": "array", "items": items}, default), ())
    with pytest.raises(RegistryError, match="its default values have too many parts to be checked"):
        avro.check_new(schema)


def test_a_default_that_is_a_long_text_is_read_once() -> None:
    with pytest.raises(RegistryError, match="is no value of its type, double"):
        avro.check_new(avro.parse(with_default("double", json.dumps("1" * 500_000 + "x")), ()))


def test_a_comparison_that_would_take_too_long_ends() -> None:
    with pytest.raises(RegistryError, match="too complex"):
        parse({"type": "array", "items": "int"}).problems_reading(
            parse({"type": "array", "items": "int"}), Steps(limit=1)
        )


USER = '{"type":"record","name":"User","namespace":"n","fields":[{"name":"x","type":"int","default":1}]}'
JAVA_WRITES: tuple[tuple[str, str], ...] = (
    (USER, USER),
    (
        '{"namespace":"n","name":"User","fields":[{"type":"int","default":1,"name":"x"}],"type":"record"}',
        USER,
    ),
    ('{"type":"record","name":"n.User","fields":[{"name":"x","type":{"type":"int"},"default":1}]}', USER),
    ('{"type": "string"}', '"string"'),
    ('{"type":"string","doc":"x"}', '"string"'),
    (
        '{"type":"bytes","scale":2,"precision":4,"logicalType":"decimal"}',
        '{"type":"bytes","scale":2,"precision":4,"logicalType":"decimal"}',
    ),
    (
        '{"doc":"no","default":[],"items":{"type":"map","values":{"type":"int"}},"type":"array"}',
        '{"type":"array","items":{"type":"map","values":"int"},"default":[]}',
    ),
    (
        '{"p":{"b":1,"a":2},"aliases":["B","o.C"],"name":"n.A","type":"record","doc":null,"fields":['
        '{"name":"e","type":{"default":"X","symbols":["X"],"name":"E","type":"enum","aliases":["n.F"],"doc":"d"}},'
        '{"name":"f","type":{"size":3,"name":"o.Fx","type":"fixed","doc":"d"},"order":"ascending","aliases":[]},'
        '{"name":"g","type":"n.E","q":1,"aliases":["h"],"order":"ignore","doc":"d"},{"name":"i","type":"o.Fx"}]}',
        '{"type":"record","name":"A","namespace":"n","fields":['
        '{"name":"e","type":{"type":"enum","name":"E","doc":"d","symbols":["X"],"default":"X","aliases":["F"]}},'
        '{"name":"f","type":{"type":"fixed","name":"Fx","namespace":"o","doc":"d","size":3}},'
        '{"name":"g","type":"E","doc":"d","order":"ignore","aliases":["h"],"q":1},{"name":"i","type":"o.Fx"}],'
        '"p":{"b":1,"a":2},"aliases":["B","o.C"]}',
    ),
    (
        '{"type":"record","name":"n.A","fields":[{"name":"x","type":{"type":"record","name":"int","fields":[]}},'
        '{"name":"y","type":"n.int"},'
        '{"name":"z","type":{"type":"fixed","size":1,"name":"F","namespace":""}}]}',
        '{"type":"record","name":"A","namespace":"n","fields":['
        '{"name":"x","type":{"type":"record","name":"int","fields":[]}},{"name":"y","type":"n.int"},'
        '{"name":"z","type":{"type":"fixed","name":"F","namespace":"","size":1}}]}',
    ),
)
"""Texts, and what Apache Avro for Java 1.12.1 makes of them (`Schema.Parser.parse(text).toString()`)."""


@pytest.mark.parametrize(("text", "written"), JAVA_WRITES, ids=range(len(JAVA_WRITES)))
def test_the_canonical_text_is_the_one_that_javas_library_writes(text: str, written: str) -> None:
    """Its clients send this text, whatever the order of the file that they have read."""
    schema = avro.parse(text, ())
    assert schema.canonical == written
    for same in (written, schema.normalized):
        assert avro.parse(same, ()).identity == schema.identity


@pytest.mark.parametrize(
    "other",
    [
        USER.replace("User", "Usher"), USER.replace(":1", ":2"), USER.replace('"n"', '"m"'),
        USER.replace("int", "long"), USER.replace('"x"', '"y"'),
        USER.replace('"fields"', '"doc":"d","fields"'),
    ],
)  # fmt: skip
def test_a_schema_that_differs_in_more_is_another_one(other: str) -> None:
    assert avro.parse(other, ()).identity != avro.parse(USER, ()).identity


def test_where_a_type_is_defined_does_not_matter() -> None:
    """Unless a type that the schema uses is another one. Of types that it does not use, none matters."""
    part, unused = record(X, name="Part", namespace="n"), record(name="Unused", namespace="n")
    line = record(
        {"name": "part", "type": part}, {"name": "unused", "type": unused}, name="Line", namespace="n"
    )
    order = record({"name": "a", "type": "n.Part"}, {"name": "b", "type": "n.Part"})
    inlined = record({"name": "a", "type": part}, {"name": "b", "type": "n.Part"})
    by_reference = avro.parse(json.dumps(order), [("n.Part", json.dumps(part))])
    inside_another = avro.parse(json.dumps(order), [("n.Line", json.dumps(line))])
    assert by_reference.identity == inside_another.identity == parse(inlined).identity
    wider = record({**X, "type": "long"}, name="Part", namespace="n")
    assert avro.parse(json.dumps(order), [("n.Part", json.dumps(wider))]).identity != parse(inlined).identity


def test_references_define_names() -> None:
    schema = avro.parse(
        json.dumps(record({"name": "x", "type": "n.Part"})),
        [("n.Part", json.dumps(record(X, name="Part", namespace="n")))],
    )
    assert schema.root.fields[0].type.name == "n.Part"
    with pytest.raises(RegistryError, match=r"n\.Part"):
        parse(record({"name": "x", "type": "n.Part"}))


# Whatever is judged compatible, fastavro decodes.

NAMES = ("A", "B", "C")
primitives = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])


def _with_unique_names(node: Any, counter: list[int]) -> Any:
    """Named types get names by their order, so that a schema is valid and two schemas share names."""
    if isinstance(node, list):
        branches, kinds = [], set()
        for branch in node:
            kind = branch["type"] if isinstance(branch, dict) else branch
            if kind not in kinds:
                kinds.add(kind)
                branches.append(_with_unique_names(branch, counter))
        return branches
    if not isinstance(node, dict):
        return node
    node = dict(node)
    if node["type"] in ("record", "enum", "fixed"):
        counter[0] += 1
        node["name"] = f"{node['type']}{counter[0]}"
    for key in ("items", "values"):
        if key in node:
            node[key] = _with_unique_names(node[key], counter)
    if "fields" in node:
        node["fields"] = [
            {**item, "type": _with_unique_names(item["type"], counter)} for item in node["fields"]
        ]
    return node


def _compound(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    plain = children.filter(lambda child: not isinstance(child, list))
    item = st.one_of(
        st.builds(lambda name, kind: {"name": name, "type": kind}, st.sampled_from(NAMES), children),
        st.builds(
            lambda name, value: {"name": name, "type": "int", "default": value},
            st.sampled_from(NAMES),
            st.integers(0, 9),
        ),
    )
    return st.one_of(
        st.builds(lambda kind: {"type": "array", "items": kind}, children),
        st.builds(lambda kind: {"type": "map", "values": kind}, children),
        st.builds(
            lambda symbols: {"type": "enum", "symbols": symbols},
            st.lists(st.sampled_from("XYZ"), min_size=1, unique=True),
        ),
        st.builds(lambda size: {"type": "fixed", "size": size}, st.integers(1, 2)),
        st.builds(
            lambda fields: {"type": "record", "fields": fields},
            st.lists(item, max_size=3, unique_by=lambda field: field["name"]),
        ),
        st.lists(plain, min_size=1, max_size=3),
    )


schemas = st.recursive(primitives, _compound, max_leaves=6).map(lambda node: _with_unique_names(node, [0]))


def _value_of(draw: st.DrawFn, node: Any) -> Any:
    if isinstance(node, list):
        branch = draw(st.sampled_from(node))
        value = _value_of(draw, branch)
        return (branch["name"], value) if isinstance(branch, dict) and "name" in branch else value
    match node if isinstance(node, str) else node["type"]:
        case "null":
            return None
        case "boolean":
            return draw(st.booleans())
        case "int" | "long":
            return draw(st.integers(-(2**31), 2**31 - 1))
        case "float" | "double":
            return float(draw(st.integers(-1000, 1000)))
        case "bytes":
            return draw(st.text("abc", max_size=3)).encode()
        case "string":
            return draw(st.text("abc", max_size=3))
        case "array":
            return [_value_of(draw, node["items"]) for _ in range(draw(st.integers(0, 2)))]
        case "map":
            return {key: _value_of(draw, node["values"]) for key in draw(st.sets(st.sampled_from("kl")))}
        case "enum":
            return draw(st.sampled_from(node["symbols"]))
        case "fixed":
            return b"f" * node["size"]
    return {item["name"]: _value_of(draw, item["type"]) for item in node["fields"]}


@st.composite
def written(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """A writer's schema, a value of it, and a reader's schema: independent, or the same."""
    writer = draw(schemas)
    reader = draw(st.one_of(schemas, st.just(writer)))
    return writer, _value_of(draw, writer), reader


@settings(max_examples=150)
@given(written())
def test_what_is_judged_compatible_is_decoded(case: tuple[Any, Any, Any]) -> None:
    writer, value, reader = case
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(writer), value)
    buffer.seek(0)
    if reads(reader, writer):
        fastavro.schemaless_reader(buffer, fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    assert reads(writer, writer)
