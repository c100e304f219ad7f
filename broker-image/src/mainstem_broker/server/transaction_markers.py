"""Sends the markers of ended transactions to the brokers that lead the partitions (WriteTxnMarkers).

Belongs here: which broker gets which markers, connections and repetitions. What is decided about transactions
belongs to `txn`, writing a marker to `api/write_txn_markers.py`.

A broker is sent one request at a time; markers that come up meanwhile share the next one. A marker that fails
is sent again after a pause, to the broker that leads then, until it is replicated or its topic is deleted:
the transaction's outcome is certain, and readers of the partition wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import structlog

from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.errors import InvalidProducerEpoch, PeerUnavailable
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.protocol.wire import Body, Entity
from mainstem_broker.server.peers import Peer
from mainstem_broker.txn.markers import Markers

logger = structlog.get_logger(__name__)

WRITE_TXN_MARKERS_KEY: Final = 27
VERSION: Final = 2
"""Carries the version of the client's protocol, by which a late marker cannot end the next transaction."""
RETRY_PAUSE_S: Final = 0.1
"""Before a marker is sent again: an election takes about as long."""
PARTITIONS_AT_ONCE_MAX: Final = 5_000
"""Markers in one request: a bound of the work that the other broker does at once."""
WARNING_INTERVAL_S: Final = 10.0


class _Job:
    """The markers of one transaction: `remaining` are those that are not known to be written."""

    __slots__ = ("done", "is_stopped", "markers", "remaining", "warned_s")

    def __init__(self, markers: Markers, done: Callable[[], None]) -> None:
        self.markers = markers
        self.remaining = set(markers.partitions)
        self.done = done
        self.is_stopped = False
        self.warned_s = float("-inf")

    def finish(self, partition: TopicPartition) -> None:
        if self.is_stopped or partition not in self.remaining:
            return
        self.remaining.discard(partition)
        if not self.remaining:
            self.is_stopped = True
            self.done()


_Batch = list[tuple[_Job, TopicPartition]]


class TransactionMarkers:
    """Implements `MarkerWriter`. `connect` makes the connection to a broker; `catch_up` hears the latest
    news, and returns whether it did."""

    def __init__(
        self, view: ClusterView, connect: Callable[[int], Peer], catch_up: Callable[[], Awaitable[bool]]
    ) -> None:
        self._view = view
        self._connect = connect
        self._catch_up = catch_up
        self._queues: dict[int, _Batch] = {}
        self._senders: dict[int, asyncio.Task[None]] = {}
        self._peers: dict[int, Peer] = {}
        self._checks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()

    def write(self, markers: Markers, done: Callable[[], None]) -> Callable[[], None]:
        job = _Job(markers, done)

        def stop() -> None:
            job.is_stopped = True

        if job.remaining:
            self._route([(job, partition) for partition in sorted(job.remaining)])
        else:
            job.is_stopped = True
            done()
        return stop

    async def stop(self) -> None:
        """Send nothing any more."""
        tasks = [*self._senders.values(), *self._checks]
        for timer in self._timers:
            timer.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            peer.close()

    # --- Which broker ---

    def _route(self, batch: _Batch) -> None:
        later: _Batch = []
        unknown: _Batch = []
        for job, (name, index) in batch:
            if job.is_stopped:
                continue
            if name in self._view.stopped_topics:  # what is known of it is out of date
                later.append((job, (name, index)))
                continue
            topic = self._view.topics.get(name)
            if topic is None or index not in topic.assignment.replicas:
                unknown.append((job, (name, index)))
                continue
            state = topic.states.get(index)
            if state is None or state.leader not in self._view.brokers:
                later.append((job, (name, index)))
                continue
            self._queues.setdefault(state.leader, []).append((job, (name, index)))
            if state.leader not in self._senders:
                sender = asyncio.create_task(self._send_all(state.leader))
                self._senders[state.leader] = sender
        if later:
            self._retry(later)
        if unknown:
            check = asyncio.create_task(self._check_deleted(unknown))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _check_deleted(self, batch: _Batch) -> None:
        """Drop markers for partitions that are gone. A new topic may only not be known here yet."""
        if not await self._catch_up():
            self._retry(batch)  # a view that is out of date proves no deletion
            return
        exists: _Batch = []
        for job, (name, index) in batch:
            topic = self._view.topics.get(name)
            is_stopped = name in self._view.stopped_topics
            if not is_stopped and (topic is None or index not in topic.assignment.replicas):
                job.finish((name, index))
            else:
                exists.append((job, (name, index)))
        self._route(exists)

    def _retry(self, batch: _Batch) -> None:
        def again() -> None:
            self._timers.discard(timer)
            self._route(batch)

        timer = asyncio.get_running_loop().call_later(RETRY_PAUSE_S, again)
        self._timers.add(timer)

    # --- Sending ---

    async def _send_all(self, broker_id: int) -> None:
        """Send what is queued for a broker, until nothing is."""
        try:
            while queue := self._queues.pop(broker_id, None):
                if rest := queue[PARTITIONS_AT_ONCE_MAX:]:
                    self._queues[broker_id] = rest
                batch = [item for item in queue[:PARTITIONS_AT_ONCE_MAX] if not item[0].is_stopped]
                if not batch:
                    continue
                try:
                    await self._send(broker_id, batch)
                except Exception:
                    logger.exception("transaction markers not sent", broker=broker_id)
                    self._retry(batch)
        finally:
            del self._senders[broker_id]

    async def _send(self, broker_id: int, batch: _Batch) -> None:
        peer = self._peers.get(broker_id)
        if peer is None:
            peer = self._peers[broker_id] = self._connect(broker_id)
        jobs = list(dict.fromkeys(job for job, _ in batch))
        partitions: dict[_Job, list[TopicPartition]] = {job: [] for job in jobs}
        for job, partition in batch:
            partitions[job].append(partition)
        try:
            answer = await peer.ask(
                WRITE_TXN_MARKERS_KEY,
                VERSION,
                {"markers": [_marker(job.markers, partitions[job]) for job in jobs]},
            )
        except PeerUnavailable as error:
            self._failed(batch, f"broker {broker_id}: {error}")
            return
        # An answer names producers, of which two transactions in a row may be in one request: go by the
        # order.
        failed: _Batch = []
        answers = list(answer.markers)
        for job, marker in zip(jobs, answers, strict=False):
            codes = _codes(marker)
            for partition in partitions[job]:
                code = codes.get(partition, -1)
                if code in (0, InvalidProducerEpoch.code):
                    # The log has a later epoch of the producer: the transaction cannot be open there.
                    job.finish(partition)
                else:
                    failed.append((job, partition))
        for job in jobs[len(answers) :]:
            failed += [(job, partition) for partition in partitions[job]]
        if failed:
            self._failed(failed, f"broker {broker_id} answered errors")

    def _failed(self, batch: _Batch, reason: str) -> None:
        now_s = asyncio.get_running_loop().time()
        for job in {job for job, _ in batch}:
            if not job.is_stopped and now_s - job.warned_s >= WARNING_INTERVAL_S:
                job.warned_s = now_s
                logger.warning(
                    "transaction markers not written yet",
                    producer_id=job.markers.producer_id,
                    epoch=job.markers.epoch,
                    partitions=len(job.remaining),
                    reason=reason,
                )
        self._retry(batch)


def _marker(markers: Markers, partitions: Iterable[TopicPartition]) -> Body:
    by_topic: dict[str, list[int]] = {}
    for name, index in partitions:
        by_topic.setdefault(name, []).append(index)
    return {
        "producer_id": markers.producer_id,
        "producer_epoch": markers.epoch,
        "transaction_result": markers.is_commit,
        "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in by_topic.items()],
        "coordinator_epoch": markers.coordinator_epoch,
        "transaction_version": markers.client_version,
    }


def _codes(marker: Entity) -> Mapping[TopicPartition, int]:
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in marker.topics
        for partition in topic.partitions
    }
