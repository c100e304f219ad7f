"""JSON Schema: parsing, canonical text, and who accepts what.

One schema can read another's documents if it accepts every document that the other accepts. That is decided
by the shape of both, keyword by keyword, and in doubt the answer is no: keywords whose meaning is not
compared here (`not`, `if`, `dependentSchemas`, ...) must be the same in both, with all that they refer to and
depend on. A consequence that surprises some: in a schema that allows additional properties, a new property
with a type is a restriction.

Drafts 4, 6, 7, 2019-09 and 2020-12; without `$schema`, 2020-12 with 7's `items` and `definitions`.

Earlier releases took draft 3, ignored identifiers inside a schema, and did not look at what a `$ref` names.
What they stored is read and compared: such a schema has flaws, for which only a new one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urljoin

import jsonschema
from jsonschema.validators import validator_for

from mainstem_registry.errors import RegistryError, invalid_schema
from mainstem_registry.schemas.limits import Steps, check_shape, dump_json, load_json
from mainstem_registry.whole_numbers import is_whole_number

TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
DRAFT_3: Final = "http://json-schema.org/draft-03/"
DRAFT_4: Final = "http://json-schema.org/draft-04/"
OLD_DRAFTS: Final = (
    DRAFT_3,
    DRAFT_4,
    "http://json-schema.org/draft-06/",
    "http://json-schema.org/draft-07/",
)
"""In these, what stands beside a `$ref` does not count, except definitions."""
UNIONS: Final = ("anyOf", "oneOf")
COMBINATIONS: Final = frozenset(("$ref", "allOf", *UNIONS))
APART_DEPTH_MAX: Final = 10
"""Of properties and unions in which two schemas are searched for what tells their documents apart."""
METASCHEMAS: Final[Mapping[str, Any]] = {
    "http://json-schema.org/draft-04/schema": jsonschema.Draft4Validator.META_SCHEMA,
    "http://json-schema.org/draft-06/schema": jsonschema.Draft6Validator.META_SCHEMA,
    "http://json-schema.org/draft-07/schema": jsonschema.Draft7Validator.META_SCHEMA,
}
"""Schemas of schemas, which need no reference. Those of newer drafts consist of several documents, with
dynamic references, and are not here.
"""
DATA: Final = frozenset(("enum", "const", "default", "examples"))
"""Keywords whose values are no schemas, whatever they look like."""
LOWER_BOUNDS: Final = ("minLength", "minItems", "minProperties")
UPPER_BOUNDS: Final = ("maxLength", "maxItems", "maxProperties")
COMPARED: Final = frozenset(
    (
        "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        "multipleOf", "pattern", "items", "prefixItems", "additionalItems", "uniqueItems",
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "allOf", "anyOf", "oneOf", "$ref", *LOWER_BOUNDS, *UPPER_BOUNDS,
    )
)  # fmt: skip
DYNAMIC_REFERENCES: Final = ("$dynamicRef", "$recursiveRef")
UNCOMPARED: Final = frozenset(
    (
        "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependencies",
        "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties",
        *DYNAMIC_REFERENCES,
    )
)  # fmt: skip
RESTRICTIONS: Final = COMPARED | UNCOMPARED
"""Keywords that can reject a document. All others are annotations, those of which JSON Schema knows nothing
included (2020-12, 6.5): `title`, `format` by default, `connect.index` of Kafka Connect, `x-...` of OpenAPI.
"""
SCHEMA_KEYWORDS: Final = RESTRICTIONS | {"$defs", "definitions"}
_IN_PLACE: Final = (
    "$ref", *DYNAMIC_REFERENCES, "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas",
)  # fmt: skip
_OF_PROPERTIES: Final = ("properties", "patternProperties", "additionalProperties")
_OF_ITEMS: Final = ("prefixItems", "items", "additionalItems")
DEPENDS_ON: Final[Mapping[str, Sequence[str]]] = {
    "contains": ("minContains",),
    "unevaluatedProperties": (*_OF_PROPERTIES, *_IN_PLACE),
    "unevaluatedItems": (*_OF_ITEMS, "contains", *_IN_PLACE),
}
"""Keywords that are not compared, and those beside them that change what they mean."""
SCHEMAS_BY_NAME: Final = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
TEXT_PER_STEP: Final = 1000
"""Characters of a schema's text, which are compared in the time of one other step."""
APPLIES_TO: Final[Mapping[str, str]] = {
    "minLength": "string", "maxLength": "string", "minItems": "array", "maxItems": "array",
    "minProperties": "object", "maxProperties": "object",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class JsonSchema:
    """A valid schema."""

    canonical: str
    normalized: str
    root: Any
    documents: Mapping[str, Any]
    """Name of a reference, or identifier of a schema, to what it names; "" is the schema itself. Each `$ref`
    in them names one of these or a part of it.
    """
    flaws: Sequence[str] = ()
    """Why it is refused if it is not stored already."""

    @property
    def identity(self) -> str:
        return self.canonical

    def problems_reading(self, writer: JsonSchema, steps: Steps) -> list[str]:
        """Which of the documents that `writer` accepts this schema may reject; empty if none."""
        if dump_json(self.documents, sort=True) == dump_json(writer.documents, sort=True):
            return []
        problems: list[str] = []
        reader_place = _Place(self.root, self.documents)
        writer_place = _Place(writer.root, writer.documents)
        try:
            _Comparison(problems, steps).includes(reader_place, writer_place, "#")
        except RecursionError:
            raise invalid_schema("its references are too deep to be compared with others.") from None
        return problems


def parse(text: str, references: Sequence[tuple[str, str]]) -> JsonSchema:
    """A schema from its text and the (name, text) of all that it references.

    Raises:
        RegistryError: it is not valid, and not like those that earlier releases took.
    """
    flaws: list[str] = []
    named = {name: load_json(reference) for name, reference in references} | {"": load_json(text)}
    check_shape(list(named.values()))
    for name, document in named.items():
        _validate(document, f"the reference {name!r}: " if name else "", flaws)
    targets = {target.partition("#")[0] for document in named.values() for target in _references(document)}
    for name in METASCHEMAS.keys() & targets - named.keys():
        named[name] = deepcopy(METASCHEMAS[name])
    documents = _located(named, flaws)
    value = load_json(text)
    return JsonSchema(dump_json(value), dump_json(value, sort=True), documents[""], documents, flaws)


def check_new(schema: JsonSchema) -> None:
    """Refuse what only earlier releases took.

    Raises:
        RegistryError: the schema or one that it references is of draft 3, has one identifier twice, or has a
            `$ref` that names nothing by the rules for identifiers, or no schema.
    """
    for flaw in schema.flaws:
        raise invalid_schema(flaw)


def _draft(document: Any) -> str:
    return str(document.get("$schema", "")) if isinstance(document, dict) else ""


def _located(named: Mapping[str, Any], flaws: list[str]) -> dict[str, Any]:
    """The documents, and the schemas in them that have an identifier of their own, by name and identifier.
    Each `$ref` is written such that it names one of these or a part of it (2020-12, 8.2.1, 9.3).

    Raises:
        RegistryError: a `$ref` names nothing.
    """
    documents: dict[str, Any] = {}
    bases: dict[str, str] = {}
    for name, document in named.items():
        draft = _draft(document) or _draft(named[""])
        documents[name] = _references_alone(document) if draft.startswith(OLD_DRAFTS) else document
        if draft.startswith(DRAFT_3):
            _as_draft_4(documents[name])
        if draft.startswith((DRAFT_3, DRAFT_4)):
            for node, _ in _schemas(documents[name], name):
                if isinstance(node.get("id"), str):
                    node["$id"] = node.pop("id")
    for name, document in named.items():
        identifier = document.get("$id", document.get("id")) if isinstance(document, dict) else None
        if isinstance(identifier, str):
            documents.setdefault(identifier.rstrip("#"), documents[name])
    for name in named:
        for node, base in _schemas(documents[name], name, is_known=SCHEMA_KEYWORDS.__contains__):
            is_first = name not in bases
            bases.setdefault(name, base)
            if not is_first and not _identifier(node):
                continue
            other = documents.setdefault(base, node)
            if not is_first and dump_json(other, sort=True) != dump_json(node, sort=True):
                # The first one counts.
                flaws.append(f"two different schemas have the identifier {base!r}.")
    for name in named:
        for node, base in _schemas(documents[name], name):
            if not isinstance(node.get("$ref"), str):
                continue
            target, separator, fragment = node["$ref"].partition("#")
            places = (target, _joined(base, target)) if target else (base,)
            place = next((place for place in places if place in documents), target or name)
            reference = f"{name if place == bases[name] else place}{separator}{fragment}"
            try:
                named_node = _find(documents, reference)
            except RegistryError:
                # Earlier releases looked in the whole document, whatever identifiers are inside it.
                named_node = _find(documents, f"{target or name}#{fragment}", is_whole=True)
                flaws.append(f"the $ref {node['$ref']!r} does not name a part of its document.")
                reference = f"{name} {node['$ref']}".replace("#", " ")
                documents[reference] = named_node
            if isinstance(named_node, (dict, bool)):
                node["$ref"] = reference
                continue
            flaws.append(f"the $ref {node.pop('$ref')!r} does not name a schema.")
            node["enum"] = []  # no document can be judged there, so none was valid
    return documents


def _as_draft_4(document: Any) -> None:
    """Write the keywords of draft 3 as those of draft 4 that say the same."""
    for node, _ in _schemas(document, ""):
        if isinstance(node.get("required"), bool):
            del node["required"]  # its parent, which comes earlier, has read it
        properties = node.get("properties")
        items = properties.items() if isinstance(properties, dict) else ()
        if required := [name for name, item in items if _is_required(item)]:
            node["required"] = required
        types = _listed(node.get("type", []))
        if "any" in types:
            del node["type"]
        elif any(isinstance(item, dict) for item in types):
            del node["type"]
            node["anyOf"] = _as_schemas(types)
        if "disallow" in node:
            node["not"] = {"anyOf": _as_schemas(_listed(node.pop("disallow")))}
        if "extends" in node:
            node["allOf"] = _listed(node.pop("extends"))
        if "divisibleBy" in node:
            node["multipleOf"] = node.pop("divisibleBy")


def _is_required(item: Any) -> bool:
    return isinstance(item, dict) and item.get("required") is True


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _as_schemas(types: list[Any]) -> list[Any]:
    """What draft 3 allows in the place of types: names of types, and schemas."""
    return [{} if item == "any" else {"type": item} if isinstance(item, str) else item for item in types]


def _validate(document: Any, place: str, flaws: list[str]) -> None:
    if not isinstance(document, (dict, bool)):
        raise invalid_schema(f"{place}a JSON Schema is an object or a boolean.")
    draft = document.get("$schema") if isinstance(document, dict) else None
    if draft is not None and not isinstance(draft, str):
        raise invalid_schema(f"{place}$schema must be a string.")
    default = jsonschema.Draft202012Validator if draft is None else None
    validator = validator_for(document, default=default) if draft is not None else default
    if validator is None:
        raise invalid_schema(f"{place}the draft {draft!r} is not supported.")
    if validator is jsonschema.Draft3Validator:
        flaws.append(f"{place}the draft {draft!r} is not supported.")
    if draft is None and isinstance(document, dict) and isinstance(document.get("items"), list):
        validator = jsonschema.Draft7Validator
    try:
        validator.check_schema(document)
    except jsonschema.SchemaError as error:
        raise invalid_schema(f"{place}at {error.json_path}: {error.message[:300]}.") from None


def _references_alone(node: Any) -> Any:
    if isinstance(node, dict):
        # What is defined beside a reference does count: others name it.
        names = ("$ref", "definitions", "$defs") if isinstance(node.get("$ref"), str) else node
        return {key: _references_alone(node[key]) for key in names if key in node}
    return [_references_alone(item) for item in node] if isinstance(node, list) else node


def _schemas(
    document: Any, base: str, *, is_known: Callable[[str], bool] = lambda _: True
) -> Iterator[tuple[dict[str, Any], str]]:
    """All schemas in a document in the order of its text, each with the identifier by which its `$ref`s are
    resolved; the document first. `base` is the document's, unless it has its own. Only the keywords that are
    known have schemas.
    """
    pending = [(document, base, False)]
    while pending:
        node, base, is_by_name = pending.pop()
        if isinstance(node, list):
            pending.extend((item, base, False) for item in reversed(node))
        elif isinstance(node, dict):
            if not is_by_name:
                base = _joined(base, _identifier(node))
                yield node, base
            pending.extend(
                (value, base, key in SCHEMAS_BY_NAME and not is_by_name)
                for key, value in reversed(node.items())
                if is_by_name or (key not in DATA and is_known(key))
            )


def _identifier(node: Mapping[str, Any]) -> str:
    """What a schema is named by; empty if it is not. A fragment alone is an anchor of older drafts."""
    identifier = node.get("$id")
    return identifier.partition("#")[0] if isinstance(identifier, str) else ""


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference) if reference else base
    except ValueError:  # of an address that is none
        return reference


def _references(document: Any) -> list[str]:
    """The values of all `$ref` in a schema, or a part of one."""
    return [node["$ref"] for node, _ in _schemas(document, "") if isinstance(node.get("$ref"), str)]


def _find(documents: Mapping[str, Any], reference: str, *, is_whole: bool = False) -> Any:
    """The part of a document that a `$ref` names.

    `is_whole`: anchors of schemas that have identifiers inside the document are the document's, too.

    Raises:
        RegistryError: there is none.
    """
    name, _, pointer = reference.partition("#")
    if name not in documents:
        raise invalid_schema(f"the $ref {reference!r} names a document that is not among its references.")
    node = documents[name]
    if pointer and not pointer.startswith("/"):
        anchored = _anchor(node, pointer, is_whole=is_whole)
        if anchored is None:
            raise invalid_schema(f"the $ref {reference!r} does not name a part of its document.")
        return anchored
    for token in pointer.split("/")[1:]:
        key = unquote(token).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict) and key in node:
            node = node[key]
        elif isinstance(node, list) and is_whole_number(key) and int(key) < len(node):
            node = node[int(key)]
        else:
            raise invalid_schema(f"the $ref {reference!r} does not name a part of its document.")
    return node


def _anchor(document: Any, anchor: str, *, is_whole: bool) -> Any:
    """The schema with an anchor; None if there is none. Those of schemas with identifiers are their own."""
    bases: list[str] = []
    for node, base in _schemas(document, ""):
        bases.append(base)
        names = node.get("$anchor"), node.get("$dynamicAnchor")
        if (is_whole or base == bases[0]) and (anchor in names or node.get("$id") == f"#{anchor}"):
            return node
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A schema, and the documents in which its `$ref`s are looked up."""

    node: Any
    documents: Mapping[str, Any]

    def at(self, node: Any) -> _Place:
        """A part of this schema."""
        return _Place(node, self.documents)

    def named(self, reference: str) -> _Place:
        """The schema that a `$ref` of this one names."""
        return self.at(_find(self.documents, reference))


class _Comparison:
    """Whether a reader's schema accepts all that a writer's accepts; adds the reasons why not.

    A pair of schemas that is met again inside itself is taken for included, as documents are finite. Either
    of two schemas may be the reader of a pair: which documents the branches of a `oneOf` share is decided by
    comparing both ways.
    """

    def __init__(self, problems: list[str], steps: Steps) -> None:
        self._problems = problems
        self._steps = steps
        self._judged: dict[tuple[int, int], bool] = {}
        self._same: set[tuple[int, int]] = set()
        """Schemas that references name and that are the same, as `_is_same` means it."""
        self._made: dict[tuple[int, str], dict[str, Any]] = {}
        """Parts of schemas, by their schema and kind: `_judged` goes by identity, so each is made once."""
        self._allowed: dict[int, set[str]] = {}

    def includes(self, reader: _Place, writer: _Place, path: str) -> bool:
        self._steps.take()
        pair = id(reader.node), id(writer.node)
        if pair in self._judged:
            return self._judged[pair]
        begun = len(self._judged)
        self._judged[pair] = True
        included = self._compare(reader, writer, path)
        if not included:
            for later in list(self._judged)[begun:]:
                del self._judged[later]
            self._judged[pair] = False
        return included

    def _tries(self, reader: _Place, writer: _Place) -> bool:
        noted = len(self._problems)
        included = self.includes(reader, writer, "#")
        del self._problems[noted:]
        return included

    def _refuse(self, path: str, reason: str) -> bool:
        self._problems.append(f"at {path}: {reason}")
        return False

    def _part(self, node: dict[str, Any], kind: str, keywords: Collection[str]) -> dict[str, Any]:
        """The keywords of a schema that are among these: the same object each time."""
        if node.keys() <= set(keywords):
            return node
        made = {key: value for key, value in node.items() if key in keywords}
        return self._made.setdefault((id(node), kind), made)

    def _compare(self, reader: _Place, writer: _Place, path: str) -> bool:
        if reader.node is True or reader.node == {} or writer.node is False:
            return True
        if reader.node is False:
            return self._refuse(path, "the reader's schema accepts nothing")
        ours: dict[str, Any] = reader.node
        theirs: dict[str, Any] = writer.node if isinstance(writer.node, dict) else {}
        if _only(theirs, "$ref"):
            return self.includes(reader, writer.named(theirs["$ref"]), path)
        if _only(theirs, "allOf") and len(theirs["allOf"]) == 1:
            return self.includes(reader, writer.at(theirs["allOf"][0]), path)
        # The reader accepts what all its parts accept: what it refers to, its unions, and its own keywords.
        included = True
        if "$ref" in ours:
            included &= self.includes(reader.named(ours["$ref"]), writer, path)
        for branch in ours.get("allOf", ()):
            included &= self.includes(reader.at(branch), writer, f"{path}/allOf")
        for union in UNIONS:
            if union in ours:
                included &= self._in_a_branch(reader, writer, union, path)
        if not included:
            return False
        own = self._part(ours, "own", ours.keys() - COMBINATIONS)
        if not RESTRICTIONS & own.keys():
            return True
        alone = reader.at(own)
        for union in UNIONS:
            # The writer's documents are those of its branches, so each branch that is included settles it.
            if _only(theirs, union):
                for branch in theirs[union]:
                    included &= self.includes(alone, writer.at(branch), f"{path}/{union}")
                return included
        noted = len(self._problems)
        if self._compare_own(reader, writer, own, theirs, path):
            return True
        # A part that refers to another, or combines others, accepts at most what one of those accepts.
        narrower = [writer.at(branch) for branch in theirs.get("allOf", ())]
        if "$ref" in theirs:
            narrower.append(writer.named(theirs["$ref"]))
        if any(self._tries(alone, place) for place in narrower):
            del self._problems[noted:]
            return True
        return False

    def _in_a_branch(self, reader: _Place, writer: _Place, union: str, path: str) -> bool:
        """Whether the reader's union accepts all that the writer accepts."""
        alone = reader.at(self._part(reader.node, union, (union,)))
        branches = [reader.at(branch) for branch in reader.node[union]]
        theirs = writer.node if isinstance(writer.node, dict) else {}
        problem = ""
        for their_union in UNIONS:
            if their_union not in theirs:
                continue
            if their_union == union and self._is_same(
                reader.at(reader.node[union]), writer.at(theirs[union])
            ):
                return True
            written = [writer.at(branch) for branch in theirs[their_union]]
            for branch in written:
                # What one branch of the writer's oneOf accepts, the others reject.
                rivals = [other for other in written if other is not branch] if their_union == "oneOf" else []
                problem = self._misfit(union, branches, branch, rivals)
                if problem and not self._tries(alone, branch):  # it may be a union itself
                    break
            else:
                return True
        if not any(_only(theirs, their_union) for their_union in UNIONS):
            problem = self._misfit(union, branches, writer, [])
        return not problem or self._refuse(path, problem)

    def _misfit(
        self, union: str, branches: Sequence[_Place], writer: _Place, rivals: Sequence[_Place]
    ) -> str:
        """Why the branches of a reader's union may not accept what the writer accepts and its rivals reject;
        empty if they do.
        """
        if union == "oneOf":
            left = [branch for branch in branches if not self._are_apart(branch, writer)]
            if len(left) > 1:
                left = [branch for branch in left if not any(self._tries(rival, branch) for rival in rivals)]
            if len(left) > 1:
                return "more than one branch of the reader's oneOf may accept a document"
            # With none left, a branch that fits says that the writer accepts nothing.
            branches = left or branches
        if any(self._tries(branch, writer) for branch in branches):
            return ""
        return f"no branch of the reader's {union} accepts all that the writer accepts"

    def _are_apart(self, one: _Place, other: _Place, depth: int = 0) -> bool:
        """Whether no document is accepted by both: their types, listed values or those of a property that
        one of them requires exclude each other.
        """
        self._steps.take()
        shared = self._types(one) & self._types(other)
        if not shared:
            return True
        if depth > APART_DEPTH_MAX:
            return False
        parts, other_parts = self._parts(one), self._parts(other)
        for mine, opposite in ((parts, other), (other_parts, one)):
            for part in mine:
                for union in UNIONS:
                    if union in part.node and all(
                        self._are_apart(part.at(branch), opposite, depth + 1) for branch in part.node[union]
                    ):
                        return True
        pairs = [(part, other_part) for part in parts for other_part in other_parts]
        for part, other_part in pairs:
            values, other_values = _values(part.node), _values(other_part.node)
            if values is None or other_values is None:
                continue
            if {*map(_comparable, values)}.isdisjoint(map(_comparable, other_values)):
                return True
        if shared != {"object"}:
            return False
        required = {name for part in (*parts, *other_parts) for name in part.node.get("required", ())}
        return any(
            self._are_apart(_property(part, name), _property(other_part, name), depth + 1)
            for name in required
            for part, other_part in pairs
        )

    def _parts(self, place: _Place) -> list[_Place]:
        """A schema and what it refers to and combines: all of them accept what it accepts."""
        parts: dict[int, _Place] = {}
        pending = [place]
        while pending:
            part = pending.pop()
            if not isinstance(part.node, dict) or id(part.node) in parts:
                continue
            self._steps.take()
            parts[id(part.node)] = part
            pending += [part.at(branch) for branch in part.node.get("allOf", ())]
            if "$ref" in part.node:
                pending.append(part.named(part.node["$ref"]))
        return list(parts.values())

    def _is_same(self, reader: _Place, writer: _Place) -> bool:
        """Whether two parts of schemas restrict documents by the same words, and so does all that they refer
        to. What a dynamic reference names depends on the documents around it, so none is the same.
        """
        pending = [(reader, writer)]
        met = set(self._same)
        while pending:
            ours, theirs = pending.pop()
            meaning = _meaning(ours.node)
            text = dump_json(meaning, sort=True)
            self._steps.take(1 + len(text) // TEXT_PER_STEP)
            if text != dump_json(_meaning(theirs.node), sort=True):
                return False
            if any(f'"{keyword}"' in text for keyword in DYNAMIC_REFERENCES):
                return False
            for reference in _references(meaning):
                named = ours.named(reference), theirs.named(reference)
                if (pair := (id(named[0].node), id(named[1].node))) not in met:
                    met.add(pair)
                    pending.append(named)
        self._same = met
        return True

    def _types(self, place: _Place) -> set[str]:
        """A superset of the types of the documents that a schema accepts; "number" includes "integer"."""
        node = place.node
        if node is False:
            return set()
        if not isinstance(node, dict):
            return set(TYPES)
        if id(node) not in self._allowed:
            self._allowed[id(node)] = set(TYPES)  # while it is looked for, and refers to itself
            types = _declared_types(node)
            if "$ref" in node:
                types &= self._types(place.named(node["$ref"]))
            for union in UNIONS:
                if union in node:
                    types &= set().union(*(self._types(place.at(branch)) for branch in node[union]))
            for branch in node.get("allOf", ()):
                types &= self._types(place.at(branch))
            self._allowed[id(node)] = types
        return self._allowed[id(node)]

    def _compare_own(
        self, reader: _Place, writer: _Place, ours: dict[str, Any], theirs: dict[str, Any], path: str
    ) -> bool:
        """Compare the keywords that restrict a document by themselves.

        Args:
            reader: may have more than those, on which they may depend.
            writer, theirs: what is compared with.
            ours: of the reader.
            path: names the place in problems.
        """
        types = self._types(writer)
        if not types:
            return True
        excess = types - _declared_types(ours)
        if excess:
            return self._refuse(
                path, f"the reader does not accept the writer's type {', '.join(sorted(excess))}"
            )
        included = True
        for key in ours:
            if key not in UNCOMPARED:
                continue
            in_context = [place.at(_with_context(place.node, key)) for place in (reader, writer.at(theirs))]
            if not self._is_same(*in_context):
                included = self._refuse(
                    path,
                    f"the keyword {key!r} is not compared, and it, or what it refers to or depends on, is not"
                    " the same in both",
                )
        included &= self._compare_values(ours, theirs, path)
        included &= self._compare_bounds(ours, theirs, types, path)
        if "array" in types:
            included &= self._compare_items(reader, writer, ours, theirs, path)
        if "object" in types:
            included &= self._compare_properties(reader, writer, ours, theirs, path)
        return included

    def _compare_values(self, ours: dict[str, Any], theirs: dict[str, Any], path: str) -> bool:
        allowed = _texts(_values(ours))
        if allowed is None:
            return True
        written = _texts(_values(theirs))
        if written is None:
            return self._refuse(path, "the reader accepts only listed values, the writer others, too")
        missing = [value for value in written if value not in allowed]
        return not missing or self._refuse(path, f"the reader's enum is missing {', '.join(missing)[:200]}")

    def _compare_bounds(
        self, ours: dict[str, Any], theirs: dict[str, Any], types: set[str], path: str
    ) -> bool:
        included = True
        for key in LOWER_BOUNDS:
            if key in ours and APPLIES_TO[key] in types and theirs.get(key, 0) < ours[key]:
                included = self._refuse(path, f"the reader's {key} is {ours[key]}, the writer's is lower")
        for key in UPPER_BOUNDS:
            if key in ours and APPLIES_TO[key] in types and not theirs.get(key, float("inf")) <= ours[key]:
                included = self._refuse(path, f"the reader's {key} is {ours[key]}, the writer's is higher")
        if types & {"integer", "number"}:
            included &= self._compare_numbers(ours, theirs, path)
        if "string" in types and "pattern" in ours and ours["pattern"] != theirs.get("pattern"):
            included = self._refuse(path, "the reader's pattern is not the writer's")
        if "array" in types and ours.get("uniqueItems") and not theirs.get("uniqueItems"):
            included = self._refuse(path, "the reader's items must be unique")
        return included

    def _compare_numbers(self, ours: dict[str, Any], theirs: dict[str, Any], path: str) -> bool:
        included = True
        our_lower, their_lower = (
            _bound(ours, "minimum", "exclusiveMinimum", -1),
            _bound(theirs, "minimum", "exclusiveMinimum", -1),
        )
        if our_lower > their_lower:
            included = self._refuse(path, "the reader's minimum is above the writer's")
        our_upper, their_upper = (
            _bound(ours, "maximum", "exclusiveMaximum", 1),
            _bound(theirs, "maximum", "exclusiveMaximum", 1),
        )
        if our_upper > their_upper:
            included = self._refuse(path, "the reader's maximum is below the writer's")
        divisor = ours.get("multipleOf")
        if divisor is not None and divisor != theirs.get("multipleOf"):
            multiple = theirs.get("multipleOf")
            if not (isinstance(multiple, int) and isinstance(divisor, int) and multiple % divisor == 0):
                included = self._refuse(path, "the reader's multipleOf does not divide the writer's")
        return included

    def _compare_items(
        self, reader: _Place, writer: _Place, ours: dict[str, Any], theirs: dict[str, Any], path: str
    ) -> bool:
        our_first, our_rest = _items(ours)
        their_first, their_rest = _items(theirs)
        included = True
        for position in range(max(len(our_first), len(their_first))):
            ours_here = our_first[position] if position < len(our_first) else our_rest
            theirs_here = their_first[position] if position < len(their_first) else their_rest
            included &= self.includes(
                reader.at(ours_here), writer.at(theirs_here), f"{path}/items/{position}"
            )
        return included & self.includes(reader.at(our_rest), writer.at(their_rest), f"{path}/items")

    def _compare_properties(
        self, reader: _Place, writer: _Place, ours: dict[str, Any], theirs: dict[str, Any], path: str
    ) -> bool:
        our_properties, their_properties = ours.get("properties", {}), theirs.get("properties", {})
        our_patterns, their_patterns = ours.get("patternProperties", {}), theirs.get("patternProperties", {})
        our_rest, their_rest = (
            ours.get("additionalProperties", True),
            theirs.get("additionalProperties", True),
        )
        included = True
        missing = [name for name in ours.get("required", ()) if name not in theirs.get("required", ())]
        if missing:
            included = self._refuse(path, f"the reader requires {', '.join(missing)}, the writer does not")
        if "propertyNames" in ours and not self._is_same(
            reader.at(ours["propertyNames"]), writer.at(theirs.get("propertyNames"))
        ):
            included = self._refuse(path, "the reader's propertyNames is not the writer's")
        if (our_patterns or their_patterns) and our_patterns.keys() != their_patterns.keys():
            # Which names two regular expressions share is not decided here.
            return self._refuse(path, "the patternProperties of both are not the same")
        for pattern in our_patterns:
            included &= self.includes(
                reader.at(our_patterns[pattern]),
                writer.at(their_patterns[pattern]),
                f"{path}/patternProperties/{pattern}",
            )
        for name in our_properties.keys() | their_properties.keys():
            ours_here = our_properties.get(name, our_rest)
            # A property that the writer does not list may be one of its patterns' instead of the rest.
            theirs_here = their_properties.get(name, True if their_patterns else their_rest)
            included &= self.includes(
                reader.at(ours_here), writer.at(theirs_here), f"{path}/properties/{name}"
            )
        return included & self.includes(
            reader.at(our_rest), writer.at(their_rest), f"{path}/additionalProperties"
        )


def _only(node: Mapping[str, Any], keyword: str) -> bool:
    return node.keys() & RESTRICTIONS == {keyword}


def _meaning(node: Any, *, is_by_name: bool = False) -> Any:
    """A schema without annotations, but for what `$ref`s are resolved by."""
    if isinstance(node, list):
        return [_meaning(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: value
        if key in ("enum", "const") and not is_by_name
        else _meaning(value, is_by_name=key in SCHEMAS_BY_NAME and not is_by_name)
        for key, value in node.items()
        if is_by_name or key in RESTRICTIONS or key in ("$schema", "$id")
    }


def _with_context(node: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    """A keyword, if a schema has it, with what it depends on beside it. Of schemas of single properties and
    items only the places count, since they are compared elsewhere.
    """
    found = {name: node[name] for name in (keyword, *DEPENDS_ON.get(keyword, ())) if name in node}
    for name in (*_OF_PROPERTIES, *_OF_ITEMS):
        if name in found:
            found[name] = _places(name, found[name])
    return found


def _places(keyword: str, value: Any) -> Any:
    if keyword in SCHEMAS_BY_NAME:
        return sorted(value)
    return len(value) if isinstance(value, list) else True


def _declared_types(node: Mapping[str, Any]) -> set[str]:
    declared = node.get("type", list(TYPES))
    types = set(declared if isinstance(declared, list) else [declared])
    if "type" not in node and ("enum" in node or "const" in node):
        types = {_type_of(value) for value in ([node["const"]] if "const" in node else node["enum"])}
    return types | {"integer"} if "number" in types else types


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _values(node: Mapping[str, Any]) -> list[Any] | None:
    """The values that `enum` and `const` leave; None for all."""
    listed: list[Any] | None = node.get("enum")
    if "const" not in node:
        return listed
    value = node["const"]
    return [value] if listed is None or _comparable(value) in map(_comparable, listed) else []


def _texts(values: list[Any] | None) -> list[str] | None:
    return None if values is None else [dump_json(value, sort=True) for value in values]


def _comparable(value: Any) -> Any:
    """What equals in Python what JSON Schema calls equal: 1 is 1.0, and not true."""
    match value:
        case bool():
            return ("boolean", value)
        case list():
            return ("array", *map(_comparable, value))
        case dict():
            return ("object", frozenset((name, _comparable(item)) for name, item in value.items()))
    return value


def _property(place: _Place, name: str) -> _Place:
    """What a schema says of a property; everything where a pattern may say it."""
    node = place.node
    if name in node.get("properties", {}):
        return place.at(node["properties"][name])
    return place.at(True if "patternProperties" in node else node.get("additionalProperties", True))


def _bound(node: Mapping[str, Any], inclusive: str, exclusive: str, side: int) -> tuple[float, bool]:
    """A bound that grows with its strictness. `side` is 1 for an upper bound, whose sign is changed.

    Draft 4 writes an exclusive bound as a boolean beside the inclusive one.
    """
    bounds = [(float("-inf"), False)]
    if inclusive in node:
        bounds.append((-side * node[inclusive], node.get(exclusive) is True))
    if exclusive in node and not isinstance(node[exclusive], bool):
        bounds.append((-side * node[exclusive], True))
    return max(bounds)


def _items(node: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """The schemas of the first items, and that of all after them."""
    if "prefixItems" in node:
        return list(node["prefixItems"]), node.get("items", True)
    items = node.get("items", True)
    if isinstance(items, list):
        return items, node.get("additionalItems", True)
    return [], items
