"""Records of groups of KIP-848 in `__consumer_offsets`, byte by byte as Apache Kafka writes them (R15).

The bytes of `test_values_are_those_of_apache_kafka` were printed by its own classes (4.1.0).
"""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.group.consumer.records import (
    CURRENT_KEY,
    GROUP_KEY,
    MEMBER_KEY,
    TARGET_EPOCH_KEY,
    TARGET_KEY,
    ClassicProtocols,
    ConsumerGroupKey,
    ConsumerGroupValue,
    ConsumerMemberMetadata,
    CurrentAssignment,
    GroupEpoch,
    MemberState,
    TargetAssignment,
    TargetEpoch,
    decode_value,
)
from mainstem_broker.group.loading import LoadedGroups
from mainstem_broker.group.records import decode_key
from mainstem_broker.protocol.records import Record

TEXT = st.text(max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
PARTITIONS = st.frozensets(st.tuples(st.uuids(), INT32), max_size=5)
VALUES: dict[int, st.SearchStrategy[ConsumerGroupValue]] = {
    GROUP_KEY: st.builds(GroupEpoch, INT32, st.integers(-(2**63), 2**63 - 1)),
    MEMBER_KEY: st.builds(
        ConsumerMemberMetadata,
        st.none() | TEXT,
        st.none() | TEXT,
        TEXT,
        TEXT,
        st.lists(TEXT, max_size=3).map(tuple),
        st.none() | TEXT,
        INT32,
        st.none() | TEXT,
        st.none()
        | st.builds(
            ClassicProtocols, INT32, st.lists(st.tuples(TEXT, st.binary(max_size=9)), max_size=3).map(tuple)
        ),
    ),
    TARGET_EPOCH_KEY: st.builds(TargetEpoch, INT32),
    TARGET_KEY: st.builds(TargetAssignment, PARTITIONS),
    CURRENT_KEY: st.builds(
        CurrentAssignment, INT32, INT32, st.sampled_from(MemberState), PARTITIONS, PARTITIONS
    ),
}
TOPIC = UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
APACHE_KAFKAS: list[tuple[int, ConsumerGroupValue, str]] = [
    (GROUP_KEY, GroupEpoch(7, 0x1122334455667788), "0000000000070100081122334455667788"),
    (GROUP_KEY, GroupEpoch(7), "00000000000700"),
    (TARGET_EPOCH_KEY, TargetEpoch(6), "00000000000600"),
    (
        TARGET_KEY,
        TargetAssignment(frozenset({(TOPIC, 0), (TOPIC, 3)})),
        "0000020f1e2d3c4b5a69788796a5b4c3d2e1f00300000000000000030000",
    ),
    (
        CURRENT_KEY,
        CurrentAssignment(
            5, 4, MemberState.UNREVOKED_PARTITIONS, frozenset({(TOPIC, 1)}), frozenset({(TOPIC, 2)})
        ),
        "0000000000050000000402020f1e2d3c4b5a69788796a5b4c3d2e1f0020000000100020f1e2d3c4b"
        "5a69788796a5b4c3d2e1f002000000020000",
    ),
    (
        MEMBER_KEY,
        ConsumerMemberMetadata("i", None, "c", "/h", ("t", "u"), "t.*", 1000, "range"),
        "00000269000263032f68030274027504742e2a000003e80672616e676500",
    ),
    (
        MEMBER_KEY,
        ConsumerMemberMetadata(
            None, "r", "c", "/h", ("t",), None, 1000, None, ClassicProtocols(9, (("range", b"\1\2"),))
        ),
        "00000002720263032f6802027400000003e8000100110100000009020672616e67650301020000",
    ),
]


@pytest.mark.parametrize(("kind", "value", "encoded"), APACHE_KAFKAS)
def test_values_are_those_of_apache_kafka(kind: int, value: ConsumerGroupValue, encoded: str) -> None:
    assert value.encode() == bytes.fromhex(encoded)
    assert decode_value(ConsumerGroupKey(kind, "g", "m"), bytes.fromhex(encoded)) == value


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_every_value_is_read_as_it_was_written(kind: int, data: st.DataObject) -> None:
    value = data.draw(VALUES[kind])
    key = ConsumerGroupKey(kind, "g", "m" if kind in (MEMBER_KEY, TARGET_KEY, CURRENT_KEY) else "")
    assert decode_key(key.encode()) == key
    assert decode_value(key, value.encode()) == value


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_a_value_that_is_cut_short_or_spoilt_is_refused_or_read(kind: int, data: st.DataObject) -> None:
    encoded = bytearray(data.draw(VALUES[kind]).encode())
    cut = data.draw(st.integers(0, len(encoded)))
    if cut < len(encoded):
        encoded[cut] ^= data.draw(st.integers(1, 255))
    for spoilt in (bytes(encoded), bytes(encoded[:cut])):
        try:
            decode_value(ConsumerGroupKey(kind, "g", "m"), spoilt)
        except ValueError:
            pass


def test_keys_are_the_kind_the_group_and_the_member() -> None:
    assert ConsumerGroupKey(GROUP_KEY, "g").encode() == bytes.fromhex("0003 0001 67")
    assert ConsumerGroupKey(CURRENT_KEY, "g", "m").encode() == bytes.fromhex("0008 0001 67 0001 6d")


def test_the_last_record_of_each_key_counts_and_spoilt_ones_do_not() -> None:
    loaded = LoadedGroups()
    group, member = ConsumerGroupKey(GROUP_KEY, "g"), ConsumerGroupKey(TARGET_KEY, "g", "m")
    for offset, (key, value) in enumerate(
        [
            (group, GroupEpoch(1).encode()),
            (member, TargetAssignment(frozenset()).encode()),
            (group, GroupEpoch(2).encode()),
            (member, None),
            (ConsumerGroupKey(CURRENT_KEY, "g", "m"), b"\0\0\1"),
        ]
    ):
        loaded.take(Record(offset, 0, key.encode(), value, ()))
    assert loaded.decode()["g"].consumer_records == {group: GroupEpoch(2)}
    assert loaded.unreadable == [4]
