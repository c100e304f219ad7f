"""What `mainstem log transactions` shows of a partition (R9)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.log.logs import NOW_MS, append, open_log, settings
from tests.unit.broker.log.transactional import abort, commit, write

from mainstem_broker.log.dump import NotALog
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.transaction_history import ProducerInLog, TransactionInLog, read_history


def test_open_and_aborted_transactions_and_producers_are_shown(log: PartitionLog) -> None:
    append(log, [b"of no producer"])
    write(log, 7, 3)  # 1 to 3
    write(log, 8)  # 4
    abort(log, 7)  # 5
    commit(log, 8)  # 6
    write(log, 8, epoch=1)  # 7
    write(log, 8, 2, epoch=1)  # 8, 9
    log.close()
    history = read_history(log.directory)
    assert history.open == {8: TransactionInLog(8, 1, 7, 9, NOW_MS + 1)}
    assert history.aborted == [TransactionInLog(7, 0, 1, 5, NOW_MS)]
    assert history.committed_count == 1
    assert history.producers == {
        7: ProducerInLog(7, 0, -1, 5, NOW_MS),
        8: ProducerInLog(8, 1, 2, 9, NOW_MS + 1),
    }
    assert history.problems == []


def test_a_transaction_that_began_below_the_start_of_the_log_is_in_its_snapshot(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings(segment_bytes=1))
    write(log, 7)
    write(log, 8)
    append(log, [b"x"])
    log.close()
    for path in log.directory.glob(f"{0:020d}.*"):
        path.unlink()
    history = read_history(log.directory)
    assert sorted(history.open) == [7, 8]
    assert history.open[7] == TransactionInLog(7, 0, 0, 0, -1)
    assert history.problems == []


def test_a_damaged_batch_is_reported(log: PartitionLog, tmp_path: Path) -> None:
    write(log, 7)
    log.close()
    path = log.segments[0].path(".log")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    (problem,) = read_history(log.directory).problems
    assert "does not match its checksum" in problem.sentence
    with pytest.raises(NotALog):
        read_history(tmp_path / "missing")
