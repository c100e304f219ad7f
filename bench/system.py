"""What the bench needs of a system under measurement: one broker, or several that replicate.

`mainstem_stack` and `apache_kafka` are the two with one broker, `replicated` has both with three.
"""

from __future__ import annotations

from typing import Protocol


class Cluster(Protocol):
    """Brokers on loopback."""

    name: str

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def broker_pids(self) -> tuple[int, ...]: ...

    def start(self) -> None:
        """Start all of it and wait until it serves."""
        ...

    def stop(self) -> None: ...


class System(Cluster, Protocol):
    """A cluster of one broker."""

    @property
    def broker_pid(self) -> int: ...

    @property
    def companion_pids(self) -> tuple[int, ...]:
        """Processes that belong to it beside the broker."""
        ...

    def stop_broker(self) -> None:
        """Stop the broker alone, cleanly."""
        ...

    def spawn_broker(self) -> None:
        """Start the broker alone, and return at once."""
        ...
