"""Whether a group's committed offsets ever go back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kio.schema.errors import ErrorCode
from tests.support.clusters import Cluster
from tests.support.group_requests import fetch_fields
from tests.support.wire import Connection

_PAUSE_SECONDS: Final = 0.05


class CommittedOffsets:
    """Asks for a group's committed offsets all the time, wherever it is answered; notes what goes back.

    `times_answered` counts answers without an error.
    """

    def __init__(self, cluster: Cluster, group: str, topic: str, partitions: int) -> None:
        self.committed: dict[int, int] = {}
        self.went_back: list[tuple[int, int, int]] = []
        self.times_answered = 0
        self._addresses = list(cluster.brokers.values())
        self._group, self._topic = group, topic
        self._partitions = list(range(partitions))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def watched(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_PAUSE_SECONDS):
            for address in self._addresses:
                try:
                    with Connection(address, timeout_seconds=2) as connection:
                        fields = fetch_fields(self._group, {self._topic: self._partitions}, 7)
                        answer = connection.ask("offset_fetch", 7, **fields)
                except (OSError, ConnectionError):
                    continue  # that broker is down
                if answer.error_code == ErrorCode.none:
                    self._compare(answer.topics[0].partitions)

    def _compare(self, partitions: Any) -> None:
        self.times_answered += 1
        for one in partitions:
            number, offset = int(one.partition_index), int(one.committed_offset)
            before = self.committed.get(number, -1)
            if offset < before:
                self.went_back.append((number, before, offset))
            self.committed[number] = offset
