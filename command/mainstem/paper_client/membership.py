"""A consumer in its group: a thread that keeps to its slice of the topic (§3.2, Algorithm 1), and commits.

It alone writes to the registries and hands partitions to streams. What to do is computed by `slices.py`;
here it is done: release what is no longer ours, claim what is, and if a partition is still another's,
release everything, wait, and try again, so many times.

Streams deliver only while our session lasts for sure: it lasts at least its length from the last question
that ZooKeeper answered, and three quarters of that are granted to them. A process that was stopped, or cut
off, finds its time over when it goes on, before it delivers what another owns by then. (The paper does not
ask for that; brokers here hold their offices in the same way.)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import Final

from mainstem.paper_client.errors import ClientError, RebalanceFailed
from mainstem.paper_client.settings import ConsumerSettings
from mainstem.paper_client.slices import plan
from mainstem.paper_client.stream import MessageStream
from mainstem.paper_client.znodes import GroupPaths
from mainstem.paper_client.zookeeper import GroupSession, NoAnswer, OwnedByAnother, RegistrationGone

logger = logging.getLogger(__name__)

_RENEWAL_SHARE: Final = 0.2  # of a session's length: how often it is checked
_DELIVERY_SHARE: Final = 0.75  # of it: how long streams deliver after an answer
_RETRY_SECONDS: Final = 0.2  # after an answer that did not come; kazoo reconnects by itself meanwhile


class Membership:
    """The life of a consumer from `start` to `stop`. It ends its streams when its own life ends."""

    def __init__(
        self,
        zookeeper_connect: str,
        paths: GroupPaths,
        name: str,
        streams: Sequence[MessageStream],
        settings: ConsumerSettings,
    ) -> None:
        self._streams = streams
        self._settings = settings
        self._session = GroupSession(
            zookeeper_connect,
            paths,
            name,
            settings.zookeeper_session_timeout_ms,
            on_change=self._on_change,
            on_lost=self._on_lost,
        )
        self._thread = threading.Thread(target=self._run, name=f"consumer of {paths.topic}", daemon=True)
        self._writing = threading.Lock()  # a commit that the user asks for comes from the user's thread
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._changed = True
        self._registered = False
        self._held: dict[int, int] = {}
        """The stream that reads each partition of ours."""
        self._to_release: dict[int, int | None] = {}
        """Partitions that no stream reads but whose node may be ours; the next offset of each."""
        self._committed: dict[int, int] = {}

    def start(self) -> None:
        """Register, and go on in a thread.

        Raises:
            ZooKeeperUnreachable: no answer in time.
        """
        self._session.start()
        self._thread.start()

    def stop(self) -> None:
        """Commit, release, leave. Twice does no harm."""
        self._stopping.set()
        self._wake.set()
        # ZooKeeper may be away; then our nodes go with the session.
        self._thread.join(self._settings.zookeeper_session_timeout_ms / 1000)
        self._session.stop()
        self._thread.join()

    def commit(self) -> None:
        """Write the positions that changed to the offset registry.

        Raises:
            KazooException, RegistrationGone: see `GroupSession.store`.
        """
        with self._writing:
            for stream in self._streams:
                for partition, position in stream.positions().items():
                    if partition in self._held and self._committed.get(partition) != position:
                        self._session.store(partition, position)
                        self._committed[partition] = position

    # Called by kazoo, in its thread

    def _on_change(self) -> None:
        self._changed = True
        self._wake.set()

    def _on_lost(self) -> None:
        self._registered = False
        self._wake.set()

    # The thread

    def _run(self) -> None:
        failure: Exception | None = None
        try:
            self._live()
        except ClientError as error:
            failure = error
        except Exception as error:
            logger.exception("A consumer ends by an error that was not foreseen.")
            failure = error
        for stream in self._streams:
            stream.end(failure)
        try:
            with self._writing:
                self._take_from_streams(tuple(self._held))
                self._release_rest()
            self._session.unregister()
        except (*NoAnswer, RegistrationGone):
            pass  # our nodes go with the session
        for stream in self._streams:
            stream.close()
        if failure is not None:
            self._session.stop()

    def _live(self) -> None:
        interval_seconds = self._settings.auto_commit_interval_ms / 1000
        renewal_seconds = self._settings.zookeeper_session_timeout_ms / 1000 * _RENEWAL_SHARE
        next_commit = time.monotonic() + interval_seconds
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                if not self._registered:
                    self._join()
                self._renew()
                if self._changed:
                    self._changed = False
                    self._rebalance()
                if time.monotonic() >= next_commit:
                    self.commit()
                    next_commit = time.monotonic() + interval_seconds
            except RegistrationGone:
                self._registered = False
                continue
            except NoAnswer as error:
                logger.info("ZooKeeper gave no answer: %s", type(error).__name__)
                self._changed = True
                self._stopping.wait(_RETRY_SECONDS)
                continue
            self._wake.wait(min(renewal_seconds, max(0.0, next_commit - time.monotonic())))

    def _renew(self) -> None:
        """Grant the streams more time."""
        asked_at = time.monotonic()
        self._session.check()
        session_seconds = self._settings.zookeeper_session_timeout_ms / 1000
        for stream in self._streams:
            stream.deliver_until(asked_at + session_seconds * _DELIVERY_SHARE)

    def _join(self) -> None:
        """Register, at first or after a session has ended; what was held then is held no more."""
        with self._writing:
            self._take_from_streams(tuple(self._held))
            # Positions of the old session are not written: the partitions may have new owners long since.
            self._to_release = dict.fromkeys(self._to_release)
            self._session.register(len(self._streams))
            self._registered = True
        self._changed = True

    def _rebalance(self) -> None:
        """Come to hold our slice and nothing else.

        Raises:
            RebalanceFailed: something of it is still another's after all tries.
        """
        for attempts_left in range(self._settings.rebalance_max_retries, -1, -1):
            try:
                with self._writing:
                    self._move_to_slice()
            except OwnedByAnother as refusal:
                if not attempts_left:
                    raise RebalanceFailed(
                        f"Gave up claiming partitions after {self._settings.rebalance_max_retries} retries in"
                        f" {self._settings.retries_last_ms} ms, since {refusal}: raise rebalance_max_retries"
                        " or rebalance_backoff_ms, then start this consumer again."
                    ) from refusal
                logger.info("Waiting, since %s.", refusal)
                if self._stopping.wait(self._settings.rebalance_backoff_ms / 1000):
                    return
                self._renew()
            else:
                return

    def _move_to_slice(self) -> None:
        self._release_rest()  # of an attempt that ended half-way
        snapshot = self._session.look()
        if self._session.consumer_id not in snapshot.streams_of:
            raise RegistrationGone
        if not snapshot.brokers:
            return  # no broker to read from; the registry is watched
        todo = plan(self._session.consumer_id, snapshot.partitions, snapshot.streams_of, self._held)
        self._take_from_streams(todo.release)
        self._release_rest()
        starts: dict[int, dict[int, int | None]] = {}
        try:
            for partition, stream in todo.claim:
                self._to_release[partition] = None  # until a stream has it
                starts.setdefault(stream, {})[partition] = self._session.claim(partition, stream)
        except OwnedByAnother:
            self._take_from_streams(tuple(self._held))
            self._release_rest()
            raise
        for stream, offsets in starts.items():
            self._streams[stream].hold(offsets, snapshot.brokers)
            for partition in offsets:
                self._held[partition] = stream
                del self._to_release[partition]

    def _take_from_streams(self, partitions: Collection[int]) -> None:
        """Let streams deliver no more of `partitions`, which are to be released then."""
        positions: dict[int, int] = {}
        for stream in self._streams:
            positions |= stream.give_up(partitions)
        for partition in partitions:
            del self._held[partition]
            self._committed.pop(partition, None)
            self._to_release[partition] = positions.get(partition)

    def _release_rest(self) -> None:
        for partition, position in tuple(self._to_release.items()):
            self._session.release(partition, position)
            del self._to_release[partition]
