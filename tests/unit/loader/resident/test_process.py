"""The resident loader on a fake cluster, without Spark (R30)."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.loader.batch_bytes import Record
from tests.unit.loader.fake_cluster import FakeCluster

from mainstem_loader.errors import LoaderError, SettingsError
from mainstem_loader.ranges import OffsetRange
from mainstem_loader.report import LoadOutcome, LoadReport, RangeCounts
from mainstem_loader.resident import process, schedule
from mainstem_loader.resident.configuration import RECORDS_AT_ONCE_MAX, ResidentTopic, topics_of
from mainstem_loader.resident.process import Resident, ResidentEnded, loading_with, serve_pages
from mainstem_loader.spark.executors import InProcessExecutor
from mainstem_loader.table.query import query
from mainstem_loader.totals import LoadTotals

NEW_YEAR_MS = 1_356_998_400_000
WITHIN_S = 60


class Running:
    """A resident loader in a thread, whose loads are counted."""

    def __init__(self, cluster: FakeCluster, folder: Path) -> None:
        self.cluster = cluster
        self.warehouse = folder / "tables"
        self.file = folder / "topics.json"
        self.is_alive = True
        self.ended: BaseException | None = None
        self._loaded = threading.Condition()
        self._counts: dict[str, int] = {}
        load = loading_with(InProcessExecutor())

        def counting(topic: ResidentTopic) -> LoadReport:
            assert topic.settings is not None
            try:
                return load(topic)
            finally:
                with self._loaded:
                    name = topic.settings.topic
                    self._counts[name] = self._counts.get(name, 0) + 1
                    self._loaded.notify_all()

        self.resident = Resident(self.file, counting, lambda: self.is_alive, workers=2)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.resident.run()
        except ResidentEnded as error:
            self.ended = error

    def name_topics(self, *names: str, **more: list[str]) -> None:
        entries = {
            name: {
                "freshnessSeconds": 5,
                "arguments": [
                    *(name, "--bootstrap-servers", self.cluster.bootstrap_servers),
                    *("--warehouse", str(self.warehouse), "--table", name, *more.get(name, [])),
                ],
            }
            for name in names
        }
        self.file.write_text(json.dumps({"topics": entries}))

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.resident.stop()
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(WITHIN_S)

    def after_load_of(self, name: str) -> None:
        """Wait until one more load of a topic has ended."""
        with self._loaded:
            before = self._counts.get(name, 0)
            assert self._loaded.wait_for(lambda: self._counts.get(name, 0) > before, WITHIN_S)

    def until(self, holds: Callable[[], bool], name: str) -> None:
        """Wait until something holds after some load of a topic."""
        for _ in range(20):
            if holds():
                return
            self.after_load_of(name)
        raise AssertionError(self.resident.page())

    def state(self, name: str) -> dict[str, Any]:
        topics: Any = self.resident.page()["topics"]
        found: dict[str, Any] = topics.get(name, {})
        return found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with FakeCluster() as cluster:
        found = Running(cluster, tmp_path)
        yield found
        found.resident.stop()


def send(cluster: FakeCluster, topic: str, value: bytes) -> None:
    partition = cluster.topics[topic].partitions[0]
    partition.append([Record(partition.end, NEW_YEAR_MS, None, value)])


def rows(running: Running, table: str) -> int:
    count: int = query(running.warehouse, f"SELECT count(*) AS n FROM {table}").to_pylist()[0]["n"]
    return count


def test_topics_are_loaded_as_records_come_and_a_failing_one_holds_up_no_other(running: Running) -> None:
    running.cluster.topic("clicks")
    send(running.cluster, "clicks", b'{"n": 1}')
    running.name_topics("clicks", "gone")
    running.start()
    running.until(lambda: running.state("clicks").get("rows") == 1, "clicks")
    send(running.cluster, "clicks", b'{"n": 2}')
    running.until(lambda: rows(running, "clicks") == 2, "clicks")
    running.until(lambda: bool(running.state("gone").get("message", "")), "gone")
    assert running.state("gone")["succeeded"] is False
    assert "gone" in running.state("gone").get("message", "")
    state = running.state("clicks")
    assert state["succeeded"] is True
    assert state["loadedUpToMs"] > NEW_YEAR_MS
    running.end()


def test_topics_come_and_go_with_the_file(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CONFIGURATION_PAUSE_S", 0.05)
    for name in ("clicks", "orders"):
        running.cluster.topic(name)
        send(running.cluster, name, b'{"n": 1}')
    running.name_topics("clicks")
    running.start()
    running.until(lambda: running.state("clicks").get("rows") == 1, "clicks")
    running.name_topics("orders")
    running.after_load_of("orders")
    assert running.state("clicks") == {}
    running.file.write_text("{")
    running.after_load_of("orders")  # a file that cannot be read changes nothing
    running.end()


def test_a_topic_with_wrong_arguments_says_so_and_the_others_are_loaded(running: Running) -> None:
    running.cluster.topic("clicks")
    running.name_topics("clicks", "orders", orders=["--column", "price=money"])
    running.start()
    running.after_load_of("clicks")
    assert "no column type 'money'" in running.state("orders").get("message", "")
    running.end()


def test_records_that_are_rejected_make_a_load_fail_and_the_next_is_well(running: Running) -> None:
    running.cluster.topic("clicks")
    send(running.cluster, "clicks", b"no json")
    running.name_topics("clicks")
    running.start()
    running.until(lambda: "were rejected" in running.state("clicks").get("message", ""), "clicks")
    running.until(lambda: bool(running.state("clicks").get("succeeded")), "clicks")
    assert running.state("clicks")["rejected"] == 1
    running.end()


def states_after(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reports: Sequence[LoadReport | LoaderError]
) -> list[dict[str, Any]]:
    """What the page says of a topic after each of these loads."""
    monkeypatch.setattr(schedule, "_pause_s", lambda _: 0.0)
    file = folder / "topics.json"
    arguments = ["clicks", "--bootstrap-servers", "localhost:1", "--warehouse", str(folder)]
    file.write_text(json.dumps({"topics": {"clicks": {"freshnessSeconds": 60, "arguments": arguments}}}))
    states: list[dict[str, Any]] = []
    left = list(reports)

    def load(topic: ResidentTopic) -> LoadReport:
        topics: Any = resident.page()["topics"]
        states.append(topics["clicks"])
        if not left:
            resident.stop()
            raise LoaderError("The test has ended.")
        report = left.pop(0)
        if isinstance(report, LoaderError):
            raise report
        return report

    resident = Resident(file, load, lambda: True, workers=1)
    monkeypatch.setattr(process, "CONFIGURATION_PAUSE_S", 0.05)
    resident.run()
    return states[1:]


def report_of(
    read: int, rejected: int, run_id: str = "r", up_to_ms: int | None = None, gap: int = 0
) -> LoadReport:
    totals = LoadTotals(run_id=run_id, loaded_up_to_ms=up_to_ms)
    if gap:
        totals.gaps.append(OffsetRange(0, 0, gap))
    totals.counts[0] = RangeCounts(OffsetRange(0, 0, read), read, read - rejected, rejected)
    return totals.report(
        LoadOutcome.LOADED, topic="clicks", topic_id="id", table="clicks", max_rejected_share=0.05
    )


def test_a_rejection_stays_until_a_load_that_reads_records_is_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R30: a load that finds nothing to read says nothing about the records before it."""
    reports: list[LoadReport | LoaderError] = [
        report_of(10, 5, "first"),
        report_of(0, 0, "idle"),
        LoaderError("The brokers are away."),
        report_of(4, 4, "second"),
        report_of(100, 1, "good"),
    ]
    states = states_after(tmp_path, monkeypatch, reports)
    rejections = [state["lastRejection"] for state in states]
    first = {"atMs": states[0]["finishedMs"], "runId": "first", "read": 10, "rejected": 5}
    assert rejections[:3] == [first, first, first]
    assert [state["succeeded"] for state in states] == [False, True, False, False, True]
    assert (rejections[3]["runId"], rejections[4]) == ("second", None)


def test_a_gap_is_on_the_page_until_a_load_reads_records_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R30: a load that finds nothing to read, or fails, says nothing of the records before it."""
    reports: list[LoadReport | LoaderError] = [
        report_of(0, 0, "idle"),
        report_of(10, 0, "first", gap=7),
        report_of(0, 0, "idle"),
        LoaderError("The brokers are away."),
        report_of(0, 0, "skips all", gap=3),
        report_of(4, 0, "good"),
    ]
    states = states_after(tmp_path, monkeypatch, reports)
    assert [state["gapRecords"] for state in states] == [0, 7, 7, 7, 3, 0]
    read_ms = [state["readMs"] for state in states]
    assert read_ms[0] is None
    assert read_ms[1:4] == [states[1]["finishedMs"]] * 3
    assert read_ms[4:] == [state["finishedMs"] for state in states[4:]]


def test_the_time_up_to_which_all_is_loaded_follows_the_table_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R30, R33: after a rewind, the first load of a backlog ends at an earlier time than the one before."""
    reports = [report_of(9, 0, up_to_ms=900), report_of(2, 0, up_to_ms=200), report_of(0, 0, up_to_ms=None)]
    states = states_after(tmp_path, monkeypatch, reports)
    assert [state["loadedUpToMs"] for state in states] == [900, 200, 200]


def test_a_hanging_transaction_is_a_warning_and_holds_back_the_time(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    """R12, R30: the log has the warning once, and the page while it holds."""
    running.cluster.topic("clicks")
    send(running.cluster, "clicks", b'{"n": 1}')
    running.cluster.topics["clicks"].partitions[0].stable = 0
    running.name_topics("clicks")
    running.start()
    running.until(lambda: bool(running.state("clicks").get("warnings")), "clicks")
    running.after_load_of("clicks")
    state = running.state("clicks")
    assert "find-hanging clicks" in state["warnings"][0]
    assert (state["loadedUpToMs"], state["succeeded"]) == (NEW_YEAR_MS, True)
    assert capsys.readouterr().out.count("find-hanging") == 1
    running.end()


def test_the_process_ends_when_spark_is_gone(running: Running) -> None:
    running.is_alive = False
    running.name_topics("gone")
    running.start()
    running.join()
    assert "Spark has ended" in str(running.ended)


def test_a_load_that_never_ends_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOAD_SECONDS_MAX", 0.1)
    monkeypatch.setattr(process, "CONFIGURATION_PAUSE_S", 0.05)
    file = tmp_path / "topics.json"
    arguments = ["clicks", "--bootstrap-servers", "localhost:1", "--warehouse", str(tmp_path)]
    file.write_text(json.dumps({"topics": {"clicks": {"freshnessSeconds": 60, "arguments": arguments}}}))
    forever = threading.Event()

    def never(topic: ResidentTopic) -> LoadReport:
        forever.wait()
        raise LoaderError("The test has ended.")

    with pytest.raises(ResidentEnded, match="has not ended"):
        Resident(file, never, lambda: True, workers=1).run()
    forever.set()


def test_the_page_is_served(running: Running) -> None:
    with serve_pages(0, running.resident.page) as port:
        base = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{base}/status") as answer:
            assert json.load(answer) == {"error": "", "topics": {}}
        with urllib.request.urlopen(f"{base}/healthz") as answer:
            assert answer.read() == b"ok"
        if socket.has_dualstack_ipv6():
            with urllib.request.urlopen(f"http://[::1]:{port}/healthz") as answer:
                assert answer.read() == b"ok"


def test_a_load_reads_no_more_than_its_turn() -> None:
    base = ["clicks", "--bootstrap-servers", "localhost:1", "--warehouse", "/tables"]
    entries = {
        "a": {"freshnessSeconds": 60, "arguments": base},
        "b": {"freshnessSeconds": 60, "arguments": [*base, "--max-records", "7"]},
    }
    found = topics_of(json.dumps({"topics": entries}))
    limits = {name: topic.settings and topic.settings.max_records for name, topic in found.items()}
    assert limits == {"a": RECORDS_AT_ONCE_MAX, "b": 7}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"topics": []}', '{"topics": {"a": {}}}'])
def test_a_file_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="not of its form"):
        topics_of(text)
