"""The custom resource definitions in the cluster: which version they are, and how newer ones get there.

Helm makes definitions with the first install and never touches them again, neither to upgrade nor to delete
them. So before each install and upgrade a Job of the chart runs `python -m mainstem_operator.definitions
FOLDER`. It only ever goes forward: a release that is behind does not take away what another one needs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog
import yaml

from mainstem_operator.api import names
from mainstem_operator.api.fields import Object
from mainstem_operator.api.objects import annotations_of
from mainstem_operator.api.whole_numbers import is_whole_number
from mainstem_operator.kubernetes.client import Kube

logger = structlog.get_logger(__name__)

API_VERSION: Final = "apiextensions.k8s.io/v1"
KIND: Final = "CustomResourceDefinition"
VERSION_NEEDED: Final = 7
"""What this operator needs at least; the files in crds/ have it, or a higher one.

Every field of a status counts: one that is not declared has the whole status refused.
"""


_NAMES: Final = tuple(
    f"{plural}.{names.GROUP}" for plural in (names.CLUSTERS, names.TOPICS, names.GROUPS, names.USERS)
)


class MissingDefinitions(Exception):
    """A folder does not have all definitions."""


def version_of(definition: Object | None) -> int:
    """The version that a definition says it has; 0 if there is none, or it says none."""
    text = "" if definition is None else annotations_of(definition).get(names.DEFINITIONS_VERSION, "")
    return int(text) if is_whole_number(text) else 0


def read(folder: Path) -> list[dict[str, Any]]:
    """All definitions in the folder's files, in the order of their names.

    Raises:
        MissingDefinitions: one has no file.
    """
    definitions = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
    by_name = {definition["metadata"]["name"]: definition for definition in definitions}
    if missing := [name for name in _NAMES if name not in by_name]:
        raise MissingDefinitions(
            f"{folder} has no definition of {', '.join(missing)}: the chart is not complete. Its folder crds/"
            " has a file for each."
        )
    return [by_name[name] for name in sorted(by_name)]


async def upgrade(kube: Kube, definitions: Sequence[dict[str, Any]]) -> list[str]:
    """Apply those that are newer than what is there; answer their names."""
    done = []
    for definition in definitions:
        name = definition["metadata"]["name"]
        live = await kube.get(API_VERSION, KIND, None, name)
        if live is None or version_of(live) < version_of(definition):
            await kube.apply(definition, None)
            done.append(name)
    return done


async def lacking(kube: Kube) -> str | None:
    """What is wrong with the definitions that are there, as a sentence; None if they do."""
    for name in _NAMES:
        live = await kube.get(API_VERSION, KIND, None, name)
        if version_of(live) < VERSION_NEEDED:
            what = "is not there" if live is None else f"is of version {version_of(live)}"
            return (
                f"The definition {name} {what}, and this operator needs version {VERSION_NEEDED}:"
                " helm upgrade the release, or kubectl apply --server-side -f crds/."
            )
    return None


async def _main(folder: Path) -> None:
    try:
        definitions = read(folder)
    except MissingDefinitions as error:
        sys.exit(str(error))
    kube = await Kube.connect()
    try:
        done = await upgrade(kube, definitions)
        logger.info("definitions upgraded" if done else "definitions are up to date", names=done)
    finally:
        await kube.close()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
