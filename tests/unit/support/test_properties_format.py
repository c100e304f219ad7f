"""Properties files, which programs read as Java does: the same file serves Apache Kafka's tools (R38)."""

from __future__ import annotations

import pytest
from tests.support.documentation import FILES, REPOSITORY

from mainstem.properties_format import MalformedLine, read_properties


def test_each_program_has_the_same_reader() -> None:
    """They import nothing of each other, so each has a copy."""
    readers = [(REPOSITORY / path).read_text() for path in FILES if path.endswith("/properties_format.py")]
    assert len(readers) == 4
    assert len(set(readers)) == 1


@pytest.mark.parametrize("character", ["\v", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\xa0"])
def test_only_line_feeds_and_carriage_returns_end_a_line(character: str) -> None:
    password = f"{character}se{character}cret{character}"
    assert read_properties(f"sasl.password={password}\nname=bob\n") == {
        "sasl.password": password,
        "name": "bob",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\rb=2\r\nc=3\n", {"a": "1", "b": "2", "c": "3"}),
        ("# c\n  ! c\\\n\n \t\f\n a = b \n", {"a": "b"}),
        ("a:1\nb 2\nc\t=\t3\nd = = 4\n", {"a": "1", "b": "2", "c": "3", "d": "= 4"}),
        ("a=b=c:d e\n", {"a": "b=c:d e"}),
        (r"a\:b\=c\ d=1", {"a:b=c d": "1"}),
        ("a=1\\\n   2\\\r\n\t3\n", {"a": "123"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\\\\\n 2", {"a": "1\\2"}),
        ("a=1\\\n#2", {"a": "1#2"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        (r"a=\t\n\r\f\u00e9\\\#\!", {"a": "\t\n\r\fé\\#!"}),
        (r"a=\ud83d\ude00", {"a": "😀"}),
        ("a=1\\ ", {"a": "1 "}),
        ("a=1\\  \t", {"a": "1 "}),
        ("a=1\\\\ ", {"a": "1\\"}),
        ("a=\\ ", {"a": " "}),
        ("a= \t", {"a": ""}),
        ("a=", {"a": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("", {}),
    ],
)
def test_a_file_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert read_properties(text) == expected


def test_a_backslash_before_another_character_stays() -> None:
    assert read_properties(r"rule=RULE:^CN=(.*?)\s\w+$/$1/") == {"rule": r"RULE:^CN=(.*?)\s\w+$/$1/"}


@pytest.mark.parametrize("line", ["hunter2", "=hunter2", "hunter2\\"])
def test_a_line_without_name_or_separator_is_named_by_its_number_and_not_shown(line: str) -> None:
    with pytest.raises(MalformedLine, match="Line 3 is not of the form name=value") as refused:
        read_properties(f"a=1\\\n 2\n{line}\n")
    assert "hunter2" not in str(refused.value)


def test_a_line_of_white_space_is_read_once() -> None:
    blanks = " " * 200_000
    assert read_properties(f"a={blanks}1{blanks}2{blanks}") == {"a": f"1{blanks}2"}
    with pytest.raises(MalformedLine):
        read_properties("\\" * 200_000 + "a")
