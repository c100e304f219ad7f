"""The command `mainstem`: which commands there are, what is common to them, and how they end.

One file per family of commands; this one only puts them together. `main` is the entry point.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from mainstem import installed_version
from mainstem.cli.closed_input import ClosedInput
from mainstem.cli.help import use_plain_help
from mainstem.cli.lazy import LazyCommand, lazy_group
from mainstem.cli.options import BOOTSTRAP_VARIABLE
from mainstem.cli.output import OutputFormat, print_error, print_line, print_traceback
from mainstem.errors import CommandError

COMMANDS: Final = {
    "On this machine": (
        LazyCommand("up", "up:up", "Run a local cluster: ZooKeeper and brokers, until Ctrl-C."),
        LazyCommand(
            "status",
            "stack_commands:status",
            "Show the local stack: addresses, processes, and whether each broker answers.",
        ),
        LazyCommand("down", "stack_commands:down", "Stop the local stack; its data stays."),
        LazyCommand(
            "doctor",
            "stack_commands:doctor",
            "Check this machine and the local stack, and show what to type for each problem.",
        ),
        LazyCommand(
            "demo",
            "demo:demo",
            "Send 336,776 real events to three brokers, load them into a table and query it.",
        ),
    ),
    "Topics and records": (
        LazyCommand("apply", "apply:apply", "Create and change topics, users and groups as in manifests."),
        LazyCommand("produce", "produce:produce", "Send lines to a topic, one record each."),
        LazyCommand("consume", "consume:consume", "Show the records of topics, one per line."),
        LazyCommand("topic", "topic:app", "Create, list, describe, alter and delete topics."),
        LazyCommand("group", "group:app", "Show consumer groups, reset their offsets, delete them."),
        LazyCommand("schema", "schema:app", "Show, register and check the schemas in a registry."),
        LazyCommand("transaction", "transaction:app", "Show transactions, and end those that hang."),
        LazyCommand("log", "log:app", "Inspect the files of partitions."),
    ),
    "Trials": (
        LazyCommand(
            "verify",
            "verify:verify",
            "Send numbered records, read them back, and report lost, duplicate and reordered ones.",
        ),
        LazyCommand("bench", "bench:app", "Measure throughput and latency of this cluster."),
    ),
    "Warehouse": (
        LazyCommand("sql", "sql:sql", "Query the tables of a warehouse in SQL."),
        LazyCommand(
            "audit",
            "audit:audit",
            "Compare what producers sent, what brokers store and what the table holds.",
        ),
        LazyCommand("load", "load:app", "Load topics into warehouse tables."),
    ),
    "The cluster": (
        LazyCommand("cluster", "cluster:app", "Show the cluster's state, move replicas, elect leaders."),
        LazyCommand("profile", "profile:app", "Remember clusters: their addresses and client properties."),
        LazyCommand("zk", "zk:app", "Inspect ZooKeeper: brokers, topics, consumers, offsets."),
        LazyCommand("broker", "broker:app", "Show the brokers and their data."),
        LazyCommand(
            "config",
            "config:app",
            "Show and change settings of topics, brokers and groups, and quotas of clients.",
        ),
        LazyCommand("user", "user:app", "Show, create and delete users that log in by a password (SCRAM)."),
        LazyCommand("acl", "acl:app", "Show, add and remove ACLs."),
    ),
}

app = typer.Typer(
    name="mainstem",
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # `main` shows errors as sentences
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Partitioned, replicated logs that every Kafka client uses, from event to warehouse table.",
)
use_plain_help(app)

_verbose = False


def _show_version(is_requested: bool) -> None:
    if is_requested:
        print_line(f"mainstem {installed_version()}")
        raise typer.Exit


@app.callback()
def common(
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers",
            "-b",
            metavar="HOST:PORT,...",
            envvar=BOOTSTRAP_VARIABLE,
            help="Brokers to connect to first. Default: the client property bootstrap.servers, else the"
            " profile in use, else the local stack.",
        ),
    ] = None,
    client_properties: Annotated[
        list[str] | None,
        typer.Option(
            "--client-property",
            "-X",
            metavar="NAME=VALUE|@FILE",
            help="A setting of the Kafka client (librdkafka), or @ and a file of such lines; repeatable.",
        ),
    ] = None,
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
    del bootstrap_servers, client_properties, output, version
    global _verbose
    _verbose = verbose


def main() -> None:
    """Run the command line; every error a person can meet ends as one sentence on stderr."""
    # Streams that the parent process has closed (`>&-`, `<&-`) are None.
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # for as long as the process lives
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stdin is None:
        sys.stdin = ClosedInput()
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
    except UnicodeEncodeError as error:  # arguments are checked before a command runs
        if _verbose:
            print_traceback()
        print_error(
            f"The output has characters that {error.encoding} does not have: set PYTHONIOENCODING=utf-8."
        )
        sys.exit(1)
    except OSError as error:  # above all when writing the output
        if _verbose:
            print_traceback()
        print_error(f"{error.filename or 'The output'}: {error.strerror or error}.")
        sys.exit(1)
    except Exception as error:  # noqa: BLE001  # the last place that can say something
        if _verbose:
            print_traceback()
        print_error(f"{type(error).__name__}: {error} (unexpected; `mainstem --verbose ...` shows where)")
        sys.exit(1)
