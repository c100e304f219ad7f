"""What the records of a run say: which tests failed, were lost or are unstable, and whether it passed.

Nothing here runs anything or reads a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

UNSTABLE_MAX: Final = 3
"""How many tests of a run may fail once and pass alone. More of them are a defect of the run itself."""
REPEATS_MAX: Final = 8
"""How many tests of a part are repeated: more failures have a common cause, which the first ones show."""
_GROUPS_SHOWN: Final = 10
NO_TURN: Final = "not run: the process that was to run it had ended before"
_FULL_DISK: Final = "No space left on device"

PYTEST_OK: Final = 0
PYTEST_FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed in one phase."""

    test: str
    error: str


@dataclass(frozen=True, slots=True)
class Record:
    """What a pytest process wrote about its run."""

    collected: tuple[str, ...] = ()
    passed: frozenset[str] = frozenset()
    skipped: dict[str, str] = field(default_factory=dict)
    """By test: the reason."""
    failures: tuple[Failure, ...] = ()
    """One for each test that failed, with its first error."""
    under_way: tuple[str, ...] = ()
    """Tests that were begun and have not ended."""

    @property
    def lost(self) -> tuple[str, ...]:
        """Tests that were collected and of which nothing was heard."""
        ended = self.passed | self.skipped.keys() | {failure.test for failure in self.failures}
        return tuple(test for test in self.collected if test not in ended)


def read_record(lines: Iterable[str]) -> Record:
    """Parse the lines that `pytest_record` writes; a last line that was cut off is ignored."""
    collected: tuple[str, ...] = ()
    passed: set[str] = set()
    skipped: dict[str, str] = {}
    errors: dict[str, str] = {}
    under_way: dict[str, None] = {}
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if "collected" in entry:
            collected = tuple(entry["collected"])
        elif "started" in entry:
            under_way[entry["started"]] = None
        else:
            test = entry["ended"]
            under_way.pop(test, None)
            if entry["outcome"] == "failed":
                errors.setdefault(test, entry["error"])
            elif entry["outcome"] == "skipped":
                skipped[test] = entry["error"]
            else:
                passed.add(test)
    return Record(
        collected=collected,
        passed=frozenset(passed - errors.keys()),
        skipped={test: reason for test, reason in skipped.items() if test not in errors},
        failures=tuple(Failure(test, error) for test, error in errors.items()),
        under_way=tuple(under_way),
    )


@dataclass(frozen=True, slots=True)
class Repeat:
    """The second try of a test, alone in a new process."""

    test: str
    has_passed: bool
    log: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class PartResult:
    """What became of a part: of a check, or of a run of pytest with the repetition of what failed in it."""

    name: str
    exit_status: int
    seconds: float
    log: str
    record: Record | None = None
    """None for a check, which has no tests."""
    repeats: tuple[Repeat, ...] = ()
    problem: str = ""
    """Why the part could not run or end; empty if it did."""
    left_out: str = ""
    """What is missing on this machine to run the part; empty if it was run."""

    @property
    def repeated(self) -> dict[str, Repeat]:
        return {repeat.test: repeat for repeat in self.repeats}

    @property
    def unstable(self) -> tuple[Failure, ...]:
        """Tests that failed, and passed when they were repeated alone."""
        return tuple(
            failure
            for failure in (self.record.failures if self.record else ())
            if self._passed_since(failure)
        )

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Tests that failed twice, or that failed and were not repeated."""
        lost = set(self.record.lost) if self.record else set()
        return tuple(
            # Of a test that was lost, only its repetition may know more.
            replace(failure, error=self._error_since(failure) or failure.error)
            if failure.test in lost
            else failure
            for failure in _failed_or_lost(self.record)
            if not self._passed_since(failure)
        )

    def _error_since(self, failure: Failure) -> str:
        repeat = self.repeated.get(failure.test)
        return repeat.error if repeat is not None else ""

    def _passed_since(self, failure: Failure) -> bool:
        repeat = self.repeated.get(failure.test)
        return repeat is not None and repeat.has_passed

    @property
    def defect(self) -> str:
        """What is wrong with the part besides its tests; empty if nothing is."""
        if self.problem:
            return self.problem
        if self.record is None:
            return "" if self.exit_status == 0 else f"exit status {self.exit_status}"
        if not self.record.collected:
            return f"no test was run (exit status {self.exit_status})"
        if self.exit_status not in (PYTEST_OK, PYTEST_FAILED) and not _failed_or_lost(self.record):
            return f"exit status {self.exit_status}"
        if self.exit_status == PYTEST_FAILED and not _failed_or_lost(self.record):
            return "pytest failed without a failed test"
        return ""

    @property
    def has_passed(self) -> bool:
        return not self.failures and not self.defect


def to_repeat(record: Record) -> tuple[tuple[str, ...], ...]:
    """The tests to try again, those of each tuple in a process of their own.

    What failed is tried alone. What was lost with its process is tried together: it never had its turn.
    """
    alone = tuple((failure.test,) for failure in record.failures[:REPEATS_MAX])
    return (*alone, record.lost) if record.lost else alone


def _failed_or_lost(record: Record | None) -> tuple[Failure, ...]:
    if record is None:
        return ()
    return record.failures + tuple(
        Failure(
            test,
            "it had begun when its process ended" if test in record.under_way else NO_TURN,
        )
        for test in record.lost
    )


def run_has_passed(parts: Sequence[PartResult]) -> bool:
    """Whether every part passed, and not too many tests were unstable."""
    return all(part.has_passed for part in parts) and _count_unstable(parts) <= UNSTABLE_MAX


def _count_unstable(parts: Sequence[PartResult]) -> int:
    return sum(len(part.unstable) for part in parts)


def error_of(lines: Sequence[str]) -> str:
    """Of the output of `tests.e2e.machine`, why it failed: the program that did and its first error."""
    printed = [line.strip() for line in lines if line.strip()]
    failed = [number for number, line in enumerate(printed) if line.endswith("failed:")]
    if not failed:
        return printed[-1] if printed else "it printed nothing"
    output = printed[failed[-1] + 1 :] or ["it printed nothing"]
    # A line of a build in Docker begins with the number of its step and the time.
    errors = [line for line in output if re.match(r"(#\d+ ([\d.]+ )?)?(ERROR|Error|error|E)\b", line)]
    return f"{printed[failed[-1]]} {(errors or output[-1:])[0]}"


def summary(
    parts: Sequence[PartResult], seconds: float, machine: Sequence[str] = (), shortages: Sequence[str] = ()
) -> list[str]:
    """The last lines of a run: what the machine ran out of, each part, each failure with its error and log,
    the machine, the counts.
    """
    lines = ["", "=" * 40 + " summary " + "=" * 40]
    if not run_has_passed(parts):
        lines += [f"CAUSE  {shortage}" for shortage in shortages or _shortages_in_errors(parts)]
    for part in parts:
        if part.left_out:
            lines.append(f"  not run             {part.name}: {part.left_out}")
            continue
        state = "passed" if part.has_passed else "FAILED"
        lines.append(f"  {state}  {part.seconds:7.1f} s  {part.name}{_counts(part)}")
    skipped = {reason for part in parts if part.record for reason in part.record.skipped.values()}
    lines += [f"  skipped: {reason}" for reason in sorted(skipped)[:5]]
    for part in parts:
        if part.defect:
            lines.append(f"FAILED {part.name}: {part.defect}; log: {part.log}")
    groups = [(part, group) for part in parts for group in _by_cause(part.failures)]
    for part, group in groups[:_GROUPS_SHOWN]:
        repeat = part.repeated.get(group[0].test)
        lines.append(f"FAILED {group[0].test}{_more(group)}")
        lines.append(f"       {group[0].error or 'no message'}")
        lines.append(
            f"       log: {part.log}"
            + (f"; failed again alone: {repeat.log}" if repeat else "; not repeated")
        )
    if hidden := sum(len(group) for _, group in groups[_GROUPS_SHOWN:]):
        lines.append(f"       and {hidden} more failures, in the logs of their parts")
    unstable = [(part, failure) for part in parts for failure in part.unstable]
    for part, failure in unstable[: UNSTABLE_MAX + 2]:
        lines.append(f"UNSTABLE {failure.test} (passed when it was repeated alone)")
        lines.append(f"       {failure.error or 'no message'}; log: {part.log}")
    if (count := _count_unstable(parts)) > UNSTABLE_MAX:
        lines.append(f"FAILED {count} tests are unstable; {UNSTABLE_MAX} may be.")
    lines += [f"  machine: {line}" for line in machine]
    records = [part.record for part in parts if part.record]
    passed = sum(len(record.passed) for record in records) + _count_unstable(parts)
    lines.append(
        f"{'PASSED' if run_has_passed(parts) else 'FAILED'} in {_in_minutes(seconds)},"
        f" {_count_unstable(parts)} unstable"
    )
    failed = sum(len(part.failures) for part in parts)
    skipped_count = sum(len(record.skipped) for record in records)
    lines.append(f"{passed} passed, {failed} failed, {skipped_count} skipped")
    return lines


def _in_minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s"


def _shortages_in_errors(parts: Sequence[PartResult]) -> list[str]:
    """A full disk is often free again before anybody looks, because the program that filled it has failed."""
    errors = [part.problem for part in parts] + [failure.error for part in parts for failure in part.failures]
    return (
        ["the disk was full for a moment: see the first failure"]
        if any(_FULL_DISK in error for error in errors)
        else []
    )


def _by_cause(failures: Sequence[Failure]) -> list[list[Failure]]:
    """Failures with the same cause together, in the order of the first ones; those without a turn come last.

    A fixture fails for each test of its file with an error that differs in numbers and paths at most.
    """
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in sorted(failures, key=lambda failure: failure.error == NO_TURN):
        file = "" if failure.error == NO_TURN else failure.test.partition("::")[0]
        groups.setdefault((file, _without_details(failure.error)), []).append(failure)
    return list(groups.values())


def _without_details(error: str) -> str:
    """An error without what differs between tests that fail for one reason: paths and numbers."""
    return re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "N", re.sub(r"/[^\s:,;'\")]+", "/PATH", error))


def _more(group: Sequence[Failure]) -> str:
    if len(group) == 1:
        return ""
    files = {failure.test.partition("::")[0] for failure in group}
    return f" and {len(group) - 1} more of {'this file' if len(files) == 1 else f'{len(files)} files'}"


def _counts(part: PartResult) -> str:
    if part.record is None:
        return ""
    return f": {len(part.record.passed)} of {len(part.record.collected)} tests"
