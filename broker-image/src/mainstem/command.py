"""The command `mainstem`: which commands there are, what is common to them, and how they end.

One file per family of commands; this one only puts them together. `main` is the entry point.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mainstem import (
    bench_commands,
    broker_commands,
    cluster_commands,
    config_commands,
    group_commands,
    installed_version,
    logs,
    topics,
    zk,
)
from mainstem.apply import apply
from mainstem.client import DEFAULT_BOOTSTRAP_SERVERS
from mainstem.consume import consume
from mainstem.demo import demo
from mainstem.errors import CommandError
from mainstem.load import load
from mainstem.options import BOOTSTRAP_VARIABLE
from mainstem.output import OutputFormat, print_error, print_line, print_traceback
from mainstem.produce import produce
from mainstem.sql import sql
from mainstem.up import up
from mainstem.verify import verify

app = typer.Typer(
    name="mainstem",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # `main` shows errors as sentences
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Partitioned, replicated logs that every Kafka client uses, from event to warehouse table.",
)

_LOCAL, _CLUSTER, _TRIALS = "On this machine", "The cluster", "Trials"
_RECORDS, _WAREHOUSE = "Topics and records", "Warehouse"
app.command(rich_help_panel=_LOCAL)(up)
app.command(rich_help_panel=_LOCAL)(demo)
app.add_typer(cluster_commands.app, name="cluster", rich_help_panel=_CLUSTER)
app.add_typer(zk.app, name="zk", rich_help_panel=_CLUSTER)
app.add_typer(broker_commands.app, name="broker", rich_help_panel=_CLUSTER)
app.add_typer(config_commands.app, name="config", rich_help_panel=_CLUSTER)
app.command(rich_help_panel=_RECORDS)(apply)
app.add_typer(topics.app, name="topic", rich_help_panel=_RECORDS)
app.command(rich_help_panel=_RECORDS)(produce)
app.command(rich_help_panel=_RECORDS)(consume)
app.add_typer(group_commands.app, name="group", rich_help_panel=_RECORDS)
app.add_typer(logs.app, name="log", rich_help_panel=_RECORDS)
app.add_typer(bench_commands.app, name="bench", rich_help_panel=_TRIALS)
app.command(rich_help_panel=_TRIALS)(verify)
app.command(rich_help_panel=_WAREHOUSE)(load)
app.command(rich_help_panel=_WAREHOUSE)(sql)

_verbose = False


def _show_version(wanted: bool) -> None:
    if wanted:
        print_line(f"mainstem {installed_version()}")
        raise typer.Exit


@app.callback()
def common(
    bootstrap_servers: Annotated[
        str,
        typer.Option(
            "--bootstrap-servers",
            "-b",
            metavar="HOST:PORT,...",
            envvar=BOOTSTRAP_VARIABLE,
            help="Brokers to begin with.",
        ),
    ] = DEFAULT_BOOTSTRAP_SERVERS,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="Tables for people, JSON for programs.")
    ] = OutputFormat.TABLE,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show where an error came from in the code.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Take what is common to all commands; `options.py` reads the rest from the context."""
    del bootstrap_servers, output, version
    global _verbose
    _verbose = verbose


def main() -> None:
    """Run the command line; every error a person can meet ends as one sentence on stderr."""
    if sys.stdout is None:  # closed by whoever started us (`>&-`)
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # for as long as the process lives
    try:
        app()
    except CommandError as error:
        if _verbose:
            print_traceback()
        print_error(str(error))
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:  # an image holds what its program needs, and no more
        if _verbose:
            print_traceback()
        print_error(f"This needs {error.name}, which is not installed here: pip install 'mainstem[all]'.")
        sys.exit(1)
    except OSError as error:  # above all of writing what was asked for
        if _verbose:
            print_traceback()
        print_error(f"{error.filename or 'The output'}: {error.strerror or error}.")
        sys.exit(1)
    except Exception as error:  # noqa: BLE001  # the last place that can say something
        if _verbose:
            print_traceback()
        print_error(f"{type(error).__name__}: {error} (unexpected; `mainstem --verbose ...` shows where)")
        sys.exit(1)
