"""Members of groups as processes that a test starts, watches, stops and kills."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any, Final, Self

from tests.support.kafka_tools import tool_jars
from tests.support.waiting import PATIENCE_SECONDS, wait_until

from mainstem.local.child_process import spawn

PYTHON_KINDS: Final = ("confluent", "kafka-python", "aiokafka")
SESSION_MS: Final = 2_000
HEARTBEAT_MS_MAX: Final = 1_000  # by when a member hears of a rebalance, however long its session


class Member:
    """A running member. What it tells is kept: `events` in order, `records` as (partition, offset)."""

    def __init__(
        self,
        kind: str,
        servers: str,
        group: str,
        topic: str,
        *,
        assignor: str = "range",
        protocol: str = "classic",
        instance_id: str | None = None,
        session_ms: int = SESSION_MS,
        commit_waits: bool = True,
    ) -> None:
        self.kind = kind
        self.events: list[dict[str, Any]] = []
        self.records: list[tuple[int, int]] = []
        config: dict[str, Any] = {
            "kind": kind,
            "servers": servers,
            "group": group,
            "topic": topic,
            "assignor": assignor,
            "protocol": protocol,
            "session_ms": session_ms,
            "commit_waits": commit_waits,
            "heartbeat_ms": min(session_ms // 5, HEARTBEAT_MS_MAX),
        }
        if instance_id is not None:
            config["instance_id"] = instance_id
        if kind == "java":
            config["class_path"] = str(tool_jars())
        command = [sys.executable, "-m", "tests.support.group_member_process", json.dumps(config)]
        self.process = spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.complaints: list[str] = []
        self._complainer = threading.Thread(target=self._read_complaints, daemon=True)
        self._complainer.start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self._complainer.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def __repr__(self) -> str:
        """For a failing test: what it has come to, and its last words."""
        state = "runs" if self.process.poll() is None else f"ended with {self.process.returncode}"
        events = [event for event in self.events if "records" not in event]
        return "\n".join((f"{self.kind} {state}: {events[-6:]}", *self.complaints[-8:]))

    def _read_complaints(self) -> None:
        assert self.process.stderr is not None
        self.complaints += (line.rstrip() for line in self.process.stderr)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("}\n"):
                break  # SIGKILL cut it off
            event = json.loads(line)
            self.events.append(event)
            self.records += [(partition, offset) for partition, offset in event.get("records", ())]

    @property
    def owned(self) -> set[int]:
        """The partitions that it has by its own word."""
        owned: set[int] = set()
        for event in tuple(self.events):
            owned |= set(event.get("assigned", ()))
            owned -= {*event.get("revoked", ()), *event.get("lost", ())}
        return owned

    def told(self, name: str) -> list[list[int]]:
        """The values of all events with this name."""
        return [event[name] for event in self.events if name in event]

    def stop(self) -> None:
        """SIGTERM: it leaves its group, and its process ends.

        Raises:
            AssertionError: it does not.
        """
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"The member ({self.kind}) does not end.") from None
        self._reader.join()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._reader.join()


def share_evenly(members: list[Member], partitions: int) -> None:
    """Wait until the members own all partitions between them, each its fair share, none two of them.

    Raises:
        AssertionError: it does not come to that.
    """

    def is_shared() -> bool:
        owned = [member.owned for member in members]
        sizes = [len(one) for one in owned]
        return (
            set().union(*owned) == set(range(partitions))
            and sum(sizes) == partitions
            and (max(sizes) - min(sizes) <= 1)
        )

    try:
        wait_until(is_shared, f"{len(members)} members share {partitions} partitions")
    except AssertionError as error:
        raise AssertionError("\n".join((str(error), *map(repr, members)))) from None
