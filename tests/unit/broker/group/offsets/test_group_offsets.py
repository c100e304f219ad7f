"""Committed offsets of one group: whose they are, and how long they are kept (R15)."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest

from mainstem_broker.group.offsets.group_offsets import GroupOffsets
from mainstem_broker.group.offsets.records import CommittedOffset

OLD, NEW = UUID(int=1), UUID(int=2)
WEEK_MS = 7 * 86_400_000


def offsets(commit_ms: Mapping[str, int], topic_id: UUID | None = OLD) -> GroupOffsets:
    """One partition of each of these topics, committed then."""
    made = GroupOffsets()
    for topic, at_ms in commit_ms.items():
        made.put((topic, 0), CommittedOffset(1, 0, "", at_ms, topic_id=topic_id), 0)
    return made


def test_an_offset_belongs_to_the_topic_with_its_id() -> None:
    committed = offsets({"t": 5})
    counts = [committed.offset_for(("t", 0), topic_id) is not None for topic_id in (OLD, NEW, None)]
    assert counts == [True, False, False]
    assert committed.of_topics([("t", OLD)]) == [("t", 0)]
    assert committed.of_topics([("t", NEW), ("other", OLD)]) == []


def test_an_offset_without_an_id_belongs_to_the_topic_of_its_name() -> None:
    """Apache Kafka wrote it, for a topic with another id (R9)."""
    committed = offsets({"t": 5, "u": 5}, topic_id=None)
    assert committed.offset_for(("t", 0), NEW) is not None
    assert committed.of_topics([("t", None)]) == [("t", 0)]


@pytest.mark.parametrize(
    ("commit_ms", "now_ms", "empty_since_ms", "in_use", "expired"),
    [
        pytest.param({"a": 0, "b": 1}, WEEK_MS - 1, None, (), "", id="within the retention time"),
        pytest.param({"a": 0, "b": 1}, WEEK_MS, None, (), "a", id="from the commit"),
        pytest.param({"a": 0, "b": 1}, WEEK_MS + 1, None, (), "ab", id="each from its own commit"),
        pytest.param({"a": 0}, WEEK_MS + 99, 100, (), "", id="within the time after the last member left"),
        pytest.param({"a": 0}, WEEK_MS + 100, 100, (), "a", id="from when the last member left"),
        pytest.param({"a": 500}, WEEK_MS + 100, 100, (), "", id="reset while nobody was there"),
        pytest.param({"a": 0, "b": 0}, 2 * WEEK_MS, None, ("a",), "b", id="members read one (KIP-211)"),
        pytest.param({"a": 0}, 2 * WEEK_MS, None, None, "", id="not known what members read"),
    ],
)
def test_offsets_expire_after_the_retention_time_from_the_commit_or_the_last_member(
    commit_ms: dict[str, int],
    now_ms: int,
    empty_since_ms: int | None,
    in_use: tuple[str, ...] | None,
    expired: str,
) -> None:
    committed = offsets(commit_ms)
    result = committed.expired(
        committed, now_ms=now_ms, retention_ms=WEEK_MS, empty_since_ms=empty_since_ms, in_use=in_use
    )
    assert result == [(topic, 0) for topic in expired]


def test_only_offsets_that_are_asked_about_and_still_there_expire() -> None:
    committed = offsets({"t": 0, "u": 0})
    expired = committed.expired(
        [("t", 0), ("gone", 0)], now_ms=2 * WEEK_MS, retention_ms=1, empty_since_ms=None, in_use=()
    )
    assert expired == [("t", 0)]


@pytest.mark.parametrize(("now_ms", "is_expired"), [(49, False), (50, True)])
def test_an_expiry_that_the_client_asked_for_comes_first(now_ms: int, is_expired: bool) -> None:
    committed = GroupOffsets()
    committed.put(("t", 0), CommittedOffset(1, -1, "", 0, expire_ms=50), 0)
    expired = committed.expired(
        committed, now_ms=now_ms, retention_ms=WEEK_MS, empty_since_ms=None, in_use=()
    )
    assert bool(expired) == is_expired
