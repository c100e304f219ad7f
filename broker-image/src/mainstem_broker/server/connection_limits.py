"""How many connections a broker accepts: in all, of one address, and in a second. Pure: its clock is given.

The settings are Kafka's: `max.connections`, `max.connections.per.ip` with its overrides, and
`max.connection.creation.rate`. An override may name a host, whose addresses others look up
(`hosts_to_look_up`). A connection over one of the first two is closed at once; one over the rate waits in the
backlog of its listener, with all that come after it. Unlike in Kafka, one over `max.connections` does not
wait.

Clients must not lock brokers out, which would shrink in-sync sets. So where brokers have a listener of their
own, its connections are not refused by `max.connections` and not counted for the rate (KIP-402, KIP-612), and
the last file descriptors of the process are kept for them and for the logs. `max.connections.per.ip` holds
there too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.security.authorizer import is_address, normalized_host

DESCRIPTORS_RESERVED_MAX: Final = 256
"""For connections between brokers (a few per broker) and for segments that are begun meanwhile."""
BURST_S: Final = 1.0
"""Connections of so much time may come at once: a rate counts over a second."""


class ConnectionLimits:
    """Counts the open connections of all listeners. `config` is the present one: the settings are dynamic."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._config = config
        self._open_by_address: Counter[str] = Counter()
        self._addresses_of_hosts: dict[str, frozenset[str]] = {}
        self._open = 0
        self._allowance: float | None = None  # of connections by the rate
        self._filled_s = 0.0

    def open(self, address: str, *, is_between_brokers: bool = False) -> str | None:
        """Count a new connection; or return the setting that forbids it. The address is as
        `normalized_host` writes it."""
        config = self._config()
        if not is_between_brokers and self._open >= config.integer("max.connections"):
            return "max.connections"
        if self._open_by_address[address] >= self._limit_of(address, config):
            return "max.connections.per.ip"
        self._open += 1
        self._open_by_address[address] += 1
        return None

    def close(self, address: str) -> None:
        """A connection that was counted is closed."""
        self._open -= 1
        self._open_by_address[address] -= 1
        if not self._open_by_address[address]:
            del self._open_by_address[address]

    def hosts_to_look_up(self) -> list[str]:
        """The hosts of overrides that are no addresses, and whose addresses are not known yet."""
        overrides = _overrides(self._config().string("max.connections.per.ip.overrides"))
        return [host for host in overrides if not is_address(host) and host not in self._addresses_of_hosts]

    def take_addresses(self, host: str, addresses: Iterable[str]) -> None:
        """The limit of this host is that of these addresses from now on."""
        self._addresses_of_hosts[host] = frozenset(map(normalized_host, addresses))

    def _limit_of(self, address: str, config: BrokerConfig) -> int:
        for host, limit in _overrides(config.string("max.connections.per.ip.overrides")).items():
            if host == address or address in self._addresses_of_hosts.get(host, ()):
                return limit
        return config.integer("max.connections.per.ip")

    def charge(self, now_s: float) -> float:
        """Count a connection for the rate; return for how many seconds no other may be accepted."""
        rate = self._config().integer("max.connection.creation.rate")
        burst = rate * BURST_S
        if self._allowance is None:
            self._allowance, self._filled_s = burst, now_s
        passed_s = max(now_s - self._filled_s, 0.0)
        self._allowance = min(burst, self._allowance + passed_s * rate) - 1
        self._filled_s = now_s
        return max((1 - self._allowance) / rate, 0.0)


def takes_reserve(descriptor: int, descriptors_max: int) -> bool:
    """Whether a client's connection with this descriptor would use the reserve. The system gives out the
    lowest free number, so a high one means that hardly any are left. Of a small limit an eighth is kept."""
    return descriptor >= descriptors_max - min(DESCRIPTORS_RESERVED_MAX, descriptors_max // 8)


@lru_cache(maxsize=4)
def _overrides(text: str) -> Mapping[str, int]:
    """Limits by host; of a host that is named twice the last one, as in Kafka."""
    limits = {}
    for override in filter(None, text.split(",")):
        host, _, limit = override.strip().rpartition(":")
        limits[normalized_host(host.strip("[]"))] = int(limit)
    return limits
