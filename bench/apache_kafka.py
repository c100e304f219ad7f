"""Apache Kafka in one process (KRaft, broker and controller), fetched by Maven, to compare with.

In scope: fetching, formatting, starting, stopping. Its settings are its own defaults, save for what a single
node needs; its JVM options are those of its `kafka-server-start.sh` and `kafka-run-class.sh`.
"""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import uuid4

from mainstem.local.child_process import spawn
from mainstem.local.ports import free_ports

CACHE: Final = Path(__file__).parent / ".cache"
JVM_OPTIONS: Final = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
STOP_SECONDS: Final = 30
START_SECONDS: Final = 60


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


class NotAvailable(Exception):
    """Apache Kafka cannot be run here; the message is one sentence that says why."""


def fetch(cache: Path = CACHE) -> Path:
    """The folder of Apache Kafka's jars under `cache`, filled by Maven when it is not there.

    Raises:
        NotAvailable: there is no Java, no Maven, or Maven cannot fetch.
    """
    return fetch_jars(Path(__file__).parent / "apache_kafka_pom.xml", cache / "apache-kafka")


def fetch_jars(pom: Path, jars: Path) -> Path:
    """The folder `jars`, filled by Maven unless it holds what `pom` names.

    Raises:
        NotAvailable: there is no Java, no Maven, or Maven cannot fetch.
    """
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise NotAvailable(f"Apache Kafka is left out because `{program}` is not installed.")
    jars.parent.mkdir(parents=True, exist_ok=True)
    with (jars.parent / f"{jars.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes that want the same jars wait for the first one
        complete = jars / "complete"  # holds the POM that the jars were fetched for
        if not (complete.exists() and complete.read_bytes() == pom.read_bytes()):
            shutil.rmtree(jars, ignore_errors=True)
            _copy_dependencies(pom, jars)
            shutil.copyfile(pom, complete)
    return jars


def _copy_dependencies(pom: Path, jars: Path) -> None:
    jars.mkdir(exist_ok=True)
    fetched = subprocess.run(
        [
            "mvn",
            "--quiet",
            "--batch-mode",
            "--file",
            str(pom),
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={jars}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if fetched.returncode != 0:
        cause = next((line for line in fetched.stdout.splitlines() if "ERROR" in line), "no message")
        raise NotAvailable(f"Apache Kafka is left out because Maven could not fetch it: {cause}")


class ApacheKafka:
    """One node in `directory`; `settings` are added to its server.properties.

    Alone unless `node_id`, `ports` (of clients, of controllers) and `voters` make it one of several;
    `cluster_id` is theirs then.
    """

    name = "Apache Kafka"

    def __init__(
        self,
        directory: Path,
        jars: Path,
        settings: Mapping[str, str] | None = None,
        *,
        node_id: int = 1,
        ports: tuple[int, int] | None = None,
        voters: str | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self.directory = directory
        self.log_directory = directory / "log"
        self._class_path = f"{jars}/*"
        self._process: subprocess.Popen[bytes] | None = None
        first = free_ports(2)
        self.port, controller_port = ports or (first, first + 1)
        directory.mkdir(parents=True, exist_ok=True)
        self._properties = directory / "server.properties"
        self._properties.write_text(
            "".join(
                f"{name}={value}\n"
                for name, value in {
                    "process.roles": "broker,controller",
                    "node.id": str(node_id),
                    "controller.quorum.voters": voters or f"{node_id}@127.0.0.1:{controller_port}",
                    "controller.listener.names": "CONTROLLER",
                    "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
                    "log.dirs": str(self.log_directory),
                    "offsets.topic.replication.factor": "1",
                    "transaction.state.log.replication.factor": "1",
                    "transaction.state.log.min.isr": "1",
                    **(settings or {}),
                }.items()
            )
        )
        subprocess.run(
            self._command(
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={cluster_id or new_cluster_id()}",  # with "=": an id may begin with a dash
                "-c",
                str(self._properties),
            ),
            check=True,
            capture_output=True,
        )

    def _command(self, main_class: str, *arguments: str) -> list[str]:
        return ["java", *JVM_OPTIONS, "-cp", self._class_path, main_class, *arguments]

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def broker_pid(self) -> int:
        if self._process is None:
            raise RuntimeError("Apache Kafka is not running.")
        return self._process.pid

    @property
    def broker_pids(self) -> tuple[int, ...]:
        return (self.broker_pid,)

    @property
    def companion_pids(self) -> tuple[int, ...]:
        """Processes beside the broker: none, its controller is inside it."""
        return ()

    def spawn_broker(self) -> None:
        """Start the process and return at once."""
        with (self.directory / "output").open("ab") as output:
            self._process = spawn(
                self._command("kafka.Kafka", str(self._properties)), stdout=output, stderr=output
            )

    def start(self) -> None:
        """Start and wait until it accepts connections.

        Raises:
            NotAvailable: it ended, or did not listen in time.
        """
        self.spawn_broker()
        self.await_port()

    def await_port(self) -> None:
        """Wait until a node that was spawned accepts connections.

        Raises:
            NotAvailable: it ended, or did not listen in time.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                raise NotAvailable(f"Apache Kafka ended while starting; see {self.directory / 'output'}.")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        self.stop()
        raise NotAvailable(f"Apache Kafka did not listen within {START_SECONDS} s.")

    def stop(self) -> None:
        """Stop cleanly, or by force when that takes too long; nothing when it is not running."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def stop_broker(self) -> None:
        """Stop the one process there is, cleanly."""
        self.stop()

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        os.kill(self.broker_pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self._process = None
