"""What the paper's client raises: each message is a sentence that says what to do."""

from __future__ import annotations


class ClientError(Exception):
    """Root of what this client raises on purpose."""


class WrongSetting(ClientError, ValueError):
    """A setting, or several together, make no sense; nothing was started."""


class ZooKeeperUnreachable(ClientError):
    """ZooKeeper gave no answer, or knows no broker."""


class SendFailed(ClientError):
    """Brokers did not acknowledge all of a message set; what they did acknowledge is stored."""


class RebalanceFailed(ClientError):
    """A consumer could not claim its partitions in all the tries it has; it has left its group."""
