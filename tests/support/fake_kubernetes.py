"""A Kubernetes API server for tests: objects in memory, and what of Kubernetes the operator rests on.

Server-side apply with field ownership (fields that a manager no longer names go), generations, resource
versions and preconditions, finalizers, status and scale as subresources, lists and watches by label, owner
references. Two controllers: StatefulSets make and lose pods and claims, and the fake kubelet decides when
pods are ready (`Kubernetes.kubelet`). No schemas: those are for a real API server.
"""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Manifest = dict[str, Any]
Key = tuple[str, str, str]
"""Plural, namespace, name."""

GROUPS: dict[str, dict[str, str]] = {
    "v1": {
        "pods": "Pod", "services": "Service", "configmaps": "ConfigMap", "events": "Event", "nodes": "Node",
        "secrets": "Secret",
        "namespaces": "Namespace", "persistentvolumes": "PersistentVolume",
        "persistentvolumeclaims": "PersistentVolumeClaim", "serviceaccounts": "ServiceAccount",
    },
    "apps/v1": {"statefulsets": "StatefulSet", "deployments": "Deployment"},
    "batch/v1": {"cronjobs": "CronJob", "jobs": "Job"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "coordination.k8s.io/v1": {"leases": "Lease"},
    "rbac.authorization.k8s.io/v1": {"roles": "Role", "rolebindings": "RoleBinding"},
    "mainstem.dev/v1beta1": {
        "brokerclusters": "BrokerCluster", "topics": "Topic", "consumergroups": "ConsumerGroup",
        "users": "User",
    },
    "apiextensions.k8s.io/v1": {"customresourcedefinitions": "CustomResourceDefinition"},
}  # fmt: skip
_DRY = "DRY RUN"
CLUSTER_SCOPED = {"nodes", "namespaces", "persistentvolumes", "customresourcedefinitions"}
KINDS = {plural: (group, kind) for group, kinds in GROUPS.items() for plural, kind in kinds.items()}


class Kubernetes:
    """The API server. `kubelet` is asked of each new pod whether it is ready, and `refuses` of each applied
    manifest what is wrong with it, if anything; `fails` gives the HTTP status of an error for each request, 0
    for none, and `failure` is what the error says, if it is not empty. Tests replace them.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, Manifest] = {}
        self.requests: list[tuple[str, str]] = []
        self.kubelet: Callable[[Manifest], bool] = lambda pod: True
        self.refuses: Callable[[Manifest], str] = lambda manifest: ""
        self.fails: Callable[[str, Key, str], int] = lambda method, key, subresource: 0
        self.failure = ""
        self.url = ""
        self._version = 0
        self._owned: dict[tuple[Key, str], Any] = {}
        self._watches: set[tuple[str, asyncio.Queue[Manifest]]] = set()
        self._node_ports = 30_000
        self._create(("namespaces", "", "default"), {"status": {"phase": "Active"}})

    # --- For tests ---

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [request for request in self.requests if request[0] not in ("GET", "HEAD", _DRY)]

    def get(self, plural: str, name: str, namespace: str = "default") -> Manifest:
        return self.objects[plural, namespace, name]

    def find(self, plural: str) -> list[Manifest]:
        return [item for (kind, _, _), item in sorted(self.objects.items()) if kind == plural]

    def apply(self, manifest: Manifest) -> Manifest:
        """As `kubectl apply` does."""
        plural = next(plural for plural, (_, kind) in KINDS.items() if kind == manifest["kind"])
        return self._apply(self._key(plural, manifest), manifest, "kubectl")

    def annotate(self, plural: str, name: str, annotations: Mapping[str, str | None]) -> None:
        self._merge((plural, "default", name), {"metadata": {"annotations": dict(annotations)}})

    def delete(self, plural: str, name: str, namespace: str = "default") -> None:
        self._delete((plural, namespace, name))

    def orphan(self, plural: str, name: str, namespace: str = "default") -> None:
        """As `kubectl delete --cascade=orphan`: what it owns stays, without an owner."""
        uid = self.get(plural, name, namespace)["metadata"]["uid"]
        for owned in self.objects.values():
            owners = owned["metadata"].get("ownerReferences") or ()
            owned["metadata"]["ownerReferences"] = [owner for owner in owners if owner["uid"] != uid]
        self._delete((plural, namespace, name))

    def set_ready(self, pod_name: str, ready: bool, namespace: str = "default") -> None:
        pod = self.objects["pods", namespace, pod_name]
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": str(ready)},
        ]
        self._stored(("pods", namespace, pod_name), "MODIFIED")

    def add_node(self, name: str, **labels: str) -> None:
        self._create(
            ("nodes", "", name), {"metadata": {"labels": {"kubernetes.io/hostname": name, **labels}}}
        )

    def update_node(self, name: str, body: Manifest) -> None:
        """Merge `body` into a node."""
        self._merge(("nodes", "", name), body)

    def tie_volume(self, claim_name: str, node: str, namespace: str = "default") -> None:
        """Give a claim a volume that only `node` can mount."""
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
        spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
        self._create(("persistentvolumes", "", f"volume-{claim_name}"), {"spec": spec})
        key = ("persistentvolumeclaims", namespace, claim_name)
        self._merge(key, {"spec": {"volumeName": f"volume-{claim_name}"}, "metadata": {"annotations": {}}})

    def set_unschedulable(self, pod_name: str, namespace: str = "default") -> None:
        """The pod's node is gone, and no other one can take it."""
        pod = self.objects["pods", namespace, pod_name]
        pod["spec"].pop("nodeName", None)
        self.set_ready(pod_name, False, namespace)

    # --- Storing ---

    def _key(self, plural: str, manifest: Manifest) -> Key:
        metadata = manifest["metadata"]
        return (
            plural,
            "" if plural in CLUSTER_SCOPED else metadata.get("namespace", "default"),
            metadata["name"],
        )

    def _stored(self, key: Key, event: str) -> None:
        self._version += 1
        item = self.objects.get(key)
        if item is None:
            return
        item["metadata"]["resourceVersion"] = str(self._version)
        for plural, queue in self._watches:
            if plural == key[0]:
                queue.put_nowait({"type": event, "object": copy.deepcopy(item)})
        if event != "DELETED":
            self._control(key)

    def _create(self, key: Key, manifest: Manifest) -> Manifest:
        plural, namespace, name = key
        group, kind = KINDS[plural]
        item = copy.deepcopy(manifest)
        item.update(apiVersion=group, kind=kind)
        metadata = item.setdefault("metadata", {})
        metadata.update(
            name=name,
            uid=hashlib.sha256(f"{key}{self._version}".encode()).hexdigest()[:12],
            generation=1,
            creationTimestamp=dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        if namespace:
            metadata["namespace"] = namespace
        self._admit(plural, item)
        self.objects[key] = item
        self._stored(key, "ADDED")
        return item

    def _admit(self, plural: str, item: Manifest) -> None:
        """What the API server fills in."""
        if plural == "services" and item["spec"].get("type") == "NodePort":
            for port in item["spec"]["ports"]:
                if not port.get("nodePort"):
                    self._node_ports += 1
                    port["nodePort"] = self._node_ports

    def _replace(self, key: Key, item: Manifest, *, status: bool = False) -> Manifest:
        before = self.objects[key]
        if _without_version(before) == _without_version(item):
            return before
        if not status and before.get("spec") != item.get("spec"):
            item["metadata"]["generation"] = before["metadata"]["generation"] + 1
        self._admit(key[0], item)
        self.objects[key] = item
        self._stored(key, "MODIFIED")
        self._collect(key)
        return self.objects.get(key, item)

    def _apply(self, key: Key, manifest: Manifest, manager: str, *, status: bool = False) -> Manifest:
        if key not in self.objects:
            if status:
                raise web.HTTPNotFound
            self._owned[key, manager] = copy.deepcopy(manifest)
            return self._create(key, manifest)
        owner = (key, f"{manager}/status" if status else manager)
        item = copy.deepcopy(self.objects[key])
        seen = manifest.get("metadata", {}).get("resourceVersion")
        if seen is not None and seen != item["metadata"]["resourceVersion"]:
            raise web.HTTPConflict
        uid = manifest.get("metadata", {}).get("uid")
        if uid is not None and uid != item["metadata"]["uid"]:
            raise web.HTTPConflict
        _remove(item, self._owned.get(owner, {}), manifest)
        part = {"status": manifest.get("status", {})} if status else manifest
        _apply(item, {name: value for name, value in part.items() if name not in ("apiVersion", "kind")})
        self._owned[owner] = copy.deepcopy(manifest)
        return self._replace(key, item, status=status)

    def _rehearsed(self, key: Key, manifest: Manifest) -> Manifest:
        """What would come of an apply; nothing is kept of it."""
        item = copy.deepcopy(self.objects.get(key, {}))
        _apply(item, manifest)
        ports = self._node_ports
        self._admit(key[0], item)
        self._node_ports = ports
        return item

    def _merge(self, key: Key, body: Manifest, *, status: bool = False) -> Manifest:
        item = copy.deepcopy(self.objects[key])
        expected = body.get("metadata", {}).get("resourceVersion")
        if expected is not None and expected != item["metadata"]["resourceVersion"]:
            raise web.HTTPConflict
        _merge_into(item, body)
        return self._replace(key, item, status=status)

    def _delete(self, key: Key, **preconditions: str) -> None:
        item = self.objects.get(key)
        if item is None:
            raise web.HTTPNotFound
        if any(item["metadata"][name] != value for name, value in preconditions.items()):
            raise web.HTTPConflict
        if not item["metadata"].get("deletionTimestamp"):
            item["metadata"]["deletionTimestamp"] = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._stored(key, "MODIFIED")
        self._collect(key)

    def _collect(self, key: Key) -> None:
        """Remove an object that is being deleted and that no finalizer holds, and what it owns."""
        item = self.objects.get(key)
        if (
            item is None
            or not item["metadata"].get("deletionTimestamp")
            or item["metadata"].get("finalizers")
        ):
            return
        self._stored(key, "DELETED")
        del self.objects[key]
        uid = item["metadata"]["uid"]
        for other, owned in list(self.objects.items()):
            owners = owned["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == uid for owner in owners) and other in self.objects:
                self._delete(other)
        if key[0] == "pods":
            for owner in item["metadata"].get("ownerReferences") or ():
                owner_key = ("statefulsets", key[1], owner["name"])
                if owner_key in self.objects:
                    self._control(owner_key)

    # --- Controllers ---

    def _control(self, key: Key) -> None:
        item = self.objects.get(key)
        if item is None or item["metadata"].get("deletionTimestamp"):
            return
        if key[0] == "statefulsets":
            self._control_stateful_set(key, item)

    def _control_stateful_set(self, key: Key, item: Manifest) -> None:
        _, namespace, name = key
        template = item["spec"]["template"]
        revision = f"{name}-{hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]}"
        for index in range(item["spec"]["replicas"]):
            for claim in item["spec"].get("volumeClaimTemplates") or ():
                claim_key = (
                    "persistentvolumeclaims",
                    namespace,
                    f"{claim['metadata']['name']}-{name}-{index}",
                )
                if claim_key not in self.objects:
                    made = self._create(
                        claim_key, {"metadata": dict(claim["metadata"]), "spec": claim["spec"]}
                    )
                    made["status"] = {"phase": "Bound"}
            pod_key = ("pods", namespace, f"{name}-{index}")
            if pod_key not in self.objects:
                self._create_pod(pod_key, item, index, revision)
        for pod_key in [other for other in self.objects if other[0] == "pods" and other[1] == namespace]:
            pod = self.objects[pod_key]
            mine = any(
                o["uid"] == item["metadata"]["uid"] for o in pod["metadata"].get("ownerReferences", ())
            )
            if mine and int(pod_key[2].rpartition("-")[2]) >= item["spec"]["replicas"]:
                self._delete(pod_key)
        status = {
            "observedGeneration": item["metadata"]["generation"],
            "updateRevision": revision,
            "replicas": item["spec"]["replicas"],
        }
        if item.get("status") != status:
            item["status"] = status
            self._stored(key, "MODIFIED")

    def _create_pod(self, key: Key, owner: Manifest, index: int, revision: str) -> None:
        template = copy.deepcopy(owner["spec"]["template"])
        labels = {
            **template["metadata"]["labels"],
            "controller-revision-hash": revision,
            "apps.kubernetes.io/pod-index": str(index),
        }
        metadata = {
            "name": key[2],
            "labels": labels,
            "annotations": template["metadata"].get("annotations", {}),
            "ownerReferences": [
                {"uid": owner["metadata"]["uid"], "name": owner["metadata"]["name"], "controller": True}
            ],
        }
        spec = {**template["spec"], "nodeName": f"node-{index}"}
        pod = self._create(key, {"metadata": metadata, "spec": spec, "status": {"hostIP": "10.0.0.1"}})
        self.set_ready(key[2], self.kubelet(pod), key[1])

    # --- HTTP ---

    def _page(self, items: list[Manifest], query: Mapping[str, str]) -> tuple[Manifest, list[Manifest]]:
        """The metadata and items of a page. It continues one state only: after any change it is gone."""
        version, _, start = query.get("continue", f"{self._version}:0").partition(":")
        if version != str(self._version):
            raise web.HTTPGone(reason="The provided continue parameter is too old")
        first = int(start)
        end = first + int(query.get("limit") or len(items) or 1)
        more = {"continue": f"{version}:{end}"} if end < len(items) else {}
        return {"resourceVersion": version, **more}, items[first:end]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Kubernetes]:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def kubeconfig(self) -> str:
        """The text of a kubeconfig for this server."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "fake",
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
                "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
                "users": [{"name": "fake", "user": {"token": "fake"}}],
            }
        )

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((_DRY if "dryRun" in request.query else request.method, request.path))
        if (result := _discovery(request.path)) is not None:
            return web.json_response(result)
        matched = re.fullmatch(
            r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?"
            r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>status|scale))?",
            request.path,
        )
        if matched is None:
            return _refusal(404, f"no such path {request.path}")
        try:
            return await self._answer(request, **{k: v or "" for k, v in matched.groupdict().items()})
        except web.HTTPException as error:
            return _refusal(error.status, error.reason or "")
        except KeyError as error:
            return _refusal(404, f"{error} not found")

    async def _answer(
        self, request: web.Request, core: str, group: str, namespace: str, plural: str, name: str, sub: str
    ) -> web.StreamResponse:
        key = (plural, namespace, name)
        body = await request.json() if request.can_read_body else {}
        target = key if name else (plural, namespace, body.get("metadata", {}).get("name", ""))
        if status := self.fails(request.method, target, sub):
            return _refusal(status, self.failure or f"{request.method} of {target[2]} fails.")
        match request.method:
            case "GET" if not name and request.query.get("watch") in ("true", "1"):
                return await self._watch(request, plural, namespace)
            case "GET" if not name:
                items = [  # items of lists don't say what they are
                    {name: value for name, value in item.items() if name not in ("apiVersion", "kind")}
                    for item in self.find(plural)
                    if (not namespace or item["metadata"]["namespace"] == namespace)
                    and _selected(item, request.query.get("labelSelector", ""))
                ]
                kind = KINDS[plural][1]
                metadata, items = self._page(items, request.query)
                listing = {"metadata": metadata, "items": items}
                return web.json_response({"kind": f"{kind}List", "apiVersion": core or group, **listing})
            case "GET" if sub == "scale":
                item = self.objects[key]
                return web.json_response(
                    {"metadata": item["metadata"], "spec": {"replicas": item["spec"]["replicas"]}}
                )
            case "GET":
                return web.json_response(self.objects[key])
            case "POST":
                key = (plural, namespace, body["metadata"]["name"])
                if key in self.objects:
                    raise web.HTTPConflict
                return web.json_response(self._create(key, body), status=201)
            case "PUT":
                if (
                    body["metadata"].get("resourceVersion")
                    != self.objects[key]["metadata"]["resourceVersion"]
                ):
                    raise web.HTTPConflict
                return web.json_response(self._replace(key, body))
            case "PATCH" if request.content_type == "application/apply-patch+yaml":
                manager = request.query["fieldManager"]
                if wrong := self.refuses(body):
                    return _refusal(422, wrong)
                if "dryRun" in request.query:
                    return web.json_response(self._rehearsed(key, body))
                return web.json_response(self._apply(key, body, manager, status=sub == "status"))
            case "PATCH":
                return web.json_response(self._merge(key, body, status=sub == "status"))
            case "DELETE":
                self._delete(key, **body.get("preconditions", {}))
                return web.json_response({"kind": "Status", "status": "Success"})
        return _refusal(405, request.method)

    async def _watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        queue: asyncio.Queue[Manifest] = asyncio.Queue()
        watch = (plural, queue)
        self._watches.add(watch)
        since = int(request.query.get("resourceVersion") or 0)
        for item in self.find(plural):  # what came between the list and the watch
            if int(item["metadata"]["resourceVersion"]) > since:
                queue.put_nowait({"type": "MODIFIED", "object": copy.deepcopy(item)})
        selector = request.query.get("labelSelector", "")
        try:
            while True:
                event = await queue.get()
                item = event["object"]
                mine = not namespace or item["metadata"].get("namespace") == namespace
                if mine and _selected(item, selector):
                    await response.write(json.dumps(event).encode() + b"\n")
        except (ConnectionResetError, asyncio.CancelledError):
            return response
        finally:
            self._watches.discard(watch)


def _refusal(status: int, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": status, "message": message}
    return web.json_response(body, status=status)


def _without_version(item: Manifest) -> Manifest:
    metadata = {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}
    return {**item, "metadata": metadata}


def _selected(item: Manifest, selector: str) -> bool:
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        name, equals, value = term.partition("=")
        if name not in labels or (equals and labels[name] != value.lstrip("=")):
            return False
    return True


def _discovery(path: str) -> Manifest | None:
    if path == "/version":
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
    if path in ("/api", "/api/"):
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path in ("/apis", "/apis/"):
        groups = []
        for group_version in GROUPS:
            if "/" in group_version:
                group, version = group_version.split("/")
                entry = {"groupVersion": group_version, "version": version}
                groups.append({"name": group, "versions": [entry], "preferredVersion": entry})
        return {"kind": "APIGroupList", "groups": groups}
    group_version = path.removeprefix("/api/").removeprefix("/apis/")
    if group_version not in GROUPS:
        return None
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    return {
        "kind": "APIResourceList",
        "groupVersion": group_version,
        "resources": [
            {
                "name": plural,
                "singularName": kind.lower(),
                "kind": kind,
                "namespaced": plural not in CLUSTER_SCOPED,
                "verbs": verbs,
            }
            for plural, kind in GROUPS[group_version].items()
        ],
    }


def _merge_into(item: Manifest, body: Manifest) -> None:
    """JSON merge patch (RFC 7396)."""
    for name, value in body.items():
        if value is None:
            item.pop(name, None)
        elif isinstance(value, dict):
            inner = item.setdefault(name, {})
            _merge_into(inner, value)
        else:
            item[name] = copy.deepcopy(value)


def _apply(item: Manifest, manifest: Manifest) -> None:
    """Set all that `manifest` names; lists are replaced."""
    for name, value in manifest.items():
        if isinstance(value, dict) and isinstance(item.get(name), dict):
            _apply(item[name], value)
        else:
            item[name] = copy.deepcopy(value)


def _remove(item: Manifest, owned: Manifest, manifest: Manifest) -> None:
    """Take away what this manager named before and does not name now."""
    for name, value in owned.items():
        if name in ("apiVersion", "kind", "name", "namespace"):
            continue
        if name not in manifest:
            item.pop(name, None)
        elif (
            isinstance(value, dict) and isinstance(item.get(name), dict) and isinstance(manifest[name], dict)
        ):
            _remove(item[name], value, manifest[name])
