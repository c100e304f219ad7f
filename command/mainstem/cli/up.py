"""`mainstem up`: the local stack, in the foreground until Ctrl-C or in the background with --detach."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, NoReturn

import typer

from mainstem.cli.number_options import integer
from mainstem.cli.options import BOOTSTRAP_VARIABLE, OutputChoice, settings_of
from mainstem.cli.output import Column, Output, OutputFormat, facts, short_path, table
from mainstem.errors import BadInput, StackError
from mainstem.kafka.client import DEFAULT_BOOTSTRAP_SERVERS
from mainstem.kafka.settings import in_milliseconds
from mainstem.local.background import start_in_background
from mainstem.local.child_process import ProcessExit
from mainstem.local.limits import raise_open_file_limit
from mainstem.local.stack import Stack
from mainstem.local.stack_folder import DEFAULT_DATA_DIRECTORY, StackFolder
from mainstem.local.zookeeper_process import STANDARD_PORT
from mainstem.schema_registry import DEFAULT_PORT as REGISTRY_PORT

DEFAULT_PORT: Final = 9092
_POLL_SECONDS: Final = 0.2
# A process that ended unexpectedly is restarted after this delay, as in a StatefulSet.
_RESTART_DELAY_SECONDS: Final = 2.0
_ELECTION_POLL_SECONDS: Final = 1.0
_AUTOMATIC_ELECTIONS: Final = "auto.leader.rebalance.enable"

DataDirectory = Annotated[
    Path, typer.Option("--data", "-d", metavar="DIR", help="Folder of the stack's data.")
]


@dataclass(slots=True)
class RestartBudget:
    """How often a process may end unexpectedly before `up` gives up: `limit` times in `window_seconds`."""

    limit: int = 3
    window_seconds: float = 60.0
    _ends: dict[str, deque[float]] = field(default_factory=dict)

    def allows(self, name: str, now_seconds: float) -> bool:
        """Record that process `name` ended; returns whether to restart it."""
        ends = self._ends.setdefault(name, deque())
        ends.append(now_seconds)
        while ends[0] <= now_seconds - self.window_seconds:
            ends.popleft()
        return len(ends) < self.limit


def up(
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            **integer(1),
            help="Number of brokers. Default: the number of brokers with data in the folder, or 1.",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option("--port", **integer(1, 65_535), help="Port of broker 1; others use the next ports."),
    ] = DEFAULT_PORT,
    zookeeper_port: Annotated[
        int | None,
        typer.Option(
            "--zookeeper-port",
            **integer(1, 65_535),
            help=f"Port of ZooKeeper. Default: {STANDARD_PORT} if it is free, else any free port.",
        ),
    ] = None,
    data: DataDirectory = DEFAULT_DATA_DIRECTORY,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="NAME=VALUE",
            help="A setting of all brokers; repeatable. Settings in ms take durations such as 7d.",
        ),
    ] = None,
    schema_registry: Annotated[
        bool, typer.Option("--schema-registry", help="Run a schema registry, too; see `mainstem schema`.")
    ] = False,
    schema_registry_port: Annotated[
        int, typer.Option("--schema-registry-port", **integer(1, 65_535), help="Port of the schema registry.")
    ] = REGISTRY_PORT,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; `mainstem down` stops it.")
    ] = False,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Run a local cluster: ZooKeeper and brokers, until Ctrl-C.

    While it runs, DIR/stack.json has its addresses and process ids. The next `up` on the same folder
    continues with its data.
    """
    out = Output(output)
    folder = StackFolder(data)
    broker_count = brokers or folder.broker_count() or 1
    broker_settings = broker_settings_of(config)
    started = time.monotonic()
    if detach:
        arguments = ["--brokers", broker_count, "--port", port, "--data", folder.path]
        arguments += ["--zookeeper-port", zookeeper_port] if zookeeper_port else []
        if schema_registry:
            arguments += ["--schema-registry", "--schema-registry-port", schema_registry_port]
        arguments += [part for pair in config or [] for part in ("--config", pair)]
        with out.waiting(_starting(broker_count)):
            state = start_in_background(folder, list(map(str, arguments)))
        _show(out, state, time.monotonic() - started)
        out.say("`mainstem status` shows it, `mainstem down` stops it.", style="dim")
        return
    raise_open_file_limit()
    stack = Stack(
        data,
        broker_count,
        port,
        broker_settings,
        zookeeper_port=zookeeper_port or 0,
        preferred_zookeeper_port=STANDARD_PORT,
        schema_registry_port=schema_registry_port if schema_registry else None,
    )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with out.waiting(_starting(broker_count)):
            stack.start()
        _show(out, stack.state(), time.monotonic() - started)
        out.say("Ctrl-C stops it.", style="dim")
        _supervise(out, stack, elect=broker_settings.get(_AUTOMATIC_ELECTIONS) != "false")
    except KeyboardInterrupt:
        _stop(out, stack)
    except BaseException:
        with contextlib.suppress(StackError):  # the first error is the one to report
            stack.stop()
        raise


def broker_settings_of(pairs: Sequence[str] | None) -> dict[str, str]:
    """The settings in `name=value` texts, with durations in milliseconds.

    Raises:
        BadInput: brokers do not know one of them; the message names similar ones. A broker itself only logs a
            warning, as Apache Kafka does.
    """
    import difflib

    from mainstem_broker.config.broker_settings import BROKER_SETTINGS

    settings = {name: in_milliseconds(name, text) or "" for name, text in settings_of(pairs).items()}
    for name in settings:
        if name in BROKER_SETTINGS:
            continue
        similar = difflib.get_close_matches(name, BROKER_SETTINGS, n=3)
        hint = f": did you mean {' or '.join(similar)}?" if similar else "."
        raise BadInput(f"Brokers have no setting {name}{hint}")
    return settings


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _supervise(out: Output, stack: Stack, *, elect: bool) -> None:
    """Restart processes that end, and elect preferred leaders once all replicas are in sync. Never returns.

    Raises:
        StackError: one of the processes ends again and again.
    """
    budget = RestartBudget()
    election_pending = elect
    next_election_check = time.monotonic()
    while True:
        time.sleep(_POLL_SECONDS)
        for process_exit in stack.unexpected_exits():
            if not budget.allows(process_exit.name, time.monotonic()):
                raise StackError(
                    f"{process_exit}\nIt ended {budget.limit} times within a minute, so the stack stops."
                )
            _restart(out, stack, process_exit)
            election_pending = elect
        if election_pending and time.monotonic() >= next_election_check:
            election_pending = not stack.restore_preferred_leaders()
            next_election_check = time.monotonic() + _ELECTION_POLL_SECONDS


def _restart(out: Output, stack: Stack, process_exit: ProcessExit) -> None:
    name = process_exit.name
    with out.waiting(f"{name} {process_exit.cause}; restarting it"):
        time.sleep(_RESTART_DELAY_SECONDS)
        try:
            stack.restart(name)
        except StackError as error:
            out.warn(str(error))  # `unexpected_exits` still names it: the loop above counts and restarts it
            return
    log = short_path(process_exit.log_path)
    out.problem(f"{name} {process_exit.cause}, now pid {stack.process_id(name)}, log {log}")


def _stop(out: Output, stack: Stack) -> None:
    # The terminal may be closed, and the stack must stop all the same.
    with contextlib.suppress(OSError):
        out.say(f"\nStopping {_counted(len(stack.broker_ids))} and ZooKeeper.")
    try:
        stack.stop()
    except KeyboardInterrupt:
        stack.kill()
        raise StackError(
            "Interrupted while stopping: all processes were killed and recover at the next start."
        ) from None
    with contextlib.suppress(OSError):
        out.done(f"Stopped. All data is in {stack.data_directory}.")


def _show(out: Output, state: Mapping[str, Any], seconds: float) -> None:
    """Show addresses and processes from the content of `stack.json`."""
    out.done(
        f"Mainstem {state['version']} is up: {_counted(len(state['brokers']))}, ready in {seconds:.1f} s."
    )
    out.result(state, *stack_tables(state))
    if DEFAULT_BOOTSTRAP_SERVERS not in state["bootstrap_servers"].split(","):
        out.say("In another terminal first:")
        out.command(f"export {BOOTSTRAP_VARIABLE}={state['bootstrap_servers']}")


def stack_tables(state: Mapping[str, Any], states: Mapping[int, str] | None = None) -> list[Any]:
    """The addresses and processes of a stack.

    Args:
        state: the content of `stack.json`.
        states: a word for each broker, by id.
    """
    rows = [
        {
            "broker": broker["id"],
            "address": f"127.0.0.1:{broker['port']}",
            "process": None if broker["pid"] is None else str(broker["pid"]),
            "state": (states or {}).get(broker["id"]),
        }
        for broker in state["brokers"]
    ]
    headline = {
        "Cluster": state["cluster_id"],
        "ZooKeeper": f"127.0.0.1:{state['zookeeper']['port']}",
    }
    if state.get("schema_registry"):
        headline["Schema registry"] = state["schema_registry"]["url"]
    headline["Data"] = state["data_directory"]
    columns = [Column("Broker", "broker"), Column("Address", "address"), Column("Process", "process")]
    columns += [Column("State", "state")] if states is not None else []
    return [facts(headline), table("", columns, rows)]


def _starting(brokers: int) -> str:
    return f"Starting ZooKeeper and {_counted(brokers)}"


def _counted(brokers: int) -> str:
    return "1 broker" if brokers == 1 else f"{brokers} brokers"
