"""The locks hold what pyproject.toml requires, at the versions of constraints.txt, with hashes (R38)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from scripts.build_images import IMAGES
from scripts.lock import EXTRAS_OF_LOCKS, LOCKS, REPOSITORY, REQUIREMENTS_OF_LOCKS, requirements_of

ALL_LOCKS = sorted({*EXTRAS_OF_LOCKS, *REQUIREMENTS_OF_LOCKS})
HOW_TO_MEND = "run `python -m scripts.lock`"


def entries_of(lock: Path) -> list[tuple[Requirement, int]]:
    """Each package of a lock, and how many hashes it has."""
    joined = lock.read_text().replace("\\\n", " ")
    entries: list[tuple[Requirement, int]] = []
    for line in joined.splitlines():
        requirement, *hashes = re.split(r"\s+--hash=", line)
        entries.append((Requirement(requirement), len(hashes)))
    return entries


def pinned_versions() -> set[tuple[str, str]]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines]
    return {(canonicalize_name(it.name), str(it.specifier)) for it in requirements}


@pytest.mark.parametrize("name", ALL_LOCKS)
def test_every_package_of_a_lock_has_hashes_and_the_version_of_the_constraints(name: str) -> None:
    pinned = pinned_versions()
    entries = entries_of(LOCKS / f"{name}.txt")
    assert entries
    for requirement, hashes in entries:
        assert hashes > 0, f"{requirement} of {name} has no hash: {HOW_TO_MEND}"
        version = (canonicalize_name(requirement.name), str(requirement.specifier))
        is_for_this_system = requirement.marker is None or requirement.marker.evaluate()
        assert version in pinned or not is_for_this_system, f"{requirement} of {name}: {HOW_TO_MEND}"


@pytest.mark.parametrize("name", ALL_LOCKS)
def test_a_lock_holds_what_is_required(name: str) -> None:
    extras = EXTRAS_OF_LOCKS.get(name)
    required = REQUIREMENTS_OF_LOCKS[name] if extras is None else requirements_of(extras)
    locked = {canonicalize_name(it.name): str(it.specifier) for it, _ in entries_of(LOCKS / f"{name}.txt")}
    for requirement in map(Requirement, required):
        version = locked.get(canonicalize_name(requirement.name), "").removeprefix("==")
        assert version, f"{requirement} is missing in {name}: {HOW_TO_MEND}"
        assert requirement.specifier.contains(version), f"{requirement} of {name}: {HOW_TO_MEND}"


def test_images_are_made_of_locks() -> None:
    assert {image.wheels for image in IMAGES} <= set(ALL_LOCKS)
