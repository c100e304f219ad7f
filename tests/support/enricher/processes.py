"""Two instances of the application, which a test kills, pauses and resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

from tests.support.kafka_tools import tool_jars

from mainstem.local.child_process import spawn

INSTANCES: Final = 2


class Enrichers:
    """Instances 0 and 1; what they print is in `directory`."""

    def __init__(self, kind: str, protocol: str, servers: str, directory: Path) -> None:
        self._config = {"kind": kind, "protocol": protocol, "servers": servers}
        if kind == "java":
            self._config["class_path"] = str(tool_jars())
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[Any]] = {}
        self.ended_by_themselves = 0
        """Instances whose producers were fenced, or that failed otherwise; they were started again."""

    def __enter__(self) -> Self:
        self._directory.mkdir()
        for number in range(INSTANCES):
            self._start(number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(INSTANCES):
            self._kill(number)

    @staticmethod
    def transactional_id(number: int) -> str:
        return f"enricher-{number}"

    def _start(self, number: int) -> None:
        config = self._config | {"transactional_id": self.transactional_id(number)}
        with (self._directory / f"instance-{number}").open("ab") as output:
            # A group of processes, since a JVM of its own belongs to an instance.
            self._processes[number] = spawn(
                [sys.executable, "-m", "tests.support.enricher", json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )

    def _signal(self, number: int, signal_number: signal.Signals) -> None:
        try:
            os.killpg(self._processes[number].pid, signal_number)
        except ProcessLookupError:
            pass  # it has ended by itself

    def _kill(self, number: int) -> None:
        self._signal(number, signal.SIGKILL)
        self._processes[number].wait()

    def replace(self, number: int) -> None:
        """SIGKILL, and a new instance with the same transactional id."""
        self._kill(number)
        self._start(number)

    def pause(self, number: int) -> None:
        """SIGSTOP: an instance that is taken for dead and is not."""
        self._signal(number, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._signal(number, signal.SIGCONT)

    def start_ended(self) -> None:
        """Start the instances again that have ended by themselves."""
        for number, process in self._processes.items():
            if process.poll() is not None:
                self.ended_by_themselves += 1
                self._signal(number, signal.SIGKILL)  # its JVM
                self._start(number)

    def last_words(self) -> str:
        return "\n".join(
            f"--- {path.name} ---\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self._directory.iterdir())
        )
