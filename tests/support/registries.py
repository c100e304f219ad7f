"""Instances of the schema registry as processes, for tests."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.support.ports import own_ports
from tests.support.waiting import wait_until

SESSION_TIMEOUT_MS = 1000


class RegistryInstance:
    """One process. Its URL stays the same when it is started again."""

    def __init__(
        self,
        bootstrap_servers: str,
        log: Path,
        arguments: Sequence[str | Path] = (),
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """`trust`: for an instance whose arguments name a certificate."""
        self.port = own_ports(1)
        self.url = f"{'http' if trust is None else 'https'}://127.0.0.1:{self.port}"
        self._trust = trust
        self.log = log
        self._bootstrap_servers = bootstrap_servers
        self._arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "mainstem_registry", "--bootstrap-servers", self._bootstrap_servers,
                    "--listen", f"127.0.0.1:{self.port}", "--session-timeout-ms", str(SESSION_TIMEOUT_MS),
                    *self._arguments,
                ],
                stderr=log,
            )  # fmt: skip

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        timeout_s: float = 30.0,
        login: tuple[str, str] | None = None,
    ) -> httpx.Response:
        verify: ssl.SSLContext | bool = True if self._trust is None else self._trust
        url = self.url + path
        return httpx.request(method, url, json=body, timeout=timeout_s, auth=login, verify=verify)

    def readiness(self) -> dict[str, Any]:
        """The answer of /readyz; {} while nothing listens or answers."""
        try:
            answer: dict[str, Any] = self.request("GET", "/readyz", timeout_s=2).json()
        except httpx.HTTPError:
            return {}
        return answer

    def wait_ready(self) -> str:
        """Wait until it serves, and return the leader's URL."""
        readiness = wait_until(
            lambda: (now := self.readiness()).get("ready") and now, f"{self.url} is ready", seconds=90
        )
        assert readiness
        return str(readiness["leader"])


@contextmanager
def running_registries(
    bootstrap_servers: str,
    folder: Path,
    count: int = 1,
    arguments: Sequence[str | Path] = (),
    trust: ssl.SSLContext | None = None,
) -> Iterator[list[RegistryInstance]]:
    """Instances that are ready and have one leader; all are killed at the end."""
    instances = [
        RegistryInstance(bootstrap_servers, folder / f"registry-{n}.log", arguments, trust)
        for n in range(count)
    ]
    try:
        for instance in instances:
            instance.start()
        wait_until(
            lambda: len({instance.wait_ready() for instance in instances}) == 1,
            "all instances know one leader",
        )
        yield instances
    finally:
        for instance in instances:
            instance.kill()
