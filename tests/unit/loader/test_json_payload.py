"""JSON values become columns or dead letters, never a wrong row (R30, R31)."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainstem_loader.columns import Columns
from mainstem_loader.json_payload import JsonPayload
from mainstem_loader.payload import ParsedPayload, RawPayload

TIMESTAMP = pa.timestamp("us", tz="UTC")


def parse(*values: bytes | None, fixed: Columns | None = None) -> ParsedPayload:
    return JsonPayload(fixed or {}).parse(pa.array(values, pa.binary()))


def rows(parsed: ParsedPayload) -> dict[int, dict[str, object]]:
    found = parsed.columns.to_pylist() if parsed.columns.num_columns else [{} for _ in parsed.rows]
    return dict(zip(parsed.rows.tolist(), found, strict=True))


def reasons(parsed: ParsedPayload) -> dict[int, str]:
    return dict(parsed.dead)


def test_objects_become_rows() -> None:
    parsed = parse(b'{"a":1,"b":"x"}', b'{"b":"y","c":[true]}')
    assert rows(parsed) == {0: {"a": 1, "b": "x", "c": None}, 1: {"a": None, "b": "y", "c": [True]}}
    assert not parsed.dead


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
        (b'{"a":1e400}', "not JSON: Number too big"),
        (b'{"":1}', "field '' cannot be the name of a column"),
        (b'{"a b":1}', "field 'a b' cannot be the name of a column"),
        (b'{"a":1,"A":2}', "field 'A' differs from 'a' in case alone"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested more than 32 levels"),
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


def test_empty_objects_and_blocks_are_fine() -> None:
    assert rows(parse(b"{}", b"{}")) == {0: {}, 1: {}}
    assert rows(parse()) == {}
    assert rows(parse(b"{}", b'{"a":1}', b"{}")) == {0: {"a": None}, 1: {"a": 1}, 2: {"a": None}}


def test_whitespace_around_and_line_breaks_inside_do_not_matter() -> None:
    parsed = parse(b'{"a":1}', b' \r\n{\n "a" :\n 2\n}\n', b'{"a":3}')
    assert rows(parsed) == {0: {"a": 1}, 1: {"a": 2}, 2: {"a": 3}}


def test_fields_called_like_columns_of_every_table_move_aside() -> None:
    parsed = parse(b'{"day":3,"_key":"k","payload_day":4}')
    assert rows(parsed) == {0: {"payload_day": 3, "payload__key": "k", "payload_payload_day": 4}}


def test_fields_that_were_always_null_or_empty_wait_for_a_type() -> None:
    reader = JsonPayload({})
    first = reader.parse(pa.array([b'{"a":null,"b":[],"c":{},"d":{"x":null},"e":1}'], pa.binary()))
    assert rows(first) == {0: {"e": 1}}
    second = reader.parse(pa.array([b'{"a":"now","b":[1],"d":{"x":null,"y":2}}'], pa.binary()))
    assert rows(second) == {0: {"e": None, "a": "now", "b": [1], "d": {"y": 2}}}


def test_integers_give_way_to_doubles_until_the_table_has_the_column() -> None:
    reader = JsonPayload({})
    assert rows(reader.parse(pa.array([b'{"a":1}'], pa.binary()))) == {0: {"a": 1}}
    later = reader.parse(pa.array([b'{"a":1.5}', b'{"a":2}'], pa.binary()))
    assert rows(later) == {0: {"a": 1.5}, 1: {"a": 2.0}}
    assert reader.found_columns() == {"a": pa.float64()}
    settled = parse(b'{"a":1.5}', b'{"a":2}', fixed={"a": pa.int64()})
    assert rows(settled) == {1: {"a": 2}}
    assert reasons(settled) == {0: "field 'a' is a number where the column is an integer"}


def test_an_integer_fits_a_column_of_doubles() -> None:
    assert rows(parse(b'{"a":1}', fixed={"a": pa.float64()})) == {0: {"a": 1.0}}


def test_the_first_type_seen_is_right_and_the_others_are_dead() -> None:
    parsed = parse(b'{"a":"x"}', b'{"a":1}', b'{"a":"y"}', b'{"a":[1]}', b'{"a":null}')
    assert rows(parsed) == {0: {"a": "x"}, 2: {"a": "y"}, 4: {"a": None}}
    assert list(reasons(parsed)) == [1, 3]


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
    assert rows(parsed) == {
        0: {
            "t": datetime(2013, 1, 1, 3, tzinfo=UTC),
            "d": date(2013, 1, 2),
            "n": Decimal("1.25"),
            "i": 7,
            "f": 0.5,
        },
        1: {"t": datetime(2013, 1, 1, tzinfo=UTC), "d": None, "n": Decimal("3.00"), "i": None, "f": None},
    }
    assert list(reasons(parsed)) == [2, 3, 4, 5]


def test_numbers_beyond_64_bits_are_doubles_or_dead() -> None:
    assert rows(parse(b'{"a":18446744073709551615}')) == {0: {"a": 18446744073709551615.0}}
    settled = parse(b'{"a":18446744073709551615}', b'{"a":9223372036854775807}', fixed={"a": pa.int64()})
    assert rows(settled) == {1: {"a": 9223372036854775807}}


def test_nan_and_infinity_are_numbers() -> None:
    parsed = parse(b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":1.5}')
    assert rows(parsed) == {0: {"a": float("inf")}, 1: {"a": float("-inf")}, 2: {"a": 1.5}}


def test_a_struct_grows_new_members() -> None:
    fixed = {"s": pa.struct([("x", pa.int64())])}
    reader = JsonPayload(fixed)
    parsed = reader.parse(pa.array([b'{"s":{"x":1,"y":"new"}}', b'{"s":{"x":"no"}}'], pa.binary()))
    assert rows(parsed) == {0: {"s": {"x": 1, "y": "new"}}}
    assert reader.found_columns() == {"s": pa.struct([("x", pa.int64()), ("y", pa.string())])}


def test_what_one_block_taught_holds_for_the_next() -> None:
    reader = JsonPayload({"fixed": pa.string()})
    reader.parse(pa.array([b'{"a":"x"}'], pa.binary()))
    parsed = reader.parse(pa.array([b'{"a":1}', b'{"b":true}'], pa.binary()))
    assert rows(parsed) == {1: {"a": None, "b": True, "fixed": None}}
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


@settings(max_examples=300)
@given(st.lists(texts, max_size=12))
def test_each_value_is_one_row_or_one_dead_letter(block: list[bytes | None]) -> None:
    parsed = parse(*block)
    assert sorted([*parsed.rows.tolist(), *reasons(parsed)]) == list(range(len(block)))
    for row, found in rows(parsed).items():
        text = block[row]
        sent = {} if text is None else json.loads(text)
        for field, value in found.items():
            if isinstance(value, int | str | bool | float):
                assert sent[field] == value, f"{text!r} became {found}"


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_many_bad_ones_among_many_good_ones_are_found(seed: int) -> None:
    chance = random.Random(seed)
    share = chance.choice([0.001, 0.01, 0.5, 1.0])
    bad = [b'{"a":"text"}', b"nothing", b'{"a":1,"a":1}', b'{"a":[1]}']
    block = [chance.choice(bad) if chance.random() < share else b'{"a":%d}' % index for index in range(3000)]
    parsed = parse(*block, fixed={"a": pa.int64()})
    good = {index for index, text in enumerate(block) if text not in bad}
    assert set(parsed.rows.tolist()) == good, f"seed {seed}"
    assert parsed.columns.column("a").to_pylist() == sorted(good) if good else True


def test_raw_values_are_kept_as_they_are() -> None:
    values = pa.array([b"\xff\0", None, b""], pa.binary())
    parsed = RawPayload().parse(values)
    assert parsed.columns.column("value").to_pylist() == [b"\xff\0", None, b""]
    assert parsed.rows.tolist() == [0, 1, 2]
    assert not parsed.dead
