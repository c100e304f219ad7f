"""What each request reads and decides: pure functions of the registry's state.

Reads return values. Writes return the records to append, in order; the caller appends them, applies them as
they are read back, and asks again if one was rejected. A write that changes nothing has no records.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from mainstem_registry import errors
from mainstem_registry.errors import RegistryError
from mainstem_registry.records import (
    CONTEXT_PREFIX,
    ConfigKey,
    ConfigValue,
    DeleteSubjectKey,
    DeleteSubjectValue,
    ModeKey,
    ModeValue,
    NoopKey,
    NoopValue,
    Record,
    VersionKey,
    VersionValue,
)
from mainstem_registry.requests import VERSION_MAX, SchemaRequest
from mainstem_registry.schemas.compatibility import (
    Compatibility,
    compatibility_problems,
    parse_compatibility,
)
from mainstem_registry.schemas.limits import REFERENCES_MAX
from mainstem_registry.schemas.schema import CHECKS_OF_NEW, PARSERS, Reference, SchemaText, compact
from mainstem_registry.state import Mode, RegistryState, Version
from mainstem_registry.whole_numbers import is_whole_number

SUBJECT_LENGTH_MAX: Final = 1000
CACHED_TEXT_MAX: Final = 20_000
"""Parsed schemas take a multiple of their text; larger ones are parsed each time."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The answer to a registration, once its records are applied."""

    version: Version
    records: tuple[Record, ...] = ()


# Schemas.


def parsed(state: RegistryState, schema: SchemaText) -> Any:
    """A schema as its type's module understands it.

    Raises:
        RegistryError: its type is unknown, a reference does not exist, or it is not valid.
    """
    if schema.type not in PARSERS:
        raise errors.invalid_schema(f"the type {schema.type!r} is not supported; {', '.join(PARSERS)} are.")
    references = tuple(_resolved(state, schema))
    if len(schema.text) + sum(len(text) for _, text in references) > CACHED_TEXT_MAX:
        return PARSERS[schema.type](schema.text, references)
    return _parse(schema.type, schema.text, references)


@lru_cache(maxsize=500)
def _parse(schema_type: str, text: str, references: tuple[tuple[str, str], ...]) -> Any:
    return PARSERS[schema_type](text, references)


def _resolved(state: RegistryState, schema: SchemaText) -> list[tuple[str, str]]:
    """The (name, text) of all that a schema references, each once, what is referenced before what refers.

    References among stored versions have no circles: a version can only reference what exists already.
    """
    resolved: dict[str, str] = {}
    visited: set[tuple[str, int]] = set()

    def visit(referrer: SchemaText, depth: int) -> None:
        for reference in referrer.references:
            place = reference.subject, reference.version
            if place in visited and reference.name in resolved:
                continue
            visited.add(place)
            if len(visited) > REFERENCES_MAX or depth > REFERENCES_MAX:
                raise errors.invalid_schema(f"it references more than {REFERENCES_MAX} schemas.")
            version = find_reference(state, reference.subject, reference.version)
            if version is None:
                raise errors.invalid_schema(
                    f"the reference {reference.name!r} names version {reference.version} of subject"
                    f" '{reference.subject}', which does not exist."
                )
            if version.schema.type != schema.type:
                raise errors.invalid_schema(f"the reference {reference.name!r} is of another type.")
            visit(version.schema, depth + 1)
            resolved.setdefault(reference.name, version.schema.text)

    visit(schema, 0)
    return list(resolved.items())


def find_reference(state: RegistryState, subject: str, number: int) -> Version | None:
    if number == -1:  # "latest", as clients write it
        alive = state.versions(subject, deleted=False)
        return alive[-1] if alive else None
    return state.version(subject, number)


def canonical(state: RegistryState, schema: SchemaText, *, normalize: bool) -> SchemaText:
    """The schema with the text under which it is stored and compared, and with references to fixed versions.

    Raises:
        RegistryError: it is not valid.
    """
    meaning = parsed(state, schema)
    references = _fixed(state, schema)
    if normalize:
        references = tuple(sorted(references, key=lambda reference: reference.name))
    return SchemaText(schema.type, meaning.normalized if normalize else meaning.canonical, references)


def _fixed(state: RegistryState, schema: SchemaText) -> tuple[Reference, ...]:
    """The references of a schema to fixed versions; those to no version stay as they are."""
    versions = (
        find_reference(state, reference.subject, reference.version) for reference in schema.references
    )
    return tuple(
        reference if version is None else replace(reference, version=version.number)
        for reference, version in zip(schema.references, versions, strict=True)
    )


def _as_written(state: RegistryState, given: SchemaText) -> tuple[SchemaText, ...]:
    """A schema under the texts that clients and earlier releases may have stored: as it was given, and
    without white space.
    """
    texts = {given.text: None, compact(given.type, given.text): None}
    return tuple(SchemaText(given.type, text, _fixed(state, given)) for text in texts)


# Subjects and versions: reading.


def check_subject(subject: str) -> None:
    """Refuse names that no subject may have.

    Raises:
        RegistryError: this is one.
    """
    unprintable = any(unicodedata.category(character) == "Cc" for character in subject)
    # "__" begins Confluent's names for all.
    reserved = subject.startswith(CONTEXT_PREFIX) or subject in ("__GLOBAL", "__EMPTY")
    if not subject or len(subject) > SUBJECT_LENGTH_MAX or unprintable or reserved:
        raise errors.invalid_subject(subject[:200])


def versions_of(state: RegistryState, subject: str, *, deleted: bool) -> list[Version]:
    """A subject's versions.

    Raises:
        RegistryError: it has none.
    """
    versions = state.versions(subject, deleted=deleted)
    if not versions:
        raise errors.subject_not_found(subject)
    return versions


def parse_version(text: str) -> int:
    """A version's number, or -1 for the latest.

    Raises:
        RegistryError: it is neither.
    """
    if text.lower() in ("latest", "-1"):
        return -1
    if not (is_whole_number(text) and 1 <= int(text) <= VERSION_MAX):
        raise errors.invalid_version(text[:100])
    return int(text)


def find_version(state: RegistryState, subject: str, number: int, *, deleted: bool) -> Version:
    """A version of a subject; -1 is the latest.

    Raises:
        RegistryError: there is no such subject or version.
    """
    versions = versions_of(state, subject, deleted=deleted)
    if number == -1:
        return versions[-1]
    version = state.version(subject, number)
    if version is None or (version.is_deleted and not deleted):
        raise errors.version_not_found(number)
    return version


def look_up(
    state: RegistryState, subject: str, request: SchemaRequest, *, normalize: bool, deleted: bool
) -> Version:
    """The newest version of a subject that has a schema: its text, or else one that says the same.

    Raises:
        RegistryError: the subject or the schema in it is not known, or the schema is not valid.
    """
    versions = versions_of(state, subject, deleted=deleted)
    normalize = normalize or state.normalizes(subject)
    # Earlier releases registered texts that say the same as several versions. Each keeps its own. They also
    # stored texts that are no longer valid.
    found = None if normalize else _newest_with(versions, _as_written(state, request.schema))
    if found is None:
        schema = canonical(state, request.schema, normalize=normalize)
        found = _newest_same(state, versions, schema, request.schema)
    if found is None:
        raise errors.schema_not_found()
    return found


def _newest_with(versions: Sequence[Version], texts: Sequence[SchemaText]) -> Version | None:
    return next((version for version in reversed(versions) if version.schema in texts), None)


def _newest_same(
    state: RegistryState, versions: Sequence[Version], canonical_text: SchemaText, given: SchemaText
) -> Version | None:
    identity: bytes | None = None
    for version in reversed(versions):
        stored = version.schema
        # The text as given counts, too: versions that another registry stored may be written otherwise.
        if stored in (canonical_text, given):
            return version
        if stored.type != canonical_text.type:
            continue
        # A client that knows no references sends the types themselves in their place.
        if canonical_text.references not in ((), stored.references):
            continue
        identity = identity or _digest(parsed(state, canonical_text).identity)
        try:
            if _stored_identity(stored.type, stored.text, tuple(_resolved(state, stored))) == identity:
                return version
        except RegistryError:
            continue
    return None


@lru_cache(maxsize=50_000)
def _stored_identity(schema_type: str, text: str, references: tuple[tuple[str, str], ...]) -> bytes:
    """A digest of a stored schema's identity, which a lookup compares for each version of a subject.

    The cache keeps the texts, too: those of stored schemas are in memory in any case.
    """
    return _digest(PARSERS[schema_type](text, references).identity)


def _digest(identity: str) -> bytes:
    return hashlib.sha256(identity.encode(errors="surrogatepass")).digest()


def serialized(state: RegistryState, schema: SchemaText) -> SchemaText:
    """A Protobuf schema as a FileDescriptorProto in base64, which is what clients without a compiler read.

    Raises:
        RegistryError: it is not valid, as another registry may have stored it.
    """
    if schema.type != "PROTOBUF":
        return schema
    return SchemaText(schema.type, parsed(state, schema).serialized, schema.references)


# Registration.


def check_compatibility(
    state: RegistryState, subject: str, schema: SchemaText, versions: Sequence[Version]
) -> list[str]:
    """Why a schema does not fit the versions under the subject's level; empty if it does.

    Raises:
        RegistryError: the schema is not valid.
    """
    candidate = parsed(state, schema)
    if schema.type in CHECKS_OF_NEW:
        CHECKS_OF_NEW[schema.type](candidate)
    level = state.compatibility(subject)
    if level is Compatibility.NONE or not versions:
        return []
    compared = versions if level.is_transitive else versions[-1:]
    for version in compared:
        if version.schema.type != schema.type:
            return [f"version {version.number} is {version.schema.type}, the new schema is {schema.type}"]
    earlier = [(version.number, parsed(state, version.schema)) for version in compared]
    return compatibility_problems(level, candidate, earlier)


def register(state: RegistryState, subject: str, request: SchemaRequest, *, normalize: bool) -> Registration:
    """Register a schema as the next version of a subject, unless it is a version already.

    Raises:
        RegistryError: it is not valid or not compatible, or the subject may not be written to.
    """
    check_subject(subject)
    mode = state.effective_mode(subject)
    normalize = normalize or state.normalizes(subject)
    texts = () if normalize else _as_written(state, request.schema)
    alive = state.versions(subject, deleted=False)
    requested = [
        version
        for version in alive
        if request.version in (None, version.number) and request.id in (None, version.id)
    ]
    registered = _newest_with(requested, texts)
    if registered is not None:
        return Registration(registered)
    schema = canonical(state, request.schema, normalize=normalize)
    registered = _newest_same(state, requested, schema, request.schema)
    if registered is not None:
        return Registration(registered)
    if mode in (Mode.READONLY, Mode.READONLY_OVERRIDE):
        raise errors.not_permitted(f"Subject {subject} is in read-only mode")
    if request.id is None:
        # A text that an earlier release stored under an id keeps that id, although it is not canonical.
        schema = next((text for text in texts if state.schema_id(text)), schema)
    if mode is Mode.IMPORT:
        return _import(state, subject, request, schema)
    if request.id is not None:
        raise errors.not_permitted(
            f"Subject {subject} is not in import mode: a schema with an id cannot be registered"
        )
    if request.version not in (None, _next_number(state, subject)):
        raise errors.not_permitted(
            f"Version is not one more than previous version for subject {subject}: it must be"
            f" {_next_number(state, subject)}"
        )
    problems = check_compatibility(state, subject, schema, alive)
    if problems:
        raise errors.incompatible(subject, problems)
    schema_id = state.schema_id(schema) or state.highest_id + 1
    return _new_version(subject, _next_number(state, subject), schema_id, schema)


def _import(state: RegistryState, subject: str, request: SchemaRequest, schema: SchemaText) -> Registration:
    schema_id = request.id or state.schema_id(schema) or state.highest_id + 1
    holder = next(iter(state.holders(schema_id)), None)
    if holder is not None:
        same = _newest_same(state, [holder], schema, request.schema)
        if same is None or same.schema.references != schema.references:
            raise errors.not_permitted(f"Overwrite new schema with id {schema_id} is not permitted.")
        schema = same.schema  # an id keeps its text
    number = request.version or _next_number(state, subject)
    present = state.version(subject, number)
    if present is not None and (present.id, present.schema) != (schema_id, schema):
        raise errors.not_permitted(
            f"Version {number} of subject {subject} exists with another schema: delete it first."
        )
    return _new_version(subject, number, schema_id, schema)


def _next_number(state: RegistryState, subject: str) -> int:
    versions = state.versions(subject)
    return versions[-1].number + 1 if versions else 1


def _new_version(subject: str, number: int, schema_id: int, schema: SchemaText) -> Registration:
    if schema_id > VERSION_MAX:
        raise errors.store_failed("all ids are used.")
    record = Record(VersionKey(subject, number), VersionValue(schema_id, schema))
    return Registration(Version(subject, number, schema_id, schema, is_deleted=False), (record,))


# Deletion.


def _check_writable(state: RegistryState, subject: str | None) -> None:
    if state.effective_mode(subject) in (Mode.READONLY, Mode.READONLY_OVERRIDE):
        name = "The registry" if subject is None else f"Subject {subject}"
        raise errors.not_permitted(f"{name} is in read-only mode")


def delete_version(
    state: RegistryState, subject: str, number: int, *, permanent: bool
) -> tuple[int, list[Record]]:
    """Delete a version, softly or for good: its number and the records.

    Raises:
        RegistryError: there is none, it is referenced, or it is not ready for this kind of deletion.
    """
    _check_writable(state, subject)
    if not state.versions(subject):
        raise errors.subject_not_found(subject)
    if number == -1:
        number = find_version(state, subject, -1, deleted=permanent).number
    version = state.version(subject, number)
    if version is None:
        raise errors.version_not_found(number)
    _check_unreferenced(state, version)
    key = VersionKey(subject, number)
    if permanent:
        if not version.is_deleted:
            raise errors.version_not_soft_deleted(subject, number)
        return number, [_ids_so_far(state), Record(key, None)]
    if version.is_deleted:
        raise errors.version_soft_deleted(subject, number)
    return number, [Record(key, VersionValue(version.id, version.schema, is_deleted=True))]


def delete_subject(state: RegistryState, subject: str, *, permanent: bool) -> tuple[list[int], list[Record]]:
    """Delete all versions of a subject, softly or for good: their numbers and the records.

    Raises:
        RegistryError: see `delete_version`.
    """
    _check_writable(state, subject)
    versions = versions_of(state, subject, deleted=True)
    alive = [version for version in versions if not version.is_deleted]
    for version in versions if permanent else alive:
        _check_unreferenced(state, version)
    if not permanent:
        if not alive:
            raise errors.subject_soft_deleted(subject)
        record = Record(DeleteSubjectKey(subject), DeleteSubjectValue(alive[-1].number))
        return [version.number for version in alive], [record]
    if alive:
        raise errors.subject_not_soft_deleted(subject)
    numbers = [version.number for version in versions]
    records = [Record(VersionKey(subject, number), None) for number in numbers]
    settings = [
        Record(key, None)
        for key, value in (
            (ConfigKey(subject), state.config(subject)),
            (ModeKey(subject), state.mode(subject)),
        )
        if value is not None
    ]
    # A crash between these records leaves fewer versions: the request can be repeated.
    return numbers, [_ids_so_far(state), *records, Record(DeleteSubjectKey(subject), None), *settings]


def _check_unreferenced(state: RegistryState, version: Version) -> None:
    referrers = state.referrers(version.subject, version.number)
    if referrers:
        raise errors.reference_exists(
            version.subject, version.number, sorted({referrer.id for referrer in referrers})
        )


def _ids_so_far(state: RegistryState) -> Record:
    """Keeps the highest id in the topic, as what is deleted for good disappears from it."""
    return Record(NoopKey(), NoopValue(state.highest_id))


# Settings.


def set_config(
    state: RegistryState, subject: str | None, compatibility: object, normalize: object
) -> list[Record]:
    """Set a subject's compatibility level, or the one for all; what is None stays as it is.

    Raises:
        RegistryError: there is no such level, or the mode allows no writes.
    """
    if subject is not None:
        check_subject(subject)
    _check_writable(state, subject)
    present = state.config(subject) or ConfigValue(None)
    level = present.compatibility if compatibility is None else parse_compatibility(compatibility).value
    if normalize is not None and not isinstance(normalize, bool):
        raise errors.unprocessable("The attribute 'normalize' must be true or false.")
    if normalize is None:
        normalize = present.normalize
    return [Record(ConfigKey(subject), ConfigValue(level, normalize))]


def delete_config(state: RegistryState, subject: str | None) -> tuple[ConfigValue, list[Record]]:
    """Remove a subject's own level: what was set, and the records.

    Raises:
        RegistryError: it has none, or the mode allows no writes.
    """
    _check_writable(state, subject)
    present = state.config(subject)
    if present is None:
        if subject is None:
            return ConfigValue(state.compatibility(None).value), []
        raise errors.compatibility_not_configured(subject)
    return present, [Record(ConfigKey(subject), None)]


def set_mode(state: RegistryState, subject: str | None, name: object, *, force: bool) -> list[Record]:
    """Set a subject's mode, or the one for all.

    Raises:
        RegistryError: there is no such mode, or schemas exist that IMPORT could contradict.
    """
    if subject is not None:
        check_subject(subject)
    if not isinstance(name, str) or name.upper() not in Mode.__members__:
        raise errors.invalid_mode(name)
    mode = Mode[name.upper()]
    if mode is Mode.READONLY_OVERRIDE and subject is not None:
        raise errors.not_permitted("READONLY_OVERRIDE holds for all subjects: it cannot be set for one.")
    if mode is Mode.IMPORT and not force:
        exists = state.subjects() if subject is None else state.versions(subject)
        if exists:
            raise errors.not_permitted(
                "Cannot import since found existing subjects or versions: delete them for good, or use force."
            )
    return [Record(ModeKey(subject), ModeValue(mode.value))]


def delete_mode(state: RegistryState, subject: str | None) -> tuple[Mode, list[Record]]:
    """Remove a subject's own mode: what was set, and the records.

    Raises:
        RegistryError: it has none.
    """
    present = state.mode(subject)
    if present is None:
        if subject is None:
            return state.effective_mode(None), []
        raise errors.mode_not_configured(subject)
    return present, [Record(ModeKey(subject), None)]
