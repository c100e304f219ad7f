"""What producers post, and how posts are combined (R32)."""

from __future__ import annotations

import random

import pytest

from mainstem.audit.counts import CountKey, ProducerCounts, combined, from_record, to_record, window_of

KEY = CountKey("web/1", "clicks", 600_000)


def test_a_window_has_ten_minutes_and_begins_at_a_multiple_of_them() -> None:
    assert [window_of(time_ms) for time_ms in (0, 599_999, 600_000, 1_199_999)] == [0, 0, 600_000, 600_000]


def test_a_post_survives_its_record() -> None:
    counts = ProducerCounts(10, 8, 1, 77)
    assert from_record(*to_record(KEY, counts)) == (KEY, counts)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"{}", None),
        (b"[]", b"[]"),
        (
            to_record(KEY, ProducerCounts())[0],
            b'{"produced": -1, "delivered": 0, "failed": 0, "posted_ms": 0}',
        ),
        (
            to_record(KEY, ProducerCounts())[0],
            b'{"produced": "9", "delivered": 0, "failed": 0, "posted_ms": 0}',
        ),
        (b'{"producer": 5, "topic": "t", "window_ms": 0}', to_record(KEY, ProducerCounts())[1]),
        (b"\xff", b"\xff"),
    ],
)
def test_what_is_not_a_post_is_left_out(key: bytes | None, value: bytes | None) -> None:
    assert from_record(key, value) is None


def test_late_and_repeated_counts_change_nothing() -> None:
    """Counts are cumulative, so the maximum is the newest, in whatever order posts arrive."""
    posts = [(KEY, ProducerCounts(sent, max(sent - 3, 0), sent // 10, sent)) for sent in range(50)]
    expected = {KEY: ProducerCounts(49, 46, 4, 49)}
    for seed in range(20):
        shuffled = posts * 2
        random.Random(seed).shuffle(shuffled)
        assert combined(shuffled) == expected
    assert combined([*posts, (CountKey("web/2", "clicks", 600_000), ProducerCounts(1))])[KEY] == expected[KEY]
