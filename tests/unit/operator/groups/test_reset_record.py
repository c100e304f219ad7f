"""What is stored next to a group's offsets of the resets that have been carried out (R26)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem_operator.groups.reset_record import PIECE_CHARACTERS, ResetRecord, pieces_of, record_in

NAMES = st.text(min_size=1, max_size=40)
UNDO = st.lists(
    st.tuples(NAMES, st.integers(0, 99), st.none() | st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
    max_size=300,
).map(tuple)


@given(requests=st.lists(NAMES, max_size=30), undo=UNDO, left=st.integers(0, 50))
def test_a_record_is_read_as_it_was_written_whatever_an_older_one_left_behind(
    requests: list[str], undo: tuple[tuple[str, int, int | None, int], ...], left: int
) -> None:
    record = ResetRecord()
    for request in requests:
        record = record.with_completed(request, undo)
    pieces = pieces_of(record, 100)
    assert all(len(piece) <= PIECE_CHARACTERS and piece.isascii() for piece in pieces)
    old = dict.fromkeys(range(left), "what an older record left")
    result = record_in({**old, **dict(enumerate(pieces))})
    assert result == record
    assert all(result.has(request) for request in requests)
    assert not result.has("another")


def test_where_the_changes_do_not_fit_the_requests_are_still_recorded() -> None:
    undo = tuple(("clicks", partition, 1, 2) for partition in range(1000))
    pieces = pieces_of(ResetRecord().with_completed("r1", undo), 1)
    assert len(pieces) == 1
    assert record_in(dict(enumerate(pieces))).has("r1")
    assert record_in(dict(enumerate(pieces))).undo == ()


def test_two_hundred_requests_fit_into_one_piece() -> None:
    record = ResetRecord()
    for number in range(300):
        record = record.with_completed(f"request {number}", ())
    assert len(pieces_of(record, 50)) <= 2
    assert record.has("request 299")
    assert record.has("request 100")
    assert not record.has("request 99")


def test_the_oldest_requests_are_dropped_where_there_are_not_enough_pieces() -> None:
    record = ResetRecord()
    for number in range(300):
        record = record.with_completed(f"request {number}", (("clicks", 0, 1, 2),))
    pieces = pieces_of(record, 1)
    assert [len(piece) <= PIECE_CHARACTERS for piece in pieces] == [True]
    stored = record_in(dict(enumerate(pieces)))
    assert stored.done == record.done[-len(stored.done) :]
    assert len(stored.done) > 190


def test_metadata_that_is_no_record_is_an_empty_one() -> None:
    for text in ("", "{}", "mine", '{"pieces": 1, "done": 7}', '{"pieces": 1}', '{"pieces": 3, "done": ['):
        assert record_in({0: text}) == ResetRecord()
