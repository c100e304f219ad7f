"""From which level on this process logs; it may change while the process runs.

The only state of the process that belongs to a module, as loggers do. Nothing else about logging belongs
here: its form is `__main__`'s business.
"""

from __future__ import annotations

from enum import IntEnum

import structlog
from structlog.typing import EventDict, WrappedLogger


class LogLevel(IntEnum):
    """Levels under Kafka's names, which are those of its loggers; numbers are Python's."""

    TRACE = 5
    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40
    FATAL = 50


_LEVELS_OF_METHODS = {"critical": LogLevel.FATAL, "exception": LogLevel.ERROR, "warning": LogLevel.WARN}
_least = LogLevel.INFO


def log_level() -> LogLevel:
    """The least level that is logged."""
    return _least


def set_log_level(level: LogLevel) -> None:
    global _least  # one process, one log
    _least = level


def drop_below_level(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """A structlog processor: the first of all, so that what is dropped costs little."""
    level = _LEVELS_OF_METHODS.get(method) or LogLevel[method.upper()]
    if level < _least:
        raise structlog.DropEvent
    return event
