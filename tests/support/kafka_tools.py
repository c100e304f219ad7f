"""Apache Kafka's own command line tools, run from the jars that Maven fetches into `tests/.cache`."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from bench.apache_kafka import NotAvailable, fetch_jars
from tests.support.jvm import SMALL

HERE: Final = Path(__file__).parent
CACHE: Final = HERE.parent / ".cache" / "kafka-tools"
TOOL_SECONDS: Final = 60.0


def jars_of(pom: Path, cache_folder: Path) -> Path:
    """The jars that a POM names. A test that needs them is skipped where they cannot be had, and fails in CI:
    the setup has installed Maven there.
    """
    try:
        return fetch_jars(pom, cache_folder)
    except NotAvailable as reason:
        if "CI" in os.environ:
            pytest.fail(str(reason))
        pytest.skip(str(reason))


@cache
def tool_jars() -> Path:
    """The folder of jars."""
    return jars_of(HERE / "kafka_tools_pom.xml", CACHE)


def java_command(main_class: str, *arguments: str) -> list[str]:
    """What starts a tool."""
    return ["java", *SMALL, "-cp", f"{tool_jars()}/*", main_class, *arguments]


def run_tool(main_class: str, *arguments: str, stdin: str = "") -> str:
    """What a tool prints; its class is one below `org.apache.kafka.tools`.

    Raises:
        AssertionError: it does not end in time.
    """
    try:
        ended = subprocess.run(
            java_command(f"org.apache.kafka.tools.{main_class}", *arguments),
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{main_class} {' '.join(arguments)} does not end.") from None
    return "\n".join(line for line in ended.stdout.splitlines() if not line.startswith("SLF4J"))
