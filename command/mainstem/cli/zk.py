"""`mainstem zk`: ls, get, stat, watch. Looks into ZooKeeper and changes nothing there."""

from __future__ import annotations

import signal
import threading
from datetime import datetime
from types import FrameType
from typing import Annotated, Any, Final

import orjson
import typer
from rich.text import Text

from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    completion_cluster,
    connect,
)
from mainstem.cli.output import (
    Column,
    Output,
    OutputFormat,
    drop_stdout,
    facts,
    json_text,
    print_line,
    stdout_bytes,
    table,
)
from mainstem.errors import CommandError
from mainstem.records.text import printable
from mainstem.times import text_of_ms
from mainstem.zookeeper_tree import (
    Change,
    ZooKeeperTree,
    ZooKeeperUnreachable,
    changes,
    find_zookeeper,
    node_path,
)

app = typer.Typer(no_args_is_help=True, help="Inspect ZooKeeper: brokers, topics, consumers, offsets.")

_VARIABLE: Final = "MAINSTEM_ZOOKEEPER"
_COMPLETION_SECONDS: Final = 1.0


def complete_paths(context: typer.Context, incomplete: str) -> list[str]:
    """Paths that begin with `incomplete`; none when ZooKeeper does not answer at once."""
    parent = node_path(incomplete.rpartition("/")[0])
    try:
        address = find_zookeeper(context.params.get("zookeeper"), completion_cluster(context))
        with ZooKeeperTree(address, _COMPLETION_SECONDS) as tree:
            nodes = tree.children(parent)
    except CommandError:
        return []
    paths = [node.path + "/" * (node.stat.numChildren > 0) for node in nodes]
    prefix = "/" + incomplete.removeprefix("/")
    return [path for path in paths if path.startswith(prefix)]


NodePath = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="Path of the node, such as /brokers/ids.", autocompletion=complete_paths
    ),
]
ZooKeeperAddress = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        "-z",
        metavar="HOST:PORT,...",
        envvar=_VARIABLE,
        show_envvar=False,
        help=f"ZooKeeper's address. Default: as a broker reports it. [env: {_VARIABLE}]",
    ),
]

Recursive = Annotated[bool, typer.Option("--recursive", "-R", help="Include all nodes below.")]


@app.command("ls")
def list_nodes(
    path: NodePath = "/",
    recursive: Recursive = False,
    zookeeper: ZooKeeperAddress = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the nodes below PATH."""
    out, path = Output(output), node_path(path)
    with ZooKeeperTree(find_zookeeper(zookeeper, connect(bootstrap_servers, client_properties))) as tree:
        nodes = tree.descendants(path) if recursive else tree.children(path)
    rows: list[dict[str, object]] = [
        {
            "path": node.path,
            "ephemeral": node.stat.ephemeralOwner != 0,
            "children": node.stat.numChildren,
            "bytes": node.stat.dataLength,
        }
        for node in nodes
    ]
    columns = [
        Column("Node", "path"),
        Column("Ephemeral", "ephemeral"),
        Column("Children", "children"),
        Column("Bytes", "bytes"),
    ]
    if nodes or out.json:
        out.result(rows, table("", columns, rows))
    else:
        out.say(f"There is nothing below {path}.", style="dim")


@app.command()
def get(
    path: NodePath,
    zookeeper: ZooKeeperAddress = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a node's content; JSON is formatted."""
    out = Output(output)
    with ZooKeeperTree(find_zookeeper(zookeeper, connect(bootstrap_servers, client_properties))) as tree:
        node = tree.node(node_path(path))
    value = _value(node.data)
    shown = value if isinstance(value, str) else json_text(value)
    out.result(
        {"path": node.path, "data": value, "version": node.stat.version},
        Text("\n".join(printable(line) for line in shown.split("\n"))),
    )


@app.command()
def stat(
    path: NodePath,
    zookeeper: ZooKeeperAddress = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a node's metadata: transactions, times, versions, the session that owns it."""
    out = Output(output)
    with ZooKeeperTree(find_zookeeper(zookeeper, connect(bootstrap_servers, client_properties))) as tree:
        node = tree.node(node_path(path))
    node_stat = node.stat
    values = {name: getattr(node_stat, name) for name in type(node_stat).__dataclass_fields__}
    shown = {
        name: text_of_ms(value)
        if name in ("ctime", "mtime")
        else f"{value:#x}"
        if name.endswith("zxid") or name == "ephemeralOwner"
        else value
        for name, value in values.items()
    }
    out.result({"path": node.path, **values}, facts(shown))


@app.command()
def watch(
    path: NodePath,
    recursive: Recursive = False,
    zookeeper: ZooKeeperAddress = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Watch a node and its children until Ctrl-C.

    The node need not exist yet. Changes in quick succession are shown as one. JSON output has one object per
    line.
    """
    out, path = Output(output), node_path(path)
    try:
        with ZooKeeperTree(find_zookeeper(zookeeper, connect(bootstrap_servers, client_properties))) as tree:
            follow(out, tree, path, recursive)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    except BrokenPipeError:
        drop_stdout()
        raise typer.Exit(0) from None


def follow(out: Output, tree: ZooKeeperTree, path: str, recursive: bool) -> None:
    """Show changes until Ctrl-C, which is raised, or has been taken for a broken connection."""
    news, ended = threading.Event(), threading.Event()

    def on_change(_event: Any) -> None:
        news.set()

    def end(_number: int, _frame: FrameType | None) -> None:
        # Noted too: in the midst of a question kazoo takes whatever is raised for a broken connection.
        ended.set()
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for what a script runs in the background
        signal.signal(signal.SIGINT, end)
    initial = tree.reading(path, recursive, on_change)
    out.say(f"Watching {path}, where there {_counted(len(initial))} now. Ctrl-C ends it.", style="dim")
    while True:
        news.wait()
        news.clear()
        try:
            now = tree.reading(path, recursive, on_change)
        except ZooKeeperUnreachable as error:
            if ended.is_set():
                return
            out.warn(str(error))
            news.set()
            continue
        for change in changes(initial, now):
            _show(out, change)
        initial = now


def _show(out: Output, change: Change) -> None:
    now, kind, node = datetime.now().astimezone(), change.kind.value, change.node
    if out.json:
        line = {
            "time": now.isoformat(timespec="milliseconds"),
            "change": kind,
            "path": node.path,
            "data": _value(node.data),
        }
        stdout_bytes().write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        stdout_bytes().flush()
        return
    time = f"{now:%H:%M:%S}.{now.microsecond // 1000:03d}"
    data = printable(node.data.decode("utf-8", "backslashreplace"))
    print_line(f"{time}  {kind:<7}  {node.path}  {data}".rstrip())


def _counted(nodes: int) -> str:
    return "is nothing" if nodes == 0 else "is 1 node" if nodes == 1 else f"are {nodes:,} nodes"


def _value(data: bytes) -> Any:
    """A node's content: the object or list that it is JSON of, or text."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict | list) else data.decode("utf-8", "backslashreplace")
