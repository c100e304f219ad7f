"""A consumer's settings under the names of Apache Kafka 0.8, with underscores, and what they must fulfil."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from mainstem.paper_client.errors import WrongSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Defaults are those of Apache Kafka 0.8 where nothing else is said."""

    zookeeper_session_timeout_ms: int = 6_000
    """How long the nodes of a consumer that died stay, and so its partitions unread. ZooKeeper has to grant
    it: between `minSessionTimeout` and `maxSessionTimeout` of its own settings, 2 and 20 ticks by default."""
    rebalance_backoff_ms: int = 2_000
    """How long to wait when a partition to be claimed is still somebody else's."""
    rebalance_max_retries: int = 4
    """How often to try again before giving up."""
    auto_commit_interval_ms: int = 10_000
    """How often positions are written to the offset registry; 0.8 has a minute, 0.7 this."""
    auto_offset_reset: Literal["smallest", "largest"] = "smallest"
    """Where a group begins in a partition in which it has no offset; 0.8 has `largest`, which skips what
    was sent before the first consumer came."""

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            WrongSetting: one is out of range, or they contradict each other.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "auto_offset_reset" and not (isinstance(value, int) and value > 0):
                raise WrongSetting(f"{field.name} is a positive whole number, not {value!r}.")
        if self.auto_offset_reset not in ("smallest", "largest"):
            raise WrongSetting(f"auto_offset_reset is smallest or largest, not {self.auto_offset_reset!r}.")
        if self.retries_last_ms <= self.zookeeper_session_timeout_ms:
            # Else one crash of a member could use up the tries of all others.
            raise WrongSetting(
                f"{self.rebalance_max_retries} retries every {self.rebalance_backoff_ms} ms end before"
                f" the session of a dead consumer does ({self.zookeeper_session_timeout_ms} ms): raise"
                " rebalance_max_retries or rebalance_backoff_ms."
            )

    @property
    def retries_last_ms(self) -> int:
        """The bound that back-off sets to one rebalance, not counting what ZooKeeper takes to answer."""
        return self.rebalance_max_retries * self.rebalance_backoff_ms
