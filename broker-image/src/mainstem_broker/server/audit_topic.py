"""The audit log as records of a topic: JSON with the fields of the log's lines, the time and the broker.

Records wait in memory until a leader of the topic has stored them, which is asked over the listener between
brokers, also if it is this broker itself. One whose answer was lost is stored twice. What cannot be stored in
time, or would be too much, is left out and counted in the log, which has every line anyway: nothing that a
client asks for ever waits for the audit topic.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.errors import PeerUnavailable
from mainstem_broker.protocol.batches import make_batch
from mainstem_broker.server.peers import Peer

logger = structlog.get_logger(__name__)

PRODUCE_KEY: Final = 0
PRODUCE_VERSION: Final = 11
"""The last that names topics, which may be created again while records wait."""
AUDIT_TIMEOUT_S: Final = 10.0
RECORDS_WAITING_MAX: Final = 10_000
BATCH_BYTES_MAX: Final = 256 * 1024
"""A quarter of what a topic takes by default."""
LINGER_S: Final = 0.2
RETRY_S: Final = 1.0
TRIES_MAX: Final = 30
"""Half a minute, in which a partition gets another leader."""
STOP_S_MAX: Final = 2.0


class AuditTopic:
    """`connect` makes the connection to a broker. Belongs to the event loop."""

    def __init__(self, topic: str, broker_id: int, view: ClusterView, connect: Callable[[int], Peer]) -> None:
        self._topic = topic
        self._broker_id = broker_id
        self._view = view
        self._connect = connect
        self._peers: dict[int, Peer] = {}
        self._waiting: deque[bytes] = deque()
        self._left_out = 0
        self._batches = 0
        self._is_stopped = False
        self._sending: asyncio.Task[None] | None = None

    def add(self, line: dict[str, str | int]) -> None:
        """Take a line of the audit log. Returns at once."""
        if self._is_stopped or len(self._waiting) >= RECORDS_WAITING_MAX:
            self._left_out += 1
            return
        now_ms = int(time.time() * 1000)
        value = json.dumps({"time": now_ms, "broker": self._broker_id, **line})
        self._waiting.append(value.encode())
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def stop(self) -> None:
        """Send what waits, if that is possible soon. What comes later is only in the log."""
        self._is_stopped = True
        sending = self._sending
        if sending is not None:
            with suppress(TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(sending, STOP_S_MAX)
        self._report(len(self._waiting))
        self._waiting.clear()
        for peer in self._peers.values():
            peer.close()

    async def _send_all(self) -> None:
        """Send until nothing waits."""
        try:
            while self._waiting:
                await asyncio.sleep(LINGER_S)
                values = self._next_values()
                is_stored = await self._send(values)
                for _ in values:
                    self._waiting.popleft()
                self._report(0 if is_stored else len(values))
        except Exception:  # a defect here must not end what clients ask for
            logger.exception("audit records not stored")
            self._waiting.clear()
        finally:
            self._sending = None

    def _next_values(self) -> list[bytes]:
        """What goes into one batch: at least one record."""
        values: list[bytes] = []
        size_bytes = 0
        for value in self._waiting:
            size_bytes += len(value)
            if values and size_bytes > BATCH_BYTES_MAX:
                break
            values.append(value)
        return values

    async def _send(self, values: Sequence[bytes]) -> bool:
        """Whether a leader has stored them."""
        now_ms = int(time.time() * 1000)
        batch = make_batch([(None, value, ()) for value in values], now_ms)
        for attempt in range(TRIES_MAX):
            if attempt:
                await asyncio.sleep(RETRY_S)
            reason = await self._try(batch, self._batches + attempt)
            if not reason:
                self._batches += 1
                return True
            if attempt == 0:
                logger.warning("audit records wait", topic=self._topic, reason=reason)
        return False

    async def _try(self, batch: bytes, turn: int) -> str:
        """Why the batch was not stored, or nothing."""
        place = self._leader(turn)
        if place is None:
            return f"No partition of {self._topic} has a leader; create the topic if there is none."
        partition, leader = place
        peer = self._peers.get(leader)
        if peer is None:
            peer = self._peers[leader] = self._connect(leader)
        data = {"name": self._topic, "partition_data": [{"index": partition, "records": batch}]}
        request = {
            "transactional_id": None,
            "acks": -1,
            "timeout": int(AUDIT_TIMEOUT_S * 1000),
            "topic_data": [data],
        }
        try:
            answer = await peer.ask(PRODUCE_KEY, PRODUCE_VERSION, request)
        except PeerUnavailable as error:
            return str(error)
        ((response,),) = [topic.partition_responses for topic in answer.responses]
        code = int(response.error_code)
        return "" if code == 0 else f"The leader answered error {code}."

    def _leader(self, turn: int) -> tuple[int, int] | None:
        """The partition of a batch, and who leads it: all that have a leader take turns."""
        topic = self._view.topics.get(self._topic)
        if topic is None:
            return None
        led = [
            (partition, state.leader)
            for partition, state in sorted(topic.states.items())
            if state.leader in self._view.brokers
        ]
        return led[turn % len(led)] if led else None

    def _report(self, more: int) -> None:
        left_out, self._left_out = self._left_out + more, 0
        if left_out:
            logger.warning("audit records left out of the topic", topic=self._topic, count=left_out)
