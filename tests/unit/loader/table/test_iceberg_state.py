"""What an Iceberg table remembers of loads is that of its rows, or nobody guesses (R29)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_loader.errors import WarehouseError
from mainstem_loader.table.formats import DELIVERED_RUNS
from mainstem_loader.table.iceberg_state import (
    ACCEPTED,
    STATE,
    Ancestor,
    LoadState,
    current_state,
    run_of_text,
    text_of_run,
)

ONE, OTHER = "wq6hGbKHTIWkQ8poXwsdww", "0Vn4zLQpT9G1s3eYJx7b2A"
OFFSET = f"{ONE}/0"

names = st.one_of(
    st.builds("{}/{}".format, st.sampled_from([ONE, OTHER]), st.integers(0, 40)),
    st.sampled_from(["mainstem/dead-letters", DELIVERED_RUNS, "mainstem/swept", "mainstem/rewrites"]),
)
counters = st.dictionaries(names, st.integers(0, 2**62))


@given(counters, counters, st.one_of(st.none(), st.integers(0, 2**40)))
def test_a_state_is_read_as_it_was_written(
    values: dict[str, int], restored: dict[str, int], rows: int | None
) -> None:
    state = LoadState(values, [{"run": 3, "files": []}], restored, rows)
    assert LoadState.of_text(state.text()) == state


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"offsets": 3}', "null", "nonsense"])
def test_what_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        LoadState.of_text(text)


def test_a_run_is_read_as_it_was_written_but_for_what_the_state_has() -> None:
    moved = {"partition": 1, "start": 3, "end": 9, "read": 6, "loaded": 5, "dead": 1}
    idle = {"partition": 0, "start": 3, "end": 3, "read": 0, "loaded": 0, "dead": 0}
    run = {"run": "a", "topic": "t", "topicId": ONE, "ranges": [idle, moved], "gaps": []}
    text = text_of_run({**run, "deadLetters": {"run": 1, "files": []}})
    assert run_of_text(text) == {**run, "ranges": [moved]}
    for changed in ("", "[]", "{}", '{"run": "a", "ranges": [[1]]}', '{"run": "a", "ranges": 1}'):
        assert run_of_text(changed) == {}


def test_letters_stay_until_they_are_delivered() -> None:
    first = LoadState().after({OFFSET: 1}, {"run": 4}, 1)
    second = first.after({OFFSET: 2}, {"run": 7}, 2)
    assert [one["run"] for one in second.letters] == [4, 7]
    assert [one["run"] for one in second.after({DELIVERED_RUNS: 4}, None, 2).letters] == [7]
    assert second.after({DELIVERED_RUNS: 7}, None, 2).letters == []


def chain(*states: LoadState | None) -> tuple[Ancestor, dict[int, Ancestor]]:
    """Snapshots from the first to the current one; None is a commit of others."""
    snapshots = {
        number: Ancestor(number, number - 1 or None, None if state is None else state.text())
        for number, state in enumerate(states, 1)
    }
    return snapshots[len(states)], snapshots


LOADED = LoadState({OFFSET: 5}, rows=5)
BEFORE = LoadState({OFFSET: 3}, rows=3)


def test_the_state_is_that_of_the_nearest_ancestor() -> None:
    head, snapshots = chain(BEFORE, LOADED, None, None)
    found = current_state("t", head, snapshots, {STATE: LOADED.text()}, 99, True)
    assert (found.counters, found.restored) == ({OFFSET: 5}, {})


def test_a_restored_snapshot_has_its_own_offsets_and_remembers_those_of_before() -> None:
    head, snapshots = chain(BEFORE)
    found = current_state("t", head, snapshots, {STATE: LOADED.text()}, 3, True)
    assert (found.counters, found.restored) == ({OFFSET: 3}, {OFFSET: 5})
    # Until the offsets are passed again, also when the next snapshot is restored, too.
    assert found.after({OFFSET: 4}, None, 4).restored == {OFFSET: 5}
    assert found.after({OFFSET: 5}, None, 5).restored == {}


def test_when_others_expired_the_last_load_the_property_stands_in_for_as_many_rows() -> None:
    head, snapshots = chain(LOADED, None, None)
    expired = {number: snapshot for number, snapshot in snapshots.items() if number == 3}
    found = current_state("t", head, expired, {STATE: LOADED.text()}, 5, True)
    assert found.counters == {OFFSET: 5}
    with pytest.raises(WarehouseError, match=r"there are 4 rows, and after the last load there were 5"):
        current_state("t", head, expired, {STATE: LOADED.text()}, 4, True)
    with pytest.raises(WarehouseError, match="there are None rows"):
        current_state("t", head, expired, {STATE: LOADED.text()}, None, True)
    properties = {STATE: LOADED.text(), ACCEPTED: "3"}
    assert current_state("t", head, expired, properties, 4, True).counters == {OFFSET: 5}
    with pytest.raises(WarehouseError):
        current_state("t", head, expired, {**properties, ACCEPTED: "2"}, 4, True)


def test_a_table_that_was_emptied_by_replacing_it_is_refused() -> None:
    with pytest.raises(WarehouseError, match="nobody can tell"):
        current_state("t", None, {}, {STATE: LOADED.text()}, 0, True)


def test_a_table_without_loads_has_no_offsets() -> None:
    assert current_state("t", None, {}, {}, 0, True) == LoadState()
    head, snapshots = chain(None)
    assert current_state("t", head, snapshots, {}, 9, False) == LoadState()


def test_rows_of_a_load_that_the_table_has_forgotten_are_refused() -> None:
    head, snapshots = chain(None)
    with pytest.raises(WarehouseError, match="no longer says of which offsets"):
        current_state("t", head, snapshots, {}, 9, True)


def test_a_state_that_somebody_has_edited_is_refused() -> None:
    head, snapshots = chain(LOADED)
    state = json.loads(LOADED.text())
    state["offsets"] = {ONE: ["five"]}
    with pytest.raises(WarehouseError, match="somebody has changed it"):
        current_state("t", head, snapshots, {STATE: json.dumps(state)}, 5, True)
