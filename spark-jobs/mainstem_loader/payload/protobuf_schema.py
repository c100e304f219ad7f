"""Protobuf messages as trees of types, and the columns that they make.

    bool                                     boolean
    int32, int64, sint32, ..., uint32        long
    uint64, fixed64                          decimal(20,0), as a long does not hold them
    float, double                            double
    string, enum                             string; an enum's number that has no name is its digits
    bytes                                    binary
    google.protobuf.Timestamp                timestamp
    google.protobuf.Int64Value and the like  their value, or null
    other messages, groups                   struct
    repeated                                 array
    map                                      map

A field that the writer did not set is null if the schema tells that apart from its default (`optional`, a
oneof, a message, proto2), else the default. A message inside of itself is a string column with the message as
JSON. What can hold nothing, such as `google.protobuf.Empty`, makes no column. Pure.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.type import (
    calendar_period_pb2,
    color_pb2,
    date_pb2,
    datetime_pb2,
    dayofweek_pb2,
    expr_pb2,
    fraction_pb2,
    latlng_pb2,
    money_pb2,
    month_pb2,
    postal_address_pb2,
    quaternion_pb2,
    timeofday_pb2,
)

from mainstem_loader.columns import TIMESTAMP_TYPE, TYPE_DEPTH_MAX, ColumnError

PARTS_MAX: Final = 10_000
"""Fields of a message with all inside of it. Types that use one another twice double them at each level."""
UINT64_TYPE: Final = pa.decimal128(20, 0)

_KNOWN_FILES: Final[Mapping[str, bytes]] = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (
        any_pb2, source_context_pb2, type_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2,
        field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2, calendar_period_pb2, color_pb2, date_pb2,
        datetime_pb2, dayofweek_pb2, expr_pb2, fraction_pb2, latlng_pb2, money_pb2, month_pb2,
        postal_address_pb2, quaternion_pb2, timeofday_pb2,
    )
}  # fmt: skip
"""Files that every registry has: schemas import them without a reference."""

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""Wire types."""
_SCALARS: Final[Mapping[int, tuple[str, int, pa.DataType]]] = {
    FieldDescriptor.TYPE_DOUBLE: ("double", FIXED64, pa.float64()),
    FieldDescriptor.TYPE_FLOAT: ("float", FIXED32, pa.float64()),
    FieldDescriptor.TYPE_INT64: ("int64", VARINT, pa.int64()),
    FieldDescriptor.TYPE_UINT64: ("uint64", VARINT, UINT64_TYPE),
    FieldDescriptor.TYPE_INT32: ("int32", VARINT, pa.int64()),
    FieldDescriptor.TYPE_FIXED64: ("fixed64", FIXED64, UINT64_TYPE),
    FieldDescriptor.TYPE_FIXED32: ("fixed32", FIXED32, pa.int64()),
    FieldDescriptor.TYPE_BOOL: ("bool", VARINT, pa.bool_()),
    FieldDescriptor.TYPE_STRING: ("string", LENGTH, pa.string()),
    FieldDescriptor.TYPE_BYTES: ("bytes", LENGTH, pa.binary()),
    FieldDescriptor.TYPE_UINT32: ("uint32", VARINT, pa.int64()),
    FieldDescriptor.TYPE_ENUM: ("enum", VARINT, pa.string()),
    FieldDescriptor.TYPE_SFIXED32: ("sfixed32", FIXED32, pa.int64()),
    FieldDescriptor.TYPE_SFIXED64: ("sfixed64", FIXED64, pa.int64()),
    FieldDescriptor.TYPE_SINT32: ("sint32", VARINT, pa.int64()),
    FieldDescriptor.TYPE_SINT64: ("sint64", VARINT, pa.int64()),
}
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_JSON_MESSAGES: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
"""They stand for any JSON, and contain themselves further inside."""


@dataclass(slots=True, eq=False)
class FieldType:
    """A field of a message.

    Attributes:
        name, number: of the field.
        kind: as in the schema, such as "int64", or "message"; "json" for messages that become JSON,
            "timestamp" and "wrapper" for messages with a column of their own.
        wire: the wire type of one value; -1 for groups.
        arrow: the type of one value's column.
        is_repeated, is_map: of maps both; their values are of `message`.
        has_presence: whether null is told apart from the default.
        message: of a message its type.
        enum_names: of an enum the names by number.
        is_closed: whether an enum has no other numbers than those.
        message_class: of a message kind what reads it.
    """

    name: str
    number: int
    kind: str
    wire: int
    arrow: pa.DataType
    is_repeated: bool = False
    is_map: bool = False
    has_presence: bool = False
    message: MessageType | None = None
    enum_names: Mapping[int, str] | None = None
    is_closed: bool = False
    message_class: Any = None

    @property
    def column(self) -> pa.DataType:
        """The type of the field's column."""
        if self.is_map:
            assert self.message is not None
            key, value = self.message.fields[1], self.message.fields[2]
            return pa.map_(key.column, value.column)
        return pa.list_(self.arrow) if self.is_repeated else self.arrow


@dataclass(slots=True, eq=False)
class MessageType:
    """A message.

    Attributes:
        fields: by number; without those that make no column.
        oneofs: the numbers of fields of which a writer sets one at most.
        arrow: the struct of its columns; null if it has none.
        message_class: reads one message.
        is_entry: whether it is an entry of a map.
    """

    fields: Mapping[int, FieldType]
    oneofs: Sequence[frozenset[int]]
    arrow: pa.DataType
    message_class: Any
    is_entry: bool = False


class NoDescriptorError(Exception):
    """A text is not the descriptor of a file."""


class ProtobufSchema:
    """A file of messages by which records were written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._messages: dict[tuple[int, ...], MessageType | ColumnError] = {}

    def message(self, indexes: tuple[int, ...]) -> MessageType:
        """The message at a position: in the file, then in the message there, and so on.

        Raises:
            ColumnError: there is none, or it cannot be a table's row.
        """
        if indexes not in self._messages:
            try:
                self._messages[indexes] = self._build(indexes)
            except ColumnError as error:
                self._messages[indexes] = error
        message = self._messages[indexes]
        if isinstance(message, ColumnError):
            raise message
        return message

    def _build(self, indexes: tuple[int, ...]) -> MessageType:
        messages = list(self._file.message_types_by_name.values())
        descriptor: Any = None
        for index in indexes:
            if not 0 <= index < len(messages):
                raise ColumnError(f"the schema has no message at {list(indexes)}")
            descriptor = messages[index]
            messages = list(descriptor.nested_types)
        if descriptor is None or descriptor.GetOptions().map_entry:
            raise ColumnError(f"the schema has no message at {list(indexes)}")
        return _Builder().message(descriptor, 1)


def parse_schema(text: str, references: Sequence[tuple[str, str]]) -> ProtobufSchema:
    """A schema from descriptors in base64, as registries serve them with `format=serialized`.

    Args:
        text: the descriptor of the file.
        references: (import, descriptor) of what it imports, what is imported before what imports.

    Raises:
        NoDescriptorError: one of the texts is none.
        ColumnError: they contradict each other.
    """
    pool = DescriptorPool()
    added: set[str] = set()
    known = dict(references)

    def add_known(path: str) -> None:
        if path in added or path in known or path not in _KNOWN_FILES:
            return
        added.add(path)
        for needed in descriptor_pb2.FileDescriptorProto.FromString(_KNOWN_FILES[path]).dependency:
            add_known(needed)
        pool.AddSerializedFile(_KNOWN_FILES[path])

    root = "(schema)"
    try:
        for name, encoded in (*references, (root, text)):
            file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(encoded, validate=True))
            file.name = name
            for path in file.dependency:
                add_known(path)
            pool.Add(file)
        return ProtobufSchema(pool.FindFileByName(root))
    except (binascii.Error, DecodeError):
        raise NoDescriptorError from None
    except (TypeError, ValueError, KeyError) as error:
        raise ColumnError(f"the schema is not valid: {str(error).strip()[:200]}") from None


class _Builder:
    """Builds the tree of one message. Types are built again at each place, as their depth differs."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._parts = 0

    def message(self, descriptor: Any, depth: int) -> MessageType:
        if depth > TYPE_DEPTH_MAX:
            raise ColumnError(f"its messages are nested more than {TYPE_DEPTH_MAX} levels deep")
        self._open.append(descriptor.full_name)
        fields: dict[int, FieldType] = {}
        for field in descriptor.fields:
            self._parts += 1
            if self._parts > PARTS_MAX:
                raise ColumnError(f"it has more than {PARTS_MAX} fields with all messages inside of it")
            built = self._field(field, depth)
            if not _is_void(built):
                fields[field.number] = built
        self._open.pop()
        oneofs = [
            frozenset(field.number for field in oneof.fields)
            for oneof in descriptor.oneofs
            if len(oneof.fields) > 1
        ]
        members = [(field.name, field.column) for field in fields.values()]
        arrow = pa.struct(members) if members else pa.null()
        is_entry = bool(descriptor.GetOptions().map_entry)
        return MessageType(fields, oneofs, arrow, GetMessageClass(descriptor), is_entry)

    def _field(self, field: Any, depth: int) -> FieldType:
        built = self._single(field, depth)
        built.is_repeated = bool(field.is_repeated)
        built.has_presence = bool(field.has_presence) and not built.is_repeated
        return built

    def _single(self, field: Any, depth: int) -> FieldType:
        if field.type in _SCALARS:
            kind, wire, arrow = _SCALARS[field.type]
            built = FieldType(field.name, field.number, kind, wire, arrow)
            if field.enum_type is not None:
                # The first name of a number counts, as of libraries.
                values = reversed(field.enum_type.values)
                built.enum_names = {value.number: value.name for value in values}
                built.is_closed = bool(field.enum_type.is_closed)
            return built
        descriptor = field.message_type
        message_class = GetMessageClass(descriptor)
        wire = -1 if field.type == FieldDescriptor.TYPE_GROUP else LENGTH
        name = descriptor.full_name
        if name in self._open or name in _JSON_MESSAGES or _has_equal_names(descriptor):
            json = FieldType(field.name, field.number, "json", wire, pa.string())
            json.message_class = message_class
            return json
        message = self.message(descriptor, depth + 1)
        kind, arrow = "message", message.arrow
        if name == "google.protobuf.Timestamp":
            kind, arrow = "timestamp", TIMESTAMP_TYPE
        elif name in _WRAPPERS:
            kind, arrow = "wrapper", message.fields[1].arrow
        built = FieldType(field.name, field.number, kind, wire, arrow)
        built.message, built.message_class = message, message_class
        if message.is_entry:
            built.is_map = True
            for part in message.fields.values():
                # What an entry leaves out has its default.
                part.has_presence = part.kind in ("message", "timestamp", "wrapper", "json")
        return built


def _has_equal_names(descriptor: Any) -> bool:
    """Whether two fields differ in case alone, which no struct of a table can hold."""
    names = [field.name.casefold() for field in descriptor.fields]
    return len(set(names)) < len(names)


def _is_void(field: FieldType) -> bool:
    """Whether a field can hold nothing that has a column."""
    if field.is_map:
        assert field.message is not None
        return set(field.message.fields) != {1, 2}
    return pa.types.is_null(field.arrow)
