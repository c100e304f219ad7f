"""`mainstem log`: dump, verify, offsets, transactions. The files of partitions, read without a broker."""

from __future__ import annotations

import typer

from mainstem.cli.log_dump import dump
from mainstem.cli.log_offsets import offsets
from mainstem.cli.log_transactions import transactions
from mainstem.cli.log_verify import verify

app = typer.Typer(no_args_is_help=True, help="Inspect the files of partitions.")
app.command()(dump)
app.command()(verify)
app.command()(offsets)
app.command()(transactions)
