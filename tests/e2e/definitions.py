"""Our definitions as they lie in `crds/`, in any cluster: missing ones, or all under names of their own."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import yaml
from tests.e2e.api_server import Answer, ApiServer
from tests.support.waiting import let_pass

CRDS: Final = Path(__file__).resolve().parents[2] / "crds"
DEFINITIONS_PATH: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KINDS: Final = ("BrokerCluster", "Topic", "ConsumerGroup", "User")
VERSION: Final = "v1beta1"
_SERVED_SECONDS: Final = 60.0

Schema = dict[str, Any]
Manifest = dict[str, Any]


def definition_of(kind: str) -> dict[str, Any]:
    """The definition as it lies in `crds/`."""
    results: dict[str, Any] = yaml.safe_load((CRDS / f"{kind.lower()}.yaml").read_text())
    return results


def schema_of(kind: str) -> Schema:
    result: Schema = definition_of(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return result


def create_missing_definitions(server: ApiServer) -> None:
    """Create our definitions, as Helm does with `crds/`, if no release has done so. They stay.

    Returns when the API server takes objects of each kind.
    """
    definitions = {kind: definition_of(kind) for kind in KINDS}
    for definition in definitions.values():
        answer = server.create(DEFINITIONS_PATH, definition)
        assert answer.status == HTTPStatus.CONFLICT or not answer.refused, answer.message
    for kind, definition in definitions.items():
        group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
        _wait_until_served(server, f"/apis/{group}/{VERSION}/namespaces/default/{plural}", MINIMAL[kind])


def _wait_until_served(server: ApiServer, path: str, minimal: Mapping[str, Any]) -> None:
    """A definition is accepted a moment before its objects are, by POST and then by server-side apply."""
    deadline = time.monotonic() + _SERVED_SECONDS
    one = f"{path}/{minimal['metadata']['name']}"
    while (answer := server.create(path, minimal, dry=True)).refused or (
        answer := server.apply(one, minimal, dry=True)
    ).refused:
        assert time.monotonic() < deadline, answer.message
        let_pass(0.1, "between two looks")


class Definitions:
    """Our definitions in a group that nobody else has, and a namespace for their objects.

    Plurals and kinds differ too, so that `kubectl get topics` of others finds what it did.
    """

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.group = f"{uuid4().hex[:8]}.mainstem.test"
        self.namespace = f"e2e-manifests-{uuid4().hex[:8]}"

    def create(self) -> None:
        namespace = {"metadata": {"name": self.namespace}}
        self.server.create("/api/v1/namespaces", namespace).accepted()
        for kind in KINDS:
            self.server.create(DEFINITIONS_PATH, self._renamed(definition_of(kind))).accepted()
        for kind in KINDS:
            _wait_until_served(self.server, self.path(kind), self.ours(MINIMAL[kind]))

    def delete(self) -> None:
        for kind in KINDS:
            self.server.delete(f"{DEFINITIONS_PATH}/{self._plural(kind)}.{self.group}")
        self.server.delete(f"/api/v1/namespaces/{self.namespace}")

    def path(self, kind: str, name: str = "") -> str:
        whole = f"/apis/{self.group}/{VERSION}/namespaces/{self.namespace}/{self._plural(kind)}"
        return f"{whole}/{name}" if name else whole

    def ours(self, manifest: Mapping[str, Any]) -> Manifest:
        """A manifest of ours, as one of this group."""
        result = copy.deepcopy(dict(manifest))
        kind = result["kind"]
        result.update(apiVersion=f"{self.group}/{VERSION}", kind=f"Scratch{kind}")
        result["metadata"] = {**result["metadata"], "namespace": self.namespace}
        return result

    def create_dry(self, manifest: Mapping[str, Any]) -> Answer:
        return self.server.create(self.path(manifest["kind"]), self.ours(manifest), dry=True)

    def apply_dry(self, manifest: Mapping[str, Any]) -> Answer:
        path = self.path(manifest["kind"], manifest["metadata"]["name"])
        return self.server.apply(path, self.ours(manifest), dry=True)

    def create_real(self, manifest: Mapping[str, Any]) -> Manifest:
        return self.server.create(self.path(manifest["kind"]), self.ours(manifest)).accepted()

    def _plural(self, kind: str) -> str:
        return f"scratch{kind.lower()}s"

    def _renamed(self, definition: dict[str, Any]) -> dict[str, Any]:
        kind = definition["spec"]["names"]["kind"]
        plural = self._plural(kind)
        definition["metadata"] = {"name": f"{plural}.{self.group}"}
        definition["spec"]["group"] = self.group
        definition["spec"]["names"] = {
            "kind": f"Scratch{kind}",
            "listKind": f"Scratch{kind}List",
            "plural": plural,
            "singular": plural.removesuffix("s"),
        }
        return definition


def manifest(kind: str, spec: Mapping[str, Any], name: str = "good") -> Manifest:
    """A manifest of our group; parts that `spec` has twice are two in it."""
    return {
        "apiVersion": f"mainstem.dev/{VERSION}",
        "kind": kind,
        "metadata": {"name": name},
        "spec": json.loads(json.dumps(spec)),
    }


MINIMAL: Final[Mapping[str, Manifest]] = {
    "BrokerCluster": manifest("BrokerCluster", {"brokers": {"replicas": 3}}),
    "Topic": manifest("Topic", {"clusterRef": {"name": "events"}}),
    "ConsumerGroup": manifest("ConsumerGroup", {"clusterRef": {"name": "events"}}),
    "User": manifest("User", {"clusterRef": {"name": "events"}}),
}
"""The least that each kind needs."""
