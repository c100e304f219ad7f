"""Apache Kafka's own command line tools, run from the jars that Maven fetches into `tests/.cache`."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
CACHE: Final = HERE.parent / ".cache" / "kafka-tools"
TOOL_SECONDS: Final = 60.0


@cache
def tool_jars() -> Path:
    """The folder of jars; a test that needs them is skipped where they cannot be had."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"Apache Kafka's tools need `{program}`, which is not installed.")
    if not (CACHE / "complete").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        fetched = subprocess.run(
            [
                "mvn",
                "--quiet",
                "--batch-mode",
                "--file",
                str(HERE / "kafka_tools_pom.xml"),
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                f"-DoutputDirectory={CACHE}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if fetched.returncode != 0:
            pytest.skip("Apache Kafka's tools are left out because Maven could not fetch them.")
        (CACHE / "complete").touch()
    return CACHE


def java_command(main_class: str, *arguments: str) -> list[str]:
    """What starts a tool; small and quick to start rather than fast."""
    return [
        "java",
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-cp",
        f"{tool_jars()}/*",
        main_class,
        *arguments,
    ]


def run_tool(main_class: str, *arguments: str) -> str:
    """What a tool prints; its class is one below `org.apache.kafka.tools` unless it says otherwise.

    Raises:
        AssertionError: it does not end in time.
    """
    try:
        ended = subprocess.run(
            java_command(
                main_class if main_class.startswith("kafka.") else f"org.apache.kafka.tools.{main_class}",
                *arguments,
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{main_class} {' '.join(arguments)} does not end.") from None
    return "\n".join(line for line in ended.stdout.splitlines() if not line.startswith("SLF4J"))
