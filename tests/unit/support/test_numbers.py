r"""The rule that programs read numbers as Java and people do, and not all that Python takes for one.

`int` and `float` accept underscores, blanks and the digits of all scripts, and `isdecimal`, `isdigit` and
`\d` let those digits through. A value that is written so works here and is refused by Apache Kafka, or it
is a misspelling that takes effect.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

import pytest
from tests.support.documentation import FILES, REPOSITORY

from mainstem.whole_numbers import is_whole_number

PROGRAMS: Final = [
    path
    for path in FILES
    if path.startswith(("broker-image/", "command/", "operator/", "schema-registry/", "spark-jobs/"))
    and path.endswith(".py")
]
HELPER: Final = "/whole_numbers.py"
ANY_SCRIPT: Final = ("isdecimal", "isdigit", "isnumeric")


def lax_numbers_of(source: str) -> Iterator[int]:
    """The lines that ask whether a text is a number by other means than `is_whole_number`, or let argparse
    call `int` or `float`."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in ANY_SCRIPT:
            yield node.lineno
        elif name == "add_argument":
            if any(
                given.arg == "type" and ast.unparse(given.value) in ("int", "float")
                for given in node.keywords
            ):
                yield node.lineno
        elif ast.unparse(node.func).startswith("re.") and "re.ASCII" not in ast.unparse(node):
            texts = (item.value for item in ast.walk(node) if isinstance(item, ast.Constant))
            if any(isinstance(text, str) and r"\d" in text for text in texts):
                yield node.lineno


@pytest.mark.parametrize(
    ("source", "is_lax"),
    [
        ("text.isdecimal()", True),
        ("text.isascii() and text.isdecimal()", True),
        ("is_whole_number(text)", False),
        (r"re.compile(r'(\d+)ms')", True),
        (r"re.compile(r'(\d+)ms', re.ASCII)", False),
        ("re.compile('[0-9]+')", False),
        ("parser.add_argument('--cores', type=int)", True),
        ("parser.add_argument('--cores', type=whole_number)", False),
    ],
)
def test_lax_numbers_are_found(source: str, is_lax: bool) -> None:
    assert bool(list(lax_numbers_of(source))) is is_lax


def test_programs_read_numbers_of_plain_digits_only() -> None:
    found = [
        f"{path}:{line}"
        for path in PROGRAMS
        if not path.endswith(HELPER)
        for line in lax_numbers_of((REPOSITORY / path).read_text())
    ]
    assert not found, (
        f"{', '.join(found)}: ask is_whole_number, write [0-9] for \\d, and give options of argparse a type"
        " that matches the whole text."
    )


def test_each_program_has_the_same_helper() -> None:
    """They import nothing of each other, so each has a copy."""
    helpers = [(REPOSITORY / path).read_text() for path in PROGRAMS if path.endswith(HELPER)]
    assert len(helpers) == 5
    assert len(set(helpers)) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", True),
        ("9223372036854775807", True),
        ("00000000000000000042", True),
        ("000000000000000000042", False),
        ("9" * 5_000, False),
        ("", False),
        ("-1", False),
        ("+1", False),
        (" 1", False),
        ("1_000", False),
        ("1.0", False),
        ("\u0663", False),
        ("\u00b2", False),
    ],
)
def test_a_whole_number_is_digits_of_ascii(text: str, expected: bool) -> None:
    """`int` raises ValueError at more than 4300 digits."""
    assert is_whole_number(text) is expected
