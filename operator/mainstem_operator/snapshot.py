"""A BrokerCluster as observed at one moment: its pods, volumes and nodes, and its brokers' reports. Pure.

Every field says the present, never what was done before: plans made from it can be made again at any time,
by an operator that knows nothing of the last one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mainstem_operator.api import names
from mainstem_operator.api.fields import Object
from mainstem_operator.api.objects import Identity, annotations_of
from mainstem_operator.api.timestamps import moment, moment_noted, written
from mainstem_operator.api.whole_numbers import is_whole_number
from mainstem_operator.kubernetes.node_affinity import NodeAffinity, affinity_of

NO_END: Final = dt.timedelta(minutes=1)
"""Beyond the time that a pod has to end, which the time of its deletion includes."""


@dataclass(frozen=True, slots=True)
class Pod:
    """`index` is its place in the StatefulSet; `node` is None until it is scheduled, `host` its address.

    `unschedulable` and `trouble` are Kubernetes' reasons why it does not run, or empty. `security_step` is
    that of a broker, empty where brokers are not secured.
    """

    name: str
    uid: str
    index: int
    node: str | None
    host: str
    ready: bool
    deleting: bool
    revision: str
    config_hash: str
    restart_done: str
    restart_asked: bool
    unschedulable: str
    trouble: str
    created: dt.datetime
    security_step: str = ""

    @property
    def scheduled(self) -> bool:
        return self.node is not None


@dataclass(frozen=True, slots=True)
class Workload:
    """A StatefulSet; `template_size` is the size in its claim template.

    `version` is the resourceVersion, which changes with each of its pods that comes, goes or becomes ready.
    `deletion_begun` says which pod or claim an operator has last begun to delete, by its uid, and when.
    """

    name: str
    replicas: int
    update_revision: str
    up_to_date: bool
    template_size: str | None
    version: str = ""
    deletion_begun: tuple[str, dt.datetime] | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim.

    `affinity` says where its volume can be mounted; it is read only while the pod is not ready, and None
    means everywhere. `lost_since` is when the machine of the volume was first missed. `size` is what is
    requested, and `capacity` what the volume has, empty until there is one.
    """

    name: str
    uid: str
    index: int
    bound: bool
    deleting: bool
    affinity: NodeAffinity | None
    size: str
    lost_since: dt.datetime | None
    capacity: str = ""

    @property
    def machine(self) -> str:
        """The machine that the volume is tied to, for messages; empty if it is tied to none."""
        return " or ".join(sorted(self.affinity.machines)) if self.affinity else ""

    def is_lost(self, nodes: Mapping[str, Mapping[str, str]]) -> bool:
        """Whether the volume is gone with its machine, given the labels of all nodes by name."""
        return self.affinity is not None and self.affinity.is_lost(nodes)


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """What a broker's `/status` says; counts of partitions. See `mayStop` there for `may_stop`."""

    broker: int
    cluster_id: str
    running: bool
    controller: int | None
    live_brokers: frozenset[int]
    catching_up: int
    under_replicated: int
    offline: int
    leaders: int
    replicas: int
    may_stop: bool
    blockers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Component:
    """The pods of one workload, by index, and what belongs to them."""

    workload: Workload | None
    pods: Mapping[int, Pod]
    claims: Mapping[int, Claim]

    @property
    def ready(self) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.ready and not pod.deleting]

    @property
    def held(self) -> list[Claim]:
        """The claims of the pods that the StatefulSet is to have.

        Those of pods that it once had are kept until it has them again; they are unused meanwhile.
        """
        if self.workload is None:
            return list(self.claims.values())
        replicas = self.workload.replicas
        return [claim for index, claim in self.claims.items() if index < replicas or index in self.pods]

    def lost_with(self, pod: Pod) -> Claim | None:
        """The claim that only this pod keeps: somebody has deleted it, and Kubernetes does so as soon as no
        pod uses it.
        """
        claim = self.claims.get(pod.index)
        return claim if claim is not None and claim.deleting and pod.scheduled else None

    def missing(self) -> list[int]:
        """The pods that the StatefulSet is to have and that are not there."""
        replicas = self.workload.replicas if self.workload else 0
        return [index for index in range(replicas) if index not in self.pods]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A BrokerCluster at `now`. `modes` are the ZooKeeper servers that serve (leader, follower, standalone).

    `nodes` are those that exist, each with its labels; None when the operator may not read them.
    """

    now: dt.datetime
    zookeeper: Component
    brokers: Component
    reports: Mapping[int, BrokerReport]
    modes: Mapping[int, str]
    nodes: Mapping[str, Mapping[str, str]] | None
    racks: Mapping[int, str | None]

    @property
    def quorum(self) -> bool:
        """Whether ZooKeeper can serve: a leader, or the only server there is."""
        return any(mode in ("leader", "standalone") for mode in self.modes.values())

    @property
    def reachable(self) -> bool:
        """Whether clients find a broker: else one would look for half a minute."""
        return bool(self.reports and self.brokers.ready)

    @property
    def is_whole(self) -> bool:
        """Whether every broker that may hold replicas reports that every replica is in sync; False where such
        a report is missing.
        """
        if self.brokers.workload is None or not self.reports:
            return False
        return self._all_in_sync and self._silent <= self.without_replicas

    @property
    def without_replicas(self) -> set[int]:
        """The brokers that do not serve and hold nothing, such as those that have never started.

        A replica on a broker that is not live would be counted as not in sync by those that are.
        """
        if not self.reports or not self._all_in_sync:
            return set()
        live = {broker for report in self.reports.values() for broker in report.live_brokers}
        return self._silent - live - {pod.index for pod in self.brokers.ready}

    @property
    def _silent(self) -> set[int]:
        """The brokers that do not report, of those that there are to be."""
        replicas = self.brokers.workload.replicas if self.brokers.workload else 0
        return set(range(replicas)) - self.reports.keys()

    @property
    def _all_in_sync(self) -> bool:
        return not self.under_replicated and not self.offline

    @property
    def under_replicated(self) -> int | None:
        return max((report.under_replicated for report in self.reports.values()), default=None)

    @property
    def offline(self) -> int | None:
        return max((report.offline for report in self.reports.values()), default=None)


def pod_of(pod: Object, now: dt.datetime) -> Pod:
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    scheduling = conditions.get("PodScheduled", {})
    template = annotations_of(pod)
    labels = metadata.get("labels") or {}
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        index=index_of(metadata["name"]),
        node=spec.get("nodeName"),
        host=status.get("hostIP", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        deleting=metadata.get("deletionTimestamp") is not None,
        revision=labels.get(names.REVISION_LABEL, ""),
        config_hash=template.get(names.CONFIG_HASH, ""),
        restart_done=template.get(names.RESTART_DONE, ""),
        restart_asked=template.get(names.RESTART, "").lower() == "true",
        unschedulable=scheduling.get("message", "") if scheduling.get("status") == "False" else "",
        trouble=lost_with_node(pod, now) or trouble_of(status),
        created=moment(metadata.get("creationTimestamp") or "1970-01-01T00:00:00Z"),
        security_step=template.get(names.SECURITY_STEP, ""),
    )


def trouble_of(status: Object) -> str:
    """Why a container does not run: ImagePullBackOff with its message, or its own last words. Containers that
    prepare the pod count, which others may have added to it.
    """
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in (None, "ContainerCreating", "PodInitializing"):
            continue
        ended = (container.get("lastState") or {}).get("terminated") or {}
        last_words = (ended.get("message") or "").strip().splitlines()
        words = last_words[-1] if last_words else waiting.get("message")
        if is_out_of_memory(ended):  # which no container can say itself
            words = "it needed more memory than its limit allows (OOMKilled)"
        return ": ".join(filter(None, (waiting["reason"], words)))
    return ""


def lost_with_node(pod: Object, now: dt.datetime) -> str:
    """What to say of a pod that is deleted and does not end, as on a node that is unreachable; empty if it
    may still end.
    """
    metadata, node = pod.get("metadata") or {}, (pod.get("spec") or {}).get("nodeName")
    deleted = moment_noted(metadata.get("deletionTimestamp"))
    has_ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    if deleted is None or has_ended or not node or now - deleted < NO_END:
        return ""
    return (
        f"Its pod {metadata['name']} was to end by {written(deleted)}, and the node {node} does not report"
        f" that it has. If the node will not come back: `kubectl delete node {node}`."
    )


def is_out_of_memory(terminated: Object) -> bool:
    """Whether the kernel has ended a container, given the state of it that says so."""
    return terminated.get("reason") == "OOMKilled"


def index_of(name: str) -> int:
    """The index in the name of a StatefulSet's pod or claim."""
    return int(name.rpartition("-")[2])


def workload_of(stateful_set: Object) -> Workload:
    metadata, spec, status = stateful_set["metadata"], stateful_set["spec"], stateful_set.get("status") or {}
    templates = spec.get("volumeClaimTemplates") or ()
    size = templates[0]["spec"]["resources"]["requests"]["storage"] if templates else None
    return Workload(
        name=metadata["name"],
        replicas=spec.get("replicas", 1),
        update_revision=status.get("updateRevision", ""),
        up_to_date=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        template_size=size,
        version=metadata.get("resourceVersion", ""),
        deletion_begun=_begun_in(annotations_of(stateful_set).get(names.DELETION_BEGUN, "")),
    )


def _begun_in(text: str) -> tuple[str, dt.datetime] | None:
    uid, _, time = text.partition(" ")
    at = moment_noted(time)
    return None if at is None else (uid, at)


def claim_of(claim: Object, volume: Object | None) -> Claim:
    metadata, spec, status = claim["metadata"], claim.get("spec") or {}, claim.get("status") or {}
    return Claim(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        index=index_of(metadata["name"]),
        bound=status.get("phase") == "Bound",
        deleting=metadata.get("deletionTimestamp") is not None,
        affinity=affinity_of(volume) if volume else None,
        size=spec.get("resources", {}).get("requests", {}).get("storage", ""),
        lost_since=moment_noted(annotations_of(claim).get(names.LOST_SINCE)),
        capacity=(status.get("capacity") or {}).get("storage", ""),
    )


def report_of(status: Object) -> BrokerReport:
    """What `/status` answered.

    Raises:
        KeyError, TypeError: it is something else.
    """
    return BrokerReport(
        broker=status["brokerId"],
        cluster_id=status.get("clusterId") or "",
        running=status["state"] == "running",
        controller=status.get("controller"),
        live_brokers=frozenset(status.get("liveBrokers") or ()),
        catching_up=status["catchingUp"],
        under_replicated=status["underReplicated"],
        offline=status["offline"],
        leaders=status["leaders"],
        replicas=status["replicas"],
        may_stop=status["mayStop"] is True,
        blockers=tuple(status.get("blockers") or ()),
    )


def component_of(
    owner: Identity,
    component: str,
    workloads: Iterable[Object],
    pods: Iterable[Object],
    claims: Iterable[Object],
    volumes: Mapping[str, Object],
    now: dt.datetime,
) -> Component:
    """The StatefulSet of a component of the BrokerCluster `owner`, and what belongs to it.

    Labels do not count, because anybody can set them. The StatefulSet is found by its name and owner, pods by
    the StatefulSet that owns them, and claims by the names under which the StatefulSet uses them.

    Args:
        volumes: the PersistentVolumes that were read, by name.
        now: when they were read.
    """
    name = names.workload(owner.name, component)
    own = [
        item
        for item in workloads
        if item["metadata"]["name"] == name and belongs_to(item, owner.uid, {names.CLUSTER_LABEL: owner.name})
    ]
    if not own:
        return Component(None, {}, claims_of(name, claims, volumes))
    uid = own[0]["metadata"]["uid"]
    members = [pod_of(item, now) for item in pods if _is_controlled_by(item, uid) and is_member(item, name)]
    return Component(
        workload=workload_of(own[0]),
        pods={pod.index: pod for pod in members},
        claims=claims_of(name, claims, volumes),
    )


def claims_of(workload: str, claims: Iterable[Object], volumes: Mapping[str, Object]) -> dict[int, Claim]:
    """The claims that a StatefulSet uses, by index."""
    members = [item for item in claims if is_member(item, f"data-{workload}")]
    found = [claim_of(item, volumes.get((item.get("spec") or {}).get("volumeName", ""))) for item in members]
    return {claim.index: claim for claim in found}


def is_member(item: Object, prefix: str) -> bool:
    """Whether the object is called `prefix-N`, as a StatefulSet calls its pods and claims."""
    name: str = item["metadata"]["name"]
    head, _, index = name.rpartition("-")
    return head == prefix and is_whole_number(index) and str(int(index)) == index


def controller_of(item: Object) -> str | None:
    """The uid of the object that controls this one, None if there is none."""
    owners = item["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def _is_controlled_by(item: Object, uid: str) -> bool:
    return controller_of(item) == uid


def is_orphan(item: Object) -> bool:
    """Whether the operator has made an object that has no owner any more, as `kubectl delete
    --cascade=orphan` leaves it, or a restored backup.
    """
    labels = item["metadata"].get("labels") or {}
    return controller_of(item) is None and labels.get(names.MANAGED_BY_LABEL) == names.FIELD_MANAGER


def is_orphan_of(item: Object, made_for: Mapping[str, str]) -> bool:
    """Whether it is an orphan that was made for an object of a certain name.

    Whoever may create such an object can give it these labels: keys and passwords in it may be known.

    Args:
        made_for: the labels that say whose name it was made for.
    """
    labels = item["metadata"].get("labels") or {}
    return is_orphan(item) and made_for.items() <= labels.items()


def belongs_to(item: Object, uid: str, made_for: Mapping[str, str]) -> bool:
    """Whether the object of this uid controls it, or is to take it over, as no object controls it any more.

    Args:
        made_for: as for `is_orphan_of`.
    """
    return controller_of(item) == uid or is_orphan_of(item, made_for)
