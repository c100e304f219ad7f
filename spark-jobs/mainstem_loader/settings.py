"""What a load is asked to do: one value, checked once. Must not live here: command lines and resources."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from mainstem_loader.columns import ColumnError, Columns, check_name
from mainstem_loader.errors import SettingsError
from mainstem_loader.kafka.client_security import ClientProperties, check_client_properties
from mainstem_loader.kafka.fetch import IsolationLevel
from mainstem_loader.payload.event_time import PLAUSIBLE_DAY_MIN, TimeUnit
from mainstem_loader.payload.readers import PayloadFormat
from mainstem_loader.payload.schema_source import check_registry_properties, check_registry_url
from mainstem_loader.ranges import GapPolicy
from mainstem_loader.spark.executor_pods import ExecutorPods
from mainstem_loader.table.dead_letters import DEAD_LETTER_TABLE
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.iceberg_catalog import IcebergCatalog
from mainstem_loader.table.sweep import ORPHAN_HOURS, check_orphan_hours
from mainstem_loader.transform.definition import TopicInput, Transform


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What to load, from where, to where.

    Attributes:
        bootstrap_servers: `host:port`, several with commas.
        topic: its name.
        warehouse: the folder of all tables, or s3://bucket/prefix (see `folder`).
        table: its name; the topic's, if None.
        dead_letter_table: where records go that cannot be read; a Delta table, whatever `catalog` says.
        catalog: of the Iceberg table that is loaded into; None for a Delta table.
        payload: how values become columns.
        schema_registry: the URL, without a login, of the registry that knows the schemas; needed by formats
            whose values have ids.
        columns: payload fields whose type is given, such as `{"sent": pa.timestamp("us", "UTC")}`; only for
            JSON.
        event_time_field: the payload field that says when the event happened, see `event_time`; only for
            JSON.
        event_time_unit: of that field where it is a number.
        event_day_min, event_day_max: plausible days of that field; records of other days are rejected. No
            `event_day_max` means about a year from now.
        with_headers: keep the records' headers in `_headers`.
        transform: what stands between topic and table; None for rows that are the records.
        isolation: whether records of open and aborted transactions are left out.
        on_gap: what to do when records were deleted before they were loaded. None: fail, except that the
            first load of a new table begins at the oldest record.
        max_records, max_bytes: caps of this load, as stored by the broker; None for none.
        max_rejected_share: a load that rejects a larger share of its records has failed, though what it read
            is committed; from 0 to 1.
        delete_loaded_after_ms: after the load, delete records from the topic that are loaded and older than
            this by their timestamp; None leaves them to the topic's own retention.
        sweep_after_hours: delete files that no commit names when they are older than this; None keeps them.
        cores: how many tasks run side by side when Spark runs on this machine.
        spark_master: Spark's master. None: `local[cores]`, and only for loads that are not small.
        executor_pods: Kubernetes pods to run tasks in when the load is large; None for this machine alone.
        fetch_bytes: how much one request asks for.
        retry_ms: how long to wait for a leader that went away.
        client_properties: encryption and login of connections to brokers, see `client_security`, and to the
            schema registry, see `schema_source`.
    """

    bootstrap_servers: str
    topic: str
    warehouse: str | Path
    table: str | None = None
    dead_letter_table: str = DEAD_LETTER_TABLE
    catalog: IcebergCatalog | None = None
    payload: PayloadFormat = PayloadFormat.JSON
    schema_registry: str | None = None
    columns: Columns = field(default_factory=dict)
    event_time_field: str | None = None
    event_time_unit: TimeUnit = TimeUnit.MILLISECONDS
    event_day_min: date | None = PLAUSIBLE_DAY_MIN
    event_day_max: date | None = None
    with_headers: bool = False
    transform: Transform | None = None
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    on_gap: GapPolicy | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    max_rejected_share: float = 0.05
    delete_loaded_after_ms: int | None = None
    sweep_after_hours: int | None = ORPHAN_HOURS
    cores: int = 2
    spark_master: str | None = None
    executor_pods: ExecutorPods | None = None
    fetch_bytes: int = 16 * 1024 * 1024
    retry_ms: int = 30_000
    client_properties: ClientProperties = field(default_factory=dict, repr=False)

    def check(self) -> None:
        """Refuse settings that contradict each other or are out of range.

        Raises:
            SettingsError: see there.
        """
        check_client_properties(self.client_properties)
        check_registry_properties(self.client_properties)
        if self.schema_registry:
            check_registry_url(self.schema_registry)
        if self.catalog is not None:
            self.catalog.check(Folder.of(self.warehouse))
        if self.payload is PayloadFormat.RAW and (self.columns or self.event_time_field is not None):
            raise SettingsError(
                "Raw values have no fields; leave out the columns and the event time, or load JSON."
            )
        if self.payload.needs_registry and not self.schema_registry:
            raise SettingsError(
                f"Values of format {self.payload} name their schema by id: name the schema registry's URL."
            )
        if self.transform is not None:
            self.transform.check()
            if self.catalog is not None:
                raise SettingsError(
                    "Transforms load into Delta tables; leave out the transform, or the format of the table."
                )
            self._check_inputs(self.transform)
        for name in ("max_records", "max_bytes", "cores", "fetch_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"{name} is {value}; it must be at least 1.")
        if self.delete_loaded_after_ms is not None and self.delete_loaded_after_ms < 0:
            raise SettingsError(
                f"delete_loaded_after_ms is {self.delete_loaded_after_ms}; it must be at least 0."
            )
        if not 0 <= self.max_rejected_share <= 1:
            raise SettingsError(
                f"max_rejected_share is {self.max_rejected_share}; it must be between 0 and 1."
            )
        if self.sweep_after_hours is not None:
            check_orphan_hours(self.sweep_after_hours)
        for column in self.columns:
            try:
                check_name(column, self.columns)
            except ColumnError as error:
                raise SettingsError(f"The columns cannot be as named: {error}.") from error

    def _check_inputs(self, transform: Transform) -> None:
        for name, source in transform.inputs.items():
            if isinstance(source, TopicInput) and source.payload.needs_registry and not self.schema_registry:
                raise SettingsError(
                    f"Values of input {name}, of format {source.payload}, name their schema by id: name the"
                    " schema registry's URL."
                )
