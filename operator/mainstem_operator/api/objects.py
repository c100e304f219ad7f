"""What custom resources of all kinds have: who they are, and their annotations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mainstem_operator.api.fields import Fields, InvalidSpec, Object

INT64_MAX: Final = 2**63 - 1


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
