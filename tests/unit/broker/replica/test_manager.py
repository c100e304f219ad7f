from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.log.logs import DEFAULTS, settings
from tests.unit.broker.replica.replicas import replica_manager, state_of

from mainstem_broker.errors import StorageError
from mainstem_broker.log.deletion import unlink_all
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.replica.manager import ReplicaManager

T = UUID(int=1)


@pytest.fixture
def logs(tmp_path: Path) -> LogManager:
    return LogManager(
        [tmp_path],
        broker_id=1,
        recovery_threads_per_directory=1,
        schedule_unlink=lambda paths, _delay_ms: unlink_all(paths),
    )


@pytest.fixture
def replicas(logs: LogManager) -> ReplicaManager:
    return replica_manager(logs)


def update(
    replicas: ReplicaManager, topic: str = "t", index: int = 0, topic_id: UUID = T, epoch: int = 0
) -> None:
    replicas.update(topic, index, topic_id, state_of(1, epoch, (1,), epoch), (1,), DEFAULTS)


def test_a_replica_is_opened_when_its_state_is_first_heard_of(
    replicas: ReplicaManager, tmp_path: Path
) -> None:
    assert replicas.find("t", 0) is None
    update(replicas)
    opened = replicas.find("t", 0)
    assert opened is not None
    assert opened.is_leader
    assert (tmp_path / "t-0").is_dir()


def test_a_later_state_goes_to_the_same_replica(replicas: ReplicaManager) -> None:
    update(replicas)
    opened = replicas.find("t", 0)
    update(replicas, epoch=4)
    assert replicas.find("t", 0) is opened
    assert opened is not None
    assert opened.leader_epoch == 4


def test_a_log_that_cannot_be_opened_harms_no_other(replicas: ReplicaManager, tmp_path: Path) -> None:
    (tmp_path / "t-0").write_text("a file where a directory should be")
    with capture_logs() as lines:
        update(replicas, index=0)
        update(replicas, index=1)
    assert replicas.find("t", 0) is None
    assert replicas.find("t", 1) is not None
    assert [line["event"] for line in lines] == ["replica not opened"]


def test_the_log_of_an_earlier_topic_of_that_name_is_not_taken(replicas: ReplicaManager) -> None:
    update(replicas)
    later = replica_manager(replicas._logs)
    with capture_logs() as lines:
        update(later, topic_id=uuid4())
    assert later.find("t", 0) is None
    assert "belongs to the topic with id" in lines[0]["reason"]


def test_new_settings_go_to_the_replicas_of_their_topics_and_are_worked_out_once_each(
    replicas: ReplicaManager,
) -> None:
    for topic in ("t", "u", "v"):
        for index in (0, 1):
            update(replicas, topic, index, uuid4())
    changed, asked = settings(retention_ms=5), []

    def config_of(topic: str) -> object:
        asked.append(topic)
        return changed

    replicas.update_configs({"t", "v", "gone"}, config_of)  # type: ignore[arg-type]  # notes the call
    assert {repr(p): p.log.config is changed for p in replicas} == {
        "t-0": True,
        "t-1": True,
        "u-0": False,
        "u-1": False,
        "v-0": True,
        "v-1": True,
    }
    assert sorted(asked) == ["t", "v"]


def test_a_deleted_topic_goes_with_all_its_replicas_and_tells_who_waits(
    replicas: ReplicaManager, logs: LogManager, tmp_path: Path
) -> None:
    other = uuid4()
    update(replicas, "t", 0)
    update(replicas, "t", 1)
    update(replicas, "u", 0, other)
    heard: list[str] = []
    first = replicas.find("t", 0)
    assert first is not None
    first.add_listener(lambda: heard.append("gone"))
    replicas.drop("t", T)
    assert [repr(p) for p in replicas] == ["u-0"]
    assert heard == ["gone"]
    assert list(logs.logs) == [("u", 0)]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["u-0"]


def test_the_later_topic_of_a_name_survives_news_of_the_earlier_ones_end(replicas: ReplicaManager) -> None:
    update(replicas)
    replicas.drop("t", uuid4())
    assert replicas.find("t", 0) is not None


def test_a_replica_whose_files_cannot_be_deleted_does_not_keep_the_others(
    replicas: ReplicaManager, logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(3):
        update(replicas, index=index)
    delete = logs.delete

    def failing(topic: str, partition: int) -> None:
        if partition == 1:
            raise StorageError("The disk is gone.")
        delete(topic, partition)

    monkeypatch.setattr(logs, "delete", failing)
    with capture_logs() as lines:
        replicas.drop("t", T)
    assert list(replicas) == []
    assert list(logs.logs) == [("t", 1)]
    assert lines[0]["event"] == "replica not deleted"


def test_high_watermarks_are_told_by_topic_and_partition(replicas: ReplicaManager) -> None:
    update(replicas)
    assert replicas.high_watermarks() == {("t", 0): 0}


def test_replicas_may_come_and_go_while_they_are_walked(replicas: ReplicaManager) -> None:
    for index in range(3):
        update(replicas, index=index)
    for _ in replicas:
        update(replicas, "u", 0, UUID(int=2))
        replicas.drop("t", T)
