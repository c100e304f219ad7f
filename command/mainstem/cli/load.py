"""`mainstem load`: run, status, backfill, rewind, replay-dead, maintain. `mainstem load TOPIC` is `run`."""

from __future__ import annotations

from typing import Any

import typer

from mainstem.cli.help import HeadedGroup
from mainstem.cli.load_again import backfill, replay_dead, rewind, status
from mainstem.cli.load_maintain import maintain
from mainstem.cli.load_run import run


class LoadGroup(HeadedGroup):
    """Commands about loads; what is none of them is the topic of `run`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


app = typer.Typer(
    cls=LoadGroup,
    no_args_is_help=True,
    help="Load topics into warehouse tables. `mainstem load TOPIC` is short for `mainstem load run TOPIC`.",
)
app.command()(run)
app.command()(status)
app.command()(backfill)
app.command()(rewind)
app.command()(replay_dead)
app.command()(maintain)
