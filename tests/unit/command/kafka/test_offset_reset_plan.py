"""What resetting a group's offsets would change (R15), and the file of offsets."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mainstem.errors import BadInput
from mainstem.kafka.offset_reset_plan import (
    AsCommitted,
    Bounds,
    Change,
    Listed,
    Shift,
    Target,
    csv_of,
    offsets_in,
    parse_topic_choice,
    plan_reset,
)
from mainstem.kafka.start_point import Kind, StartPoint

TWO = {("clicks", 0): Bounds(100, 200, at_time=150), ("clicks", 1): Bounds(0, 50)}
COMMITTED = {("clicks", 0): 180, ("clicks", 1): 20}


@pytest.mark.parametrize(
    ("target", "after"),
    [
        (StartPoint(Kind.BEGINNING), [100, 0]),
        (StartPoint(Kind.END), [200, 50]),
        (StartPoint(Kind.OFFSET, 40), [100, 40]),
        (StartPoint(Kind.OFFSET, 120), [120, 50]),
        (StartPoint(Kind.LAST, 10), [190, 40]),
        (StartPoint(Kind.TIME, 1_769_853_600_000), [150, 50]),
        (Shift(15), [195, 35]),
        (Shift(-30), [150, 0]),
        (Shift(1_000), [200, 50]),
        (AsCommitted(), [180, 20]),
        (Listed({("clicks", 0): 111, ("clicks", 1): 11}), [111, 11]),
    ],
    ids=str,
)
def test_each_way_says_where_every_partition_goes_on(target: Target, after: list[int]) -> None:
    changes = plan_reset(target, TWO, COMMITTED)
    assert [change.after for change in changes] == after
    assert [change.before for change in changes] == [180, 20]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (201, r"^Offset 201 lies beyond the end of every partition \(200\)\.$"),
        (1_769_853_600, r" If it is a time, write 2026-01-31T10:00:00\.000Z\.$"),
        (1_769_853_600_123, r" If it is a time, write 2026-01-31T10:00:00\.123Z\.$"),
    ],
)
def test_an_offset_beyond_every_end_is_refused(number: int, message: str) -> None:
    """R15. The group would skip all records that it has not read, which is what `latest` is for."""
    with pytest.raises(BadInput, match=message):
        plan_reset(StartPoint(Kind.OFFSET, number), TWO, COMMITTED)
    with pytest.raises(BadInput, match=r"lies beyond its end \(50\)"):
        plan_reset(StartPoint(Kind.OFFSET, number), {("clicks", 1): Bounds(0, 50)}, COMMITTED)


def test_a_time_after_the_last_record_is_the_end_and_no_clamp() -> None:
    _, second = plan_reset(StartPoint(Kind.TIME, 1), TWO, {})
    assert (second.after, second.clamped) == (50, False)


def test_what_a_file_does_not_name_stays_as_it_is() -> None:
    assert [change.partition for change in plan_reset(Listed({("clicks", 1): 3}), TWO, COMMITTED)] == [1]


def test_what_was_never_committed_has_no_current_offset_and_cannot_be_shifted() -> None:
    committed = {("clicks", 0): 180}
    assert [change.partition for change in plan_reset(AsCommitted(), TWO, committed)] == [0]
    with pytest.raises(BadInput, match="Nothing is committed for partition 1 of clicks"):
        plan_reset(Shift(-1), TWO, committed)


_PARTITIONS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b.c", "d_e-f"]), st.integers(0, 9)),
    st.builds(
        lambda earliest, size: Bounds(earliest, earliest + size, earliest + size // 2),
        st.integers(0, 2**40),
        st.integers(0, 2**40),
    ),
)
_TARGETS = st.one_of(
    st.builds(StartPoint, st.sampled_from(Kind), st.integers(0, 2**50)),
    st.builds(Shift, st.integers(-(2**50), 2**50)),
)


@given(_PARTITIONS, _TARGETS)
def test_every_planned_offset_lies_in_the_partition(
    bounds: dict[tuple[str, int], Bounds], target: Target
) -> None:
    committed = {key: held.earliest for key, held in bounds.items()}
    if isinstance(target, StartPoint) and target.kind is Kind.OFFSET:
        assume(any(target.number <= held.latest for held in bounds.values()))
    changes = plan_reset(target, bounds, committed)
    assert [(change.topic, change.partition) for change in changes] == sorted(bounds)
    for change in changes:
        held = bounds[change.topic, change.partition]
        assert held.earliest <= change.after <= held.latest
        assert change.clamped == (not held.earliest <= change.requested <= held.latest)


@given(_PARTITIONS)
def test_a_plan_that_is_exported_is_the_plan_that_is_read(bounds: dict[tuple[str, int], Bounds]) -> None:
    changes = plan_reset(StartPoint(Kind.END), bounds, {})
    if not changes:
        return
    offsets = offsets_in(csv_of(changes), "any")
    assert plan_reset(Listed(offsets), bounds, {}) == changes


def test_an_export_is_the_one_that_kafkas_tool_writes() -> None:
    changes = [Change("clicks", 0, 3, 5, 5, 9), Change("clicks", 10, None, 0, 0, 0)]
    assert csv_of(changes) == "clicks,0,5\nclicks,10,0\n"


def test_a_file_of_several_groups_gives_this_groups_offsets() -> None:
    text = "one,clicks,0,5\r\ntwo,clicks,0,7\r\n\r\none,clicks,1,6\r\n"
    assert offsets_in(text, "one") == {("clicks", 0): 5, ("clicks", 1): 6}
    assert offsets_in('"a, b",clicks,0,5\n', "a, b") == {("clicks", 0): 5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clicks,0\n", "line 1 is 'clicks,0', where topic,partition,offset should be"),
        ("clicks,0,1\nclicks,0,x\n", "line 2 is"),
        ("clicks,0,-1\n", "line 1 is"),
        ("clicks,0,1\nclicks,0,2\n", "line 2 names partition 0 of clicks a second time"),
        ("", "there are no offsets of group g in it"),
        ("other,clicks,0,1\n", "there are no offsets of group g in it"),
    ],
)
def test_a_file_of_another_form_is_refused_with_the_line(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        offsets_in(text, "g")


@pytest.mark.parametrize(
    ("text", "choice"),
    [("clicks", ("clicks", None)), ("clicks:0", ("clicks", [0])), ("a.b:3, 1,3", ("a.b", [1, 3]))],
)
def test_a_topic_or_some_of_its_partitions_are_chosen(
    text: str, choice: tuple[str, list[int] | None]
) -> None:
    assert parse_topic_choice(text) == choice


@pytest.mark.parametrize("text", ["", ":1", "clicks:", "clicks:a", "clicks:1,,2", "clicks:-1", "clicks:²"])
def test_a_choice_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--topic takes a topic"):
        parse_topic_choice(text)
