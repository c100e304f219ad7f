"""`mainstem load`, `sql` and `demo`: from a topic to answers (R28, R29, R30, R36)."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.clusters import SharedCluster
from tests.support.command_line import (
    MAINSTEM,
    environment,
    mainstem,
    mainstem_fails,
    mainstem_fails_here,
    mainstem_here,
    mainstem_json,
    mainstem_json_here,
)
from tests.support.topics import TopicFactory
from tests.support.waiting import wait_until

from mainstem.records.flights import BROKEN_EVENTS, FLIGHT_COUNT
from mainstem_loader.table.query import query

EVENTS = [
    {"user": "ada", "amount": 5, "at": "2026-01-31T10:00:00Z"},
    {"user": "bob", "amount": 7, "at": "2026-01-31T23:59:59Z"},
    {"user": "ada", "amount": 11, "at": "2026-02-01T00:00:00Z"},
]


def as_lines(events: list[Any]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def answer_of(warehouse: Path, statement: str) -> Any:
    """By the command."""
    return json.loads(mainstem("sql", statement, "--warehouse", warehouse, "-o", "json").stdout)


def rows_of(warehouse: Path, statement: str) -> list[dict[str, Any]]:
    return query(warehouse, statement).to_pylist()


def test_a_topic_is_loaded_by_day_and_queried_and_loaded_on(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic(partitions=2, prefix="purchases-of-a-day")
    place = ["--warehouse", str(tmp_path), "--table", "purchases"]
    mainstem_here("produce", topic, "--timestamp-field", "at", cluster=local_stack, stdin=as_lines(EVENTS))
    report = mainstem_json_here("load", topic, *place, cluster=local_stack)
    assert (report["outcome"], report["loaded"], report["dead_lettered"]) == ("loaded", 3, 0)
    assert report["days"] == ["2026-01-31", "2026-02-01"]
    statement = "SELECT user, sum(amount) AS total FROM purchases GROUP BY user ORDER BY user"
    assert answer_of(tmp_path, statement) == [{"user": "ada", "total": 16}, {"user": "bob", "total": 7}]

    mainstem_here("produce", topic, cluster=local_stack, stdin=b'{"user": "eve", "amount": 1}\n{"user": \n')
    ended = mainstem_here(
        "load", topic, *place, "--cores", "1", "--max-rejected-percent", "50", cluster=local_stack
    )
    assert "Loaded 1 record of" in ended.stderr.decode()
    assert "1 record did not parse" in ended.stderr.decode()
    assert answer_of(tmp_path, "SELECT count(*) AS rows FROM purchases") == [{"rows": 4}]
    (dead,) = answer_of(tmp_path, "SELECT topic, value, error FROM dead_letters")
    assert dead["topic"] == topic
    assert dead["value"] == '{"user": '

    again = mainstem_here("load", topic, *place, cluster=local_stack)
    assert "nothing to load" in again.stderr.decode()
    unknown = mainstem_fails("sql", "SELECT users FROM purchases", "--warehouse", tmp_path, exit_code=2)
    assert re.search(r"Table purchases has .*\buser\b.*\bamount\b", unknown)
    tables = mainstem("sql", "--warehouse", tmp_path).stdout.decode().splitlines()
    assert [line.split() for line in tables[1:]] == [["dead_letters", "1"], ["purchases", "4"]]


def test_a_load_of_dead_letters_only_is_no_success(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    """R30, R36: whether the rejected share fails the load or not."""
    for allowed, exit_code in (("5", 3), ("100", 0)):
        topic = new_topic()
        mainstem_here("produce", topic, cluster=local_stack, stdin=b"no JSON\n")
        how = ("-w", tmp_path, "--max-rejected-percent", allowed)
        ended = mainstem_here("load", topic, *how, cluster=local_stack, exit_code=exit_code)
        said = " ".join(ended.stderr.decode().split())
        assert f"✗ None of 1 record of {topic} could be loaded into table" in said
        assert "✓" not in said + ended.stdout.decode()


def test_what_was_loaded_is_loaded_again(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    """R33: a wrong event time is put right, dead letters are replayed, a day is replaced, a topic rewound."""
    topic = new_topic(prefix="loaded-again")
    place = ["--warehouse", str(tmp_path), "--table", "again"]
    days = ["2026-01-31", "2026-02-01"]
    events = [{"at": f"{day}T10:00:00Z", "n": n} for n, day in enumerate(days)] + [{"at": "soon", "n": 2}]
    mainstem_here("produce", topic, cluster=local_stack, stdin=as_lines(events))
    strict = ["--event-time", "at", "--max-rejected-percent", "50"]
    assert mainstem_json_here("load", topic, *place, *strict, cluster=local_stack)["dead_lettered"] == 1
    status = mainstem_json_here("load", "status", topic, *place, cluster=local_stack)
    (partition,) = status["partitions"]
    assert (partition["loaded_up_to"], partition["lag"], partition["dead_letters"]) == (3, 0, 1)
    assert status["last_run"]["loaded"] == 2

    assert mainstem_json_here("load", "replay-dead", topic, *place, cluster=local_stack)["loaded"] == 1
    again = mainstem_here("load", "replay-dead", topic, *place, cluster=local_stack)
    assert "has no dead letters" in again.stderr.decode()
    count = "SELECT count(*) AS rows FROM again"
    assert rows_of(tmp_path, count) == [{"rows": 3}]

    day = ["--day", days[0], *strict]
    report = mainstem_json_here("load", "backfill", topic, *place, *day, "--replace", cluster=local_stack)
    assert (report["removed"], report["loaded"], report["days"]) == (1, 1, [days[0]])
    assert mainstem_json_here("load", "backfill", topic, *place, "--all", cluster=local_stack)["loaded"] == 0
    assert rows_of(tmp_path, count) == [{"rows": 3}]

    rewound = mainstem_json_here("load", "rewind", topic, *place, "--to", "earliest", cluster=local_stack)
    assert (rewound["removed"], rows_of(tmp_path, count)) == (3, [{"rows": 0}])
    assert mainstem_json_here("load", topic, *place, cluster=local_stack)["loaded"] == 3
    sentence = mainstem_fails_here("load", "backfill", topic, *place, cluster=local_stack, exit_code=2)
    assert sentence == "Choose what to load again: --day, --from and --to, --offsets, or --all."


def test_many_small_files_are_merged_and_say_the_same(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic(prefix="small-files")
    place = ["--warehouse", str(tmp_path), "--table", "purchases"]
    for event in EVENTS[:2] * 2:
        mainstem_here(
            "produce", topic, "--timestamp-field", "at", cluster=local_stack, stdin=as_lines([event])
        )
        assert mainstem_json_here("load", topic, *place, cluster=local_stack)["loaded"] == 1
    report = mainstem_json("load", "maintain", topic, *place, cluster=local_stack)
    assert (report["days"], report["files_before"], report["files_after"]) == (["2026-01-31"], 4, 1)
    assert rows_of(tmp_path, "SELECT count(*) AS n, sum(amount) AS s FROM purchases") == [{"n": 4, "s": 24}]
    again = mainstem("load", "maintain", topic, *place, cluster=local_stack)
    assert "No small files of table purchases were worth a merge." in again.stderr.decode()
    assert "nothing to load" in mainstem_here("load", topic, *place, cluster=local_stack).stderr.decode()
    sentence = mainstem_fails("load", "maintain", "other", "--warehouse", tmp_path)
    assert sentence == "There is no table other; load the topic first."


def test_an_unknown_topic_is_answered_with_similar_names(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic(prefix="to-be-loaded")
    similar = topic.replace("loaded", "loadet")
    sentence = mainstem_fails_here("load", similar, "-w", tmp_path, cluster=local_stack, exit_code=2)
    assert sentence == f"There is no topic {similar}: did you mean {topic}?"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT * FROM nothing", "There is no table nothing"),
        ("DROP TABLE nothing", "is no question"),
        ("SELECT 1 +", "cannot be answered"),
        ("", "There are no tables"),
    ],
)
def test_a_query_that_cannot_be_answered_is_refused(statement: str, message: str, tmp_path: Path) -> None:
    assert message in mainstem_fails("sql", statement, "--warehouse", tmp_path, exit_code=2)


@pytest.mark.processes
def test_the_demo_goes_on_after_being_killed_and_does_nothing_twice(tmp_path: Path) -> None:
    command = [*MAINSTEM, "demo", "--data", str(tmp_path / "demo"), "--output", "json"]
    logs = tmp_path / "demo" / "stack"
    said = tmp_path / "said"
    with (
        said.open("wb") as file,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, env=environment()) as killed,
    ):

        def some_are_stored() -> bool:
            assert killed.poll() is None, f"It ended by itself: {said.read_text()}"
            return sum(log.stat().st_size for log in logs.glob("broker-*/data/flights-*/*.log")) > 2_000_000

        wait_until(some_are_stored, "some events are stored", step_seconds=0.005)
        killed.send_signal(signal.SIGKILL)

    def run() -> dict[str, Any]:
        ended = subprocess.run(command, capture_output=True, env=environment(), timeout=300, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        account: dict[str, Any] = json.loads(ended.stdout)
        return account

    second = run()
    year, day = second["batches"]
    assert 0 < year["sent"] < FLIGHT_COUNT
    assert (year["stored"], year["loaded"], year["rejected"]) == (FLIGHT_COUNT, FLIGHT_COUNT, 0)
    assert day["stored"] == FLIGHT_COUNT + day["events"]
    assert (day["loaded"], day["rejected"]) == (day["events"] - len(BROKEN_EVENTS), len(BROKEN_EVENTS))
    third = run()
    assert [(batch["sent"], batch["loaded"], batch["rejected"]) for batch in third["batches"]] == [
        (0, 0, 0)
    ] * 2
    assert third["table"] == second["table"]
    assert third["answers"] == second["answers"]
