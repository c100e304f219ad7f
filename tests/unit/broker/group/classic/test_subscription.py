"""What a member's metadata says of its topics; whatever else it is harms nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.group.classic.played_group import PlayedGroup

from mainstem_broker.group.classic.subscription import subscribed_topics

ONE_TOPIC = bytes.fromhex("0001 00000001 0001 74 ffffffff 00000000")
TWO_TOPICS = bytes.fromhex("0003 00000002 0001 74 0002 c3a9 00000000 00000000 ffffffff ffff")


def test_topics_are_read_from_the_metadata_of_every_version() -> None:
    assert subscribed_topics(ONE_TOPIC) == frozenset({"t"})
    assert subscribed_topics(TWO_TOPICS) == frozenset({"t", "é"})


@given(st.binary(max_size=50))
def test_other_bytes_are_no_subscription_or_some(metadata: bytes) -> None:
    topics = subscribed_topics(metadata)
    assert topics is None or isinstance(topics, frozenset)


@given(st.integers(0, len(TWO_TOPICS) - 1))
def test_a_subscription_that_is_cut_is_none_or_whole(length: int) -> None:
    assert subscribed_topics(TWO_TOPICS[:length]) in (None, frozenset({"t", "é"}))


def test_a_group_reads_what_any_of_its_members_read() -> None:
    played = PlayedGroup(initial_delay_ms=10)
    assert played.group.topics_in_use() == frozenset()
    numbers = [played.join(protocols=(("range", metadata),)) for metadata in (ONE_TOPIC, TWO_TOPICS)]
    assert played.group.topics_in_use() is None
    played.pass_time(100)
    played.sync_all([played.joined(number).member_id for number in numbers])
    assert played.group.topics_in_use() == frozenset({"t", "é"})


def test_it_is_not_known_what_members_read_that_say_something_else(played: PlayedGroup) -> None:
    played.stable(1)
    assert played.group.topics_in_use() is None


def test_it_is_not_known_what_members_of_other_kinds_read(played: PlayedGroup) -> None:
    member = played.joined(played.join(protocol_type="connect", protocols=(("v1", ONE_TOPIC),))).member_id
    played.sync(member)
    assert played.group.topics_in_use() is None
