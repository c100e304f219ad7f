"""Topics as values, read from their objects, with how they are loaded. Pure.

Defaults are those of `crds/`, so that manifests read the same with and without an API server.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mainstem_operator.api import names
from mainstem_operator.api.fields import Fields, InvalidSpec, Object
from mainstem_operator.api.objects import INT64_MAX, Identity, annotated, identity_of, text_in
from mainstem_operator.api.quantities import quantity
from mainstem_operator.api.setting_values import same_value
from mainstem_operator.api.whole_numbers import is_whole_number

RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
RETENTION_MS_DEFAULT: Final = 7 * 24 * 3600 * 1000
"""As of Kafka's topics that name none."""
VALUE_FORMATS: Final = ("json", "avro", "protobuf", "json-schema", "raw")
FORMATS_WITH_IDS: Final = ("avro", "protobuf", "json-schema")
"""Of these, values name their schema by id, which a registry knows."""
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
FRESHNESS_SECONDS_MIN: Final = 10
FRESHNESS_SECONDS_MAX: Final = 86_400
_DURATION: Final = re.compile(r"([1-9][0-9]{0,5})(s|m|h)")
_SECONDS_OF_UNIT: Final = {"s": 1, "m": 60, "h": 3600}


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
        cluster=text_in(manifest, "clusterRef", "name") or "",
        topic=text_in(manifest, "topicName") or manifest["metadata"]["name"],
        partitions=None,
        replicas=None,
        config={},
        delete_topic=False,
        protected=False,
        warehouse=None,
        paused=True,
        managed=_may_be_managed(manifest),
    )


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
        max_records=warehouse.integer_or_none("maxRecords", 1, INT64_MAX),
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
    if not 1 <= limit_bytes <= INT64_MAX:
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
    if not (is_whole_number(keep_ms) and int(keep_ms) <= INT64_MAX):
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
