"""Avro: parsing, canonical text, and who can read what.

Resolution follows the section "Schema Resolution" of the Avro specification 1.12. Logical types do not
count: two types that are stored alike are compatible, as for Avro's Java library. fastavro judges whether a
text is a valid schema, apart from its default values. Those are judged as Java's library 1.12 does
(`Schema.isValidDefault`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from mainstem_registry.errors import invalid_schema
from mainstem_registry.schemas.limits import DEFAULT_STEPS_MAX, Steps, check_shape, dump_json, load_json

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset(("long", "float", "double")),
    "long": frozenset(("float", "double")),
    "float": frozenset(("double",)),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}
"""A writer's type, and the other types that a reader may declare for it."""

INTEGER_BITS: Final[Mapping[str, int]] = {"int": 32, "long": 64}
JAVA_NUMBER: Final = re.compile(
    r"[\x00-\x20]*[+-]?(NaN|Infinity|(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?[fFdD]?)[\x00-\x20]*", re.ASCII
)
"""What `Double.valueOf` takes, but for hexadecimal numbers."""

WRITTEN: Final[Mapping[str, Sequence[str]]] = {
    "record": ("doc", "fields"),
    "error": ("doc", "fields"),
    "enum": ("doc", "symbols", "default"),
    "fixed": ("doc", "size"),
    "array": ("items",),
    "map": ("values",),
}
"""Kinds of types to their attributes after the name, in the order in which Java's library writes them."""
NAMED: Final = ("record", "error", "enum", "fixed")
RESERVED: Final = frozenset(
    ("type", "name", "namespace", "doc", "fields", "symbols", "size", "items", "values", "aliases")
)
"""Attributes that mean nothing where they are not written. All others are properties, which are kept."""
FIELD_ATTRIBUTES: Final = ("name", "type", "doc", "default", "order", "aliases")


@dataclass(slots=True, eq=False)
class AvroType:
    """A type with its names resolved. Named types may contain themselves."""

    kind: str
    name: str = ""
    """The full name of a record, enum or fixed."""
    aliases: frozenset[str] = frozenset()
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    size: int = 0
    parts: list[AvroType] = field(default_factory=list)
    """Of an array or map its one element type, of a union its branches."""
    completed_as: int = 0
    """Of a record: its number in the order in which records were complete, from 1; 0 while its fields are
    read."""


@dataclass(frozen=True, slots=True, eq=False)
class AvroField:
    name: str
    aliases: frozenset[str]
    type: AvroType
    has_default: bool
    default: Any
    complete_records: int
    """How many records were complete where the default stands: it cannot contain values of others."""


@dataclass(frozen=True, slots=True, eq=False)
class AvroSchema:
    """A valid schema."""

    canonical: str
    """The text that Java's library 1.12 writes (`Schema.toString`): what is stored."""
    normalized: str
    """The same for all texts that differ only in the order of properties or the way a name is written."""
    identity: str
    """The same for all texts with one normalized text, wherever the types are defined: in the text itself or
    in a reference.
    """
    root: AvroType

    def problems_reading(self, writer: AvroSchema, steps: Steps) -> list[str]:
        """Why this schema cannot read what `writer` wrote; empty if it can."""
        problems: list[str] = []
        _Comparison(problems, steps).compare(self.root, writer.root, "/")
        return problems


def parse(text: str, references: Sequence[tuple[str, str]]) -> AvroSchema:
    """A schema from its text and the (name, text) of all that it references, in order of dependence.

    Raises:
        RegistryError: it is not valid.
    """
    defined = _Defined({})
    known_to_fastavro: dict[str, Any] = {}
    loaded = [(name, load_json(reference)) for name, reference in references]
    value = load_json(text)
    check_shape([value, *(reference for _, reference in loaded)])
    for name, reference in loaded:
        _validate(reference, known_to_fastavro, f"the reference {name!r}: ")
        _build(reference, "", defined)  # it was valid when it was registered
    _validate(value, known_to_fastavro, "")
    try:
        root = _build(value, "", defined)
        canonical = _canonical(value, "")
        normalized = _normalized(canonical, "")
        others = [_normalized(_canonical(reference, ""), "") for _, reference in loaded]
        return AvroSchema(dump_json(canonical), dump_json(normalized), _identity(normalized, others), root)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        # fastavro takes a few texts that the specification does not allow, such as a record without fields.
        raise invalid_schema(f"an attribute is missing or of the wrong type: {error}.") from None


def check_new(schema: AvroSchema) -> None:
    """Refuse what fastavro takes, but the specification does not and Java's library cannot read.

    Stored schemas are not checked: another registry may have taken them.

    Raises:
        RegistryError: it has such a name, size, field, default or union.
    """
    steps = Steps(DEFAULT_STEPS_MAX, "its default values have too many parts to be checked.")
    todo = [schema.root]
    visited: set[int] = set()
    while todo:
        avro_type = todo.pop()
        if id(avro_type) in visited:
            continue
        visited.add(id(avro_type))
        names = [avro_type.name.rpartition(".")[2]] if avro_type.name else []
        fields = [item.name for item in avro_type.fields]
        for name in (*names, *fields, *avro_type.symbols):
            if not _is_name(name):
                raise invalid_schema(
                    f"the name {name!r} is not made of letters, digits and _, or begins with a digit."
                )
        if repeated := _repeated(fields):
            raise invalid_schema(f"the record {avro_type.name!r} has two fields {repeated!r}.")
        for item in avro_type.fields:
            if item.has_default and not _is_default(item, steps):
                raise invalid_schema(
                    f"the default of the field {item.name!r}, {_short(dump_json(item.default))}, is no value"
                    f" of its type, {_described(item.type)}."
                )
        if avro_type.default_symbol not in (None, *avro_type.symbols):
            raise invalid_schema(
                f"the default of the enum {avro_type.name!r}, {_short(avro_type.default_symbol or '')!r}, is"
                " none of its symbols."
            )
        if avro_type.size < 0:
            raise invalid_schema(f"the fixed {avro_type.name!r} has a negative size.")
        if avro_type.kind == "union":
            if any(branch.kind == "union" for branch in avro_type.parts):
                raise invalid_schema("a union contains another one.")
            if repeated := _repeated([branch.name or branch.kind for branch in avro_type.parts]):
                raise invalid_schema(f"a union has two branches {repeated!r}.")
        todo += [item.type for item in avro_type.fields] + avro_type.parts


def _is_name(text: str) -> bool:
    """Letters of all scripts, digits and _, as Java's library takes them."""
    return (
        bool(text)
        and (text[0] == "_" or text[0].isalpha())
        and all(one == "_" or one.isalnum() for one in text)
    )


def _repeated(names: Sequence[str]) -> str | None:
    """The first name that occurs a second time."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _validate(value: Any, known_names: dict[str, Any], place: str) -> None:
    try:
        # Defaults are the business of `check_new`: fastavro's rules are others than Java's, and another
        # registry may have stored a schema without looking at them. Logical types that are not valid, such as
        # a decimal whose scale is above its precision, are ignored (specification, "Logical Types").
        fastavro.parse_schema(_without(("default", "logicalType"), value), named_schemas=known_names)
    except UnknownType as error:
        raise invalid_schema(f"{place}the type {error.name!r} is not defined.") from None
    except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        # fastavro raises what the access to a missing attribute raises, for some texts.
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
        raise invalid_schema(f"{place}{reason or type(error).__name__}.") from None


def _without(attributes: Collection[str], node: Any) -> Any:
    if isinstance(node, list):
        return [_without(attributes, item) for item in node]
    if isinstance(node, dict):
        return {key: _without(attributes, value) for key, value in node.items() if key not in attributes}
    return node


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _namespace_of(full_name: str) -> str:
    return full_name.rpartition(".")[0]


def _own_name(node: Mapping[str, Any], namespace: str) -> str:
    name = str(node["name"])
    return _full_name(name, str(node.get("namespace") or "") if "namespace" in node else namespace)


@dataclass(slots=True, eq=False)
class _Defined:
    """What a schema and its references have defined so far."""

    names: dict[str, AvroType]
    complete_records: int = 0


def _build(node: Any, namespace: str, defined: _Defined) -> AvroType:
    """The type of a valid node; `defined` gains the types that it defines.

    Raises:
        RegistryError: a name is not defined, or is defined twice.
    """
    if isinstance(node, str):
        if node in PRIMITIVES:
            return AvroType(node)
        named_type = defined.names.get(_full_name(node, namespace)) or defined.names.get(node)
        if named_type is None:
            raise invalid_schema(f"the type {node!r} is not defined.")
        return named_type
    if isinstance(node, list):
        return AvroType("union", parts=[_build(branch, namespace, defined) for branch in node])
    kind = node["type"]
    if not isinstance(kind, str) or kind not in WRITTEN:
        return _build(kind, namespace, defined)
    if kind in ("array", "map"):
        element = node["items" if kind == "array" else "values"]
        return AvroType(kind, parts=[_build(element, namespace, defined)])
    full_name = _own_name(node, namespace)
    inner = _namespace_of(full_name)
    aliases = frozenset(_full_name(alias, inner) for alias in node.get("aliases") or ())
    named = AvroType("record" if kind == "error" else kind, full_name, aliases)
    if full_name in defined.names:
        raise invalid_schema(f"the name {full_name!r} is defined twice.")
    defined.names[full_name] = named
    if kind == "enum":
        named.symbols, default = tuple(node["symbols"]), node.get("default")
        named.default_symbol = default if isinstance(default, str) else None  # Java ignores others
    elif kind == "fixed":
        named.size = int(node["size"])
    else:
        for item in node["fields"]:
            named.fields.append(
                AvroField(
                    name=item["name"],
                    aliases=frozenset(item.get("aliases") or ()),
                    type=_build(item["type"], inner, defined),
                    has_default="default" in item,
                    default=item.get("default"),
                    complete_records=defined.complete_records,
                )
            )
        defined.complete_records += 1
        named.completed_as = defined.complete_records
    return named


def _is_default(item: AvroField, steps: Steps) -> bool:
    """Whether a field may have its default, as Java's library 1.12 decides it.

    Looser than the specification: it takes any text for bytes, fixed and enums, and a value of any branch for
    a union. A field of type float or double may have its default as text, such as "NaN".
    """
    if item.type.kind in ("float", "double") and isinstance(item.default, str):
        return JAVA_NUMBER.fullmatch(item.default) is not None
    return _Default(item.complete_records, steps).fits(item.type, item.default)


class _Default:
    """One default value, and the answers for pairs of a type and a part of it, by their ids: without them,
    unions inside unions would multiply the work.
    """

    def __init__(self, complete_records: int, steps: Steps) -> None:
        self._complete_records = complete_records
        self._steps = steps
        self._judged: dict[tuple[int, int], bool] = {}

    def fits(self, avro_type: AvroType, value: Any) -> bool:
        """Whether a value in JSON is one of the type.

        Raises:
            RegistryError: the schema's defaults take too many steps.
        """
        self._steps.take()
        pair = id(avro_type), id(value)
        if pair not in self._judged:
            self._judged[pair] = self._is_value_of(avro_type, value)
        return self._judged[pair]

    def _is_value_of(self, avro_type: AvroType, value: Any) -> bool:
        match avro_type.kind:
            case "null":
                return value is None
            case "boolean":
                return isinstance(value, bool)
            case "int" | "long":
                bound = 1 << (INTEGER_BITS[avro_type.kind] - 1)
                return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound
            case "float" | "double":
                return isinstance(value, int | float) and not isinstance(value, bool)
            case "bytes" | "string" | "enum" | "fixed":
                return isinstance(value, str)
            case "array":
                return isinstance(value, list) and all(self.fits(avro_type.parts[0], item) for item in value)
            case "map":
                return isinstance(value, dict) and all(
                    self.fits(avro_type.parts[0], item) for item in value.values()
                )
            case "union":
                return any(self.fits(branch, value) for branch in avro_type.parts)
        # A default that contains a value of the record that is being defined is refused by Java, too.
        if not isinstance(value, dict) or avro_type.completed_as > self._complete_records:
            return False
        self._steps.take(len(avro_type.fields))
        return all(
            self.fits(item.type, value[item.name])
            if item.name in value
            else item.has_default  # its own check refuses one that does not fit
            for item in avro_type.fields
        )


def simplified(node: Any) -> Any:
    """A schema with {"type": "string"} written as "string", and nothing else changed: what earlier releases
    stored. Texts that are no schema are possible.
    """
    if isinstance(node, list):
        return [simplified(item) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1 and isinstance(node.get("type"), str):
        return node["type"]
    places = ("type", "items", "values", "fields")
    return {key: simplified(value) if key in places else value for key, value in node.items()}


def _canonical(node: Any, namespace: str) -> Any:
    """A valid schema as Java's library writes it (`Schema.toString`): attributes in one order, without those
    that mean nothing where they stand, and without a namespace that is the one around it.
    """
    if isinstance(node, list):
        return [_canonical(branch, namespace) for branch in node]
    if not isinstance(node, dict):
        return _relative(node, namespace)
    kind = node["type"]
    if isinstance(kind, list | dict):
        # fastavro takes a type in a type, which the specification does not have.
        return node | {"type": _canonical(kind, namespace)}
    if kind not in PRIMITIVES and kind not in WRITTEN:
        return _relative(kind, namespace)
    written: dict[str, Any] = {"type": kind}
    inner = namespace
    if kind in NAMED:
        full_name = _own_name(node, namespace)
        inner = _namespace_of(full_name)
        written["name"] = full_name.rpartition(".")[2]
        if inner != namespace:
            written["namespace"] = inner
    for key in WRITTEN.get(kind, ()):
        match key:
            case "items" | "values":
                written[key] = _canonical(node[key], inner)
            case "fields":
                written[key] = [_canonical_field(item, inner) for item in node[key]]
            case "doc" | "default" if not isinstance(node.get(key), str):
                pass  # Java ignores it
            case _:
                written[key] = node[key]
    unwritten = RESERVED | {"default"} if kind == "enum" else RESERVED
    written |= {key: value for key, value in node.items() if key not in unwritten}
    if kind in NAMED and node.get("aliases"):
        written["aliases"] = [_relative(_full_name(alias, inner), inner) for alias in node["aliases"]]
    return written if len(written) > 1 else kind


def _canonical_field(item: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    written = {key: item[key] for key in FIELD_ATTRIBUTES if key in item}
    written["type"] = _canonical(item["type"], namespace)
    if not isinstance(item.get("doc"), str):
        written.pop("doc", None)
    if str(item.get("order", "ascending")).lower() == "ascending":
        written.pop("order", None)
    if not item.get("aliases"):
        written.pop("aliases", None)
    return written | {key: value for key, value in item.items() if key not in FIELD_ATTRIBUTES}


def _relative(name: Any, namespace: str) -> Any:
    """A name as it is written in a namespace, which it leaves out if it is its own."""
    inside, _, simple = str(name).rpartition(".")
    is_own = inside == namespace and simple not in PRIMITIVES and simple not in WRITTEN
    return simple if is_own else name


def _normalized(node: Any, namespace: str) -> Any:
    """A canonical schema with full names, and with properties and aliases in one order."""
    if isinstance(node, str):
        return node if node in PRIMITIVES else _full_name(node, namespace)
    if isinstance(node, list):
        return [_normalized(branch, namespace) for branch in node]
    attributes = dict(node)
    inner = namespace
    if attributes["type"] in NAMED:
        attributes["name"] = _own_name(attributes, namespace)
        inner = _namespace_of(attributes["name"])
        if inner or not namespace:  # else the name would be in the namespace around it
            attributes.pop("namespace", None)
        if "aliases" in attributes:
            attributes["aliases"] = sorted(_full_name(alias, inner) for alias in attributes["aliases"])
    if isinstance(attributes["type"], list | dict):
        attributes["type"] = _normalized(attributes["type"], inner)
    for key in ("items", "values"):
        if key in attributes:
            attributes[key] = _normalized(attributes[key], inner)
    if "fields" in attributes:
        attributes["fields"] = [
            _ordered(item | {"type": _normalized(item["type"], inner)}) for item in attributes["fields"]
        ]
    return _ordered(attributes)


def _ordered(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes in their order, then the properties in that of the alphabet."""
    known = {key: value for key, value in attributes.items() if key in RESERVED or key in FIELD_ATTRIBUTES}
    return known | {key: attributes[key] for key in sorted(attributes) if key not in known}


def _identity(root: Any, references: Sequence[Any]) -> str:
    """Normalized schemas as one text: the names in place of all named types, and what the names stand for."""
    definitions: dict[str, tuple[Any, set[str]]] = {}
    uses: set[str] = set()
    for reference in references:
        _flattened(reference, definitions, set())
    flat = _flattened(root, definitions, uses)
    reached: dict[str, Any] = {}
    pending = list(uses)
    while pending:
        name = pending.pop()
        if name in definitions and name not in reached:
            reached[name], inner_uses = definitions[name]
            pending.extend(inner_uses)
    return dump_json([flat, reached], sort=True)


def _flattened(node: Any, definitions: dict[str, tuple[Any, set[str]]], uses: set[str]) -> Any:
    """A normalized schema without definitions inside: `definitions` gains them, each with the names that it
    uses, and `uses` the names that the schema itself does.
    """
    if isinstance(node, list):
        return [_flattened(branch, definitions, uses) for branch in node]
    if not isinstance(node, dict):
        uses.add(node)
        return node
    is_named = node["type"] in NAMED
    used = set[str]() if is_named else uses
    flat = {
        key: _flattened(value, definitions, used) if key in ("type", "items", "values") else value
        for key, value in node.items()
        if key != "namespace" or not is_named  # names are full
    }
    if "fields" in flat:
        flat["fields"] = [
            item | {"type": _flattened(item["type"], definitions, used)} for item in flat["fields"]
        ]
    if not is_named:
        return flat
    definitions[node["name"]] = flat, used
    uses.add(node["name"])
    return node["name"]


class _Comparison:
    """One walk over a reader's and a writer's types.

    A pair of records that is met again inside itself is taken for compatible: if it is not, the outer
    comparison finds the reason.
    """

    def __init__(self, problems: list[str], steps: Steps) -> None:
        self._problems = problems
        self._steps = steps
        self._judged: dict[tuple[int, int], bool] = {}

    def compare(self, reader: AvroType, writer: AvroType, path: str) -> bool:
        """Whether the reader can read all that the writer writes; adds reasons if not."""
        self._steps.take()
        if writer.kind == "union":
            # Every branch may occur in the data.
            fits = True
            for branch in writer.parts:
                fits &= self.compare(reader, branch, path)
            return fits
        if reader.kind == "union":
            if any(self._matches(branch, writer) for branch in reader.parts):
                return True
            return self._refuse(path, f"the reader's union has no branch for the writer's {_shown(writer)}")
        if reader.kind != writer.kind:
            if reader.kind in PROMOTIONS.get(writer.kind, ()):
                return True
            return self._refuse(
                path, f"the reader's type {_shown(reader)} cannot read the writer's {_shown(writer)}"
            )
        match reader.kind:
            case "array" | "map":
                element = "items" if reader.kind == "array" else "values"
                return self.compare(reader.parts[0], writer.parts[0], f"{path.rstrip('/')}/{element}")
            case "record" | "enum" | "fixed":
                return self._compare_named(reader, writer, path)
        return True

    def _matches(self, reader: AvroType, writer: AvroType) -> bool:
        """Like `compare`, for a branch that may or may not be the one: reasons are not kept."""
        noted = len(self._problems)
        matches = self.compare(reader, writer, "/")
        del self._problems[noted:]
        return matches

    def _compare_named(self, reader: AvroType, writer: AvroType, path: str) -> bool:
        same_name = reader.name.rpartition(".")[2] == writer.name.rpartition(".")[2]
        if not same_name and writer.name not in reader.aliases:
            return self._refuse(
                path, f"the reader's name {reader.name!r} is not the writer's {writer.name!r}, nor an alias"
            )
        pair = id(reader), id(writer)
        if pair in self._judged:
            return self._judged[pair]
        begun = len(self._judged)
        self._judged[pair] = True
        match reader.kind:
            case "fixed":
                fits = reader.size == writer.size or self._refuse(
                    path, f"the reader's fixed has {reader.size} bytes, the writer's {writer.size}"
                )
            case "enum":
                missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
                fits = (
                    not missing
                    or reader.default_symbol is not None
                    or self._refuse(
                        path,
                        f"the reader's enum {reader.name!r} has neither the symbols {', '.join(missing)} of"
                        " the writer nor a default",
                    )
                )
            case _:
                fits = self._compare_fields(reader, writer, path)
        if not fits:
            # What was judged meanwhile may rest on the assumption that this pair fits.
            for later in list(self._judged)[begun:]:
                del self._judged[later]
            self._judged[pair] = False
        return fits

    def _compare_fields(self, reader: AvroType, writer: AvroType, path: str) -> bool:
        written = {item.name: item for item in writer.fields}
        fits = True
        for item in reader.fields:
            self._steps.take()
            place = f"{path.rstrip('/')}/{item.name}"
            candidates = [name for name in (item.name, *sorted(item.aliases)) if name in written]
            if candidates:
                fits &= self.compare(item.type, written[candidates[0]].type, place)
            elif not item.has_default:
                fits &= self._refuse(
                    place, f"the reader's field {item.name!r} is not the writer's, and has no default value"
                )
        return fits

    def _refuse(self, path: str, reason: str) -> bool:
        self._problems.append(f"at {path}: {reason}")
        return False


def _shown(avro_type: AvroType) -> str:
    return f"{avro_type.kind} {avro_type.name!r}" if avro_type.name else avro_type.kind


def _described(avro_type: AvroType) -> str:
    """A type in words, with the bounds that a default may have missed."""
    if avro_type.kind in INTEGER_BITS:
        bits = INTEGER_BITS[avro_type.kind]
        return f"{avro_type.kind} (a whole number of {bits} bits, without a decimal point or exponent)"
    if avro_type.kind == "union":
        return "a union of " + (_short(", ".join(_shown(branch) for branch in avro_type.parts)) or "nothing")
    return _shown(avro_type)


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:100] + "..."
