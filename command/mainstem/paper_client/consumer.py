"""The paper's consumer (§3.1): `streams = consumer.create_message_streams("topic1", 1)`."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Literal, Self

from mainstem.paper_client.errors import WrongSetting, ZooKeeperUnreachable
from mainstem.paper_client.membership import Membership
from mainstem.paper_client.settings import ConsumerSettings
from mainstem.paper_client.stream import MessageStream
from mainstem.paper_client.znodes import GroupPaths
from mainstem.paper_client.zookeeper import NoAnswer, RegistrationGone


class Consumer:
    """A member of the group `group_id`, which shares a topic with the others that read it (§3.2).

        with Consumer("127.0.0.1:2181", "counters") as consumer:
            streams = consumer.create_message_streams("topic1", 1)
            for message in streams[0]:
                count(message.payload)

    Each message goes to one consumer of the group, at least once, in order within a partition. The settings
    are described at `ConsumerSettings`; `consumer_name` begins its id in the registry, and is the host's
    name unless another is given. After a consumer died, its partitions go to others when its session
    has ended, within `rebalance_max_retries` times `rebalance_backoff_ms`. A consumer that was cut off from
    ZooKeeper, or stopped, for long delivers and commits nothing before it has registered anew.

    Raises:
        WrongSetting: a setting is out of range, or a name has a slash in it.
    """

    def __init__(
        self,
        zookeeper_connect: str,
        group_id: str,
        *,
        consumer_name: str | None = None,
        zookeeper_session_timeout_ms: int = 6_000,
        rebalance_backoff_ms: int = 2_000,
        rebalance_max_retries: int = 4,
        auto_commit_interval_ms: int = 10_000,
        auto_offset_reset: Literal["smallest", "largest"] = "smallest",
    ) -> None:
        self._settings = ConsumerSettings(
            zookeeper_session_timeout_ms=zookeeper_session_timeout_ms,
            rebalance_backoff_ms=rebalance_backoff_ms,
            rebalance_max_retries=rebalance_max_retries,
            auto_commit_interval_ms=auto_commit_interval_ms,
            auto_offset_reset=auto_offset_reset,
        )
        self._zookeeper_connect = zookeeper_connect
        self._group_id = _node_name("group_id", group_id)
        self._name = _node_name("consumer_name", consumer_name or socket.gethostname())
        self._membership: Membership | None = None
        self._closed = False

    def create_message_streams(self, topic: str, count: int) -> list[MessageStream]:
        """Join the group with `count` streams of `topic`, which need not exist yet.

        Each stream is for one thread, and reads partitions of its own; with more streams in the group than
        partitions some have nothing to deliver. A consumer does this once.

        Raises:
            ZooKeeperUnreachable: ZooKeeper does not answer.
            WrongSetting: `count` is not positive, or this consumer has streams already or is closed.
        """
        if count < 1:
            raise WrongSetting(f"A consumer has at least one stream, not {count}.")
        if self._membership is not None or self._closed:
            raise WrongSetting("A consumer creates its streams once: create another consumer for more.")
        streams = [
            MessageStream(_node_name("topic", topic), self._group_id, self._settings) for _ in range(count)
        ]
        membership = Membership(
            self._zookeeper_connect, GroupPaths(self._group_id, topic), self._name, streams, self._settings
        )
        membership.start()
        self._membership = membership
        return streams

    def commit_offsets(self) -> None:
        """Write now how far each stream's user has come, instead of every `auto_commit_interval_ms`.

        Raises:
            ZooKeeperUnreachable: ZooKeeper does not answer, or this consumer's session has ended.
        """
        if self._membership is None or self._closed:
            return
        try:
            self._membership.commit()
        except (*NoAnswer, RegistrationGone) as error:
            raise ZooKeeperUnreachable(
                "Not all offsets were written, because the connection to ZooKeeper broke: the next commit"
                " writes them, or their messages are delivered again."
            ) from error

    def close(self) -> None:
        """Commit, give the partitions back, leave the group; streams end. Twice does no harm.

        From another thread than a stream's, or between two messages; not from a signal's handler, which is
        to raise (as Ctrl-C does) and leave this to `with`.
        """
        self._closed = True
        if self._membership is not None:
            self._membership.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _node_name(what: str, name: str) -> str:
    if not name or "/" in name or name in (".", ".."):
        raise WrongSetting(
            f"{what} {name!r} cannot be the name of a node in ZooKeeper: use a name without /."
        )
    return name
