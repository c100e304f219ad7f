"""Iceberg tables, which others alter, rewrite, expire and restore between loads (R29, R30)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.unit.loader.table.commits_of_loads import DAY, TOPIC_ID, Tables, load

from mainstem_loader.columns import TableFormat
from mainstem_loader.errors import SettingsError, WarehouseError
from mainstem_loader.table.commits import CommitOutcome, WarehouseTable
from mainstem_loader.table.day_files import DayFiles
from mainstem_loader.table.folder import Folder
from mainstem_loader.table.iceberg_catalog import IcebergCatalog
from mainstem_loader.table.iceberg_state import ACCEPTED, STATE
from mainstem_loader.table.parquet_files import file_name, new_run_id
from mainstem_loader.table.query import query, tables

WEEK_MS = 7 * 24 * 3600 * 1000


@pytest.fixture
def own(tmp_path: Path) -> Tables:
    return Tables(tmp_path, TableFormat.ICEBERG)


def commit(own: Tables, name: str, start: int | None, end: int, **more: Any) -> CommitOutcome:
    table = own.open()
    outcome = table.commit(load(table, name, start, end, **more))
    table.deliver_dead_letters()
    return outcome


def rewrite_rows_as_others_do(own: Tables, keep: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> None:
    """As compaction does: the same rows in new files, in a commit that knows nothing of loads."""
    table = own.iceberg()
    table.overwrite(keep(table.scan().to_arrow()))


def expire_all_but_the_newest(own: Tables) -> None:
    table = own.iceberg()
    current = table.current_snapshot().snapshot_id
    others = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != current]
    table.maintenance.expire_snapshots().by_ids(others).commit()


def restore(own: Tables, number: int) -> None:
    """Make the table what it was after its snapshot of that number."""
    table = own.iceberg()
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[number].snapshot_id).commit()


def test_a_property_that_lets_the_library_repeat_commits_changes_nothing(own: Tables) -> None:
    """With it, pyiceberg adds files of an overtaken commit on top of the one that was faster."""
    commit(own, "a", None, 3)
    with own.iceberg().transaction() as change:
        change.set_properties({"commit.retry.num-retries": "20", "commit.retry.min-wait-ms": "1"})
    fast, stale = own.open(), own.open()
    assert fast.commit(load(fast, "b", 3, 5)) is CommitOutcome.COMMITTED
    assert stale.commit(load(stale, "c", 3, 5)) is CommitOutcome.SUPERSEDED
    assert own.offsets() == [0, 1, 2, 3, 4]


def test_a_commit_of_others_between_plan_and_commit_does_not_disturb(own: Tables) -> None:
    commit(own, "a", None, 3)
    table = own.open()
    planned = load(table, "b", 3, 5)
    rewrite_rows_as_others_do(own)
    assert table.commit(planned) is CommitOutcome.COMMITTED
    assert own.offsets() == [0, 1, 2, 3, 4]


def test_offsets_survive_that_others_rewrite_all_files_and_expire_the_loads(own: Tables) -> None:
    commit(own, "a", None, 3)
    rewrite_rows_as_others_do(own)
    rewrite_rows_as_others_do(own)
    expire_all_but_the_newest(own)
    assert commit(own, "b", 3, 5) is CommitOutcome.COMMITTED
    assert own.offsets() == [0, 1, 2, 3, 4]


def test_rows_deleted_and_loads_expired_by_others_need_a_person(own: Tables) -> None:
    commit(own, "a", None, 3)
    own.iceberg().delete("_offset = 1")
    rewrite_rows_as_others_do(own)
    expire_all_but_the_newest(own)
    with pytest.raises(WarehouseError, match="nobody can tell which offsets its rows are from"):
        own.open()
    head = own.iceberg().current_snapshot().snapshot_id
    with own.iceberg().transaction() as change:
        change.set_properties({ACCEPTED: str(head)})
    assert commit(own, "b", 3, 5) is CommitOutcome.COMMITTED
    assert own.offsets() == [0, 2, 3, 4]


def test_a_restore_between_plan_and_commit_refuses_the_commit(own: Tables) -> None:
    commit(own, "a", None, 3)
    commit(own, "b", 3, 5)
    table = own.open()
    planned = load(table, "c", 5, 7)
    restore(own, 0)
    assert table.commit(planned) is CommitOutcome.SUPERSEDED
    assert own.offsets() == [0, 1, 2]


def test_after_a_restore_each_dead_letter_is_there_once(own: Tables) -> None:
    commit(own, "a", None, 3, dead=[0])
    first = len(own.iceberg().snapshots()) - 1
    commit(own, "b", 3, 5, dead=[3])
    commit(own, "c", 5, 9, dead=[5, 8])
    restore(own, first)
    assert own.dead_offsets() == [0, 3, 5, 8]
    commit(own, "d", 3, 6, dead=[3, 5])
    assert own.dead_offsets() == [0, 3, 5, 8]
    commit(own, "e", 6, 9, dead=[8])
    assert own.dead_offsets() == [0, 3, 5, 8]
    commit(own, "f", 9, 12, dead=[10])
    assert own.dead_offsets() == [0, 3, 5, 8, 10]
    assert own.offsets() == list(range(12))


def test_dead_letters_of_killed_loads_are_delivered_after_others_expired_them(own: Tables) -> None:
    table = own.open()
    table.commit(load(table, "a", None, 3, dead=[1]))
    rewrite_rows_as_others_do(own)
    expire_all_but_the_newest(own)
    own.open().deliver_dead_letters()
    own.open().deliver_dead_letters()
    assert own.dead_offsets() == [1]


def test_files_of_a_commit_whose_answer_was_lost_are_kept_when_it_was_expired(
    own: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the caller would delete the files of rows that are in the table."""
    from mainstem_loader.table.iceberg_store import IcebergSnapshot

    commit(own, "a", None, 3)
    table = own.open()
    name = file_name(new_run_id(time.time()), 0, 0)
    run_id = name.split("part-")[1].rsplit("-", 2)[0]
    planned = replace(load(table, f"{name}-1", 3, 5), run_id=run_id)
    whole = IcebergSnapshot.commit

    def lose_the_answer(snapshot: Any, change: Any) -> None:
        monkeypatch.setattr(IcebergSnapshot, "commit", whole)
        whole(snapshot, change)
        commit(own, "c", 5, 6)
        expire_all_but_the_newest(own)
        raise OSError("broken pipe")

    monkeypatch.setattr(IcebergSnapshot, "commit", lose_the_answer)
    assert table.commit(planned) is CommitOutcome.COMMITTED
    assert own.offsets() == [0, 1, 2, 3, 4, 5]


def test_a_table_dropped_and_made_anew_between_plan_and_commit_refuses_the_commit(own: Tables) -> None:
    commit(own, "a", None, 3)
    table = own.open()
    planned = load(table, "b", 3, 5)
    IcebergCatalog().open(Folder.of(own.warehouse)).drop_table(("mainstem", "t"))
    own.open()
    assert table.commit(planned) is CommitOutcome.SUPERSEDED
    assert own.offsets() == []


def test_a_table_made_anew_elsewhere_during_its_first_load_refuses_the_commit(own: Tables) -> None:
    """The files are not where the new table would look for them."""
    table = own.open()
    planned = load(table, "a", None, 3)
    catalog = IcebergCatalog().open(Folder.of(own.warehouse))
    schema, spec, properties = (own.iceberg().schema(), own.iceberg().spec(), own.iceberg().properties)
    catalog.drop_table(("mainstem", "t"))
    catalog.create_table(
        ("mainstem", "t"),
        schema,
        location=str(own.warehouse / "elsewhere"),
        partition_spec=spec,
        properties=properties,
    )
    assert table.commit(planned) is CommitOutcome.SUPERSEDED
    assert own.offsets() == []
    assert commit(own, "b", None, 2) is CommitOutcome.COMMITTED
    assert own.offsets() == [0, 1]


def test_tables_of_one_name_in_two_catalogs_share_no_folder(own: Tables) -> None:
    """Each would sweep the files of the other."""
    commit(own, "a", None, 3)
    other = IcebergCatalog(f"sqlite:///{own.warehouse}/other.sqlite")
    table = WarehouseTable(own.warehouse, "t", catalog=other)
    table.check_store()
    assert table.committed(TOPIC_ID, 0) is None
    assert table.folder != own.open().folder


def test_names_with_dots_are_columns(own: Tables) -> None:
    commit(own, "a", None, 1, columns={"a.b": pa.int64()}, **{"a.b": pa.array([1])})
    inner = pa.struct([("c.d", pa.string())])
    commit(own, "b", 1, 2, columns={"s": inner}, s=pa.array([{"c.d": "x"}], inner))
    assert own.rows("a.b", "s") == [{"a.b": 1, "s": None}, {"a.b": None, "s": {"c.d": "x"}}]


def test_a_state_that_somebody_removed_is_not_taken_for_a_new_table(own: Tables) -> None:
    commit(own, "a", None, 3)
    rewrite_rows_as_others_do(own)
    expire_all_but_the_newest(own)
    with own.iceberg().transaction() as change:
        change.remove_properties(STATE)
    with pytest.raises(WarehouseError, match="no longer says of which offsets"):
        own.open()


@pytest.mark.parametrize(
    ("topic_id", "committed", "is_found"),
    [
        (TOPIC_ID, {0: None, 1: None}, True),
        (TOPIC_ID, {0: None, 1: 3}, True),
        (TOPIC_ID, {0: 3, 1: None}, False),
        ("some", {0: None}, False),
        ("zz", {0: None}, False),
    ],
)
def test_rows_of_a_topic_without_an_offset_are_found(
    own: Tables, topic_id: str, committed: dict[int, int | None], is_found: bool
) -> None:
    """Others have inserted them, or merged loads of several topics into one file."""
    commit(own, "a", None, 3, _topic_id=pa.array(["other", TOPIC_ID, "zebra"]))
    table = own.open()
    with pytest.raises(WarehouseError, match="has rows of the topic") if is_found else nullcontext():
        table.check_offsets_of_rows(topic_id, committed)


@pytest.mark.parametrize("how", ["rename", "drop"])
def test_a_column_that_was_renamed_or_dropped_does_not_come_back(own: Tables, how: str) -> None:
    """Files of before would be read as if they had it."""
    commit(own, "a", None, 1, columns={"x": pa.int64()}, x=pa.array([7]))
    with own.iceberg().update_schema(allow_incompatible_changes=True) as change:
        if how == "rename":
            change.rename_column("x", "y")
        else:
            change.delete_column("x")
    table = own.open()
    with pytest.raises(WarehouseError, match=r"Column x of Iceberg table mainstem\.t was renamed or dropped"):
        table.commit(load(table, "b", 1, 2, columns={"x": pa.string()}, x=pa.array(["k"])))
    assert commit(own, "c", 1, 2) is CommitOutcome.COMMITTED
    if how == "rename":
        assert own.rows("y") == [{"y": 7}, {"y": None}]


def test_columns_that_others_added_stay(own: Tables) -> None:
    commit(own, "a", None, 1)
    from pyiceberg.types import StringType

    with own.iceberg().update_schema() as change:
        change.add_column("remark", StringType())
    assert commit(own, "b", 1, 2, columns={"x": pa.int64()}, x=pa.array([3])) is CommitOutcome.COMMITTED
    assert own.rows("remark", "x") == [{"remark": None, "x": None}, {"remark": None, "x": 3}]


def test_a_table_without_a_name_mapping_is_refused(own: Tables) -> None:
    commit(own, "a", None, 1)
    with own.iceberg().transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    table = WarehouseTable(own.warehouse, "t", catalog=own.catalog)
    with pytest.raises(WarehouseError, match=r"schema\.name-mapping\.default .* does not name column"):
        table.commit(load(table, "b", 1, 2))
    table.reload()
    assert table.committed(TOPIC_ID, 0) == 1


def test_a_table_that_is_partitioned_otherwise_is_refused(own: Tables) -> None:
    commit(own, "a", None, 1)
    with own.iceberg().update_spec() as change:
        change.add_identity("_topic_partition")
    with pytest.raises(WarehouseError, match="is not partitioned by the column day itself"):
        own.open()


def test_a_table_of_another_program_is_refused_and_stays_as_it_is(own: Tables) -> None:
    """R29: by its columns alone, as it may have the same partitions."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import DateType, DoubleType, NestedField

    catalog = IcebergCatalog().open(Folder.of(own.warehouse))
    catalog.create_namespace_if_not_exists("mainstem")
    by_day = PartitionSpec(
        PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="day")
    )
    schema = Schema(NestedField(1, "day", DateType()), NestedField(2, "amount", DoubleType()))
    theirs = catalog.create_table("mainstem.t", schema, partition_spec=by_day)
    with pytest.raises(WarehouseError, match="made by another program: column _topic_partition is missing"):
        own.open()
    assert own.iceberg().schema() == theirs.schema()


def test_a_table_whose_name_mapping_is_gone_is_refused_before_anything_is_written(own: Tables) -> None:
    commit(own, "a", None, 1)
    with own.iceberg().transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    with pytest.raises(WarehouseError, match=r"schema\.name-mapping\.default .* does not name column"):
        own.open()


def test_a_table_with_a_column_that_cannot_be_written_is_refused(own: Tables) -> None:
    commit(own, "a", None, 1)
    from pyiceberg.types import ListType, UUIDType

    with own.iceberg().update_schema() as change:
        change.add_column("id", ListType(99, UUIDType(), element_required=False))
    with pytest.raises(WarehouseError, match=r"Column id of Iceberg table mainstem\.t is of type list<uuid>"):
        own.open()


def _with_required_field(kind: str) -> Any:
    """The type of a column that has a field called `key`, which allows no null, at some place."""
    from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

    struct = StructType(NestedField(90, "key", StringType(), required=True))
    match kind:
        case "struct":
            return struct
        case "list":
            return ListType(91, struct, element_required=False)
        case "map":
            return MapType(91, StringType(), 92, struct, value_required=False)
        case "map key":
            return MapType(91, struct, 92, LongType(), value_required=False)
        case "elements":
            return ListType(91, LongType(), element_required=True)
        case _:
            return MapType(91, StringType(), 92, LongType(), value_required=True)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("struct", "c.key"),
        ("list", "c.element.key"),
        ("map", "c.value.key"),
        ("map key", "c.key.key"),
        ("elements", "c.element"),
        ("values", "c.value"),
    ],
)
def test_a_nested_field_that_allows_no_null_is_refused_whatever_its_name(
    own: Tables, kind: str, path: str
) -> None:
    commit(own, "a", None, 1)
    with own.iceberg().update_schema() as change:
        change.add_column("c", _with_required_field(kind))
    with pytest.raises(WarehouseError, match=rf"Column {path} of Iceberg table mainstem\.t allows no null"):
        own.open()


def test_a_column_called_key_that_allows_no_null_is_refused(own: Tables) -> None:
    from pyiceberg.types import StringType

    commit(own, "a", None, 1)
    with own.iceberg().update_schema(allow_incompatible_changes=True) as change:
        change.add_column("key", StringType(), required=True)
    with pytest.raises(WarehouseError, match=r"Column key of Iceberg table mainstem\.t allows no null"):
        own.open()


def test_the_keys_of_maps_are_required_and_loaded(own: Tables) -> None:
    """Iceberg has no other maps."""
    from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

    commit(own, "a", None, 1)
    counts = MapType(90, StringType(), 91, LongType(), value_required=False)
    nested = StructType(NestedField(92, "key", ListType(93, counts, element_required=False), required=False))
    with own.iceberg().update_schema() as change:
        change.add_column("key", nested)
    assert own.iceberg().schema().find_field("key.key.element.key").required
    assert commit(own, "b", 1, 2) is CommitOutcome.COMMITTED
    assert own.offsets() == [0, 1]


def test_nested_columns_grow_and_are_read_by_name(own: Tables) -> None:
    small = pa.struct([("k", pa.int64()), ("l", pa.list_(pa.struct([("m", pa.string())])))])
    large = pa.struct(
        [
            ("k", pa.int64()),
            ("l", pa.list_(pa.struct([("m", pa.string()), ("n", pa.int64())]))),
            ("o", pa.bool_()),
        ]
    )
    counts = pa.map_(pa.string(), pa.int64())
    first = {"k": 1, "l": [{"m": "a"}]}
    second = {"k": 2, "l": [{"m": "b", "n": 9}], "o": True}
    commit(own, "a", None, 1, columns={"s": small}, s=pa.array([first], small))
    commit(
        own,
        "b",
        1,
        2,
        columns={"s": large, "c": counts},
        s=pa.array([second], large),
        c=pa.array([[("x", 1)]], counts),
    )
    assert own.rows("s", "c") == [
        {"s": {"k": 1, "l": [{"m": "a", "n": None}], "o": None}, "c": None},
        {"s": second, "c": [("x", 1)]},
    ]
    assert own.open().payload_columns == {"s": large, "c": counts}


def test_loaders_that_begin_at_once_open_one_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one makes each of the catalog's own tables just before this one would."""
    from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable

    left = list(SqlCatalogBaseTable.metadata.sorted_tables)

    def create_tables(catalog: Any) -> None:
        table = left.pop()
        table.create(catalog.engine)
        table.create(catalog.engine)

    monkeypatch.setattr(SqlCatalog, "create_tables", create_tables)
    assert IcebergCatalog().open(Folder.of(tmp_path)).list_namespaces() == []
    assert not left


def test_manifests_of_many_commits_are_merged(own: Tables) -> None:
    """From ten on here, and by default from a hundred on."""
    commit(own, "r0", None, 1)
    with own.iceberg().transaction() as transaction:
        transaction.set_properties({"commit.manifest.min-count-to-merge": "10"})
    table = own.open()
    for number in range(1, 15):
        assert table.commit(load(table, f"r{number}", number, number + 1)) is CommitOutcome.COMMITTED
    assert own.offsets() == list(range(15))
    assert len(own.iceberg().current_snapshot().manifests(own.iceberg().io)) < 10


def test_old_snapshots_are_expired_but_not_the_offsets(own: Tables) -> None:
    for number in range(3):
        commit(own, f"r{number}", number or None, number + 1)
    own.iceberg().delete("_offset = 1")
    count = len(own.iceberg().snapshots())
    table = own.open()
    table.sweep_orphans(24, now_s=time.time() + WEEK_MS / 1000 - 60)
    assert len(own.iceberg().snapshots()) == count + 1
    own.iceberg().delete("_offset = 2")
    table = own.open()
    table.sweep_orphans(24, now_s=time.time() + WEEK_MS / 1000 + 60)
    assert len(own.iceberg().snapshots()) == 3
    assert own.open().committed(TOPIC_ID, 0) == 3
    assert commit(own, "last", 3, 4) is CommitOutcome.COMMITTED
    assert own.offsets() == [0, 3]


def test_statistics_of_files_skip_no_row(own: Tables) -> None:
    """Real files of the loader, with bounds of numbers, texts and times; queries at and around them."""
    table = own.open()
    files = DayFiles(
        table.folder, file_name(new_run_id(time.time()), 0, 0), TableFormat.ICEBERG, row_group_bytes=1
    )
    count = 60
    day = (DAY - date(1970, 1, 1)).days
    for begin in range(0, count, 10):
        numbers = list(range(begin, begin + 10))
        rows = pa.table(
            {
                "_topic_partition": pa.array([0] * 10, pa.int32()),
                "_offset": pa.array(numbers, pa.int64()),
                "_timestamp": pa.array([n * 1_500_000 for n in numbers], pa.timestamp("us", "UTC")),
                "_key": pa.array([b"%d" % n for n in numbers]),
                "_topic_id": pa.array([TOPIC_ID] * 10),
                "_run": pa.array(["a"] * 10),
                "text": pa.array([None if n % 7 == 0 else f"é{n:03}" * (1 + n % 30) for n in numbers]),
                "number": pa.array([-n if n % 2 else None for n in numbers], pa.int64()),
                "real": pa.array([float("nan") if n % 5 == 0 else n / 3 for n in numbers]),
            }
        )
        files.append(np.full(10, day, np.int32), rows)
    written = files.close()
    columns: dict[str, pa.DataType] = {"text": pa.string(), "number": pa.int64(), "real": pa.float64()}
    planned = replace(load(table, "a", None, count), files=tuple(written), columns=columns)
    assert table.commit(planned) is CommitOutcome.COMMITTED
    found = own.iceberg()
    every = found.scan().to_arrow()
    for number in (0, 1, 9, 10, 31, 59):
        at = f"1970-01-01T00:{number * 3 // 2 // 60:02}:{number * 1.5 % 60:04.1f}00000+00:00"
        for condition in (f"_offset == {number}", f"_timestamp == '{at}'", f"number == {-number}"):
            expected = 0 if condition.startswith("number") and number % 2 == 0 else 1
            assert found.scan(row_filter=condition).to_arrow().num_rows == expected, condition
        text = every["text"][number].as_py()
        if text is not None:
            assert found.scan(row_filter=f"text == '{text}'").to_arrow().num_rows == 1
    assert found.scan(row_filter=f"day == '{DAY}' and _offset < 5").to_arrow().num_rows == 5
    assert found.scan(row_filter="text is null").to_arrow().num_rows == 9
    # It does skip files.
    bounds = list(found.scan(row_filter="_offset == 999").plan_files())
    assert bounds == []
    # Without the library: the files have all columns, the day, too, in encodings that all readers know.
    paths = [str(Path(table.folder.url) / one.path) for one in written]
    with duckdb.connect() as engine:
        answer = engine.execute("SELECT count(*), min(day) FROM read_parquet(?)", [paths]).fetchone()
    assert answer == (count, DAY)
    group = parquet.read_metadata(paths[0]).row_group(0)
    encodings = {name for index in range(group.num_columns) for name in group.column(index).encodings}
    assert encodings <= {"PLAIN", "RLE", "RLE_DICTIONARY"}


def test_sql_reads_both_formats(own: Tables) -> None:
    delta = Tables(own.warehouse, TableFormat.DELTA)
    table = delta.open("d")
    table.commit(load(table, "d", None, 3))
    commit(own, "a", None, 2, columns={"x": pa.int64()}, x=pa.array([7, 8]))
    assert tables(own.warehouse) == ["d", "t"]
    answer = query(own.warehouse, "SELECT t.x, d._offset FROM t JOIN d ON t._offset = d._offset ORDER BY 1")
    assert answer.to_pylist() == [{"x": 7, "_offset": 0}, {"x": 8, "_offset": 1}]
    assert query(own.warehouse, "SELECT count(*) n FROM t AS a, t AS b").to_pylist() == [{"n": 4}]
    table = delta.open("t")
    table.commit(load(table, "t", None, 5))
    assert tables(own.warehouse) == ["d", "mainstem.t", "t"]
    assert query(own.warehouse, "SELECT count(*) n FROM t").to_pylist() == [{"n": 5}]
    assert query(own.warehouse, 'SELECT count(*) n FROM "mainstem.t"').to_pylist() == [{"n": 2}]


def test_tables_of_both_formats_may_share_a_name_and_the_dead_letters(own: Tables) -> None:
    delta = Tables(own.warehouse, TableFormat.DELTA)
    for one in (delta, own):
        table = one.open()
        table.commit(load(table, f"run-{one.format}", None, 3, dead=[1]))
        table.deliver_dead_letters()
    assert own.dead_offsets() == [1, 1]
    assert (own.offsets(), delta.offsets()) == ([0, 1, 2], [0, 1, 2])


def test_a_summary_is_of_one_line_that_tools_can_read(own: Tables) -> None:
    commit(own, "a", None, 3, dead=[1])
    summaries = [snapshot.summary for snapshot in own.iceberg().snapshots()]
    state = json.loads(summaries[0][STATE])
    assert state["offsets"] == {TOPIC_ID: [3]}
    assert state["rows"] == 3
    assert json.loads(summaries[0]["mainstem.run"])["run"] == "a"
    assert summaries[0]["total-records"] == "3"


@pytest.mark.parametrize(
    ("catalog", "warehouse", "words"),
    [
        (IcebergCatalog(), "s3://bucket/prefix", "need a catalog: name one"),
        (IcebergCatalog("jdbc:postgresql://x"), "/warehouse", "is named by its URL"),
        (IcebergCatalog(namespace=""), "/warehouse", "No namespace can be called"),
        (IcebergCatalog(namespace="a..b"), "/warehouse", "No namespace can be called"),
    ],
)
def test_catalogs_that_cannot_be_are_refused(catalog: IcebergCatalog, warehouse: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        catalog.check(Folder.of(warehouse))


def test_a_damaged_table_is_reported_in_one_sentence(own: Tables) -> None:
    commit(own, "a", None, 3)
    metadata = Path(own.iceberg().metadata_location.removeprefix("file://"))
    metadata.write_text("garbage")
    with pytest.raises(
        WarehouseError, match=r"Iceberg table mainstem\.t cannot be read or written .*is whole"
    ):
        WarehouseTable(own.warehouse, "t", catalog=own.catalog)
    metadata.unlink()
    with pytest.raises(WarehouseError, match=r"Iceberg table mainstem\.t cannot be read or written"):
        WarehouseTable(own.warehouse, "t", catalog=own.catalog)
