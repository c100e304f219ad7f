"""The Spark image's first process."""

from __future__ import annotations

import sys

import pytest

import spark_container

ENVIRONMENT = {
    "SPARK_HOME": "/opt/spark",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_EXECUTOR_POD_NAME": "load-exec-3",
}


def test_an_executor_is_started_as_its_driver_describes_it() -> None:
    """R28: the class and arguments that Spark's driver expects to register with it."""
    command = spark_container.executor_command(ENVIRONMENT)
    assert command[0] == "java"
    assert command[command.index("-cp") + 1] == "/opt/spark/jars/*"
    after_class = command[command.index(spark_container.EXECUTOR_CLASS) + 1 :]
    reported = dict(zip(after_class[::2], after_class[1::2], strict=True))
    assert reported == {
        "--driver-url": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "0",
        "--podName": "load-exec-3",
    }


def test_java_options_keep_the_order_of_their_numbers() -> None:
    """The tenth comes after the ninth, not after the first."""
    numbered = {f"SPARK_JAVA_OPT_{number}": f"-Doption={number}" for number in range(12)}
    command = spark_container.executor_command(ENVIRONMENT | numbered)
    assert command[1:13] == [f"-Doption={number}" for number in range(12)]


def test_load_is_the_loaders_program_and_anything_else_is_taken_as_it_is() -> None:
    """The operator starts loads so."""
    command = spark_container.command_of(["load", "clicks", "--cores", "2"], {})
    assert command == [sys.executable, "-m", "mainstem_loader", "clicks", "--cores", "2"]
    resident = spark_container.command_of(["resident", "/etc/topics.json"], {})
    assert resident == [sys.executable, "-m", "mainstem_loader.resident", "/etc/topics.json"]
    assert spark_container.command_of(["java", "-version"], {}) == ["java", "-version"]


@pytest.mark.parametrize(
    "arguments", [[], ["executor"], ["/no/such/program"]], ids=["none", "executor", "unknown"]
)
def test_what_cannot_be_started_is_reported_in_a_sentence(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_DRIVER_URL", raising=False)
    reported = spark_container.main(arguments)
    assert reported.endswith((".", "?"))
    assert "\n" not in reported
