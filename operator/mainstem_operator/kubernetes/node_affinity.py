"""The node affinity of a volume, evaluated as Kubernetes does. Pure.

Source: `VolumeNodeAffinity` and `NodeSelector` of the Kubernetes API. The terms of a selector are
alternatives; within a term every expression has to match. A node's name and its label
`kubernetes.io/hostname` may differ, so neither stands for the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mainstem_operator.api.fields import Object

HOSTNAME: Final = "kubernetes.io/hostname"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_NAME: Final = "metadata.name"  # the only field of a node that a selector can name


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression over a label, or over the field `metadata.name`."""

    key: str
    operator: str
    values: tuple[str, ...]

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether these labels or fields satisfy it. An operator that is not known counts as satisfied.

        That is the careful side: a volume whose affinity is satisfied is never given up.
        """
        value = properties.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":  # also where the key is missing
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
        return True

    def _compares(self, value: str | None) -> bool:
        texts = [value or "", *self.values[:1]]
        if len(texts) < 2 or not all(_INTEGER.fullmatch(text) for text in texts):
            return False
        number, limit = map(int, texts)
        return number > limit if self.operator == "Gt" else number < limit


@dataclass(frozen=True, slots=True)
class Term:
    """One alternative. Without any requirement it matches no node."""

    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        if not self.labels and not self.fields:
            return False
        return all(item.matches(labels) for item in self.labels) and all(
            item.matches({_NAME: name}) for item in self.fields
        )

    def machines(self) -> frozenset[str]:
        """The hostnames and node names that it is restricted to; empty if it does not name any."""
        return frozenset(
            value
            for item in (*self.labels, *self.fields)
            if item.key in (HOSTNAME, _NAME) and item.operator == "In"
            for value in item.values
        )


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    """The nodes that a volume can be mounted on."""

    terms: tuple[Term, ...]

    @property
    def machines(self) -> frozenset[str]:
        """The machines that the volume is tied to, by hostname or node name; empty if it is tied to none.

        A volume that is restricted to a zone, say, outlives every machine in it.
        """
        of_terms = [term.machines() for term in self.terms]
        return frozenset().union(*of_terms) if all(of_terms) else frozenset()

    def allows(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the volume can be mounted on the node of this name with these labels."""
        return any(term.matches(name, labels) for term in self.terms)

    def is_lost(self, nodes: Mapping[str, Mapping[str, str]]) -> bool:
        """Whether the machines that the volume is tied to are gone.

        Args:
            nodes: the labels of every node that exists, by its name.
        """
        machines = self.machines
        # A node that carries the name still exists even if somebody has changed its labels.
        return bool(machines) and not any(
            name in machines or labels.get(HOSTNAME) in machines or self.allows(name, labels)
            for name, labels in nodes.items()
        )


def affinity_of(volume: Object) -> NodeAffinity | None:
    """The affinity of a PersistentVolume; None if it can be mounted on any node."""
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required")
    if required is None:
        return None
    return NodeAffinity(
        tuple(
            Term(_requirements(term.get("matchExpressions")), _requirements(term.get("matchFields")))
            for term in required.get("nodeSelectorTerms") or ()
        )
    )


def _requirements(expressions: Iterable[Object] | None) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(item["key"], item.get("operator", ""), tuple(item.get("values") or ()))
        for item in expressions or ()
    )
