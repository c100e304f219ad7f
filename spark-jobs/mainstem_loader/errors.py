"""Everything the loader can say went wrong, each as one sentence that tells what to do.

Errors cross from a task to the driver as values, so each is its message alone. Must not live here: codes of
the protocol, or any handling.
"""

from __future__ import annotations


class LoaderError(Exception):
    """The root: whatever a load or a query refuses to go on with."""


class SettingsError(LoaderError):
    """What was asked for cannot be done as asked."""


class BrokerUnreachableError(LoaderError):
    """No broker answered, or a partition had no leader for too long."""


class RegistryUnreachableError(LoaderError):
    """The schema registry did not answer, or not as one does."""


class UnsupportedBrokerError(LoaderError):
    """The broker speaks no version of a request that the loader speaks too, or refused a request."""


class LoginRefusedError(LoaderError):
    """The brokers do not accept the login of the client properties."""


class TopicUnknownError(LoaderError):
    """The topic does not exist, or may not be read."""


class TopicRecreatedError(LoaderError):
    """The topic is not the one that was loaded before: deleted, made anew, or cut short."""


class OffsetsLostError(LoaderError):
    """Records that were not loaded yet are gone from the topic."""


class CorruptBatchError(LoaderError):
    """A record batch is not what was written: its bytes changed on disk or on the way."""


class WriteError(LoaderError):
    """A record could not be written to its topic."""


class SparkUnavailableError(LoaderError):
    """Spark cannot be started, or has ended."""


class WarehouseError(LoaderError):
    """The table cannot take the data."""


class DiskFullError(WarehouseError):
    """No room is left where the table lies."""


class QueryError(LoaderError):
    """The SQL cannot be answered."""


class TransformError(LoaderError):
    """The transform failed, took too long, or returned what cannot be rows of the table."""
