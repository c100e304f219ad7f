"""The local stack: one real ZooKeeper and 1..n brokers as processes of this machine, in one folder.

Used by `mainstem up`, by the demo, by tests and benches. Lives here: who starts and stops when, and waiting
until all is ready. The folder is `stack_folder.py`'s, a process `child_process.py`'s. Nothing here prints.
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
from mainstem.child_process import ChildProcess
from mainstem.cluster_probe import ask_cluster
from mainstem.errors import StackError
from mainstem.ports import hold_free_ports, hold_port
from mainstem.stack_folder import StackFolder
from mainstem.zookeeper_process import ZooKeeperProcess

START_TIMEOUT_SECONDS: Final = 120.0  # brokers that were killed recover their logs first
STOP_TIMEOUT_SECONDS: Final = 30.0
DEFAULT_REPLICAS_MAX: Final = 3  # as many as survive two failures; more cost disk and network, and help few
_PORT_TIMEOUT_SECONDS: Final = 3.0  # children of a stack that was killed a moment ago still hold theirs
_NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})


class Stack:
    """ZooKeeper and `brokers` brokers with ids 1..n on ports `port`, `port` + 1, ... of 127.0.0.1.

    `port` 0 chooses free ones. Topics that do not say get a replica on each of up to three brokers, so that a
    cluster shows what it is for; min.insync.replicas stays Kafka's 1, or topics with one replica would take
    nothing with acks=all. `broker_settings` are added to every broker's properties, `own_settings` to
    those of one, by its id. The number of brokers may grow from run to run on one folder, never shrink. Not
    for use by several threads at once.
    """

    def __init__(
        self,
        data_directory: Path,
        brokers: int = 1,
        port: int = 9092,
        broker_settings: Mapping[str, str] = _NO_SETTINGS,
        own_settings: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        if brokers < 1:
            raise StackError(f"A stack has at least one broker, not {brokers}.")
        self._folder = StackFolder(data_directory)
        self._broker_count = brokers
        self._port = port
        self._held_ports: list[socket.socket] = []  # the brokers', while the folder is ours
        self._broker_settings = dict(broker_settings)
        self._own_settings = dict(own_settings)
        self._zookeeper = ZooKeeperProcess(self._folder.zookeeper_directory)
        self._brokers: dict[int, ChildProcess] = {}
        self._cluster_id = ""
        self._ready = False

    # What it is

    @property
    def data_directory(self) -> Path:
        return self._folder.path

    @property
    def broker_ids(self) -> list[int]:
        return list(range(1, self._broker_count + 1))

    @property
    def bootstrap_servers(self) -> str:
        """All brokers' addresses, `host:port,host:port`, also of those that are down."""
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
        """The folder of broker `broker_id`: its properties, its log lines and, in `data`, its partitions."""
        return self._folder.broker_directory(broker_id)

    def broker_pid(self, broker_id: int) -> int:
        """The process id of a running broker.

        Raises:
            StackError: it does not run.
        """
        broker = self._brokers.get(broker_id)
        pid = broker.pid if broker else None
        if pid is None:
            raise StackError(f"Broker {broker_id} does not run.")
        return pid

    def broker_log_lines(self, broker_id: int, count: int = 10) -> list[str]:
        """The last lines that broker `broker_id` logged since its last start."""
        broker = self._brokers.get(broker_id)
        return broker.last_log_lines(count) if broker else []

    def ended_by_themselves(self) -> dict[str, str]:
        """Of each process that ended though nobody asked it to: its name, and how and with what last words.

        The names are `ZooKeeper` and `Broker N`.
        """
        processes = [*self._brokers.values()]
        if self._zookeeper.process:
            processes.append(self._zookeeper.process)
        return {process.name: process.describe_end() for process in processes if process.ended_by_itself}

    # All of it

    def start(self) -> None:
        """Start everything and wait until all brokers answer and know each other; then write `stack.json`:

            {"version", "cluster_id", "bootstrap_servers", "pid", "data_directory",
             "zookeeper": {"pid", "port"}, "brokers": [{"id", "pid", "port", "directory", "log"}]}

        where a pid is null while its process does not run.

        Raises:
            StackError: it could not start; the message tells why and what to do. What had been started is
                stopped again.
        """
        try:
            self._folder.open(self._broker_count)
            self._choose_ports()
            self._start_zookeeper()
            for broker_id in self.broker_ids:
                self._launch_broker(broker_id)
            self._await_brokers(self.broker_ids)
        except BaseException:
            with contextlib.suppress(StackError):  # the first error is the one to tell
                self.stop()
            raise
        self._ready = True
        self._write_state()

    def stop(self) -> None:
        """Stop everything cleanly, the brokers first and at once; calling it twice does no harm.

        Raises:
            StackError: a process had to be killed; everything is stopped nevertheless.
        """
        self._ready = False
        if not self._folder.is_open:
            return
        error: StackError | None = None
        running = [broker for broker in self._brokers.values() if broker.running]
        for broker in running:
            broker.ask_to_stop()
        for broker in running:
            try:
                broker.wait_stopped(STOP_TIMEOUT_SECONDS)
            except StackError as stubborn:
                error = stubborn
        try:
            self.stop_zookeeper()
        except StackError as stubborn:
            error = stubborn
        self._release()
        if error:
            raise error

    def kill(self) -> None:
        """End everything at once by SIGKILL, as a crash would."""
        self._ready = False
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

    # Its parts

    def start_broker(self, broker_id: int) -> None:
        """Start one broker and wait until it answers and lists itself.

        Raises:
            StackError: it runs already or does not get ready; it is not running then.
        """
        self._launch_broker(broker_id)
        try:
            self._await_brokers([broker_id])
        except StackError:
            self._brokers[broker_id].kill()
            raise
        self._write_state()

    def stop_broker(self, broker_id: int) -> None:
        """Stop one broker by SIGTERM and wait for its end.

        Raises:
            StackError: it does not run, or had to be killed.
        """
        self.broker_pid(broker_id)
        self._brokers[broker_id].ask_to_stop()
        self._brokers[broker_id].wait_stopped(STOP_TIMEOUT_SECONDS)
        self._write_state()

    def kill_broker(self, broker_id: int) -> None:
        """Kill one broker by SIGKILL and wait for its end."""
        self.broker_pid(broker_id)
        self._brokers[broker_id].kill()
        self._write_state()

    def restart(self, name: str) -> None:
        """Start again what `ended_by_themselves` named.

        Raises:
            StackError: as `start_broker` and `start_zookeeper`.
        """
        if self._zookeeper.process and name == self._zookeeper.process.name:
            self.start_zookeeper()
            return
        self.start_broker(next(id_ for id_, broker in self._brokers.items() if broker.name == name))

    def start_zookeeper(self) -> None:
        """Start ZooKeeper, on the port it had, and wait until it serves."""
        wanted = self.zookeeper_port
        self._start_zookeeper()
        if wanted not in (0, self.zookeeper_port):
            self.kill_zookeeper()
            raise StackError(f"ZooKeeper's port {wanted} was taken meanwhile, and the brokers know no other.")
        self._write_state()

    def stop_zookeeper(self) -> None:
        """Stop ZooKeeper by SIGTERM and wait for its end."""
        if self._zookeeper.process:
            self._zookeeper.process.ask_to_stop()
            self._zookeeper.process.wait_stopped(STOP_TIMEOUT_SECONDS)
        self._write_state()

    def kill_zookeeper(self) -> None:
        """Kill ZooKeeper by SIGKILL and wait for its end."""
        if self._zookeeper.process:
            self._zookeeper.process.kill()
        self._write_state()

    # How

    def _start_zookeeper(self) -> None:
        self._zookeeper.start(START_TIMEOUT_SECONDS, avoid=[self.broker_port(id_) for id_ in self.broker_ids])

    def _launch_broker(self, broker_id: int) -> None:
        directory = self.broker_directory(broker_id)
        (directory / "data").mkdir(parents=True, exist_ok=True)
        properties = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.broker_port(broker_id)}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.broker_port(broker_id)}",
            "zookeeper.connect": f"127.0.0.1:{self.zookeeper_port}",
            "zookeeper.session.timeout.ms": "6000",
            "default.replication.factor": str(min(DEFAULT_REPLICAS_MAX, self._broker_count)),
            "log.dirs": str(directory / "data"),
            **self._broker_settings,
            **self._own_settings.get(broker_id, {}),
        }
        path = directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        broker = self._brokers.get(broker_id) or ChildProcess(
            f"Broker {broker_id}",
            # -P: no module of the folder we were started in stands in for one of the broker's.
            [sys.executable, "-P", "-m", "mainstem_broker", str(path)],
            directory / "server.log",
        )
        self._brokers[broker_id] = broker
        broker.start()

    def _await_brokers(self, broker_ids: Sequence[int]) -> None:
        """Wait until each of these brokers answers and lists all of them.

        Raises:
            StackError: one of them ended, or the time is over.
        """
        for broker_id in broker_ids:
            ready = partial(self._lists, broker_id, broker_ids)
            self._brokers[broker_id].wait_until(ready, START_TIMEOUT_SECONDS)

    def _lists(self, broker_id: int, broker_ids: Sequence[int]) -> bool:
        for other_id in broker_ids:
            if self._brokers[other_id].ended_by_itself:
                raise StackError(self._brokers[other_id].describe_end())
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
                        f"Port {port} of 127.0.0.1 is taken by another program: stop that, or choose another "
                        "port."
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
        """What `stack.json` holds."""
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
        }
