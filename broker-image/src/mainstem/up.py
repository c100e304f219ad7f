"""`mainstem up`: the local stack in the foreground, until it is told to stop."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from mainstem import installed_version
from mainstem.client import DEFAULT_BOOTSTRAP_SERVERS
from mainstem.errors import StackError
from mainstem.options import BOOTSTRAP_VARIABLE, OutputChoice, settings_of
from mainstem.output import Column, Output, OutputFormat, facts, table
from mainstem.stack import Stack
from mainstem.stack_folder import StackFolder

DEFAULT_PORT: Final = 9092
DEFAULT_DATA_DIRECTORY: Final = Path("data/local")
_LOOK_SECONDS: Final = 0.2
# A process that ended by itself is started again after this, as a StatefulSet would.
_RESTART_DELAY_SECONDS: Final = 2.0


@dataclass(slots=True)
class RestartBudget:
    """How often a process may end by itself before we stop trying: `limit` times in `window_seconds`."""

    limit: int = 3
    window_seconds: float = 60.0
    _ends: dict[str, deque[float]] = field(default_factory=dict)

    def allows(self, name: str, now_seconds: float) -> bool:
        """Note that process `name` ended; whether to start it again."""
        ends = self._ends.setdefault(name, deque())
        ends.append(now_seconds)
        while ends[0] <= now_seconds - self.window_seconds:
            ends.popleft()
        return len(ends) < self.limit


def up(
    brokers: Annotated[
        int | None,
        typer.Option("--brokers", "-n", min=1, help="How many; else as many as the data folder has, or 1."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", "-p", min=1, max=65_535, help="Port of broker 1; the next have the next.")
    ] = DEFAULT_PORT,
    data: Annotated[
        Path, typer.Option("--data", "-d", metavar="DIR", help="Folder that keeps everything.")
    ] = DEFAULT_DATA_DIRECTORY,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", metavar="NAME=VALUE", help="A setting of all brokers; may be repeated."
        ),
    ] = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Run a local cluster here: ZooKeeper and brokers, until Ctrl-C.

    DIR/stack.json tells scripts the addresses and process ids while it runs. The next `up` on the same
    folder goes on with its data.
    """
    out = Output(output)
    stack = Stack(data, brokers or StackFolder(data).broker_count() or 1, port, settings_of(config))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    started = time.monotonic()
    try:
        with out.waiting(f"Starting ZooKeeper and {_counted(stack)}"):
            stack.start()
        _show(out, stack, time.monotonic() - started)
        _watch(out, stack)
    except KeyboardInterrupt:
        _stop(out, stack)
    except BaseException:
        with contextlib.suppress(StackError):  # the first error is the one to tell
            stack.stop()
        raise


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _watch(out: Output, stack: Stack) -> None:
    """Look after the processes for ever.

    Raises:
        StackError: one of them ends again and again.
    """
    budget = RestartBudget()
    while True:
        time.sleep(_LOOK_SECONDS)
        for name, how in stack.ended_by_themselves().items():
            if not budget.allows(name, time.monotonic()):
                raise StackError(f"{how}\nIt ended {budget.limit} times within a minute, so the stack stops.")
            out.warn(f"{how}\nIt is started again in {_RESTART_DELAY_SECONDS:.0f} s.")
            time.sleep(_RESTART_DELAY_SECONDS)
            try:
                stack.restart(name)
            except StackError as error:
                out.warn(str(error))  # it has ended once more, and is looked at again
            else:
                out.done(f"{name} is back.")


def _stop(out: Output, stack: Stack) -> None:
    # A terminal that was closed can be told nothing, and the stack must stop all the same.
    with contextlib.suppress(OSError):
        out.say(f"\nStopping {_counted(stack)} and ZooKeeper.")
    try:
        stack.stop()
    except KeyboardInterrupt:
        stack.kill()
        raise StackError(
            "Interrupted while stopping: everything was killed, and recovers next time."
        ) from None
    with contextlib.suppress(OSError):
        out.done(f"Stopped. All data is in {stack.data_directory}.")


def _show(out: Output, stack: Stack, seconds: float) -> None:
    state = stack.state()
    rows = [
        {"broker": broker["id"], "address": f"127.0.0.1:{broker['port']}", "process": str(broker["pid"])}
        for broker in state["brokers"]
    ]
    headline = {
        "Cluster": state["cluster_id"],
        "ZooKeeper": f"127.0.0.1:{stack.zookeeper_port}",
        "Data": str(stack.data_directory),
    }
    columns = [Column("Broker", "broker"), Column("Address", "address"), Column("Process", "process")]
    out.done(f"Mainstem {installed_version()} is up: {_counted(stack)}, ready in {seconds:.1f} s.")
    out.result(state, facts(headline), table("", columns, rows))
    if DEFAULT_BOOTSTRAP_SERVERS not in stack.bootstrap_servers:
        out.say(f"In another terminal first: export {BOOTSTRAP_VARIABLE}={stack.bootstrap_servers}")
    out.say("Ctrl-C stops it.", style="dim")


def _counted(stack: Stack) -> str:
    count = len(stack.broker_ids)
    return "1 broker" if count == 1 else f"{count} brokers"
