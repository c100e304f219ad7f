"""Consumers of the paper's client as processes that a test starts, pauses, stops and kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Self

from tests.support.ownership import Delivery

from mainstem.local.child_process import spawn

STOP_SECONDS = 15.0


class PaperConsumer:
    """A running consumer with one stream, called `name` in the registry. `deliveries` are in order."""

    def __init__(
        self, zookeeper: str, group: str, topic: str, name: str, settings: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.deliveries: list[Delivery] = []
        config = {
            "zookeeper": zookeeper,
            "group": group,
            "topic": topic,
            "settings": {**settings, "consumer_name": name},
        }
        self._process = spawn(
            [sys.executable, "-m", "tests.support.paper_consumer_process", json.dumps(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._complaints: list[str] = []
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read, self._read_complaints)
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def __repr__(self) -> str:
        code = self._process.poll()
        state = "runs" if code is None else f"ended with {code}"
        return "\n".join((f"{self.name} {state}, {len(self.deliveries)} messages", *self._complaints[-12:]))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("]\n"):  # not one that SIGKILL cut off
                self.deliveries.append(Delivery(*json.loads(line)))

    def _read_complaints(self) -> None:
        assert self._process.stderr is not None
        self._complaints += (line.rstrip() for line in self._process.stderr)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def pause(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM: it leaves its group, and its process ends well.

        Raises:
            AssertionError: it does not.
        """
        self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"The consumer {self!r} does not end.") from None
        self._join()
        assert code == 0, repr(self)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._join()

    def _join(self) -> None:
        for reader in self._readers:
            reader.join()
