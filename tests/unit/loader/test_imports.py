"""Who only asks or plans waits for neither Spark nor a broker's protocol."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.processes
@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("ranges", ["pyspark", "pyarrow", "numpy", "kio", "deltalake"]),
        ("table.query", ["pyspark", "kio", "pandas", "pyiceberg", "duckdb"]),
        ("load_topic", ["pyspark", "pandas", "pyiceberg"]),
        ("spark.tasks", ["pyspark", "deltalake", "pandas", "pyiceberg", "google.protobuf"]),
    ],
)
def test_importing_a_module_brings_only_what_it_needs(module: str, without: list[str]) -> None:
    code = f"import sys, mainstem_loader.{module}; print([name for name in {without} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
