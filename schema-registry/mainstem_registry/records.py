"""The records of the topic `_schemas`, in the format of Confluent's Schema Registry.

Keys and values are JSON objects. The key's `keytype` says what the record is about:

- SCHEMA: one version of a subject. Without a value, it is deleted for good; `deleted` in the value is the
  soft kind.
- DELETE_SUBJECT: all versions up to `version` are soft-deleted.
- CONFIG and MODE: a subject's compatibility level or mode; with subject null, everybody's.
- NOOP: nothing. Ours have a value, which others ignore: the highest id that was ever used. It outlives the
  deletion of the schema, so that no id is used twice even after the topic was compacted.

Attributes are written in the order of Confluent's registry because a compacted topic compares keys byte by
byte. Karapace and early versions of Confluent's registry wrote the same keys in other forms.

Subjects that begin with `:.` belong to contexts, each of which has its own ids (Confluent's documentation,
"Schema Contexts"). Contexts do not exist here: their records are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from mainstem_registry.schemas.schema import Reference, SchemaText

CONTEXT_PREFIX: Final = ":."
WRITER: Final = ("writer", b"mainstem")
"""The header of the records that this registry writes, by which they are known from those of others."""


@dataclass(frozen=True, slots=True)
class VersionKey:
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class ConfigKey:
    subject: str | None


@dataclass(frozen=True, slots=True)
class ModeKey:
    subject: str | None


@dataclass(frozen=True, slots=True)
class DeleteSubjectKey:
    subject: str


@dataclass(frozen=True, slots=True)
class NoopKey:
    pass


@dataclass(frozen=True, slots=True)
class VersionValue:
    id: int
    schema: SchemaText
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class ConfigValue:
    compatibility: str | None
    normalize: bool | None = None


@dataclass(frozen=True, slots=True)
class ModeValue:
    mode: str


@dataclass(frozen=True, slots=True)
class DeleteSubjectValue:
    version: int


@dataclass(frozen=True, slots=True)
class NoopValue:
    highest_id: int


Key = VersionKey | ConfigKey | ModeKey | DeleteSubjectKey | NoopKey
Value = VersionValue | ConfigValue | ModeValue | DeleteSubjectValue | NoopValue | None


@dataclass(frozen=True, slots=True)
class Record:
    """One change of the registry's state; without a value, the end of what the key names."""

    key: Key
    value: Value


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """The key and the value as they are written to the topic."""
    return encode_key(record.key), None if record.value is None else _encode_value(record.key, record.value)


def encode_key(key: Key) -> bytes:
    """The key as this registry writes it."""
    match key:
        case VersionKey(subject, version):
            return _dump({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})
        case ConfigKey(subject):
            return _dump({"keytype": "CONFIG", "subject": subject, "magic": 0})
        case ModeKey(subject):
            return _dump({"keytype": "MODE", "subject": subject, "magic": 0})
        case DeleteSubjectKey(subject):
            return _dump({"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0})
    return _dump({"keytype": "NOOP", "magic": 0})


def _encode_value(key: Key, value: Value) -> bytes:
    match key, value:
        case VersionKey(subject, version), VersionValue(schema_id, schema, is_deleted):
            content: dict[str, Any] = {"subject": subject, "version": version, "id": schema_id}
            if schema.type != "AVRO":
                content["schemaType"] = schema.type
            if schema.references:
                content["references"] = [reference_object(reference) for reference in schema.references]
            return _dump(content | {"schema": schema.text, "deleted": is_deleted})
        case ConfigKey(subject), ConfigValue(compatibility, normalize):
            content = {"compatibilityLevel": compatibility}
            if subject is not None:
                content = {"subject": subject} | content
            return _dump(content if normalize is None else content | {"normalize": normalize})
        case ModeKey(subject), ModeValue(mode):
            return _dump({"mode": mode} if subject is None else {"subject": subject, "mode": mode})
        case DeleteSubjectKey(subject), DeleteSubjectValue(version):
            return _dump({"subject": subject, "version": version})
        case NoopKey(), NoopValue(highest_id):
            return _dump({"highestId": highest_id})
    raise AssertionError(f"{key} has no such value: {value}")


def reference_object(reference: Reference) -> dict[str, Any]:
    return {"name": reference.name, "subject": reference.subject, "version": reference.version}


def decode(key: bytes | None, value: bytes | None) -> Record | None:
    """The record of a key and a value; None if it says nothing to this registry.

    Other programs may write to the topic, and later versions of a registry may know more keys. What cannot be
    read changes nothing.
    """
    try:
        names = orjson.loads(key or b"")
        content = orjson.loads(value) if value else None  # Karapace deletes with an empty value
        decoded_key = _decode_key(names)
        if decoded_key is None:
            return None
        if content is None:
            return Record(decoded_key, None)
        return Record(decoded_key, _decode_value(decoded_key, content))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _decode_key(names: Mapping[str, Any]) -> Key | None:
    if (_text_or_none(names.get("subject")) or "").startswith(CONTEXT_PREFIX):
        return None
    match names["keytype"]:
        case "SCHEMA":
            return VersionKey(_text(names["subject"]), _number(names["version"]))
        case "CONFIG":
            return ConfigKey(_text_or_none(names.get("subject")))
        case "MODE":
            return ModeKey(_text_or_none(names.get("subject")))
        case "DELETE_SUBJECT":
            return DeleteSubjectKey(_text(names["subject"]))
        case "NOOP":
            return NoopKey()
    return None


def _decode_value(key: Key, content: Mapping[str, Any]) -> Value:
    match key:
        case VersionKey():
            references = tuple(
                Reference(_text(item["name"]), _text(item["subject"]), _number(item["version"]))
                for item in content.get("references") or ()
            )
            schema = SchemaText(
                _text(content.get("schemaType") or "AVRO"), _text(content["schema"]), references
            )
            return VersionValue(_number(content["id"]), schema, content.get("deleted") is True)
        case ConfigKey():
            normalize = content.get("normalize")
            return ConfigValue(
                _text_or_none(content.get("compatibilityLevel")),
                normalize if isinstance(normalize, bool) else None,
            )
        case ModeKey():
            return ModeValue(_text(content["mode"]))
        case DeleteSubjectKey():
            return DeleteSubjectValue(_number(content["version"]))
    return NoopValue(_number(content.get("highestId", 0)))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not an integer")
    return value


def _dump(content: Mapping[str, Any]) -> bytes:
    return orjson.dumps(content)
