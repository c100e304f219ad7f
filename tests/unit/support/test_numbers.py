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

PROGRAMS: Final = [
    path
    for path in FILES
    if path.startswith(("broker-image/", "command/", "operator/", "schema-registry/", "spark-jobs/"))
    and path.endswith(".py")
]
ANY_SCRIPT: Final = ("isdecimal", "isdigit", "isnumeric")


def lax_numbers_of(source: str) -> Iterator[int]:
    """The lines that accept digits of other scripts, or let argparse call `int` or `float`."""
    tree = ast.parse(source)
    guarded = {
        ast.unparse(value.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And)
        for value in node.values
        if isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "isascii"
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in ANY_SCRIPT and isinstance(node.func, ast.Attribute):
            if ast.unparse(node.func.value) not in guarded:
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
        ("text.isascii() and text.isdecimal()", False),
        ("other.isascii() and text.isdigit()", True),
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
        f"{path}:{line}" for path in PROGRAMS for line in lax_numbers_of((REPOSITORY / path).read_text())
    ]
    assert not found, (
        f"{', '.join(found)}: ask isascii() as well, write [0-9] for \\d, and give options of argparse a type"
        " that matches the whole text."
    )
