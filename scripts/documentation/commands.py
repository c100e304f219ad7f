"""The reference of the command `mainstem`, from the command's own help."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import typer
import typer.main

from scripts.documentation.markdown import code, escaped, table

_INTRODUCTION: Final = """# Commands

`mainstem COMMAND --help` shows the same on a terminal. `--bootstrap-servers` and `--output` may be written
before or after the command's name.
"""


def page(app: typer.Typer) -> str:
    """All commands, families in alphabetical order."""
    root: Any = typer.main.get_command(app)
    sections = [_options(root, typer.Context(root, info_name="mainstem"))]
    for name, command in sorted(_commands(root, "mainstem")):
        sections.append(_section(name, command))
    return "\n".join([_INTRODUCTION, "## Options of all commands\n", *sections])


def _commands(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if getattr(command, "commands", None):
            yield from _commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def _section(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    text = escaped(inspect.cleandoc(command.help or "").replace("\b\n", ""))
    return f"## {name}\n\n{text}\n\n```text\n{usage}\n```\n\n{_options(command, context)}"


def _options(command: Any, context: typer.Context) -> str:
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [(code(record[0]), escaped(record[1])) for record in records if record is not None]
    return table(("argument or option", "meaning"), rows) if rows else ""
