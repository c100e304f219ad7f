"""Processes of the local stack, with small Python programs in the place of brokers."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.waiting import wait_until

from mainstem.errors import StackError
from mainstem.local.child_process import ChildProcess, last_error_in

pytestmark = pytest.mark.processes

RUNS_UNTIL_STOPPED = "import signal; print('ready', flush=True); signal.pause()"
IGNORES_SIGTERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {RUNS_UNTIL_STOPPED}"


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Callable[[str], ChildProcess]]:
    made: list[ChildProcess] = []

    def make(program: str) -> ChildProcess:
        process = ChildProcess("Broker 1", [sys.executable, "-c", program], tmp_path / "server.log")
        made.append(process)
        process.start()
        return process

    yield make
    for process in made:
        process.kill()


def _said_ready(process: ChildProcess) -> bool:
    return "ready" in process.last_log_lines()


def test_a_child_is_started_awaited_and_stopped(child: Callable[[str], ChildProcess]) -> None:
    process = child(RUNS_UNTIL_STOPPED)
    process.wait_until(lambda: _said_ready(process), timeout_seconds=10)
    pid = process.pid
    assert pid is not None
    assert psutil.pid_exists(pid)
    process.request_stop()
    process.wait_stopped(timeout_seconds=10)
    assert not psutil.pid_exists(pid)
    assert process.pid is None
    assert process.exit_code == -signal.SIGTERM
    assert not process.exited_unexpectedly


def test_a_start_up_error_is_the_sentence_the_program_wrote(child: Callable[[str], ChildProcess]) -> None:
    process = child("import sys; sys.exit('The setting broker.id is missing.')")
    with pytest.raises(
        StackError,
        match=r"^Broker 1 stopped with exit code 1: The setting broker\.id is missing\. Log: .*log$",
    ):
        process.wait_until(lambda: False, timeout_seconds=10)
    assert process.exited_unexpectedly


def test_a_signal_is_named(child: Callable[[str], ChildProcess]) -> None:
    process = child("import os; print('{\"event\": 1}', flush=True); os.kill(os.getpid(), 11)")
    with pytest.raises(StackError, match=r"^Broker 1 was killed by SIGSEGV\. Log: .*server\.log$"):
        process.wait_until(lambda: False, timeout_seconds=10)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["Disk full."], "Disk full."),
        (["Traceback (most recent call last):", '  File "x", line 1', "OSError: no"], "OSError: no"),
        (
            ["java.net.BindException: Address in use", "\tat java.base/sun.nio.ch"],
            "java.net.BindException: Address in use",
        ),
        (
            [
                '{"event": "disk failed", "level": "error", "reason": "EIO"}',
                '{"event": "stopped", "level": "info"}',
            ],
            "disk failed: EIO",
        ),
        (['{"event": "stopped", "level": "info"}'], None),
        (["{not JSON", "", "   "], None),
        ([], None),
    ],
    ids=["sentence", "traceback", "Java", "JSON", "no error", "broken", "nothing"],
)
def test_the_last_error_is_found_in_a_log(lines: list[str], error: str | None) -> None:
    assert last_error_in(lines) == error


def test_a_child_that_does_not_become_ready_is_reported_in_time(child: Callable[[str], ChildProcess]) -> None:
    process = child(RUNS_UNTIL_STOPPED)
    with pytest.raises(StackError, match="Broker 1 was not ready within 0 s"):
        process.wait_until(lambda: False, timeout_seconds=0.1)


def test_a_child_that_ignores_sigterm_is_killed_and_reported(child: Callable[[str], ChildProcess]) -> None:
    process = child(IGNORES_SIGTERM)
    process.wait_until(lambda: _said_ready(process), timeout_seconds=10)
    process.request_stop()
    with pytest.raises(StackError, match="did not stop within 0 s and was killed"):
        process.wait_stopped(timeout_seconds=0.2)
    assert not process.running


def test_a_second_start_shows_only_its_own_lines(child: Callable[[str], ChildProcess]) -> None:
    process = child("print('first')")
    wait_until(lambda: not process.running, "the process has ended")
    process.start()
    wait_until(lambda: not process.running, "the process has ended")
    assert process.last_log_lines() == ["first"]
    assert process.log_path.read_text() == "first\nfirst\n"


def test_a_child_that_runs_is_not_started_twice(child: Callable[[str], ChildProcess]) -> None:
    process = child(RUNS_UNTIL_STOPPED)
    with pytest.raises(StackError, match="is already running"):
        process.start()


def test_a_child_is_started_by_a_thread_that_ends_and_lives_on(child: Callable[[str], ChildProcess]) -> None:
    from threading import Thread

    made: list[ChildProcess] = []
    thread = Thread(target=lambda: made.append(child(RUNS_UNTIL_STOPPED)))
    thread.start()
    thread.join()
    made[0].wait_until(lambda: _said_ready(made[0]), timeout_seconds=10)
    assert made[0].running


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")
def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path\n"
            "from mainstem.local.child_process import ChildProcess\n"
            f"command = [sys.executable, '-c', {IGNORES_SIGTERM!r}]\n"
            f"child = ChildProcess('x', command, Path({str(tmp_path / 'log')!r}))\n"
            "child.start()\n"
            "child.wait_until(lambda: 'ready' in child.last_log_lines(), 10)\n"
            "print(child.pid, flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child_pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not _alive(child_pid), "the child has died with its parent")


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_large_log_file_is_moved_aside_before_a_start(
    child: Callable[[str], ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = child("print('first')")
    wait_until(lambda: not process.running, "the process has ended")
    monkeypatch.setattr("mainstem.local.child_process.LOG_BYTES_MAX", 3)
    process.start()
    wait_until(lambda: not process.running, "the process has ended")
    assert process.log_path.read_text() == "first\n"
    assert process.log_path.with_name("server.log.1").read_text() == "first\n"
