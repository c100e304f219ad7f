"""Cluster, Topic and ConsumerGroup as values, read from their objects. Pure.

Defaults are those of `crds/`, so that manifests read the same with and without an API server.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from mainstem_operator import names
from mainstem_operator.fields import Fields, InvalidSpec, Object

_INT64_MAX: Final = 2**63 - 1
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_CLUSTER_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)(m|[kMGTPE]|[KMGTPE]i)?")
_MULTIPLES: Final = {
    "m": 1e-3, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip
MANAGED_SETTINGS: Final = frozenset(
    {
        "broker.id", "broker.rack", "listeners", "advertised.listeners", "listener.security.protocol.map",
        "inter.broker.listener.name", "zookeeper.connect", "log.dirs", "log.dir", "http.port",
    }
)  # fmt: skip
MOVE_LIMIT_MIN: Final = 1024
"""Bytes per second; with less, a single batch of the default largest size takes a quarter of an hour."""
_MOVE_RATES: Final = frozenset({"leader.replication.throttled.rate", "follower.replication.throttled.rate"})

StorageType = Literal["persistent", "local", "ephemeral"]


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


@dataclass(frozen=True, slots=True)
class Storage:
    """`size` is a Kubernetes quantity; `storage_class` None means the default one."""

    type: StorageType
    size: str
    storage_class: str | None
    keep: bool


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What a person adds to the pods; the parts are Kubernetes' own and are passed on."""

    labels: Object
    annotations: Object
    node_selector: Object
    tolerations: tuple[Object, ...]
    affinity: Object | None
    priority_class: str | None
    service_account: str | None
    image_pull_secrets: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class BrokersSpec:
    replicas: int
    image: str | None
    storage: Storage
    config: Mapping[str, str]
    resources: Object
    rack_label: str | None
    spread_required: bool
    pod: PodSettings


@dataclass(frozen=True, slots=True)
class ZooKeeperSpec:
    replicas: int
    image: str | None
    storage: Storage
    resources: Object
    pod: PodSettings


@dataclass(frozen=True, slots=True)
class External:
    """Node ports; `host` None means the address of each broker's node."""

    host: str | None
    node_port_first: int | None


@dataclass(frozen=True, slots=True)
class WarehouseLocation:
    """Where tables lie: an S3 location, or a path on a volume claim."""

    location: str
    endpoint: str | None
    region: str
    credentials_secret: str | None
    volume_claim: str | None


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """`move_bytes_per_second` is the most that moves of replicas take from a broker; None, all there is."""

    identity: Identity
    brokers: BrokersSpec
    zookeeper: ZooKeeperSpec
    external: External | None
    stuck_after_seconds: int
    move_bytes_per_second: int | None
    network_policy: bool
    warehouse: WarehouseLocation | None
    paused: bool
    plan_only: bool
    restart_request: str
    scale_down_anyway: bool

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def namespace(self) -> str:
        return self.identity.namespace


@dataclass(frozen=True, slots=True)
class WarehouseSpec:
    """How a topic is loaded; `executors` None means that the load decides by its size."""

    table: str
    schedule: str
    time_zone: str | None
    format: str
    columns: Mapping[str, str]
    event_time: str | None
    headers: bool
    dead_letter_table: str | None
    on_gap: str
    executors: int | None
    max_records: int | None
    fresh_within_seconds: int | None
    suspend: bool
    resources: Object


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """`partitions` and `replicas` None leave the number to the brokers; a setting of None, to others."""

    identity: Identity
    cluster: str
    topic: str
    partitions: int | None
    replicas: int | None
    config: Mapping[str, str | None]
    delete_topic: bool
    protected: bool
    warehouse: WarehouseSpec | None
    paused: bool
    managed: bool


ResetTo = Literal["earliest", "latest", "datetime", "offset", "shift", "undo"]


@dataclass(frozen=True, slots=True)
class ResetSpec:
    """Where offsets are to be put; `topics` empty means all that the group has offsets of."""

    request_id: str
    to: ResetTo
    timestamp_ms: int | None
    offset: int | None
    shift_by: int | None
    topics: tuple[str, ...]
    wait_for_empty: bool
    dry_run: bool


@dataclass(frozen=True, slots=True)
class GroupSpec:
    identity: Identity
    cluster: str
    group: str
    max_lag: int | None
    max_lag_seconds: int | None
    reset: ResetSpec | None
    paused: bool


@dataclass(frozen=True, slots=True)
class Images:
    """What runs where a Cluster does not say."""

    broker: str = "mainstem/broker:dev"
    zookeeper: str = "mainstem/zookeeper:dev"
    spark: str = "mainstem/spark:dev"


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
        generation=metadata.integer("generation", 0, _INT64_MAX, default=0),
        created=metadata.text_or_none("creationTimestamp") or "",
        deleting=metadata.has("deletionTimestamp"),
        finalizers=metadata.texts("finalizers"),
    )


def cluster_of(manifest: Object) -> ClusterSpec:
    """The Cluster in `manifest`.

    Raises:
        InvalidSpec: with the field and what is wrong with it.
    """
    identity = identity_of(manifest)
    if not _CLUSTER_NAME.fullmatch(identity.name) or len(identity.name) > 40:
        raise InvalidSpec(
            f"metadata.name {identity.name!r} becomes part of host names: lower-case letters, digits and -,"
            " beginning with a letter, at most 40 characters."
        )
    spec = Fields(manifest.get("spec"), "spec")
    brokers, zookeeper, rolling = spec.inner("brokers"), spec.inner("zookeeper"), spec.inner("rolling")
    servers = zookeeper.integer("replicas", 1, 5, default=3)
    if servers % 2 == 0:
        raise InvalidSpec(f"spec.zookeeper.replicas is to be 1, 3 or 5, not {servers}.")
    return ClusterSpec(
        identity=identity,
        brokers=BrokersSpec(
            replicas=brokers.integer("replicas", 1, 100),
            image=brokers.text_or_none("image"),
            storage=_storage(brokers.inner("storage")),
            config=_broker_settings(brokers),
            resources=brokers.raw("resources") or {},
            rack_label=brokers.inner("rack").text_or_none("nodeLabel"),
            spread_required=brokers.choice("spread", ("Preferred", "Required"), "Preferred") == "Required",
            pod=_pod(brokers.inner("pod")),
        ),
        zookeeper=ZooKeeperSpec(
            replicas=servers,
            image=zookeeper.text_or_none("image"),
            storage=_storage(zookeeper.inner("storage")),
            resources=zookeeper.raw("resources") or {},
            pod=_pod(zookeeper.inner("pod")),
        ),
        external=_external(spec.inner("listeners")),
        stuck_after_seconds=rolling.integer("stuckAfterSeconds", 60, 86_400, default=600),
        move_bytes_per_second=_move_limit(rolling, brokers),
        network_policy=spec.inner("networkPolicy").boolean("enabled", True),
        warehouse=_location(spec) if spec.has("warehouse") else None,
        paused=annotated(manifest, names.PAUSE),
        plan_only=annotated(manifest, names.PLAN_ONLY),
        restart_request=annotations_of(manifest).get(names.RESTART, ""),
        scale_down_anyway=annotated(manifest, names.SCALE_DOWN_ANYWAY),
    )


def _storage(storage: Fields) -> Storage:
    size = storage.text_or_none("size") or "10Gi"
    quantity(size)
    return Storage(
        type=cast(StorageType, storage.choice("type", ("persistent", "local", "ephemeral"), "persistent")),
        size=size,
        storage_class=storage.text_or_none("storageClassName"),
        keep=storage.choice("retention", ("Keep", "Delete"), "Keep") == "Keep",
    )


def _broker_settings(brokers: Fields) -> dict[str, str]:
    settings = {name: value for name, value in brokers.settings("config").items() if value is not None}
    if taken := sorted(settings.keys() & MANAGED_SETTINGS):
        raise InvalidSpec(f"spec.brokers.config.{taken[0]} is set by the operator: leave it out.")
    return settings


def _move_limit(rolling: Fields, brokers: Fields) -> int | None:
    limit = rolling.integer_or_none("moveBytesPerSecond", MOVE_LIMIT_MIN, _INT64_MAX)
    twice = sorted(_MOVE_RATES & (brokers.raw("config") or {}).keys())
    if limit is not None and twice:
        raise InvalidSpec(
            f"spec.brokers.config.{twice[0]} and spec.rolling.moveBytesPerSecond say the same: leave one out."
        )
    return limit


def _pod(pod: Fields) -> PodSettings:
    return PodSettings(
        labels=pod.raw("labels") or {},
        annotations=pod.raw("annotations") or {},
        node_selector=pod.raw("nodeSelector") or {},
        tolerations=pod.objects("tolerations"),
        affinity=pod.raw("affinity"),
        priority_class=pod.text_or_none("priorityClassName"),
        service_account=pod.text_or_none("serviceAccountName"),
        image_pull_secrets=pod.objects("imagePullSecrets"),
    )


def _external(listeners: Fields) -> External | None:
    if not listeners.has("external"):
        return None
    external = listeners.inner("external")
    external.choice("type", ("NodePort",))
    return External(external.text_or_none("host"), external.integer_or_none("nodePortFirst", 1024, 65_535))


def _location(spec: Fields) -> WarehouseLocation:
    warehouse = spec.inner("warehouse")
    found = WarehouseLocation(
        location=warehouse.text("location"),
        endpoint=warehouse.text_or_none("endpoint"),
        region=warehouse.text_or_none("region") or "us-east-1",
        credentials_secret=warehouse.text_or_none("credentialsSecret"),
        volume_claim=warehouse.text_or_none("volumeClaim"),
    )
    if found.location.startswith("s3://") == (found.volume_claim is not None):
        raise InvalidSpec(
            "spec.warehouse.location as a path needs volumeClaim, and an s3:// location goes without it."
        )
    return found


def topic_of(manifest: Object) -> TopicSpec:
    """The Topic in `manifest`.

    Raises:
        InvalidSpec: with the field and what is wrong with it.
    """
    identity, spec = identity_of(manifest), Fields(manifest.get("spec"), "spec")
    topic = spec.text_or_none("topicName") or identity.name
    if not _TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
        raise InvalidSpec(
            f"{topic!r} can't be a topic's name: at most 249 letters, digits, dots, _ and -, and not . or .."
        )
    return TopicSpec(
        identity=identity,
        cluster=spec.inner("clusterRef").text("name"),
        topic=topic,
        partitions=spec.integer_or_none("partitions", 1, 10_000),
        replicas=spec.integer_or_none("replicas", 1, 100),
        config=spec.settings("config"),
        delete_topic=spec.choice("deletionPolicy", ("Retain", "Delete"), "Retain") == "Delete",
        protected=spec.boolean("deletionProtection", False),
        warehouse=_warehouse(spec.inner("warehouse"), topic) if spec.has("warehouse") else None,
        paused=annotated(manifest, names.PAUSE),
        managed=annotations_of(manifest).get(names.MANAGED) != "false",
    )


def _warehouse(warehouse: Fields, topic: str) -> WarehouseSpec:
    columns = {name: kind or "" for name, kind in warehouse.settings("columns").items()}
    return WarehouseSpec(
        table=warehouse.text_or_none("table") or topic,
        schedule=warehouse.text("schedule"),
        time_zone=warehouse.text_or_none("timeZone"),
        format=warehouse.choice("format", ("json", "raw"), "json"),
        columns=columns,
        event_time=warehouse.text_or_none("eventTime"),
        headers=warehouse.boolean("headers", False),
        dead_letter_table=warehouse.inner("deadLetter").text_or_none("table"),
        on_gap=warehouse.choice("onGap", ("fail", "skip"), "fail"),
        executors=_executors(warehouse),
        max_records=warehouse.integer_or_none("maxRecords", 1, _INT64_MAX),
        fresh_within_seconds=warehouse.integer_or_none("freshWithinSeconds", 60, 31_536_000),
        suspend=warehouse.boolean("suspend", False),
        resources=warehouse.raw("resources") or {},
    )


def _executors(warehouse: Fields) -> int | None:
    found = warehouse.setting("executors")
    if found is None or found == "auto":
        return None
    if not found.isdecimal() or int(found) > 1000:
        raise InvalidSpec(f"spec.warehouse.executors is to be from 0 to 1000, or auto, not {found!r}.")
    return int(found)


def group_of(manifest: Object) -> GroupSpec:
    """The ConsumerGroup in `manifest`.

    Raises:
        InvalidSpec: with the field and what is wrong with it.
    """
    identity, spec = identity_of(manifest), Fields(manifest.get("spec"), "spec")
    return GroupSpec(
        identity=identity,
        cluster=spec.inner("clusterRef").text("name"),
        group=spec.text_or_none("groupId") or identity.name,
        max_lag=spec.integer_or_none("maxLag", 0, _INT64_MAX),
        max_lag_seconds=spec.integer_or_none("maxLagSeconds", 1, 31_536_000),
        reset=_reset(spec.inner("reset")) if spec.has("reset") else None,
        paused=annotated(manifest, names.PAUSE),
    )


_RESET_ARGUMENTS: Final = {"datetime": "datetime", "offset": "offset", "shift": "shiftBy"}


def _reset(reset: Fields) -> ResetSpec:
    to = reset.choice("to", ("earliest", "latest", "datetime", "offset", "shift", "undo"))
    for kind, argument in _RESET_ARGUMENTS.items():
        if (to == kind) != reset.has(argument):
            raise InvalidSpec(
                f"spec.reset.to: {kind} needs {argument}." if to == kind
                else f"spec.reset.{argument} goes with to: {kind} only."
            )  # fmt: skip
    topics = reset.texts("topics")
    if to == "undo" and topics:
        raise InvalidSpec("spec.reset.to: undo puts back all that the last reset changed: leave out topics.")
    moment = reset.text_or_none("datetime")
    return ResetSpec(
        request_id=reset.text("requestId"),
        to=cast(ResetTo, to),
        timestamp_ms=None if moment is None else _timestamp_ms(moment),
        offset=reset.integer_or_none("offset", 0, _INT64_MAX),
        shift_by=reset.integer_or_none("shiftBy", -_INT64_MAX, _INT64_MAX),
        topics=topics,
        wait_for_empty=reset.choice("policy", ("WaitForEmpty", "Fail"), "WaitForEmpty") == "WaitForEmpty",
        dry_run=reset.boolean("dryRun", False),
    )


def _timestamp_ms(text: str) -> int:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidSpec(f"spec.reset.datetime is to be like 2026-11-21T09:30:00Z, not {text!r}.")
    return int(moment.timestamp() * 1000)


def annotations_of(manifest: Object) -> dict[str, str]:
    return dict((manifest.get("metadata") or {}).get("annotations") or {})


def annotated(manifest: Object, name: str) -> bool:
    """Whether the annotation `name` says true."""
    return annotations_of(manifest).get(name, "").lower() == "true"


def quantity(text: Any) -> float:
    """The number that a Kubernetes quantity (`10Gi`, `500m`, `3`) stands for.

    Raises:
        InvalidSpec: it is none.
    """
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise InvalidSpec(f"{text!r} is not a quantity such as 10Gi or 500m.")
    return float(found[1]) * _MULTIPLES.get(found[2] or "", 1)
