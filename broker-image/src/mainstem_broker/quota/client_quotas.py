"""Which quota counts for a client, and what the client has taken of it. Pure: time is given.

Quotas are set on a user, a client id, a user together with a client id, or on the default of any of these.
Of the entities that a client belongs to (`entities_of`), the most specific that has a quota of the kind in
question is the one that counts, for each kind by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, isfinite
from typing import Final

from mainstem_broker.config.setting import DECIMAL_NUMBER
from mainstem_broker.errors import ThrottlingQuotaExceeded
from mainstem_broker.quota.rate import Rate
from mainstem_broker.quota.token_bucket import TokenBucket

DEFAULT: Final = "<default>"
"""In place of a name: all that have no quota of their own."""
MEMORY_MAX: Final = 10_000
"""Clients whose quotas are kept at hand, and rates after which idle ones are let go of."""


WAIT_MS_MAX: Final = 2**31 - 1
"""What a response can say."""


class QuotaKind(StrEnum):
    """What is limited; per second, each under Kafka's name."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    """Of the time of one core: the broker has one event loop."""
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    """Partitions that are created or deleted (KIP-599); only `Mutations` takes of it."""


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """Whom a quota is set on. None: this part is left open; `DEFAULT`: those without a name of their own."""

    user: str | None
    client_id: str | None


def quotas_in(config: Mapping[str, str]) -> dict[QuotaKind, float]:
    """The quotas among an entity's settings; there may be others, and what cannot be read sets no limit."""
    quotas = {}
    for kind in QuotaKind:
        text = config.get(kind, "").strip()
        if DECIMAL_NUMBER.fullmatch(text) and isfinite(limit := float(text)) and limit > 0:
            quotas[kind] = limit
    return quotas


@dataclass(frozen=True, slots=True)
class _Limit:
    """A client's limit per second, and who shares it: (user, client id), None where all of them do."""

    per_second: float
    shared_by: tuple[str | None, str | None]


@dataclass(slots=True)
class ClientQuotas:
    """All quotas of the cluster, and what this broker's clients have taken.

    `window_count` and `window_ms` are quota.window.num and quota.window.size.seconds; those of mutations are
    controller.quota.window.num and controller.quota.window.size.seconds.
    """

    window_count: int
    window_ms: int
    mutation_window_count: int = 11
    mutation_window_ms: int = 1_000
    are_set: bool = False
    """Whether there are any; looked at with every request."""
    _quotas: dict[QuotaEntity, dict[QuotaKind, float]] = field(default_factory=dict)
    _limits: dict[tuple[str, str], dict[QuotaKind, _Limit]] = field(default_factory=dict)
    _rates: dict[tuple[QuotaKind, str | None, str | None], Rate] = field(default_factory=dict)
    _tidy_at: int = MEMORY_MAX
    _buckets: dict[tuple[str | None, str | None], TokenBucket] = field(default_factory=dict)

    def replace(self, configs: Mapping[QuotaEntity, Mapping[str, str]]) -> None:
        """Take the settings of all entities. What clients have taken stays."""
        self._quotas = {entity: quotas for entity, config in configs.items() if (quotas := quotas_in(config))}
        self._limits.clear()
        self.are_set = bool(self._quotas)
        if not self.are_set:
            self._rates.clear()
            self._buckets.clear()

    def charge(self, kind: QuotaKind, user: str, client_id: str, amount: float, now_ms: float) -> float:
        """A client has taken `amount`; answers for how many ms it may take no more (0: none)."""
        limit = self._limits_of(user, client_id).get(kind)
        if limit is None:
            return 0.0
        rate = self._rates.get((kind, *limit.shared_by))
        if rate is None:
            if len(self._rates) >= self._tidy_at:
                self._rates = {
                    key: key_rate for key, key_rate in self._rates.items() if not key_rate.is_idle(now_ms)
                }
                self._tidy_at = max(MEMORY_MAX, 2 * len(self._rates))  # or each newcomer would cost a look
            rate = self._rates[kind, *limit.shared_by] = Rate(self.window_count, self.window_ms)
        rate.record(amount, now_ms)
        wait_ms = rate.wait_ms(limit.per_second, now_ms)
        # Kafka bounds the wait for processor time, which is measured too roughly to wait for it long.
        return min(wait_ms, self.window_ms) if kind is QuotaKind.REQUEST_PERCENTAGE else wait_ms

    def limit(self, kind: QuotaKind, user: str, client_id: str) -> float | None:
        """What a client may take per second; None is any amount."""
        limit = self._limits_of(user, client_id).get(kind)
        return None if limit is None else limit.per_second

    def most_at_once(self, kind: QuotaKind, user: str, client_id: str) -> float | None:
        """What a client that was idle may take without waiting afterwards."""
        limit = self.limit(kind, user, client_id)
        return None if limit is None else limit * max(self.window_count - 1, 1) * self.window_ms / 1000

    def mutations(self, user: str, client_id: str, now_ms: float, *, strict: bool) -> Mutations:
        """What a request to create or delete partitions takes of its client's quota.

        `strict` requests are refused when nothing is left; the others are only made to wait afterwards.
        """
        limit = self._limits_of(user, client_id).get(QuotaKind.CONTROLLER_MUTATION_RATE)
        if limit is None:
            return Mutations(None, 0.0, 0.0, now_ms, strict)
        bucket = self._buckets.get(limit.shared_by)
        if bucket is None:
            if len(self._buckets) >= MEMORY_MAX:
                del self._buckets[next(iter(self._buckets))]  # the oldest one begins anew
            bucket = self._buckets[limit.shared_by] = TokenBucket()
        burst = limit.per_second * self.mutation_window_count * self.mutation_window_ms / 1000
        return Mutations(bucket, limit.per_second, burst, now_ms, strict)

    def _limits_of(self, user: str, client_id: str) -> dict[QuotaKind, _Limit]:
        cached_limits = self._limits.get((user, client_id))
        if cached_limits is not None:
            return cached_limits
        limits: dict[QuotaKind, _Limit] = {}
        for entity in entities_of(user, client_id):
            shared_by = (user if entity.user else None, client_id if entity.client_id else None)
            for kind, per_second in self._quotas.get(entity, {}).items():
                limits.setdefault(kind, _Limit(per_second, shared_by))
        if len(self._limits) >= MEMORY_MAX:
            self._limits.clear()
        self._limits[user, client_id] = limits
        return limits


@dataclass(slots=True)
class Mutations:
    """What one request takes of controller_mutation_rate (KIP-599)."""

    _bucket: TokenBucket | None
    _per_second: float
    _burst: float
    _now_ms: float
    _strict: bool
    wait_ms: int = 0
    """For how long the client should ask for nothing more."""

    def take(self, partitions: int) -> None:
        """Before that many partitions of a topic are created or deleted: all of them, or none.

        As in Apache Kafka, a topic that is larger than what is left is served, and the difference is owed.

        Raises:
            ThrottlingQuotaExceeded: the client owes something.
        """
        if self._bucket is None:
            return
        available = self._bucket.fill(self._per_second, self._burst, self._now_ms)
        if self._strict:
            if available < 0:
                self._owe(available)
                raise ThrottlingQuotaExceeded(
                    "The client has created or deleted more partitions than its controller_mutation_rate"
                    f" of {self._per_second:g} per second allows: try again in {self.wait_ms} ms."
                )
            self._bucket.take(partitions)
        else:
            self._bucket.take(partitions)
            self._owe(available - partitions)

    def _owe(self, available: float) -> None:
        if available < 0:
            self.wait_ms = max(self.wait_ms, min(ceil(-available / self._per_second * 1000), WAIT_MS_MAX))


def entities_of(user: str, client_id: str) -> list[QuotaEntity]:
    """The entities that a client belongs to, from the most to the least specific."""
    return [
        QuotaEntity(a_user, a_client_id)
        for a_user in (user, DEFAULT, None)
        for a_client_id in (client_id, DEFAULT, None)
        if a_user is not None or a_client_id is not None
    ]
