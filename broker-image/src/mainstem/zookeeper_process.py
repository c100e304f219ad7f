"""The local stack's ZooKeeper: Apache ZooKeeper itself, run from the jars that pyspark carries.

Lives here: finding Java and the jars, `zoo.cfg`, starting until it serves. In Kubernetes ZooKeeper has an
image of its own; nothing here is used there.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Final

from mainstem.child_process import ChildProcess
from mainstem.errors import StackError
from mainstem.ports import free_ports, port_is_free

JAVA_VERSION_MIN: Final = 17  # what pyspark 4 needs; ZooKeeper alone would be content with less
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
    "-XX:TieredStopAtLevel=1",  # starts in 0.5 s; a tree this small never profits from the second compiler
    "-XX:-UsePerfData",  # no file in /tmp that a SIGKILL would leave behind
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.preAllocSize=1024",  # KiB; the default of 64 MiB is for busy ensembles
    "-Dlog4j2.configurationFile=log4j2.xml",
)
# ZooKeeper grants sessions between 2 and 20 ticks unless told otherwise, and expires them in steps of one
# tick: half a second lets sessions of a few seconds end when they should.
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
_START_ATTEMPTS: Final = 3  # another program may take the port between our look and ZooKeeper's bind


class ZooKeeperProcess:
    """A standalone ZooKeeper in `directory`, listening on 127.0.0.1 only.

    `zoo.cfg` keeps the port between runs; when it is taken by then, another is chosen.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
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
        """Start it and wait until it serves.

        `avoid` are ports that are held for others (`ports.py`): a draw misses them, but to who had one of
        them in its last run it would look free.

        Raises:
            StackError: no Java, too old a Java, no jars, or ZooKeeper's own reason.
        """
        java, class_path = find_java(), find_jars()
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "log4j2.xml").write_text(_LOG4J2_XML)
        kept_port = self._port or self._port_of_last_run()
        for attempt in range(1, _START_ATTEMPTS + 1):
            usable = attempt == 1 and kept_port and kept_port not in avoid and port_is_free(kept_port)
            self._port = kept_port if usable else free_ports()
            (self._directory / "zoo.cfg").write_text(_ZOO_CFG.format(port=self._port))
            self._process = ChildProcess(
                "ZooKeeper",
                [
                    java,
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
                self._process.wait_until(lambda: serves(self._port), timeout_seconds)
            except StackError as error:
                self._process.kill()
                if "Address already in use" not in str(error) or attempt == _START_ATTEMPTS:
                    raise
            else:
                return

    def _port_of_last_run(self) -> int:
        try:
            found = re.search(r"^clientPort=(\d+)$", (self._directory / "zoo.cfg").read_text(), re.MULTILINE)
        except FileNotFoundError:
            return 0
        return int(found[1]) if found else 0


def serves(port: int) -> bool:
    """Whether a ZooKeeper on 127.0.0.1 serves requests.

    Asked by `srvr`: `ruok` says `imok` before it does.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while piece := connection.recv(4096):
                answer += piece
    except OSError:
        return False
    return b"Mode: " in answer


def find_jars() -> str:
    """The class path of ZooKeeper alone (pyspark carries some 450 MB of other jars).

    Raises:
        StackError: pyspark is not installed, or lacks one of the jars.
    """
    specification = importlib.util.find_spec("pyspark")  # finds it without importing it
    if specification is None or specification.origin is None:
        raise StackError(
            "ZooKeeper's jars are missing: they come with pyspark; install mainstem with its extra `loader`."
        )
    folder = Path(specification.origin).parent / "jars"
    jars: list[str] = []
    for name in _JAR_NAMES:
        found = sorted(folder.glob(f"{name}*.jar"))
        if not found:
            raise StackError(f"No {name}*.jar in {folder}: install pyspark 4 from PyPI again.")
        jars.append(str(found[-1]))
    return os.pathsep.join(jars)


def find_java() -> str:
    """The path of a `java` that is new enough: that of JAVA_HOME, else the first on PATH.

    Raises:
        StackError: there is none, it does not run, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    java = java or shutil.which("java")
    if java is None:
        raise StackError(
            f"Java {JAVA_VERSION_MIN} or newer is needed and no java was found: install it (Debian's package "
            f"is openjdk-{JAVA_VERSION_MIN}-jre-headless) or set JAVA_HOME."
        )
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"{java} does not run ({error}): set JAVA_HOME to a working Java.") from error
    version = java_version(answer.stderr)
    if version is None:
        raise StackError(f"{java} does not tell its version: set JAVA_HOME to a Java {JAVA_VERSION_MIN}.")
    if version < JAVA_VERSION_MIN:
        raise StackError(
            f"{java} is Java {version}, and Java {JAVA_VERSION_MIN} or newer is needed: install it or set "
            "JAVA_HOME."
        )
    return java


def java_version(text: str) -> int | None:
    """The feature release in what `java -version` prints: 17 of `"17.0.15"`, 8 of `"1.8.0_402"`."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first = int(found[1])
    return int(found[2] or 0) if first == 1 else first
