"""What the bench needs of a system under measurement; `mainstem_stack` and `apache_kafka` are the two."""

from __future__ import annotations

from typing import Protocol


class System(Protocol):
    """A cluster of one broker on loopback."""

    name: str

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def broker_pid(self) -> int: ...

    @property
    def companion_pids(self) -> tuple[int, ...]:
        """Processes that belong to it beside the broker."""
        ...

    def start(self) -> None:
        """Start all of it and wait until it serves."""
        ...

    def stop_broker(self) -> None:
        """Stop the broker alone, cleanly."""
        ...

    def spawn_broker(self) -> None:
        """Start the broker alone, and return at once."""
        ...

    def stop(self) -> None: ...
