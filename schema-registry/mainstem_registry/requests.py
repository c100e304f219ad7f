"""The bodies of requests as values. A body that is not understood is refused, never half understood.

The codes are those of Confluent's registry: 400 for what Jackson cannot read into the request's class, and
others for values that it reads, but that mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from mainstem_registry.errors import invalid_schema, malformed, unprocessable
from mainstem_registry.schemas.schema import Reference, SchemaText

VERSION_MAX = 2**31 - 1
DEFAULT_CONTEXT = ":.:"
ALL_CONTEXTS = ":*:"
"""Before a subject or a prefix of subjects, in Confluent's syntax. Only the default context exists here."""


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A schema to be registered, looked up or checked."""

    schema: SchemaText
    id: int | None = None
    """Given by the client in mode IMPORT."""
    version: int | None = None


def unqualified(subject: str) -> str:
    """A subject without the name of the default context."""
    return subject.removeprefix(DEFAULT_CONTEXT)


def parse_object(body: bytes) -> Mapping[str, Any]:
    """The JSON object of a body.

    Raises:
        RegistryError: it is none.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise malformed(f"The body of the request is not JSON: {error}.") from None
    if content is None:
        raise unprocessable("The body of the request must not be null.")
    if not isinstance(content, dict):
        raise malformed("The body of the request must be a JSON object.")
    return content


def scalar(content: Mapping[str, Any], name: str) -> Any:
    """An attribute that is a text, or a mistake that its reader names.

    Raises:
        RegistryError: it is an object or a list.
    """
    value = content.get(name)
    if isinstance(value, dict | list):
        raise malformed(f"The attribute {name!r} must be a string.")
    return value


def parse_schema_request(body: bytes) -> SchemaRequest:
    """The schema in a body.

    Raises:
        RegistryError: it is missing or malformed, or needs what this registry does not have.
    """
    content = parse_object(body)
    for unsupported in ("metadata", "ruleSet"):
        if content.get(unsupported):
            raise unprocessable(f"This registry has no data contracts: leave out {unsupported!r}.")
    text = scalar(content, "schema")
    if not isinstance(text, str) or not text.strip():
        raise invalid_schema("the attribute 'schema' must be a string with the text of the schema.")
    schema_type = scalar(content, "schemaType") or "AVRO"
    if not isinstance(schema_type, str):
        raise invalid_schema("the attribute 'schemaType' must be a string, such as \"AVRO\".")
    references = content.get("references")
    if references is None:
        references = []
    if not isinstance(references, list):
        raise malformed("The attribute 'references' must be a list.")
    return SchemaRequest(
        SchemaText(schema_type.upper(), text, tuple(_reference(item) for item in references)),
        _positive(content.get("id"), "id"),
        _positive(content.get("version"), "version"),
    )


def _reference(item: Any) -> Reference:
    match item:
        case {"name": str(name), "subject": str(subject), "version": int(version)} if not isinstance(
            version, bool
        ):
            return Reference(name, unqualified(subject), version)
    raise malformed(
        "A reference must be an object with the strings 'name' and 'subject' and the number 'version'."
    )


def _positive(value: Any, name: str) -> int | None:
    if value in (None, -1, 0):  # what clients send for "not given"
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise malformed(f"The attribute {name!r} must be a number.")
    if not 0 < value <= VERSION_MAX:
        raise unprocessable(f"The attribute {name!r} must be a number between 1 and {VERSION_MAX}.")
    return value
