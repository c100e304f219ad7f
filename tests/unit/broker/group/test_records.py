"""Keys and values of `__consumer_offsets`, byte by byte as Apache Kafka writes them (R15)."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.errors import NewerFormat
from mainstem_broker.group.classic.records import GroupKey, GroupMetadata, MemberMetadata
from mainstem_broker.group.loading import LoadedGroups
from mainstem_broker.group.offsets.records import TOPIC_ID_HEADER, CommittedOffset, OffsetKey
from mainstem_broker.group.records import decode_key
from mainstem_broker.protocol.records import Record

TOPIC_ID = UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
MEMBER = MemberMetadata("i", None, "c", "/h", 60_000, 10_000, b"s", b"as")
TEXT = st.text(max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
MEMBERS = st.builds(
    MemberMetadata,
    TEXT,
    st.none() | TEXT,
    TEXT,
    TEXT,
    INT32,
    INT32,
    st.binary(max_size=20),
    st.binary(max_size=20),
)


@pytest.mark.parametrize(
    ("record", "encoded"),
    [
        (OffsetKey("g", "tö", 7), "0001 0001 67 0003 74c3b6 00000007"),
        (GroupKey("g"), "0002 0001 67"),
        (CommittedOffset(5, 2, "m", 9), "0003 0000000000000005 00000002 0001 6d 0000000000000009"),
        (
            CommittedOffset(5, -1, "m", 9, expire_ms=11),
            "0001 0000000000000005 0001 6d 0000000000000009 000000000000000b",
        ),
        (
            GroupMetadata("consumer", 4, "range", "i", 9, (MEMBER,)),
            "0003 0008 636f6e73756d6572 00000004 0005 72616e6765 0001 69 0000000000000009 00000001"
            "0001 69 ffff 0001 63 0002 2f68 0000ea60 00002710 00000001 73 00000002 6173",
        ),
        (
            GroupMetadata("", 1, None, None, 9),
            "0003 0000 00000001 ffff ffff 0000000000000009 00000000",
        ),
    ],
)
def test_keys_and_values_have_the_versions_and_fields_of_apache_kafka(
    record: OffsetKey | GroupKey | CommittedOffset | GroupMetadata, encoded: str
) -> None:
    assert record.encode() == bytes.fromhex(encoded)


def test_keys_of_earlier_versions_are_read_and_those_of_newer_kinds_skipped() -> None:
    assert decode_key(bytes.fromhex("0002 0001 67")) == GroupKey("g")
    assert decode_key(bytes.fromhex("0000 0001 67 0001 74 00000007")) == OffsetKey("g", "t", 7)
    assert decode_key(bytes.fromhex("0009 0001 67")) is None


@pytest.mark.parametrize(
    "encoded",
    [
        "0000 0000000000000005 0001 6d 0000000000000009",
        "0002 0000000000000005 0001 6d 0000000000000009",
        "0004 0000000000000005 ffffffff 02 6d 0000000000000009 00",
    ],
    ids=["version 0", "version 2", "version 4"],
)
def test_offsets_of_other_versions_are_read(encoded: str) -> None:
    assert CommittedOffset.decode(bytes.fromhex(encoded)) == CommittedOffset(5, -1, "m", 9)


def test_the_topic_id_is_a_header_and_not_that_of_another_cluster() -> None:
    """Apache Kafka 4.4 writes its own into each value. Topics that were moved from there have others here."""
    value = CommittedOffset(5, 2, "m", 9, topic_id=TOPIC_ID)
    assert value.headers == ((TOPIC_ID_HEADER, TOPIC_ID.bytes),)
    assert CommittedOffset.decode(value.encode(), TOPIC_ID.bytes) == value
    tagged = bytes.fromhex("0004 0000000000000005 00000002 02 6d 0000000000000009 01 00 10") + TOPIC_ID.bytes
    assert CommittedOffset.decode(tagged) == replace(value, topic_id=None)


def test_a_group_of_version_0_has_one_timeout_and_no_time() -> None:
    encoded = bytes.fromhex(
        "0000 0008 636f6e73756d6572 00000004 0005 72616e6765 0001 69 00000001"
        "0001 69 0001 63 0002 2f68 00002710 00000001 73 00000002 6173"
    )
    member = replace(MEMBER, rebalance_timeout_ms=10_000)
    assert GroupMetadata.decode(encoded) == GroupMetadata("consumer", 4, "range", "i", -1, (member,))


@given(TEXT, TEXT, INT32)
def test_every_offset_key_comes_back(group: str, topic: str, partition: int) -> None:
    key = OffsetKey(group, topic, partition)
    assert decode_key(key.encode()) == key


@given(TEXT, INT32, st.none() | TEXT, st.none() | TEXT, INT64, st.lists(MEMBERS, max_size=4).map(tuple))
def test_every_group_comes_back(
    protocol_type: str,
    generation: int,
    protocol: str | None,
    leader: str | None,
    state_ms: int,
    members: tuple[MemberMetadata, ...],
) -> None:
    group = GroupMetadata(protocol_type, generation, protocol, leader, state_ms, members)
    assert GroupMetadata.decode(group.encode()) == group


@given(INT64, INT32, TEXT, INT64, st.none() | st.integers(0, 2**63 - 1))
def test_every_offset_comes_back(
    offset: int, epoch: int, metadata: str, commit_ms: int, expire_ms: int | None
) -> None:
    value = CommittedOffset(offset, epoch if expire_ms is None else -1, metadata, commit_ms, expire_ms)
    assert CommittedOffset.decode(value.encode()) == value


@given(st.binary(max_size=60), st.integers(0, 4), st.binary(max_size=60))
def test_bytes_that_are_no_record_harm_nothing(key: bytes, version: int, value: bytes) -> None:
    loaded = LoadedGroups()
    for each in (key, bytes((0, version)) + key):
        for content in (None, value, bytes((0, version)) + value):
            loaded.take(Record(7, 0, each, content))
            with suppress(NewerFormat):
                loaded.decode()
    assert set(loaded.unreadable) <= {7}


def test_of_several_records_the_last_one_counts_and_a_tombstone_takes_away() -> None:
    loaded = LoadedGroups()

    def take(key: OffsetKey | GroupKey, value: CommittedOffset | GroupMetadata | None) -> None:
        encoded = None if value is None else value.encode()
        headers = value.headers if isinstance(value, CommittedOffset) else ()
        loaded.take(Record(0, 0, key.encode(), encoded, headers))

    group = GroupMetadata("consumer", 1, None, None, 9)
    first, second = CommittedOffset(1, 0, "", 5, topic_id=TOPIC_ID), CommittedOffset(2, 0, "", 6)
    take(OffsetKey("g", "t", 0), first)
    take(OffsetKey("g", "t", 0), second)
    take(OffsetKey("g", "t", 1), first)
    take(GroupKey("g"), group)
    assert deepcopy(loaded).decode()["g"].offsets == {("t", 0): (second, 0), ("t", 1): (first, 0)}
    assert deepcopy(loaded).decode()["g"].metadata == group
    take(GroupKey("g"), None)
    take(OffsetKey("g", "t", 0), None)
    assert deepcopy(loaded).decode()["g"].offsets == {("t", 1): (first, 0)}
    assert deepcopy(loaded).decode()["g"].metadata is None
    take(OffsetKey("g", "t", 1), None)
    take(OffsetKey("other", "t", 1), None)
    assert (deepcopy(loaded).decode(), loaded.unreadable) == ({}, [])


def test_a_value_of_a_later_version_stops_the_load() -> None:
    """R44, R15: without it a consumer would begin elsewhere."""
    loaded = LoadedGroups()
    loaded.take(Record(7, 0, OffsetKey("g", "t", 0).encode(), b"\0\5newer", ()))
    with pytest.raises(NewerFormat, match="version 5 of a record's value is newer than 4"):
        loaded.decode()


def test_records_of_unknown_kinds_are_left_alone_and_reported() -> None:
    """R44: as in Apache Kafka. Kinds that are known and not read are not worth a line."""
    loaded = LoadedGroups()
    for kind in (4, 16, 17, 99):
        loaded.take(Record(kind, 0, bytes((0, kind)) + b"\0\1g", b"\0\0anything", ()))
    assert loaded.decode() == {}
    assert loaded.unreadable == []
    assert loaded.unknown_kinds == {17, 99}
