"""Help texts as plain paragraphs and two columns, which stay readable at 80 columns.

Typer's boxes have five columns, which leave twenty characters for a description beside a long metavar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

_OTHER_COMMANDS = "Commands"
_UNLIMITED = 10_000


class HeadedGroup(TyperGroup):
    """A group that lists its commands below the headings of their `rich_help_panel`, in full sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        by_heading: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if command is None or command.hidden:
                continue
            panel = getattr(command, "rich_help_panel", None)
            heading = panel if isinstance(panel, str) else _OTHER_COMMANDS
            by_heading.setdefault(heading, []).append((name, command.get_short_help_str(_UNLIMITED)))
        write_headed(formatter, by_heading)


def write_headed(formatter: Any, by_heading: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write lists of (command, description), each below its heading."""
    for heading, rows in by_heading.items():
        with formatter.section(heading):
            formatter.write_dl(rows)


def use_plain_help(app: typer.Typer) -> None:
    """Show the help of `app` and of all groups in it as plain text. Call it after the groups were added."""
    app.rich_markup_mode = None
    if not (isinstance(app.info.cls, type) and issubclass(app.info.cls, HeadedGroup)):
        app.info.cls = HeadedGroup
    for group in app.registered_groups:
        if group.typer_instance is not None:
            use_plain_help(group.typer_instance)
