"""BrokerCluster, Topic and ConsumerGroup as values, read from their objects. Pure.

Defaults are those of `crds/`, so that manifests read the same with and without an API server.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal, cast

from mainstem_operator.api import names
from mainstem_operator.api.fields import Fields, InvalidSpec, Object
from mainstem_operator.api.listeners import External, Security, external_of, security_of
from mainstem_operator.api.setting_values import same_value
from mainstem_operator.api.whole_numbers import is_whole_number

_INT64_MAX: Final = 2**63 - 1
RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
RETENTION_MS_DEFAULT: Final = 7 * 24 * 3600 * 1000
"""As of Kafka's topics that name none."""
VALUE_FORMATS: Final = ("json", "avro", "protobuf", "json-schema", "raw")
FORMATS_WITH_IDS: Final = ("avro", "protobuf", "json-schema")
"""Of these, values name their schema by id, which a registry knows."""
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_CLUSTER_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
FRESHNESS_SECONDS_MIN: Final = 10
FRESHNESS_SECONDS_MAX: Final = 86_400
_DURATION: Final = re.compile(r"([1-9][0-9]{0,5})(s|m|h)")
_SECONDS_OF_UNIT: Final = {"s": 1, "m": 60, "h": 3600}
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?"
)
_MULTIPLES: Final[Mapping[str, Fraction | int]] = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 10**3),
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip
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

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def namespace(self) -> str:
        return self.identity.namespace


@dataclass(frozen=True, slots=True)
class TransformInput:
    """Another view of a transform: a table, or a topic with the format of its values; one of both is None."""

    table: str | None
    topic: str | None
    format: str
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TransformSpec:
    """What stands between topic and table: exactly one of `sql`, `config_map` and `function` is set.

    Attributes:
        sql: a statement.
        config_map: the name of a ConfigMap, and its key whose text is the statement.
        function: `module:function`.
        image: in which the function is; None for the BrokerCluster's.
    """

    sql: str | None
    config_map: tuple[str, str] | None
    function: str | None
    image: str | None
    inputs: Mapping[str, TransformInput]
    deadline_seconds: int


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A request to load again, carried out once.

    Attributes:
        field: of `spec.warehouse`.
        request_id: another id is another request.
        kind: append, replace, rewind or replay, as the loader calls it.
        arguments: which records, as arguments of the loader.
    """

    field: str
    request_id: str
    kind: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MaintenanceSpec:
    """When a table is maintained, and how long files stay that no commit names or that left it."""

    schedule: str
    keep_files_hours: int


@dataclass(frozen=True, slots=True)
class UntilLoadedSpec:
    """Retention that waits for loads: how long records that are loaded stay, and the most of a partition."""

    keep_ms: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class WarehouseSpec:
    """How a topic is loaded; `executors` None means that the load decides by its size.

    Attributes:
        schedule: when loads begin; None for a topic that the resident loader keeps fresh.
        freshness_seconds: how old a record that is not loaded may be, for the resident loader; None for a
            topic with a schedule.
        fresh_within_seconds: when a scheduled topic is no longer fresh.
        event_day_min, event_day_max: plausible days of events, as 2026-11-21; None for the loader's own.
    """

    table: str
    table_format: str
    schedule: str | None
    freshness_seconds: int | None
    time_zone: str | None
    format: str
    schema_registry: str | None
    columns: Mapping[str, str]
    event_time: str | None
    event_time_unit: str
    event_day_min: str | None
    event_day_max: str | None
    headers: bool
    dead_letter_table: str | None
    on_gap: str | None
    executors: int | None
    max_records: int | None
    max_rejected_percent: int
    fresh_within_seconds: int | None
    suspend: bool
    resources: Object
    transform: TransformSpec | None
    requests: tuple[LoadRequest, ...]
    maintenance: MaintenanceSpec | None
    until_loaded: UntilLoadedSpec | None


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


def key_of(manifest: Object) -> tuple[str, str]:
    """The namespace and the name of a stored object, whatever else is wrong with it."""
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


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
    limit = rolling.integer_or_none("moveBytesPerSecond", MOVE_LIMIT_MIN, _INT64_MAX)
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
    config = spec.settings("config")
    warehouse = _warehouse(spec.inner("warehouse"), topic, config) if spec.has("warehouse") else None
    if warehouse is not None and warehouse.until_loaded is not None:
        # Loads delete what is old, so brokers delete only what is too much.
        limit_bytes = str(warehouse.until_loaded.limit_bytes)
        config = {**config, RETENTION_MS: "-1", RETENTION_BYTES: limit_bytes}
    return TopicSpec(
        identity=identity,
        cluster=spec.inner("clusterRef").text("name"),
        topic=topic,
        partitions=spec.integer_or_none("partitions", 1, 10_000),
        replicas=spec.integer_or_none("replicas", 1, 100),
        config=config,
        delete_topic=spec.choice("deletionPolicy", ("Retain", "Delete"), "Retain") == "Delete",
        protected=spec.boolean("deletionProtection", False),
        warehouse=warehouse,
        paused=annotated(manifest, names.PAUSE),
        managed=annotated(manifest, names.MANAGED, default=True),
    )


def claim_of_topic(manifest: Object) -> TopicSpec:
    """What a Topic claims whose manifest is not valid: nothing is done for it, and its topic is no other's.

    Else a younger Topic of the same topic would own it meanwhile, and might add partitions for ever.
    """
    return TopicSpec(
        identity=identity_of(manifest),
        cluster=_text_in(manifest, "clusterRef", "name") or "",
        topic=_text_in(manifest, "topicName") or manifest["metadata"]["name"],
        partitions=None,
        replicas=None,
        config={},
        delete_topic=False,
        protected=False,
        warehouse=None,
        paused=True,
        managed=_may_be_managed(manifest),
    )


def _text_in(manifest: Object, *path: str) -> str | None:
    """A text in the spec of a manifest, whatever else is wrong with it."""
    found: Any = manifest.get("spec")
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else None


def _may_be_managed(manifest: Object) -> bool:
    try:
        return annotated(manifest, names.MANAGED, default=True)
    except InvalidSpec:
        return True


def _warehouse(warehouse: Fields, topic: str, config: Mapping[str, str | None]) -> WarehouseSpec:
    value_format = warehouse.choice("format", VALUE_FORMATS, "json")
    schema_registry = warehouse.text_or_none("schemaRegistry")
    if value_format in FORMATS_WITH_IDS and schema_registry is None:
        raise InvalidSpec(
            f"spec.warehouse.schemaRegistry is missing: values of format {value_format} name their schema by"
            " id, which the registry knows."
        )
    columns = {name: kind or "" for name, kind in warehouse.settings("columns").items()}
    event_day_min, event_day_max = _event_day(warehouse, "eventDayMin"), _event_day(warehouse, "eventDayMax")
    if event_day_min is not None and event_day_max is not None and event_day_min > event_day_max:
        raise InvalidSpec(
            "spec.warehouse.eventDayMin is later than eventDayMax, so every record is rejected."
        )
    freshness_seconds = _freshness(warehouse)
    transform = _transform(warehouse.inner("transform")) if warehouse.has("transform") else None
    for name, source in ({} if transform is None else transform.inputs).items():
        if source.format in FORMATS_WITH_IDS and schema_registry is None:
            raise InvalidSpec(
                f"spec.warehouse.schemaRegistry is missing: values of input {name} name their schema by"
                " id, which the registry knows."
            )
    return WarehouseSpec(
        table=warehouse.text_or_none("table") or topic,
        table_format=warehouse.choice("tableFormat", ("delta", "iceberg"), "delta"),
        schedule=None if freshness_seconds is not None else warehouse.text("schedule"),
        freshness_seconds=freshness_seconds,
        time_zone=warehouse.text_or_none("timeZone"),
        format=value_format,
        schema_registry=schema_registry,
        columns=columns,
        event_time=warehouse.text_or_none("eventTime"),
        event_time_unit=warehouse.choice("eventTimeUnit", ("s", "ms", "us", "ns"), "ms"),
        event_day_min=event_day_min,
        event_day_max=event_day_max,
        headers=warehouse.boolean("headers", False),
        dead_letter_table=warehouse.inner("deadLetter").text_or_none("table"),
        on_gap=warehouse.choice("onGap", ("fail", "skip")) if warehouse.text_or_none("onGap") else None,
        executors=_executors(warehouse),
        max_records=warehouse.integer_or_none("maxRecords", 1, _INT64_MAX),
        max_rejected_percent=warehouse.integer("maxRejectedPercent", 0, 100, 5),
        fresh_within_seconds=warehouse.integer_or_none("freshWithinSeconds", 60, 31_536_000),
        suspend=warehouse.boolean("suspend", False),
        resources=warehouse.raw("resources") or {},
        transform=transform,
        requests=_load_requests(warehouse),
        maintenance=_maintenance(warehouse.inner("maintenance")) if warehouse.has("maintenance") else None,
        until_loaded=_until_loaded(warehouse, config),
    )


def _until_loaded(warehouse: Fields, config: Mapping[str, str | None]) -> UntilLoadedSpec | None:
    if warehouse.choice("retention", ("topic", "untilLoaded"), "topic") == "topic":
        if warehouse.has("retentionLimit"):
            raise InvalidSpec("spec.warehouse.retentionLimit goes with retention: untilLoaded.")
        return None
    limit_bytes = int(quantity(warehouse.text("retentionLimit")))
    if not 1 <= limit_bytes <= _INT64_MAX:
        raise InvalidSpec("spec.warehouse.retentionLimit must be a positive number of bytes, such as 50Gi.")
    if config.get(RETENTION_BYTES) is not None:
        raise InvalidSpec(
            f"spec.config has {RETENTION_BYTES}: with spec.warehouse.retention untilLoaded,"
            " spec.warehouse.retentionLimit is the limit."
        )
    if not same_value(config.get("cleanup.policy") or "delete", "delete"):
        raise InvalidSpec(
            "spec.warehouse.retention is untilLoaded, but spec.config.cleanup.policy is not delete: records"
            " of compacted topics are not deleted by age."
        )
    keep_ms = config.get(RETENTION_MS) or str(RETENTION_MS_DEFAULT)
    if not (is_whole_number(keep_ms) and int(keep_ms) <= _INT64_MAX):
        raise InvalidSpec(
            f"spec.config {RETENTION_MS} is {keep_ms!r}: with spec.warehouse.retention untilLoaded, it says"
            " how long records stay that are loaded, as a number of milliseconds such as 604800000."
        )
    return UntilLoadedSpec(int(keep_ms), limit_bytes)


def _maintenance(maintenance: Fields) -> MaintenanceSpec:
    return MaintenanceSpec(
        schedule=maintenance.text("schedule"),
        keep_files_hours=maintenance.integer("keepFilesHours", 24, 8760, 168),
    )


def _load_requests(warehouse: Fields) -> tuple[LoadRequest, ...]:
    requests: list[LoadRequest] = []
    if warehouse.has("rewind"):
        rewind = warehouse.inner("rewind")
        to = rewind.text("to")
        arguments = () if to == "earliest" else (f"--since={_moment(to, 'spec.warehouse.rewind.to')}",)
        requests.append(LoadRequest("rewind", rewind.text("requestId"), "rewind", arguments))
    if warehouse.has("backfill"):
        backfill = warehouse.inner("backfill")
        kind = (
            "replace" if backfill.choice("mode", ("Missing", "Replace"), "Missing") == "Replace" else "append"
        )
        days = backfill.texts("days")
        if days and (backfill.has("from") or backfill.has("to")):
            raise InvalidSpec("spec.warehouse.backfill has either days, or from and to.")
        chosen = [f"--day={_day(day, 'spec.warehouse.backfill.days')}" for day in days]
        for field, option in (("from", "--since"), ("to", "--until")):
            if (text := backfill.text_or_none(field)) is not None:
                chosen.append(f"{option}={_moment(text, f'spec.warehouse.backfill.{field}')}")
        requests.append(LoadRequest("backfill", backfill.text("requestId"), kind, tuple(chosen)))
    if warehouse.has("replayDeadLetters"):
        request_id = warehouse.inner("replayDeadLetters").text("requestId")
        requests.append(LoadRequest("replayDeadLetters", request_id, "replay", ()))
    return tuple(requests)


def _moment(text: str, path: str) -> str:
    """A time as the loader takes it."""
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise InvalidSpec(f"{path} must be like 2026-11-21T09:30:00Z, not {text!r}.")
    return time.isoformat()


def _day(text: str, path: str) -> str:
    try:
        return dt.date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise InvalidSpec(f"{path} has {text!r}; write days as 2026-11-21.") from error


def _event_day(warehouse: Fields, field: str) -> str | None:
    text = warehouse.text_or_none(field)
    return None if text is None else _day(text, f"spec.warehouse.{field}")


def _freshness(warehouse: Fields) -> int | None:
    text = warehouse.text_or_none("freshness")
    if text is None:
        return None
    match = _DURATION.fullmatch(text)
    seconds = 0 if match is None else int(match[1]) * _SECONDS_OF_UNIT[match[2]]
    if not FRESHNESS_SECONDS_MIN <= seconds <= FRESHNESS_SECONDS_MAX:
        raise InvalidSpec(
            f"spec.warehouse.freshness must be a duration such as 60s or 5m, from {FRESHNESS_SECONDS_MIN}s to"
            f" 24h, not {text!r}."
        )
    if warehouse.has("schedule") or warehouse.has("freshWithinSeconds"):
        raise InvalidSpec("spec.warehouse.freshness takes the place of schedule and of freshWithinSeconds.")
    transform = warehouse.inner("transform")
    if transform.has("configMap") or transform.has("function"):
        raise InvalidSpec(
            "spec.warehouse.transform with freshness is sql: functions and ConfigMaps go with a schedule."
        )
    return seconds


def _transform(transform: Fields) -> TransformSpec:
    kinds = [name for name in ("sql", "configMap", "function") if transform.has(name)]
    if len(kinds) != 1:
        raise InvalidSpec("spec.warehouse.transform has exactly one of sql, configMap and function.")
    image = transform.text_or_none("image")
    if image is not None and kinds != ["function"]:
        raise InvalidSpec("spec.warehouse.transform.image goes with function only.")
    config_map = transform.inner("configMap")
    inputs = transform.inner("inputs")
    return TransformSpec(
        sql=transform.text_or_none("sql"),
        config_map=(config_map.text("name"), config_map.text("key")) if transform.has("configMap") else None,
        function=transform.text_or_none("function"),
        image=image,
        inputs={name: _input(inputs.inner(name), name) for name in sorted(transform.raw("inputs") or {})},
        deadline_seconds=transform.integer("deadlineSeconds", 1, 21_600, 3600),
    )


def _input(source: Fields, name: str) -> TransformInput:
    if source.has("table") == source.has("topic"):
        raise InvalidSpec(f"spec.warehouse.transform.inputs.{name} has either table or topic.")
    columns = {field: kind or "" for field, kind in source.settings("columns").items()}
    if source.has("table") and (columns or source.has("format")):
        raise InvalidSpec(
            f"spec.warehouse.transform.inputs.{name}: columns and format go with topic only; a table has its"
            " own."
        )
    return TransformInput(
        table=source.text_or_none("table"),
        topic=source.text_or_none("topic"),
        format=source.choice("format", VALUE_FORMATS, "json"),
        columns=columns,
    )


def _executors(warehouse: Fields) -> int | None:
    value = warehouse.setting("executors")
    if value is None or value == "auto":
        return None
    if not is_whole_number(value) or int(value) > 1000:
        raise InvalidSpec(f"spec.warehouse.executors must be from 0 to 1000, or auto, not {value!r}.")
    return int(value)


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


def claim_of_group(manifest: Object) -> GroupSpec:
    """What a ConsumerGroup claims whose manifest is not valid: see `claim_of_topic`."""
    return GroupSpec(
        identity=identity_of(manifest),
        cluster=_text_in(manifest, "clusterRef", "name") or "",
        group=_text_in(manifest, "groupId") or manifest["metadata"]["name"],
        max_lag=None,
        max_lag_seconds=None,
        reset=None,
        paused=True,
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
        raise InvalidSpec(f"spec.reset.datetime must be like 2026-11-21T09:30:00Z, not {text!r}.")
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def decisions_in(manifest: Object) -> tuple[Any, ...]:
    """What a person, or Kubernetes, has decided about an object; the same while only its status changes."""
    metadata = manifest["metadata"]
    return tuple(
        metadata.get(name) for name in ("uid", "generation", "annotations", "deletionTimestamp", "finalizers")
    )


def annotations_of(manifest: Object) -> dict[str, str]:
    return dict((manifest.get("metadata") or {}).get("annotations") or {})


def annotated(manifest: Object, name: str, default: bool = False) -> bool:
    """Whether the annotation `name` says true.

    Raises:
        InvalidSpec: it says neither true nor false, so nobody knows what is meant: nothing is done then.
    """
    text = annotations_of(manifest).get(name, "").strip().lower()
    if text not in ("", "true", "false"):
        raise InvalidSpec(f"The annotation {name} is {text[:40]!r}: write true or false, or remove it.")
    return default if not text else text == "true"


def quantity(text: Any) -> Fraction:
    """The number that a Kubernetes quantity (`10Gi`, `500m`, `3`, `5e9`) stands for.

    Raises:
        InvalidSpec: it is none.
    """
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise InvalidSpec(f"{text!r} is not a quantity such as 10Gi or 500m.")
    exponent = Fraction(f"1e{match[3] or 0}")
    return Fraction(match[1]) * exponent * _MULTIPLES.get(match[2] or "", 1)
