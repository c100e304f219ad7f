"""What a run of the gate decides and prints, from the records of its parts."""

from __future__ import annotations

import json

import pytest
from scripts.testing.verdict import (
    NO_TURN,
    REPEATS_MAX,
    UNSTABLE_MAX,
    Failure,
    PartResult,
    Record,
    Repeat,
    error_of,
    read_record,
    run_has_passed,
    summary,
    to_repeat,
)


def record_of(collected: list[str], **outcomes: str) -> Record:
    """Of tests a, b, ...: `passed`, `skipped`, `failed`, or `started` for one that never ended."""
    lines = [json.dumps({"collected": collected})]
    for test, outcome in outcomes.items():
        lines.append(json.dumps({"started": test}))
        if outcome != "started":
            lines.append(
                json.dumps({"ended": test, "outcome": outcome, "seconds": 1, "error": f"{test} broke"})
            )
    return read_record(lines)


def part(record: Record | None = None, exit_status: int = 0, **more: object) -> PartResult:
    return PartResult("unit", exit_status, 1.0, "unit.log", record, **more)  # type: ignore[arg-type]


def test_a_part_whose_tests_pass_or_are_skipped_has_passed() -> None:
    assert part(record_of(["a", "b"], a="passed", b="skipped")).has_passed


def test_a_test_that_passes_and_fails_in_its_teardown_has_failed() -> None:
    lines = [
        '{"collected": ["a"]}',
        '{"ended": "a", "outcome": "passed", "seconds": 1, "error": ""}',
        '{"ended": "a", "outcome": "failed", "seconds": 1, "error": "left a thread"}',
    ]
    record = read_record(lines)
    assert record.failures == (Failure("a", "left a thread"),)
    assert not record.passed


def test_a_line_that_was_cut_off_is_ignored() -> None:
    record = read_record(['{"collected": ["a"]}', '{"ended": "a", "out'])
    assert record.lost == ("a",)


def test_a_failure_that_passes_alone_is_unstable_and_does_not_block() -> None:
    result = part(record_of(["a"], a="failed"), 1, repeats=(Repeat("a", True, "again.log"),))
    assert [failure.test for failure in result.unstable] == ["a"]
    assert run_has_passed([result])
    assert any(line.startswith("UNSTABLE a") for line in summary([result], 60))


def test_a_failure_that_fails_again_blocks() -> None:
    result = part(record_of(["a"], a="failed"), 1, repeats=(Repeat("a", False, "again.log"),))
    assert not run_has_passed([result])
    text = "\n".join(summary([result], 60))
    assert "FAILED a\n       a broke\n       log: unit.log; failed again alone: again.log" in text


def test_more_unstable_tests_than_allowed_block() -> None:
    names = [f"t{number}" for number in range(UNSTABLE_MAX + 1)]
    outcomes = dict.fromkeys(names, "failed")
    repeats = tuple(Repeat(name, True, "again.log") for name in names)
    assert not run_has_passed([part(record_of(names, **outcomes), 1, repeats=repeats)])
    assert run_has_passed(
        [part(record_of(names[1:], **dict(list(outcomes.items())[1:])), 1, repeats=repeats)]
    )


def test_tests_of_a_process_that_died_are_repeated_and_block_until_they_have_passed() -> None:
    record = record_of(["a", "b", "c"], a="passed", b="started")
    assert to_repeat(record) == (("b", "c"),)
    died = part(record, -9)
    assert [failure.error for failure in died.failures] == [
        "it had begun when its process ended",
        NO_TURN,
    ]
    assert not died.has_passed
    repeated = part(record, -9, repeats=(Repeat("b", True, "again.log"), Repeat("c", True, "again.log")))
    assert repeated.has_passed


def test_of_many_failures_the_first_are_repeated() -> None:
    names = [f"t{number}" for number in range(REPEATS_MAX + 5)]
    repeated = to_repeat(record_of(names, **dict.fromkeys(names, "failed")))
    assert repeated == tuple((name,) for name in names[:REPEATS_MAX])


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (part(None, 1), "exit status 1"),
        (part(Record(), 5), "no test was run"),
        (part(record_of(["a"], a="passed"), 3), "exit status 3"),
        (part(record_of(["a"], a="passed"), 1), "without a failed test"),
        (part(record_of(["a"], a="passed"), 0, problem="it did not end within 9 s"), "did not end"),
    ],
    ids=["a check", "no tests", "pytest's own error", "no failure", "a limit"],
)
def test_a_part_that_went_wrong_by_itself_blocks(result: PartResult, reason: str) -> None:
    assert not run_has_passed([result])
    assert any(reason in line for line in summary([result], 60))


def test_a_test_that_was_lost_has_the_error_of_its_repetition() -> None:
    """Its process died with another test; alone it says what is wrong with it."""
    record = record_of(["a", "b"], a="started")
    repeats = (Repeat("a", True, "again.log"), Repeat("b", False, "again.log", "no port is free"))
    result = part(record, -9, repeats=repeats)
    assert [(failure.test, failure.error) for failure in result.failures] == [("b", "no port is free")]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(29.4, "0 min 29 s"), (31.0, "0 min 31 s"), (59.6, "1 min 00 s"), (699.0, "11 min 39 s")],
)
def test_the_time_of_a_run_is_in_whole_minutes_and_seconds(seconds: float, shown: str) -> None:
    assert f"FAILED in {shown}, 0 unstable" in summary([part(None, 1)], seconds)


def test_failures_of_a_file_with_one_cause_are_one_failure_of_the_summary() -> None:
    """A fixture that fails for a module fails for each of its tests."""
    names = [f"tests/test_x.py::test_{number}" for number in range(30)]
    failures = [json.dumps({"ended": name, "outcome": "failed", "error": "no stack"}) for name in names]
    other = json.dumps({"ended": "tests/test_y.py::test_z", "outcome": "failed", "error": "no stack"})
    record = read_record([json.dumps({"collected": [*names, "tests/test_y.py::test_z"]}), *failures, other])
    shown = [line for line in summary([part(record, 1)], 60) if line.startswith("FAILED tests")]
    assert shown == [
        "FAILED tests/test_x.py::test_0 and 29 more of this file",
        "FAILED tests/test_y.py::test_z",
    ]


def test_the_summary_shows_all_parts_and_is_short_and_ends_with_the_counts() -> None:
    names = [f"t{number}" for number in range(200)]
    lines = summary([part(record_of(names, **dict.fromkeys(names, "failed")), 1)] * 9, 3661)
    assert len(lines) <= 60
    assert [line.split()[0] for line in lines[2:11]] == ["FAILED"] * 9
    assert lines[-2:] == ["FAILED in 61 min 01 s, 0 unstable", "0 passed, 1800 failed, 0 skipped"]


def test_a_fixture_that_fails_with_other_numbers_and_paths_for_each_test_is_one_failure() -> None:
    names = [f"tests/test_x.py::test_{number}" for number in range(40)]
    errors = [
        f"RuntimeError: no broker in /tmp/pytest-7/test_{number}_0 within {number}.5 s: port {9092 + number}"
        for number in range(40)
    ]
    lines = [
        json.dumps({"ended": name, "outcome": "failed", "error": error})
        for name, error in zip(names, errors, strict=True)
    ]
    text = summary([part(read_record([json.dumps({"collected": names}), *lines]), 1)], 60)
    shown = [line for line in text if line.startswith("FAILED tests")]
    assert shown == ["FAILED tests/test_x.py::test_0 and 39 more of this file"]
    assert f"       {errors[0]}" in text


def test_tests_that_had_no_turn_are_one_failure_after_the_one_that_ended_their_process() -> None:
    names = [f"tests/test_{file}.py::test_{number}" for file in "abc" for number in range(20)]
    last = "tests/test_z.py::test_kills"
    killed = json.dumps({"ended": last, "outcome": "failed", "error": "its worker was killed"})
    record = read_record([json.dumps({"collected": [*names, last]}), killed])
    shown = [line for line in summary([part(record, 1)], 60) if line.startswith("FAILED tests")]
    assert shown == [f"FAILED {last}", "FAILED tests/test_a.py::test_0 and 59 more of 3 files"]


def test_what_the_machine_ran_out_of_is_the_first_line_of_a_failed_run() -> None:
    failed = part(record_of(["a"], a="failed"), 1)
    assert summary([failed], 60, shortages=["memory ran out"])[2] == "CAUSE  memory ran out"
    passed = part(record_of(["a"], a="passed"))
    assert not any("CAUSE" in line for line in summary([passed], 60, shortages=["memory ran out"]))


def test_a_disk_that_was_full_for_a_moment_is_known_by_the_errors() -> None:
    ended = {"ended": "a", "outcome": "failed", "error": "OSError: [Errno 28] No space left on device"}
    record = read_record([json.dumps({"collected": ["a"]}), json.dumps(ended)])
    assert summary([part(record, 1)], 60)[2].startswith("CAUSE  the disk was full")


def test_a_part_that_the_machine_cannot_run_is_not_shown_as_passed() -> None:
    lines = summary([part(left_out="it needs root on Linux: sudo make e2e")], 60)
    assert lines[2].strip().startswith("not run")
    assert lines[2].endswith("unit: it needs root on Linux: sudo make e2e")


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            [
                "e2e: images ...",
                "e2e: docker build -q failed:",
                "  #9 4.210 ERROR: No matching distribution found for kio==9.9",
                "  ------",
                "  ERROR: failed to solve: process did not complete successfully: exit code: 1",
                "  View build details: docker-desktop://dashboard",
            ],
            "e2e: docker build -q failed: #9 4.210 ERROR: No matching distribution found for kio==9.9",
        ),
        (["e2e: kind create failed:", "  no such network"], "e2e: kind create failed: no such network"),
        (["e2e: Docker engine ...", "e2e: docker is not installed."], "e2e: docker is not installed."),
        ([], "it printed nothing"),
    ],
    ids=["an image", "a program", "a sentence", "nothing"],
)
def test_of_a_cluster_that_could_not_be_made_the_first_error_is_reported(
    output: list[str], reason: str
) -> None:
    assert error_of(output) == reason
