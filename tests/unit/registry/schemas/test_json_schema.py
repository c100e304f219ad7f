"""JSON Schema compatibility: what is judged to accept everything does accept it, as jsonschema says (R31)."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem_registry.errors import RegistryError
from mainstem_registry.schemas import json_schema
from mainstem_registry.schemas.limits import Steps


def reads(reader: Any, writer: Any) -> bool:
    new, old = json_schema.parse(json.dumps(reader), ()), json_schema.parse(json.dumps(writer), ())
    return not new.problems_reading(old, Steps())


def closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


INTEGER, NUMBER, STRING = {"type": "integer"}, {"type": "number"}, {"type": "string"}


def event(kind: Any, **properties: Any) -> dict[str, Any]:
    """An open object that says of which kind it is."""
    return {"type": "object", "properties": {"kind": {"const": kind}, **properties}, "required": ["kind"]}


def referring(*names: str, **definitions: Any) -> dict[str, Any]:
    return {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in names], "$defs": definitions}


A, B, WIDER_A = event("a", x=INTEGER), event("b"), event("a", x=NUMBER)
OPEN_A = {"type": "object", "properties": {"a": INTEGER}}
OPEN_B = {"type": "object", "properties": {"b": INTEGER}}
UNIONS: dict[str, tuple[Any, Any, bool]] = {
    "a union is the same, whatever is beside it": (
        {**referring("A", "B", A=OPEN_A, B=OPEN_B), "title": "b"},
        referring("A", "B", A=OPEN_A, B=OPEN_B),
        True,
    ),
    "and whatever describes its branches": (
        referring("A", "B", A={**OPEN_A, "title": "b"}, B=OPEN_B),
        referring("A", "B", A=OPEN_A, B=OPEN_B),
        True,
    ),
    "and in another order": ({"oneOf": [OPEN_B, OPEN_A]}, {"oneOf": [OPEN_A, OPEN_B]}, True),
    "a type beside it does not matter": (
        {**referring("A", "B", "C", A=A, B=B, C=event("c")), "type": "object"},
        {**referring("A", "B", A=A, B=B), "type": "object"},
        True,
    ),
    "a kind may be added": (
        referring("A", "B", "C", A=A, B=B, C=event("c")), referring("A", "B", A=A, B=B), True,
    ),
    "none may be removed": (referring("A", A=A), referring("A", "B", A=A, B=B), False),
    "kinds may have listed values": (
        {"oneOf": [event("a"), {**B, "properties": {"kind": {"enum": ["b", "c"]}}}]}, event("a"), True,
    ),
    "that none shares": (
        {"oneOf": [event("a"), {**B, "properties": {"kind": {"enum": ["a", "b"]}}}]}, event("a"), False,
    ),
    "1 is 1.0": ({"oneOf": [event(1), event(1.0)]}, event(1), False),
    "and not true": ({"oneOf": [event(1), event(True)]}, event(1), True),
    "one branch may accept more": ({"oneOf": [WIDER_A, B]}, {"oneOf": [A, B]}, True),
    "but not less": ({"oneOf": [A, B]}, {"oneOf": [WIDER_A, B]}, False),
    "without a kind, more of one is more of two": (
        {"oneOf": [{"type": "object", "properties": {"a": NUMBER}}, OPEN_B]},
        {"oneOf": [OPEN_A, OPEN_B]},
        False,
    ),
    "it is enough that the writer requires the kind": (
        {"oneOf": [{**A, "required": []}, {**B, "required": []}]}, A, True,
    ),
    "a kind that neither requires tells nothing apart": (
        {"oneOf": [{**A, "required": []}, {**B, "required": []}]}, {**A, "required": []}, False,
    ),
    "nor one of what may be no object": (
        {"oneOf": [{"properties": A["properties"], "required": ["kind"]}, {**B, "type": ["object", "null"]}]},
        {"type": ["object", "null"], "properties": A["properties"], "required": ["kind"]},
        False,
    ),
    "objects are apart by a property that the other forbids": (
        {"oneOf": [closed({"a": NUMBER}, required=["a"]), closed({"b": NUMBER}, required=["b"])]},
        {"oneOf": [closed({"a": INTEGER}, required=["a"]), closed({"b": INTEGER}, required=["b"])]},
        True,
    ),
    "unless a pattern allows it": (
        {"oneOf": [closed({"a": INTEGER}, required=["a"]), closed({}, patternProperties={"^a": INTEGER})]},
        closed({"a": INTEGER}, required=["a"]),
        False,
    ),
    "kinds are found in what is combined and referred to": (
        {
            "oneOf": [{"allOf": [{"$ref": "#/$defs/A"}, {"title": "a"}]}, {"oneOf": [B, event("c")]}],
            "$defs": {"A": WIDER_A},
        },
        A,
        True,
    ),
    "a union in a property, beside another one that is new": (
        closed({"e": {"oneOf": [A, B]}, "x": STRING}), closed({"e": {"oneOf": [A, B]}}), True,
    ),
    "a branch that only a wrapper surrounds": (
        {"allOf": [{"$ref": "#/$defs/U"}], "$defs": {"U": {"oneOf": [WIDER_A, B]}}},
        {"allOf": [{"$ref": "#/$defs/U"}], "$defs": {"U": {"oneOf": [A, B]}}},
        True,
    ),
    "branches of anyOf are not apart": ({"oneOf": [OPEN_B, OPEN_A]}, {"anyOf": [OPEN_A, OPEN_B]}, False),
    "a union of unions": (
        {"oneOf": [A, B, event("c")]}, {"oneOf": [{"oneOf": [A, B]}, event("c")]}, True,
    ),
}  # fmt: skip
TABLE: dict[str, tuple[Any, Any, bool]] = {
    "anything is accepted by everything's schema": ({}, INTEGER, True),
    "true is everything": (True, STRING, True),
    "nothing is accepted by false": (False, STRING, False),
    "every integer is a number": (NUMBER, INTEGER, True),
    "not every number is an integer": (INTEGER, NUMBER, False),
    "types may be added": ({"type": ["string", "null"]}, STRING, True),
    "types may not be removed": (STRING, {"type": ["string", "null"]}, False),
    "enums may grow": ({"enum": ["a", "b"]}, {"enum": ["a"]}, True),
    "enums may not shrink": ({"enum": ["a"]}, {"enum": ["a", "b"]}, False),
    "an enum has its types": (STRING, {"enum": ["a", "b"]}, True),
    "bounds may be loosened": ({**INTEGER, "minimum": 0}, {**INTEGER, "minimum": 1}, True),
    "bounds may not be tightened": ({**INTEGER, "maximum": 9}, {**INTEGER, "maximum": 10}, False),
    "an exclusive bound is tighter": ({**NUMBER, "exclusiveMinimum": 0}, {**NUMBER, "minimum": 0}, False),
    "strings may be longer": ({**STRING, "maxLength": 9}, {**STRING, "maxLength": 3}, True),
    "strings may not be shorter": ({**STRING, "maxLength": 3}, STRING, False),
    "a new optional property closes an open schema": (
        {"type": "object", "properties": {"x": INTEGER}}, {"type": "object"}, False,
    ),
    "a new optional property fits a closed one": (closed({"x": INTEGER}), closed({}), True),
    "a property may not vanish from a closed one": (closed({}), closed({"x": INTEGER}), False),
    "a property may vanish from an open one": (
        {"type": "object"}, {"type": "object", "properties": {"x": INTEGER}}, True,
    ),
    "a property may not become required": (
        closed({"x": INTEGER}, required=["x"]), closed({"x": INTEGER}), False,
    ),
    "a property may become optional": (closed({"x": INTEGER}), closed({"x": INTEGER}, required=["x"]), True),
    "properties by their schemas": (closed({"x": NUMBER}), closed({"x": INTEGER}), True),
    "a property may have been one of a pattern": (
        closed({"x": INTEGER}, patternProperties={"^x": {}}), closed({}, patternProperties={"^x": {}}), False,
    ),
    "items by their schemas": (
        {"type": "array", "items": INTEGER}, {"type": "array", "items": NUMBER}, False,
    ),
    "unions may grow": ({"anyOf": [INTEGER, STRING]}, {"anyOf": [INTEGER]}, True),
    "unions may not shrink": ({"anyOf": [INTEGER]}, {"anyOf": [INTEGER, STRING]}, False),
    "one of several that overlap is refused": ({"oneOf": [INTEGER, NUMBER]}, INTEGER, False),
    "one of several that are apart is accepted": ({"oneOf": [INTEGER, STRING]}, INTEGER, True),
    "definitions are followed": (
        {"$ref": "#/$defs/n", "$defs": {"n": NUMBER}}, {"$ref": "#/$defs/n", "$defs": {"n": INTEGER}}, True,
    ),
    "what is not compared must be the same": ({"not": STRING}, INTEGER, False),
    "and is, in the same schema": ({"not": STRING, **INTEGER}, {"not": STRING, **INTEGER}, True),
    "what is the same, with what it depends on beside it": (
        {"properties": {"a": {}}, "unevaluatedProperties": False},
        {"properties": {"a": {}, "b": {}}, "unevaluatedProperties": False},
        False,
    ),
    "as of what is contained, whose number may be none": (
        {"contains": INTEGER}, {"contains": INTEGER, "minContains": 0}, False,
    ),
    "and with the branches beside it": (
        {"anyOf": [{"properties": {"a": STRING}}, {}], "unevaluatedProperties": False},
        {"anyOf": [{"properties": {"a": {}}}, {}], "unevaluatedProperties": False},
        False,
    ),
    "what is evaluated beside it may accept more": (
        {"properties": {"a": NUMBER}, "unevaluatedProperties": False},
        {"properties": {"a": INTEGER}, "unevaluatedProperties": False},
        True,
    ),
    "true is not one": ({"not": {"const": True}}, {"not": {"const": 1}}, False),
    "a schema with a dynamic reference is the same as itself": (
        {"not": {"$dynamicRef": "#a"}, "$defs": {"x": {"$dynamicAnchor": "a", **STRING}}},
        {"not": {"$dynamicRef": "#a"}, "$defs": {"x": {"$dynamicAnchor": "a", **STRING}}},
        True,
    ),
    "a dynamic reference may name another schema in another one": (
        {"$dynamicRef": "#a", "$defs": {"x": {"$dynamicAnchor": "a", **STRING}}},
        {"$dynamicRef": "#a", "$defs": {"x": {"$dynamicAnchor": "a"}}},
        False,
    ),
    "all of several": ({"allOf": [INTEGER, {"minimum": 0}]}, {**INTEGER, "minimum": 5}, True),
    "descriptions do not count": ({**STRING, "title": "b"}, {**STRING, "title": "a"}, True),
    "nor do keywords of others": ({**STRING, "x-owner": "me", "connect.index": 1}, STRING, True),
    "nor those of others that change": (
        closed({"a": {**STRING, "connect.index": 1}}), closed({"a": {**STRING, "connect.index": 2}}), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reader", "writer", "expected"), TABLE.values(), ids=list(TABLE))
def test_inclusion(reader: Any, writer: Any, expected: bool) -> None:
    assert reads(reader, writer) == expected


@pytest.mark.parametrize(("reader", "writer", "expected"), UNIONS.values(), ids=list(UNIONS))
def test_a_document_that_a_branch_of_the_writer_accepts_is_one_of_exactly_one_of_the_reader(
    reader: Any, writer: Any, expected: bool
) -> None:
    assert reads(reader, writer) == expected
    assert reads(writer, writer)


REFERRING: dict[str, Any] = {
    "not": {"not": {"$ref": "#/$defs/x"}},
    "not, further inside": {"not": {"properties": {"default": {"items": {"$ref": "#/$defs/y"}}}}},
    "if": {"if": {"required": ["a"]}, "then": {"$ref": "#/$defs/x"}},
    "propertyNames": {"type": "object", "propertyNames": {"$ref": "#/$defs/x"}},
    "dependentSchemas": {"dependentSchemas": {"enum": {"$ref": "#/$defs/x"}}},
    "contains": {"contains": {"$ref": "#/$defs/x"}},
    "unevaluated": {"allOf": [{"$ref": "#/$defs/x"}], "unevaluatedProperties": False},
}


@pytest.mark.parametrize("schema", REFERRING.values(), ids=REFERRING)
def test_a_keyword_that_is_not_compared_is_the_same_only_if_what_it_refers_to_is(schema: Any) -> None:
    def with_maximum(length: int, title: str = "") -> dict[str, Any]:
        x = {"maxLength": length, "properties": {"a": {}}, "required": ["z"] * (length == 1)}
        return {**schema, "title": title, "$defs": {"x": x, "y": {"$ref": "#/$defs/x"}}}

    assert reads(with_maximum(100), with_maximum(100))
    assert reads(with_maximum(100, "other"), with_maximum(100))
    assert not reads(with_maximum(1), with_maximum(100))
    assert not reads(with_maximum(100), with_maximum(1))


def test_what_refers_to_itself_in_a_keyword_that_is_not_compared_ends() -> None:
    def tree(title: str, **more: Any) -> dict[str, Any]:
        next_node = {"properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"]}
        node = {"title": title, "not": next_node, **more}
        return {"$ref": "#/$defs/n", "$defs": {"n": node}, "title": title}

    assert reads(tree("a"), tree("a"))
    assert reads(tree("a"), tree("b"))
    assert not reads(tree("a", minProperties=1), tree("b"))
    assert not reads(tree("a"), tree("b", minProperties=1))


def test_a_reference_of_an_old_draft_may_stand_beside_its_definitions() -> None:
    """As generators of schemas write them. What restricts documents beside it does not count."""
    draft = "http://json-schema.org/draft-07/schema#"
    schema = {"$schema": draft, "$ref": "#/definitions/n", "definitions": {"n": NUMBER}, "minimum": 5}
    assert reads(schema, NUMBER)
    assert not reads(schema, STRING)


def test_recursive_schemas_end() -> None:
    tree = closed({"children": {"type": "array", "items": {"$ref": "#"}}})
    assert reads(tree, tree)
    with_value = closed({"children": {"type": "array", "items": {"$ref": "#"}}, "value": INTEGER})
    assert reads(with_value, tree)
    assert not reads(tree, with_value)
    assert reads({"properties": {"next": {"$ref": "#"}}}, {}), "every document has a finite depth"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "an object or a boolean"),
        ('{"type": "int"}', "Invalid schema"),
        ('{"$ref": "#/definitions/none"}', "does not name a part"),
        ('{"$ref": "https://example.com/other.json"}', "not among its references"),
        ('{"properties": {"x": {"minimum": "a"}}}', "Invalid schema"),
        ('{"$schema": 3}', "must be a string"),
        ('{"allOf":[' * 200 + "{}" + "]}" * 200, "deeper"),
        ('{"pattern": "("}', "Invalid schema"),
        ('{"$schema": "http://json-schema.org/draft-02/schema#"}', "is not supported"),
        ('{"$ref": "http://[x", "$id": "http://["}', "not among its references"),
    ],
    ids=range(10),
)
def test_texts_that_are_no_schema_are_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(RegistryError, match=reason) as refused:
        json_schema.parse(text, ())
    assert refused.value.code == 42201


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from(["string", "object", "#", "#/a"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "anyOf",
                    "oneOf",
                    "allOf",
                    "$ref",
                    "not",
                    "enum",
                    "required",
                    "$id",
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
        schema = json_schema.parse(json.dumps(value), ())
        schema.problems_reading(schema, Steps())
    except RegistryError as error:
        assert error.code == 42201


def of_draft(number: int, **keywords: Any) -> dict[str, Any]:
    return {"$schema": f"http://json-schema.org/draft-0{number}/schema#", **keywords}


NESTED_ID = {"id": "http://jsonschema.net/a", "items": {"$ref": "#/definitions/x"}}
FLAWED: dict[str, tuple[Any, Any, str]] = {
    "draft 3": (of_draft(3, **INTEGER), INTEGER, "is not supported"),
    "two identifiers": (
        {"$ref": "u", "$defs": {"a": {"$id": "u", **INTEGER}, "b": {"$id": "u", **STRING}}},
        INTEGER,
        "two different schemas",
    ),
    "an identifier of draft 4 around a reference to the whole": (
        of_draft(4, properties={"a": NESTED_ID}, definitions={"x": INTEGER}),
        {"properties": {"a": {"items": INTEGER}}},
        "does not name a part",
    ),
    "which another schema names": (
        {"$ref": "u", "$defs": {"a": {"$id": "u", "items": {"$ref": "#/$defs/x"}}, "x": INTEGER}},
        {"items": INTEGER},
        "does not name a part",
    ),
    "an anchor inside of it": (
        {"$ref": "#a", "$defs": {"x": {"$id": "u", "$defs": {"y": {"$anchor": "a", **INTEGER}}}}},
        INTEGER,
        "does not name a part",
    ),
    "a reference to no schema": (
        {"title": "a", "items": {"$ref": "#/title"}, "minimum": 0},
        {"items": STRING},
        "does not name a schema",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("stored", "reader", "reason"), FLAWED.values(), ids=FLAWED)
def test_what_earlier_releases_took_is_compared_but_refused_as_new(
    stored: Any, reader: Any, reason: str
) -> None:
    schema = json_schema.parse(json.dumps(stored), ())
    with pytest.raises(RegistryError, match=reason) as refused:
        json_schema.check_new(schema)
    assert refused.value.code == 42201
    assert reads(reader, stored)
    assert reads({**stored, "title": "b"}, stored)
    assert not reads({"type": "null"}, stored)
    referring_schema = json_schema.parse('{"$ref": "part.json"}', [("part.json", json.dumps(stored))])
    assert not json_schema.parse(json.dumps(reader), ()).problems_reading(referring_schema, Steps())


@pytest.mark.parametrize(
    ("draft_3", "same"),
    [
        (
            {"properties": {"a": {"required": True}, "b": {}, "required": {"required": False}}},
            {"properties": {"a": {}, "b": {}, "required": {}}, "required": ["a"]},
        ),
        ({"type": "any"}, {}),
        ({"type": ["string", "null"]}, {"type": ["null", "string"]}),
        ({"type": ["null", INTEGER]}, {"anyOf": [{"type": "null"}, INTEGER]}),
        ({"disallow": ["string", INTEGER]}, {"not": {"anyOf": [STRING, INTEGER]}}),
        ({"disallow": "any"}, {"not": {"anyOf": [{}]}}),
        ({"extends": INTEGER, "maximum": 3, "exclusiveMaximum": True}, {**INTEGER, "exclusiveMaximum": 3}),
        ({**INTEGER, "divisibleBy": 3}, {**INTEGER, "multipleOf": 3}),
        (
            {"items": {"extends": {"$ref": "#/definitions/s"}}, "definitions": {"s": STRING}},
            {"items": STRING},
        ),
        ({**STRING, "x-more": {"properties": [], "type": {}}}, STRING),
    ],
    ids=range(10),
)
def test_a_schema_of_draft_3_is_compared_by_its_own_keywords(draft_3: Any, same: Any) -> None:
    assert reads(of_draft(3, **draft_3), same)
    assert reads(same, of_draft(3, **draft_3))


def test_references_are_found_by_name() -> None:
    schema = json_schema.parse('{"$ref": "part.json"}', [("part.json", '{"type": "integer"}')])
    assert not schema.problems_reading(json_schema.parse('{"type": "integer"}', ()), Steps())
    assert schema.problems_reading(json_schema.parse('{"type": "string"}', ()), Steps())


DRAFT_4, DRAFT_7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 7))
ROOT = "https://example.com/root.json"


N = {"type": "T"}
DEFS = {"$defs": {"n": {"$anchor": "n", **N}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": ROOT, "$ref": "a.json", "$defs": {"A": {"$id": "a.json", "$ref": "#/$defs/n", **DEFS}}},
        {"$id": ROOT, "$ref": "https://example.com/a.json", "$defs": {"A": {"$id": "a.json", **N}}},
        {"$ref": "a.json#n", "$defs": {"A": {"$id": "a.json", **DEFS}}},
        {"$ref": "d/a", "$defs": {"A": {"$id": "d/a", "$ref": "b"}, "B": {"$id": "d/b", **N}}},
        {"$schema": DRAFT_7, "$ref": "a#n", "definitions": {"A": {"$id": "a", "items": {"$id": "#n", **N}}}},
        {"$schema": DRAFT_4, "$ref": "a.json", "definitions": {"A": {"id": "a.json", **N}}},
        {"$id": ROOT, "$ref": "root.json#/$defs/A", "$defs": {"A": N}},
    ],
    ids=range(7),
)  # fmt: skip
def test_a_schema_with_an_identifier_is_the_base_of_its_references_and_anchors(schema: Any) -> None:
    """JSON Schema 2020-12, 8.2.1 and 9.3."""
    text = json.dumps(schema)
    wide, narrow = (json_schema.parse(text.replace('"T"', f'"{name}"'), ()) for name in ("number", "integer"))
    assert not wide.problems_reading(narrow, Steps())
    assert narrow.problems_reading(wide, Steps())


def test_what_is_beside_a_reference_in_a_referenced_schema_of_an_old_draft_does_not_count() -> None:
    part = {"$schema": DRAFT_7, "$ref": "#/definitions/n", "definitions": {"n": NUMBER}, "maximum": 5}
    writer = json_schema.parse('{"$ref": "part.json"}', [("part.json", json.dumps(part))])
    reader = json_schema.parse('{"type": "number", "maximum": 5}', ())
    assert reader.problems_reading(writer, Steps())


def test_a_schema_of_schemas_needs_no_reference() -> None:
    schema = {"$schema": DRAFT_7, "properties": {"a": {"$ref": DRAFT_7}}}
    assert reads({**schema, "title": "b"}, schema)
    assert not reads(schema, {})


def test_what_an_unknown_keyword_contains_has_no_identifier() -> None:
    schema = {"$id": ROOT, "x-example": {"$id": ROOT, "examples": [{"$ref": "none.json"}]}, **INTEGER}
    assert reads(INTEGER, schema)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, -1.5]), st.text("ab", max_size=3)
)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
    ),
    max_leaves=5,
)
constraints = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["null", "boolean", "integer", "number", "string", "array", "object", ["string", "null"]]
        ),
        "enum": st.lists(scalars, min_size=1, max_size=3),
        "const": scalars,
        "minimum": st.integers(-2, 2),
        "exclusiveMaximum": st.integers(-2, 2),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "minItems": st.integers(0, 2),
        "maxProperties": st.integers(0, 2),
        "required": st.lists(st.sampled_from("xyz"), unique=True),
    },
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda base, more: {**base, **more},
        constraints,
        st.fixed_dictionaries(
            {},
            optional={
                "properties": st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
                "patternProperties": st.dictionaries(st.sampled_from(["x", "y|z"]), inner, max_size=1),
                "additionalProperties": st.one_of(st.booleans(), inner),
                "items": inner,
                "anyOf": st.lists(inner, min_size=1, max_size=2),
                "oneOf": st.lists(inner, min_size=1, max_size=2),
                "allOf": st.lists(inner, min_size=1, max_size=2),
                "not": inner,
                "if": inner,
                "then": inner,
                "contains": inner,
                "minContains": st.integers(0, 2),
                "propertyNames": inner,
                "dependentSchemas": st.dictionaries(st.sampled_from("xyz"), inner, max_size=1),
                "unevaluatedProperties": st.booleans(),
                "unevaluatedItems": st.booleans(),
            },
        ),
    )


schemas = st.recursive(constraints, _nested, max_leaves=5)


@settings(max_examples=150)
@given(schemas, schemas, st.lists(documents, max_size=8))
def test_what_is_judged_compatible_accepts_all_that_the_other_accepts(
    reader: Any, writer: Any, samples: list[Any]
) -> None:
    for new, old in ((reader, writer), (writer, writer), ({"anyOf": [reader, writer]}, writer)):
        if not reads(new, old):
            continue
        for document in samples:
            if jsonschema.Draft202012Validator(old).is_valid(document):
                assert jsonschema.Draft202012Validator(new).is_valid(document)


kinds = st.sampled_from([1, 1.0, True, "a", "b"])
events = st.builds(
    lambda kind, properties, more: {"type": "object", "properties": {"x": kind, **properties}, **more},
    st.one_of(
        kinds.map(lambda kind: {"const": kind}), st.lists(kinds, min_size=1).map(lambda of: {"enum": of})
    ),
    st.dictionaries(st.sampled_from("yz"), st.sampled_from([INTEGER, NUMBER, {}, False]), max_size=1),
    st.fixed_dictionaries(
        {},
        optional={
            "required": st.lists(st.sampled_from("xyz"), unique=True),
            "additionalProperties": st.sampled_from([False, False, INTEGER]),
        },
    ),
)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(events, st.one_of(st.none(), events)), min_size=1, max_size=3),
    st.lists(events, max_size=2),
    st.sampled_from(["oneOf", "anyOf"]),
    st.lists(st.dictionaries(st.sampled_from("xyz"), kinds, max_size=3), min_size=8, max_size=8),
)
def test_exactly_one_branch_of_a_union_of_objects_accepts_what_the_writer_accepts(
    branches: list[tuple[Any, Any]], added: list[Any], union: str, samples: list[Any]
) -> None:
    writer = {union: [one for one, _ in branches]}
    reader = {"oneOf": [changed or one for one, changed in branches] + added}
    if reads(reader, writer):
        for document in samples:
            if jsonschema.Draft202012Validator(writer).is_valid(document):
                assert jsonschema.Draft202012Validator(reader).is_valid(document)


def _changed(schema: Any, chance: random.Random) -> Any:
    """The schema, of which some parts are another one's."""
    if isinstance(schema, dict) and schema and chance.random() < 0.8:
        return {key: _changed(value, chance) for key, value in schema.items() if chance.random() < 0.9}
    if isinstance(schema, list):
        return [_changed(item, chance) for item in schema]
    return {"$ref": "#/$defs/d"} if isinstance(schema, dict) and chance.random() < 0.5 else schema


@settings(max_examples=300)
@given(schemas, constraints, constraints, st.lists(documents, max_size=8), st.randoms(use_true_random=False))
def test_what_is_judged_compatible_accepts_all_whatever_changes_and_wherever_it_refers_to(
    schema: Any, one: Any, other: Any, samples: list[Any], chance: random.Random
) -> None:
    referring = _changed(schema, chance)
    for new, old in (
        ({**referring, "$defs": {"d": one}}, {**referring, "$defs": {"d": other}}),
        ({**referring, "$defs": {"d": one}}, {**_changed(referring, chance), "$defs": {"d": one}}),
    ):
        try:
            if not reads(new, old):
                continue
        except RegistryError:  # a change has made a schema of none
            continue
        for document in samples:
            if jsonschema.Draft202012Validator(old).is_valid(document):
                assert jsonschema.Draft202012Validator(new).is_valid(document)
