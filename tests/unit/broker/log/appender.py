"""A process that appends and flushes until it is killed: `python -m ...appender DIRECTORY`.

Each batch holds three records, each with its own offset as value. After an append its last offset is written
to standard output, as a broker acknowledges it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, messages, settings

from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.protocol.batches import parse_batch_header

CONFIG = settings(segment_bytes=2000, index_interval_bytes=200)


def main(directory: Path) -> None:
    log = PartitionLog.open(
        directory, CONFIG, clean_shutdown=False, recovery_point=0, log_start_offset=0, now_ms=NOW_MS
    )
    epoch = log.epochs.latest_epoch + 1
    while True:
        offset = log.log_end_offset
        batch = encode_batch(messages([b"%d" % (offset + number) for number in range(3)], NOW_MS + offset))
        info = log.append_as_leader(batch, parse_batch_header(batch), epoch, NOW_MS)
        os.write(1, b"%d\n" % info.last_offset)
        if log.flush_is_due(NOW_MS):
            log.mark_flushed(log.flush())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
