"""Delta tables that other programs change at the worst moment: between a plan and its commit (R29).

A run either goes on right, or stops with a sentence that says what to do. The others are delta-rs, which does
to the files what Spark does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.unit.loader.fake_cluster import FakeCluster, FakePartition
from tests.unit.loader.test_load_topic import DAY_MS, NEW_YEAR_MS, Loads
from tests.unit.loader.test_rewrite_rows import fill, places, replay

from mainstem_loader import rewrite_rows
from mainstem_loader.chosen_offsets import ChosenOffsets
from mainstem_loader.errors import WarehouseError
from mainstem_loader.load_topic import LoadOutcome
from mainstem_loader.maintain_table import maintain
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.rewrite_rows import rewind
from mainstem_loader.table.commits import WarehouseTable
from mainstem_loader.task_runs import TaskRuns

RESTORED = r"was restored to an older version.*load backfill TOPIC --all"
Act = Callable[[], object]


@pytest.fixture
def loads(cluster: FakeCluster, tmp_path: Any) -> Loads:
    """Three loads of a record each, on three days."""
    found = Loads(cluster, tmp_path)
    for n in range(3):
        found.send({"n": n}, time_ms=NEW_YEAR_MS + n * DAY_MS)
        found.load()
    return found


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Act], None]:
    """Let others act right before the next commit of a load or a rewrite, once."""

    def before_commit(act: Act) -> None:
        left = [act]

        def acting(plain: Callable[..., Any]) -> Callable[..., Any]:
            def commit(table: WarehouseTable, *arguments: Any) -> Any:
                if left:
                    left.pop()()
                return plain(table, *arguments)

            return commit

        for name in ("commit", "rewrite"):
            monkeypatch.setattr(WarehouseTable, name, acting(getattr(WarehouseTable, name)))

    return before_commit


def delta(loads: Loads, name: str = "t") -> DeltaTable:
    return DeltaTable(str(loads.warehouse / name))


def restore(loads: Loads) -> None:
    """Undo the newest commit."""
    table = delta(loads)
    table.restore(table.version() - 1)


def vacuum(loads: Loads) -> None:
    """As somebody does who wants the space at once."""
    delta(loads).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


def all_rows(count: int) -> list[tuple[int, int]]:
    return [(0, offset) for offset in range(count)]


def test_a_load_stops_if_the_table_is_restored_before_it_commits(
    loads: Loads, meanwhile: Callable[[Act], None]
) -> None:
    loads.send({"n": 3})
    meanwhile(lambda: restore(loads))
    with pytest.raises(WarehouseError, match=RESTORED):
        loads.load()
    assert places(loads) == all_rows(2)
    assert fill(loads).loaded == 1
    assert loads.load().loaded == 1
    assert places(loads) == all_rows(4)


def log_a_restore(loads: Loads) -> None:
    """Undo the newest load as a program does that leaves the table's description as it is."""
    table = delta(loads)
    (path, size_bytes), *_ = sorted(
        (str(row["path"]), int(row["size_bytes"]))
        for row in pa.table(table.get_add_actions(flatten=True)).to_pylist()
        if row["partition.day"] == date(2013, 1, 3)
    )
    removed = {"path": path, "size": size_bytes, "deletionTimestamp": 0, "dataChange": True}
    actions = [{"commitInfo": {"timestamp": 0, "operation": "RESTORE"}}, {"remove": removed}]
    log = loads.warehouse / "t" / "_delta_log" / f"{table.version() + 1:020}.json"
    log.write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("act", [restore, log_a_restore])
def test_a_restore_at_the_last_moment_stops_the_load(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, act: Callable[[Loads], None]
) -> None:
    """Between the load's last look and its commit, which delta-rs refuses."""
    loads.send({"n": 3})
    plain = WarehouseTable._append
    left = [act]

    def act_and_append(table: WarehouseTable, load: Any) -> None:
        if left:
            left.pop()(loads)
        plain(table, load)

    monkeypatch.setattr(WarehouseTable, "_append", act_and_append)
    with pytest.raises(WarehouseError, match=RESTORED):
        loads.load()
    assert fill(loads).loaded == 1
    assert loads.load().loaded == 1
    assert places(loads) == all_rows(4)


@pytest.mark.parametrize("replaces", [False, True], ids=["adds", "replaces"])
def test_a_backfill_during_which_the_table_is_restored_is_planned_again(
    loads: Loads, meanwhile: Callable[[Act], None], replaces: bool
) -> None:
    delta(loads).delete("_offset = 0")
    meanwhile(lambda: delta(loads).restore(2))
    fill(loads, replace_rows=replaces)
    assert places(loads) == all_rows(3)
    assert loads.load().outcome is LoadOutcome.UP_TO_DATE


def test_only_what_adds_all_missing_rows_lets_loads_continue_after_a_restore(loads: Loads) -> None:
    loads.send(b"nonsense")
    loads.load(max_rejected_share=1)
    delta(loads).restore(2)
    assert replay(loads).loaded == 0
    assert fill(loads, ChosenOffsets(ranges=(OffsetRange(0, 1, 2),))).loaded == 1
    with pytest.raises(WarehouseError, match=RESTORED):
        loads.load()
    assert fill(loads).loaded == 1
    assert loads.load().outcome is LoadOutcome.UP_TO_DATE
    assert places(loads) == all_rows(3)


def test_loads_continue_after_a_restore_that_took_no_row(loads: Loads) -> None:
    """As one that undoes a change of a property: the backfill finds nothing missing, and loads learn that."""
    loads.send({"n": 3})
    delta(loads).alter.set_table_properties({"delta.appendOnly": "false"})
    restore(loads)
    with pytest.raises(WarehouseError, match=RESTORED):
        loads.load()
    assert fill(loads).loaded == 0
    assert loads.load().loaded == 1
    assert places(loads) == all_rows(4)


def test_a_restore_stops_only_the_topics_that_were_loaded_before(loads: Loads) -> None:
    """Each until its own rows are complete: several topics may have one table."""
    first = loads.topic
    other = loads.cluster.topic("other", partitions=1)
    loads.cluster.topics["t"] = other
    loads.topic = other
    loads.send({"n": 10})
    loads.load()
    restore(loads)
    assert fill(loads).loaded == 1
    assert loads.load().outcome is LoadOutcome.UP_TO_DATE
    loads.cluster.topics["t"] = first
    with pytest.raises(WarehouseError, match=RESTORED):
        loads.load()
    third = loads.cluster.topic("t", partitions=1)
    loads.topic = third
    loads.send({"n": 20})
    assert loads.load().loaded == 1


def test_rows_go_beside_what_others_put_in_the_place_of_the_table(
    loads: Loads, meanwhile: Callable[[Act], None]
) -> None:
    """Others overwrite the rows, and leave a column away that the load has."""

    def overwrite() -> None:
        kept = delta(loads).to_pyarrow_table().drop(["n"]).slice(0, 1)
        write_deltalake(delta(loads), kept, mode="overwrite", schema_mode="overwrite")

    (kept,) = [row["_offset"] for row in loads.rows("_offset")][:1] or [None]
    loads.send({"n": 3})
    meanwhile(overwrite)
    assert loads.load().loaded == 1
    rows = loads.rows("_offset", "n")
    assert len(rows) == 2 and rows[-1] == {"_offset": 3, "n": 3}
    assert kept is not None and rows[0]["n"] is None
    loads.send({"n": 4})
    assert loads.load().loaded == 1


def test_a_table_that_others_made_another_one_stops_the_load(
    loads: Loads, meanwhile: Callable[[Act], None]
) -> None:
    def overwrite() -> None:
        other = delta(loads).to_pyarrow_table().drop(["_offset"])
        write_deltalake(delta(loads), other, mode="overwrite", schema_mode="overwrite")

    loads.send({"n": 3})
    meanwhile(overwrite)
    with pytest.raises(WarehouseError, match=r"made by another program: it has no column _offset\."):
        loads.load()


@pytest.mark.parametrize("again", ["load", "replace", "rewind"])
def test_days_that_others_delete_meanwhile_stay_deleted(
    loads: Loads, meanwhile: Callable[[Act], None], again: str
) -> None:
    """Rows that a rewrite was about to copy do not come back, and the others are there once."""
    loads.send({"n": 3}, time_ms=NEW_YEAR_MS + DAY_MS)
    loads.load()
    loads.send({"n": 4}, time_ms=NEW_YEAR_MS + DAY_MS)
    chosen = ChosenOffsets(ranges=(OffsetRange(0, 3, 4),))
    meanwhile(lambda: delta(loads).delete("day = '2013-01-02'"))
    match again:
        case "load":
            loads.load()
            expected = [0, 2, 4]
        case "replace":
            fill(loads, chosen, replace_rows=True)
            expected = [0, 2, 3]
        case _:
            rewind(loads.settings(), chosen)
            expected = [0, 2]
    assert [offset for _, offset in places(loads)] == expected


def test_files_that_a_vacuum_takes_before_they_are_committed_are_not_committed(
    loads: Loads, meanwhile: Callable[[Act], None]
) -> None:
    """A vacuum without the usual age takes every file that the log does not name yet."""
    loads.send({"n": 3}, b"nonsense")
    meanwhile(lambda: vacuum(loads))
    with pytest.raises(
        WarehouseError, match=r"was removed by another program.* keep files for at least 24 h"
    ):
        loads.load(max_rejected_share=1)
    assert places(loads) == all_rows(3)
    assert loads.load(max_rejected_share=1).loaded == 1
    assert (places(loads), len(loads.dead())) == (all_rows(4), 1)


@pytest.mark.parametrize("again", ["backfill", "merge"])
def test_files_of_the_plan_that_others_merge_and_vacuum_are_named_as_gone(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """The table is whole, so there is nothing to repair, only to run again."""
    for n in range(3, 6):
        loads.send({"n": n})
        loads.load()
    loads.send({"n": 6})

    def merge_and_vacuum() -> None:
        delta(loads).optimize.compact()
        vacuum(loads)

    module: Any = rewrite_rows if again == "backfill" else TaskRuns
    name = "produce_rows" if again == "backfill" else "run_copies"
    plain = getattr(module, name)

    def act_and_run(*arguments: Any) -> Any:
        merge_and_vacuum()
        return plain(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, act_and_run)
        with pytest.raises(WarehouseError, match=r"has rewritten table t meanwhile.* run this again"):
            fill(loads) if again == "backfill" else maintain(loads.settings())
    assert places(loads) == all_rows(6)
    assert fill(loads).loaded == 0
    assert loads.load().loaded == 1
    assert places(loads) == all_rows(7)


@pytest.mark.parametrize("shortens", [False, True], ids=["checkpoint", "checkpoint and shorter log"])
def test_a_checkpoint_by_others_keeps_the_offsets(
    loads: Loads, meanwhile: Callable[[Act], None], shortens: bool
) -> None:
    """The load has read the log before."""

    def checkpoint() -> None:
        table = delta(loads)
        table.create_checkpoint()
        for path in (loads.warehouse / "t" / "_delta_log").glob("*.json"):
            if shortens and path.stem.isdigit() and int(path.stem) < table.version():
                path.unlink()

    loads.send({"n": 3}, b"nonsense")
    meanwhile(checkpoint)
    assert loads.load(max_rejected_share=1).loaded == 1
    loads.send({"n": 5})
    assert loads.load().loaded == 1
    assert [offset for _, offset in places(loads)] == [0, 1, 2, 3, 5]
    assert len(loads.dead()) == 1


def change_log(loads: Loads, change: Callable[[dict[str, Any]], None], **protocol: Any) -> None:
    """Commit another description of the table, and the protocol that it needs, as other programs do."""
    described: dict[str, Any] = {}
    log = loads.warehouse / "t" / "_delta_log"
    for commit in sorted(log.glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            described = action.get("metaData", described)
    schema = json.loads(described["schemaString"])
    change(described | {"schema": schema})
    described["schemaString"] = json.dumps(schema)
    actions = [{"metaData": described}, *([{"protocol": protocol}] if protocol else [])]
    path = log / f"{delta(loads).version() + 1:020}.json"
    path.write_text("\n".join(map(json.dumps, actions)))


def new_column(metadata: dict[str, Any], nullable: bool = True) -> Callable[[dict[str, Any]], None]:
    field = {"name": "g", "type": "long", "nullable": nullable, "metadata": metadata}
    return lambda table: table["schema"]["fields"].append(field)


def column_n(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        next(field for field in table["schema"]["fields"] if field["name"] == "n").update(changes)

    return change


def struct_of(name: str) -> dict[str, Any]:
    """A struct whose member takes no nulls."""
    member = {"name": name, "type": "string", "nullable": False, "metadata": {}}
    return {"type": "struct", "fields": [member]}


def map_of(value: Any, key: Any = "string", takes_nulls: bool = True) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": takes_nulls}


def configured(**properties: str) -> Callable[[dict[str, Any]], None]:
    return lambda table: table["configuration"].update(
        {f"delta.{name.replace('_', '.')}": value for name, value in properties.items()}
    )


def features(*names: str) -> dict[str, Any]:
    return {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": list(names)}


INVARIANT = {"delta.invariants": '{"expression":{"expression":"n < 5"}}'}


@pytest.mark.parametrize(
    ("change", "protocol", "words"),
    [
        (configured(constraints_small="n < 5"), features("checkConstraints"), "the constraint small .n < 5."),
        (column_n(metadata=INVARIANT), {}, "column n has an invariant"),
        (column_n(nullable=False), {}, "column n takes no nulls"),
        (column_n(type={"type": "array", "elementType": "long", "containsNull": False}), {}, "n takes no"),
        (column_n(type=struct_of("key")), {}, r"column n\.key takes no nulls,"),
        (
            column_n(type={"type": "array", "elementType": struct_of("key"), "containsNull": True}),
            {},
            r"column n\.element\.key takes no nulls,",
        ),
        (column_n(type=map_of("long", takes_nulls=False)), {}, "column n takes no nulls as values of maps,"),
        (column_n(type=map_of(struct_of("key"))), {}, r"column n\.value\.key takes no nulls,"),
        (column_n(type=map_of("long", key=struct_of("k"))), {}, r"column n\.key\.k takes no nulls,"),
        (new_column({}, nullable=False), {}, "column g takes no nulls"),
        (
            new_column({"delta.generationExpression": "n * 2"}),
            features("generatedColumns"),
            "column g is generated from others",
        ),
        (
            new_column({"delta.identity.start": 1, "delta.identity.step": 1}),
            {"minReaderVersion": 1, "minWriterVersion": 6},
            "column g is an identity column",
        ),
        (
            column_n(type="string", metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}),
            {},
            r"column n is of the type varchar\(3\)",
        ),
        (
            new_column({"__CHAR_VARCHAR_TYPE_STRING": "array<char(3)>"}),
            {},
            r"column g is of the type array<char\(3\)>",
        ),
        (configured(), features("clustering", "domainMetadata"), "has the feature clustering"),
        (configured(), features("rowTracking"), "has the feature rowTracking"),
        (configured(columnMapping_mode="name"), {}, "maps the names of columns"),
        (
            configured(setTransactionRetentionDuration="interval 30 days"),
            {},
            "forgets .* are loaded",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_table_to_which_others_gave_rules_that_files_would_break_is_refused(
    loads: Loads, change: Callable[[dict[str, Any]], None], protocol: dict[str, Any], words: str
) -> None:
    change_log(loads, change, **protocol)
    loads.send({"n": 10}, {})
    before, files = delta(loads).version(), loads.files()
    with pytest.raises(WarehouseError, match=f"{words}.*undo that change, or load into another table"):
        loads.load()
    assert (delta(loads).version(), loads.files()) == (before, files)


@pytest.mark.parametrize(
    "protocol",
    [
        features("appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed"),
        {"minReaderVersion": 1, "minWriterVersion": 4},
    ],
    ids=["features", "versions"],
)
def test_a_table_that_may_have_rules_but_has_none_is_loaded(loads: Loads, protocol: dict[str, Any]) -> None:
    change_log(loads, new_column({}), **protocol)
    loads.send({"n": 10, "g": 7})
    assert loads.load().loaded == 1
    assert places(loads) == all_rows(4)


def forget(loads: Loads, name: str, *counters: str) -> None:
    """Take counters out of the log, as checkpoints of a program do that forgets old ones."""
    for commit in (loads.warehouse / name / "_delta_log").glob("*.json"):
        actions = list(map(json.loads, commit.read_text().splitlines()))
        kept = [one for one in actions if "txn" not in one or not one["txn"]["appId"].endswith(counters)]
        commit.write_text("\n".join(map(json.dumps, kept)))


def load_other_topic(loads: Loads, **more: Any) -> None:
    first = loads.topic
    loads.topic = loads.cluster.topic("t", partitions=1)
    loads.send({"n": 10})
    assert loads.load(**more).loaded == 1
    loads.cluster.topics["t"] = loads.topic = first


def add_to_copy(loads: Loads) -> None:
    rows = delta(loads).to_pyarrow_table()
    write_deltalake(loads.warehouse / "copy", rows, mode="append", partition_by=["day"])


@pytest.mark.parametrize("how", ["forgotten", "forgotten in part", "copy", "inserted"])
def test_a_table_with_rows_of_a_topic_and_no_offset_is_refused(loads: Loads, how: str) -> None:
    """R29: all records seem to be new, and a load would bring their rows a second time."""
    loads.send({"n": 3}, partition=1)
    loads.load()
    name = "copy" if how in ("copy", "inserted") else "t"
    match how:
        case "forgotten":
            forget(loads, name, "/0", "/1")
        case "forgotten in part":
            forget(loads, name, "/1")
        case "inserted":
            load_other_topic(loads, table=name)
            add_to_copy(loads)
        case _:
            add_to_copy(loads)
    loads.send({"n": 4})
    before, files = delta(loads, name).version(), loads.files()
    words = f"partition {1 if how == 'forgotten in part' else 0} is loaded.* or delete these rows"
    with pytest.raises(WarehouseError, match=words):
        loads.load(table=name)
    assert (delta(loads, name).version(), loads.files()) == (before, files)
    delta(loads, name).delete("n < 10")
    assert loads.load(table=name).loaded == (2 if how == "forgotten in part" else 5)


def test_new_topics_and_partitions_are_loaded_beside_rows_of_others(loads: Loads) -> None:
    loads.topic.partitions[2] = FakePartition()
    loads.send({"n": 3}, partition=2)
    assert loads.load().loaded == 1
    load_other_topic(loads)
    assert loads.load().outcome is LoadOutcome.UP_TO_DATE


def test_dead_letters_are_delivered_if_their_number_was_forgotten(loads: Loads) -> None:
    """R30: the number of the next run is not one that counts as delivered."""
    loads.send(b"nonsense")
    loads.load(max_rejected_share=1)
    forget(loads, "t", "mainstem/dead-letters")
    loads.send(b"more of it")
    loads.load(max_rejected_share=1)
    assert [letter["value"] for letter in loads.dead()] == [b"nonsense", b"more of it"]
