"""What a test leaves behind in its process: put back, so that no later test meets it."""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import dataclass
from typing import Any, Final

import structlog

SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
)
_OWN_VARIABLES: Final = "PYTEST_"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of this process that tests share, at one moment."""

    environment: dict[str, str]
    folder: str
    handlers: dict[signal.Signals, Any]
    root_handlers: list[logging.Handler]
    root_level: int

    @classmethod
    def now(cls) -> ProcessState:
        root = logging.getLogger()
        return cls(
            _environment(),
            os.getcwd(),  # noqa: PTH109  # a folder that was deleted has no Path
            {number: signal.getsignal(number) for number in SIGNALS},
            list(root.handlers),
            root.level,
        )

    def put_back(self) -> None:
        """Undo what has changed since: programs that a test runs in this process set all of it."""
        structlog.reset_defaults()
        for name in _environment().keys() - self.environment.keys():
            del os.environ[name]
        os.environ.update(self.environment)
        os.chdir(self.folder)
        for number, handler in self.handlers.items():
            if handler is not None:  # it was set by Python
                signal.signal(number, handler)
        root = logging.getLogger()
        root.handlers[:] = self.root_handlers
        root.setLevel(self.root_level)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
