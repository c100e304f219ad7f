"""The local stack: one ZooKeeper, 1..n brokers and, if wanted, a schema registry as processes of this
machine, in one folder.

`mainstem up`, the demo, tests and benches use it. The order of starts and stops and the wait until everything
is ready belong here. Nothing here prints.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from mainstem import installed_version
from mainstem.errors import StackError
from mainstem.kafka.probe import ask_cluster
from mainstem.local.child_process import ChildProcess, ProcessExit
from mainstem.local.ports import free_ports, hold_free_ports, hold_port
from mainstem.local.preferred_leaders import restore_preferred_leaders
from mainstem.local.stack_folder import StackFolder
from mainstem.local.zookeeper_process import ZooKeeperProcess
from mainstem.schema_registry import registry_is_ready

START_TIMEOUT_SECONDS: Final = 120.0  # brokers that were killed recover their logs first
STOP_TIMEOUT_SECONDS: Final = 30.0
SCHEMA_REGISTRY: Final = "Schema registry"
DEFAULT_REPLICAS_MAX: Final = 3  # survives two failures; more replicas cost disk and network and help few
_PORT_TIMEOUT_SECONDS: Final = 3.0  # the children of a stack that was just killed still hold theirs
_NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})


class Stack:
    """ZooKeeper and `brokers` brokers with ids 1..n on ports `port`, `port` + 1, ... of 127.0.0.1.

    The default replication factor is the number of brokers, at most three. min.insync.replicas keeps Kafka's
    default of 1, because topics with one replica would otherwise refuse records with acks=all. The number of
    brokers may grow between runs on one folder, but not shrink. Not thread-safe.

    Args:
        port: the port of broker 1; 0 chooses free ports.
        broker_settings: added to the properties of every broker.
        own_settings: added to the properties of one broker, by broker id.
        zookeeper_port: ZooKeeper's port; 0 chooses `preferred_zookeeper_port` if it is free, else another.
        schema_registry_port: the schema registry's port; None for no registry.
    """

    def __init__(
        self,
        data_directory: Path,
        brokers: int = 1,
        port: int = 9092,
        broker_settings: Mapping[str, str] = _NO_SETTINGS,
        own_settings: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
        zookeeper_port: int = 0,
        preferred_zookeeper_port: int = 0,
        schema_registry_port: int | None = None,
    ) -> None:
        if brokers < 1:
            raise StackError(f"A stack has at least one broker, not {brokers}.")
        self._folder = StackFolder(data_directory)
        self._broker_count = brokers
        self._port = port
        self._held_ports: list[socket.socket] = []  # of the brokers, while this stack owns the folder
        self._broker_settings = dict(broker_settings)
        self._own_settings = dict(own_settings)
        self._zookeeper = ZooKeeperProcess(
            self._folder.zookeeper_directory, zookeeper_port, preferred_zookeeper_port
        )
        self._brokers: dict[int, ChildProcess] = {}
        self._schema_registry_port = schema_registry_port
        self._schema_registry: ChildProcess | None = None
        self._cluster_id = ""
        self._ready = False

    # Properties

    @property
    def data_directory(self) -> Path:
        return self._folder.path

    @property
    def broker_ids(self) -> list[int]:
        return list(range(1, self._broker_count + 1))

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, running or not, as `host:port,host:port`."""
        return ",".join(f"127.0.0.1:{self.broker_port(broker_id)}" for broker_id in self.broker_ids)

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def zookeeper_port(self) -> int:
        return self._zookeeper.port

    def broker_port(self, broker_id: int) -> int:
        return self._port + broker_id - 1

    def broker_directory(self, broker_id: int) -> Path:
        """The folder of broker `broker_id`: its properties, its log and, in `data`, its partitions."""
        return self._folder.broker_directory(broker_id)

    def broker_pid(self, broker_id: int) -> int:
        """The process id of a running broker.

        Raises:
            StackError: it is not running.
        """
        broker = self._brokers.get(broker_id)
        pid = broker.pid if broker else None
        if pid is None:
            raise StackError(f"Broker {broker_id} is not running.")
        return pid

    def broker_log_lines(self, broker_id: int, count: int = 10) -> list[str]:
        """The last lines that broker `broker_id` logged since its last start."""
        broker = self._brokers.get(broker_id)
        return broker.last_log_lines(count) if broker else []

    def unexpected_exits(self) -> list[ProcessExit]:
        """The exits that nobody requested, also those during a start, of processes that are not running
        again, in the order in which to start them. Their names are `ZooKeeper`, `Broker N` and `Schema
        registry`."""
        return [process.exit() for process in self._processes() if process.exited_unexpectedly]

    def process_id(self, name: str) -> int | None:
        """The process id of `ZooKeeper` or `Broker N`; None while it is not running."""
        return next((process.pid for process in self._processes() if process.name == name), None)

    # The whole stack

    def start(self) -> None:
        """Start everything and wait until every broker answers and lists all others; then write `stack.json`:

            {"version", "cluster_id", "bootstrap_servers", "pid", "data_directory",
             "zookeeper": {"pid", "port"}, "brokers": [{"id", "pid", "port", "directory", "log"}],
             "schema_registry": {"pid", "url", "log"} or null}

        where a pid is null while the process is not running.

        Raises:
            StackError: it could not start; the message has the reason and what to do. Processes that were
                started are stopped again.
        """
        try:
            self._folder.open(self._broker_count)
            self._choose_ports()
            self._start_zookeeper()
            for broker_id in self.broker_ids:
                self._launch_broker(broker_id)
            self._await_brokers(self.broker_ids)
            self._start_schema_registry()
        except BaseException:
            with contextlib.suppress(StackError):  # the first error is the one to report
                self.stop()
            raise
        self._ready = True
        self._write_state()

    def stop(self) -> None:
        """Stop everything cleanly: first all brokers at the same time, then ZooKeeper. May be called twice.

        Raises:
            StackError: a process had to be killed; everything is stopped nevertheless.
        """
        self._ready = False
        if not self._folder.is_open:
            return
        error: StackError | None = None
        if self._schema_registry is not None:
            self._schema_registry.request_stop()
            try:
                self._schema_registry.wait_stopped(STOP_TIMEOUT_SECONDS)
            except StackError as timeout:
                error = timeout
        running = [broker for broker in self._brokers.values() if broker.running]
        for broker in running:
            broker.request_stop()
        for broker in running:
            try:
                broker.wait_stopped(STOP_TIMEOUT_SECONDS)
            except StackError as timeout:
                error = timeout
        try:
            self.stop_zookeeper()
        except StackError as timeout:
            error = timeout
        self._release()
        if error:
            raise error

    def kill(self) -> None:
        """Kill everything by SIGKILL, as a crash would."""
        self._ready = False
        if self._schema_registry is not None:
            self._schema_registry.kill()
        for broker in self._brokers.values():
            broker.kill()
        self.kill_zookeeper()
        self._release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Single processes

    def start_broker(self, broker_id: int) -> None:
        """Start one broker and wait until it answers and lists itself.

        Raises:
            StackError: it is running already, or it did not become ready and was killed, which
                `unexpected_exits` reports.
        """
        self._launch_broker(broker_id)
        try:
            self._await_brokers([broker_id])
        except StackError:
            self._brokers[broker_id].abort_start()
            raise
        finally:
            self._write_state()

    def stop_broker(self, broker_id: int) -> None:
        """Stop one broker by SIGTERM and wait for its exit.

        Raises:
            StackError: it is not running, or had to be killed.
        """
        self.broker_pid(broker_id)
        self._brokers[broker_id].request_stop()
        self._brokers[broker_id].wait_stopped(STOP_TIMEOUT_SECONDS)
        self._write_state()

    def kill_broker(self, broker_id: int) -> None:
        """Kill one broker by SIGKILL and wait for its exit."""
        self.broker_pid(broker_id)
        self._brokers[broker_id].kill()
        self._write_state()

    def restart(self, name: str) -> None:
        """Start a process of `unexpected_exits` again.

        Raises:
            StackError: as `start_broker` and `start_zookeeper`. `unexpected_exits` still names the process.
        """
        if self._zookeeper.process and name == self._zookeeper.process.name:
            self.start_zookeeper()
            return
        if self._schema_registry and name == self._schema_registry.name:
            try:
                self._start_schema_registry()
            finally:
                self._write_state()
            return
        self.start_broker(next(id_ for id_, broker in self._brokers.items() if broker.name == name))

    def start_zookeeper(self) -> None:
        """Start ZooKeeper on the port that it had, and wait until it serves.

        Raises:
            StackError: another program has the port, or ZooKeeper did not become ready and was killed, which
                `unexpected_exits` reports.
        """
        try:
            self._zookeeper.start_again(START_TIMEOUT_SECONDS)
        finally:
            self._write_state()

    def stop_zookeeper(self) -> None:
        """Stop ZooKeeper by SIGTERM and wait for its exit."""
        if self._zookeeper.process:
            self._zookeeper.process.request_stop()
            self._zookeeper.process.wait_stopped(STOP_TIMEOUT_SECONDS)
        self._write_state()

    def kill_zookeeper(self) -> None:
        """Kill ZooKeeper by SIGKILL and wait for its exit."""
        if self._zookeeper.process:
            self._zookeeper.process.kill()
        self._write_state()

    def restore_preferred_leaders(self) -> bool:
        """Elect preferred leaders if all replicas are in sync; whether nothing is left to do."""
        for broker_id in self.broker_ids:
            if self._brokers[broker_id].running:
                try:
                    return restore_preferred_leaders(("127.0.0.1", self.broker_port(broker_id)))
                except OSError:
                    continue
        return False

    # Steps

    def _processes(self) -> list[ChildProcess]:
        """All processes in the order of a start: each needs those before it."""
        processes = (self._zookeeper.process, *self._brokers.values(), self._schema_registry)
        return [process for process in processes if process is not None]

    def _start_schema_registry(self) -> None:
        """Start the schema registry, if the stack has one, and wait until it serves."""
        if self._schema_registry_port is None:
            return
        address = f"127.0.0.1:{self._schema_registry_port}"
        process = self._schema_registry or ChildProcess(
            SCHEMA_REGISTRY,
            [
                *(sys.executable, "-P", "-m", "mainstem_registry"),
                *("--bootstrap-servers", self.bootstrap_servers),
                *("--listen", address),
            ],
            self._folder.path / "schema-registry.log",
        )
        self._schema_registry = process
        process.start()
        try:
            process.wait_until(lambda: registry_is_ready(f"http://{address}"), START_TIMEOUT_SECONDS)
        except StackError:
            process.abort_start()
            raise

    def _start_zookeeper(self) -> None:
        self._zookeeper.start(START_TIMEOUT_SECONDS, avoid=[self.broker_port(id_) for id_ in self.broker_ids])

    def _launch_broker(self, broker_id: int) -> None:
        directory = self.broker_directory(broker_id)
        (directory / "data").mkdir(parents=True, exist_ok=True)
        replicas = str(min(DEFAULT_REPLICAS_MAX, self._broker_count))
        properties = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.broker_port(broker_id)}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.broker_port(broker_id)}",
            "zookeeper.connect": f"127.0.0.1:{self.zookeeper_port}",
            "zookeeper.session.timeout.ms": "6000",
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "log.dirs": str(directory / "data"),
            **self._broker_settings,
            **self._own_settings.get(broker_id, {}),
        }
        path = directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), "utf-8")
        broker = self._brokers.get(broker_id) or ChildProcess(
            f"Broker {broker_id}",
            # -P: a file in the current folder must not replace one of the broker's modules.
            [sys.executable, "-P", "-m", "mainstem_broker", str(path)],
            directory / "server.log",
        )
        self._brokers[broker_id] = broker
        broker.start()

    def _await_brokers(self, broker_ids: Sequence[int]) -> None:
        """Wait until each of these brokers answers and lists all of them.

        Raises:
            StackError: one of them or ZooKeeper ended, or the timeout passed.
        """
        for broker_id in broker_ids:
            ready = partial(self._lists_all, broker_id, broker_ids)
            self._brokers[broker_id].wait_until(ready, START_TIMEOUT_SECONDS)

    def _lists_all(self, broker_id: int, broker_ids: Sequence[int]) -> bool:
        # A broker waits for ZooKeeper without an end, and the supervisor that waits for the broker would
        # restart ZooKeeper only afterwards.
        for process in (self._zookeeper.process, *(self._brokers[id_] for id_ in broker_ids)):
            if process is not None and process.exited_unexpectedly:
                raise StackError(str(process.exit()))
        answer = ask_cluster(self.broker_port(broker_id))
        if answer is None or not answer.broker_ids.issuperset(broker_ids):
            return False
        self._cluster_id = answer.cluster_id
        return True

    def _choose_ports(self) -> None:
        if self._port == 0:
            self._port, self._held_ports = hold_free_ports(self._broker_count)
            return
        if not 1 <= self._port <= 65_536 - self._broker_count:
            raise StackError(
                f"Port {self._port} does not leave room for {self._broker_count} brokers below 65536."
            )
        deadline = time.monotonic() + _PORT_TIMEOUT_SECONDS
        for port in map(self.broker_port, self.broker_ids):
            while (held := hold_port(port)) is None:
                if time.monotonic() > deadline:
                    raise StackError(
                        f"Port {port} of 127.0.0.1 is taken by another program: stop it, or choose other "
                        f"ports with --port {free_ports(self._broker_count)}."
                    )
                time.sleep(0.05)
            self._held_ports.append(held)

    def _release(self) -> None:
        for held in self._held_ports:
            held.close()
        self._held_ports.clear()
        self._folder.close()

    def _write_state(self) -> None:
        if self._ready:
            self._folder.write_state(self.state())

    def state(self) -> dict[str, Any]:
        """The content of `stack.json`."""
        zookeeper = self._zookeeper.process
        return {
            "version": installed_version(),
            "cluster_id": self._cluster_id,
            "bootstrap_servers": self.bootstrap_servers,
            "pid": os.getpid(),
            "data_directory": str(self.data_directory),
            "zookeeper": {"pid": zookeeper.pid if zookeeper else None, "port": self.zookeeper_port},
            "brokers": [
                {
                    "id": broker_id,
                    "pid": broker.pid,
                    "port": self.broker_port(broker_id),
                    "directory": str(self.broker_directory(broker_id)),
                    "log": str(broker.log_path),
                }
                for broker_id, broker in self._brokers.items()
            ],
            "schema_registry": self._schema_registry_state(),
        }

    def _schema_registry_state(self) -> dict[str, Any] | None:
        process = self._schema_registry
        if process is None:
            return None
        url = f"http://127.0.0.1:{self._schema_registry_port}"
        return {"pid": process.pid, "url": url, "log": str(process.log_path)}
