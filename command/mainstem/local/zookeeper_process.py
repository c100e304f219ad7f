"""The local stack's ZooKeeper: Apache ZooKeeper, run from the jars that pyspark contains.

Finding Java and the jars, writing `zoo.cfg`, choosing the port and waiting until ZooKeeper serves belong
here. Kubernetes uses a separate image and nothing of this module.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mainstem.errors import StackError
from mainstem.local.child_process import ChildProcess
from mainstem.local.ports import free_ports, port_is_free

JAVA_VERSION_MIN: Final = 17  # for pyspark 4; ZooKeeper alone needs less
STANDARD_PORT: Final = 2181
"""The port that ZooKeeper's documentation and the paper's samples use."""
_JAR_NAMES: Final = (
    "zookeeper-3",
    "zookeeper-jute-",
    "slf4j-api-",
    "log4j-api-2",
    "log4j-core-",
    "log4j-slf4j2-impl-",
    "metrics-core-",
    "snappy-java-",
)
_JAVA_OPTIONS: Final = (
    "-Xms16m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # starts in 0.5 s; a tree this small gains nothing from the second compiler
    "-XX:-UsePerfData",  # a SIGKILL would leave its file in /tmp
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.preAllocSize=1024",  # KiB; the default of 64 MiB is for busy ensembles
    "-Dlog4j2.configurationFile=log4j2.xml",
)
# By default ZooKeeper grants session timeouts of 2 to 20 ticks, and it expires sessions in steps of one tick.
# A tick of half a second lets sessions of a few seconds end on time.
_ZOO_CFG: Final = """\
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
dataDir=./data
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr,mntr
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""
_LOG4J2_XML: Final = """\
<Configuration status="WARN">
  <Appenders>
    <RollingFile name="file" fileName="server.log" filePattern="server.log.%i">
      <PatternLayout pattern="%d{ISO8601} %p %c{1} %m%n"/>
      <Policies><SizeBasedTriggeringPolicy size="10 MB"/></Policies>
      <DefaultRolloverStrategy max="1"/>
    </RollingFile>
  </Appenders>
  <Loggers><Root level="info"><AppenderRef ref="file"/></Root></Loggers>
</Configuration>
"""
_START_ATTEMPTS: Final = 3  # another program may take the port between our check and ZooKeeper's bind


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that is new enough."""

    path: str
    version: int


class ZooKeeperProcess:
    """A standalone ZooKeeper in `directory`, listening on 127.0.0.1 only.

    Args:
        port: the only port to use; 0 to choose one.
        preferred_port: the first choice, if it is free; 0 for none. The second choice is the port of the last
            run, which `zoo.cfg` keeps, and the third is any free port.
    """

    def __init__(self, directory: Path, port: int = 0, preferred_port: int = 0) -> None:
        self._directory = directory
        self._fixed_port = port
        self._preferred_port = preferred_port
        self._port = 0
        self._process: ChildProcess | None = None

    @property
    def port(self) -> int:
        """The client port, once started."""
        return self._port

    @property
    def process(self) -> ChildProcess | None:
        return self._process

    def start(self, timeout_seconds: float, avoid: Collection[int] = ()) -> None:
        """Start ZooKeeper and wait until it serves.

        Args:
            avoid: ports reserved for other servers. A reserved port looks free to `port_is_free`.

        Raises:
            StackError: Java or the jars are missing, the port is taken, or ZooKeeper's own error.
        """
        for attempt in range(1, _START_ATTEMPTS + 1):
            candidates = self._port_candidates() if attempt == 1 else []
            port = self._fixed_port or first_free_port(candidates, avoid) or free_ports()
            if self._fixed_port and (port in avoid or not port_is_free(port)):
                raise StackError(
                    f"Port {port} of 127.0.0.1 is taken: stop the program that uses it, or choose another "
                    "port for ZooKeeper with --zookeeper-port."
                )
            try:
                self._run(port, timeout_seconds)
            except StackError:
                if not self._port_was_taken() or attempt == _START_ATTEMPTS:
                    raise
            else:
                return

    def start_again(self, timeout_seconds: float) -> None:
        """Start ZooKeeper on the port of its last start, which brokers connect to; wait until it serves.

        Raises:
            StackError: as `start`.
        """
        if self._process is not None and self._process.running:
            raise StackError(f"ZooKeeper is already running (process {self._process.pid}).")
        if not port_is_free(self._port):
            raise StackError(
                f"ZooKeeper cannot be started again: another program took its port {self._port}, which the "
                "brokers connect to. Stop that program."
            )
        self._run(self._port, timeout_seconds)

    def _run(self, port: int, timeout_seconds: float) -> None:
        java, class_path = find_java(), find_jars()
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "log4j2.xml").write_text(_LOG4J2_XML)
        (self._directory / "zoo.cfg").write_text(_ZOO_CFG.format(port=port))
        self._port = port
        self._process = ChildProcess(
            "ZooKeeper",
            [
                java.path,
                *_JAVA_OPTIONS,
                "-cp",
                class_path,
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                "./zoo.cfg",
            ],
            self._directory / "console.log",
            # Paths relative to its own folder need no quoting in Java's property files.
            working_directory=self._directory,
            extra_log_paths=[self._directory / "server.log"],
        )
        self._process.start()
        try:
            self._process.wait_until(lambda: serves(port), timeout_seconds)
        except StackError:
            self._process.abort_start()
            raise

    def _port_was_taken(self) -> bool:
        process = self._process
        return process is not None and any(
            "Address already in use" in line for line in process.last_log_lines(count=200)
        )

    def _port_candidates(self) -> list[int]:
        if self._port:
            return [self._port]
        return [port for port in (self._preferred_port, self._port_of_last_run()) if port]

    def _port_of_last_run(self) -> int:
        try:
            match = re.search(
                r"^clientPort=([0-9]+)$", (self._directory / "zoo.cfg").read_text(), re.MULTILINE
            )
        except FileNotFoundError:
            return 0
        return int(match[1]) if match else 0


def first_free_port(candidates: Sequence[int], avoid: Collection[int] = ()) -> int | None:
    """The first candidate that is free and not to be avoided; None if there is none."""
    return next((port for port in candidates if port not in avoid and port_is_free(port)), None)


def serves(port: int) -> bool:
    """Whether a ZooKeeper on 127.0.0.1 serves requests, by the command `srvr`.

    The command `ruok` does not show that: it answers `imok` earlier.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return False
    return b"Mode: " in answer


def find_jars() -> str:
    """The class path of ZooKeeper alone (pyspark contains some 450 MB of other jars).

    Raises:
        StackError: pyspark is not installed, or one of the jars is missing.
    """
    specification = importlib.util.find_spec("pyspark")  # finds it without importing it
    if specification is None or specification.origin is None:
        raise StackError(
            "ZooKeeper's jars are missing: they come with pyspark. Type: pip install 'mainstem[loader]'"
        )
    folder = Path(specification.origin).parent / "jars"
    jars: list[str] = []
    for name in _JAR_NAMES:
        matches = sorted(folder.glob(f"{name}*.jar"))
        if not matches:
            raise StackError(
                f"{name}*.jar is missing in {folder}. Type: pip install --force-reinstall 'pyspark>=4.0'"
            )
        jars.append(str(matches[-1]))
    return os.pathsep.join(jars)


def find_java() -> Java:
    """The Java runtime of JAVA_HOME, else the first on PATH.

    Raises:
        StackError: there is none, it does not run, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    java = java or shutil.which("java")
    if java is None:
        raise StackError(
            f"Java {JAVA_VERSION_MIN} or newer is needed and no java was found: install it (Debian: apt-get "
            f"install openjdk-{JAVA_VERSION_MIN}-jre-headless) or set JAVA_HOME."
        )
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"{java} does not run ({error}): set JAVA_HOME to a working Java.") from error
    version = java_version(answer.stderr)
    if version is None:
        raise StackError(f"{java} does not report its version: set JAVA_HOME to a Java {JAVA_VERSION_MIN}.")
    if version < JAVA_VERSION_MIN:
        raise StackError(
            f"{java} is Java {version}, and Java {JAVA_VERSION_MIN} or newer is needed: install it or set "
            "JAVA_HOME."
        )
    return Java(java, version)


def java_version(text: str) -> int | None:
    """The feature release in the output of `java -version`: 17 of `"17.0.15"`, 8 of `"1.8.0_402"`."""
    match = re.search(r'version "([0-9]+)(?:\.([0-9]+))?', text)
    if match is None:
        return None
    first = int(match[1])
    return int(match[2] or 0) if first == 1 else first
