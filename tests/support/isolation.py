"""What a test leaves behind in its process: put back, so that no later test meets it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
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
_THREADS_THAT_STAY: Final = "mainstem-forks"  # `mainstem.local.child_process` says why
ENDING_S: Final = 10.0
"""How long a thread that was told to end may take on a busy machine. Only a test that fails waits so long."""


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


def threads_left(before: frozenset[threading.Thread]) -> list[str]:
    """The names of threads that were started since and do not end; those that are ending are waited for."""
    left = []
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith(_THREADS_THAT_STAY) and thread not in _pyiceberg_threads():
            thread.join(ENDING_S)
            if thread.is_alive():
                left.append(thread.name)
    return sorted(left)


def _pyiceberg_threads() -> set[threading.Thread]:
    """The pool that pyiceberg keeps for its process."""
    module: Any = sys.modules.get("pyiceberg.utils.concurrent")
    pool = module.ExecutorFactory._instance if module is not None else None
    return set() if pool is None else pool._threads
