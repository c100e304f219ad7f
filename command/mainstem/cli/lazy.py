"""Commands that are imported when they are used: `mainstem topic list` imports nothing of `mainstem load`.

Importing all of them and making their parsers takes three times as long as importing one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pkgutil import resolve_name
from typing import Any

import typer

from mainstem.cli.argument_texts import check_texts_of
from mainstem.cli.help import HeadedGroup, use_plain_help, write_headed


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command of the top level before it is imported."""

    name: str
    where: str
    """`module:attribute`, below `mainstem.cli`. The attribute is a function, or the Typer of a group."""
    help: str
    """Its line in the list of commands; the first paragraph of its own help."""

    @property
    def module(self) -> str:
        """The full name of the module."""
        return f"mainstem.cli.{self.where.partition(':')[0]}"

    def load(self) -> Any:
        """Import the command and make its parser."""
        loaded = resolve_name(f"mainstem.cli.{self.where}")
        if isinstance(loaded, typer.Typer):
            use_plain_help(loaded)
            command: Any = typer.main.get_group(loaded)
        else:
            app = typer.Typer(add_completion=False)
            use_plain_help(app)
            app.command()(loaded)
            command = typer.main.get_command(app)
        command.name = self.name
        check_texts_of(command)
        return command


class _Commands(Mapping[str, Any]):
    """Commands by name, each imported by the first look at it."""

    def __init__(self, commands: Iterable[LazyCommand]) -> None:
        self._lazy = {command.name: command for command in commands}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self._lazy[name].load()
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._lazy

    def __iter__(self) -> Iterator[str]:
        return iter(self._lazy)

    def __len__(self) -> int:
        return len(self._lazy)


def lazy_group(commands_by_heading: Mapping[str, Sequence[LazyCommand]]) -> type[HeadedGroup]:
    """A class for the `cls` of a Typer. Its help lists the commands below their headings."""

    class LazyGroup(HeadedGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands: Any = _Commands(chain.from_iterable(commands_by_heading.values()))

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            del ctx
            lines = {
                heading: [(command.name, command.help) for command in commands]
                for heading, commands in commands_by_heading.items()
            }
            write_headed(formatter, lines)

    return LazyGroup
