"""`mainstem status`, `down` and `doctor`: the local stack of `mainstem up`, and the machine it runs on."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from mainstem.cli.cluster_status import UNHEALTHY_EXIT_CODE
from mainstem.cli.number_options import integer
from mainstem.cli.options import OutputChoice
from mainstem.cli.output import Output, OutputFormat
from mainstem.cli.up import DEFAULT_PORT, DataDirectory, stack_tables
from mainstem.errors import program_name
from mainstem.kafka.probe import ClusterAnswer, ask_cluster
from mainstem.local.background import stop_in_background
from mainstem.local.diagnosis import (
    Check,
    CheckState,
    check_brokers,
    check_disk,
    check_jars,
    check_java,
    check_open_files,
    check_packages,
    check_ports,
    check_zookeeper,
    failures,
)
from mainstem.local.ports import port_is_free
from mainstem.local.stack_folder import DEFAULT_DATA_DIRECTORY, StackFolder
from mainstem.local.zookeeper_process import serves
from mainstem.schema_registry import registry_is_ready

_MARKS: Final = {
    CheckState.OK: Text("✓", style="green"),
    CheckState.IDLE: Text("-", style="dim"),
    CheckState.FAILED: Text("✗", style="red"),
}


def status(data: DataDirectory = DEFAULT_DATA_DIRECTORY, output: OutputChoice = OutputFormat.TABLE) -> None:
    """Show the local stack: addresses, processes, and whether each broker answers.

    Exits with 3 if it is not running or a part of it does not answer. `mainstem cluster status` shows the
    partitions of any cluster.
    """
    out, folder = Output(output), StackFolder(data)
    owner_pid = folder.owner_pid()
    state = folder.read_state() if owner_pid is not None else None
    if state is None:
        out.result({"running": owner_pid is not None, "ready": False, "pid": owner_pid})
        if owner_pid is None:
            out.say(f"No stack is running in {folder.path}. To start one:")
            out.command(f"{program_name()} up --detach")
        else:
            out.say(f"The stack in {folder.path} is starting or stopping (process {owner_pid}).")
        raise typer.Exit(UNHEALTHY_EXIT_CODE)
    ports = {broker["id"]: broker["port"] for broker in state["brokers"]}
    answers = dict(zip(ports, _ask_all(ports.values()), strict=True))
    states = {broker["id"]: _state_of(broker["pid"], answers[broker["id"]]) for broker in state["brokers"]}
    zookeeper_serves = serves(state["zookeeper"]["port"])
    registry = state.get("schema_registry")
    registry_serves = registry is None or registry_is_ready(registry["url"])
    healthy = zookeeper_serves and registry_serves and set(states.values()) == {"up"}
    value = {
        "running": True,
        "ready": healthy,
        **state,
        "zookeeper": {**state["zookeeper"], "state": "up" if zookeeper_serves else "no answer"},
        "brokers": [{**broker, "state": states[broker["id"]]} for broker in state["brokers"]],
    }
    if registry is not None:
        value["schema_registry"] = {**registry, "state": "up" if registry_serves else "no answer"}
    out.result(value, *stack_tables(state, states))
    if not zookeeper_serves:
        out.problem(f"ZooKeeper does not answer at 127.0.0.1:{state['zookeeper']['port']}.")
    if registry is not None and not registry_serves:
        out.problem(f"The schema registry does not answer at {registry['url']}.")
    if not healthy:
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def down(data: DataDirectory = DEFAULT_DATA_DIRECTORY) -> None:
    """Stop the local stack; its data stays."""
    out, folder = Output(), StackFolder(data)
    with out.waiting("Stopping the brokers and ZooKeeper"):
        stopped = stop_in_background(folder)
    if stopped:
        out.done(f"Stopped. All data is in {folder.path}.")
    else:
        out.say(f"No stack is running in {folder.path}.")


def doctor(
    data: DataDirectory = DEFAULT_DATA_DIRECTORY,
    brokers: Annotated[
        int | None, typer.Option("--brokers", **integer(1), help="Number of brokers that `up` is to run.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", **integer(1, 65_535), help="Port of broker 1.")
    ] = DEFAULT_PORT,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Check this machine and the local stack, and show what to type for each problem.

    Checks packages, Java, disk, limits, ports, ZooKeeper and brokers. Exits with 1 if a check fails.
    """
    out, folder = Output(output), StackFolder(data)
    with out.waiting("Checking"):
        checks = _checks(folder, brokers or max(folder.broker_count(), 1), port)
    out.result([asdict(check) for check in checks], checks_table(checks))
    failed = failures(checks)
    if failed:
        raise typer.Exit(1)


def _checks(folder: StackFolder, broker_count: int, port: int) -> list[Check]:
    checks = [check_packages(), check_java(), check_jars(), check_disk(folder.path), check_open_files()]
    state = folder.running_state()
    checks.append(check_zookeeper(state, serves))
    if state is None:
        checks.append(check_ports(port, broker_count, port_is_free))
        checks.append(Check("Brokers", CheckState.IDLE, "No local stack is running.", "mainstem up --detach"))
        return checks
    ports = [broker["port"] for broker in state["brokers"]]
    answers = dict(zip(ports, _ask_all(ports), strict=True))
    logs = " ".join(broker["log"] for broker in state["brokers"] if answers[broker["port"]] is None)
    addresses = {f"127.0.0.1:{port}": answer for port, answer in answers.items()}
    checks.append(check_brokers(addresses, f"tail {logs}"))
    return checks


def checks_table(checks: Iterable[Check]) -> Table:
    """One line for each check, and below it what to type."""
    result = Table.grid(padding=(0, 1))
    result.add_column(width=1)
    result.add_column(no_wrap=True)
    result.add_column(overflow="fold")
    for check in checks:
        result.add_row(_MARKS[check.state], Text(check.name), Text(check.finding))
        if check.remedy:
            result.add_row("", "", Text.assemble(("Type: ", "dim"), (check.remedy, "bold")))
    return result


def _ask_all(ports: Iterable[int]) -> list[ClusterAnswer | None]:
    """The answers of the brokers at these ports, requested in parallel because a frozen broker is slow."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(ask_cluster, ports))


def _state_of(pid: int | None, answer: Any) -> str:
    if pid is None:
        return "down"
    return "up" if answer is not None else "no answer"
