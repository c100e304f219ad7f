"""A Protobuf schema: one file with all that it imports, its texts, and its descriptor with names resolved.

A schema comes as `.proto` text, or as a FileDescriptorProto in base64, which is how clients without a
compiler hold it. Text is stored as it is given; a descriptor is stored as the text that says the same. An
import is the name of a reference, or a file that every registry has: those of Protobuf itself and
`google/type`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
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

from mainstem_registry.errors import invalid_schema
from mainstem_registry.schemas.limits import TEXT_BYTES_MAX, Steps
from mainstem_registry.schemas.protobuf.comparison import Comparison
from mainstem_registry.schemas.protobuf.parser import parse_file
from mainstem_registry.schemas.protobuf.printer import json_name, print_file
from mainstem_registry.schemas.protobuf.tokens import TOKENS_MAX

KNOWN_FILES: Final[Mapping[str, bytes]] = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (
        any_pb2, source_context_pb2, type_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2,
        field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2, calendar_period_pb2, color_pb2, date_pb2,
        datetime_pb2, dayofweek_pb2, expr_pb2, fraction_pb2, latlng_pb2, money_pb2, month_pb2,
        postal_address_pb2, quaternion_pb2, timeofday_pb2,
    )
}  # fmt: skip
"""Files that need no reference, as serialized descriptors. Clients leave out the references to them."""
ROOT: Final = "(schema)"
"""The name of the file itself; what imports it imports itself."""
_POOL_PREFIX: Final = "Couldn't build proto file into descriptor pool: "
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")


@dataclass(frozen=True, slots=True, eq=False)
class ProtobufSchema:
    """A valid schema."""

    canonical: str
    """The text that is stored: as it was given, or that of the descriptor."""
    normalized: str
    """The same for all texts that mean the same for data."""
    serialized: str
    """The FileDescriptorProto in base64, with all names resolved."""
    file: Any
    """The FileDescriptor. Its pool has what the file imports."""

    @property
    def identity(self) -> str:
        return self.normalized

    def problems_reading(self, writer: ProtobufSchema, steps: Steps) -> list[str]:
        """Why this schema cannot read what `writer` wrote; empty if it can."""
        return Comparison(steps).problems(self.file, writer.file)


def parse(text: str, references: Sequence[tuple[str, str]]) -> ProtobufSchema:
    """A schema from its text and the (name, text) of all that it references.

    Raises:
        RegistryError: it is not valid.
    """
    canonical = _as_text(text)
    files = _Files({name: _as_text(reference) for name, reference in references})
    try:
        root = files.add(canonical)
    except RecursionError:
        raise invalid_schema("it is nested too deeply.") from None
    _check_imports(root)
    descriptor = descriptor_pb2.FileDescriptorProto()
    root.CopyToProto(descriptor)
    descriptor.ClearField("name")
    _clear_json_names(descriptor.message_type)
    serialized = base64.standard_b64encode(descriptor.SerializeToString(deterministic=True)).decode()
    return ProtobufSchema(canonical, print_file(descriptor), serialized, root)


def _as_text(text: str) -> str:
    """The `.proto` text of a schema that may also be a descriptor."""
    if not _BASE64.fullmatch(text):
        return text
    if len(text) > 2 * TEXT_BYTES_MAX:
        raise invalid_schema(f"its descriptor is longer than {TEXT_BYTES_MAX} bytes.")
    try:
        descriptor = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode("".join(text.split())))
    except (binascii.Error, DecodeError):
        raise invalid_schema("it is neither Protobuf text nor the descriptor of a file in base64.") from None
    return print_file(descriptor)


class _Files:
    """Adds files to a pool, what is imported before what imports."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._pool = DescriptorPool()
        self._added: set[str] = set()
        self._open: list[str] = []
        self._tokens_left = TOKENS_MAX

    def add(self, text: str) -> Any:
        """The FileDescriptor of the schema itself."""
        return self._add(ROOT, text, "")

    def _add(self, name: str, text: str, place: str) -> Any:
        if name in self._open:
            circle = " -> ".join([*self._open[self._open.index(name) :], name])
            raise invalid_schema(f"its imports go in a circle: {circle[:300]}.")
        self._open.append(name)
        file, count = parse_file(text)
        self._tokens_left -= count
        if self._tokens_left < 0:
            raise invalid_schema(f"it has more than {TOKENS_MAX} words with all that it imports.")
        file.name = name
        for path in file.dependency:
            self._import(path, place)
        try:
            self._pool.Add(file)
            descriptor = self._pool.FindFileByName(name)
        except (TypeError, KeyError, ValueError) as error:
            reason = str(error).removeprefix(_POOL_PREFIX).strip()
            raise invalid_schema(f"{place}{reason[:500] or type(error).__name__}.") from None
        self._open.pop()
        self._added.add(name)
        return descriptor

    def _import(self, path: str, place: str) -> None:
        if path in self._added:
            return
        if path in self._texts:  # also where a client references a file that every registry has
            self._add(path, self._texts[path], f"the import {path!r}: ")
        elif path in KNOWN_FILES:
            self._import_known(path)
        else:
            raise invalid_schema(
                f"{place}there is no file {path[:200]!r} to import: name the schema that has it as a"
                " reference of this name."
            )
        self._added.add(path)

    def _import_known(self, path: str) -> None:
        if path in self._added:
            return
        self._added.add(path)
        for needed in descriptor_pb2.FileDescriptorProto.FromString(KNOWN_FILES[path]).dependency:
            self._import_known(needed)
        self._pool.AddSerializedFile(KNOWN_FILES[path])


def _check_imports(root: Any) -> None:
    """Refuse types of files that are not imported: the pool knows those that imports import, too.

    Raises:
        RegistryError: there is one.
    """
    visible = {root.name}
    fresh = list(root.dependencies)
    while fresh:
        file = fresh.pop()
        if file.name not in visible:
            visible.add(file.name)
            fresh += file.public_dependencies
    for field in _fields(root.message_types_by_name.values()):
        used = field.message_type or field.enum_type
        if used is not None and used.file.name not in visible:
            raise invalid_schema(
                f"the field {field.full_name} is of type {used.full_name}, whose file {used.file.name!r} is"
                " not imported."
            )


def _fields(messages: Sequence[Any]) -> Iterator[Any]:
    for message in messages:
        yield from message.fields
        yield from _fields(message.nested_types)


def _clear_json_names(messages: Sequence[Any]) -> None:
    """Drop names for JSON that follow from the names of the fields."""
    for message in messages:
        for field in message.field:
            if field.json_name == json_name(field.name):
                field.ClearField("json_name")
        _clear_json_names(message.nested_type)
