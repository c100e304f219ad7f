"""A JVM that a test drives over py4j: small and quick to start rather than fast."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import IO, Final

from py4j.java_gateway import launch_gateway

SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A second compiler gains nothing in the seconds that such a JVM lives."""
SMALL: Final = ("-Xmx256m", *SHORT_LIVED)


def launch_jvm(class_path: str, output: IO[bytes] | None = None) -> tuple[int, subprocess.Popen[bytes]]:
    """Start a JVM with the jars of a folder; returns the port of its gateway, and its process.

    The JVM ends when this process does, however that ends. Its errors go to `output`.
    """
    port, process = launch_gateway(
        jarpath=str(_py4j_jar()),
        classpath=f"{class_path}/*",
        javaopts=[*SMALL, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"],
        die_on_exit=True,
        redirect_stderr=output,
        return_proc=True,
    )
    return port, process


def _py4j_jar() -> Path:
    pyspark = importlib.util.find_spec("pyspark")  # importing it takes longer than starting the JVM
    assert pyspark is not None and pyspark.origin is not None
    (jar,) = (Path(pyspark.origin).parent / "jars").glob("py4j-*.jar")
    return jar
