"""The descriptor of a file to `.proto` text.

The text keeps what data depends on: the order of messages, which records name by their position, types,
numbers, labels, defaults and the options of `descriptor.proto`. Comments and custom options are not in it.
A message's fields and the types inside of it keep their orders, and so do the hidden types of its maps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from mainstem_registry.errors import invalid_schema
from mainstem_registry.schemas.protobuf.parser import (
    EDITIONS,
    FIELD_NUMBER_MAX,
    INT32,
    LABELS,
    SCALARS,
    FieldProto,
    escaped,
)

_INDENT: Final = "  "
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPE_NAME: Final = re.compile(r"\.?[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_DEFAULT: Final = re.compile(r"-?[A-Za-z0-9_.+-]{1,40}")
_TYPE_OF: Final = {number: name for name, number in SCALARS.items()}
_LABEL_OF: Final = {number: name for name, number in LABELS.items()}


def print_file(file: Any) -> str:
    """The text of a FileDescriptorProto.

    Raises:
        RegistryError: the descriptor is none that a text could have.
    """
    lines = [*_Printer(file).lines()]
    return "\n".join(lines) + "\n"


class _Printer:
    def __init__(self, file: Any) -> None:
        self._file = file
        self._is_proto2 = file.syntax in ("", "proto2")

    def lines(self) -> Iterator[str]:
        file = self._file
        if file.syntax == "editions":
            edition = next((name for name, number in EDITIONS.items() if number == file.edition), None)
            if edition is None:
                raise invalid_schema(f"its edition is none of {', '.join(EDITIONS)}.")
            yield f'edition = "{edition}";'
        else:
            yield f"syntax = {_quoted(file.syntax or 'proto2')};"
        if file.package:
            yield f"package {_checked(_TYPE_NAME, file.package)};"
        for index, path in enumerate(file.dependency):
            kind = "public " if index in file.public_dependency else ""
            kind = "weak " if index in file.weak_dependency else kind
            yield f"import {kind}{_quoted(path)};"
        yield from (f"option {text};" for text in _options(file.options))
        for enum in file.enum_type:
            yield from self._enum(enum, "")
        yield from self._messages(file.message_type, file.extension, "")
        for service in file.service:
            yield from self._service(service)

    def _messages(self, messages: Sequence[Any], extensions: Sequence[Any], indent: str) -> Iterator[str]:
        """Messages and extensions of a file, of which groups bring their messages along."""
        groups = {field.type_name.rpartition(".")[2]: field for field in extensions if _is_group(field)}
        printed: set[int] = set()
        for message in messages:
            field = groups.get(message.name)
            if field is None:
                yield from self._message(message, indent)
            else:
                printed.add(id(field))
                yield from self._extend(field, message, indent)
        for field in extensions:
            if id(field) not in printed:
                yield from self._extend(field, None, indent)

    def _extend(self, field: Any, group: Any, indent: str) -> Iterator[str]:
        yield f"{indent}extend {_checked(_TYPE_NAME, field.extendee)} {{"
        yield from self.field(field, group, indent + _INDENT)
        yield f"{indent}}}"

    def _message(self, message: Any, indent: str) -> Iterator[str]:
        yield f"{indent}message {_checked(_NAME, message.name)} {{"
        yield from self._body(message, indent + _INDENT)
        yield f"{indent}}}"

    def _body(self, message: Any, indent: str) -> Iterator[str]:
        yield from (f"{indent}option {text};" for text in _options(message.options))
        yield from (f"{indent}{line}" for line in _reserved(message, 1, FIELD_NUMBER_MAX))
        for part in message.extension_range:
            yield f"{indent}extensions {_range(part.start, part.end - 1, FIELD_NUMBER_MAX)};"
        for enum in message.enum_type:
            yield from self._enum(enum, indent)
        fields = _Fields(self, message, indent)
        extensions = {
            field.type_name.rpartition(".")[2]: field for field in message.extension if _is_group(field)
        }
        for nested in message.nested_type:
            if nested.name in fields.owners:
                yield from fields.until(nested)
            elif nested.name in extensions:
                yield from self._extend(extensions[nested.name], nested, indent)
            else:
                yield from self._message(nested, indent)
        yield from fields.until(None)
        for field in message.extension:
            if not _is_group(field):
                yield from self._extend(field, None, indent)

    def field(self, field: Any, hidden: Any, indent: str) -> Iterator[str]:
        """A field; `hidden` is the message of its map or group."""
        name = _checked(_NAME, field.name)
        is_map = hidden is not None and hidden.options.map_entry
        options = ", ".join(self._field_options(field))
        options = f" [{options}]" if options else ""
        label = "" if is_map else self._label(field)
        if is_map:
            key, value = _entry_parts(hidden)
            kind = f"map<{_type(key)}, {_type(value)}>"
        elif _is_group(field):
            yield f"{indent}{label}group {_checked(_NAME, hidden.name)} = {field.number}{options} {{"
            yield from self._body(hidden, indent + _INDENT)
            yield f"{indent}}}"
            return
        else:
            kind = _type(field)
        yield f"{indent}{label}{kind} {name} = {field.number}{options};"

    def _label(self, field: Any) -> str:
        if field.label not in _LABEL_OF:
            raise invalid_schema(f"the field {field.name!r} has no label.")
        if field.HasField("oneof_index") and not field.proto3_optional:
            return ""
        label = _LABEL_OF[field.label]
        if label == "optional" and not (self._is_proto2 or field.proto3_optional):
            return ""
        return f"{label} "

    def _field_options(self, field: Any) -> Iterator[str]:
        if field.HasField("default_value"):
            if field.type in (FieldProto.TYPE_STRING, FieldProto.TYPE_BYTES):
                text = field.default_value
                yield f"default = {_quoted(text) if field.type == FieldProto.TYPE_STRING else _as_is(text)}"
            else:
                yield f"default = {_checked(_DEFAULT, field.default_value)}"
        if field.HasField("json_name") and field.json_name != json_name(field.name):
            yield f"json_name = {_quoted(field.json_name)}"
        yield from _options(field.options)

    def _enum(self, enum: Any, indent: str) -> Iterator[str]:
        yield f"{indent}enum {_checked(_NAME, enum.name)} {{"
        yield from (f"{indent}{_INDENT}option {text};" for text in _options(enum.options))
        yield from (f"{indent}{_INDENT}{line}" for line in _reserved(enum, 0, INT32[1]))
        for value in enum.value:
            options = ", ".join(_options(value.options))
            options = f" [{options}]" if options else ""
            yield f"{indent}{_INDENT}{_checked(_NAME, value.name)} = {value.number}{options};"
        yield f"{indent}}}"

    def _service(self, service: Any) -> Iterator[str]:
        yield f"service {_checked(_NAME, service.name)} {{"
        yield from (f"{_INDENT}option {text};" for text in _options(service.options))
        for method in service.method:
            taken = _checked(_TYPE_NAME, method.input_type)
            returned = _checked(_TYPE_NAME, method.output_type)
            taken = f"stream {taken}" if method.client_streaming else taken
            returned = f"stream {returned}" if method.server_streaming else returned
            options = [f"option {text};" for text in _options(method.options)]
            end = f" {{ {' '.join(options)} }}" if options else ";"
            yield f"{_INDENT}rpc {_checked(_NAME, method.name)}({taken}) returns ({returned}){end}"
        yield "}"


class _Fields:
    """The fields of a message, in their order, as far as the types beside them allow at each moment."""

    def __init__(self, printer: _Printer, message: Any, indent: str) -> None:
        self._printer = printer
        self._indent = indent
        self._message = message
        nested = {one.name: one for one in message.nested_type}
        self._hidden: dict[int, Any] = {}
        self.owners: dict[str, int] = {}
        """The fields, by their position, that a hidden type belongs to."""
        for index, field in enumerate(message.field):
            one = nested.get(field.type_name.rpartition(".")[2])
            if one is not None and (one.options.map_entry or _is_group(field)):
                self._hidden[index] = one
                self.owners[one.name] = index
        for one in message.nested_type:
            if one.options.map_entry and one.name not in self.owners:
                raise invalid_schema(f"the map {one.name!r} belongs to no field.")
        self._next = 0

    def until(self, hidden: Any) -> Iterator[str]:
        """Lines up to the field that `hidden` belongs to; up to the last if it is None."""
        fields = self._message.field
        end = len(fields) if hidden is None else self.owners[hidden.name] + 1
        while self._next < end:
            field = fields[self._next]
            if not field.HasField("oneof_index") or field.proto3_optional:
                yield from self._one(self._next, self._indent)
                self._next += 1
                continue
            # A oneof is printed whole: its fields stand together in every text.
            if not 0 <= field.oneof_index < len(self._message.oneof_decl):
                raise invalid_schema(f"the field {field.name!r} is in a oneof that does not exist.")
            oneof = self._message.oneof_decl[field.oneof_index]
            yield f"{self._indent}oneof {_checked(_NAME, oneof.name)} {{"
            yield from (f"{self._indent}{_INDENT}option {text};" for text in _options(oneof.options))
            index = field.oneof_index
            while (
                self._next < len(fields)
                and fields[self._next].HasField("oneof_index")
                and fields[self._next].oneof_index == index
            ):
                yield from self._one(self._next, self._indent + _INDENT)
                self._next += 1
            yield f"{self._indent}}}"

    def _one(self, index: int, indent: str) -> Iterator[str]:
        field = self._message.field[index]
        hidden = self._hidden.get(index)
        if hidden is None and _is_group(field):
            raise invalid_schema(f"the group {field.name!r} has no message.")
        yield from self._printer.field(field, hidden, indent)


def _is_group(field: Any) -> bool:
    # In editions, a message field may be encoded as a group, but is written as any other.
    return bool(field.type == FieldProto.TYPE_GROUP)


def _entry_parts(entry: Any) -> tuple[Any, Any]:
    parts = {field.number: field for field in entry.field}
    if set(parts) != {1, 2}:
        raise invalid_schema(f"the map {entry.name!r} does not have a key and a value.")
    return parts[1], parts[2]


def _type(field: Any) -> str:
    if field.type in _TYPE_OF and field.HasField("type"):
        return str(_TYPE_OF[field.type])
    return _checked(_TYPE_NAME, field.type_name)


def _reserved(holder: Any, exclusive: int, maximum: int) -> Iterator[str]:
    for part in holder.reserved_range:
        yield f"reserved {_range(part.start, part.end - exclusive, maximum)};"
    for name in holder.reserved_name:
        yield f"reserved {_quoted(name)};"


def _range(start: int, end: int, maximum: int) -> str:
    if start == end:
        return str(start)
    return f"{start} to {'max' if end == maximum else end}"


def _options(options: Any, prefix: str = "") -> Iterator[str]:
    """The options that have a value, as `name = value`."""
    for field, value in options.ListFields():
        if field.is_extension or field.name in ("uninterpreted_option", "map_entry"):
            continue
        values: Iterable[Any] = value if field.is_repeated else (value,)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if not field.is_repeated and field.name == "features":
                yield from _options(value, f"{prefix}{field.name}.")
            continue
        for one in values:
            yield f"{prefix}{field.name} = {_option_value(field, one)}"


def _option_value(field: Any, value: Any) -> str:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return _quoted(value)
        case FieldDescriptor.TYPE_BOOL:
            return "true" if value else "false"
        case FieldDescriptor.TYPE_ENUM:
            one = field.enum_type.values_by_number.get(value)
            if one is None:
                raise invalid_schema(f"the option {field.name!r} has no value {value}.")
            return str(one.name)
    return str(value)


def _quoted(text: str) -> str:
    return f'"{escaped(text.encode("utf-8", "surrogatepass"))}"'


def _as_is(text: str) -> str:
    """The default of bytes, which a descriptor has with its escapes."""
    if re.fullmatch(r"(?:[ -!#-\[\]-~]|\\.)*", text) is None:
        raise invalid_schema("the default of bytes has characters that need an escape.")
    return f'"{text}"'


def _checked(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise invalid_schema(f"{text[:100]!r} is not a name.")
    return text


def json_name(name: str) -> str:
    """The name of a field in JSON, if the schema says no other."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)
