"""The Apache Kafka that tests and bench use."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
POMS = (
    "bench/apache_kafka_pom.xml",
    "tests/support/kafka_streams_pom.xml",
    "tests/support/kafka_tools_pom.xml",
)


def test_the_bench_and_all_tests_use_the_same_apache_kafka() -> None:
    versions = {
        pom: re.findall(r"<(?:kafka\.)?version>(\d+\.\d+\.\d+)</", (REPOSITORY / pom).read_text())[0]
        for pom in POMS
    }
    assert len(set(versions.values())) == 1, versions
