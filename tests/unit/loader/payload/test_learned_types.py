"""Rows of a table whose columns get the types that a later load has shown (R30)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mainstem_loader.payload.learned_types import with_learned_types

STRINGS = pa.list_(pa.string())
NUMBER = pa.struct([("n", pa.int64())])


def adapted(learned: dict[str, pa.DataType], **columns: Any) -> list[dict[str, Any]]:
    return with_learned_types(pa.table(columns), learned).to_pylist()


def test_values_move_from_the_rest_to_their_column_and_others_stay() -> None:
    rest = pa.array(['{"tags":[]}', None, '{"x":"y"}', '{"x":"y","tags":["a"]}', '{"tags":[]}'])
    assert adapted({"tags": STRINGS}, n=pa.array([1, 2, 3, 4, 5]), _rest=rest) == [
        {"n": 1, "_rest": None, "tags": []},
        {"n": 2, "_rest": None, "tags": None},
        {"n": 3, "_rest": '{"x":"y"}', "tags": None},
        {"n": 4, "_rest": '{"x":"y"}', "tags": ["a"]},
        {"n": 5, "_rest": None, "tags": []},
    ]


@pytest.mark.parametrize(
    "text",
    ['{"tags":"a"}', '{"tags":[[1]]}', '{"tags":["a",1]}', "{}", '{"Tags":[]}', '{"other":{"tags":[]}}'],
)
def test_what_does_not_fit_stays_as_it_was(text: str) -> None:
    assert adapted({"tags": STRINGS}, _rest=pa.array([text])) == [{"_rest": text, "tags": None}]


@pytest.mark.parametrize(
    ("learned", "text", "row"),
    [
        ({"tags": STRINGS}, '{ "t\\u0061gs" : [] }', {"_rest": None, "tags": []}),
        ({"payload_day": STRINGS}, '{"day":[]}', {"_rest": None, "payload_day": []}),
        ({"o": NUMBER}, '{"o":{"n":1,"tags":[]}}', {"_rest": '{"o":{"tags":[]}}', "o": {"n": 1}}),
    ],
    ids=["names are JSON", "a name of every table", "a part without a type"],
)
def test_a_field_finds_its_column(learned: dict[str, pa.DataType], text: str, row: dict[str, Any]) -> None:
    assert adapted(learned, _rest=pa.array([text])) == [row]


def test_parts_are_put_where_they_were() -> None:
    """Into objects, and into items of arrays by their place."""
    whole = pa.struct([("n", pa.int64()), ("tags", STRINGS)])
    rows = adapted(
        {"o": whole, "l": pa.list_(whole)},
        o=pa.array([{"n": 1}, {"n": 2}, None], NUMBER),
        l=pa.array([[{"n": 1}, None, {"n": 3}], [], None], pa.list_(NUMBER)),
        _rest=pa.array(['{"o":{"tags":[]},"l":[null,null,{"tags":[null]}]}', None, '{"o":{"tags":[]}}']),
    )
    assert rows == [
        {
            "o": {"n": 1, "tags": []},
            "l": [{"n": 1, "tags": None}, None, {"n": 3, "tags": [None]}],
            "_rest": None,
        },
        {"o": {"n": 2, "tags": None}, "l": [], "_rest": None},
        {"o": {"n": None, "tags": []}, "l": None, "_rest": None},
    ]


def test_whole_numbers_become_doubles_and_fractions_join_them() -> None:
    assert adapted(
        {"n": pa.float64()}, n=pa.array([1, None, None]), _rest=pa.array([None, '{"n": 9.5}', '{"n":"x"}'])
    ) == [
        {"n": 1.0, "_rest": None},
        {"n": 9.5, "_rest": None},
        {"n": None, "_rest": '{"n":"x"}'},
    ]


def test_no_number_is_rounded() -> None:
    with pytest.raises(pa.ArrowInvalid):
        adapted({"n": pa.float64()}, n=pa.array([2**53 + 1]))
    large = '{"n": 9007199254740993}'
    assert adapted({"n": pa.float64()}, n=pa.array([None], pa.int64()), _rest=pa.array([large])) == [
        {"n": None, "_rest": large}
    ]


def test_values_with_more_than_their_column_stay_whole() -> None:
    text = '{"o":{"n":1,"more":"x"}}'
    assert adapted({"o": NUMBER, "tags": STRINGS}, _rest=pa.array([text, '{"tags":[]}'])) == [
        {"_rest": text, "o": None, "tags": None},
        {"_rest": None, "o": None, "tags": []},
    ]


def test_tables_without_a_rest_get_their_columns() -> None:
    assert adapted({"tags": STRINGS}, n=pa.array([1])) == [{"n": 1, "tags": None}]
