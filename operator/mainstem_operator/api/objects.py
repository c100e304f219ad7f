"""What custom resources of all kinds have: who they are, and their annotations. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mainstem_operator.api import names
from mainstem_operator.api.fields import Fields, InvalidSpec, Object

INT64_MAX: Final = 2**63 - 1
_UID: Final = re.compile(r"[0-9a-f-]+")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which object a spec was read from. `uid` is empty and `generation` 0 without an API server."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: str
    deleting: bool
    finalizers: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


def identity_of(manifest: Object) -> Identity:
    """Which object this is.

    Raises:
        InvalidSpec: it has no name.
    """
    metadata = Fields(manifest.get("metadata"), "metadata")
    return Identity(
        namespace=metadata.text_or_none("namespace") or "default",
        name=metadata.text("name"),
        uid=metadata.text_or_none("uid") or "",
        generation=metadata.integer("generation", 0, INT64_MAX, default=0),
        created=metadata.text_or_none("creationTimestamp") or "",
        deleting=metadata.has("deletionTimestamp"),
        finalizers=metadata.texts("finalizers"),
    )


def key_of(manifest: Object) -> tuple[str, str]:
    """The namespace and the name of a stored object, whatever else is wrong with it."""
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def text_in(manifest: Object, *path: str) -> str | None:
    """A text in the spec of a manifest, whatever else is wrong with it."""
    found: Any = manifest.get("spec")
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else None


def decisions_in(manifest: Object) -> tuple[Any, ...]:
    """What a person, or Kubernetes, has decided about an object; the same while only its status changes."""
    metadata = manifest["metadata"]
    return tuple(
        metadata.get(name) for name in ("uid", "generation", "annotations", "deletionTimestamp", "finalizers")
    )


def annotations_of(manifest: Object) -> dict[str, str]:
    return dict((manifest.get("metadata") or {}).get("annotations") or {})


def annotated(manifest: Object, name: str, default: bool = False) -> bool:
    """Whether the annotation `name` says true.

    Raises:
        InvalidSpec: it says neither true nor false, so nobody knows what is meant: nothing is done then.
    """
    text = annotations_of(manifest).get(name, "").strip().lower()
    if text not in ("", "true", "false"):
        raise InvalidSpec(f"The annotation {name} is {text[:40]!r}: write true or false, or remove it.")
    return default if not text else text == "true"


def removed_users(cluster: Object) -> frozenset[str]:
    """The Users that were deleted while the BrokerCluster had no authorization, as noted there."""
    return frozenset(filter(None, annotations_of(cluster).get(names.REMOVED_USERS, "").split(",")))


def adopted_secrets(manifest: Object) -> frozenset[str]:
    """The uids of the Secrets without an owner whose keys and passwords the object is to take over.

    A uid stands for one Secret, so the annotation does no harm where it remains.

    Raises:
        InvalidSpec: the annotation has something else.
    """
    text = annotations_of(manifest).get(names.ADOPT_SECRETS, "")
    uids = frozenset(uid for part in text.split(",") if (uid := part.strip()))
    if wrong := sorted(uid for uid in uids if not _UID.fullmatch(uid)):
        raise InvalidSpec(
            f"The annotation {names.ADOPT_SECRETS} has {wrong[0][:40]!r}: write the metadata.uid of each"
            " Secret, separated by commas."
        )
    return uids
