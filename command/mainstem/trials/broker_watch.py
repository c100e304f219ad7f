"""Watches the brokers of a cluster during a trial and records when each of them did not answer."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from mainstem.kafka.client import Broker, Cluster
from mainstem.kafka.probe import ask_cluster

_INTERVAL_SECONDS: Final = 0.25
# A frozen broker still accepts connections: only a request that gets no response shows that it is down.
_ANSWER_TIMEOUT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Outage:
    """A time during which a broker did not answer."""

    broker_id: int
    seconds: float


class BrokerWatch:
    """Probes every broker periodically, in a thread, while the `with` block runs."""

    def __init__(self, cluster: Cluster) -> None:
        self._brokers: list[Broker] = cluster.description().brokers
        self._down_since: dict[int, float] = {}
        self._outages: list[Outage] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="broker-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def outages(self) -> list[Outage]:
        """All outages in the order of their ends; call it after the `with` block."""
        now = time.monotonic()
        still_down = [Outage(broker_id, now - since) for broker_id, since in self._down_since.items()]
        return [*self._outages, *still_down]

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_SECONDS):
            for broker in self._brokers:
                started = time.monotonic()
                if ask_cluster(broker.port, broker.host, _ANSWER_TIMEOUT_SECONDS) is None:
                    self._down_since.setdefault(broker.broker_id, started)
                elif (since := self._down_since.pop(broker.broker_id, None)) is not None:
                    self._outages.append(Outage(broker.broker_id, time.monotonic() - since))
