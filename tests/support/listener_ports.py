"""Ports of a local stack whose brokers have several listeners."""

from __future__ import annotations

from collections.abc import Iterable

from mainstem.local.ports import hold_free_ports


class ListenerPorts:
    """A port of 127.0.0.1 for each broker and listener: those of one listener follow one another."""

    def __init__(self, brokers: Iterable[int], listeners: Iterable[str]) -> None:
        self._brokers = list(brokers)
        self._listeners = list(listeners)
        self.first, held = hold_free_ports(len(self._brokers) * len(self._listeners))
        for each in held:
            each.close()

    def port(self, broker_id: int, listener: str) -> int:
        row = self._listeners.index(listener)
        return self.first + self._brokers.index(broker_id) + len(self._brokers) * row

    def servers(self, listener: str) -> str:
        """What clients take as `bootstrap.servers`."""
        return ",".join(f"127.0.0.1:{self.port(broker_id, listener)}" for broker_id in self._brokers)

    def settings(self) -> dict[int, dict[str, str]]:
        """Of each broker."""
        results = {}
        for broker_id in self._brokers:
            listeners = ",".join(
                f"{name}://127.0.0.1:{self.port(broker_id, name)}" for name in self._listeners
            )
            results[broker_id] = {"listeners": listeners, "advertised.listeners": listeners}
        return results
