from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.log.logs import DEFAULTS, NOW_MS, Stored, append, read_all, settings
from tests.unit.broker.log.producer_logs import header

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import InconsistentTopicId, StartupError, StorageError
from mainstem_broker.log import checkpoints, data_directory
from mainstem_broker.log.checkpoints import TreePosition
from mainstem_broker.log.deletion import unlink_now
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.protocol.topic_partition import TopicPartition

TOPIC_ID, NEW_TOPIC_ID = uuid.UUID(int=7), uuid.UUID(int=8)


def never_outdated(_topic: str, _topic_id: uuid.UUID) -> bool:
    return False


class Brokers:
    """Starts brokers' log managers, and lets go of their locks after the test."""

    def __init__(self) -> None:
        self.started: list[LogManager] = []
        self.failures: list[Path] = []

    def start(
        self, *directories: Path, is_outdated: Callable[[str, uuid.UUID], bool] = never_outdated
    ) -> LogManager:
        manager = self.prepared(*directories)
        manager.load_all(lambda topic: DEFAULTS, is_outdated, NOW_MS)
        return manager

    def prepared(self, *directories: Path, broker_id: int = 1, cluster_id: str = "cluster") -> LogManager:
        manager = LogManager(
            directories,
            broker_id=broker_id,
            recovery_threads_per_directory=lambda: 2,
            schedule_unlink=unlink_now,
            on_failure=self.failures.append,
        )
        self.started.append(manager)
        manager.prepare(cluster_id)
        return manager


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    running = Brokers()
    yield running
    for manager in running.started:
        manager.release()


def create(
    manager: LogManager, topic: str = "flights", partition: int = 0, topic_id: uuid.UUID = TOPIC_ID
) -> Any:
    return manager.get_or_create(topic, partition, topic_id, DEFAULTS, NOW_MS)


def test_logs_offsets_and_high_watermarks_survive_a_clean_restart(tmp_path: Path, brokers: Brokers) -> None:
    manager = brokers.start(tmp_path)
    log = create(manager)
    append(log, [b"a", b"b", b"c"])
    log.delete_records_before(1)
    manager.close({("flights", 0): 2})
    assert (tmp_path / ".kafka_cleanshutdown").exists()

    manager = brokers.start(tmp_path)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    again = manager.get("flights", 0)
    assert again is not None
    assert read_all(again) == [Stored(1, b"b"), Stored(2, b"c")]
    assert again.recovery_point == 3
    assert manager.high_watermarks == {("flights", 0): 2}
    assert manager.topic_id("flights", 0) == TOPIC_ID


def test_r19_logs_that_are_closed_may_have_lost_records_before(tmp_path: Path, brokers: Brokers) -> None:
    """The next start must still see that, and has little to recover."""
    manager = brokers.start(tmp_path)
    append(create(manager), [b"a", b"b"])
    manager.close({}, is_clean=False)
    manager = brokers.start(tmp_path)
    assert not manager.stopped_cleanly
    log = manager.get("flights", 0)
    assert log is not None
    assert log.recovery_point == 2


def test_r43_each_data_directory_has_a_position_of_zookeepers_tree(tmp_path: Path, brokers: Brokers) -> None:
    """It outlives a restore of the tree."""
    one, other = tmp_path / "a", tmp_path / "b"
    manager = brokers.start(one)
    assert list(manager.tree_positions) == []
    manager.close({}, TreePosition(0, 7))

    manager = brokers.start(one, other)
    assert list(manager.tree_positions) == [TreePosition(0, 7)], "the other one has nothing yet"
    for change in (9, 8):
        manager.checkpoint_tree_position(TreePosition(0, change))
    manager.close({}, TreePosition(0, 3))

    manager = brokers.start(one)
    assert list(manager.tree_positions) == [TreePosition(0, 9)]
    manager.close({}, TreePosition(1, 4))
    manager = brokers.start(one, other)
    assert list(manager.tree_positions) == [TreePosition(1, 4), TreePosition(0, 9)]
    manager.close({}, TreePosition(1, 4))
    assert list(brokers.start(one, other).tree_positions) == [TreePosition(1, 4)] * 2


def test_r43_logs_without_a_position_are_known_as_such(tmp_path: Path, brokers: Brokers) -> None:
    """An earlier version wrote none."""
    manager = brokers.start(tmp_path)
    create(manager)
    manager.close({})
    assert list(brokers.start(tmp_path).tree_positions) == [None]


def test_the_largest_producer_id_is_that_of_any_log(tmp_path: Path, brokers: Brokers) -> None:
    manager = brokers.start(tmp_path)
    assert manager.largest_producer_id() == -1
    for partition, ids in enumerate(((), (7, 5000), (41,))):
        log = create(manager, partition=partition)
        for producer_id in ids:
            log.producers.update(header(producer_id), 0, NOW_MS)
    assert manager.largest_producer_id() == 5000


def test_after_a_kill_logs_are_recovered_from_their_recovery_points(
    tmp_path: Path, brokers: Brokers, warnings: Sequence[MutableMapping[str, Any]]
) -> None:
    """R6."""
    manager = brokers.start(tmp_path)
    log = create(manager)
    append(log, [b"flushed"])
    log.mark_flushed(log.flush())
    append(log, [b"whole"])
    append(log, [b"torn"])
    manager.checkpoint_recovery_points()
    manager.release()
    path = tmp_path / "flights-0" / f"{0:020d}.log"
    os.truncate(path, path.stat().st_size - 1)

    again = brokers.start(tmp_path).get("flights", 0)
    assert again is not None
    assert read_all(again) == [Stored(0, b"flushed"), Stored(1, b"whole")]
    assert again.recovery_point == 1
    assert any("cut" in entry["event"] for entry in warnings)


def test_of_directories_on_one_file_system_new_logs_go_to_the_one_that_has_fewest(
    tmp_path: Path, brokers: Brokers
) -> None:
    """R8."""
    directories = [tmp_path / name for name in "abc"]
    manager = brokers.start(*directories)
    for partition in range(7):
        create(manager, partition=partition)
    counts = sorted(sum(path.is_dir() for path in directory.iterdir()) for directory in directories)
    assert counts == [2, 2, 3]
    manager.close({})
    assert len(brokers.start(*directories).logs) == 7


def test_a_log_that_cannot_be_made_leaves_nothing_in_the_way_of_one_elsewhere(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, other = tmp_path / "full", tmp_path / "other"
    manager = brokers.start(full, other)
    for topic in ("in-full", "in-other"):
        create(manager, topic)
    with monkeypatch.context() as patch:

        def refuse(directory: Path, topic_id: uuid.UUID) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(checkpoints, "write_topic_id", refuse)
        with pytest.raises(StorageError, match="No space left"):
            create(manager)
    manager.delete("in-other", 0)
    assert create(manager).directory.parent == other
    manager.close({})
    assert brokers.start(full, other).get("flights", 0) is not None


def test_a_log_is_opened_once(tmp_path: Path, brokers: Brokers) -> None:
    manager = brokers.start(tmp_path)
    assert create(manager) is create(manager) is manager.get("flights", 0)
    assert manager.get("flights", 1) is None
    assert manager.topic_id("flights", 1) is None


def test_a_log_of_an_earlier_topic_of_the_same_name_is_refused(tmp_path: Path, brokers: Brokers) -> None:
    manager = brokers.start(tmp_path)
    append(create(manager), [b"of the earlier life"])
    with pytest.raises(InconsistentTopicId, match="delete it first"):
        create(manager, topic_id=uuid.UUID(int=8))
    manager.delete("flights", 0)
    assert create(manager, topic_id=uuid.UUID(int=8)).log_end_offset == 0


def test_a_log_without_a_topic_id_takes_the_one_it_is_asked_for_by(tmp_path: Path, brokers: Brokers) -> None:
    manager = brokers.start(tmp_path)
    create(manager)
    (tmp_path / "flights-0" / checkpoints.PARTITION_METADATA).unlink()
    create(manager)
    assert manager.topic_id("flights", 0) == TOPIC_ID


def test_a_deleted_log_is_gone_at_once_and_after_a_restart(tmp_path: Path, brokers: Brokers) -> None:
    manager = LogManager(
        [tmp_path],
        broker_id=1,
        recovery_threads_per_directory=lambda: 1,
        schedule_unlink=lambda paths, delay_ms: None,  # the process dies before the delay is over
        on_failure=brokers.failures.append,
    )
    brokers.started.append(manager)
    manager.prepare("cluster")
    manager.load_all(lambda topic: DEFAULTS, never_outdated, NOW_MS)
    append(create(manager), [b"x"])
    manager.delete("flights", 0)
    manager.delete("flights", 0)
    assert manager.get("flights", 0) is None
    assert len(list(tmp_path.glob("*-delete"))) == 1
    manager.release()
    assert not brokers.start(tmp_path).logs
    assert not list(tmp_path.glob("*-delete"))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_after_a_crash_a_log_that_was_created_again_does_not_begin_where_the_earlier_one_did(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """R6: nor are its records taken for flushed, or for replicated."""
    manager = brokers.start(tmp_path)
    for partition in range(2):
        log = create(manager, partition=partition)
        append(log, [b"old"] * 9)
        log.delete_records_before(5)
        log.mark_flushed(log.flush())
    manager.checkpoint_recovery_points()
    manager.checkpoint_log_start_offsets()
    manager.checkpoint_high_watermarks({("flights", partition): 8 for partition in range(2)})
    for partition in range(2):
        manager.delete("flights", partition)
    if is_restarted:
        manager.release()
        manager = brokers.start(tmp_path)
    written: list[str] = []
    write_offsets = checkpoints.write_offsets

    def noting(directory: Path, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        written.append(name)
        write_offsets(directory, name, offsets)

    monkeypatch.setattr(checkpoints, "write_offsets", noting)
    for partition in range(2):
        append(create(manager, partition=partition, topic_id=NEW_TOPIC_ID), [b"new"])
    assert len(written) == 3, "once for all logs that are created again"
    manager.release()

    manager = brokers.start(tmp_path)
    log = manager.logs["flights", 0]
    assert read_all(log) == [Stored(0, b"new")]
    assert log.recovery_point == 0
    assert manager.high_watermarks["flights", 0] == 0


def test_two_brokers_never_share_a_directory(tmp_path: Path, brokers: Brokers) -> None:
    manager = brokers.start(tmp_path)
    with pytest.raises(StartupError, match="Another broker runs"):
        brokers.prepared(tmp_path)
    manager.close({})
    brokers.start(tmp_path)


@pytest.mark.parametrize(
    ("broker_id", "cluster_id", "reason"),
    [(2, "cluster", r"broker\.id 1.* is 2"), (1, "other", r"cluster\.id cluster.* is other")],
)
def test_a_directory_of_another_broker_or_cluster_is_refused(
    tmp_path: Path, brokers: Brokers, broker_id: int, cluster_id: str, reason: str
) -> None:
    brokers.start(tmp_path).close({})
    with pytest.raises(StartupError, match=reason):
        brokers.prepared(tmp_path, broker_id=broker_id, cluster_id=cluster_id)


def test_meta_properties_of_another_format_are_refused(tmp_path: Path, brokers: Brokers) -> None:
    (tmp_path / checkpoints.META_PROPERTIES).write_text("version=1\nnode.id=1\n")
    with pytest.raises(StartupError, match="version 1"):
        brokers.prepared(tmp_path)
    (tmp_path / checkpoints.META_PROPERTIES).write_text("unreadable")
    brokers.started[-1].release()
    with pytest.raises(StartupError, match="cannot be read"):
        brokers.prepared(tmp_path)


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path, brokers: Brokers) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=r"log\.dirs"):
        brokers.prepared(tmp_path / "file" / "data")


def test_the_same_partition_in_two_directories_stops_the_start(tmp_path: Path, brokers: Brokers) -> None:
    for name in "ab":
        (tmp_path / name / "flights-0").mkdir(parents=True)
    with pytest.raises(StartupError, match="same partition"):
        brokers.start(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_log_of_an_earlier_topic_in_a_directory_that_was_out_of_use_is_set_aside(
    tmp_path: Path, brokers: Brokers, names: str
) -> None:
    """R8: the topic was deleted and created again meanwhile; the checkpoints there are the earlier one's."""
    repaired, used = tmp_path / "a", tmp_path / "b"
    for directory, topic_id, values in (
        (repaired, TOPIC_ID, [b"old"] * 5),
        (used, NEW_TOPIC_ID, [b"new"]),
    ):
        manager = brokers.start(directory)
        log = create(manager, topic_id=topic_id)
        append(log, values)
        log.delete_records_before(len(values) - 1)
        manager.close({("flights", 0): len(values)})

    def is_outdated(topic: str, topic_id: uuid.UUID) -> bool:
        assert topic == "flights"
        return topic_id != NEW_TOPIC_ID

    manager = brokers.start(*(tmp_path / name for name in names), is_outdated=is_outdated)
    log = manager.logs["flights", 0]
    assert log.directory.parent == used
    assert read_all(log) == [Stored(0, b"new")]
    assert manager.high_watermarks == {("flights", 0): 1}
    assert len(list(repaired.glob("flights-0.*-stray"))) == 1
    manager.close({})
    assert read_all(brokers.start(repaired, used).logs["flights", 0]) == [Stored(0, b"new")]


def test_topics_with_logs_on_a_failed_disk_are_known(tmp_path: Path, brokers: Brokers) -> None:
    """Their deletion is not completed here before a start with the disk has removed them."""
    manager = brokers.start(tmp_path)
    ids = [uuid.UUID(int=number) for number in range(4)]
    for partition, topic_id in enumerate(ids[:2]):
        create(manager, partition=partition, topic_id=topic_id)
    doomed = manager.begin_deletion("flights", 1)
    assert doomed is not None
    made, not_made = (
        manager.begin_creation("flights", 2 + number, ids[2 + number], DEFAULTS) for number in range(2)
    )
    log = made.create(NOW_MS)
    manager.fail(tmp_path)
    assert manager.unreachable_topics == {ids[0]}
    manager.finish_deletion(doomed, is_deleted=False)
    manager.finish_creation(made, log)
    manager.finish_creation(not_made, None)
    assert manager.unreachable_topics == {*ids[:3]}


def test_progress_tells_how_many_logs_are_open(tmp_path: Path, brokers: Brokers) -> None:
    manager = brokers.start(tmp_path)
    for partition in range(3):
        create(manager, partition=partition)
    manager.close({})
    requests: list[str] = []
    reports: list[tuple[int, int]] = []

    def config_of(topic: str) -> TopicConfig:
        requests.append(topic)
        return settings(retention_ms=5)

    manager = brokers.prepared(tmp_path)
    manager.load_all(config_of, never_outdated, NOW_MS, lambda done, total: reports.append((done, total)))
    assert reports == [(1, 3), (2, 3), (3, 3)]
    assert requests == ["flights"]
    assert {log.config.retention_ms for log in manager.logs.values()} == {5}


def test_what_is_no_log_in_a_data_directory_is_left_alone(tmp_path: Path, brokers: Brokers) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "notes.txt").touch()
    brokers.start(tmp_path).close({})
    assert (tmp_path / "lost+found").is_dir()
    assert (tmp_path / "notes.txt").exists()


def test_each_directory_has_the_checkpoints_of_its_own_logs(tmp_path: Path, brokers: Brokers) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    manager = brokers.start(*directories)
    for partition in range(2):
        log = create(manager, partition=partition)
        append(log, [b"x"] * (partition + 3))
        log.mark_flushed(log.flush())
        log.delete_records_before(partition + 1)
    manager.checkpoint_recovery_points()
    manager.checkpoint_log_start_offsets()
    manager.checkpoint_high_watermarks({("flights", 0): 3, ("flights", 1): 4, ("gone", 0): 9})
    for partition, directory in enumerate(directories):
        key = ("flights", partition)
        assert checkpoints.read_offsets(directory, checkpoints.RECOVERY_POINTS) == {key: partition + 3}
        assert checkpoints.read_offsets(directory, checkpoints.LOG_START_OFFSETS) == {key: partition + 1}
        assert checkpoints.read_offsets(directory, checkpoints.HIGH_WATERMARKS) == {key: partition + 3}


def test_a_full_directory_does_not_keep_the_others_from_their_checkpoints(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8."""
    full, other = tmp_path / "a", tmp_path / "b"
    manager = brokers.start(full, other)
    logs = [create(manager, partition=partition) for partition in range(2)]
    for log in logs:
        append(log, [b"x"])
        append(log, [b"y"])
        log.mark_flushed(log.flush())
        log.delete_records_before(1)
        log.truncate_to(1)
    write_atomically = checkpoints.write_atomically

    def write(path: Path, text: str, **how: Any) -> None:
        if path.is_relative_to(full):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_atomically(path, text, **how)

    monkeypatch.setattr(checkpoints, "write_atomically", write)
    for act in (
        manager.write_truncations,
        manager.checkpoint_recovery_points,
        manager.checkpoint_log_start_offsets,
        lambda: manager.checkpoint_high_watermarks({("flights", 1): 1}),
    ):
        with pytest.raises(StorageError, match=f"{full}: .*No space left on device"):
            act()
    assert [log.truncations_written for log in logs] == [0, 1]
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.LOG_START_OFFSETS, checkpoints.HIGH_WATERMARKS):
        assert checkpoints.read_offsets(other, name) == {("flights", 1): 1}


@pytest.mark.parametrize("is_asked", [True, False], ids=["when asked to", "before the next append"])
def test_a_truncation_below_the_recovery_point_is_written_down(
    tmp_path: Path, brokers: Brokers, is_asked: bool
) -> None:
    """R6."""
    manager = brokers.start(tmp_path)
    log = create(manager)
    for epoch in range(4):
        append(log, [b"x"], leader_epoch=epoch)
    log.mark_flushed(log.flush())
    manager.checkpoint_recovery_points()
    log.truncate_to(1)
    if is_asked:
        manager.write_truncations()
        assert log.truncations_written == 1
    else:
        append(log, [b"y"], leader_epoch=4)
    assert checkpoints.read_offsets(tmp_path, checkpoints.RECOVERY_POINTS) == {("flights", 0): 1}
    assert [entry.epoch for entry in checkpoints.read_epochs(log.directory).entries] == [0]


def test_truncations_are_written_down_together(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = brokers.start(tmp_path)
    logs = [create(manager, partition=partition) for partition in range(3)]
    for log in logs:
        append(log, [b"x"])
        log.mark_flushed(log.flush())
        log.truncate_to(0)
    written: list[str] = []
    write_offsets = checkpoints.write_offsets

    def noting(directory: Path, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        written.append(name)
        write_offsets(directory, name, offsets)

    monkeypatch.setattr(checkpoints, "write_offsets", noting)
    manager.write_truncations()
    manager.write_truncations()
    assert written == [checkpoints.RECOVERY_POINTS, checkpoints.FIRST_DIRTY_OFFSETS]


def test_a_log_counts_for_its_directory_while_it_is_being_created(tmp_path: Path, brokers: Brokers) -> None:
    manager = brokers.start(tmp_path / "a", tmp_path / "b")
    first, second = (manager.begin_creation("t", partition, TOPIC_ID, DEFAULTS) for partition in (0, 1))
    assert first.parent != second.parent
    assert manager.finish_creation(first, first.create(NOW_MS))
    assert not manager.finish_creation(second, None)
    assert manager.begin_creation("t", 2, TOPIC_ID, DEFAULTS).parent == second.parent


def test_a_log_whose_disk_fails_while_it_is_being_created_is_not_used(
    tmp_path: Path, brokers: Brokers
) -> None:
    manager = brokers.start(tmp_path / "a", tmp_path / "b")
    new = manager.begin_creation("t", 0, TOPIC_ID, DEFAULTS)
    log = new.create(NOW_MS)
    manager.fail(new.parent)
    assert not manager.finish_creation(new, log)
    assert manager.get("t", 0) is None


def test_a_log_that_is_being_deleted_is_out_of_view_and_comes_back_if_its_disk_keeps_it(
    tmp_path: Path, brokers: Brokers
) -> None:
    manager = brokers.start(tmp_path)
    log = create(manager)
    doomed = manager.begin_deletion("flights", 0)
    assert doomed is not None
    assert manager.get("flights", 0) is None
    manager.finish_deletion(doomed, is_deleted=False)
    assert manager.get("flights", 0) is log
    assert manager.topic_id("flights", 0) == TOPIC_ID
    assert manager.begin_deletion("flights", 1) is None


def test_a_log_that_cannot_be_closed_leaves_its_directory_unclean(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    manager = brokers.start(good, bad)
    for partition in range(2):
        append(create(manager, partition=partition), [b"x"])
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if path.startswith(str(bad)) and path.endswith(".log"):
            raise OSError(errno.EIO, "Input/output error")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    manager.close({})
    assert (good / ".kafka_cleanshutdown").exists()
    assert not (bad / ".kafka_cleanshutdown").exists()


def test_a_disk_that_fails_under_a_checkpoint_is_a_storage_error(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = brokers.start(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpoints, "write_atomically", fail)
    for write in (
        manager.checkpoint_recovery_points,
        manager.checkpoint_log_start_offsets,
        lambda: manager.checkpoint_high_watermarks({}),
        lambda: create(manager),
    ):
        with pytest.raises(StorageError, match="Input/output error"):
            write()
    monkeypatch.setattr(data_directory, "fsync_directory", fail)
    (tmp_path / ".kafka_cleanshutdown").touch()
    with pytest.raises(StorageError, match="looking for logs"):
        manager.load_all(lambda topic: DEFAULTS, never_outdated, NOW_MS)


def test_a_log_that_is_set_aside_is_kept_under_another_name(tmp_path: Path, brokers: Brokers) -> None:
    manager = brokers.start(tmp_path)
    log = create(manager, "gone")
    manager.set_aside("gone", 0)

    assert manager.get("gone", 0) is None
    assert not log.directory.exists()
    assert [path.name.endswith("-stray") for path in tmp_path.glob("gone-0*")] == [True]
