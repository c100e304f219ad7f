"""The API server under test over one connection: hundreds of questions in seconds, most of them dry runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubernetes import config

APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
_TIMEOUT_SECONDS: Final = 30


def path_of(manifest: Mapping[str, Any]) -> str:
    """Where an object of Kubernetes' own kinds lies; those in a namespace have to name it."""
    version, metadata = manifest["apiVersion"], manifest["metadata"]
    plural = re.sub("ys$", "ies", f"{manifest['kind'].lower()}s")
    scope = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    return f"{root}{scope}/{plural}/{metadata['name']}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said: an object, or, if it refused, a Status."""

    status: int
    body: dict[str, Any]

    @property
    def refused(self) -> bool:
        return self.status >= 400

    @property
    def message(self) -> str:
        """The sentence of a refusal, as a person gets to read it."""
        return str(self.body.get("message", ""))

    @property
    def fields(self) -> set[str]:
        """The fields that a refusal names as causes."""
        causes = (self.body.get("details") or {}).get("causes") or ()
        return {str(cause.get("field", "")) for cause in causes}

    def accepted(self) -> dict[str, Any]:
        """The object.

        Raises:
            AssertionError: it was refused; with the reason.
        """
        assert not self.refused, f"{self.status}: {self.message}"
        return self.body


class ApiServer:
    """One connection to the API server that KUBECONFIG names."""

    def __init__(self, account: tuple[str, str] | None = None, pod_uid: str = "", pod_name: str = "") -> None:
        """`account`: the namespace and name of a service account in whose place to ask; `pod_uid` and
        `pod_name`: with the token of which pod.
        """
        self._api = config.new_client_from_config(os.environ["KUBECONFIG"])
        self._headers: dict[str, str] = {}
        if account is not None:  # the groups of service accounts come with it
            self._headers["Impersonate-User"] = "system:serviceaccount:" + ":".join(account)
        if pod_uid:
            self._headers["Impersonate-Extra-authentication.kubernetes.io%2Fpod-uid"] = pod_uid
        if pod_name:
            self._headers["Impersonate-Extra-authentication.kubernetes.io%2Fpod-name"] = pod_name

    def close(self) -> None:
        self._api.close()

    def get(self, path: str) -> Answer:
        return self._ask("GET", path)

    def create(self, path: str, body: Mapping[str, Any], *, dry: bool = False) -> Answer:
        """As `kubectl create` does: unknown and doubled fields are refused."""
        return self._ask("POST", path, body, fieldValidation="Strict", **_dry(dry))

    def apply(self, path: str, body: Mapping[str, Any], *, dry: bool = False) -> Answer:
        """As `kubectl apply --server-side` does."""
        return self._ask(
            "PATCH",
            path,
            body,
            content_type=APPLY,
            fieldManager="mainstem-e2e",
            fieldValidation="Strict",
            force="true",
            **_dry(dry),
        )

    def merge(self, path: str, body: Mapping[str, Any], *, dry: bool = False) -> Answer:
        """As `kubectl patch --type=merge` does."""
        return self._ask("PATCH", path, body, content_type=MERGE, fieldValidation="Strict", **_dry(dry))

    def replace(self, path: str, body: Mapping[str, Any], *, dry: bool = False) -> Answer:
        return self._ask("PUT", path, body, fieldValidation="Strict", **_dry(dry))

    def delete(self, path: str, *, dry: bool = False) -> Answer:
        return self._ask("DELETE", path, None, **_dry(dry))

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        **query: str,
    ) -> Answer:
        serialized = self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": content_type, **self._headers},
            body=body,
            auth_settings=["BearerToken"],
        )
        _, url, headers, sent, _ = serialized
        response = self._api.call_api(method, url, headers, body=sent, _request_timeout=_TIMEOUT_SECONDS)
        content = response.read() or b"{}"
        if not content.startswith(b"{"):  # the path of a group that is not served yet: "404 page not found"
            return Answer(response.status, {"message": content.decode().strip()})
        return Answer(response.status, json.loads(content))


def _dry(dry: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry else {}
