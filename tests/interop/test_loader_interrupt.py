"""Ctrl-C ends a load in every phase: no process stays, one line is printed, nothing is changed (R29)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest
from tests.support.waiting import wait_until
from tests.unit.loader.batch_bytes import Record
from tests.unit.loader.fake_cluster import FETCH, FakeCluster

from mainstem.local.child_process import spawn

pytestmark = pytest.mark.processes

WITHIN_S: Final = 120
LINE: Final = "The load was interrupted. What was committed before stays; load again to continue.\n"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as running:
        running.topic("t").partitions[0].append([Record(0, 1_356_998_400_000, None, b'{"a":1}')])
        yield running


def has_jvm(process: subprocess.Popen[str]) -> bool:
    return bool(psutil.Process(process.pid).children())


@pytest.mark.parametrize(
    ("spark", "fetching"),
    [
        pytest.param(True, False, id="while Spark starts"),
        pytest.param(True, True, id="while a task of Spark fetches"),
        pytest.param(False, True, id="while a small load fetches"),
    ],
)
def test_an_interrupted_load_leaves_nothing_behind(
    cluster: FakeCluster, tmp_path: Path, spark: bool, fetching: bool
) -> None:
    if fetching:
        cluster.hold(FETCH)
    load = [sys.executable, "-m", "mainstem_loader", "t", "--bootstrap-servers", cluster.bootstrap_servers]
    process: subprocess.Popen[str] = spawn(
        [*load, "--warehouse", str(tmp_path), *(["--master", "local[1]"] if spark else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if spark:
            wait_until(lambda: has_jvm(process), "a JVM is started", WITHIN_S)
        if fetching:
            wait_until(lambda: any(key == FETCH for _, key, _ in cluster.asked), "a task fetches", WITHIN_S)
            assert has_jvm(process) == spark
        descendants = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=WITHIN_S)
    finally:
        process.kill()
        cluster.release()
    assert (process.returncode, out, err) == (130, "", LINE)
    _gone, alive = psutil.wait_procs(descendants, timeout=WITHIN_S)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
