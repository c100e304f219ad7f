"""From a schema and a good manifest: every manifest that is wrong in one field. Pure.

A field that is new in the schema is covered without a change here, since all is read off the schema: types,
bounds, choices, sizes, what is required, and names that are not known. Of rules (CEL) it is known only that
none on a text or an amount wants two lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Schema = dict[str, Any]
Manifest = dict[str, Any]
Path = tuple[str | int, ...]

RULES: Final = "x-kubernetes-validations"
NONSENSE: Final = "a\nb"
_WRONG_TYPES: Final[Mapping[str, tuple[Any, ...]]] = {
    "object": ("text", ["item"], 7),
    "array": ("text", {}, 7),
    "string": (7, True, {}, ["item"]),
    "integer": ("seven", "7", 1.5, True, {}, 2**63),
    "boolean": ("true", 1, {}),
    "int-or-string": (1.5, True, {}, ["item"]),
}


@dataclass(frozen=True, slots=True)
class Wrong:
    """A manifest with one field wrong. A refusal of it names `field`, and says one of `wanted`."""

    field: str
    how: str
    manifest: Manifest
    wanted: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.manifest['kind']} {self.field}: {self.how}"


@dataclass(frozen=True, slots=True)
class Part:
    """The schema at one place. `path` leads there in a manifest, with one key for all of a map."""

    path: Path
    schema: Schema

    @property
    def field(self) -> str:
        return ".".join(map(str, self.path))

    @property
    def rules(self) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = self.schema.get(RULES, [])
        return results

    @property
    def type(self) -> str:
        return "int-or-string" if self.schema.get("x-kubernetes-int-or-string") else str(self.schema["type"])


def parts_of(schema: Schema, manifest: Manifest) -> Iterator[Part]:
    """Every place of the schema's spec; the keys of maps are those of `manifest`, where it has any."""
    yield from _parts(schema["properties"]["spec"], ("spec",), manifest.get("spec"))


def _parts(schema: Schema, path: Path, value: Any) -> Iterator[Part]:
    yield Part(path, schema)
    for name, inner in schema.get("properties", {}).items():
        yield from _parts(inner, (*path, name), value.get(name) if isinstance(value, dict) else None)
    if isinstance(schema.get("additionalProperties"), dict):
        key = next(iter(value)) if isinstance(value, dict) and value else "key"
        inside = value.get(key) if isinstance(value, dict) else None
        yield from _parts(schema["additionalProperties"], (*path, key), inside)
    if "items" in schema:
        yield from _parts(
            schema["items"], (*path, 0), value[0] if isinstance(value, list) and value else None
        )


def wrong_manifests(schema: Schema, good: Manifest) -> Iterator[Wrong]:
    """Every way in which one field of `good`, or one that it could have, is wrong."""
    yield from _incomplete(Part((), schema), schema, good)
    for part in parts_of(schema, good):
        yield from _of_wrong_type(part, schema, good)
        yield from _out_of_bounds(part, schema, good)
        yield from _incomplete(part, schema, good)
        yield from _nonsense(part, schema, good)


def _of_wrong_type(part: Part, schema: Schema, good: Manifest) -> Iterator[Wrong]:
    for value in _WRONG_TYPES[part.type]:
        expected = "integer,string" if part.type == "int-or-string" else part.type
        yield _with(part, schema, good, value, f"{value!r} for {part.type}", f"must be of type {expected}")


def _out_of_bounds(part: Part, schema: Schema, good: Manifest) -> Iterator[Wrong]:
    own = part.schema
    bounds = (("minimum", -1, "greater than or equal to"), ("maximum", 1, "less than or equal to"))
    for bound, step, words in bounds:
        if bound in own:
            number = own[bound]
            yield _with(part, schema, good, number + step, f"beyond its {bound}", f"{words} {number}")
    if "enum" in own:
        other: Any = max(own["enum"]) + 1 if part.type == "integer" else "Otherwise"
        choices = ", ".join(f'"{item}"' for item in own["enum"])
        yield _with(part, schema, good, other, "none of its choices", f"supported values: {choices}")
    if "maxLength" in own:
        long = "a" * (own["maxLength"] + 1)
        yield _with(part, schema, good, long, "too long", f"may not be more than {own['maxLength']}")
    if "minLength" in own:
        yield _with(part, schema, good, "", "empty", f"at least {own['minLength']} chars long")
    if "maxItems" in own:
        item = _value_at(good, (*part.path, 0))
        item = sample(own["items"]) if item is None else item
        many = [f"{item}{n}" if isinstance(item, str) else item for n in range(own["maxItems"] + 1)]
        yield _with(part, schema, good, many, "too many items", f"must have at most {own['maxItems']} items")
    if "maxProperties" in own:
        many_keys = {f"key-{n}": sample(own["additionalProperties"]) for n in range(own["maxProperties"] + 1)}
        words = f"must have at most {own['maxProperties']} items"
        yield _with(part, schema, good, many_keys, "too many keys", words)
    if own.get("x-kubernetes-list-type") == "set":
        twice = [sample(own["items"])] * 2
        yield _with(part, schema, good, twice, "one item twice", "Duplicate value")


def _incomplete(part: Part, schema: Schema, good: Manifest) -> Iterator[Wrong]:
    if "properties" not in part.schema:
        return
    whole = _placed(part, schema, good)
    for name in part.schema.get("required", ()):
        for how in ("left out", "null"):
            manifest = unshared(whole)
            inside = _value_at(manifest, part.path)
            del inside[name]
            if how == "null":
                inside[name] = None
            yield Wrong(Part((*part.path, name), {}).field, how, manifest, ("Required value",))
    manifest = unshared(whole)
    _value_at(manifest, part.path)["noSuchField"] = "text"
    unknown = Part((*part.path, "noSuchField"), {}).field
    yield Wrong(unknown, "unknown", manifest, ("unknown field",))


def _nonsense(part: Part, schema: Schema, good: Manifest) -> Iterator[Wrong]:
    """Whatever a rule on a text wants, it is not two lines."""
    rules = tuple(rule["message"] for rule in part.rules if not is_of_changes(rule))
    if part.type in ("string", "int-or-string") and rules:
        yield _with(part, schema, good, NONSENSE, "two lines", *rules)


def _with(part: Part, schema: Schema, good: Manifest, value: Any, how: str, *expected: str) -> Wrong:
    manifest = _placed(part, schema, good)
    _put(manifest, part.path, value)
    return Wrong(part.field, how, manifest, expected)


def _placed(part: Part, schema: Schema, good: Manifest) -> Manifest:
    """`good` with all that `part` needs around it."""
    manifest = unshared(good)
    inner = schema["properties"]["spec"]
    for depth in range(1, len(part.path) + 1):
        place = part.path[:depth]
        if depth > 1:
            inner = _inner(inner, place[-1])
        if _value_at(manifest, place) is None:
            _put(manifest, place, sample(inner))
    return manifest


def _inner(schema: Schema, step: str | int) -> Schema:
    if isinstance(step, int):
        items: Schema = schema["items"]
        return items
    inner: Schema = schema.get("properties", {}).get(step) or schema["additionalProperties"]
    return inner


def sample(schema: Schema) -> Any:
    """The least value that a schema takes, as far as it follows without its rules."""
    if "default" in schema and schema["default"] != {}:
        return schema["default"]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("x-kubernetes-int-or-string"):
        return 1
    match schema["type"]:
        case "object":
            return {name: sample(schema["properties"][name]) for name in schema.get("required", ())}
        case "array":
            return []
        case "integer":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case _:
            return "a" * max(1, schema.get("minLength", 1))


def _value_at(manifest: Any, path: Path) -> Any:
    for step in path:
        if isinstance(step, int):
            manifest = manifest[step] if isinstance(manifest, list) and len(manifest) > step else None
        else:
            manifest = manifest.get(step) if isinstance(manifest, dict) else None
    return manifest


def _put(manifest: Any, path: Path, value: Any) -> None:
    *way, last = path
    inside = _value_at(manifest, tuple(way))
    if isinstance(last, int) and len(inside) <= last:
        inside.append(value)
    else:
        inside[last] = value


def is_of_changes(rule: Mapping[str, Any]) -> bool:
    """Whether a rule is evaluated only when an object changes (a transition rule), not when it is made."""
    return "oldSelf" in rule["rule"] and not rule.get("optionalOldSelf", False)


def unshared(manifest: Manifest) -> Manifest:
    """A copy in which parts that `manifest` has in several places are separate: `deepcopy` keeps them one."""
    result: Manifest = json.loads(json.dumps(manifest))
    return result


def changed(manifest: Manifest, field: str, value: Any) -> Manifest:
    """`manifest` with another value in `field` (`spec.config[retention.ms]`); None takes it away."""
    result = unshared(manifest)
    *way, last = [key or name for key, name in re.findall(r"\[([^\]]+)\]|([^.\[\]]+)", field)]
    inside = result
    for step in way:
        inside = inside.setdefault(step, {})
    if value is None:
        inside.pop(last, None)
    else:
        inside[last] = value
    return result


def plain(field: str) -> str:
    """A field as the API server writes it (`spec.config[a.b]`, `spec.topics[0]`), with dots throughout."""
    return re.sub(r"\[([^\]]*)\]", r".\1", field)
