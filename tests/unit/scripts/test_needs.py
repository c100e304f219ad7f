"""What the setup installs, refuses or leaves out, by what a machine has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripts.needs import Answer, Machine, missing

COMPLETE = Machine(
    can_install=False,
    is_ci=False,
    programs=frozenset({"java", "kcat", "mvn"}),
    java=17,
    has_venv=True,
    is_installed=False,
    disk_bytes=10_000_000_000,
    memory_bytes=8_000_000_000,
)
BARE = replace(COMPLETE, programs=frozenset(), java=None, has_venv=False)


@pytest.mark.parametrize("purpose", ["demo", "test"])
def test_a_machine_with_ten_gigabytes_of_disk_needs_nothing(purpose: str) -> None:
    assert missing(COMPLETE, purpose) == Answer((), (), ())


def test_root_on_debian_gets_all_packages_in_one_step() -> None:
    root = replace(BARE, can_install=True)
    assert missing(root, "test") == Answer(("default-jre-headless", "python3-venv", "kcat", "maven"), (), ())
    assert missing(root, "demo") == Answer(("default-jre-headless", "python3-venv"), (), ())


def test_other_systems_get_one_list_of_all_that_is_missing() -> None:
    answer = missing(BARE, "test")
    assert not answer.packages
    assert [line.split(":")[1].split(",")[0].strip() for line in answer.refusals] == [
        "Java 17 or newer",
        "Python's venv module",
        "the command kcat",
    ]
    assert all("apt-get install" in line for line in answer.refusals)
    assert answer.notes == (
        "left out without Maven, for tests with Apache Kafka's tools:"
        " install it (Debian: apt-get install maven).",
    )


def test_ci_leaves_nothing_out() -> None:
    without_maven = replace(COMPLETE, programs=frozenset({"java", "kcat"}), is_ci=True)
    (refusal,) = missing(without_maven, "test").refusals
    assert "apt-get install maven" in refusal
    assert not missing(without_maven, "demo").refusals


@pytest.mark.parametrize(
    ("machine", "what"),
    [
        (replace(COMPLETE, java=11), "Java 17"),
        (replace(COMPLETE, disk_bytes=3_000_000_000), "free disk"),
        (replace(COMPLETE, is_installed=True, disk_bytes=500_000_000), "free disk"),
        (replace(COMPLETE, memory_bytes=1_000_000_000), "free memory"),
    ],
    ids=["an old Java", "disk to install", "disk to run", "memory"],
)
def test_what_is_too_old_or_too_little_is_refused_in_a_sentence(machine: Machine, what: str) -> None:
    (refusal,) = missing(machine, "test").refusals
    assert refusal.startswith(f"missing: {what}")
    assert refusal.endswith("then run this again.")


def test_an_installed_checkout_needs_little_disk_and_an_unknown_memory_is_enough() -> None:
    assert missing(
        replace(COMPLETE, is_installed=True, disk_bytes=2_000_000_000, memory_bytes=None), "test"
    ) == Answer((), (), ())
