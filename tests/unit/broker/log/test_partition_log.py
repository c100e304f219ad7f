"""Closing, opening and deleting a log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.unit.broker.log.followed_logs import SIZE_BYTES
from tests.unit.broker.log.logs import NOW_MS, append, settings

from mainstem_broker.log.deletion import unlink_all
from mainstem_broker.log.partition_log import PartitionLog


def test_a_deleted_log_is_renamed_at_once_and_removed_later(tmp_path: Path) -> None:
    scheduled: list[tuple[Sequence[Path], int]] = []
    log = PartitionLog.open(
        tmp_path / "flights-3",
        settings(file_delete_delay_ms=60_000),
        clean_shutdown=True,
        recovery_point=0,
        log_start_offset=0,
        now_ms=NOW_MS,
        schedule_unlink=lambda paths, delay_ms: scheduled.append((paths, delay_ms)),
    )
    append(log, [b"x"])
    fetched = log.read(0, 1000, 1, True)
    log.delete()
    (renamed,) = tmp_path.iterdir()
    assert renamed.name.startswith("flights-3.")
    assert renamed.name.endswith("-delete")
    assert scheduled == [([renamed], 60_000)]
    unlink_all([renamed])
    assert fetched.slice is not None
    assert len(fetched.slice.read()) == SIZE_BYTES
