"""JSON values become columns or dead letters, never a wrong row (R30, R31)."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem_loader.columns import COLUMNS_MAX, MEMBERS_MAX, Columns
from mainstem_loader.payload import json_payload
from mainstem_loader.payload.json_payload import JsonPayload
from mainstem_loader.payload.readers import ParsedPayload

TIMESTAMP = pa.timestamp("us", tz="UTC")


def parse(*values: bytes | None, fixed: Columns | None = None) -> ParsedPayload:
    return JsonPayload(fixed or {}).parse(pa.array(values, pa.binary()))


def rows(parsed: ParsedPayload) -> dict[int, dict[str, object]]:
    result = parsed.columns.to_pylist() if parsed.columns.num_columns else [{} for _ in parsed.rows]
    # A row without rest is as if there were no such column.
    result = [
        {name: value for name, value in row.items() if (name, value) != ("_rest", None)} for row in result
    ]
    return dict(zip(parsed.rows.tolist(), result, strict=True))


def reasons(parsed: ParsedPayload) -> dict[int, str]:
    return dict(parsed.dead)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the value is empty"),
        (b" \n", "the value is empty"),
        (b"hello", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b"17", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"{}{}", "not one JSON object, but several"),
        (b'{"a":1} null {"a":2}', "not one JSON object, but several"),
        (b'{"a":1}\n{"a":2}', "not one JSON object, but several"),
        (b'{"a":1} x {"a":2}', "not JSON: Invalid value"),
        (b'{"a":1,}', "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b'{"a":01}', "not JSON"),
        (b'{"a":"line\nbreak"}', "not JSON"),
        (b'{"a":"zero\0byte"}', "not JSON: it holds a zero byte"),
        (b'{"a":"\xff\xfe"}', "a string is not UTF-8"),
        (b'{"\xff":"a"}', "a string is not UTF-8"),
        (b'{"a":"\\ud800"}', "not JSON: The surrogate pair in string is invalid"),
        (b'{"a":1,"a":2}', "field 'a' appears twice"),
        (b'{"a":{"b":1,"b":2}}', "field 'a/b' appears twice"),
        (b'{"a":1e400}', "a number is too large for a double"),
        (b'{"a":' + b"[" * 60_000 + b"]" * 60_000 + b"}", "nested too deeply"),
        (b'{"a":' * 60_000 + b"1" + b"}" * 60_000, "nested too deeply"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_object_is_dead_alone_and_says_why(value: bytes, reason: str) -> None:
    good = b'{"g":1}'
    assert reason in reasons(parse(value))[0]
    among_others = parse(good, value, good)
    assert rows(among_others) == {0: {"g": 1}, 2: {"g": 1}}
    assert list(reasons(among_others)) == [1]


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (b'{"g":2,"":1}', {"g": 2, "_rest": '{"":1}'}),
        (b'{"g":2,"a b":1}', {"g": 2, "_rest": '{"a b":1}'}),
        (b'{"g":2,"G":3}', {"g": 2, "_rest": '{"G":3}'}),
        (b'{"g":"text"}', {"g": None, "_rest": '{"g":"text"}'}),
        (b'{"g":2,"x":[1,"a",null]}', {"g": 2, "_rest": '{"x":[1,"a",null]}'}),
        (b'{"g":2,"x":[{"y":1},{"y":"a"}]}', {"g": 2, "_rest": '{"x":[{"y":1},{"y":"a"}]}'}),
        (
            b'{"g":2,"x":' + b"[" * 100 + b"]" * 100 + b"}",
            {"g": 2, "_rest": '{"x":' + "[" * 100 + "]" * 100 + "}"},
        ),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_field_that_fits_no_column_is_kept_as_text(value: bytes, row: dict[str, Any]) -> None:
    good = b'{"g":1}'
    parsed = parse(good, value, good)
    assert rows(parsed) == {0: {"g": 1}, 1: row, 2: {"g": 1}}
    assert not parsed.dead


def test_an_object_that_is_used_as_a_map_makes_no_thousands_of_members() -> None:
    maps = [json.dumps({"m": {f"key{number}-{n}": 1 for n in range(20)}}).encode() for number in range(50)]
    parsed = parse(*maps)
    assert not parsed.dead
    column = parsed.columns.schema.field("m").type if "m" in parsed.columns.column_names else pa.struct([])
    assert column.num_fields <= MEMBERS_MAX
    kept = sum(row.get("_rest") is not None for row in rows(parsed).values())
    assert kept >= 50 - MEMBERS_MAX // 20


class Reads:
    """Counts what Arrow's reader does: its reads, and the cells of their tables."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.cells = 0
        self._read = json_payload._read
        monkeypatch.setattr(json_payload, "_read", self._counted)

    def _counted(self, *arguments: Any) -> pa.Table:
        table = self._read(*arguments)
        self.count += 1
        self.cells += table.num_rows * table.num_columns
        return table


def test_records_that_all_have_other_fields_take_time_in_proportion_to_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells_of: dict[int, int] = {}
    for count in (4_000, 8_000):
        reads = Reads(monkeypatch)
        parsed = parse(*(b'{"k%d":%d}' % (number, number) for number in range(count)))
        assert parsed.columns.num_columns == COLUMNS_MAX + 1
        assert not parsed.dead
        assert parsed.rows.tolist() == list(range(count))
        # All rows would be millions of Python objects.
        early, last = parsed.columns.take([5, count - 1]).to_pylist()
        assert early["k5"] == 5
        assert last["_rest"] == f'{{"k{count - 1}":{count - 1}}}'
        cells_of[count] = reads.cells
    assert cells_of[8_000] < 2.5 * cells_of[4_000]


@pytest.mark.parametrize("text", [b'{"k%d":1}', b'{"m":{"k%d":1}}', b'{"a":"no","k%d":1}'])
def test_records_that_all_have_other_fields_are_not_read_one_by_one(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch)
    # Room for some of the fields only, and one that does not fit beside them.
    fixed = {"a": pa.int64(), **{f"other{number}": pa.int64() for number in range(COLUMNS_MAX - 500)}}
    parsed = parse(*(text % number for number in range(1_000)), fixed=fixed)
    assert not parsed.dead
    assert reads.count < 100
    kept = rows(parsed)
    for number in range(1_000):
        row = {name: value for name, value in kept[number].items() if value is not None}
        rest = json.loads(str(row.pop("_rest", "{}")))
        if isinstance(members := row.get("m"), dict):
            row["m"] = {name: value for name, value in members.items() if value is not None}
        assert {**row, **rest} == json.loads(text % number)


def test_a_value_cannot_hide_in_its_neighbours() -> None:
    """As many objects as values, but not one in each."""
    parsed = parse(b'{"a":1}{"a":2}', b"", b'{"a":3}')
    assert rows(parsed) == {2: {"a": 3}}
    parsed = parse(b'{"a":{}', b'{"b":1}}', b'{"c":1}{"c":2}', b'{"a":{"x":1}}')
    assert rows(parsed) == {3: {"a": {"x": 1}}}
    parsed = parse(b'{"a":1}\0}', b'{"a":2}{"a":3}', b'{"a":4}')
    assert rows(parsed) == {2: {"a": 4}}


def test_tombstones_are_rows_without_payload() -> None:
    """R5: a null value deletes a key; that is a fact, not an error."""
    parsed = parse(b'{"a":1}', None, b"x", None)
    assert rows(parsed) == {0: {"a": 1}, 1: {"a": None}, 3: {"a": None}}
    assert rows(parse(None, None)) == {0: {}, 1: {}}


def test_whitespace_around_and_line_breaks_inside_do_not_matter() -> None:
    parsed = parse(b'{"a":1}', b' \r\n{\n "a" :\n 2\n}\n', b'{"a":3}')
    assert rows(parsed) == {0: {"a": 1}, 1: {"a": 2}, 2: {"a": 3}}


def test_fields_called_like_columns_of_every_table_move_aside() -> None:
    parsed = parse(b'{"day":3,"_key":"k","payload_day":4}')
    assert rows(parsed) == {0: {"payload_day": 3, "payload__key": "k", "payload_payload_day": 4}}


def test_fields_that_were_always_null_or_empty_wait_for_a_type() -> None:
    """Until then their values are kept as they were sent; a null is as good as no field."""
    reader = JsonPayload({})
    first = reader.parse(pa.array([b'{"a":null,"b":[],"c":{},"d":{"x":null},"e":1}'], pa.binary()))
    assert rows(first) == {0: {"e": 1, "_rest": '{"b":[],"c":{},"d":{}}'}}
    assert reader.untyped_columns() == {"b": pa.null(), "c": pa.null(), "d": pa.null()}
    second = reader.parse(pa.array([b'{"a":"now","b":[1],"d":{"x":null,"y":2}}'], pa.binary()))
    assert rows(second) == {0: {"e": None, "a": "now", "b": [1], "d": {"y": 2}}}


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (b'{"a":[]}', {"_rest": '{"a":[]}'}),
        (b'{"a":[null,null]}', {"_rest": '{"a":[null,null]}'}),
        (b'{"a":[{},null]}', {"_rest": '{"a":[{},null]}'}),
        (b'{"a":[[],[]]}', {"_rest": '{"a":[[],[]]}'}),
        (b'{"n":1,"a":[[],[[]]]}', {"n": 1, "_rest": '{"a":[[],[[]]]}'}),
        (b'{"n":1,"\\u00e4\\"":[]}', {"n": 1, "_rest": '{"ä\\"":[]}'}),
        (b'{"o":{"n":1,"a":[]}}', {"o": {"n": 1}, "_rest": '{"o":{"a":[]}}'}),
        (
            b'{"o":[{"n":1,"a":[]},{"n":2},null]}',
            {"o": [{"n": 1}, {"n": 2}, None], "_rest": '{"o":[{"a":[]},null,null]}'},
        ),
        (b'{"day":[]}', {"_rest": '{"day":[]}'}),
        (b'{"n":1,"a":[],"b c":2}', {"n": 1, "_rest": '{"a":[],"b c":2}'}),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_says_nothing_about_its_type_is_kept_beside_the_columns(
    value: bytes, row: dict[str, object]
) -> None:
    parsed = parse(value)
    assert (rows(parsed), parsed.dead) == ({0: row}, [])


@pytest.mark.parametrize(
    "value",
    [{"l": [None, 0.5]}, {"l": [None, None, "x"]}, {"l": [[], [[1]]]}, {"l": [{}, {"a": [None, 1]}]}],
    ids=str,
)
def test_arrays_that_begin_with_nothing_show_their_type_even_in_a_record_alone(value: dict[str, Any]) -> None:
    """Arrow's reader loses count in some of them."""
    parsed = parse(json.dumps({"n": 1, **value}).encode())
    assert json.dumps(rows(parsed)[0]["l"]).replace('{"a": null}', "{}") == json.dumps(value["l"])
    assert rows(parsed)[0]["n"] == 1
    assert "_rest" not in parsed.columns.column_names


def test_parts_without_a_type_are_null_for_rows_that_lack_none() -> None:
    parsed = parse(b'{"o":{"n":1}}', b'{"o":{"n":2,"a":[]}}', b'{"o":null}', b"{}", b'{"o":{}}')
    assert parsed.columns["_rest"].to_pylist() == [None, '{"o":{"a":[]}}', None, None, None]
    assert parsed.columns["o"].to_pylist() == [{"n": 1}, {"n": 2}, None, None, {"n": None}]


def test_empty_values_of_a_typed_column_are_values() -> None:
    parsed = parse(b'{"a":[],"o":{"i":[]}}', b'{"a":["x"],"o":{"i":[7]}}')
    assert rows(parsed)[0] == {"a": [], "o": {"i": []}}


def test_integers_give_way_to_doubles_until_the_table_has_the_column() -> None:
    reader = JsonPayload({})
    assert rows(reader.parse(pa.array([b'{"a":1}'], pa.binary()))) == {0: {"a": 1}}
    later = reader.parse(pa.array([b'{"a":1.5}', b'{"a":2}'], pa.binary()))
    assert rows(later) == {0: {"a": 1.5}, 1: {"a": 2.0}}
    assert reader.found_columns() == {"a": pa.float64()}
    settled = parse(b'{"a":1.5}', b'{"a":2}', fixed={"a": pa.int64()})
    assert rows(settled) == {0: {"a": None, "_rest": '{"a":1.5}'}, 1: {"a": 2}}


@pytest.mark.parametrize(
    ("fixed", "values", "wider"),
    [
        (pa.int64(), [b"1.5"], pa.float64()),
        (pa.int64(), [b"1e30"], pa.float64()),
        (pa.int64(), [b"NaN"], pa.float64()),
        (pa.int64(), [b"12345678901234567000"], pa.float64()),
        (pa.int64(), [b"12345678901234567891"], None),
        (pa.int64(), [b"2.0", b"3e1", b"4", b"null"], None),
        (pa.int64(), [b'"1.5"', b"true", b"[1.5]"], None),
        (pa.int32(), [b"1.5"], None),
        (pa.list_(pa.int64()), [b"[1]", b"[1,null,2.5]"], pa.list_(pa.float64())),
        (pa.list_(pa.int64()), [b'[1.5,"x"]'], None),
        (
            pa.struct([("n", pa.int64()), ("m", pa.int64())]),
            [b'{"n":1,"m":1.5}'],
            pa.struct([("n", pa.int64()), ("m", pa.float64())]),
        ),
    ],
    ids=str,
)
def test_a_reader_reports_the_columns_that_doubles_would_make_whole(
    fixed: pa.DataType, values: list[bytes], wider: pa.DataType | None
) -> None:
    """As they would have been if the values had come first."""
    reader = JsonPayload({"a": fixed})
    reader.parse(pa.array([b'{"a":' + value + b"}" for value in values], pa.binary()))
    assert reader.wider_columns() == ({} if wider is None else {"a": wider})
    if wider is not None:
        assert not parse(*(b'{"a":' + value + b"}" for value in values), fixed={"a": wider}).dead


def test_an_integer_fits_a_column_of_doubles() -> None:
    assert rows(parse(b'{"a":1}', fixed={"a": pa.float64()})) == {0: {"a": 1.0}}


def test_the_first_type_seen_is_the_columns_and_the_others_are_text() -> None:
    parsed = parse(b'{"a":"x"}', b'{"a":1}', b'{"a":"y"}', b'{"a":[1]}', b'{"a":null}')
    assert rows(parsed) == {
        0: {"a": "x"},
        1: {"a": None, "_rest": '{"a":1}'},
        2: {"a": "y"},
        3: {"a": None, "_rest": '{"a":[1]}'},
        4: {"a": None},
    }


def test_strings_that_look_like_times_stay_strings() -> None:
    parsed = parse(b'{"a":"2013-01-01T05:00:00Z"}', b'{"a":"soon"}')
    assert rows(parsed) == {0: {"a": "2013-01-01T05:00:00Z"}, 1: {"a": "soon"}}


def test_columns_with_a_given_type_are_read_as_it() -> None:
    fixed: Columns = {
        "t": TIMESTAMP,
        "d": pa.date32(),
        "n": pa.decimal128(10, 2),
        "i": pa.int32(),
        "f": pa.float32(),
    }
    parsed = parse(
        b'{"t":"2013-01-01T05:00:00+02:00","d":"2013-01-02","n":"1.25","i":7,"f":0.5}',
        b'{"t":"2013-01-01","n":3}',
        b'{"t":"soon"}',
        b'{"t":5}',
        b'{"d":"2013-01-02T10:00:00"}',
        b'{"i":3000000000}',
        fixed=fixed,
    )
    result = rows(parsed)
    assert [result.pop(row)["_rest"] for row in (2, 3, 4)] == [
        '{"t":"soon"}',
        '{"t":5}',
        '{"d":"2013-01-02T10:00:00"}',
    ]
    assert result == {
        0: {
            "t": datetime(2013, 1, 1, 3, tzinfo=UTC),
            "d": date(2013, 1, 2),
            "n": Decimal("1.25"),
            "i": 7,
            "f": 0.5,
        },
        1: {"t": datetime(2013, 1, 1, tzinfo=UTC), "d": None, "n": Decimal("3.00"), "i": None, "f": None},
    }
    assert list(reasons(parsed)) == [5]


OUTSIDE: dict[bytes, pa.DataType] = {
    b'{"t":"0001-01-01T00:00:00+01:00"}': TIMESTAMP,
    b'{"t":"9999-12-31T23:59:59.5-05:00"}': TIMESTAMP,
    b'{"t":"0000-12-31T23:59:59"}': pa.timestamp("us"),
    b'{"t":"0000-01-01"}': pa.date32(),
    b'{"t":[null,"0000-01-01"]}': pa.list_(TIMESTAMP),
    b'{"t":{"x":{"y":"0000-01-01"}}}': pa.struct([("x", pa.struct([("y", TIMESTAMP)]))]),
}


@pytest.mark.parametrize("value", OUTSIDE)
def test_a_time_that_no_table_can_have_is_kept_as_text(value: bytes) -> None:
    """An offset may lead out of the years 1 to 9999. The record is a row beside others and alone (R31)."""
    fixed: Columns = {"t": OUTSIDE[value], "n": pa.int64()}
    for block in ([value], [value, b'{"n":1}', b'{"t":null}']):
        parsed = parse(*block, fixed=fixed)
        assert rows(parsed)[0] == {"t": None, "n": None, "_rest": value.decode()}
        assert (len(parsed.rows), parsed.dead) == (len(block), [])


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"])
def test_the_first_and_the_last_time_are_in_their_columns(text: str) -> None:
    fixed: Columns = {"t": TIMESTAMP, "d": pa.date32()}
    day = text[:10]
    parsed = parse(json.dumps({"t": text, "d": day}).encode(), fixed=fixed)
    assert rows(parsed) == {0: {"t": datetime.fromisoformat(text), "d": date.fromisoformat(day)}}


def test_what_looks_like_such_a_time_is_a_string_where_the_column_is_none() -> None:
    inside = b'{"o":{"x":"0000-01-01"},"s":"0000-01-01"}'
    parsed = parse(inside, fixed={"o": pa.struct([("t", TIMESTAMP)])})
    assert rows(parsed) == {0: {"o": {"t": None, "x": "0000-01-01"}, "s": "0000-01-01"}}


IDS = (b'{"a":9007199254740993}', b'{"a":1152921504606846977}', b'{"a":18446744073709551615}')


def test_an_integer_beyond_64_bits_is_dead_and_rounds_no_other() -> None:
    for fixed in (None, {"a": pa.int64()}):
        parsed = parse(*IDS, fixed=fixed)
        assert rows(parsed) == {0: {"a": 9007199254740993}, 1: {"a": 1152921504606846977}}
        assert list(reasons(parsed)) == [2]
        assert "has 18446744073709551615" in reasons(parsed)[2]
        assert "cannot hold exactly" in reasons(parsed)[2]
    assert list(reasons(parse(IDS[2]))) == [0]


@pytest.mark.parametrize("order", [1, -1])
def test_whole_numbers_beside_integers_that_doubles_cannot_hold_are_integers(order: int) -> None:
    values = [b'{"a":9007199254740993}', b'{"a":7.0}', b'{"a":null}', b'{"a":3e1}'][::order]
    parsed = parse(*values)
    assert [row["a"] for row in rows(parsed).values()] == [9007199254740993, 7, None, 30][::order]
    assert not parsed.dead


@pytest.mark.parametrize("fixed", [None, {"a": pa.float64()}])
def test_an_integer_that_a_column_of_doubles_would_round_is_dead(fixed: Columns | None) -> None:
    parsed = parse(IDS[0], b'{"a":0.5}', b'{"a":9007199254740992}', IDS[1], fixed=fixed)
    assert rows(parsed) == {1: {"a": 0.5}, 2: {"a": 9007199254740992.0}}
    assert reasons(parsed) == {
        0: "field 'a' has 9007199254740993, which its column of doubles cannot hold exactly",
        3: "field 'a' has 1152921504606846977, which its column of doubles cannot hold exactly",
    }


def test_large_doubles_may_be_written_as_integers() -> None:
    """As JavaScript writes them, with the digits that tell one double from another, then zeros."""
    parsed = parse(b'{"a":12345678901234567000}', b'{"a":1e300}', b'{"a":-1' + b"0" * 22 + b"}")
    assert rows(parsed) == {0: {"a": 12345678901234567000.0}, 1: {"a": 1e300}, 2: {"a": -1e22}}
    assert list(reasons(parse(b'{"a":1.5}', b'{"a":1' + b"7" * 5000 + b"}"))) == [1]


@pytest.mark.parametrize("value", ['{"b":[%s,0.5]}', '{"b":{"c":%s}}', '{"b":[{"c":[%s]},{"c":[2.5]}]}'])
def test_an_integer_inside_of_a_value_is_not_rounded_either(value: str) -> None:
    other = b'{"b":{"c":0.5}}' if value.startswith('{"b":{') else b"{}"
    parsed = parse((value % 9007199254740993).encode(), other, (value % 5).encode())
    assert "has 9007199254740993" in reasons(parsed).pop(0)
    assert list(rows(parsed)) == [1, 2]


def test_nothing_is_rounded_when_a_later_block_makes_doubles_of_a_column() -> None:
    """Blocks are read one after the other when some of their records cannot be read."""
    bad = b'{"a":true}'
    parsed = parse(IDS[0], *[b'{"a":1}'] * 1023, bad, *[b'{"a":0.5}'] * 1024)
    assert "has 9007199254740993" in reasons(parsed)[0]
    reader = JsonPayload({})
    assert rows(reader.parse(pa.array([IDS[0]], pa.binary()))) == {0: {"a": 9007199254740993}}
    assert not reader.parse(pa.array([b'{"a":0.5}'], pa.binary())).dead
    assert list(reasons(reader.parse(pa.array([IDS[0]], pa.binary())))) == [0]


def test_nan_and_infinity_are_numbers() -> None:
    parsed = parse(b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":1.5}')
    assert rows(parsed) == {0: {"a": float("inf")}, 1: {"a": float("-inf")}, 2: {"a": 1.5}}


@pytest.mark.parametrize(
    "value",
    [
        b'{"G":null}',
        b'{"a b":null}',
        b'{"s":{"x":1,"X":null}}',
        b'{"s":{"x":1,"a b":[null]}}',
        b'{"s":{"x":1,"y":{"a b":{}}}}',
        b'{"s":[{"x":1,"X":null}]}',
        b'{"g":Inf}',
        b'{"g":-Inf}',
    ],
    ids=repr,
)
def test_a_record_is_read_beside_one_that_does_not_fit_as_it_is_alone(value: bytes) -> None:
    """R29, R30"""
    misfit = b'{"g":"text"}'
    alone, beside = (rows(parse(b'{"g":1.5}', value, *more))[1] for more in ((), (misfit,)))
    assert {name: item for name, item in beside.items() if name in alone} == alone
    assert beside.keys() - alone.keys() <= {"_rest"}
    assert beside.get("_rest") == alone.get("_rest")


def test_a_struct_grows_new_members() -> None:
    fixed = {"s": pa.struct([("x", pa.int64())])}
    reader = JsonPayload(fixed)
    parsed = reader.parse(pa.array([b'{"s":{"x":1,"y":"new"}}', b'{"s":{"x":"no"}}'], pa.binary()))
    assert rows(parsed) == {
        0: {"s": {"x": 1, "y": "new"}},
        1: {"s": None, "_rest": '{"s":{"x":"no"}}'},
    }
    assert reader.found_columns() == {"s": pa.struct([("x", pa.int64()), ("y", pa.string())])}


def test_what_one_block_taught_holds_for_the_next() -> None:
    reader = JsonPayload({"fixed": pa.string()})
    reader.parse(pa.array([b'{"a":"x"}'], pa.binary()))
    parsed = reader.parse(pa.array([b'{"a":1}', b'{"b":true}'], pa.binary()))
    assert rows(parsed)[1] == {"a": None, "b": True, "fixed": None}
    assert rows(parsed)[0]["_rest"] == '{"a":1}'
    assert reader.found_columns() == {"a": pa.string(), "b": pa.bool_()}


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=4,
)
objects = st.dictionaries(st.sampled_from(["a", "b", "c"]), values, max_size=3)
texts = (
    objects.map(lambda one: json.dumps(one, ensure_ascii=False).encode())
    | st.sampled_from([b"", b"{", b"}", b"{}", b"{}{}", b'{"a":1}{"a":2}', b'{"a":{}', b'{"b":1}}', b"null"])
    | st.none()
)


def is_part_of(rest: object, sent: object) -> bool:
    """Whether what was set apart of a value is as it was sent; null for what is in the columns."""
    if isinstance(rest, dict) and isinstance(sent, dict):
        return all(name in sent and is_part_of(part, sent[name]) for name, part in rest.items())
    if isinstance(rest, list) and isinstance(sent, list):
        return len(rest) == len(sent) and all(map(is_part_of, rest, sent))
    return rest is None or rest == sent


@settings(max_examples=300)
@given(st.lists(texts, max_size=12))
def test_each_value_is_one_row_or_one_dead_letter(block: list[bytes | None]) -> None:
    parsed = parse(*block)
    assert sorted([*parsed.rows.tolist(), *reasons(parsed)]) == list(range(len(block)))
    for row, result in rows(parsed).items():
        text = block[row]
        sent = {} if text is None else json.loads(text)
        sent |= {"_rest": result.get("_rest")}
        assert is_part_of(json.loads(str(result.get("_rest") or "{}")), sent)
        for field, value in result.items():
            if isinstance(value, int | str | bool | float):
                assert sent[field] == value, f"{text!r} became {result}"


@pytest.mark.parametrize("share", [0.001, 0.01, 0.5, 1.0])
@settings(max_examples=2)
@given(seed=st.integers(0, 2**32))
def test_many_bad_ones_among_many_good_ones_are_found(seed: int, share: float) -> None:
    chance = random.Random(seed)
    bad = [b'{"a":"text"}', b"nothing", b'{"a":1,"a":1}', b'{"a":[1]}']
    block = [chance.choice(bad) if chance.random() < share else b'{"a":%d}' % index for index in range(1000)]
    parsed = parse(*block, fixed={"a": pa.int64()})
    loaded = [index for index, text in enumerate(block) if text not in bad[1:3]]
    assert parsed.rows.tolist() == loaded, f"seed {seed}"
    if loaded:
        numbers = [None if block[index] in bad else index for index in loaded]
        assert parsed.columns.column("a").to_pylist() == numbers, f"seed {seed}"


@pytest.mark.parametrize("space", ["", " \n"])
def test_fields_beside_one_that_does_not_fit_keep_every_digit(space: str) -> None:
    payload = JsonPayload({"price": pa.decimal128(24, 4), "n": pa.string()})
    text = '{_"price"_:_12345678901234567.1234_,_"n"_:_123456789012345678901234567890_}'.replace("_", space)
    parsed = payload.parse(pa.array([text.encode(), b'{"n": "1"}'], pa.binary()))
    assert not parsed.dead
    assert parsed.columns.column("price")[0].as_py() == Decimal("12345678901234567.1234")
    rest = parsed.columns.column("_rest")[0].as_py()
    assert rest.replace("\n", "").replace(" ", "") == '{"n":123456789012345678901234567890}'


def test_a_field_twice_is_dead_also_beside_one_that_does_not_fit() -> None:
    payload = JsonPayload({"n": pa.int64()})
    values = [b'{"a": 1, "a": 2, "n": "x"}', b'{"n": "x", "n": "y"}', b'{"a": 3, "n": 1}']
    parsed = payload.parse(pa.array(values, pa.binary()))
    assert parsed.dead == [(0, "field 'a' appears twice"), (1, "field 'n' appears twice")]
    assert parsed.columns.to_pylist() == [{"n": 1, "a": 3}]


@pytest.mark.parametrize("depth", [300, 1000])
def test_a_deeply_nested_field_becomes_text(depth: int) -> None:
    payload = JsonPayload({"n": pa.int64()})
    text = '{"a":' + "[" * depth + "]" * depth + ',"n":1}'
    parsed = payload.parse(pa.array([text.encode(), b'{"n": 1}'], pa.binary()))
    assert not parsed.dead
    assert "[" * depth in parsed.columns.column("_rest")[0].as_py()


@pytest.mark.parametrize("last", [b'{"n":"text"}', b'{"n":1', b'{"n":[1]}'])
def test_one_value_at_the_end_of_a_large_block_costs_no_other_row(last: bytes) -> None:
    """R30, R31: the block is read as a whole, and only what is around the value is looked at again."""
    count = 1_000_000
    values = pa.chunked_array([pa.array([b'{"n":7}'] * (count - 1) + [last], pa.binary())]).combine_chunks()
    parsed = JsonPayload({"n": pa.int64()}).parse(values)
    numbers = parsed.columns.column("n")
    dead = [row for row, _ in parsed.dead]
    assert dead == ([count - 1] if last == b'{"n":1' else [])
    assert len(parsed.rows) == count - len(dead)
    assert pa.compute.sum(numbers).as_py() == 7 * (count - 1)
    if not dead:
        assert parsed.columns.column("_rest")[-1].as_py() == last.decode()
        assert parsed.columns.column("_rest").null_count == count - 1


@pytest.mark.parametrize("others", [0, 3])
def test_whole_numbers_in_arrays_and_objects_fit_integers_whatever_their_spelling(others: int) -> None:
    """R30: as those of top-level fields do; doubles and strings beside them stay as they were written."""
    item = pa.struct([("n", pa.int64()), ("d", pa.float64()), ("s", pa.string())])
    columns = {"a": pa.list_(pa.int64()), "o": pa.struct([("items", pa.list_(item))])}
    text = b'{"a": [1.0, 2 , null,1e3], "o": {"items": [{"s": "3.0]", "n" : -4e0, "d": -0.0}, {}]}}'
    parsed = JsonPayload(columns).parse(pa.array([text, *[b'{"a": [1]}'] * others], pa.binary()))
    assert not parsed.dead
    assert "_rest" not in parsed.columns.column_names
    items = [{"n": -4, "d": -0.0, "s": "3.0]"}, {"n": None, "d": None, "s": None}]
    row = parsed.columns.slice(0, 1).to_pylist()[0]
    assert str(row) == str({"a": [1, 2, None, 1000], "o": {"items": items}})


@pytest.mark.parametrize("value", ["[1.0, 2.5]", "[1e300]", '[1.0, "2"]', "[9223372036854775808.0]"])
def test_arrays_with_a_number_that_is_no_integer_keep_their_text(value: str) -> None:
    """R30: the array is set apart as it was written, not with some of its numbers in another spelling."""
    parsed = JsonPayload({"a": pa.list_(pa.int64())}).parse(
        pa.array([f'{{"a": {value}}}'.encode()], pa.binary())
    )
    assert not parsed.dead
    assert parsed.columns.column("_rest").to_pylist() == [f'{{"a": {value}}}']


@pytest.mark.parametrize("others", [0, 3])
def test_whole_numbers_fit_a_column_of_integers_whatever_their_spelling(others: int) -> None:
    """R30: what becomes of a record does not depend on the records of the first load."""
    spellings = [b"30.0", b"3e1", b"0e0", b"-0", b"9007199254740993.0", b"9223372036854775807.0"]
    integers = [30, 30, 0, 0, 9007199254740993, 9223372036854775807]
    misfits = [b"30.5", b"-0.0", b"-0e5", b"9007199254740993.5", b"9223372036854775808.0", b"1e300"]
    for number, integer in zip([*spellings, *misfits], [*integers, *[None] * len(misfits)], strict=True):
        reader = JsonPayload({"price": pa.int64()})
        parsed = reader.parse(
            pa.array([b'{"price": %s, "n": 1}' % number, *[b'{"price": 1}'] * others], pa.binary())
        )
        assert not parsed.dead
        assert parsed.columns.column("n")[0].as_py() == 1
        prices = parsed.columns.column("price") if "price" in parsed.columns.column_names else None
        assert (None if prices is None else prices[0].as_py()) == integer
        if integer is None:
            assert parsed.columns.column("_rest")[0].as_py() == f'{{"price": {number.decode()}}}'
        else:
            assert "_rest" not in parsed.columns.column_names


@pytest.mark.parametrize(
    "number", ["9007199254740993.0", "9007199254740993e0", "-900719925474099.3e1", "9223372036854775807.0"]
)
def test_whole_numbers_beside_others_lose_no_digit_whatever_their_spelling(number: str) -> None:
    """R30: their column is one of integers, or they are dead beside a fraction, as 9007199254740993 is."""
    integer = int(Decimal(number))
    text = f'{{"n": {number}}}'.encode()
    for others in ([], [b'{"n": 7}'], [b'{"n": 7.0}'], [b'{"n": 9007199254740993}', b'{"n": 1e2}']):
        parsed = JsonPayload({}).parse(pa.array([text, *others], pa.binary()))
        assert not parsed.dead
        assert parsed.columns.column("n").type == pa.int64()
        assert parsed.columns.column("n")[0].as_py() == integer
    parsed = JsonPayload({}).parse(pa.array([text, b'{"n": 0.5}'], pa.binary()))
    assert parsed.rows.tolist() == [1]
    reason = f"field 'n' has {integer}, which its column of doubles cannot hold exactly"
    assert parsed.dead == [(0, reason)]


@pytest.mark.parametrize(
    "number", ["1e23", "99999999999999991611392.000", "1152921504606846976.0", "-2.5e300"]
)
def test_a_double_in_all_its_digits_or_the_shortest_stays_one(number: str) -> None:
    """R30: writers print doubles in both ways."""
    parsed = JsonPayload({}).parse(pa.array([f'{{"n": {number}}}'.encode()], pa.binary()))
    assert not parsed.dead
    assert parsed.columns.column("n").to_pylist() == [float(number)]


@pytest.mark.parametrize("number", ["1e400", "-1E+400", "12345678901234567891.0"])
def test_a_dead_number_makes_no_doubles_of_integers(number: str) -> None:
    """R30: a column does not change for a record that is in no row of it."""
    reader = JsonPayload({"n": pa.int64()})
    parsed = reader.parse(pa.array([f'{{"n": {number}}}'.encode()], pa.binary()))
    assert [row for row, _ in parsed.dead] == [0]
    assert not reader.wider_columns()
