"""Definitions go forward and never back (R23)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_kubernetes import Kubernetes

from mainstem_operator.definitions import (
    VERSION_NEEDED,
    MissingDefinitions,
    lacking,
    read,
    upgrade,
    version_of,
)
from mainstem_operator.kubernetes.client import Kube

CRDS = Path(__file__).parents[3] / "crds"
PLURAL = "customresourcedefinitions"


def of_version(version: int) -> list[dict[str, Any]]:
    definitions = copy.deepcopy(read(CRDS))
    for definition in definitions:
        definition["metadata"]["annotations"]["mainstem.dev/definitions-version"] = str(version)
    return definitions


def test_the_files_have_the_version_that_the_operator_needs_or_a_later_one() -> None:
    (version,) = {version_of(definition) for definition in read(CRDS)}
    assert version >= VERSION_NEEDED


def test_a_folder_that_does_not_have_all_definitions_is_refused(tmp_path: Path) -> None:
    """Otherwise a chart whose packager left them out would upgrade none and say that all are up to date."""
    for path in CRDS.glob("[!t]*.yaml"):
        (tmp_path / path.name).write_text(path.read_text())
    with pytest.raises(
        MissingDefinitions, match=r"has no definition of topics\.mainstem\.dev: the chart is not"
    ):
        read(tmp_path)


async def test_definitions_are_made_upgraded_and_never_taken_back(kubernetes: Kubernetes, kube: Kube) -> None:
    assert len(await upgrade(kube, of_version(8))) == 4
    assert await upgrade(kube, of_version(8)) == []
    assert len(await upgrade(kube, of_version(9))) == 4
    assert await upgrade(kube, of_version(8)) == []
    (position,) = [one for one in kubernetes.find(PLURAL) if one["metadata"]["name"].startswith("topics.")]
    assert version_of(position) == 9


async def test_an_operator_says_which_definition_is_missing_or_too_old(kube: Kube) -> None:
    assert "clusters.mainstem.dev is not there" in str(await lacking(kube))
    await upgrade(kube, of_version(VERSION_NEEDED))
    assert await lacking(kube) is None
    await kube.apply(of_version(0)[0], None)
    assert f"needs version {VERSION_NEEDED}: helm upgrade" in str(await lacking(kube))
