"""What the registry knows: the result of the topic's records in their order, and of nothing else.

Every instance applies the same records and so has the same state. That also settles which writes count. The
leader alone writes, but a leader that lost its place without noticing may still have a record on its way.
So two rules hold when records are applied, not only when they are written:

- A version of a subject keeps its schema and its id: only its soft deletion may change, or it ends.
- An id keeps its schema.

A record that breaks a rule is rejected: the first one counts. Its writer sees that when it reads the record
back, and has not yet answered anybody. As compaction keeps the last record of a key, a rejected one must
not remain the last: `repairs` says what the leader has to write.

Records without the header of this registry are those of another one, or of earlier releases of this one:

- A record that contradicts one with the header for the same version is a late one of an earlier release, as
  another registry would have read that first. The rules hold for it. The exceptions are soft deletions, and
  mode IMPORT, in which Confluent's registry allows clients to overwrite versions.
- All others are never repaired, as another registry may go on to use the topic. A version that was written
  anew with another id counts. One with the same id keeps its schema: Karapace writes the text in another form
  when it deletes a version softly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from mainstem_registry.records import (
    ConfigKey,
    ConfigValue,
    DeleteSubjectKey,
    DeleteSubjectValue,
    ModeKey,
    ModeValue,
    NoopValue,
    Record,
    Value,
    VersionKey,
    VersionValue,
)
from mainstem_registry.schemas.compatibility import Compatibility
from mainstem_registry.schemas.schema import SchemaText

DEFAULT_COMPATIBILITY = Compatibility.BACKWARD


class Mode(Enum):
    """What may be written to a subject. IMPORT: versions with ids that the client gives."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a subject."""

    subject: str
    number: int
    id: int
    schema: SchemaText
    is_deleted: bool
    """Softly: it can still be read by id, and by those that ask for deleted versions."""


class RegistryState:
    """Changed by `apply` alone."""

    def __init__(self) -> None:
        self._subjects: dict[str, dict[int, Version]] = {}
        self._schemas: dict[int, SchemaText] = {}
        self._ids: dict[SchemaText, list[int]] = {}
        self._holders: dict[int, set[tuple[str, int]]] = {}
        self._referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}
        self._configs: dict[str | None, ConfigValue] = {}
        self._modes: dict[str | None, Mode] = {}
        self._unrepaired: dict[VersionKey, None] = {}
        self._with_header: set[tuple[str, int]] = set()
        """Versions whose last record that counts has the header."""
        self.highest_id = 0
        """Of all ids that any record ever named, rejected ones included."""

    # Changes.

    def apply(self, record: Record, *, has_header: bool = True) -> bool:
        """Take in the next record of the topic; False if it is rejected.

        `has_header`: it has the header of the records that this registry writes.
        """
        match record.key, record.value:
            case VersionKey() as key, VersionValue() as value:
                return self._apply_version(key, value, has_header=has_header)
            case VersionKey() as key, None:
                self._unrepaired.pop(key, None)
                self._remove(key)
            case DeleteSubjectKey(subject), DeleteSubjectValue(last):
                for version in self.versions(subject):
                    if version.number <= last:
                        self._put(
                            VersionKey(subject, version.number),
                            VersionValue(version.id, version.schema, True),
                        )
            case ConfigKey(subject), ConfigValue() as config:
                self._configs[subject] = config
            case ConfigKey(subject), None:
                self._configs.pop(subject, None)
            case ModeKey(subject), ModeValue(name):
                if name in Mode.__members__:
                    self._modes[subject] = Mode[name]
            case ModeKey(subject), None:
                self._modes.pop(subject, None)
            case _, NoopValue(highest_id):
                self.highest_id = max(self.highest_id, highest_id)
        return True

    def _apply_version(self, key: VersionKey, value: VersionValue, *, has_header: bool) -> bool:
        self.highest_id = max(self.highest_id, value.id)
        present = self.version(key.subject, key.version)
        is_foreign = not has_header and not self._is_late(key, value)
        if is_foreign and present is not None and present.id == value.id:
            value = replace(value, schema=present.schema)
        is_change = present is not None and (present.id, present.schema) != (value.id, value.schema)
        if (is_change and not is_foreign) or self._schemas.get(value.id, value.schema) != value.schema:
            if not is_foreign:
                self._unrepaired[key] = None
            return False
        self._unrepaired.pop(key, None)
        if is_change:
            self._remove(key)
        self._put(key, value)
        if has_header:
            self._with_header.add((key.subject, key.version))
        else:
            self._with_header.discard((key.subject, key.version))
        return True

    def _is_late(self, key: VersionKey, value: VersionValue) -> bool:
        """Whether a record without the header comes from a former leader of an earlier release."""
        present = self.version(key.subject, key.version)
        if present is None or (key.subject, key.version) not in self._with_header:
            return False
        if (value.is_deleted and value.id == present.id) or self.effective_mode(key.subject) is Mode.IMPORT:
            return False
        return (present.id, present.schema) != (value.id, value.schema)

    def _put(self, key: VersionKey, value: VersionValue) -> None:
        version = Version(key.subject, key.version, value.id, value.schema, value.is_deleted)
        self._subjects.setdefault(key.subject, {})[key.version] = version
        self._holders.setdefault(value.id, set()).add((key.subject, key.version))
        if value.id not in self._schemas:
            self._schemas[value.id] = value.schema
            self._ids.setdefault(value.schema, []).append(value.id)
        for reference in value.schema.references:
            place = reference.subject, reference.version
            self._referrers.setdefault(place, set()).add((key.subject, key.version))

    def _remove(self, key: VersionKey) -> None:
        versions = self._subjects.get(key.subject, {})
        version = versions.pop(key.version, None)
        if version is None:
            return
        self._with_header.discard((key.subject, key.version))
        if not versions:
            del self._subjects[key.subject]
        for reference in version.schema.references:
            self._referrers[reference.subject, reference.version].discard((key.subject, key.version))
        holders = self._holders[version.id]
        holders.discard((key.subject, key.version))
        if not holders:
            del self._holders[version.id], self._schemas[version.id]
            ids = self._ids[version.schema]
            ids.remove(version.id)
            if not ids:
                del self._ids[version.schema]

    # What is known.

    def repairs(self) -> list[Record]:
        """What the leader writes so that compaction cannot prefer a rejected record."""
        return [Record(key, self.value_of(key)) for key in self._unrepaired]

    def value_of(self, key: VersionKey) -> Value:
        version = self._subjects.get(key.subject, {}).get(key.version)
        return None if version is None else VersionValue(version.id, version.schema, version.is_deleted)

    def subjects(self) -> list[str]:
        """All subjects that have a version, soft-deleted ones included, in order."""
        return sorted(self._subjects)

    def versions(self, subject: str, *, deleted: bool = True) -> list[Version]:
        """The versions of a subject in order; those that are soft-deleted only if `deleted`."""
        versions: Mapping[int, Version] = self._subjects.get(subject, {})
        return [versions[number] for number in sorted(versions) if deleted or not versions[number].is_deleted]

    def version(self, subject: str, number: int) -> Version | None:
        return self._subjects.get(subject, {}).get(number)

    def schema(self, schema_id: int) -> SchemaText | None:
        return self._schemas.get(schema_id)

    def schema_id(self, schema: SchemaText) -> int | None:
        """The lowest id of a schema."""
        ids = self._ids.get(schema)
        return min(ids) if ids else None

    def holders(self, schema_id: int) -> list[Version]:
        """The versions with an id, by subject and number."""
        places = sorted(self._holders.get(schema_id, ()))
        return [self._subjects[subject][number] for subject, number in places]

    def referrers(self, subject: str, number: int) -> list[Version]:
        """The versions that are not deleted and reference this one."""
        places = sorted(self._referrers.get((subject, number), ()))
        versions = (self._subjects[referrer][at] for referrer, at in places)
        return [version for version in versions if not version.is_deleted]

    def config(self, subject: str | None) -> ConfigValue | None:
        """What is set for a subject itself, or for all if `subject` is None."""
        return self._configs.get(subject)

    def compatibility(self, subject: str | None) -> Compatibility:
        """The level that holds for a subject."""
        for config in (self._configs.get(subject), self._configs.get(None)):
            if config is not None and config.compatibility in Compatibility.__members__:
                return Compatibility[config.compatibility or ""]
        return DEFAULT_COMPATIBILITY

    def normalizes(self, subject: str | None) -> bool:
        """Whether schemas are normalized even if the client does not ask for it."""
        for config in (self._configs.get(subject), self._configs.get(None)):
            if config is not None and config.normalize is not None:
                return config.normalize
        return False

    def mode(self, subject: str | None) -> Mode | None:
        """What is set for a subject itself, or for all if `subject` is None."""
        return self._modes.get(subject)

    def effective_mode(self, subject: str | None) -> Mode:
        """The mode that holds for a subject: READONLY_OVERRIDE for all is above every subject's own."""
        general = self._modes.get(None, Mode.READWRITE)
        if general is Mode.READONLY_OVERRIDE:
            return general
        return self._modes.get(subject, general)

    def all_versions(self) -> Iterator[Version]:
        for subject in self.subjects():
            yield from self.versions(subject)
