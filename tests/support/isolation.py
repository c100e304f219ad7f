"""What a test leaves behind in its process: put back, so that no later test meets it, or found."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
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
THREADS_END_WITHIN_S: Final = 10.0
"""How long threads of a test that has ended may take to end. It is no bound on speed."""
_OWN_VARIABLES: Final = "PYTEST_"
_LIVES_WITH_THE_PROCESS: Final = "mainstem-forks"
"""The one thread that starts children: they are told when it ends, not when their parent process does."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of this process that tests share, at one moment."""

    environment: dict[str, str]
    folder: str
    handlers: dict[signal.Signals, Any]
    root_handlers: list[logging.Handler]
    root_level: int
    threads: frozenset[threading.Thread] = field(repr=False)

    @classmethod
    def now(cls) -> ProcessState:
        root = logging.getLogger()
        return cls(
            _environment(),
            os.getcwd(),  # noqa: PTH109  # a folder that was deleted has no Path
            {number: signal.getsignal(number) for number in SIGNALS},
            list(root.handlers),
            root.level,
            frozenset(threading.enumerate()),
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

    def threads_left(self) -> list[str]:
        """Threads that were started since and do not end."""
        deadline_s = time.monotonic() + THREADS_END_WITHIN_S
        known = self.threads | _threads_of_pyiceberg()
        started = [
            thread
            for thread in threading.enumerate()
            if thread not in known and not thread.name.startswith(_LIVES_WITH_THE_PROCESS)
        ]
        for thread in started:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return [f"thread {thread.name} still runs" for thread in started if thread.is_alive()]


def _threads_of_pyiceberg() -> frozenset[threading.Thread]:
    """Its pool lives as long as the process, from its first use on."""
    module = sys.modules.get("pyiceberg.utils.concurrent")
    pool = module.ExecutorFactory._instance if module is not None else None
    return frozenset(pool._threads) if pool is not None else frozenset()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
