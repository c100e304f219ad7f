"""Orders of customers, sent one after another: the input of applications that process it exactly once."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from typing import Any, Final

from confluent_kafka import Producer
from tests.support.clusters import ReachableCluster

ORDERS: Final = "orders"
ENRICHED: Final = "enriched-orders"
CUSTOMERS: Final = 20
PAUSE_SECONDS: Final = 0.01
"""Between two orders."""


class Orders:
    """Sends orders in a thread until it is stopped; `sent` has the values of each key in order."""

    def __init__(self, cluster: ReachableCluster) -> None:
        self._producer: Any = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self.sent: dict[str, list[str]] = defaultdict(list)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            key, value = f"customer-{number % CUSTOMERS}", f"order-{number}"
            self._producer.produce(ORDERS, value, key)
            self._producer.poll(0)
            self.sent[key].append(value)
            if self._stop.wait(PAUSE_SECONDS):
                return

    def stop(self) -> None:
        """Send no more; all orders are acknowledged when this returns."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0

    @property
    def count(self) -> int:
        return sum(map(len, self.sent.values()))
