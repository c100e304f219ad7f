"""A consumer of the paper's client in a process of its own: `... paper_consumer_process CONFIG`.

CONFIG is JSON: `zookeeper`, `group`, `topic`, `settings` (those of `Consumer`). It reports what is delivered
to it as lines of JSON on standard output: `[asked, given, partition, offset]`, with the wall clock in ms
before it asked for a message and after it got it. SIGTERM makes it leave its group and end.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

from mainstem import Consumer


def main(config: dict[str, Any]) -> None:
    with Consumer(config["zookeeper"], config["group"], **config["settings"]) as consumer:
        stream = iter(consumer.create_message_streams(config["topic"], 1)[0])
        while True:
            asked_ms = time.time_ns() // 1_000_000
            message = next(stream)
            given_ms = time.time_ns() // 1_000_000
            sys.stdout.write(f"[{asked_ms},{given_ms},{message.partition},{message.offset}]\n")
            sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    main(json.loads(sys.argv[1]))
