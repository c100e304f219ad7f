"""Text to Markdown: tables whose cells cannot break the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; `|` and line breaks in cells are escaped."""
    lines = [_row(header), _row(["---"] * len(header)), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def with_facts(text: str, facts: Iterable[str]) -> str:
    """A cell: prose, and below it short facts. Two columns fit a narrow screen; six do not."""
    line = "; ".join(fact for fact in facts if fact)
    return f"{text}<br>*{line}*" if text and line else text or f"*{line}*"


def code(text: str) -> str:
    """`text` as code; nothing for an empty text."""
    return f"`{text}`" if text else ""


def escaped(text: str) -> str:
    """Prose from the code: angle brackets and asterisks are literal outside of code spans."""
    parts = text.split("`")
    for index in range(0, len(parts), 2):
        parts[index] = parts[index].replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_")
    return "`".join(parts)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"
