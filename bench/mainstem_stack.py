"""Mainstem as a system under measurement: one broker and its ZooKeeper, as `mainstem up` runs them."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mainstem.local.stack import Stack

BROKER_ID: Final = 1


class Mainstem:
    """One broker in `directory`; `settings` are added to its server.properties."""

    name = "Mainstem"

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self._stack = Stack(directory, brokers=1, port=0, broker_settings=settings or {})
        self.log_directory = self._stack.broker_directory(BROKER_ID) / "data"
        self._starting: threading.Thread | None = None

    @property
    def bootstrap_servers(self) -> str:
        return self._stack.bootstrap_servers

    @property
    def broker_pid(self) -> int:
        return self._stack.broker_pid(BROKER_ID)

    @property
    def broker_pids(self) -> tuple[int, ...]:
        return (self.broker_pid,)

    @property
    def companion_pids(self) -> tuple[int, ...]:
        """ZooKeeper, which a cluster of any number of brokers has once."""
        state = json.loads((self._stack.data_directory / "stack.json").read_text())
        return (int(state["zookeeper"]["pid"]),)

    def start(self) -> None:
        """Start ZooKeeper and the broker, and wait until it serves."""
        self._stack.start()

    def spawn_broker(self) -> None:
        """Start the broker alone, which was stopped before, and return at once."""
        self._starting = threading.Thread(target=self._stack.start_broker, args=(BROKER_ID,))
        self._starting.start()

    def stop_broker(self) -> None:
        """Stop the broker alone, cleanly."""
        if self._starting is not None:
            self._starting.join()
            self._starting = None
        self._stack.stop_broker(BROKER_ID)

    def stop(self) -> None:
        if self._starting is not None:
            self._starting.join()
        self._stack.stop()
