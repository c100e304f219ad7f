"""Who can read what among Protobuf schemas.

Protobuf finds fields by number, so most changes are safe. The rules are those of Confluent's Schema
Registry, which follow "Updating A Message Type" of the language guide. A reader cannot read what a writer
wrote if

- the package differs, or a message of the writer is missing in the reader,
- a field is of another kind: integers and enums, zigzag integers, texts and bytes, and the fixed sizes are
  kinds; messages are compared by name, and field by field,
- a number or enum is repeated in one of them alone,
- a required field was added or removed,
- fields moved into a oneof that had others, more than one moved into a oneof, or one left its oneof.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from mainstem_registry.schemas.limits import Steps

_INTEGER: Final = "integer"
_TEXT: Final = "string or bytes"
_MESSAGE: Final = "message"
KINDS: Final[Mapping[int, str]] = {
    FieldDescriptor.TYPE_INT32: _INTEGER,
    FieldDescriptor.TYPE_INT64: _INTEGER,
    FieldDescriptor.TYPE_UINT32: _INTEGER,
    FieldDescriptor.TYPE_UINT64: _INTEGER,
    FieldDescriptor.TYPE_BOOL: _INTEGER,
    FieldDescriptor.TYPE_ENUM: _INTEGER,
    FieldDescriptor.TYPE_SINT32: "zigzag integer",
    FieldDescriptor.TYPE_SINT64: "zigzag integer",
    FieldDescriptor.TYPE_STRING: _TEXT,
    FieldDescriptor.TYPE_BYTES: _TEXT,
    FieldDescriptor.TYPE_FIXED32: "integer of 32 bits",
    FieldDescriptor.TYPE_SFIXED32: "integer of 32 bits",
    FieldDescriptor.TYPE_FIXED64: "integer of 64 bits",
    FieldDescriptor.TYPE_SFIXED64: "integer of 64 bits",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_MESSAGE: _MESSAGE,
    FieldDescriptor.TYPE_GROUP: "group",
}
"""The types of a kind have the same encoding, so that each reads the others' values."""


class Comparison:
    """One comparison of a reader's and a writer's file. Each pair of messages is compared once.

    Pairs wait in a list for their turn: messages that contain one another may form chains of any length.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._problems: list[str] = []
        self._pending: list[tuple[Any, Any]] = []
        self._seen: set[tuple[str, str]] = set()

    def problems(self, reader: Any, writer: Any) -> list[str]:
        """Why `reader` cannot read what `writer` wrote; empty if it can."""
        if reader.package != writer.package:
            return [f"the package is {reader.package!r} in the reader and {writer.package!r} in the writer"]
        self._compare_types(reader.message_types_by_name, writer.message_types_by_name)
        while self._pending:
            self._compare_messages(*self._pending.pop())
        return self._problems

    def _compare_types(self, reader: Mapping[str, Any], writer: Mapping[str, Any]) -> None:
        for name, written in writer.items():
            self._steps.take()
            if written.GetOptions().map_entry:
                continue
            read = reader.get(name)
            if read is None or read.GetOptions().map_entry:
                self._problems.append(f"the reader does not have the writer's message {written.full_name}")
            else:
                self._plan(read, written)

    def _plan(self, reader: Any, writer: Any) -> None:
        """Compare two messages later, unless they are planned already."""
        pair = reader.full_name, writer.full_name
        if pair not in self._seen:
            self._seen.add(pair)
            self._pending.append((reader, writer))

    def _compare_messages(self, reader: Any, writer: Any) -> None:
        read, written = _by_number(reader), _by_number(writer)
        for number in sorted(read.keys() | written.keys()):
            self._steps.take()
            ours, theirs = read.get(number), written.get(number)
            if ours is not None and theirs is not None:
                self._compare_fields(ours, theirs)
            elif ours is not None and ours.is_required:
                self._refuse(ours, "is required, and the writer does not have it")
            elif theirs is not None and theirs.is_required:
                self._refuse(theirs, "is required by the writer, and the reader does not have it")
        self._compare_oneofs(reader, writer, written)
        self._compare_types(reader.nested_types_by_name, writer.nested_types_by_name)

    def _compare_fields(self, reader: Any, writer: Any) -> None:
        kind, written_kind = KINDS[reader.type], KINDS[writer.type]
        if kind != written_kind:
            self._refuse(reader, f"is of kind {kind}, the writer's of kind {written_kind}")
        elif _is_map(reader) != _is_map(writer):
            self._refuse(reader, "is a map in one of both alone")
        elif reader.is_repeated != writer.is_repeated and kind not in (_TEXT, _MESSAGE, "group"):
            self._refuse(reader, "is repeated in one of both alone")
        elif _is_map(reader):
            self._plan(reader.message_type, writer.message_type)
        elif reader.message_type is not None:
            name, written_name = _local_name(reader.message_type), _local_name(writer.message_type)
            if name != written_name:
                self._refuse(reader, f"is of type {name}, the writer's of type {written_name}")
            else:
                self._plan(reader.message_type, writer.message_type)

    def _compare_oneofs(self, reader: Any, writer: Any, written: Mapping[int, Any]) -> None:
        for oneof in reader.oneofs:
            if _is_synthetic(oneof):
                continue
            earlier = [written[field.number] for field in oneof.fields if field.number in written]
            moved = [field for field in earlier if _oneof_of(field) is None]
            if len(moved) > 1 or (moved and len(earlier) > len(moved)):
                self._problems.append(
                    f"the oneof {oneof.full_name} of the reader has fields which the writer can set together"
                )
        ours = {oneof.name: oneof for oneof in reader.oneofs}
        for oneof in writer.oneofs:
            if oneof.name not in ours or _is_synthetic(oneof):
                continue
            kept = {field.number for field in ours[oneof.name].fields}
            for field in oneof.fields:
                if field.number not in kept:
                    self._refuse(field, "is not in its oneof any more")

    def _refuse(self, field: Any, reason: str) -> None:
        self._problems.append(f"the field {field.full_name} ({field.number}) {reason}")


def _by_number(message: Any) -> dict[int, Any]:
    return {field.number: field for field in message.fields}


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _is_synthetic(oneof: Any) -> bool:
    """Whether a oneof only carries the presence of an `optional` field of proto3."""
    return len(oneof.fields) == 1 and oneof.name in (
        f"_{oneof.fields[0].name}",
        f"X_{oneof.fields[0].name}",
    )


def _oneof_of(field: Any) -> Any:
    oneof = field.containing_oneof
    return None if oneof is None or _is_synthetic(oneof) else oneof


def _local_name(message: Any) -> str:
    """The name without the package, which a file that was moved may have changed."""
    package = message.file.package
    return str(message.full_name.removeprefix(f"{package}.") if package else message.full_name)
