"""`python -m scripts.testing gate|trials [PART ...]`: what `make test` and `make trials` run.

All parts run, whatever fails. Logs are in `build/test-run`. Exit status: 0 if the run passed, 1 if it failed.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Final

from scripts.testing.parts import GATE, PYTHON, TRIALS, UNSTABLE, Check, Tests, can_make_kubernetes
from scripts.testing.verdict import (
    PartResult,
    Record,
    Repeat,
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


def main() -> int:
    """Run the parts and print the summary; the answer is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.testing", description=__doc__)
    parser.add_argument("run", choices=["gate", "trials"])
    parser.add_argument("parts", nargs="*", metavar="PART", help="run only these parts")
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
    began_s = time.monotonic()
    results: list[PartResult] = []
    try:
        for part in chosen:
            results.append(_run_check(part) if isinstance(part, Check) else _run_tests(part, options.run))
    except KeyboardInterrupt:
        results.append(PartResult(part.name, 130, 0.0, str(LOGS), problem="it was interrupted"))
    _say("\n".join(summary(results, time.monotonic() - began_s)))
    return 0 if run_has_passed(results) else 1


def _run_check(check: Check) -> PartResult:
    log = LOGS / f"{check.name}.log"
    _say(f"---- {check.name}")
    began_s = time.monotonic()
    status, problem = _run(check.command, log, PART_LIMIT_S, is_shown=False)
    if status:
        _say(log.read_text(encoding="utf-8", errors="replace")[-_SHOWN_BYTES:])
    return PartResult(check.name, status, time.monotonic() - began_s, str(log), problem=problem)


def _run_tests(part: Tests, run: str) -> PartResult:
    _say(f"---- {part.name}")
    began_s = time.monotonic()
    log = LOGS / f"{part.name}.log"
    if part.needs_kubernetes:
        if not can_make_kubernetes():
            _say("Not run: tests on Kubernetes need root on Linux. Run them with: sudo make e2e")
            return PartResult(part.name, 0, 0.0, str(log))
        up_log = log.with_suffix(".up.log")
        status, problem = _run((PYTHON, "-m", "tests.e2e.machine", "up"), up_log, PART_LIMIT_S)
        if status:
            reason = problem or _last_line(up_log)
            return PartResult(part.name, status, time.monotonic() - began_s, str(up_log), problem=reason)
    try:
        status, record, problem = _pytest(part, part.arguments, log, PART_LIMIT_S, run)
        repeats: list[Repeat] = []
        for number, tests in enumerate(to_repeat(record), start=1):
            repeat_log = log.with_suffix(f".repeat-{number}.log")
            _say(f"---- {part.name}: repeating {tests[0] if len(tests) == 1 else f'{len(tests)} tests'}")
            again = _pytest(part, (*part.again, *tests), repeat_log, REPEAT_LIMIT_S, run)[1]
            repeats += [
                Repeat(test, test in again.passed | again.skipped.keys(), str(repeat_log)) for test in tests
            ]
    finally:
        if part.needs_kubernetes:
            _run((PYTHON, "-m", "tests.e2e.machine", "down"), log.with_suffix(".down.log"), REPEAT_LIMIT_S)
    return PartResult(
        part.name, status, time.monotonic() - began_s, str(log), record, tuple(repeats), problem
    )


def _pytest(
    part: Tests, arguments: tuple[str, ...], log: Path, limit_s: float, run: str
) -> tuple[int, Record, str]:
    record = log.with_suffix(".jsonl")
    plugin = ("-p", "scripts.testing.pytest_record", "--record", str(record))
    without = ("--without", UNSTABLE) if run == "gate" else ()
    start = ("tests.e2e.machine", "pytest", "--") if part.needs_kubernetes else ("pytest",)
    status, problem = _run((PYTHON, "-m", *start, *plugin, *without, *arguments), log, limit_s)
    return (
        status,
        read_record(record.read_text(encoding="utf-8").splitlines() if record.exists() else ()),
        problem,
    )


def _run(command: tuple[str, ...], log: Path, limit_s: float, *, is_shown: bool = True) -> tuple[int, str]:
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
    return (status, "") if is_over else (status or 1, f"it did not end within {limit_s:.0f} s")


def _copy(process: subprocess.Popen[bytes], file: IO[bytes], deadline_s: float, *, is_shown: bool) -> bool:
    """Copy what a program prints until it ends; False if it does not by the deadline.

    What it leaves running may keep its output open, so its own end counts, not the end of its output.
    """
    assert process.stdout is not None
    while time.monotonic() < deadline_s:
        has_ended = process.poll() is not None  # before the look at its output, so that nothing is missed
        ready, _, _ = select.select([process.stdout], [], [], 0.5)
        if not ready:
            if has_ended:
                return True
            continue
        data = os.read(process.stdout.fileno(), 65_536)
        if not data:
            return True
        file.write(data)
        file.flush()
        if is_shown:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    return False


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


if __name__ == "__main__":
    sys.exit(main())
