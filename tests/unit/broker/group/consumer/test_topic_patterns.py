"""Regular expressions of members: they match as in Python, in time that does not explode (R14)."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.errors import InvalidRegularExpression
from mainstem_broker.group.consumer.topic_patterns import TopicPattern

NAMES = st.text("abcAB01._-", max_size=8)


def join(parts: list[str]) -> str:
    return "".join(parts)


ATOMS = st.sampled_from(
    ["a", "b", "c", "A", "0", ".", r"\.", "-", "_", "[ab]", "[^a]", "[a-c]", r"[\d_]", r"\d", r"\D", r"\w"]
    + [r"\W", "[]a]", "[a-]", "[^]-]", r"[\w.]", r"\x61", "^", "$"]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=4).map(join)
        | st.lists(inner, min_size=1, max_size=3).map("|".join).map("({})".format)
        | st.tuples(
            inner.map("(?:{})".format), st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "+?"])
        ).map(lambda pair: pair[0] + pair[1])
    ),
    max_leaves=8,
)


@given(pattern=PATTERNS, names=st.lists(NAMES, max_size=8))
def test_it_matches_what_python_matches(pattern: str, names: list[str]) -> None:
    ours, pythons = TopicPattern(pattern), re.compile(pattern, re.ASCII)
    for name in names:
        assert ours.matches(name) == (pythons.fullmatch(name) is not None), name


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (".*", ["", "a", "a.b-c_D9"], []),
        ("orders-.*", ["orders-", "orders-eu"], ["orders", "my-orders-eu"]),
        ("a|b|", ["a", "b", ""], ["c", "ab"]),
        ("(?i)abc", ["abc", "ABC", "aBc"], ["ab"]),
        ("(?i:a)b", ["ab", "Ab"], ["aB"]),
        ("(?i)[a-c](?-i)x", ["Ax", "bx"], ["AX"]),
        ("(?P<name>a)(?<other>b)", ["ab"], ["a"]),
        (r"\Qa.b\E.", ["a.bc"], ["axbc"]),
        (r"\Aa\z", ["a"], ["aa"]),
        ("[[:alpha:]]+[[:^digit:]]", ["ab", "a-"], ["a1"]),
        (r"\x{62}[\x61-c]", ["ba", "bc"], ["bd"]),
        ("a{,2}", [], ["a", "aa"]),
        (r"t\s*é?", ["t"], ["té"]),
    ],
)
def test_it_knows_the_syntax_of_re2(pattern: str, matching: list[str], other: list[str]) -> None:
    compiled = TopicPattern(pattern)
    assert [name for name in matching + other if compiled.matches(name)] == matching


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "(a", "a)", "[a", "[", "*a", "a**", "a{2}{3}", "a{3,2}", "a{1001}", "\\", r"\1", "(?=a)"]
    + ["(?!a)", "(?<=a)", r"\b", r"\pL", "[b-a]", "[[:word]]", "[[:nope:]]", r"\x", r"\x{110000}", "(?z)a"]
    + ["(?P<a", "(?P<1>a)", "((a{1000}){1000}){1000}", "(" * 5_000 + ")" * 5_000, "[\\"],
)
def test_what_it_does_not_know_is_refused_with_a_reason(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression) as caught:
        TopicPattern(pattern)
    assert str(caught.value).endswith(".")


@given(st.text("ab()[]{}|*+?\\^$.-,:0123=!<>PiQEdwsx", max_size=20))
def test_any_text_is_a_pattern_or_is_refused(text: str) -> None:
    try:
        TopicPattern(text).matches("ab")
    except InvalidRegularExpression:
        pass


def test_a_pattern_that_makes_others_backtrack_takes_no_time() -> None:
    pattern = TopicPattern("(a*)*(a|a)*(a?){40}b")
    started = time.monotonic()
    assert not pattern.matches("a" * 249)
    assert pattern.matches("a" * 248 + "b")
    assert time.monotonic() - started < 10  # one that backtracks takes longer than anybody waits


@pytest.mark.timeout(20)
def test_repeating_nothing_takes_no_time() -> None:
    """One heartbeat with such a pattern must not stop the broker."""
    assert TopicPattern("(" * 20 + "){1000}" * 20).matches("")
