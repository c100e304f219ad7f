"""What was seen of a Cluster at one moment: its pods, volumes and nodes, and what its brokers say. Pure.

Every field says the present, never what was done before: plans made from it can be made again at any time,
by an operator that knows nothing of the last one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mainstem_operator import names
from mainstem_operator.fields import Object
from mainstem_operator.resources import annotations_of


@dataclass(frozen=True, slots=True)
class Pod:
    """`index` is its place in the StatefulSet; `node` is None until it is scheduled, `host` its address.

    `unschedulable` and `trouble` are Kubernetes' reasons why it does not run, or empty.
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

    @property
    def scheduled(self) -> bool:
        return self.node is not None


@dataclass(frozen=True, slots=True)
class Workload:
    """A StatefulSet; `template_size` is the size in its claim template."""

    name: str
    replicas: int
    update_revision: str
    up_to_date: bool
    template_size: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim.

    `node` is the one that its volume is tied to, looked up only while the pod is not ready; `lost_since` is
    when that node was first missed.
    """

    name: str
    uid: str
    index: int
    bound: bool
    deleting: bool
    node: str | None
    size: str
    lost_since: dt.datetime | None


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

        Those of pods that it once had are kept until it has them again; nobody needs them meanwhile.
        """
        if self.workload is None:
            return list(self.claims.values())
        wanted = self.workload.replicas
        return [claim for index, claim in self.claims.items() if index < wanted or index in self.pods]

    def missing(self) -> list[int]:
        """The pods that the StatefulSet is to have and that are not there."""
        wanted = self.workload.replicas if self.workload else 0
        return [index for index in range(wanted) if index not in self.pods]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A Cluster at `now`. `modes` are the ZooKeeper servers that serve (leader, follower, standalone).

    `nodes` are those that exist, each with its labels; None when they may not be asked for.
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
    def under_replicated(self) -> int | None:
        return max((report.under_replicated for report in self.reports.values()), default=None)

    @property
    def offline(self) -> int | None:
        return max((report.offline for report in self.reports.values()), default=None)


def moment(text: str) -> dt.datetime:
    """A time as Kubernetes writes it."""
    return dt.datetime.fromisoformat(text)


def written(time: dt.datetime) -> str:
    """A time as Kubernetes writes it, in seconds."""
    return time.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod_of(pod: Object) -> Pod:
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
        trouble=trouble_of(status),
        created=moment(metadata.get("creationTimestamp") or "1970-01-01T00:00:00Z"),
    )


def trouble_of(status: Object) -> str:
    """Why a container does not run: ImagePullBackOff with its message, or its own last words."""
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in (None, "ContainerCreating", "PodInitializing"):
            continue
        ended = (container.get("lastState") or {}).get("terminated") or {}
        last_words = (ended.get("message") or "").strip().splitlines()
        return ": ".join(
            filter(None, (waiting["reason"], last_words[-1] if last_words else waiting.get("message")))
        )
    return ""


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
    )


def claim_of(claim: Object, volume: Object | None) -> Claim:
    metadata, spec, status = claim["metadata"], claim.get("spec") or {}, claim.get("status") or {}
    lost = annotations_of(claim).get(names.LOST_SINCE)
    return Claim(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        index=index_of(metadata["name"]),
        bound=status.get("phase") == "Bound",
        deleting=metadata.get("deletionTimestamp") is not None,
        node=_node_of(volume) if volume else None,
        size=spec.get("resources", {}).get("requests", {}).get("storage", ""),
        lost_since=moment(lost) if lost else None,
    )


def _node_of(volume: Object) -> str | None:
    """The one node that a local volume can be mounted on."""
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for expression in term.get("matchExpressions") or ():
            if expression["key"] == "kubernetes.io/hostname" and len(expression.get("values", ())) == 1:
                node: str = expression["values"][0]
                return node
    return None


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
    workloads: Iterable[Object],
    pods: Iterable[Object],
    claims: Iterable[Object],
    volumes: Mapping[str, Object],
) -> Component:
    """One workload of the objects that carry its labels."""
    found = [workload_of(item) for item in workloads]
    seen = [pod_of(item) for item in pods]
    held = [claim_of(item, volumes.get((item.get("spec") or {}).get("volumeName", ""))) for item in claims]
    return Component(
        workload=found[0] if found else None,
        pods={pod.index: pod for pod in seen},
        claims={claim.index: claim for claim in held},
    )
