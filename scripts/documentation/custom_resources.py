"""The reference of the custom resources, from their definitions in `crds/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from scripts.documentation.markdown import code, escaped, table, with_facts

_INTRODUCTION: Final = """# Custom resources

The fields of the manifests and of their statuses. `kubectl explain KIND.spec` shows the same on a terminal.
Immutable fields cannot be changed after the resource is created.
"""
_IMMUTABLE: Final = "self == oldSelf"


def page(folder: Path) -> str:
    """All kinds in `folder`, one section each."""
    kinds = [_kind(yaml.safe_load(path.read_text())) for path in sorted(folder.glob("*.yaml"))]
    return "\n".join([_INTRODUCTION, *kinds])


def _kind(definition: Any) -> str:
    spec, version = definition["spec"], definition["spec"]["versions"][0]
    names, schema = spec["names"], version["schema"]["openAPIV3Schema"]
    short = "".join(f", short name `{name}`" for name in names.get("shortNames", ()))
    api_version = f"{spec['group']}/{version['name']}"
    text = escaped(schema.get("description", ""))
    parts = [f"## {names['kind']}\n\n`{api_version}`{short}. {text}\n"]
    for part in ("spec", "status"):
        fields = schema["properties"].get(part)
        if fields:
            rows = table(("field", "meaning"), _fields(fields, ""))
            parts.append(f"### {names['kind']} {part}\n\n{rows}")
    return "\n".join(parts)


def _fields(schema: Any, prefix: str) -> Iterator[tuple[str, str]]:
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        facts = [
            _type(field),
            "required" if name in required else _default(field.get("default")),
            *_notes(field),
        ]
        yield code(path), with_facts(escaped(field.get("description", "")), facts)
        inner = field.get("items", field) if field.get("type") == "array" else field
        yield from _fields(inner, f"{path}{'[]' if inner is not field else ''}.")
        values = field.get("additionalProperties")
        if isinstance(values, dict):
            yield from _fields(values, f"{path}.NAME.")


def _type(field: Any) -> str:
    if "enum" in field:
        return "one of " + ", ".join(code(str(value)) for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    return str(field.get("type", ""))


def _default(value: Any) -> str:
    if value is None or value in ({}, []):
        return ""
    return f"default {code(str(value).lower() if isinstance(value, bool) else str(value))}"


def _notes(field: Any) -> Iterator[str]:
    if "minimum" in field:
        yield f"at least {field['minimum']}"
    if "maximum" in field:
        yield f"at most {field['maximum']}"
    if any(rule.get("rule", "").strip() == _IMMUTABLE for rule in field.get("x-kubernetes-validations", ())):
        yield "immutable"
