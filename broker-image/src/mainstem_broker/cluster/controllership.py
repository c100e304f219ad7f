"""The controllership: winning it, and the writes that only the controller makes.

`controller.py` decides what to write; this file writes it. Every write is one multi with a check of
`/controller_epoch`, so a controller that was replaced without knowing it writes nothing (fencing).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

import structlog

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.controller import ElectionPolicy, StateChange, look_at_states
from mainstem_broker.cluster.elections import ElectionType, elect_on_request
from mainstem_broker.cluster.reassignment import CompletedMove, Move, plan_completions, with_moves
from mainstem_broker.cluster.restores import is_outdated
from mainstem_broker.cluster.view import ClusterView, Delta, Topic
from mainstem_broker.cluster.zookeeper import (
    Check,
    Conflict,
    Create,
    Delete,
    Operation,
    SetData,
    ZooKeeperSession,
    ZooKeeperUnavailable,
)
from mainstem_broker.errors import ProtocolError
from mainstem_broker.runtime.turns import in_turns

logger = structlog.get_logger(__name__)

DELETES_PER_MULTI: Final = 5_000
"""A multi must stay below ZooKeeper's `jute.maxbuffer` of 1 MiB; a deletion takes about 60 bytes."""
LEVELS_BELOW_TOPIC: Final = 3
"""Of a topic's own nodes: `partitions`, a partition, its state and claims."""
FEED_ENTRIES_KEPT: Final = 500
"""A broker that lags further behind than this loads everything; each entry costs one read, too."""


class Controllership:
    """The controllership, as broker `broker_id` may hold it."""

    def __init__(
        self,
        zookeeper: ZooKeeperSession,
        broker_id: int,
        view: ClusterView,
        policy_of: Callable[[Topic], ElectionPolicy],
    ) -> None:
        self.is_held = False
        self.is_unfinished = False
        """Whether `lead` has to be called again soon, though nothing may have changed by then."""
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        self._view = view
        self._policy_of = policy_of
        self._epoch = 0
        self._epoch_version = 0
        self._stale_topics: set[str] | None = None
        self._requested_elections: dict[tuple[UUID, int], None] = {}

    # --- Election ---

    async def seek(self, on_change: Callable[[], None]) -> None:
        """Find out who is controller, or become it; `on_change` is called when that may have changed.

        One multi, in which the epoch is checked by its node's version.
        """
        node = await self._zookeeper.get(znodes.CONTROLLER, on_change)
        if node is None and self._view.unreadable_brokers:
            self.is_held = False
            self._view.controller_id = -1
            return
        if node is None:
            self.is_held = False  # until the multi below says so; another one may be faster
            epoch_node = await self._zookeeper.get(znodes.CONTROLLER_EPOCH)
            assert epoch_node is not None
            epoch = int(epoch_node.data) + 1
            # After the epoch: one that is noticed in between has raised it.
            restores = await self._zookeeper.get(znodes.RESTORES)
            if restores is not None:
                self._view.restores = znodes.Restores.decode(restores.data)
            # Noted before, for the write may happen though its answer is lost.
            self._epoch = epoch
            self._epoch_version = epoch_node.version + 1
            try:
                await self._zookeeper.multi(
                    [
                        SetData(znodes.CONTROLLER_EPOCH, str(epoch).encode(), epoch_node.version),
                        Create(
                            znodes.CONTROLLER,
                            znodes.encode_controller(self._broker_id, _now_ms()),
                            ephemeral=True,
                        ),
                    ]
                )
            except Conflict:
                on_change()  # another one was faster
                return
            self._begin()
            return
        self._view.controller_id = znodes.decode_controller(node.data)
        if node.ephemeral_owner != self._zookeeper.session_id:
            self.is_held = False
        elif not self.is_held:
            self._begin()  # elected by a write whose answer was lost

    def _begin(self) -> None:
        self._stale_topics = None
        self.is_held = True
        self._view.controller_id = self._broker_id
        logger.info("controller elected", controller_epoch=self._epoch)

    def lose(self) -> None:
        """The session is gone, and the controllership with it."""
        self.is_held = False
        self._requested_elections.clear()

    async def vacate(self, session_id: int) -> list[Operation]:
        """The write that ends the controllership of a session whose process is gone, if it was controller.

        No other broker would end it: those that watch that process find one that listens at its address.
        """
        node = await self._zookeeper.get(znodes.CONTROLLER)
        if node is None or node.ephemeral_owner != session_id:
            return []
        return [Delete(znodes.CONTROLLER, node.version)]

    async def write(self, operations: Sequence[Operation]) -> None:
        """Write as controller: all of it, and only while this broker still is the controller.

        Raises:
            Conflict: it is not, or a node has changed; nothing was written.
            ZooKeeperUnavailable: no answer came; all may be done, or none.
        """
        fence = Check(znodes.CONTROLLER_EPOCH, self._epoch_version)
        await self._zookeeper.multi([fence, *operations])

    # --- Its duties ---

    def look_again(self, topics: Iterable[str] | None = None) -> None:
        """Plan these topics again in the next `lead`; None: all of them."""
        if topics is None:
            self._stale_topics = None
        elif self._stale_topics is not None:
            self._stale_topics.update(topics)

    def request_unclean_election(self, topic_id: UUID, partition: int) -> None:
        """Hold an election that a client requested in the next `lead`, if it is possible then."""
        self._requested_elections[topic_id, partition] = None

    async def lead(self, delta: Delta, *, is_patient: bool = False) -> None:
        """Carry out what is due: deletions, elections, the ends of moves. What changes goes to `delta`.

        With `is_patient` no absent broker is replaced as leader; the caller has
        everything planned again later.
        """
        self.is_unfinished = False
        if self._view.unreadable_brokers:
            await self._resign()
            return
        stale, self._stale_topics = self._stale_topics, set()
        topics = None if stale is None else sorted(stale)
        try:
            looks = look_at_states(
                self._view, self._epoch, self._policy_of, topics=topics, is_patient=is_patient
            )
            # In turns: a broker that dies changes every partition that it held (R40).
            changes = [change async for change in in_turns(looks) if change is not None]
            for start in range(0, len(changes), znodes.STATES_PER_MULTI):
                await self._write_states(changes[start : start + znodes.STATES_PER_MULTI], delta)
            await self._hold_requested_elections(delta)
            completed = plan_completions(self._view, self._epoch, self._policy_of, topics=topics)
            for topic, moves in completed.items():
                for start in range(0, len(moves), znodes.STATES_PER_MULTI):
                    await self._end_moves(topic, moves[start : start + znodes.STATES_PER_MULTI], delta)
        except BaseException:
            self._stale_topics = None
            raise
        # Last, so that a topic that cannot be deleted delays no election.
        doomed = self._view.pending_deletions & self._view.topics.keys() - self._view.stopped_topics.keys()
        for name in sorted(doomed):
            await self._try_to_delete_topic(name, delta)

    async def _resign(self) -> None:
        """Leave the controllership to a broker that reads all registrations: unreadable ones seem dead."""
        logger.warning("controllership given up: upgrade this broker", controller_epoch=self._epoch)
        await self.write([Delete(znodes.CONTROLLER)])
        self.lose()

    async def _hold_requested_elections(self, delta: Delta) -> None:
        requested, self._requested_elections = self._requested_elections, {}
        changes = []
        for topic_id, partition in requested:
            topic = self._view.topics.get(self._view.topic_names.get(topic_id, ""))
            state = None if topic is None else topic.states.get(partition)
            if topic is None or state is None or topic.name in self._view.pending_deletions:
                continue
            if topic.name in self._view.stopped_topics or is_outdated(state, self._view.restores):
                continue
            try:
                new = elect_on_request(
                    ElectionType.UNCLEAN,
                    state,
                    topic.assignment.replicas[partition],
                    self._view.brokers_for(topic_id, partition),
                    self._policy_of(topic),
                    topic.claims.get(partition, {}),
                )
            except ProtocolError:
                continue  # the client sees from the state why
            new = replace(new, controller_epoch=self._epoch)
            changes.append(StateChange(topic.name, partition, new, state.partition_epoch))
        for start in range(0, len(changes), znodes.STATES_PER_MULTI):
            await self._write_states(changes[start : start + znodes.STATES_PER_MULTI], delta)

    async def _end_moves(self, name: str, moves: Sequence[CompletedMove], delta: Delta) -> None:
        """Write the ends of moves in one topic: states and assignment, all together or not at all."""
        topic = self._view.topics[name]
        assignment = topic.assignment
        ended = with_moves(assignment, {move.change.partition: Move(move.replicas) for move in moves})
        changes = [
            replace(move.change, state=replace(move.change.state, assignment_version=assignment.version + 1))
            for move in moves
        ]
        states = tuple((assignment.topic_id, change.partition, change.state) for change in changes)
        entry = znodes.Change(states=states, topics=(name,)).encode()
        operations: list[Operation] = [
            SetData(
                znodes.state_path(name, change.partition),
                znodes.encode_state(change.state),
                change.state.partition_epoch - 1,
            )
            for change in changes
        ]
        operations.append(SetData(znodes.topic_path(name), ended.encode(), assignment.version))
        try:
            await self.write([*operations, Create(znodes.CHANGE_PREFIX, entry, sequential=True)])
        except Conflict:
            # An in-sync set or the assignment has changed, and the entry of the feed that says so wakes the
            # next pass. If the controllership was lost instead, there is no next one.
            self.look_again([name])
            return
        logger.info("replicas moved", topic=name, count=len(moves))
        self._view.set_topic(replace(ended, version=assignment.version + 1), topic.config)
        for change in changes:
            self._view.set_state(name, change.partition, change.state)
            delta.partitions.add((name, change.partition))

    async def trim_feed(self, numbers: Sequence[int]) -> None:
        """Remove the oldest of the feed's entries, given all of their numbers, when they have become many."""
        if len(numbers) <= 2 * FEED_ENTRIES_KEPT:
            return
        old = numbers[:-FEED_ENTRIES_KEPT][:DELETES_PER_MULTI]
        try:
            await self.write([Delete(f"{znodes.CHANGE_PREFIX}{number:010d}") for number in old])
        except Conflict as error:
            # Another controller trimmed it, or an entry has a child that is not ours. The feed only grows.
            logger.warning("feed not trimmed: remove what lies below its entries", reason=str(error))

    async def _write_states(self, changes: list[StateChange], delta: Delta) -> None:
        """Write them together. If one cannot be written, write the others, and retry it later."""
        try:
            await self._write_together(changes, delta)
            return
        except Conflict as error:
            if len(changes) == 1:
                (change,) = changes
                logger.info(
                    "state not written", topic=change.topic, partition=change.partition, reason=str(error)
                )
                await self._read_again(change, delta)
                return
        half = len(changes) // 2
        await self._write_states(changes[:half], delta)
        await self._write_states(changes[half:], delta)

    async def _read_again(self, change: StateChange, delta: Delta) -> None:
        """Another broker wrote the state first; mostly its leader, whose entry in the feed follows."""
        node = await self._zookeeper.get(znodes.state_path(change.topic, change.partition))
        try:
            state = None if node is None else znodes.decode_state(node.data, node.version)
        except (ValueError, KeyError, TypeError):
            logger.error("state unreadable: mend its znode", topic=change.topic, partition=change.partition)
            return
        if state is not None and self._view.set_state(change.topic, change.partition, state):
            delta.partitions.add((change.topic, change.partition))
        self.look_again([change.topic])
        self.is_unfinished = True

    async def _write_together(self, changes: list[StateChange], delta: Delta) -> None:
        operations: list[Operation] = []
        with_parent = {change.topic for change in changes if self._view.topics[change.topic].states}
        for change in changes:
            data = znodes.encode_state(change.state)
            path = znodes.state_path(change.topic, change.partition)
            if change.expected_version is not None:
                operations.append(SetData(path, data, change.expected_version))
                continue
            if change.topic not in with_parent:
                with_parent.add(change.topic)
                operations.append(Create(znodes.partitions_path(change.topic), b""))
            operations.append(Create(znodes.partition_path(change.topic, change.partition), b""))
            operations.append(Create(path, data))
        states = tuple(
            (self._view.topics[change.topic].topic_id, change.partition, change.state) for change in changes
        )
        entry = znodes.Change(states=states).encode()
        checks = self._checks_of_absence(changes)
        await self.write([*checks, *operations, Create(znodes.CHANGE_PREFIX, entry, sequential=True)])
        logger.info("partition states written", count=len(changes))
        for change in changes:
            # Known at once, so that the next pass does not plan them again; the feed repeats it.
            if self._view.set_state(change.topic, change.partition, change.state):
                delta.partitions.add((change.topic, change.partition))

    def _checks_of_absence(self, changes: Iterable[StateChange]) -> list[Operation]:
        """Conditions under which nothing is written if a leader that was absent has registered meanwhile.

        A broker whose session ended leads on as soon as it is registered again and has read what was elected
        until then.
        """
        absent = self._view.absent_incarnations
        former_leaders = set()
        for change in changes:
            state = self._view.topics[change.topic].states.get(change.partition)
            if state is not None and state.leader in absent and state.leader != change.state.leader:
                former_leaders.add(state.leader)
        return [Check(znodes.incarnation_path(broker), absent[broker]) for broker in sorted(former_leaders)]

    async def _try_to_delete_topic(self, name: str, delta: Delta) -> None:
        """Delete a topic, now or in a later pass: other topics, and what this pass has read, do not wait."""
        try:
            await self._delete_topic(name, delta, levels=LEVELS_BELOW_TOPIC)
            return
        except Conflict:
            pass  # below its nodes lie others that are not ours, or the controllership was lost
        try:
            await self._delete_topic(name, delta, levels=None)
        except Conflict as error:
            logger.warning("topic not deleted yet", topic=name, reason=str(error))
            self.is_unfinished = True

    async def _delete_topic(self, name: str, delta: Delta, *, levels: int | None) -> None:
        """Remove the topic's nodes. Its files are removed by the brokers that hold them (R20).

        The marker goes last, in one multi with the topic's own node, so a controller that dies in
        between leaves a deletion that the next one carries on.

        Args:
            levels: how deep to look below the topic; None looks at everything, which takes a read per node.

        Raises:
            Conflict: a node has children that this did not look at, or this broker is no longer controller.
        """
        topic = self._view.topics[name]
        marker = znodes.deletion_path(name)
        removals = await self._removals_below(znodes.topic_path(name), levels)
        for start in range(0, len(removals), znodes.STATES_PER_MULTI):
            await self.write([Check(marker, -1), *removals[start : start + znodes.STATES_PER_MULTI]])
        last: list[Operation] = []
        if await self._zookeeper.get(znodes.topic_config_path(name)) is not None:
            if levels is None:
                last = await self._removals_below(znodes.topic_config_path(name), None)
            last.append(Delete(znodes.topic_config_path(name)))
        holders = frozenset(broker for replicas in topic.assignment.replicas.values() for broker in replicas)
        entry = znodes.Change(deleted=((name, topic.topic_id),)).encode()
        await self.write(
            [
                *last,
                Delete(znodes.topic_path(name)),
                Delete(marker),
                Create(
                    f"{znodes.DELETED_TOPICS}/{znodes.encode_uuid(topic.topic_id)}",
                    znodes.encode_deleted_topic(name, holders),
                ),
                Create(znodes.CHANGE_PREFIX, entry, sequential=True),
            ]
        )
        logger.info("topic deleted", topic=name, topic_id=str(topic.topic_id))
        if self._view.remove_topic(name, topic.topic_id):
            delta.deleted.append((name, topic.topic_id))

    async def _removals_below(self, path: str, levels: int | None) -> list[Operation]:
        """The writes that remove what lies below a node, children first.

        Also nodes that are not ours, as those that a person or another tool left there: ZooKeeper refuses to
        delete a node that has children.
        """
        found: list[str] = []
        parents, level = [path], 0
        while parents and level != levels:
            # A level at a time: one by one, the reads of a thousand partitions would hold up elections.
            below = await self._zookeeper.children_of_many(parents)
            parents = [
                f"{parent}/{name}" for parent, names in zip(parents, below, strict=True) for name in names
            ]
            found += parents
            level += 1
        return [Delete(child) for child in reversed(found)]

    async def fence(self, broker_id: int, incarnation: int) -> None:
        """End the registration of a broker whose process is gone, and its controllership if it held that.

        Only in the incarnation that was watched, and only by the controller or, for the controller itself, by
        any broker. A broker that is alive after all finds its registration gone, registers anew, and has lost
        its leaderships to the elections in between; epochs protect against what it did meanwhile.
        """
        operations: list[Operation] = [
            Check(znodes.incarnation_path(broker_id), incarnation),
            Delete(znodes.broker_path(broker_id)),
        ]
        try:
            if self.is_held:
                await self.write(operations)
            else:
                node = await self._zookeeper.get(znodes.CONTROLLER)
                registration = await self._zookeeper.get(znodes.broker_path(broker_id))
                if node is None or registration is None:
                    return
                if znodes.decode_controller(node.data) != broker_id:
                    return
                if node.ephemeral_owner == registration.ephemeral_owner:
                    operations.append(Delete(znodes.CONTROLLER, node.version))
                await self._zookeeper.multi(operations)
        except (Conflict, ZooKeeperUnavailable) as error:
            logger.info("broker not fenced", broker_id=broker_id, reason=str(error))


def _now_ms() -> int:
    return int(time.time() * 1000)
