"""A schema as it is registered, and the table of types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from mainstem_registry.errors import RegistryError
from mainstem_registry.schemas import avro, json_schema
from mainstem_registry.schemas.limits import Steps, dump_json, load_json


@dataclass(frozen=True, slots=True)
class Reference:
    """A name in a schema's text that stands for a version of a subject."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaText:
    """What an id stands for: equal texts of one type with equal references are one schema."""

    type: str
    text: str
    references: tuple[Reference, ...] = ()


class ParsedSchema(Protocol):
    """What each type's module makes of a text.

    `canonical` is the text that is stored. Texts with the same `identity` are the same version of a subject.
    """

    @property
    def canonical(self) -> str: ...

    @property
    def normalized(self) -> str: ...

    @property
    def identity(self) -> str: ...

    def problems_reading(self, writer: Self, steps: Steps) -> list[str]:
        """Why a reader with this schema cannot read what `writer` wrote; empty if it can."""
        ...


def _parse_protobuf(text: str, references: Sequence[tuple[str, str]]) -> Any:
    # A registry without Protobuf starts without its libraries.
    from mainstem_registry.schemas.protobuf import files

    return files.parse(text, references)


PARSERS: Final[Mapping[str, Callable[[str, Sequence[tuple[str, str]]], Any]]] = {
    "AVRO": avro.parse,
    "JSON": json_schema.parse,
    "PROTOBUF": _parse_protobuf,
}
"""Type of schema, as clients name it, to the function that parses it."""

CHECKS_OF_NEW: Final[Mapping[str, Callable[[Any], None]]] = {
    "AVRO": avro.check_new,
    "JSON": json_schema.check_new,
}
"""Type of schema to the function that refuses what only a version that is stored already may contain."""


def compact(schema_type: str, text: str) -> str:
    """A text of JSON without white space, as earlier releases stored it; others stay as they are."""
    if schema_type not in ("AVRO", "JSON"):
        return text
    try:
        value = load_json(text)
    except RegistryError:
        return text
    return dump_json(avro.simplified(value) if schema_type == "AVRO" else value)
