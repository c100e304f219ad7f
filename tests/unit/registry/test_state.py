"""The state: the first record counts, and no compaction changes that (R31)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem_registry import operations
from mainstem_registry.errors import RegistryError
from mainstem_registry.records import (
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
    decode,
    encode,
)
from mainstem_registry.requests import SchemaRequest
from mainstem_registry.schemas.schema import Reference, SchemaText
from mainstem_registry.state import RegistryState


def text(name: str) -> SchemaText:
    return SchemaText("AVRO", f'{{"type":"enum","name":"E","symbols":["{name}"]}}')


def version(subject: str, number: int, schema_id: int, name: str, *, deleted: bool = False) -> Record:
    return Record(VersionKey(subject, number), VersionValue(schema_id, text(name), deleted))


def replayed(records: list[Record]) -> RegistryState:
    state = RegistryState()
    for record in records:
        state.apply(record)
    return state


def shown(state: RegistryState) -> list[tuple[str, int, int, SchemaText, bool]]:
    return [
        (item.subject, item.number, item.id, item.schema, item.is_deleted) for item in state.all_versions()
    ]


def test_soft_deletion_keeps_the_id_and_hard_deletion_ends_it_but_not_its_number() -> None:
    state = replayed([version("s", 1, 7, "A"), Record(DeleteSubjectKey("s"), DeleteSubjectValue(1))])
    assert [item.is_deleted for item in state.versions("s")] == [True]
    assert state.schema(7) == text("A")
    state.apply(Record(VersionKey("s", 1), None))
    assert state.schema(7) is None
    assert state.highest_id == 7


def test_ids_are_not_used_again_after_the_newest_was_deleted_for_good_and_the_topic_compacted() -> None:
    # A registry that only looks at the records that are left would hand out 2 again.
    log: list[Record] = [version("s", 1, 1, "A"), version("t", 1, 2, "B")]
    state = replayed(log)
    for permanent in (False, True):
        _, records = operations.delete_subject(state, "t", permanent=permanent)
        for record in records:
            state.apply(record)
        log += records
    restarted = replayed(compacted(log))
    request = SchemaRequest(text("C"))
    assert operations.register(restarted, "u", request, normalize=False).version.id == 3


def compacted(log: list[Record]) -> list[Record]:
    """What a compaction leaves that removes everything it may: tombstones included."""
    last = {record.key: position for position, record in enumerate(log)}
    return [
        record
        for position, record in enumerate(log)
        if last[record.key] == position and record.value is not None
    ]


def rewritten(record: Record) -> Record:
    """The record with the same schema in another text, softly deleted."""
    assert isinstance(record.value, VersionValue)
    schema = SchemaText("AVRO", record.value.schema.text.replace(",", ", "))
    return Record(record.key, VersionValue(record.value.id, schema, True))


@pytest.mark.parametrize(
    ("records", "versions"),
    [
        (
            [version("s", 1, 1, "A"), version("s", 1, 7, "B")],
            [("s", 1, 7, text("B"), False)],
        ),
        (
            [version("s", 1, 1, "A"), version("t", 1, 1, "B")],
            [("s", 1, 1, text("A"), False)],
        ),
        (
            [version("s", 1, 1, "A"), version("t", 1, 1, "A"), rewritten(version("s", 1, 1, "A"))],
            [("s", 1, 1, text("A"), True), ("t", 1, 1, text("A"), False)],
        ),
    ],
    ids=["a version overwritten in mode IMPORT", "an id of two schemas", "a soft deletion by Karapace"],
)
def test_records_of_another_registry_count_as_they_do_there_and_are_not_repaired(
    records: list[Record], versions: list[tuple[str, int, int, SchemaText, bool]]
) -> None:
    state = RegistryState()
    for record in records:
        state.apply(record, has_header=False)
    assert (shown(state), state.repairs()) == (versions, [])
    assert {item.id: state.schema(item.id) for item in state.all_versions()} == {
        schema_id: schema for _, _, schema_id, schema, _ in versions
    }
    present = state.value_of(VersionKey("s", 1))
    assert not state.apply(version("s", 1, 9, "C")), "a former leader of ours changes nothing"
    assert state.repairs() == [Record(VersionKey("s", 1), present)]


A10 = version("s", 3, 10, "A")
IMPORT = Record(ModeKey("s"), ModeValue("IMPORT"))


@pytest.mark.parametrize(
    ("records", "late", "counts"),
    [
        ([A10], version("s", 3, 10, "B"), False),
        ([A10], version("s", 3, 11, "B"), False),
        ([A10], rewritten(A10), True),
        ([A10, IMPORT], version("s", 3, 11, "B"), True),
        ([A10, Record(VersionKey("s", 3), None)], version("s", 3, 10, "B"), True),
    ],
    ids=["its schema", "its id", "a soft deletion", "mode IMPORT", "what was deleted"],
)
def test_what_a_leader_of_an_earlier_release_wrote_late_does_not_count(
    records: list[Record], late: Record, counts: bool
) -> None:
    """It has no header, and clients may know the id of the record before it, which has one."""
    state = replayed(records)
    before = shown(state)
    assert state.apply(late, has_header=False) == counts
    assert (shown(state) != before) == counts
    assert isinstance(late.key, VersionKey)
    assert state.repairs() == ([] if counts else [Record(late.key, state.value_of(late.key))])
    assert all(state.apply(repair) for repair in state.repairs())
    assert state.repairs() == []


class _Leader:
    """An instance that believes to lead, with the part of the log that it has read."""

    def __init__(self) -> None:
        self.state = RegistryState()
        self.read = 0

    def catch_up(self, log: list[Record]) -> list[bool]:
        accepted = [self.state.apply(record) for record in log[self.read :]]
        self.read = len(log)
        return accepted

    def repair(self, log: list[Record]) -> None:
        self.catch_up(log)
        log.extend(self.state.repairs())
        self.catch_up(log)
        assert self.state.repairs() == [], "each leader would write them anew"


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_two_leaders_never_give_one_id_to_two_schemas_nor_lose_what_they_confirmed(seed: int) -> None:
    # Both write without hearing of each other for a while; every instance, and every later one on the
    # compacted log, must agree on what was confirmed.
    chance = random.Random(seed)
    log: list[Record] = []
    leaders = [_Leader(), _Leader()]
    confirmed: dict[tuple[str, int], tuple[int, SchemaText]] = {}
    for step in range(30):
        leader = chance.choice(leaders)
        if chance.random() < 0.5:
            leader.repair(log)
        subject = chance.choice("abc")
        request = SchemaRequest(text(f"S{chance.randrange(12)}"))
        try:
            decided = operations.register(leader.state, subject, request, normalize=False)
        except RegistryError:  # incompatible with the version before
            continue
        # Records of the other leader may land before this one.
        behind = leaders[1 - leaders.index(leader)]
        if step % 3 == 0:
            behind.repair(log)
        log.extend(decided.records)
        accepted = leader.catch_up(log)
        if not decided.records or accepted[-1]:
            result = decided.version
            confirmed[result.subject, result.number] = (result.id, result.schema)
        leader.repair(log)
    for leader in leaders:
        leader.repair(log)
    ids = [record.value.id for record in log if isinstance(record.value, VersionValue)]
    assert replayed(log).highest_id == max(ids), "also of rejected records"
    for state in (replayed(log), replayed(compacted(log)), *(leader.state for leader in leaders)):
        by_id: dict[int, SchemaText] = {}
        for item in state.all_versions():
            assert by_id.setdefault(item.id, item.schema) == item.schema
        for (subject, number), (schema_id, schema) in confirmed.items():
            present = state.version(subject, number)
            assert present is not None
            assert (present.id, present.schema) == (schema_id, schema)
    assert shown(replayed(log)) == shown(replayed(compacted(log)))


def test_records_survive_their_encoding_and_have_the_known_format() -> None:
    record = version("s", 1, 1, "A")
    key, value = encode(record)
    assert key == b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    assert value is not None
    assert value.startswith(b'{"subject":"s","version":1,"id":1,"schema":"')
    assert value.endswith(b'","deleted":false}')
    assert decode(key, value) == record
    assert decode(key, None) == decode(key, b"") == Record(VersionKey("s", 1), None)
    assert encode(Record(NoopKey(), NoopValue(3))) == (b'{"keytype":"NOOP","magic":0}', b'{"highestId":3}')


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (
            Record(ConfigKey("s"), ConfigValue("FULL")),
            '{"keytype":"CONFIG","subject":"s","magic":0}',
            '{"subject":"s","compatibilityLevel":"FULL"}',
        ),
        (
            Record(ConfigKey(None), ConfigValue(None, True)),
            '{"keytype":"CONFIG","subject":null,"magic":0}',
            '{"compatibilityLevel":null,"normalize":true}',
        ),
        (
            Record(ModeKey("s"), ModeValue("READONLY")),
            '{"keytype":"MODE","subject":"s","magic":0}',
            '{"subject":"s","mode":"READONLY"}',
        ),
        (
            Record(ModeKey(None), ModeValue("IMPORT")),
            '{"keytype":"MODE","subject":null,"magic":0}',
            '{"mode":"IMPORT"}',
        ),
        (
            Record(DeleteSubjectKey("s"), DeleteSubjectValue(3)),
            '{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
            '{"subject":"s","version":3}',
        ),
        (
            Record(
                VersionKey("s", 2),
                VersionValue(
                    7, SchemaText("PROTOBUF", "p", (Reference("a.proto", "a", 1),)), is_deleted=True
                ),
            ),
            '{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}',
            '{"subject":"s","version":2,"id":7,"schemaType":"PROTOBUF",'
            '"references":[{"name":"a.proto","subject":"a","version":1}],"schema":"p","deleted":true}',
        ),
    ],
)
def test_records_are_written_as_other_registries_read_them(record: Record, key: str, value: str) -> None:
    """The format is Confluent's, and a compacted topic compares keys byte by byte."""
    assert encode(record) == (key.encode(), value.encode())
    assert decode(*encode(record)) == record


def test_records_of_other_programs_change_nothing() -> None:
    for key in (None, b"", b"[]", b"3", b'{"keytype":"CONTEXT"}', b'{"keytype":"SCHEMA"}', b"\xff"):
        assert decode(key, b"{}") is None
    for keytype in ("SCHEMA", "CONFIG", "MODE", "DELETE_SUBJECT"):  # of a context, with ids of its own
        of_context = f'{{"keytype":"{keytype}","subject":":.prod:s","version":1,"magic":1}}'
        assert decode(of_context.encode(), None) is None
    key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    for schema_id in ('"x"', "true", "1.5", "null"):
        assert decode(key, b'{"id":%s,"schema":"s"}' % schema_id.encode()) is None
