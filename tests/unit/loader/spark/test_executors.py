"""Where tasks run, and what is said when Spark cannot (R28)."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mainstem_loader.errors import SparkUnavailableError
from mainstem_loader.spark import executors
from mainstem_loader.spark.executors import InProcessExecutor, SparkExecutor, TaskExecutor


def double(task: int, attempt: int) -> tuple[int, int]:
    return 2 * task, attempt


def test_results_come_in_the_order_of_the_tasks_and_no_two_tries_share_a_number() -> None:
    executor: TaskExecutor = InProcessExecutor()
    ended: list[int] = []
    with executor:
        first = executor.run(double, [1, 2, 3], ended.append)
        second = executor.run(double, [1], ended.append)
    assert [result for result, _ in first] == [2, 4, 6]
    assert ended == [1, 2, 3, 1]
    assert len({attempt for _, attempt in first + second}) == 4


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2021-10-19' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IEXEC)
    return folder


def test_no_java_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailableError) as caught, SparkExecutor("local[1]"):
        pass
    assert str(caught.value) == (
        "Spark needs Java 17 or later, and there is no java on the PATH; install it, for example the"
        " package openjdk-17-jre-headless, or set JAVA_HOME."
    )


def test_a_wrong_java_home_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with (
        pytest.raises(SparkUnavailableError, match=f"no java in JAVA_HOME \\({tmp_path}\\)"),
        SparkExecutor("local[1]"),
    ):
        pass


@pytest.mark.processes
@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_292"])
def test_an_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, version)))
    with pytest.raises(
        SparkUnavailableError, match=r"needs Java 17 or later, and .* is .*install a newer one"
    ):
        SparkExecutor("local[1]").__enter__()


@pytest.mark.processes
def test_a_java_that_does_not_start_spark_is_reported_in_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(executors, "_started_gateway", None)
    home = fake_java(tmp_path, "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(
        SparkUnavailableError, match=r"Spark did not start \(.+\); check Java and the memory left"
    ):
        SparkExecutor("local[1]").__enter__()


@pytest.mark.parametrize(
    ("exit_status", "reason"), [(None, "was stopped"), (52, "memory"), (-9, "memory"), (7, "exit status 7")]
)
def test_the_end_of_spark_during_a_transform_is_explained(exit_status: int | None, reason: str) -> None:
    assert reason in executors._end_of_spark(exit_status)  # without a JVM
