"""Custom resources as a person writes them, for tests of the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.fake_kubernetes import Manifest

from mainstem_operator.api import names


def resource(kind: str, name: str, spec: Mapping[str, Any], **metadata: Any) -> Manifest:
    """An object of our API in the namespace `default`; `metadata` adds to its own or replaces it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": dict(spec),
    }
