"""Writers' Avro schemas as trees of types, and the columns that they make.

    boolean                          boolean
    int, long                        long: a field may become long without a change of the table
    float, double                    double
    string, enum, uuid               string
    bytes, fixed                     binary
    decimal (up to 38 digits)        decimal
    date                             date
    timestamp-millis, -micros        timestamp
    array, map, record               array, map, struct
    null or one type                 that type
    several types                    struct with a member for each, named by its type; one of them is not null

Other logical types are their underlying type. Types of a union that share a name without case have their
namespaces in the members' names, as in `com_example_Event`. A field of a recursive type is a string column
with its value as JSON, and so is one with members that differ in case alone. A schema that is no record makes
the column `value`. Pure.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import fastavro
import pyarrow as pa

from mainstem_loader.arrow_arrays import fields_of
from mainstem_loader.columns import TIMESTAMP_TYPE, TYPE_DEPTH_MAX, ColumnError

VALUE_FIELD: Final = "value"
DECIMAL_DIGITS_MAX: Final = 38
PARTS_MAX: Final = 10_000
"""Fields of a schema with all inside of them. Records that use others twice double them at each level."""

_ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL_TYPES: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP_TYPE,
    ("long", "timestamp-micros"): TIMESTAMP_TYPE,
}

BRANCH: Final = "branch"
MARKED_KINDS: Final = ("int", "float")
"""Python has one type for these and for long and double. As branches of a union they have the logical type
BRANCH, by which a reader tells them apart.
"""


@dataclass(slots=True, eq=False)
class AvroType:
    """A type of a writer's schema.

    Attributes:
        kind: as in the schema, such as "long" or "record".
        arrow: the type of its column; of JSON a string, of what is always null null.
        logical: the logical type, if it is one of those above.
        name: of a record, enum or fixed.
        parts: of a record its fields' types, of a union its branches, of an array or map its one element.
        names: of a record its fields' names, of a union its members' names.
        symbols: of an enum.
        size: of a fixed.
        is_json: whether its values are JSON texts, as it contains itself, or members that differ in case
            alone.
    """

    kind: str
    arrow: pa.DataType
    logical: str = ""
    name: str = ""
    parts: Sequence[AvroType] = ()
    names: Sequence[str] = ()
    symbols: Sequence[str] = ()
    size: int = 0
    is_json: bool = False

    @property
    def is_optional(self) -> bool:
        """Whether it is a union of null and one other type."""
        return self.kind == "union" and len(self.parts) == 2 and self.null_branch >= 0

    @property
    def null_branch(self) -> int:
        """The position of null in a union; -1 if it has none."""
        return next((at for at, part in enumerate(self.parts) if part.kind == "null"), -1)


@dataclass(frozen=True, slots=True, eq=False)
class WriterSchema:
    """A schema by which records were written.

    Attributes:
        root: its type.
        parsed: as fastavro has it.
    """

    root: AvroType
    parsed: Any

    @property
    def fields(self) -> dict[str, AvroType]:
        """The fields of the payload, by name."""
        if self.root.kind != "record":
            return {VALUE_FIELD: self.root}
        return dict(zip(self.root.names, self.root.parts, strict=True))


def parse_writer_schema(text: str, references: Sequence[str] = ()) -> WriterSchema:
    """A schema from its text and the texts of what it references, in order of dependence.

    Raises:
        ColumnError: it is not valid, or has more levels or fields than columns can have.
    """
    named_schemas: dict[str, Any] = {}
    named: dict[str, Any] = {}
    try:
        for reference in references:
            value = _reduced_type(json.loads(reference))
            fastavro.parse_schema(value, named_schemas=named_schemas)
            _Builder(named).build(value, "", 1)
        value = _reduced_type(json.loads(text))
        parsed = fastavro.parse_schema(value, named_schemas=named_schemas)
        return WriterSchema(_Builder(named).build(value, "", 1), parsed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ColumnError(f"the schema cannot be read: {error}") from error
    except fastavro.schema.SchemaParseException as error:
        raise ColumnError(f"the schema cannot be read: {error}") from error


@dataclass(slots=True)
class _Builder:
    """Builds the types of one text. `_named` gains those that have names, for later texts; `_open` holds the
    named types that are not complete yet.
    """

    _named: dict[str, Any]
    _open: set[str] = field(default_factory=set)
    _parts: int = 0

    def build(self, node: Any, namespace: str, depth: int) -> AvroType:
        if depth > TYPE_DEPTH_MAX:
            raise ColumnError(f"a type is nested more than {TYPE_DEPTH_MAX} levels deep")
        if isinstance(node, str):
            return self._build_named(node, namespace, depth)
        if isinstance(node, list):
            return self._build_union([self.build(branch, namespace, depth + 1) for branch in node])
        kind = node["type"]
        if not isinstance(kind, str):
            return self.build(kind, namespace, depth)
        match kind:
            case "array":
                item = self.build(node["items"], namespace, depth + 1)
                if _may_be_empty(item):
                    # A few bytes could stand for any number of them.
                    raise ColumnError("the schema has an array of a type whose values take no bytes")
                return _json_if_recursive(AvroType(kind, pa.list_(_stored(item)), parts=[item]))
            case "map":
                value = self.build(node["values"], namespace, depth + 1)
                return _json_if_recursive(AvroType(kind, pa.map_(pa.string(), _stored(value)), parts=[value]))
            case "record" | "error" | "enum" | "fixed":
                return self._define(node, namespace, depth)
        if kind not in _ARROW_TYPES:
            return self._build_named(kind, namespace, depth)
        return _with_logical_type(AvroType(kind, _ARROW_TYPES[kind]), node)

    def _build_named(self, name: str, namespace: str, depth: int) -> AvroType:
        if name in _ARROW_TYPES:
            return AvroType(name, _ARROW_TYPES[name])
        full_name = name if "." in name or not namespace else f"{namespace}.{name}"
        if full_name not in self._named:
            full_name = name
        if full_name in self._open:
            return AvroType("record", pa.string(), name=full_name, is_json=True)
        node, outer = self._named[full_name]
        # Built again, as the depth differs from place to place.
        return self._define(node, outer, depth)

    def _define(self, node: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        name, own_namespace = str(node["name"]), node.get("namespace", namespace) or ""
        full_name = name if "." in name or not own_namespace else f"{own_namespace}.{name}"
        self._named[full_name] = (node, namespace)
        if node["type"] == "enum":
            return AvroType("enum", pa.string(), name=full_name, symbols=node["symbols"])
        if node["type"] == "fixed":
            fixed = AvroType("fixed", pa.binary(), name=full_name, size=int(node["size"]))
            return _with_logical_type(fixed, node)
        self._parts += len(node["fields"])
        if self._parts > PARTS_MAX:
            raise ColumnError(f"it has more than {PARTS_MAX} fields with all records inside of it")
        inner = full_name.rpartition(".")[0]
        self._open.add(full_name)
        names = [str(item["name"]) for item in node["fields"]]
        parts = [self.build(item["type"], inner, depth + 1) for item in node["fields"]]
        self._open.discard(full_name)
        record = AvroType("record", _struct_of(names, parts), name=full_name, parts=parts, names=names)
        # The fields of the payload are columns, and judged as such.
        return record if depth == 1 else _json_if_clashing(record)

    def _build_union(self, parts: list[AvroType]) -> AvroType:
        names = _names_of_branches(parts)
        others = [part for part in parts if part.kind != "null"]
        if len(others) == 1:
            return _json_if_recursive(AvroType("union", others[0].arrow, parts=parts, names=names))
        union = AvroType("union", _struct_of(names, parts), parts=parts, names=names)
        return _json_if_clashing(_json_if_recursive(union))


def _names_of_branches(parts: Sequence[AvroType]) -> list[str]:
    """The members of a union's branches; full names where others would be equal without case."""
    names = [part.name.rpartition(".")[2] or part.kind for part in parts]
    counts = Counter(name.casefold() for name, part in zip(names, parts, strict=True) if part.kind != "null")
    return [
        part.name.replace(".", "_") if part.name and counts[name.casefold()] > 1 else name
        for name, part in zip(names, parts, strict=True)
    ]


def _may_be_empty(avro_type: AvroType) -> bool:
    match avro_type.kind:
        case "null":
            return True
        case "record" | "error":
            # Where a record contains itself it has no parts, and is JSON.
            is_inside_itself = avro_type.is_json and not avro_type.parts
            return not is_inside_itself and all(map(_may_be_empty, avro_type.parts))
        case "fixed":
            return avro_type.size == 0
    return False


def _reduced_type(node: Any) -> Any:
    """A type for fastavro: reduced, and the branches of a union marked that it would read alike."""
    reduced = _reduced(node)
    return [_marked(branch) for branch in reduced] if isinstance(reduced, list) else reduced


def _marked(branch: Any) -> Any:
    node = branch if isinstance(branch, dict) else {"type": branch}
    is_marked = node.get("type") in MARKED_KINDS and "logicalType" not in node
    return {**node, "logicalType": BRANCH} if is_marked else branch


def _reduced(node: Any) -> Any:
    """The schema without what no value depends on.

    It has those logical types alone that have columns, as fastavro converts many others. Defaults are for
    readers of records without the field. Registries store invalid ones, which fastavro refuses.
    """
    if isinstance(node, list):
        return [_reduced(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {
        key: _reduced_type(value) if key in ("type", "items", "values") else _reduced(value)
        for key, value in node.items()
        if key != "default"
    }
    logical, kind = plain.get("logicalType"), plain.get("type")
    if logical is None:
        return plain
    is_known = (
        isinstance(kind, str)
        and isinstance(logical, str)
        and ((kind, logical) in _LOGICAL_TYPES or _is_decimal(plain))
    )
    return plain if is_known else {key: value for key, value in plain.items() if key != "logicalType"}


def _is_decimal(node: Mapping[str, Any]) -> bool:
    """Whether a type is a decimal that has a column. The specification says to ignore an invalid one."""
    precision, scale = node.get("precision"), node.get("scale", 0)
    return (
        node.get("logicalType") == "decimal"
        and node.get("type") in ("bytes", "fixed")
        and isinstance(precision, int)
        and isinstance(scale, int)
        and 0 < precision <= DECIMAL_DIGITS_MAX
        and 0 <= scale <= precision
        and (node["type"] == "bytes" or _fits_in(precision, node.get("size")))
    )


def _fits_in(digits: int, size: Any) -> bool:
    """Whether `size` bytes hold any number of so many digits, with its sign."""
    return isinstance(size, int) and digits <= (8 * size - 1) * math.log10(2)


def _struct_of(names: Sequence[str], parts: Sequence[AvroType]) -> pa.DataType:
    """A struct of what has values; null if nothing has."""
    members = [
        (name, part.arrow)
        for name, part in zip(names, parts, strict=True)
        if not pa.types.is_null(part.arrow)
    ]
    return pa.struct(members) if members else pa.null()


def _json_if_clashing(built: AvroType) -> AvroType:
    """What has members that differ in case alone, which no struct of a table can hold, is JSON as a whole."""
    if pa.types.is_struct(built.arrow):
        names = [member.name.casefold() for member in fields_of(built.arrow)]
        if len(set(names)) < len(names):
            built.is_json, built.arrow = True, pa.string()
    return built


def _stored(element: AvroType) -> pa.DataType:
    """Elements that are always null have a type all the same, for Parquet has none for nulls alone."""
    return pa.string() if pa.types.is_null(element.arrow) else element.arrow


def _json_if_recursive(built: AvroType) -> AvroType:
    """What consists of a type that contains itself has no columns of its own either."""
    if any(part.is_json for part in built.parts):
        built.is_json, built.arrow = True, pa.string()
    return built


def _with_logical_type(built: AvroType, node: Mapping[str, Any]) -> AvroType:
    logical = str(node.get("logicalType", ""))
    if (built.kind, logical) in _LOGICAL_TYPES:
        built.logical, built.arrow = logical, _LOGICAL_TYPES[built.kind, logical]
    elif _is_decimal(node):
        built.logical, built.arrow = logical, pa.decimal128(node["precision"], node.get("scale", 0))
    return built
