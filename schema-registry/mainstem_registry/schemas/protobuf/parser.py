"""`.proto` text to the descriptor of a file.

Source: "Protocol Buffers Language Specification" for proto2, proto3 and editions. What a text means for data
is judged as protoc does; options that this registry does not know, such as custom ones, are passed over.
Names of types stay as they are written: `files` resolves them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor

from mainstem_registry.schemas.protobuf.tokens import NAME, NUMBER, SYMBOL, TEXT, Token, Tokens, number_of

MESSAGE_DEPTH_MAX: Final = 32
"""Messages inside of messages; as protoc."""
FIELD_NUMBER_MAX: Final = 2**29 - 1
RESERVED_FOR_PROTOBUF: Final = range(19_000, 20_000)
INT32: Final = (-(2**31), 2**31 - 1)
EDITIONS: Final = {"2023": descriptor_pb2.EDITION_2023, "2024": descriptor_pb2.EDITION_2024}

FieldProto = descriptor_pb2.FieldDescriptorProto
SCALARS: Final = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in FieldProto.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
}
MAP_KEYS: Final = frozenset(SCALARS) - {"float", "double", "bytes"}
LABELS: Final = {
    "optional": FieldProto.LABEL_OPTIONAL,
    "required": FieldProto.LABEL_REQUIRED,
    "repeated": FieldProto.LABEL_REPEATED,
}


def parse_file(text: str) -> tuple[Any, int]:
    """The FileDescriptorProto of a text, without a name, and how many words the text has.

    Raises:
        RegistryError: it is not valid, with the line.
    """
    tokens = Tokens(text)
    return _Parser(tokens).file(), tokens.count


class _Parser:
    """One pass over a text; each method takes what it is named after."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._file = descriptor_pb2.FileDescriptorProto()

    @property
    def _is_proto2(self) -> bool:
        return bool(self._file.syntax == "")

    @property
    def _is_proto3(self) -> bool:
        return bool(self._file.syntax == "proto3")

    def file(self) -> Any:
        tokens, file = self._tokens, self._file
        self._syntax()
        while not tokens.ended:
            if tokens.takes(";"):
                continue
            if tokens.takes("import"):
                self._import()
            elif tokens.takes("package"):
                if file.package:
                    tokens.fail("there is more than one package")
                file.package = tokens.full_name()
                tokens.expect(";")
            elif tokens.takes("option"):
                self._option(file.options)
                tokens.expect(";")
            elif tokens.takes("service"):
                self._service(file.service.add())
            elif not self._definition(file.message_type, file.enum_type, file.extension, 1):
                tokens.fail("a definition is expected here")
        return file

    def _syntax(self) -> None:
        tokens, file = self._tokens, self._file
        if tokens.takes("syntax"):
            tokens.expect("=")
            at, syntax = tokens.current, tokens.string()
            if syntax not in ("proto2", "proto3"):
                tokens.fail(f"the syntax {syntax[:40]!r} is neither proto2 nor proto3", at)
            if syntax == "proto3":
                file.syntax = syntax  # without one, a descriptor is of proto2
        elif tokens.takes("edition"):
            tokens.expect("=")
            at, edition = tokens.current, tokens.string()
            if edition not in EDITIONS:
                tokens.fail(f"the edition {edition[:40]!r} is none of {', '.join(EDITIONS)}", at)
            file.syntax, file.edition = "editions", EDITIONS[edition]
        else:
            return
        tokens.expect(";")

    def _import(self) -> None:
        tokens, file = self._tokens, self._file
        kind = next((word for word in ("public", "weak", "option") if tokens.takes(word)), "")
        at, path = tokens.current, tokens.string()
        tokens.expect(";")
        if kind == "option":
            return  # its extensions are used in options alone
        if not path or path in file.dependency:
            tokens.fail(f"{path[:100]!r} is imported twice" if path else "the path is empty", at)
        file.dependency.append(path)
        if kind == "public":
            file.public_dependency.append(len(file.dependency) - 1)
        elif kind == "weak":
            file.weak_dependency.append(len(file.dependency) - 1)

    def _definition(self, messages: Any, enums: Any, extensions: Any, depth: int) -> bool:
        """A message, an enum or an extend; False if what follows is none of them."""
        tokens = self._tokens
        if tokens.following.kind not in (NAME, SYMBOL):
            return False
        # Since edition 2024, visibility restricts which files may use a type. It says nothing of data.
        has_visibility = self._file.edition == descriptor_pb2.EDITION_2024 and (
            tokens.current.text in ("export", "local") and tokens.following.text in ("message", "enum")
        )
        if has_visibility:
            tokens.take()
        if tokens.current.text == "message" and tokens.following.kind == NAME:
            tokens.take()
            self._message(messages.add(), depth)
        elif tokens.current.text == "enum" and tokens.following.kind == NAME:
            tokens.take()
            self._enum(enums.add())
        elif tokens.current.text == "extend" and (
            tokens.following.kind == NAME or tokens.following.text == "."
        ):
            tokens.take()
            self._extend(messages, extensions, depth)
        else:
            return False
        return True

    # Messages.

    def _message(self, message: Any, depth: int) -> None:
        message.name = self._tokens.name()
        self._message_body(message, depth)

    def _message_body(self, message: Any, depth: int) -> None:
        tokens = self._tokens
        at = tokens.current
        if depth > MESSAGE_DEPTH_MAX:
            tokens.fail(f"messages are nested deeper than {MESSAGE_DEPTH_MAX} levels")
        tokens.expect("{")
        while not tokens.takes("}"):
            if tokens.takes(";"):
                continue
            if tokens.current.text == "option" and tokens.following.text != ".":
                tokens.take()
                self._option(message.options)
                tokens.expect(";")
            elif tokens.current.text == "reserved" and tokens.following.kind != SYMBOL:
                tokens.take()
                self._reserved(message, FIELD_NUMBER_MAX, 1, exclusive=1)
            elif tokens.current.text == "extensions" and tokens.following.kind == NUMBER:
                tokens.take()
                self._extension_ranges(message)
            elif tokens.current.text == "oneof" and tokens.following.kind == NAME:
                tokens.take()
                self._oneof(message, depth)
            elif not self._definition(message.nested_type, message.enum_type, message.extension, depth + 1):
                self._field(message.field.add(), message.nested_type, depth)
        self._finish_message(message, at)

    def _finish_message(self, message: Any, at: Token) -> None:
        """Check the fields against one another, and give `optional` fields of proto3 their oneofs."""
        tokens = self._tokens
        used = _reserved_use(message, message.field, exclusive=1)
        if used is not None:
            tokens.fail(f"the message {message.name} uses {used!r}, which is reserved", at)
        taken = {oneof.name for oneof in message.oneof_decl} | {field.name for field in message.field}
        for field in message.field:
            if field.proto3_optional:
                name = f"_{field.name}"
                while name in taken:
                    name = f"X{name}"
                taken.add(name)
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add().name = name

    def _oneof(self, message: Any, depth: int) -> None:
        tokens = self._tokens
        at = tokens.current
        index = len(message.oneof_decl)
        oneof = message.oneof_decl.add()
        oneof.name = tokens.name()
        count = len(message.field)
        tokens.expect("{")
        while not tokens.takes("}"):
            if tokens.takes(";"):
                continue
            if tokens.current.text == "option" and tokens.following.text != ".":
                tokens.take()
                self._option(oneof.options)
                tokens.expect(";")
                continue
            field = message.field.add()
            field.oneof_index = index
            self._field(field, message.nested_type, depth)
        if len(message.field) == count:
            tokens.fail(f"the oneof {oneof.name} has no fields", at)

    def _extend(self, messages: Any, extensions: Any, depth: int) -> None:
        tokens = self._tokens
        extendee = tokens.full_name()
        tokens.expect("{")
        while not tokens.takes("}"):
            if tokens.takes(";"):
                continue
            field = extensions.add()
            field.extendee = extendee
            self._field(field, messages, depth)

    def _field(self, field: Any, nested_types: Any, depth: int) -> None:
        """A field; of a map or a group, `nested_types` gains its message."""
        tokens = self._tokens
        at = tokens.current
        in_oneof = field.HasField("oneof_index")
        label = self._label(field, in_oneof)
        if tokens.current.text == "map" and tokens.following.text == "<":
            if label or in_oneof or field.extendee:
                tokens.fail("a map has no label, and is in no oneof or extend", at)
            self._map(field, nested_types)
        elif tokens.current.text == "group" and tokens.following.kind == NAME:
            if not self._is_proto2:
                tokens.fail("groups exist in proto2 alone")
            self._group(field, nested_types, depth)
            return
        else:
            if not label and not in_oneof and self._is_proto2:
                tokens.fail("optional, repeated or required is missing")
            self._type(field)
            field.name = tokens.name()
            self._number(field)
        self._field_options(field)
        tokens.expect(";")

    def _label(self, field: Any, in_oneof: bool) -> str:
        tokens = self._tokens
        field.label = FieldProto.LABEL_OPTIONAL
        if tokens.current.text not in LABELS:
            return ""
        label = tokens.current.text
        if in_oneof:
            tokens.fail("fields of a oneof have no label")
        if self._file.syntax == "editions" and label != "repeated":
            tokens.fail("editions have no such label: use features.field_presence")
        if self._is_proto3 and label == "required":
            tokens.fail("proto3 has no required fields")
        tokens.take()
        field.label = LABELS[label]
        field.proto3_optional = self._is_proto3 and label == "optional" and not field.extendee
        if not field.proto3_optional:
            field.ClearField("proto3_optional")
        return label

    def _type(self, field: Any) -> None:
        name = self._tokens.full_name()
        if name in SCALARS:
            field.type = SCALARS[name]
        else:
            field.type_name = name

    def _number(self, field: Any) -> None:
        tokens = self._tokens
        tokens.expect("=")
        at = tokens.current
        field.number = tokens.integer(1, FIELD_NUMBER_MAX)
        if field.number in RESERVED_FOR_PROTOBUF:
            tokens.fail("the numbers from 19000 to 19999 are reserved for Protobuf itself", at)

    def _map(self, field: Any, nested_types: Any) -> None:
        tokens = self._tokens
        tokens.take()
        tokens.expect("<")
        entry = nested_types.add()
        key, value = entry.field.add(), entry.field.add()
        at = tokens.current
        self._type(key)
        if key.type_name or at.text not in MAP_KEYS:
            tokens.fail("a map's key is a number, a boolean or a string", at)
        tokens.expect(",")
        self._type(value)
        tokens.expect(">")
        field.name = tokens.name()
        self._number(field)
        entry.name = "".join(_capitalized(part) for part in field.name.split("_")) + "Entry"
        entry.options.map_entry = True
        for number, (part, name) in enumerate(((key, "key"), (value, "value")), 1):
            part.name, part.number, part.label = name, number, FieldProto.LABEL_OPTIONAL
        field.label, field.type = FieldProto.LABEL_REPEATED, FieldProto.TYPE_MESSAGE
        field.type_name = entry.name

    def _group(self, field: Any, nested_types: Any, depth: int) -> None:
        tokens = self._tokens
        tokens.take()
        at, name = tokens.current, tokens.name()
        if not name[0].isupper():
            tokens.fail("the name of a group begins with a capital letter", at)
        field.name, field.type, field.type_name = name.lower(), FieldProto.TYPE_GROUP, name
        self._number(field)
        self._field_options(field)
        group = nested_types.add()
        group.name = name
        self._message_body(group, depth + 1)

    def _field_options(self, field: Any) -> None:
        tokens = self._tokens
        if not tokens.takes("["):
            return
        while True:
            if tokens.current.text == "default" and tokens.following.text == "=":
                self._default(field)
            elif tokens.current.text == "json_name" and tokens.following.text == "=":
                tokens.take()
                tokens.take()
                field.json_name = tokens.string()
            else:
                self._option(field.options)
            if tokens.takes("]"):
                return
            tokens.expect(",")

    def _default(self, field: Any) -> None:
        tokens = self._tokens
        if self._is_proto3:
            tokens.fail("proto3 has no defaults")
        if field.default_value or field.label == FieldProto.LABEL_REPEATED:
            tokens.fail("there is a default already, or there can be none")
        tokens.take()
        tokens.take()
        at = tokens.current
        if field.type == FieldProto.TYPE_STRING:
            field.default_value = tokens.string()
            return
        if field.type == FieldProto.TYPE_BYTES:
            field.default_value = escaped(tokens.octets())
            return
        negative = tokens.takes("-")
        token = tokens.take()
        if token.kind not in (NAME, NUMBER):
            tokens.fail("a default is a number, a string, true, false, or the name of an enum's value", at)
        field.default_value = _plain_default(field, token, negative, lambda why: tokens.fail(why, at))

    # Enums and services.

    def _enum(self, enum: Any) -> None:
        tokens = self._tokens
        at = tokens.current
        enum.name = tokens.name()
        tokens.expect("{")
        while not tokens.takes("}"):
            if tokens.takes(";"):
                continue
            if tokens.current.text == "option" and tokens.following.text != "=":
                tokens.take()
                self._option(enum.options)
                tokens.expect(";")
            elif tokens.current.text == "reserved" and tokens.following.text != "=":
                tokens.take()
                self._reserved(enum, INT32[1], INT32[0], exclusive=0)
            else:
                value = enum.value.add()
                value.name = tokens.name()
                tokens.expect("=")
                value.number = tokens.integer(*INT32)
                if tokens.takes("["):
                    self._options_until_bracket(value.options)
                tokens.expect(";")
        self._finish_enum(enum, at)

    def _finish_enum(self, enum: Any, at: Token) -> None:
        tokens = self._tokens
        if not enum.value:
            tokens.fail(f"the enum {enum.name} has no values", at)
        if self._is_proto3 and enum.value[0].number != 0:
            tokens.fail(f"the first value of the enum {enum.name} must be 0 in proto3", at)
        numbers = [value.number for value in enum.value]
        if len(set(numbers)) < len(numbers) and not enum.options.allow_alias:
            tokens.fail(f"the enum {enum.name} uses a number twice without allow_alias", at)
        used = _reserved_use(enum, enum.value, exclusive=0)
        if used is not None:
            tokens.fail(f"the enum {enum.name} uses {used!r}, which is reserved", at)

    def _service(self, service: Any) -> None:
        tokens = self._tokens
        service.name = tokens.name()
        tokens.expect("{")
        while not tokens.takes("}"):
            if tokens.takes(";"):
                continue
            if tokens.takes("option"):
                self._option(service.options)
                tokens.expect(";")
                continue
            tokens.expect("rpc")
            method = service.method.add()
            method.name = tokens.name()
            method.input_type, client_streams = self._rpc_type()
            tokens.expect("returns")
            method.output_type, server_streams = self._rpc_type()
            if client_streams:
                method.client_streaming = True
            if server_streams:
                method.server_streaming = True
            self._rpc_options(method)

    def _rpc_type(self) -> tuple[str, bool]:
        tokens = self._tokens
        tokens.expect("(")
        streams = tokens.current.text == "stream" and tokens.following.text != ")"
        if streams:
            tokens.take()
        name = tokens.full_name()
        tokens.expect(")")
        return name, streams

    def _rpc_options(self, method: Any) -> None:
        tokens = self._tokens
        if not tokens.takes("{"):
            tokens.expect(";")
            return
        while not tokens.takes("}"):
            if tokens.takes(";"):
                continue
            tokens.expect("option")
            self._option(method.options)
            tokens.expect(";")

    # Ranges.

    def _reserved(self, holder: Any, maximum: int, minimum: int, exclusive: int) -> None:
        """Reserved numbers or names of a message or an enum; the ends of a message's ranges are exclusive."""
        tokens = self._tokens
        while True:
            if tokens.current.kind == TEXT:
                holder.reserved_name.append(tokens.string())
            elif tokens.current.kind == NAME:
                holder.reserved_name.append(tokens.name())
            else:
                start = tokens.integer(minimum, maximum)
                end = self._end(start, maximum)
                part = holder.reserved_range.add()
                part.start, part.end = start, end + exclusive
            if tokens.takes(";"):
                return
            tokens.expect(",")

    def _end(self, start: int, maximum: int) -> int:
        tokens = self._tokens
        if not tokens.takes("to"):
            return start
        return maximum if tokens.takes("max") else tokens.integer(start, maximum)

    def _extension_ranges(self, message: Any) -> None:
        tokens = self._tokens
        if self._is_proto3:
            tokens.fail("proto3 has no extension ranges")
        while True:
            start = tokens.integer(1, FIELD_NUMBER_MAX)
            part = message.extension_range.add()
            part.start, part.end = start, self._end(start, FIELD_NUMBER_MAX) + 1
            if tokens.current.text == "[":
                tokens.skip_braces()  # who may use the numbers says nothing of data
            if tokens.takes(";"):
                return
            tokens.expect(",")

    # Options.

    def _options_until_bracket(self, options: Any) -> None:
        tokens = self._tokens
        while True:
            self._option(options)
            if tokens.takes("]"):
                return
            tokens.expect(",")

    def _option(self, options: Any) -> None:
        """One option, `name = value`; those that are not of `options` themselves are passed over."""
        tokens = self._tokens
        at = tokens.current
        path: list[str] = []
        is_custom = False
        while True:
            if tokens.takes("("):
                is_custom = True
                tokens.full_name()
                tokens.expect(")")
            else:
                path.append(tokens.name())
            if not tokens.takes("."):
                break
        tokens.expect("=")
        if is_custom:
            self._skip_value()
            return
        for name in path[:-1]:
            if name not in options.DESCRIPTOR.fields_by_name or name in ("uninterpreted_option",):
                tokens.fail(f"the option {'.'.join(path)!r} is unknown", at)
            options = getattr(options, name)
            if not hasattr(options, "DESCRIPTOR"):
                tokens.fail(f"the option {'.'.join(path)!r} is unknown", at)
        self._set_option(options, path[-1], at)

    def _skip_value(self) -> None:
        tokens = self._tokens
        if tokens.current.text in ("{", "<") and tokens.current.kind == SYMBOL:
            tokens.skip_braces()
            return
        if tokens.current.kind == TEXT:
            tokens.octets()
            return
        while tokens.current.text in ("-", "+"):
            tokens.take()
        if tokens.current.kind not in (NAME, NUMBER):
            tokens.fail("the value of an option is missing")
        tokens.take()

    def _set_option(self, options: Any, name: str, at: Token) -> None:
        tokens = self._tokens
        field = options.DESCRIPTOR.fields_by_name.get(name)
        if field is None or name in ("uninterpreted_option", "map_entry"):
            tokens.fail(f"the option {name!r} is unknown", at)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if options.DESCRIPTOR.full_name.endswith("Options") and name == "features":
                tokens.fail("write features one by one, such as features.field_presence = EXPLICIT", at)
            self._skip_value()
            return
        if field.type == FieldDescriptor.TYPE_STRING:
            value: Any = tokens.string()
        elif field.type == FieldDescriptor.TYPE_BOOL:
            word = tokens.take().text
            if word not in ("true", "false"):
                tokens.fail(f"the option {name!r} is true or false", at)
            value = word == "true"
        elif field.type == FieldDescriptor.TYPE_ENUM:
            choice = field.enum_type.values_by_name.get(tokens.take().text)
            if choice is None:
                tokens.fail(f"the option {name!r} has no such value", at)
            value = choice.number
        else:
            value = tokens.integer(*INT32)
        if field.is_repeated:
            getattr(options, name).append(value)
        else:
            setattr(options, name, value)


def _reserved_use(holder: Any, members: Iterable[Any], exclusive: int) -> str | int | None:
    """A name or number of a member that its message or enum reserves."""
    names = set(holder.reserved_name)
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted((part.start, part.end - exclusive) for part in holder.reserved_range):
        starts.append(start)
        ends.append(max(end, ends[-1]) if ends else end)
    for member in members:
        if member.name in names:
            return str(member.name)
        at = bisect_right(starts, member.number) - 1
        if at >= 0 and member.number <= ends[at]:
            return int(member.number)
    return None


def escaped(octets: bytes) -> str:
    """Bytes as a default has them in a descriptor: printable ASCII, all else as octal escapes."""
    plain = {9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 39: "\\'", 92: "\\\\"}
    return "".join(
        plain.get(octet) or (chr(octet) if 32 <= octet < 127 else f"\\{octet:03o}") for octet in octets
    )


def _capitalized(part: str) -> str:
    return part[:1].upper() + part[1:]


def _plain_default(field: Any, token: Token, negative: bool, fail: Callable[[str], Any]) -> str:
    """A default that is no string, as protoc writes it."""
    sign = "-" if negative else ""
    if field.type_name:  # of an enum: the type of a named field is not known yet
        if token.kind != NAME or negative:
            fail("the default of an enum is the name of one of its values")
        return token.text
    if field.type in (FieldProto.TYPE_FLOAT, FieldProto.TYPE_DOUBLE):
        if token.kind == NAME:
            if token.text not in ("inf", "nan"):
                fail("the default is a number, inf or nan")
            return sign + token.text
        number = float(sign + repr(number_of(token.text)))
        return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)
    if field.type == FieldProto.TYPE_BOOL:
        if token.text not in ("true", "false") or negative:
            fail("the default is true or false")
        return token.text
    whole = number_of(token.text) if token.kind == NUMBER else None
    if not isinstance(whole, int):
        fail("the default is a whole number")
    return f"{sign}{whole}"
