"""The text of the documentation, as tests read it: blocks of code with their markers, commands, file names.

A comment before a block says what a reader does differently (`<!-- test: beside the next -->`);
CONTRIBUTING.md explains the markers.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
DOCS: Final = REPOSITORY / "docs"
_LISTED: Final = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    cwd=REPOSITORY,
    capture_output=True,
    text=True,
    check=True,
)
FILES: Final = [path for path in _LISTED.stdout.splitlines() if (REPOSITORY / path).exists()]
"""The files of the repository, as paths from its root."""

_BLOCK: Final = re.compile(
    r"(?:<!-- test: (?P<marker>[^\n]*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND: Final = re.compile(r"(?:^|[|(] ?| && )((?:\.venv/bin/)?mainstem (?:'[^']*'|\"[^\"]*\"|[^|'\"])*)")
_CODE_SPAN: Final = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: `marker` is the text of the comment before it, or empty."""

    page: str
    line: int
    language: str
    text: str
    marker: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page that people read, except the changelog and the benchmarks."""
    return [REPOSITORY / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")] + sorted(
        DOCS.rglob("*.md")
    )


def blocks(page: Path) -> list[Block]:
    """The blocks of code of a page, in order."""
    text = page.read_text()
    return [
        Block(
            page.relative_to(REPOSITORY).as_posix(),
            text.count("\n", 0, match.start("language")) + 1,
            match["language"],
            re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
            match["marker"] or "",
        )
        for match in _BLOCK.finditer(text)
    ]


def code_spans(page: Path) -> list[str]:
    """Texts between backticks, outside of blocks."""
    return _CODE_SPAN.findall(_BLOCK.sub("", page.read_text()))


def mainstem_commands(page: Path) -> Iterator[list[str]]:
    """The words of each `mainstem` command on a page, in blocks and in running text."""
    shown = [block for block in blocks(page) if block.language in ("sh", "text")]
    lines = [line for block in shown for line in block.text.replace("\\\n", " ").splitlines()]
    for line in [*lines, *code_spans(page)]:
        for command in _COMMAND.findall(line):
            yield shlex.split(command, comments=True)[1:]
