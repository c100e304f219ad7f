"""Creates the logs of new replicas and deletes those of former ones, in threads: each takes the disk some
milliseconds, and thousands may come with one change of the cluster.

- Deletions come first, since a log of an earlier topic is in the way of a new one of that name. Of new logs,
  those that are led here come first, since clients wait for them.
- What is to be done follows from the view when it begins, and is checked against the view when it has ended:
  a topic may be deleted, or deleted and created again, meanwhile.
- While a log is in a thread, no other part of the broker uses it (`is_busy`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import UUID

import structlog

from mainstem_broker.api.context import BrokerContext
from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.errors import InconsistentTopicId, StorageError
from mainstem_broker.log.log_manager import DoomedLog, LogManager, NewLog
from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.protocol.topic_partition import TopicPartition

logger = structlog.get_logger(__name__)

LOGS_TOGETHER: Final = 20
"""As many are taken into use in one turn of the event loop: about two milliseconds."""
THREADS: Final = 4
"""Fsyncs that are under way together share a commit of the file system's journal."""


class LogWorker:
    """Works whenever there is something to do. Called on the event loop only."""

    def __init__(
        self,
        broker: BrokerContext,
        logs: LogManager,
        config_of: Callable[[str], TopicConfig],
        on_created: Callable[[Collection[TopicPartition]], None],
        on_deleted: Callable[[Collection[UUID]], None],
    ) -> None:
        """Take what is needed; nothing begins yet.

        Args:
            config_of: answers a topic's settings.
            on_created: called with partitions whose logs are there now.
            on_deleted: called with the ids of topics of which logs were deleted.
        """
        self._broker = broker
        self._logs = logs
        self._config_of = config_of
        self._on_created = on_created
        self._on_deleted = on_deleted
        # In the order in which they are to be created; the value says nothing.
        self._to_lead: dict[TopicPartition, None] = {}
        self._to_follow: dict[TopicPartition, None] = {}
        self._busy: dict[TopicPartition, UUID | None] = {}
        """Topic ids of the logs that threads are at."""
        self._kept: dict[TopicPartition, bool] = {}
        """Logs that the disk has refused to delete; whether they are to be tried again."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="logs")
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def create(self, partition: TopicPartition, *, is_led: bool) -> None:
        """Have the log created that this broker's replica of a partition needs."""
        self._broker.opening.add(partition)
        if is_led:
            self._to_follow.pop(partition, None)
            self._to_lead[partition] = None
        elif partition not in self._to_lead:
            self._to_follow[partition] = None
        self._begin()

    def delete(self, *, again: bool = False) -> None:
        """Have the logs deleted that are `undeleted`; `again`: also those that the disk has refused to."""
        undeleted = self._broker.replicas.undeleted
        self._kept = {
            partition: again or is_due for partition, is_due in self._kept.items() if partition in undeleted
        }
        if undeleted or self._to_lead or self._to_follow:
            self._begin()

    def is_busy(self, partition: TopicPartition) -> bool:
        """Whether a thread creates or deletes the partition's log just now."""
        return partition in self._busy

    def undeleted_topics(self) -> set[UUID | None]:
        """The topics of which there are still files to be deleted, being worked on, or in data directories
        that have failed.

        As far as this process knows.
        """
        replicas = self._broker.replicas
        return {
            *replicas.undeleted.values(),
            *self._busy.values(),
            *replicas.offline.values(),
            *self._logs.unreachable_topics,
        }

    async def idle(self) -> None:
        """Return when everything is done that can be done now."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Finish what threads are at, and begin nothing more."""
        self._stopped = True
        await self.idle()
        self._threads.shutdown()  # they have nothing to do, so they end at once

    def _begin(self) -> None:
        if self._task is None and not self._stopped:
            self._task = asyncio.create_task(self._run(), name="logs created and deleted")

    async def _run(self) -> None:
        try:
            while not self._stopped and (await self._delete_some() or await self._create_some()):
                pass
        except Exception:
            logger.exception("logs not created or deleted")  # the periodic try begins again
        finally:
            self._task = None

    async def _in_threads(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """The results of all, or their errors."""
        loop = asyncio.get_running_loop()
        futures = [loop.run_in_executor(self._threads, one) for one in work]
        return await asyncio.gather(*futures, return_exceptions=True)

    # --- Deleting ---

    async def _delete_some(self) -> bool:
        """Delete a few logs; whether there were any."""
        replicas = self._broker.replicas
        due = [key for key in replicas.undeleted if self._kept.get(key, True)][:LOGS_TOGETHER]
        if not due:
            return False
        gone: set[UUID] = set()
        doomed: dict[TopicPartition, DoomedLog] = {}
        for key in due:
            log = self._logs.begin_deletion(*key)
            if log is None:
                gone.add(replicas.undeleted.pop(key))
            else:
                doomed[key] = log
                self._busy[key] = replicas.undeleted[key]
        results = await self._in_threads([one.log.delete for one in doomed.values()])
        for (key, one), error in zip(doomed.items(), results, strict=True):
            topic_id = self._busy.pop(key)
            self._logs.finish_deletion(one, is_deleted=error is None)
            if error is None:
                if replicas.undeleted.pop(key, None) is not None and topic_id is not None:
                    gone.add(topic_id)
                self._kept.pop(key, None)
            else:
                if key not in self._kept:
                    logger.error("replica not deleted", partition=f"{key[0]}-{key[1]}", reason=str(error))
                self._kept[key] = False
        self._on_deleted(gone)
        return True

    # --- Creating ---

    async def _create_some(self) -> bool:
        """Create a few logs; whether there were any to be created."""
        new_logs: dict[TopicPartition, NewLog] = {}
        ready: list[TopicPartition] = []
        skipped: list[TopicPartition] = []
        while (self._to_lead or self._to_follow) and len(new_logs) + len(ready) < LOGS_TOGETHER:
            queue = self._to_lead or self._to_follow
            key = next(iter(queue))
            del queue[key]
            topic_id = self._needed(key)
            if topic_id is None:
                skipped.append(key)
            elif self._logs.get(*key) is None:
                new_logs[key] = self._logs.begin_creation(*key, topic_id, self._config_of(key[0]))
                self._busy[key] = topic_id
            elif self._broker.replicas.undeleted.get(key, topic_id) == topic_id:
                ready.append(key)
            else:
                self._broker.replicas.not_opened(
                    *key, InconsistentTopicId("The log of an earlier topic of this name is not deleted yet.")
                )
                skipped.append(key)
        if not new_logs and not ready and not skipped:
            return False
        now_ms = self._broker.now_ms()
        results = await self._in_threads([_creation(new, now_ms) for new in new_logs.values()])
        gone: set[UUID] = set()
        for (key, new), result in zip(new_logs.items(), results, strict=True):
            del self._busy[key]
            if self._take(key, new, result):
                ready.append(key)
            elif new.topic_id not in self._broker.view.topic_names:
                gone.add(new.topic_id)
        # Who waits for them goes on in the loop's next turn, when they are open.
        self._broker.opening.remove(
            key
            for key in (*skipped, *new_logs, *ready)
            if key not in self._to_lead and key not in self._to_follow
        )
        self._on_created(ready)
        gone -= self.undeleted_topics()
        if gone:
            self._on_deleted(gone)
        return True

    def _needed(self, key: TopicPartition) -> UUID | None:
        """The id of the topic for which this broker needs a log of the partition; None if it needs none."""
        topic = self._broker.view.topics.get(key[0])
        if topic is None or key[1] not in topic.states or not self._logs.usable_directories:
            return None
        if self._broker.broker_id not in topic.assignment.replicas[key[1]]:
            return None
        is_offline = self._broker.replicas.offline.get(key) == topic.topic_id
        return None if is_offline else topic.topic_id

    def _take(self, key: TopicPartition, new: NewLog, result: PartitionLog | BaseException) -> bool:
        """Take what a thread has created; whether the replica can be opened now."""
        replicas = self._broker.replicas
        needed_id = self._needed(key)
        if isinstance(result, BaseException):
            self._logs.finish_creation(new, None)
            if needed_id is not None:
                replicas.not_opened(*key, result)
            return False
        if not self._logs.finish_creation(new, result):
            if needed_id is not None:
                replicas.not_opened(*key, StorageError(f"{new.parent} has failed."))
            return False
        if needed_id != new.topic_id:
            replicas.undeleted[key] = new.topic_id
            if needed_id is not None:
                self.create(key, is_led=False)
            return False
        return True


def _creation(new: NewLog, now_ms: int) -> Callable[[], PartitionLog]:
    return lambda: new.create(now_ms)
