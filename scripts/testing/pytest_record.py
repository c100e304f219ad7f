"""A pytest plugin: `--record FILE` writes what became of each test, `--without FILE` leaves tests out.

The record has one JSON object in a line and is written as the run goes on, so it also tells of a run that was
killed. Lines are of three kinds:

- `{"collected": [ID, ...]}`, once: the tests that are going to run;
- `{"started": ID}`;
- `{"ended": ID, "outcome": "passed" | "failed" | "skipped", "seconds": 1.5, "error": TEXT}`, for each call
  that passed and each phase of a test that failed or was skipped.

`--without` names a TOML file like `tests/unstable.toml`, whose tests are deselected.
"""

from __future__ import annotations

import json
import signal
import tomllib
from pathlib import Path
from typing import Any, Final, TextIO

import pytest

ERROR_LENGTH_MAX: Final = 200
_WORKER_END_S: Final = 10.0
"""Its pipes are closed already."""
_STATUS_AFTER_HANG: Final = 1
"""`faulthandler_exit_on_timeout` ends a process with it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", metavar="FILE", type=Path, help="write what became of each test to FILE")
    parser.addoption(
        "--without", metavar="FILE", type=Path, help="leave out the tests that the TOML file names"
    )


def pytest_configure(config: pytest.Config) -> None:
    path: Path | None = config.getoption("--record")
    if path is not None and not hasattr(config, "workerinput"):  # not in a worker of xdist's
        config.pluginmanager.register(_Recorder(path.open("w", encoding="utf-8")), "mainstem-record")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path: Path | None = config.getoption("--without")
    if path is None:
        return
    left_out = {test["id"] for test in tomllib.loads(path.read_text(encoding="utf-8")).get("test", [])}
    chosen = [item for item in items if item.nodeid not in left_out]
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = chosen


class _Recorder:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._has_collected = False

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _collected(self, ids: list[str]) -> None:
        if not self._has_collected:
            self._has_collected = True
            self._write({"collected": ids})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._collected(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:  # the process that controls xdist's workers has none
            self._collected([item.nodeid for item in session.items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(
                {"ended": report.nodeid, "outcome": "failed", "seconds": 0.0, "error": _error(report)}
            )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write({"started": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._write(
                {
                    "ended": report.nodeid,
                    "outcome": report.outcome,
                    "seconds": round(report.duration, 3),
                    "error": "" if report.passed else _death(report) or _error(report),
                }
            )


def _death(report: pytest.TestReport) -> str:
    """How the worker of xdist ended that died during the test; empty if none did."""
    node = getattr(report, "node", None)
    if node is None or str(report.when) != "???":  # as xdist names the phase of a test whose worker has died
        return ""
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    return describe_death(None if process is None else process.wait(_WORKER_END_S))


def describe_death(status: int | None) -> str:
    """What the exit status of a worker's process says; None if nobody knows it."""
    if status is None:
        return "the process of the test's worker died"
    if status == -signal.SIGKILL:
        return (
            "the process of the test's worker was killed (SIGKILL): mostly by the kernel, for lack of memory"
        )
    if status < 0:
        return f"the process of the test's worker crashed ({signal.Signals(-status).name}) in compiled code"
    if status == _STATUS_AFTER_HANG:
        return (
            "the process of the test's worker ended with exit status 1: the test hung for longer than"
            " faulthandler_timeout (then the log shows each thread), or it called os._exit"
        )
    return f"the process of the test's worker ended with exit status {status}: the test called os._exit"


def _error(report: pytest.CollectReport | pytest.TestReport) -> str:
    """The reason in one line."""
    if isinstance(report.longrepr, tuple):  # of a test that was skipped: file, line, reason
        text = report.longrepr[2]
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else report.longreprtext
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    first = (
        lines[0] if isinstance(report.longrepr, tuple) or hasattr(report.longrepr, "reprcrash") else lines[-1]
    )
    return first[:ERROR_LENGTH_MAX]
