"""Reading at the leaders, wherever they go (R13, R28)."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.loader.batch_bytes import Record
from tests.unit.loader.fake_cluster import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    NEWEST,
    FakeCluster,
    hang_up,
    send_half,
    talk_nonsense,
)

from mainstem_loader.errors import (
    BrokerUnreachableError,
    CorruptBatchError,
    LoaderError,
    OffsetsLostError,
    SettingsError,
    TopicRecreatedError,
    TopicUnknownError,
    UnsupportedBrokerError,
)
from mainstem_loader.kafka import leaders
from mainstem_loader.kafka.batches import Source
from mainstem_loader.kafka.decode import decode_records
from mainstem_loader.kafka.fetch import IsolationLevel, TopicReader
from mainstem_loader.kafka.leaders import BrokerSettings


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaders, "RETRY_PAUSE_MS", 1)


@pytest.fixture
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which patience runs out; in all others a busy machine must not end it."""
    monkeypatch.setattr(leaders, "FIRST_ANSWER_PATIENCE_MS", 20)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(brokers=2) as running:
        topic = running.topic("t", partitions=2)
        topic.partitions[0].append([Record(offset, offset, None, b"v%d" % offset) for offset in range(10)])
        topic.partitions[1].append([Record(offset) for offset in range(3)])
        topic.partitions[1].leader = 2
        yield running


def reader(cluster: FakeCluster, topic: str = "t", *, retry_ms: int = 30_000, **how: object) -> TopicReader:
    settings = BrokerSettings(cluster.bootstrap_servers, retry_ms=retry_ms)
    return TopicReader(settings, topic, **how)  # type: ignore[arg-type]


def values(open_reader: TopicReader, partition: int = 0, offset: int = 0) -> list[bytes]:
    decoded = decode_records(
        open_reader.fetch(partition, offset, 1 << 20), Source("t", partition), offset, 1000
    )
    return [row["value"] for block in decoded.blocks for row in block.to_pylist()]


def test_offsets_and_records_come_from_each_partitions_leader(cluster: FakeCluster) -> None:
    with reader(cluster) as open_reader:
        assert open_reader.offsets() == {0: (0, 10), 1: (0, 3)}
        assert values(open_reader, 0, 4) == [b"v%d" % offset for offset in range(4, 10)]
        assert values(open_reader, 1) == [b""] * 3
    assert {node for node, key, _ in cluster.asked if key == FETCH} == {1, 2}


def test_the_topics_id_is_printed_as_kafkas_tools_do(cluster: FakeCluster) -> None:
    with reader(cluster) as open_reader:
        assert len(open_reader.topic_id) == 22
        assert "=" not in open_reader.topic_id


@pytest.mark.parametrize(
    "versions",
    [
        {**NEWEST, FETCH: (4, 4), LIST_OFFSETS: (1, 2), METADATA: (0, 4)},
        {**NEWEST, FETCH: (4, 7), LIST_OFFSETS: (1, 5), METADATA: (0, 9)},
        {**NEWEST, FETCH: (4, 18), LIST_OFFSETS: (1, 11), METADATA: (0, 13)},
    ],
    ids=["oldest", "middle", "newer than ours"],
)
def test_old_and_new_brokers_are_read_in_a_version_both_speak(versions: dict[int, tuple[int, int]]) -> None:
    with FakeCluster(versions=versions) as cluster:
        cluster.topic("t").partitions[0].append([Record(0, 0, None, b"v")])
        with reader(cluster) as open_reader:
            assert open_reader.offsets() == {0: (0, 1)}
            assert values(open_reader) == [b"v"]
        spoken = {key: version for _, key, version in cluster.asked}
        assert all(
            spoken[key] == min(versions[key][1], NEWEST[key][1]) for key in (FETCH, LIST_OFFSETS, METADATA)
        )


def test_a_broker_without_topic_ids_is_known_by_the_topics_name() -> None:
    with FakeCluster(versions={**NEWEST, METADATA: (0, 9)}) as cluster:
        cluster.topic("t")
        with reader(cluster) as open_reader:
            assert open_reader.topic_id == "name:t"


def test_a_broker_too_new_or_too_old_is_named() -> None:
    with FakeCluster(versions={**NEWEST, FETCH: (18, 18)}) as cluster:
        cluster.topic("t")
        with (
            reader(cluster) as open_reader,
            pytest.raises(UnsupportedBrokerError, match="Fetch in versions 18 to 18"),
        ):
            open_reader.fetch(0, 0, 100)


def test_a_leader_that_moved_is_found_again(cluster: FakeCluster) -> None:
    with reader(cluster) as open_reader:
        assert len(values(open_reader)) == 10
        cluster.topics["t"].partitions[0].leader = 2
        assert len(values(open_reader)) == 10


def test_a_leader_that_died_is_replaced(cluster: FakeCluster) -> None:
    with reader(cluster) as open_reader:
        assert len(values(open_reader)) == 10
        cluster.stop_broker(1)
        cluster.topics["t"].partitions[0].leader = 2
        assert len(values(open_reader)) == 10
        assert open_reader.offsets() == {0: (0, 10), 1: (0, 3)}


@pytest.mark.parametrize("key", [FETCH, LIST_OFFSETS], ids=["fetch", "list offsets"])
@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.kafka_storage_error,
    ],
    ids=lambda error: error.name,
)
def test_errors_that_pass_are_waited_for(cluster: FakeCluster, key: int, error: ErrorCode) -> None:
    cluster.errors[key] = deque([error] * 3)
    with reader(cluster) as open_reader:
        assert open_reader.offsets() == {0: (0, 10), 1: (0, 3)}
        assert len(values(open_reader)) == 10


@pytest.mark.parametrize("fault", [hang_up, send_half], ids=["hangs up", "sends half"])
def test_a_broken_connection_is_made_anew(cluster: FakeCluster, fault: object) -> None:
    with reader(cluster) as open_reader:
        open_reader.offsets()
        cluster.misbehave.append(fault)  # type: ignore[arg-type]
        assert len(values(open_reader)) == 10


def test_waiting_for_a_leader_ends(cluster: FakeCluster) -> None:
    cluster.topics["t"].partitions[0].leader = -1
    with (
        reader(cluster, retry_ms=300) as open_reader,
        pytest.raises(
            BrokerUnreachableError,
            match=r"Partition 0 of topic t could not be read for 0.3 s .*no leader.*bring its leader",
        ),
    ):
        open_reader.fetch(0, 0, 100)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ErrorCode.offset_out_of_range, OffsetsLostError, "Offset 5 of partition 0 of topic t is gone"),
        (ErrorCode.corrupt_message, CorruptBatchError, "The broker says that the data of partition 0"),
        (ErrorCode.topic_authorization_failed, TopicUnknownError, "may not be read"),
        (ErrorCode.unsupported_version, UnsupportedBrokerError, "UNSUPPORTED_VERSION"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_errors_that_stay_end_the_run(
    cluster: FakeCluster, error: ErrorCode, kind: type[LoaderError], words: str
) -> None:
    cluster.errors[FETCH].append(error)
    with reader(cluster) as open_reader, pytest.raises(kind, match=words):
        open_reader.fetch(0, 5, 100)


def test_a_topic_made_anew_during_the_run_is_refused(cluster: FakeCluster) -> None:
    with reader(cluster) as open_reader:
        open_reader.offsets()
        cluster.topic("t", partitions=2)
        with pytest.raises(TopicRecreatedError, match="deleted and created anew while it was being loaded"):
            open_reader.offsets()
    with reader(cluster, topic_id="another") as open_reader, pytest.raises(TopicRecreatedError):
        open_reader.fetch(0, 0, 100)


def test_an_unknown_topic_is_named(cluster: FakeCluster) -> None:
    with (
        reader(cluster, "typo", retry_ms=300) as open_reader,
        pytest.raises(TopicUnknownError, match="no topic typo at 127"),
    ):
        open_reader.offsets()


def test_a_topic_that_was_just_made_is_waited_for(cluster: FakeCluster) -> None:
    cluster.errors[METADATA] = deque([ErrorCode.leader_not_available] * 2)
    with reader(cluster) as open_reader:
        assert len(open_reader.offsets()) == 2


def test_a_name_that_no_topic_can_have_is_refused(cluster: FakeCluster) -> None:
    cluster.errors[METADATA].append(ErrorCode.invalid_topic_exception)
    with reader(cluster) as open_reader, pytest.raises(SettingsError, match="cannot be the name of a topic"):
        open_reader.offsets()


@pytest.mark.usefixtures("_no_patience")
def test_nobody_listening_is_said_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        TopicReader(BrokerSettings(f"127.0.0.1:{port}"), "t") as open_reader,
        pytest.raises(
            BrokerUnreachableError, match=rf"No broker answers at 127.0.0.1:{port} .*start the cluster"
        ),
    ):
        open_reader.offsets()


def test_something_else_listening_is_said_in_one_sentence(cluster: FakeCluster) -> None:
    cluster.misbehave.append(talk_nonsense)
    with (
        reader(cluster) as open_reader,
        pytest.raises(UnsupportedBrokerError, match="is a Kafka-protocol broker"),
    ):
        open_reader.offsets()


@pytest.mark.parametrize(
    "servers", ["", "localhost", "localhost:", ":9092", "localhost:port", "localhost:99999", ","]
)
def test_what_is_no_bootstrap_server_is_refused(servers: str) -> None:
    with pytest.raises(SettingsError, match="write host:port"):
        TopicReader(BrokerSettings(servers), "t")


def test_one_dead_bootstrap_server_does_not_matter(cluster: FakeCluster, closed_port: int) -> None:
    with TopicReader(
        BrokerSettings(f"127.0.0.1:{closed_port}, {cluster.bootstrap_servers}"), "t"
    ) as open_reader:
        assert len(open_reader.offsets()) == 2


def test_reading_committed_ends_at_the_last_stable_offset(cluster: FakeCluster) -> None:
    """R12."""
    partition = cluster.topics["t"].partitions[0]
    partition.stable = 6
    partition.aborted = [(7, 2)]
    with reader(cluster, isolation=IsolationLevel.READ_COMMITTED) as open_reader:
        assert open_reader.offsets()[0] == (0, 6)
        assert [one.first_offset for one in open_reader.fetch(0, 0, 100).aborted] == [2]
    with reader(cluster, isolation=IsolationLevel.READ_UNCOMMITTED) as open_reader:
        assert open_reader.offsets()[0] == (0, 10)
        assert open_reader.fetch(0, 0, 100).aborted == ()


def test_samples_come_from_every_leader_in_one_request_each(cluster: FakeCluster) -> None:
    with reader(cluster) as open_reader:
        open_reader.offsets()
        before = len(cluster.asked)
        assert sorted(open_reader.sample({0: 0, 1: 0}, 1000)) == [0, 1]
        assert len([one for one in cluster.asked[before:] if one[1] == FETCH]) == 2
        cluster.errors[FETCH].append(ErrorCode.leader_not_available)
        assert open_reader.sample({0: 0}, 1000) == {}
