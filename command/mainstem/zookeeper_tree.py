"""ZooKeeper's tree as the command sees it: nodes read and watched, and every failure a sentence.

`changes` compares two readings and is pure. Nothing here writes to ZooKeeper. kazoo is imported when a tree
is opened, for other commands have no use for it.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from confluent_kafka.admin import ConfigResource

from mainstem.errors import BadInput, ClusterUnreachable, CommandError
from mainstem.kafka.client import ADMIN_TIMEOUT_SECONDS, Cluster

_CONNECT_SECONDS: Final = 5.0
_SESSION_SECONDS: Final = 10.0


class ZooKeeperUnreachable(CommandError):
    """No ZooKeeper of the given addresses answered."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What ZooKeeper counts of a node, under ZooKeeper's names; times in ms since 1970."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeralOwner: int  # noqa: N815  # ZooKeeper's name, which people look for
    dataLength: int  # noqa: N815  # likewise
    numChildren: int  # noqa: N815  # likewise
    pzxid: int


@dataclass(frozen=True, slots=True)
class Node:
    path: str
    data: bytes
    stat: Stat


class ChangeKind(StrEnum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a node; `node` is as it was when it is deleted."""

    kind: ChangeKind
    node: Node


def changes(before: Mapping[str, Node], after: Mapping[str, Node]) -> list[Change]:
    """What happened between two readings, by path. A node made anew in between is deleted and created."""
    events = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is not None and (new is None or new.stat.czxid != old.stat.czxid):
            events.append(Change(ChangeKind.DELETED, old))
        if new is not None and (old is None or new.stat.czxid != old.stat.czxid):
            events.append(Change(ChangeKind.CREATED, new))
        elif old is not None and new is not None and new.stat.mzxid != old.stat.mzxid:
            events.append(Change(ChangeKind.CHANGED, new))
    return events


def node_path(text: str) -> str:
    """The path that a person typed, in ZooKeeper's form; slashes in front and behind are optional.

    Raises:
        BadInput: there can be no such path.
    """
    names = text.strip("/").split("/")
    if names != [""] and any(name in ("", ".", "..") for name in names):
        raise BadInput(f"{text!r} is no path of ZooKeeper: write it as /brokers/ids.")
    return "/" + "/".join(names)


def below(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def find_zookeeper(address: str | None, cluster: Cluster) -> str:
    """`address`, or the one that a broker of `cluster` has in its setting `zookeeper.connect`.

    Raises:
        ClusterUnreachable: no address is given and no broker answers.
        BadInput: none is given, and the broker has none.
    """
    if address:
        return address
    try:
        brokers = cluster.description().brokers
    except ClusterUnreachable as error:
        raise ClusterUnreachable(
            f"A broker has to report ZooKeeper's address, and none answers. {error} Or give ZooKeeper's own"
            " address with --zookeeper."
        ) from error
    resource = ConfigResource(ConfigResource.Type.BROKER, str(brokers[0].broker_id))
    future = cluster.admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT_SECONDS)[resource]
    setting = cluster.result(future, "Asking a broker for ZooKeeper's address failed").get(
        "zookeeper.connect"
    )
    if setting is None or not setting.value:
        raise BadInput("The brokers have no zookeeper.connect: give ZooKeeper's address with --zookeeper.")
    return str(setting.value)


class ZooKeeperTree:
    """A session with the ZooKeeper at `address` (`host:port,host:port/chroot`).

    Raises:
        BadInput: that is no address.
        ZooKeeperUnreachable: there is no answer in time.
    """

    def __init__(self, address: str, connect_seconds: float = _CONNECT_SECONDS) -> None:
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import KazooTimeoutError

        self.address = address
        try:
            self._client = KazooClient(
                hosts=address, timeout=_SESSION_SECONDS, read_only=True, logger=_silent_logger()
            )
        except ValueError as error:
            raise BadInput(f"{address!r} is no address of ZooKeeper: write it as host:port.") from error
        try:
            self._client.start(connect_seconds)
        except KazooTimeoutError as error:
            self._close()
            raise ZooKeeperUnreachable(
                f"ZooKeeper does not answer at {address}: see that it runs, or give another address with"
                " --zookeeper."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def _close(self) -> None:
        self._client.stop()
        self._client.close()

    def node(self, path: str) -> Node:
        """The node at `path`.

        Raises:
            BadInput: there is none; the message says what there is.
            ZooKeeperUnreachable: the connection broke.
        """
        with self._failures():
            node = self._read(path, None)
            if node is None:
                raise self._missing(path)
            return node

    def children(self, path: str) -> list[Node]:
        """The nodes right below `path`, by name.

        Raises:
            BadInput, ZooKeeperUnreachable: as `node`.
        """
        with self._failures():
            names = self._names(path, None)
            if names is None:
                raise self._missing(path)
            return [node for node in self._read_all([below(path, name) for name in names], None) if node]

    def descendants(self, path: str) -> list[Node]:
        """All nodes below `path`, each before those below it.

        Raises:
            BadInput, ZooKeeperUnreachable: as `node`.
        """
        nodes: list[Node] = []
        for child in self.children(path):
            nodes.append(child)
            if child.stat.numChildren:
                with self._failures():
                    nodes += self._below(child.path, None)
        return nodes

    def reading(self, path: str, recursive: bool, on_change: Callable[[Any], None]) -> dict[str, Node]:
        """The node at `path`, if there is one, with its children, or with all below it; by path.

        `on_change` is called in another thread when any of that may have changed.

        Raises:
            ZooKeeperUnreachable: the connection broke.
        """
        with self._failures():
            top = self._read(path, on_change)
            if top is None:
                return {}
            if recursive:
                nodes = self._below(path, on_change)
            else:
                paths = [below(path, name) for name in self._names(path, on_change) or ()]
                nodes = [node for node in self._read_all(paths, on_change) if node]
            return {node.path: node for node in (top, *nodes)}

    def _below(self, path: str, watch: Callable[[Any], None] | None) -> list[Node]:
        nodes: list[Node] = []
        for name in self._names(path, watch) or ():
            child = self._read(below(path, name), watch)
            if child is not None:
                # A node without children is read only to watch for its first ones.
                under = self._below(child.path, watch) if watch or child.stat.numChildren else []
                nodes += [child, *under]
        return nodes

    def _names(self, path: str, watch: Callable[[Any], None] | None) -> list[str] | None:
        from kazoo.exceptions import NoNodeError

        try:
            return sorted(self._client.get_children(path, watch=watch))
        except NoNodeError:
            return None

    def _read(self, path: str, watch: Callable[[Any], None] | None) -> Node | None:
        from kazoo.exceptions import NoNodeError

        while True:
            try:
                return _node(path, self._client.get(path, watch=watch))
            except NoNodeError:
                if watch is None or self._client.exists(path, watch=watch) is None:
                    return None

    def _read_all(self, paths: list[str], watch: Callable[[Any], None] | None) -> list[Node | None]:
        """The nodes at `paths`, by one request."""
        from kazoo.exceptions import NoNodeError

        nodes: list[Node | None] = []
        for path, answer in [(path, self._client.get_async(path, watch=watch)) for path in paths]:
            try:
                nodes.append(_node(path, answer.get()))
            except NoNodeError:
                nodes.append(None)  # gone since its name was read
        return nodes

    def _missing(self, path: str) -> BadInput:
        parent, name = path, ""
        names: list[str] | None = None
        while names is None:
            parent, _, name = parent.rpartition("/")
            names = self._names(parent or "/", None)
        near = difflib.get_close_matches(name, names, n=3)
        if near:
            return BadInput(
                f"There is no node {path}: did you mean {' or '.join(below(parent, one) for one in near)}?"
            )
        there = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if names else "nothing"
        return BadInput(f"There is no node {path}: below {parent or '/'} there is {there}.")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        from kazoo.exceptions import KazooException, NoAuthError

        try:
            yield
        except NoAuthError as error:
            raise BadInput("The node may not be read: its ACL in ZooKeeper does not allow it.") from error
        except KazooException as error:
            raise ZooKeeperUnreachable(
                f"The connection to ZooKeeper at {self.address} broke ({type(error).__name__}): try again."
            ) from error


def _silent_logger() -> logging.Logger:
    """For kazoo, which would tell on stderr what we say in sentences."""
    logger = logging.Logger("zookeeper")
    logger.disabled = True
    return logger


def _node(path: str, answer: tuple[bytes, Any]) -> Node:
    data, stat = answer
    return Node(path, data, Stat(*stat))
