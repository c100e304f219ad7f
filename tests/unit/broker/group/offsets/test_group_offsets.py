"""Committed offsets of one group: whose they are, and how long they are kept (R15)."""

from __future__ import annotations

from uuid import UUID

from mainstem_broker.group.offsets.group_offsets import GroupOffsets
from mainstem_broker.group.offsets.records import CommittedOffset

OLD, NEW = UUID(int=1), UUID(int=2)
WEEK_MS = 7 * 86_400_000


def offsets(**commit_ms: int) -> GroupOffsets:
    """One partition of each of these topics, committed then."""
    made = GroupOffsets()
    for topic, at_ms in commit_ms.items():
        made.put((topic, 0), CommittedOffset(1, 0, "", at_ms, topic_id=OLD), 0)
    return made


def test_a_topic_that_was_deleted_and_made_again_has_no_committed_offsets() -> None:
    committed = offsets(t=5)
    assert committed.offset_for(("t", 0), OLD) is not None
    assert committed.offset_for(("t", 0), NEW) is None
    assert committed.offset_for(("t", 0), None) is None


def test_an_offset_of_which_the_topics_id_is_not_known_counts_for_the_name() -> None:
    committed = GroupOffsets()
    committed.put(("t", 0), CommittedOffset(1, 0, "", 5), 0)
    assert committed.offset_for(("t", 0), NEW) is not None


def test_the_offsets_of_a_deleted_topic_are_found() -> None:
    committed = offsets(t=5)
    assert committed.of_topics({OLD}) == [("t", 0)]
    assert committed.of_topics({NEW}) == []


def test_offsets_expire_after_the_retention_time_from_the_last_commit() -> None:
    committed = offsets(early=0, late=1)
    for now_ms, expired in (
        (WEEK_MS - 1, []),
        (WEEK_MS, [("early", 0)]),
        (WEEK_MS + 1, [("early", 0), ("late", 0)]),
    ):
        assert (
            committed.expired(
                committed, now_ms=now_ms, retention_ms=WEEK_MS, empty_since_ms=None, in_use=frozenset()
            )
            == expired
        )


def test_offsets_of_a_group_that_had_members_expire_from_when_the_last_one_left() -> None:
    committed = offsets(t=0)
    for now_ms, count in ((WEEK_MS + 99, 0), (WEEK_MS + 100, 1)):
        expired = committed.expired(
            committed, now_ms=now_ms, retention_ms=WEEK_MS, empty_since_ms=100, in_use=frozenset()
        )
        assert len(expired) == count


def test_offsets_that_were_reset_while_nobody_was_there_are_kept_from_then_on() -> None:
    committed = offsets(t=500)
    expired = committed.expired(
        committed, now_ms=WEEK_MS + 100, retention_ms=WEEK_MS, empty_since_ms=100, in_use=frozenset()
    )
    assert expired == []


def test_offsets_of_topics_that_members_read_do_not_expire_kip_211() -> None:
    committed = offsets(read=0, left=0)
    expired = committed.expired(
        committed, now_ms=2 * WEEK_MS, retention_ms=WEEK_MS, empty_since_ms=None, in_use={"read"}
    )
    assert expired == [("left", 0)]


def test_nothing_expires_while_it_is_not_known_what_members_read() -> None:
    committed = offsets(t=0)
    expired = committed.expired(
        committed, now_ms=2 * WEEK_MS, retention_ms=1, empty_since_ms=None, in_use=None
    )
    assert expired == []


def test_only_offsets_that_are_asked_about_and_still_there_expire() -> None:
    committed = offsets(t=0, u=0)
    expired = committed.expired(
        [("t", 0), ("gone", 0)], now_ms=2 * WEEK_MS, retention_ms=1, empty_since_ms=None, in_use=frozenset()
    )
    assert expired == [("t", 0)]


def test_an_expiry_that_the_client_asked_for_comes_first() -> None:
    committed = GroupOffsets()
    committed.put(("t", 0), CommittedOffset(1, -1, "", 0, expire_ms=50), 0)
    for now_ms, count in ((49, 0), (50, 1)):
        expired = committed.expired(
            committed, now_ms=now_ms, retention_ms=WEEK_MS, empty_since_ms=None, in_use=frozenset()
        )
        assert len(expired) == count
