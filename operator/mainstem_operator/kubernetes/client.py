"""Every call to Kubernetes but the watches, which are kopf's; nothing is decided here.

Writes are server-side applies of whole manifests, and only if what is there differs: an idle operator
writes nothing. What can't be taken back asks for a proof (`proofs.py`), whose uid the API server checks.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import structlog
from aiohttp import ClientError
from kubernetes.aio import client, config

from mainstem_operator.api import names
from mainstem_operator.api.fields import InvalidSpec, Object
from mainstem_operator.api.quantities import quantity
from mainstem_operator.api.timestamps import written
from mainstem_operator.kubernetes.manifests import Manifest, digest
from mainstem_operator.proofs import ClaimDeletion, PodDeletion, ScaleDown
from mainstem_operator.runtime.metrics import Metrics
from mainstem_operator.snapshot import belongs_to, controller_of

logger = structlog.get_logger(__name__)

_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_TIMEOUT_SECONDS: Final = 30
_NOT_TYPED: Final = (
    "failed to create typed patch object"  # a field that no schema knows: reported with status 500
)
_ADMISSION: Final = re.compile(
    r"admission webhook .* denied the request"
    r"|ValidatingAdmissionPolicy .* denied request"
    r"|failed calling (admission )?webhook",
    re.DOTALL,
)
"""In the words of the API server; whoever refuses chooses the status, which may be any from 400."""
_PAGE: Final = 500
_GONE: Final = 410
_EVENT_NAME_LENGTH: Final = 253 - 17  # Kubernetes' limit, without the point and the digest
_PLURALS: Final = {
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "Service": "services",
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "Pod": "pods",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "PersistentVolume": "persistentvolumes",
    "Node": "nodes",
    "Namespace": "namespaces",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "NetworkPolicy": "networkpolicies",
    "CronJob": "cronjobs",
    "Job": "jobs",
    "ServiceAccount": "serviceaccounts",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Lease": "leases",
    "Event": "events",
    "CustomResourceDefinition": "customresourcedefinitions",
    "BrokerCluster": names.CLUSTERS,
    "Topic": names.TOPICS,
    "ConsumerGroup": names.GROUPS,
    "User": names.USERS,
}


class Refused(Exception):
    """The API server said no; `status` is the HTTP status, `str()` its sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def missing(self) -> bool:
        return self.status == 404 and not self._by_admission

    @property
    def conflict(self) -> bool:
        """Whether the object has changed: reading it again will help."""
        return self.status == 409 and not self._by_admission

    @property
    def by_content(self) -> bool:
        """Whether it is what was sent that is refused, by the API server or by an admission webhook or
        policy: sending it again at once will not help, and a person has to know.
        """
        return self.status in (400, 403, 413, 422) or str(self).startswith(_NOT_TYPED) or self._by_admission

    @property
    def _by_admission(self) -> bool:
        return _ADMISSION.search(str(self)) is not None


class ForeignObject(Refused):
    """An object of this name exists that others have made. It is neither changed nor deleted."""

    def __init__(self, manifest: Manifest, live: Object) -> None:
        name, owner = f"The {manifest['kind']} {manifest['metadata']['name']}", whose(live)
        if owner == whose(manifest):
            text = (
                f"{name} still belongs to {owner} of before, which is gone: Kubernetes deletes it soon. If"
                " it stays, delete it."
            )
        else:
            text = (
                f"{name} exists and belongs to {owner}, so it is not changed: delete or rename one of the"
                " two."
            )
        super().__init__(409, text)

    @property
    def conflict(self) -> bool:
        """False: reading it again will not help."""
        return False

    @property
    def by_content(self) -> bool:
        return True


class Kube:
    """A connection to the API server, with the rights of the operator."""

    def __init__(self, api: client.ApiClient, metrics: Metrics) -> None:
        self._api = api
        self._metrics = metrics

    @classmethod
    async def connect(cls, metrics: Metrics | None = None) -> Kube:
        """Connect by the pod's service account, or else by KUBECONFIG."""
        configuration = client.Configuration()
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            config.load_incluster_config(configuration)
        else:
            await config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=configuration)
        return cls(client.ApiClient(configuration), metrics or Metrics())

    async def close(self) -> None:
        await self._api.close()

    # --- Reading ---

    async def get(self, api_version: str, kind: str, namespace: str | None, name: str) -> Object | None:
        """The object, or None if there is none."""
        try:
            return await self._call("GET", _path(api_version, kind, namespace, name))
        except Refused as refused:
            if refused.missing:
                return None
            raise

    async def find(
        self, api_version: str, kind: str, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> Sequence[Object]:
        """All objects with these labels, in pages.

        The API server forgets the state that a page continues after some minutes. Then all are read anew and
        in one piece, as client-go does: pages of two states would miss objects, or have some twice.
        """
        objects: list[Object] = []
        query: dict[str, str] = {"limit": str(_PAGE)}
        if labels:
            query["labelSelector"] = ",".join(f"{name}={value}" for name, value in labels.items())
        while True:
            try:
                page = await self._call("GET", _path(api_version, kind, namespace), query=query)
            except Refused as refused:
                if refused.status != _GONE or "continue" not in query:
                    raise
                objects.clear()
                del query["continue"], query["limit"]
                continue
            objects += page.get("items") or []
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return objects
            query["continue"] = more

    async def own(self, manifest: Manifest, live: Object | None) -> Object | None:
        """The object that `manifest` is about, as it is now; None if there is none.

        Whatever is done for an object that is not there yet, such as granting its rights, comes after this.

        Args:
            live: as it was found; one that was not found may be there with other labels, and is read.

        Raises:
            ForeignObject: the manifest has an owner, and the object that exists is not the owner's.
        """
        owner = controller_of(manifest)
        if owner is None:
            return live
        if live is None:  # objects are often found by labels, which those of others do not have
            metadata = manifest["metadata"]
            version, kind = manifest["apiVersion"], manifest["kind"]
            live = await self.get(version, kind, metadata.get("namespace"), metadata["name"])
        labels = manifest["metadata"].get("labels") or {}
        made_for = {name: labels[name] for name in (names.CLUSTER_LABEL, names.USER_LABEL) if name in labels}
        if live is not None and not belongs_to(live, owner, made_for):
            raise ForeignObject(manifest, live)
        return live

    # --- Writing ---

    async def apply(
        self, manifest: Manifest, live: Object | None, *, dry: bool = False, unchanged: bool = False
    ) -> Object:
        """Make the object as `manifest` says, unless `live`, as it is now, already is so.

        Args:
            dry: only ask whether that would be taken, and what would come of it.
            unchanged: refuse with 409 if the object is no more as `live`.

        Raises:
            ForeignObject: the manifest has an owner, and the object that exists is not the owner's.
        """
        live = await self.own(manifest, live)
        if live is not None and manifest["kind"] == "StatefulSet":
            manifest = ordered_as(manifest, live)
        manifest_digest = digest(manifest)
        if (
            live is not None
            and _annotation(live, names.APPLIED_HASH) == manifest_digest
            and _is_as(live, manifest)
        ):
            return live
        metadata = manifest["metadata"]
        marks = {**metadata.get("annotations", {}), names.APPLIED_HASH: manifest_digest}
        body = {**manifest, "metadata": {**metadata, "annotations": marks}}
        if unchanged and live is not None:
            body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        if not dry:
            logger.info("applying", kind=manifest["kind"], object=_name_of(manifest))
        return await self._patch(_path_of(manifest), body, _APPLY, dry=dry)

    async def apply_status(
        self, manifest: Object, status: Mapping[str, Any], *, unchanged: bool = False
    ) -> Object:
        """Put our fields of the status of one of our own objects; those we leave out are removed.

        Args:
            unchanged: refuse with 409 if the object has changed since it was read.
        """
        metadata = manifest["metadata"]
        version = {"resourceVersion": metadata["resourceVersion"]} if unchanged else {}
        body = {
            "apiVersion": names.API_VERSION,
            "kind": manifest["kind"],
            # With the uid, the API server answers 409 for a new object of the same name.
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                **version,
            },
            "status": status,
        }
        return await self._patch(_path_of(body) + "/status", body, _APPLY)

    async def take_over(self, orphan: Object, owner: Object) -> None:
        """Let an object that nobody owns go with one of our own, unless it has changed since it was read.

        For one that is not applied any more; `apply` does so itself.
        """
        metadata, owned_by = orphan["metadata"], owner["metadata"]
        reference = {
            "apiVersion": names.API_VERSION,
            "kind": owner["kind"],
            "name": owned_by["name"],
            "uid": owned_by["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        owners = [*(metadata.get("ownerReferences") or ()), reference]
        body = {"metadata": {"ownerReferences": owners, "resourceVersion": metadata["resourceVersion"]}}
        logger.info("taking over", kind=orphan["kind"], object=_name_of(orphan))
        await self._patch(_path_of(orphan), body, _MERGE)

    async def set_finalizers(self, manifest: Object, finalizers: list[str]) -> None:
        """Replace the finalizers, unless the object has changed since it was read."""
        metadata = manifest["metadata"]
        body = {"metadata": {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}}
        await self._patch(_path_of(manifest), body, _MERGE)

    async def annotate(
        self, manifest: Object, annotations: Mapping[str, str | None], *, unchanged: bool = False
    ) -> None:
        """Set annotations; None takes one away.

        Args:
            unchanged: refuse with 409 if the object has changed since it was read.
        """
        metadata: dict[str, Any] = {"annotations": dict(annotations)}
        if unchanged:
            metadata["resourceVersion"] = manifest["metadata"]["resourceVersion"]
        await self._patch(_path_of(manifest), {"metadata": metadata}, _MERGE)

    async def grow_claim(self, namespace: str, name: str, size: str) -> None:
        body = {"spec": {"resources": {"requests": {"storage": size}}}}
        await self._patch(_path("v1", "PersistentVolumeClaim", namespace, name), body, _MERGE)

    async def delete_owned(self, manifest: Object, *, unchanged: bool = False) -> None:
        """Delete an object of ours that is no longer used, such as the Service of a removed broker.

        Args:
            unchanged: refuse with 409 if it has changed since it was read.
        """
        metadata = manifest["metadata"]
        version = metadata["resourceVersion"] if unchanged else None
        await self._delete(_path_of(manifest), metadata["uid"], version)

    async def delete_pod(self, proof: PodDeletion) -> None:
        """Delete the very pod that was proven to be dispensable."""
        await self._delete(_path("v1", "Pod", proof.namespace, proof.name), proof.uid)

    async def delete_claim(self, proof: ClaimDeletion) -> None:
        """Delete the very claim whose data was proven to be lost, or to be elsewhere."""
        await self._delete(_path("v1", "PersistentVolumeClaim", proof.namespace, proof.name), proof.uid)

    async def stop_deployment(self, namespace: str, name: str) -> None:
        """Let a Deployment have no pods; one that is not there has none."""
        try:
            await self._patch(
                _path("apps/v1", "Deployment", namespace, name) + "/scale", {"spec": {"replicas": 0}}, _MERGE
            )
        except Refused as refused:
            if not refused.missing:
                raise

    async def stop_stateful_set(self, namespace: str, name: str) -> None:
        """Let a StatefulSet whose pods hold no data have no pods; one that is not there has none."""
        try:
            await self._patch(
                _path("apps/v1", "StatefulSet", namespace, name) + "/scale", {"spec": {"replicas": 0}}, _MERGE
            )
        except Refused as refused:
            if not refused.missing:
                raise

    async def suspend(self, cron_job: Object) -> None:
        """Let this very CronJob begin no more runs."""
        body = {"metadata": {"uid": cron_job["metadata"]["uid"]}, "spec": {"suspend": True}}
        await self._patch(_path_of(cron_job), body, _MERGE)

    async def lower_replicas(self, proof: ScaleDown) -> None:
        """Take the last pod away from a StatefulSet, if it still has as many as when it was proven."""
        path = _path("apps/v1", "StatefulSet", proof.namespace, proof.name) + "/scale"
        scale = await self._call("GET", path)
        if (scale.get("spec") or {}).get("replicas") != proof.replicas + 1:
            raise Refused(409, f"{proof.name} has been scaled meanwhile.")
        body = {
            "metadata": {"resourceVersion": scale["metadata"]["resourceVersion"]},
            "spec": {"replicas": proof.replicas},
        }
        await self._patch(path, body, _MERGE)

    async def create(self, manifest: Manifest) -> Object:
        """Make an object that must not be there yet."""
        metadata = manifest["metadata"]
        path = _path(manifest["apiVersion"], manifest["kind"], metadata["namespace"])
        return await self._call("POST", path, body=manifest)

    async def tell(self, manifest: Object, reason: str, message: str, *, warning: bool = False) -> None:
        """Write an event about one of our own objects; one that is refused is only logged."""
        metadata = manifest["metadata"]
        now = dt.datetime.now(dt.UTC)
        unique = hashlib.sha256(f"{metadata.get('uid')}{reason}{message}{now}".encode()).hexdigest()[:16]
        try:
            await self.create(
                {
                    "apiVersion": "v1",
                    "kind": "Event",
                    "metadata": {
                        "name": f"{metadata['name'][:_EVENT_NAME_LENGTH].rstrip('-.')}.{unique}",
                        "namespace": metadata["namespace"],
                    },
                    "involvedObject": {
                        "apiVersion": names.API_VERSION,
                        "kind": manifest["kind"],
                        "name": metadata["name"],
                        "namespace": metadata["namespace"],
                        "uid": metadata.get("uid", ""),
                    },
                    "reason": reason,
                    "message": message[:1024],
                    "type": "Warning" if warning else "Normal",
                    "source": {"component": names.FIELD_MANAGER},
                    "firstTimestamp": written(now),
                    "lastTimestamp": written(now),
                    "count": 1,
                }
            )
        except Refused as refused:  # a namespace that is going takes no events; the act itself counts
            logger.info("event not written", reason=reason, error=str(refused))

    async def replace(self, manifest: Object) -> Object:
        """Replace an object, unless it has changed since it was read."""
        return await self._call("PUT", _path_of(manifest), body=manifest)

    # --- One request ---

    async def _patch(self, path: str, body: Object, content_type: str, *, dry: bool = False) -> Object:
        query = {"fieldManager": names.FIELD_MANAGER, **({"dryRun": "All"} if dry else {})}
        if content_type == _APPLY:
            query["force"] = "true"
        return await self._call("PATCH", path, query=query, body=body, content_type=content_type)

    async def _delete(self, path: str, uid: str, version: str | None = None) -> None:
        preconditions = {"uid": uid, **({"resourceVersion": version} if version is not None else {})}
        body = {"preconditions": preconditions, "propagationPolicy": "Background"}
        try:
            await self._call("DELETE", path, body=body)
        except Refused as refused:
            if not refused.missing:
                raise

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        _, url, headers, sent, _ = await self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = await self._api.call_api(
                method, url, headers, body=sent, _request_timeout=_TIMEOUT_SECONDS
            )
            content = await response.read()
        except client.ApiException as error:
            self._metrics.requests.labels(method, error.status).inc()
            raise Refused(error.status, _sentence(error.body, error.reason)) from error
        except ClientError as error:  # as of a server that is restarted: not all of them are OSErrors
            raise ConnectionError(
                f"The API server is not reached: {error or type(error).__name__}"
            ) from error
        self._metrics.requests.labels(method, response.status).inc()
        if not 200 <= response.status < 300:
            raise Refused(response.status, _sentence(content, response.reason))
        return cast(Object, json.loads(content))


def _sentence(body: bytes | str | None, reason: str | None) -> str:
    """What the API server says in the body of an error."""
    try:
        message = json.loads(body or "{}").get("message")
    except (ValueError, AttributeError):
        message = None
    return str(message or reason or "The API server refused without a reason.")


def _path(api_version: str, kind: str, namespace: str | None, name: str | None = None) -> str:
    root = "/api/v1" if api_version == "v1" else f"/apis/{api_version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{_PLURALS[kind]}" + (f"/{name}" if name else "")


def _path_of(manifest: Object) -> str:
    metadata = manifest["metadata"]
    return _path(manifest["apiVersion"], manifest["kind"], metadata.get("namespace"), metadata["name"])


def _name_of(manifest: Object) -> str:
    metadata = manifest["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def _annotation(live: Object, name: str) -> str | None:
    value: str | None = ((live.get("metadata") or {}).get("annotations") or {}).get(name)
    return value


def whose(live: Object) -> str:
    """Whose an object is that is not ours: its controller's, else its Helm release's, else its writers'."""
    metadata = live["metadata"]
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            return f"the {owner['kind']} {owner['name']}"
    if release := _annotation(live, "meta.helm.sh/release-name"):
        return f"the Helm release {release}"
    fields = metadata.get("managedFields") or ()
    writers = sorted({field["manager"] for field in fields if not field.get("subresource")})
    return f"others, who wrote it with {', '.join(writers)}" if writers else "others"


def _is_as(live: Object, manifest: Manifest) -> bool:
    """Whether `live` is as `manifest` says; items of lists don't say what they are."""
    return covers(live, {name: manifest[name] for name in manifest if name not in ("apiVersion", "kind")})


_QUANTITIES: Final = frozenset({"limits", "requests", "sizeLimit"})
"""Fields whose values are quantities, in all objects that the operator applies."""


_LISTS_BY_KEY: Final = {
    **dict.fromkeys(("containers", "env", "imagePullSecrets", "volumes"), "name"),
    "volumeMounts": "mountPath",
    "ownerReferences": "uid",
}
"""Lists that are maps for the API server, by what their items are known by. What others add to them stays
when they are applied: compared as a whole, they would be applied again and again."""


def covers(live: Any, desired: Any) -> bool:
    """Whether `live` has all that `desired` names, with whatever else the API server filled in."""
    if isinstance(desired, Mapping):
        if not isinstance(live, Mapping):  # the API server leaves empty maps out
            return live is None and all(covers(None, value) for value in desired.values())
        return all(
            covers(live.get(key), value)
            or (key in _QUANTITIES and _same_quantities(live.get(key), value))
            or (key in _LISTS_BY_KEY and _has_items(live.get(key), value, _LISTS_BY_KEY[key]))
            for key, value in desired.items()
        )
    if isinstance(desired, list):
        if not isinstance(live, list):
            return not desired
        return len(live) == len(desired) and all(map(covers, live, desired))
    return bool(live == desired) or (not desired and live is None)


def _has_items(live: Any, desired: Any, key: str) -> bool:
    """Whether a list has these items, each under its key, whatever others have added."""
    if not isinstance(live, list) or not isinstance(desired, list):
        return False
    live_by_key = {item.get(key): item for item in live if isinstance(item, Mapping)}
    return all(covers(live_by_key.get(item.get(key)), item) for item in desired)


def ordered_as(stateful_set: Manifest, live: Object) -> Manifest:
    """The same with the lists of its pod template whose order means nothing in the order that they have.

    Another order would be another template, and all pods would be restarted for it.
    """
    template, before = stateful_set["spec"]["template"], live["spec"]["template"].get("spec") or {}
    pod = {**template["spec"]}
    for name in ("tolerations", "imagePullSecrets"):
        if name in pod:
            pod[name] = _ordered_as(pod[name], before.get(name))
    containers = {item.get("name"): item for item in before.get("containers") or ()}
    pod["containers"] = [
        {**item, "ports": _ordered_as(item["ports"], containers.get(item["name"], {}).get("ports"))}
        if "ports" in item
        else item
        for item in pod["containers"]
    ]
    spec = {**stateful_set["spec"], "template": {**template, "spec": pod}}
    return {**stateful_set, "spec": spec}


def _ordered_as(items: list[Any], live: Any) -> list[Any]:
    """These items in the order of those that are there, if they are the same."""
    if not isinstance(live, list) or len(live) != len(items):
        return items
    left, ordered = list(items), []
    for present in live:
        place = next((place for place, item in enumerate(left) if covers(present, item)), None)
        if place is None:
            return items
        ordered.append(left.pop(place))
    return ordered


def _same_quantities(live: Any, desired: Any) -> bool:
    """Whether a quantity, or each by its name, is the same: the API server writes 1000m as 1."""
    if isinstance(desired, Mapping):
        return isinstance(live, Mapping) and all(
            _same_quantities(live.get(key), value) for key, value in desired.items()
        )
    try:
        return quantity(live) == quantity(desired)
    except InvalidSpec:
        return bool(live == desired)
