"""BrokerClusters as values, read from their objects. Pure.

Defaults are those of `crds/`, so that manifests read the same with and without an API server.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from mainstem_operator.api import names
from mainstem_operator.api.fields import Fields, InvalidSpec, Object
from mainstem_operator.api.listeners import External, Security, external_of, security_of
from mainstem_operator.api.objects import (
    INT64_MAX,
    Identity,
    adopted_secrets,
    annotated,
    annotations_of,
    identity_of,
)
from mainstem_operator.api.quantities import quantity

_CLUSTER_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
MANAGED_SETTINGS: Final = frozenset(
    {
        "broker.id", "broker.rack", "listeners", "advertised.listeners", "listener.security.protocol.map",
        "inter.broker.listener.name", "zookeeper.connect", "log.dirs", "log.dir", "http.port",
    }
)  # fmt: skip
AUTHORITY_OVERLAP: Final = dt.timedelta(days=7)
"""Time for people to bring new Secrets to clients that read copies."""
AUTHORITY_OVERLAP_MIN: Final = dt.timedelta(minutes=15)
"""Kubernetes brings a Secret's content to pods within two minutes, and brokers read it within one."""
_OVERLAP: Final = re.compile(r"([0-9]{1,4})([mhd])")
_OVERLAP_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
MOVE_LIMIT_MIN: Final = 1024
"""Bytes per second; with less, a single batch of the default largest size takes a quarter of an hour."""
_MOVE_RATES: Final = frozenset({"leader.replication.throttled.rate", "follower.replication.throttled.rate"})

StorageType = Literal["persistent", "local", "ephemeral"]


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
class WarehouseLocation:
    """Where tables lie: an S3 location, or a path on a volume claim.

    Attributes:
        catalog, catalog_namespace: what knows the Iceberg tables.
        allow_transforms: whether Topics may have code that runs with the credentials of loads.
        resident_resources: of the resident loader's pod.
        pod_labels, pod_annotations: of the pods of loads; executors have only the annotations.
    """

    location: str
    endpoint: str | None
    region: str
    credentials_secret: str | None
    volume_claim: str | None
    catalog: str | None
    catalog_namespace: str | None
    allow_transforms: bool
    resident_resources: Object
    pod_labels: Object
    pod_annotations: Object


@dataclass(frozen=True, slots=True)
class AuthorityReplacement:
    """A request for new keys of the authorities: a text that differs from the last one, empty for none. And
    for how long the old ones and the new ones are trusted together, twice.
    """

    request: str
    overlap: dt.timedelta


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """`move_bytes_per_second` is the most that moves of replicas take from a broker; None, all there is.

    `adopted_secrets` are the uids of Secrets without an owner that it takes over.

    `external` is the listener for clients outside Kubernetes, also where it is one of `security`.
    """

    identity: Identity
    brokers: BrokersSpec
    zookeeper: ZooKeeperSpec
    external: External | None
    security: Security | None
    stuck_after_seconds: int
    move_bytes_per_second: int | None
    network_policy: bool
    warehouse: WarehouseLocation | None
    paused: bool
    plan_only: bool
    restart_request: str
    scale_down_anyway: bool
    authority_replacement: AuthorityReplacement
    adopted_secrets: frozenset[str]

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def namespace(self) -> str:
        return self.identity.namespace


@dataclass(frozen=True, slots=True)
class Images:
    """The images of a BrokerCluster that names none, and how all its images are pulled.

    Attributes:
        pull_secrets: names of Secrets.
        pull_policy: as Kubernetes calls it; empty for what Kubernetes takes by itself.
    """

    broker: str = "mainstem/broker:dev"
    zookeeper: str = "mainstem/zookeeper:dev"
    spark: str = "mainstem/spark:dev"
    pull_secrets: tuple[str, ...] = ()
    pull_policy: str = ""


def cluster_of(manifest: Object) -> ClusterSpec:
    """The BrokerCluster in `manifest`.

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
        raise InvalidSpec(f"spec.zookeeper.replicas must be 1, 3 or 5, not {servers}.")
    config = _broker_settings(brokers)
    security = security_of(spec, config)
    warehouse = _location(spec) if spec.has("warehouse") else None
    return ClusterSpec(
        identity=identity,
        brokers=BrokersSpec(
            replicas=brokers.integer("replicas", 1, 100),
            image=brokers.text_or_none("image"),
            storage=_storage(brokers.inner("storage")),
            config=config,
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
        external=_external(spec.inner("listeners"), security),
        security=security,
        stuck_after_seconds=rolling.integer("stuckAfterSeconds", 60, 86_400, default=600),
        move_bytes_per_second=_move_limit(rolling, brokers),
        network_policy=spec.inner("networkPolicy").boolean("enabled", True),
        warehouse=warehouse,
        paused=annotated(manifest, names.PAUSE),
        plan_only=annotated(manifest, names.PLAN_ONLY),
        restart_request=_restart_request(annotations_of(manifest).get(names.RESTART, "")),
        scale_down_anyway=annotated(manifest, names.SCALE_DOWN_ANYWAY),
        authority_replacement=_authority_replacement(annotations_of(manifest)),
        adopted_secrets=adopted_secrets(manifest),
    )


def _restart_request(text: str) -> str:
    return "" if text.strip().lower() == "false" else text  # who takes a request back asks for nothing


def _authority_replacement(annotations: Mapping[str, str]) -> AuthorityReplacement:
    text = annotations.get(names.AUTHORITY_OVERLAP)
    if text is None:
        return AuthorityReplacement(annotations.get(names.REPLACE_AUTHORITY, ""), AUTHORITY_OVERLAP)
    found = _OVERLAP.fullmatch(text)
    overlap = dt.timedelta(**{_OVERLAP_UNITS[found[2]]: int(found[1])}) if found else dt.timedelta()
    if overlap < AUTHORITY_OVERLAP_MIN:
        raise InvalidSpec(
            f"The annotation {names.AUTHORITY_OVERLAP} is {text!r}: write at least 15m, such as 12h or 7d."
        )
    return AuthorityReplacement(annotations.get(names.REPLACE_AUTHORITY, ""), overlap)


def _external(listeners: Fields, security: Security | None) -> External | None:
    if security is None:
        return external_of(listeners)
    return next((one.external for one in security.listeners if one.external is not None), None)


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
    limit = rolling.integer_or_none("moveBytesPerSecond", MOVE_LIMIT_MIN, INT64_MAX)
    twice = sorted(_MOVE_RATES & (brokers.raw("config") or {}).keys())
    if limit is not None and twice:
        raise InvalidSpec(
            f"spec.brokers.config.{twice[0]} and spec.rolling.moveBytesPerSecond set the same limit:"
            " remove one of them."
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


def _location(spec: Fields) -> WarehouseLocation:
    warehouse = spec.inner("warehouse")
    location = WarehouseLocation(
        location=warehouse.text("location"),
        endpoint=warehouse.text_or_none("endpoint"),
        region=warehouse.text_or_none("region") or "us-east-1",
        credentials_secret=warehouse.text_or_none("credentialsSecret"),
        volume_claim=warehouse.text_or_none("volumeClaim"),
        catalog=warehouse.inner("catalog").text_or_none("uri"),
        catalog_namespace=warehouse.inner("catalog").text_or_none("namespace"),
        allow_transforms=warehouse.boolean("allowTransforms", False),
        resident_resources=warehouse.inner("residentLoader").raw("resources") or {},
        pod_labels=warehouse.inner("pod").raw("labels") or {},
        pod_annotations=warehouse.inner("pod").raw("annotations") or {},
    )
    if location.location.startswith("s3://") == (location.volume_claim is not None):
        raise InvalidSpec(
            "spec.warehouse.location as a path needs volumeClaim, and an s3:// location goes without it."
        )
    return location
