"""`python -m scripts.testing gate|trials [PART ...]`: what `make test` and `make trials` run.

All parts run, whatever fails. Logs are in `build/test-run`. Exit status: 0 if the run passed, 1 if it failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

from tests.support.machine_pauses import PauseWitness

from scripts.testing.machine_state import (
    ResourceWitness,
    describe_pauses,
    describe_resources,
    described,
    shortages,
)
from scripts.testing.parts import GATE, GATE_SEED, PYTHON, TRIALS, UNSTABLE, Check, Tests, can_make_kubernetes
from scripts.testing.trial_results import write_result
from scripts.testing.verdict import (
    PartResult,
    Record,
    Repeat,
    error_of,
    read_record,
    run_has_passed,
    summary,
    to_repeat,
)

REPOSITORY: Final = Path(__file__).resolve().parents[2]
LOGS: Final = Path("build/test-run")
PART_LIMIT_S: Final = 5400.0
"""It ends a part that hangs; each test has a limit of its own."""
REPEAT_LIMIT_S: Final = 900.0
_SHOWN_BYTES: Final = 4_000
_LOG_SHOWN_BYTES: Final = 200_000
_IS_INTERRUPTED: Final = threading.Event()


def main() -> int:
    """Run the parts and print the summary; the answer is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.testing", description=__doc__)
    parser.add_argument("run", choices=["gate", "trials"])
    parser.add_argument("parts", nargs="*", metavar="PART", help="run only these parts")
    parser.add_argument("--seed", type=int, help="of the order and the random choices of trials")
    options = parser.parse_args()
    known = GATE if options.run == "gate" else TRIALS
    if unknown := set(options.parts) - {part.name for part in known}:
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(p.name for p in known)}")
    chosen = [part for part in known if not options.parts or part.name in options.parts]
    os.chdir(REPOSITORY)
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    # A signal ends the program that runs, and the summary tells what there is.
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    return _run_parts(chosen, _Run(options.run, options.seed))


def _run_parts(parts: list[Check | Tests], run: _Run) -> int:
    began_s = time.monotonic()
    results: list[PartResult] = []
    witness = PauseWitness()
    witness.start()
    resources = ResourceWitness()
    machine = [f"at the start {describe_resources()}"]
    kubernetes = _Kubernetes(("--for-gate",) if run.is_gate else ())
    beside: Future[PartResult] | None = None
    threads = ThreadPoolExecutor(1)
    try:
        if run.is_gate and any(isinstance(part, Tests) and part.needs_kubernetes for part in parts):
            kubernetes.begin()
        for part in parts:
            if isinstance(part, Tests) and part.is_beside:
                beside = threads.submit(_run_tests, part, run, kubernetes, is_shown=False)
                continue
            if isinstance(part, Check):
                results.append(_run_check(part))
            else:
                results.append(_run_tests(part, run, kubernetes))
                if not run.is_gate:
                    write_result(results[-1], run.seed, machine[0])
            if beside is not None:
                results.insert(-1, _shown(beside.result()))
                beside = None
        if beside is not None:
            results.append(_shown(beside.result()))
    except KeyboardInterrupt:
        _IS_INTERRUPTED.set()
        kubernetes.begin_to_remove()
        if beside is not None:
            results.append(beside.result())
        results.append(PartResult(part.name, 130, 0.0, str(LOGS), problem="it was interrupted"))
    except OSError as error:  # a full disk, as the logs are written to
        results.append(PartResult(part.name, 1, 0.0, str(LOGS), problem=str(error)))
    finally:
        kubernetes.remove()
        witness.stop()
    scarcest = resources.stop()
    machine += [f"at the worst {described(scarcest)}", describe_pauses(witness.pauses)]
    _say("\n".join(summary(results, time.monotonic() - began_s, machine, shortages(scarcest))))
    return 0 if run_has_passed(results) else 1


def _shown(result: PartResult) -> PartResult:
    """Print what a part that failed has printed, since its log may be out of reach later."""
    log = Path(result.log)
    if not result.has_passed and log.exists():
        _say(log.read_text(encoding="utf-8", errors="replace")[-_LOG_SHOWN_BYTES:])
    return result


class _Run:
    """Which run it is, and what its processes of pytest have in common."""

    def __init__(self, kind: str, seed: int | None) -> None:
        self.is_gate = kind == "gate"
        self.seed = GATE_SEED if self.is_gate else seed or random.SystemRandom().randrange(2**32)

    def options(self, record: Path) -> tuple[str, ...]:
        """Arguments of pytest."""
        common = (
            "-p",
            "scripts.testing.pytest_record",
            "--record",
            str(record),
            f"--randomly-seed={self.seed}",
        )
        if self.is_gate:
            return (*common, "--randomly-dont-reorganize", "--without", UNSTABLE)
        return (*common, "--hypothesis-profile=trials", f"--hypothesis-seed={self.seed}")


class _Kubernetes:
    """The cluster of the end-to-end tests. It takes minutes and mostly waits, so the gate makes and removes
    it beside other parts; trials measure times and make it when it is needed.
    """

    def __init__(self, options: tuple[str, ...]) -> None:
        """`options` are those of `tests.e2e.machine up`."""
        self.log = LOGS / "kubernetes.up.log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._removal: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin to make the cluster, if nobody has."""
        if self._process is None and can_make_kubernetes():
            self._process = self._start(self.log, "up", *self._options)

    def problem(self) -> str:
        """Wait until the cluster is there; why it is not, if so."""
        self.begin()
        assert self._process is not None
        try:
            status = self._process.wait(PART_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"the cluster was not ready within {PART_LIMIT_S:.0f} s"
        if status == 0:
            return ""
        return error_of(self.log.read_text(encoding="utf-8", errors="replace").splitlines())

    def begin_to_remove(self) -> None:
        """Begin to remove the cluster, if somebody made it."""
        with self._lock:
            if self._process is not None and self._removal is None:
                self._process.terminate()
                self._process.wait(60)
                self._removal = self._start(LOGS / "kubernetes.down.log", "down")

    def remove(self) -> None:
        """Wait until the cluster is gone."""
        self.begin_to_remove()
        if self._removal is not None:
            self._removal.wait(REPEAT_LIMIT_S)

    @staticmethod
    def _start(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            return subprocess.Popen(
                (PYTHON, "-m", "tests.e2e.machine", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )


def _run_check(check: Check) -> PartResult:
    log = LOGS / f"{check.name}.log"
    _say(f"---- {check.name}")
    began_s = time.monotonic()
    status, problem = _run(check.command, log, PART_LIMIT_S, is_shown=False)
    if status:
        _say(log.read_text(encoding="utf-8", errors="replace")[-_SHOWN_BYTES:])
    return PartResult(check.name, status, time.monotonic() - began_s, str(log), problem=problem)


def _run_tests(part: Tests, run: _Run, kubernetes: _Kubernetes, *, is_shown: bool = True) -> PartResult:
    """Run the tests of a part, and again those that failed; what they print is in a log, and shown or not."""
    try:
        return _try_tests(part, run, kubernetes, is_shown=is_shown)
    finally:
        if part.needs_kubernetes:
            kubernetes.begin_to_remove()


def _try_tests(part: Tests, run: _Run, kubernetes: _Kubernetes, *, is_shown: bool) -> PartResult:
    _say(f"---- {part.name}{'' if is_shown else ', beside the next part'}")
    began_s = time.monotonic()
    log = LOGS / f"{part.name}.log"
    if part.needs_kubernetes:
        if not can_make_kubernetes():
            return PartResult(part.name, 0, 0.0, str(log), left_out="it needs root on Linux: sudo make e2e")
        if problem := kubernetes.problem():
            seconds = time.monotonic() - began_s
            return PartResult(part.name, 1, seconds, str(kubernetes.log), problem=problem)
    status, record, problem = _pytest(part, part.arguments, log, PART_LIMIT_S, run, is_shown=is_shown)
    repeats: list[Repeat] = []
    for number, tests in enumerate(to_repeat(record), start=1):
        repeat_log = log.with_suffix(f".repeat-{number}.log")
        _say(f"---- {part.name}: repeating {tests[0] if len(tests) == 1 else f'{len(tests)} tests'}")
        again = _pytest(part, tests, repeat_log, REPEAT_LIMIT_S, run, is_shown=is_shown)[1]
        ended = again.passed | again.skipped.keys()
        errors = {failure.test: failure.error for failure in again.failures}
        repeats += [Repeat(test, test in ended, str(repeat_log), errors.get(test, "")) for test in tests]
    seconds = time.monotonic() - began_s
    return PartResult(part.name, status, seconds, str(log), record, tuple(repeats), problem)


def _pytest(
    part: Tests, arguments: tuple[str, ...], log: Path, limit_s: float, run: _Run, *, is_shown: bool
) -> tuple[int, Record, str]:
    record = log.with_suffix(".jsonl")
    start = ("tests.e2e.machine", "pytest", "--") if part.needs_kubernetes else ("pytest",)
    command = (PYTHON, "-m", *start, *run.options(record), *arguments)
    status, problem = _run(command, log, limit_s, is_shown=is_shown)
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    return status, read_record(lines), problem


def _run(command: tuple[str, ...], log: Path, limit_s: float, *, is_shown: bool) -> tuple[int, str]:
    """Run a program, its output to `log` and, if `is_shown`, to the terminal.

    Returns its exit status, and what went wrong besides.
    """
    environment = os.environ | {"PYTHONHASHSEED": "0"}  # the order of sets is the same in every run
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        assert process.stdout is not None
        try:
            is_over = _copy(process, file, time.monotonic() + limit_s, is_shown=is_shown)
            if not is_over:
                process.terminate()
            status = process.wait(60)
        except BaseException:
            process.terminate()
            process.wait(60)
            raise
    if _IS_INTERRUPTED.is_set():
        return status or 130, "it was interrupted"
    return (status, "") if is_over else (status or 1, f"it did not end within {limit_s:.0f} s")


def _copy(process: subprocess.Popen[bytes], file: IO[bytes], deadline_s: float, *, is_shown: bool) -> bool:
    """Copy what a program prints until it ends; False if it does not by the deadline or is not to go on.

    What it leaves running may keep its output open, so its own end counts, not the end of its output.
    """
    assert process.stdout is not None
    while time.monotonic() < deadline_s and not _IS_INTERRUPTED.is_set():
        has_ended = process.poll() is not None  # before the look at its output, so that nothing is missed
        ready, _, _ = select.select([process.stdout], [], [], 0.5)
        if not ready:
            if has_ended:
                return True
            continue
        data = os.read(process.stdout.fileno(), 65_536)
        if not data:
            return True
        with contextlib.suppress(OSError):  # the disk is full: the summary says so, if it gets that far
            file.write(data)
            file.flush()
        if is_shown:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    return False


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
