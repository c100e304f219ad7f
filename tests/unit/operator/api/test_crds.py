"""The schemas in `crds/`: what the API server would refuse of them, and what we hold them to (R24).

Whether the rules themselves compile is for a real API server to say (tests/e2e).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[4]
CRDS = sorted((REPOSITORY / "crds").glob("*.yaml"))
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))

Schema = dict[str, Any]


def crd_of(path: Path) -> Schema:
    result: Schema = yaml.safe_load(path.read_text())
    return result


def schema_of(path: Path) -> Schema:
    result: Schema = crd_of(path)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return result


CEL_RESERVED = {
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if",
    "import", "let", "loop", "package", "namespace", "return", "var", "void", "while",
}  # fmt: skip


def parts(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema within `schema`, with where it lies."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from parts(inner, f"{path}.{name}")
    if "items" in schema:
        yield from parts(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from parts(schema["additionalProperties"], f"{path}.*")


@pytest.fixture(params=CRDS, ids=lambda path: path.stem)
def crd_path(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_each_kind_is_found_by_its_short_name_and_by_the_category() -> None:
    results = {crd["spec"]["names"]["kind"]: crd["spec"]["names"] for crd in map(crd_of, CRDS)}
    assert {kind: names["shortNames"] for kind, names in results.items()} == {
        "BrokerCluster": ["bc"],
        "Topic": ["mt"],
        "ConsumerGroup": ["cg"],
        "User": ["mu"],
    }
    assert all(names["categories"] == ["mainstem"] for names in results.values())


def test_no_key_is_given_twice(crd_path: Path) -> None:
    """A YAML reader takes the later one and says nothing."""

    def check(node: yaml.Node | None) -> None:
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            assert len(keys) == len(set(keys)), f"line {node.start_mark.line + 1}: {keys}"
            for _, value in node.value:
                check(value)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                check(item)

    check(yaml.compose(crd_path.read_text()))


def test_the_schema_is_structural(crd_path: Path) -> None:
    for path, schema in parts(schema_of(crd_path)):
        typed = "type" in schema or schema.get("x-kubernetes-int-or-string")
        assert typed, f"{crd_path.stem}{path} has no type"
        if schema.get("type") == "array":
            assert "items" in schema, f"{crd_path.stem}{path} has no items"
        if schema.get("type") == "object" and path:
            inside = "properties" in schema or "additionalProperties" in schema
            kept = schema.get("x-kubernetes-preserve-unknown-fields")
            assert inside or kept or path == ".metadata", f"{crd_path.stem}{path} would be pruned"
        assert not ("properties" in schema and "additionalProperties" in schema)


def test_every_rule_says_in_a_sentence_what_is_wrong(crd_path: Path) -> None:
    schemas = [schema for _, schema in parts(schema_of(crd_path))]
    rules = [rule for schema in schemas for rule in schema.get("x-kubernetes-validations", ())]
    assert rules
    for rule in rules:
        assert len(rule["message"].split()) >= 4, rule
        assert "\n" not in rule["message"]


def test_rules_escape_the_words_that_cel_reserves(crd_path: Path) -> None:
    """Before Kubernetes 1.32 there is no field of such a name for a rule, and the schema is refused.

    See https://kubernetes.io/docs/reference/using-api/cel/#escaping.
    """
    selected = {
        word
        for _, schema in parts(schema_of(crd_path))
        for rule in schema.get("x-kubernetes-validations", ())
        for word in re.findall(r"\.([a-z]+)\b(?!\()", rule["rule"])
    }
    assert selected & CEL_RESERVED == set()


def test_no_field_is_refused_by_showing_a_regular_expression(crd_path: Path) -> None:
    """A `pattern` answers with itself, which tells few what to write: a rule has its own sentence."""
    assert [path for path, schema in parts(schema_of(crd_path)) if "pattern" in schema] == []


def test_every_list_and_map_and_text_of_the_spec_is_bounded(crd_path: Path) -> None:
    """Unbounded ones make the API server's estimate of a rule's cost too high, and it refuses the schema."""
    for path, schema in parts(schema_of(crd_path)["properties"]["spec"], ".spec"):
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path
        if schema.get("type") == "string":
            assert "maxLength" in schema or "enum" in schema or schema.get("format") == "date-time", path


def test_the_status_is_a_subresource_and_keeps_conditions_by_type(crd_path: Path) -> None:
    version = crd_of(crd_path)["spec"]["versions"][0]
    assert version["subresources"]["status"] == {}
    status = schema_of(crd_path)["properties"]["status"]["properties"]
    assert "observedGeneration" in status
    assert status["conditions"]["x-kubernetes-list-type"] == "map"
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


def test_columns_and_scale_show_fields_that_exist(crd_path: Path) -> None:
    version = crd_of(crd_path)["spec"]["versions"][0]
    expected = {path for path, _ in parts(schema_of(crd_path))}
    shown = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    scale = version["subresources"].get("scale", {})
    for path in [*shown, *scale.values()]:
        if path.startswith(".metadata."):
            continue
        plain = re.sub(r"\[\?\(.*?\)\]", "[]", path)
        assert plain in expected, path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_name_only_fields_that_the_schemas_have(path: Path) -> None:
    manifest = yaml.safe_load(path.read_text())
    schema = next(schema_of(crd) for crd in CRDS if crd_of(crd)["spec"]["names"]["kind"] == manifest["kind"])
    assert list(unknown_fields(manifest["spec"], schema["properties"]["spec"], "spec")) == []


def unknown_fields(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    for name, inner in value.items():
        current = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        if not current:
            yield f"{path}.{name}"
        else:
            yield from unknown_fields(inner, current, f"{path}.{name}")


def test_every_field_is_explained_by_a_sentence(crd_path: Path) -> None:
    """For `kubectl explain`, which shows nothing else."""
    of_kubernetes = ("", ".apiVersion", ".kind", ".metadata")  # which it describes itself
    fields = {
        path: str(schema.get("description", ""))
        for path, schema in parts(schema_of(crd_path))
        if path not in of_kubernetes and not path.endswith(("[]", ".*"))
    }
    assert len(fields) > 20
    assert [field for field, text in fields.items() if not text.strip().endswith(".")] == []
