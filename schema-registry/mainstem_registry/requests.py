"""The bodies of requests as values. A body that is not understood is refused, never half understood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from mainstem_registry.errors import RegistryError, unprocessable
from mainstem_registry.schemas.schema import Reference, SchemaText

VERSION_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A schema to be registered, looked up or checked."""

    schema: SchemaText
    id: int | None = None
    """Given by the client in mode IMPORT."""
    version: int | None = None


def parse_object(body: bytes) -> Mapping[str, Any]:
    """The JSON object of a body.

    Raises:
        RegistryError: it is none.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RegistryError(400, f"The body of the request is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise unprocessable("The body of the request must be a JSON object.")
    return content


def parse_schema_request(body: bytes) -> SchemaRequest:
    """The schema in a body.

    Raises:
        RegistryError: it is missing or malformed, or needs what this registry does not have.
    """
    content = parse_object(body)
    for unsupported in ("metadata", "ruleSet"):
        if content.get(unsupported):
            raise unprocessable(f"This registry has no data contracts: leave out {unsupported!r}.")
    text = content.get("schema")
    if not isinstance(text, str) or not text.strip():
        raise unprocessable("The attribute 'schema' must be a string with the text of the schema.")
    schema_type = content.get("schemaType") or "AVRO"
    if not isinstance(schema_type, str):
        raise unprocessable("The attribute 'schemaType' must be a string, such as \"AVRO\".")
    references = content.get("references")
    if references is None:
        references = []
    if not isinstance(references, list):
        raise unprocessable("The attribute 'references' must be a list.")
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
            return Reference(name, subject, version)
    raise unprocessable("A reference needs a name, a subject and a version.")


def _positive(value: Any, name: str) -> int | None:
    if value in (None, -1, 0):  # what clients send for "not given"
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= VERSION_MAX:
        raise unprocessable(f"The attribute {name!r} must be a number between 1 and {VERSION_MAX}.")
    return value
