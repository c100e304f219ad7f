"""This broker as a member of the cluster: registers, follows the feed of changes, and, if elected, leads.

The only place that acts on what `controller.py` decides and on what ZooKeeper says; it owns the view.
One task does everything, in passes. Watches, lost sessions and requests only mark what has to be looked
at again and wake it, so that every pass starts from ZooKeeper's present state and may be repeated:

1. after a new session: load everything, register this broker (`/brokers/ids/N`, ephemeral);
2. read what was marked: brokers, the feed, the controller's node;
3. as controller: carry out deletions, write the states that `plan_states` asks for, trim the feed. Every
   write is one multi with a check of `/controller_epoch`, so a controller that was replaced without
   knowing it writes nothing (fencing).

The feed (`/mainstem/changes`) stands for a watch per partition, which would not scale: numbers are dense,
so a gap says that entries were trimmed, and everything is loaded anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, ParamSpec, TypeVar
from uuid import UUID, uuid4

import structlog

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.administration import Administration
from mainstem_broker.cluster.controller import ElectionPolicy, StateChange, must_claim, plan_states
from mainstem_broker.cluster.producer_ids import ProducerIds
from mainstem_broker.cluster.view import ClusterView, Topic
from mainstem_broker.cluster.zookeeper import (
    Check,
    Conflict,
    Create,
    Delete,
    Operation,
    SetData,
    ZooKeeper,
    ZooKeeperUnavailable,
)
from mainstem_broker.errors import RequestTimedOut, StartupError
from mainstem_broker.replica.state import PartitionState

logger = structlog.get_logger(__name__)

P = ParamSpec("P")
Content = TypeVar("Content")

STATES_PER_MULTI: Final = 300
"""A multi must stay below ZooKeeper's `jute.maxbuffer` of 1 MiB; a state takes about 250 bytes in it."""
DELETES_PER_MULTI: Final = 5_000
"""Likewise; a deletion takes about 60 bytes."""
FEED_ENTRIES_KEPT: Final = 500
"""A broker that lags further behind than this loads everything; each entry costs one read, too."""
RETRY_DELAY_S: Final = 0.5
RELOAD: Final = -2
"""In place of the last change's number: load everything. -1 says that there was no change yet."""
CONFIG_TYPES: Final = ("topics", "brokers")


@dataclass(slots=True)
class Delta:
    """What a pass changed in the view."""

    partitions: set[tuple[str, int]] = field(default_factory=set)
    deleted: list[tuple[str, UUID]] = field(default_factory=list)
    configs: set[str] = field(default_factory=set)
    """Entities as `topics/T`, `brokers/N`, `brokers/<default>`."""
    brokers: bool = False
    """Whether brokers came, went or began a new life."""

    def __bool__(self) -> bool:
        return bool(self.partitions or self.deleted or self.configs or self.brokers)


class ClusterMember:
    """Membership of one broker. `connect`, then `join`, then `leave`."""

    def __init__(
        self,
        registration: znodes.BrokerRegistration,
        servers: str,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        on_change: Callable[[Delta], None],
        policy_of: Callable[[Topic], ElectionPolicy],
    ) -> None:
        self.view = ClusterView()
        self.is_controller = False
        self._registration = registration
        self._broker_id = registration.broker_id
        self._session_timeout_ms = session_timeout_ms
        self._connection_timeout_ms = connection_timeout_ms
        self._on_change = on_change
        self._policy_of = policy_of
        self._zookeeper = ZooKeeper(servers, session_timeout_ms, self._on_session)
        self.administration = Administration(self._zookeeper, self._broker_id)
        self.producer_ids = ProducerIds(self._zookeeper, self._broker_id)
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._connected = False
        self._registered = False
        self._stopped_uncleanly = False
        # What the next pass has to look at again.
        self._brokers_stale = self._feed_stale = self._controller_stale = True
        self._last_change = -1
        self._sync_wanted = False
        self._passes_begun = self._passes_done = 0
        self._delta = Delta()
        """What changed since the last news; a pass that fails leaves it for the next one to tell."""
        # Of the controller only.
        self._controller_epoch = 0
        self._controller_epoch_version = 0
        self._stale_topics: set[str] | None = None

    # --- Life ---

    async def connect(self) -> str:
        """Open the session, make the standing nodes; answer the cluster's id, which the first broker makes.

        Raises:
            StartupError: ZooKeeper does not answer.
        """
        await self._zookeeper.start(self._connection_timeout_ms)
        await self._zookeeper.ensure_paths(znodes.PERSISTENT_PATHS)
        await self._zookeeper.create(znodes.CONTROLLER_EPOCH, b"0")
        await self._zookeeper.ensure_paths(["/cluster"])
        new_id = znodes.encode_uuid(uuid4())
        await self._zookeeper.create(znodes.CLUSTER_ID, znodes.encode_cluster_id(new_id))
        node = await self._zookeeper.get(znodes.CLUSTER_ID)
        assert node is not None
        self.view.cluster_id = znodes.decode_cluster_id(node.data)
        return self.view.cluster_id

    async def load(self) -> None:
        """Read the whole cluster into the view, before this broker is known to it."""
        await self._load(Delta())  # nobody listens yet

    async def join(self, *, stopped_uncleanly: bool) -> None:
        """Register this broker and follow the cluster from now on.

        `stopped_uncleanly` says that the ends of its logs may be lost: it is then not trusted to be in sync.

        Raises:
            StartupError: a broker of this id is registered from another address, or nobody can be elected.
        """
        self._stopped_uncleanly = stopped_uncleanly
        await self._register()
        self._task = asyncio.create_task(self._run(), name="cluster member")
        self._wake.set()
        try:
            await self.wait_until(lambda: self.view.controller_id >= 0, self._connection_timeout_ms)
        except RequestTimedOut:
            raise StartupError(
                f"No broker became controller within {self._connection_timeout_ms} ms: see whether ZooKeeper"
                " takes writes, or raise zookeeper.connection.timeout.ms."
            ) from None

    async def leave(self) -> None:
        """Stop following; the broker's and the controller's nodes go at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._zookeeper.stop()

    def _on_session(self, state: str) -> None:
        logger.info("zookeeper session", state=state)
        self._connected = state == "connected"
        self._mark_everything()  # a new connection has none of the old one's watches
        if state == "lost":
            self._registered = False
            self.is_controller = False
        self._wake.set()

    # --- Waiting ---

    async def wait_until(self, reached: Callable[[], bool], timeout_ms: float) -> None:
        """Return as soon as `reached()` holds of the view.

        Raises:
            RequestTimedOut: it did not within `timeout_ms`.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._changed:
                await self._changed.wait_for(reached)
        except TimeoutError:
            raise RequestTimedOut("The cluster has not carried this out yet; it goes on doing so.") from None

    async def catch_up(self, timeout_ms: float) -> None:
        """Return once the view is as new as ZooKeeper was at the call, or when the time is over.

        For requests about a partition that another broker knows already and this one does not yet.
        """
        pass_wanted = self._passes_begun + 1
        self._sync_wanted = self._feed_stale = True
        self._wake.set()
        try:
            await self.wait_until(lambda: self._passes_done >= pass_wanted, timeout_ms)
        except RequestTimedOut:
            pass  # the view stays what it is, and the request gets the answer that it gives

    async def _publish(self) -> None:
        delta, self._delta = self._delta, Delta()
        if delta:
            self._on_change(delta)
        async with self._changed:
            self._changed.notify_all()

    # --- The pass ---

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._connected:
                continue
            try:
                await self._pass()
                continue
            except (ZooKeeperUnavailable, Conflict, StartupError) as error:
                # Known to be lost, or someone else wrote first, or has this broker's id.
                logger.warning("cluster pass repeated", reason=str(error))
            except Exception:
                logger.exception("cluster pass failed")
            # Nobody knows how far it came, so look at everything again, soon.
            self._mark_everything()
            self._sync_wanted = True
            self._last_change = RELOAD
            asyncio.get_running_loop().call_later(RETRY_DELAY_S, self._wake.set)

    async def _pass(self) -> None:
        delta = self._delta
        begun = self._passes_begun = self._passes_begun + 1
        if self._sync_wanted:
            self._sync_wanted = False
            await self._zookeeper.sync()
        if not self._registered:
            await self._load(delta)
            await self._register()
        if self._brokers_stale:
            await self._read_brokers(delta)
            if self._broker_id not in self.view.brokers:
                # Somebody took this process for dead (see `fence`), or it is a moment before our own news.
                await self._register()
                await self._read_brokers(delta)
        if self._feed_stale:
            await self._read_feed(delta)
        if self._controller_stale:
            controller = self.view.controller_id
            await self._elect()
            delta.brokers |= self.view.controller_id != controller
        if self.is_controller:
            await self._lead(delta)
        self._passes_done = begun
        await self._publish()

    def _mark_everything(self) -> None:
        self._brokers_stale = self._feed_stale = self._controller_stale = True

    def _mark_brokers(self) -> None:
        self._brokers_stale = True
        self._wake.set()

    def _mark_feed(self) -> None:
        self._feed_stale = True
        self._wake.set()

    def _mark_controller(self) -> None:
        self._controller_stale = True
        self._wake.set()

    async def _register(self) -> None:
        while not await self._try_to_register():
            pass  # what stood in the way has gone meanwhile

    async def _try_to_register(self) -> bool:
        session_id = self._zookeeper.session_id
        path = znodes.broker_path(self._broker_id)
        operations: list[Operation] = []
        existing = await self._zookeeper.get(path)
        if existing is not None and existing.ephemeral_owner != self._zookeeper.session_id:
            other = znodes.BrokerRegistration.decode(self._broker_id, existing.data, existing.czxid)
            if other.endpoints == self._registration.endpoints:
                # We hold this address and the lock on the data, so whoever registered them is gone and
                # its session only has not run out yet.
                operations.append(Delete(path, existing.version))
            else:
                await self._outlast(path, other)
                existing = None
        if existing is None or operations:
            operations.append(await self._begin_life())
            data = self._registration.encode(_now_ms())
            try:
                await self._zookeeper.multi([*operations, Create(path, data, ephemeral=True)])
            except Conflict:
                return False
            logger.info("broker registered", path=path, unclean=self._stopped_uncleanly)
            # As controller it must count itself among the living, in its new life.
            self._brokers_stale = True
        # Not if the session was lost since: the news of that may have come before this.
        self._registered = session_id != 0 and session_id == self._zookeeper.session_id
        self._stopped_uncleanly = False  # a session that is lost from now on loses no records
        return True

    async def _begin_life(self) -> Operation:
        """The write that begins a new incarnation, which goes with the registration."""
        path = znodes.incarnation_path(self._broker_id)
        node = await self._zookeeper.get(path)
        if node is None:
            return Create(path, znodes.encode_incarnation(0))
        last_unclean = node.version + 1 if self._stopped_uncleanly else znodes.decode_incarnation(node.data)
        return SetData(path, znodes.encode_incarnation(last_unclean), node.version)

    async def _outlast(self, path: str, other: znodes.BrokerRegistration) -> None:
        """Wait for a registration of this broker's id from another address to go away.

        It may be this broker's own from before it moved; that one's session runs out by itself.

        Raises:
            StartupError: it stays for longer than a session, so another broker keeps it.
        """
        address = other.endpoints[0]
        logger.warning("broker id is registered elsewhere", path=path, host=address.host, port=address.port)
        gone = asyncio.Event()
        try:
            async with asyncio.timeout(2 * self._session_timeout_ms / 1000):
                while await self._zookeeper.get(path, gone.set) is not None:
                    await gone.wait()
                    gone.clear()
        except TimeoutError:
            raise StartupError(
                f"Broker id {self._broker_id} is already registered from {address.host}:{address.port}:"
                " give this broker another broker.id, or stop the other one."
            ) from None

    # --- Reading ---

    async def _load(self, delta: Delta) -> None:
        """Read everything. The feed's end is noted first, so what changes meanwhile is read again."""
        zookeeper = self._zookeeper
        self._feed_stale = False
        numbers = [
            znodes.change_number(name) for name in await zookeeper.children(znodes.CHANGES, self._mark_feed)
        ]
        await self._read_brokers(delta)
        names = await zookeeper.children(znodes.TOPICS)
        await self._read_topics(names, delta)
        for topic in set(self.view.topics) - set(names):
            self._remove(topic, self.view.topics[topic].topic_id, delta)
        paths = [
            (topic.name, partition)
            for topic in self.view.topics.values()
            for partition in topic.assignment.replicas
        ]
        await self._read_states(paths, delta)
        for known in self.view.topics.values():
            for partition, state in known.states.items():
                if must_claim(state, self.view.brokers):
                    await self._read_claims(known.name, partition)
        self.view.pending_deletions = set(await zookeeper.children(znodes.DELETE_TOPICS))
        entities = await zookeeper.children(znodes.BROKER_CONFIGS)
        await self._read_broker_configs(entities, delta)
        self._last_change = max(numbers, default=-1)
        self._stale_topics = None

    async def _read_brokers(self, delta: Delta) -> None:
        self._brokers_stale = False
        names = await self._zookeeper.children(znodes.BROKER_IDS, self._mark_brokers)
        ids = [int(name) for name in names if name.isdecimal()]
        nodes = await self._zookeeper.get_many([znodes.broker_path(broker_id) for broker_id in ids])
        lives = await self._zookeeper.get_many([znodes.incarnation_path(broker_id) for broker_id in ids])
        known = dict(self.view.brokers)
        self.view.set_brokers(
            replace(registration, incarnation=life.version, last_unclean=last_unclean)
            for broker_id, node, life in zip(ids, nodes, lives, strict=True)
            if node is not None
            and life is not None
            and (
                registration := _readable(znodes.BrokerRegistration.decode, broker_id, node.data, node.czxid)
            )
            and (last_unclean := _readable(znodes.decode_incarnation, life.data)) is not None
        )
        if self.view.brokers != known:
            self._stale_topics = None
            delta.brokers = True

    async def _read_topics(self, names: Iterable[str], delta: Delta) -> None:
        names = list(names)
        assignments = await self._zookeeper.get_many([znodes.topic_path(name) for name in names])
        configs = await self._zookeeper.get_many([znodes.topic_config_path(name) for name in names])
        for name, node, config in zip(names, assignments, configs, strict=True):
            if node is None:
                continue  # deleted since; the feed will say so
            assignment = _readable(znodes.TopicAssignment.decode, name, node.data, node.version)
            if assignment is None:
                continue
            known = self.view.topics.get(name)
            if known is not None and known.topic_id != assignment.topic_id:
                self._remove(name, known.topic_id, delta)
            overrides = {} if config is None else _readable(znodes.decode_config, config.data) or {}
            self.view.set_topic(assignment, overrides)
            delta.configs.add(f"topics/{name}")
            if self._stale_topics is not None:
                self._stale_topics.add(name)

    async def _read_states(self, partitions: list[tuple[str, int]], delta: Delta) -> None:
        nodes = await self._zookeeper.get_many([znodes.state_path(*key) for key in partitions])
        for (topic, partition), node in zip(partitions, nodes, strict=True):
            state = None if node is None else _readable(znodes.decode_state, node.data, node.version)
            if state is not None and self.view.set_state(topic, partition, state):
                delta.partitions.add((topic, partition))

    async def _read_claims(self, topic: str, partition: int) -> None:
        """Read who claimed what of a partition; only partitions that cannot be led otherwise have claims."""
        known = self.view.topics.get(topic)
        if known is None or partition not in known.assignment.replicas:
            return
        replicas = known.assignment.replicas[partition]
        nodes = await self._zookeeper.get_many(
            [znodes.claim_path(topic, partition, broker) for broker in replicas]
        )
        known.claims[partition] = {
            broker: znodes.Claim.decode(broker, node.data)
            for broker, node in zip(replicas, nodes, strict=True)
            if node is not None
        }
        if self._stale_topics is not None:
            self._stale_topics.add(topic)

    async def _read_broker_configs(self, entities: Iterable[str], delta: Delta) -> None:
        entities = list(entities)
        nodes = await self._zookeeper.get_many([znodes.broker_config_path(entity) for entity in entities])
        for entity, node in zip(entities, nodes, strict=True):
            config = None if node is None else _readable(znodes.decode_config, node.data)
            self.view.broker_configs[entity] = config or {}
            delta.configs.add(f"brokers/{entity}")

    def _remove(self, topic: str, topic_id: UUID, delta: Delta) -> None:
        if self.view.remove_topic(topic, topic_id):
            delta.deleted.append((topic, topic_id))

    async def _read_feed(self, delta: Delta) -> None:
        self._feed_stale = False
        names = await self._zookeeper.children(znodes.CHANGES, self._mark_feed)
        numbers = sorted(znodes.change_number(name) for name in names)
        news = [number for number in numbers if number > self._last_change]
        if self._last_change == RELOAD or (news and news[0] > self._last_change + 1):
            await self._load(delta)
            return
        nodes = await self._zookeeper.get_many([f"{znodes.CHANGE_PREFIX}{number:010d}" for number in news])
        for number, node in zip(news, nodes, strict=True):
            if node is None:  # trimmed between the two reads
                await self._load(delta)
                return
            await self._apply(znodes.Change.decode(node.data), delta)
            self._last_change = number
        if self.is_controller and len(numbers) > 2 * FEED_ENTRIES_KEPT:
            old = numbers[:-FEED_ENTRIES_KEPT][:DELETES_PER_MULTI]
            await self._fenced([Delete(f"{znodes.CHANGE_PREFIX}{number:010d}") for number in old])

    async def _apply(self, change: znodes.Change, delta: Delta) -> None:
        for topic, topic_id in change.deleted:
            self._remove(topic, topic_id, delta)
        if change.topics:
            await self._read_topics(change.topics, delta)
        for topic_id, partition, state in change.states:
            name = self.view.topic_names.get(topic_id)
            if name is not None and self.view.set_state(name, partition, state):
                delta.partitions.add((name, partition))
        for topic, partition in change.claims:
            await self._read_claims(topic, partition)
        self.view.pending_deletions.update(
            self.view.topic_names[topic_id]
            for topic_id in change.deletions
            if topic_id in self.view.topic_names
        )
        for entity in change.configs:
            kind, _, name = entity.partition("/")
            if kind == "topics":
                await self._read_topics([name], delta)
            else:
                await self._read_broker_configs([name], delta)

    # --- What replicas ask for ---

    def lives(self) -> Mapping[int, int]:
        """The present incarnation of each live broker."""
        return {broker_id: broker.incarnation for broker_id, broker in self.view.brokers.items()}

    async def change_state(
        self, topic: str, partition: int, state: PartitionState, joined: Mapping[int, int]
    ) -> PartitionState | None:
        """As leader of a partition, replace its state: what a leader may change is its in-sync set.

        `joined` are the lives of the new members; if one has ended meanwhile, nothing is written.

        Returns the state that holds now: the new one, the one that someone else wrote first, or the old
        one; None if it is not known.
        """
        known = self.view.topics.get(topic)
        if known is None:
            return None
        entry = znodes.Change(states=((known.topic_id, partition, state),)).encode()
        try:
            await self._zookeeper.multi(
                [
                    *(Check(znodes.incarnation_path(broker), life) for broker, life in joined.items()),
                    SetData(
                        znodes.state_path(topic, partition),
                        znodes.encode_state(state),
                        state.partition_epoch - 1,
                    ),
                    Create(znodes.CHANGE_PREFIX, entry, sequential=True),
                ]
            )
        except Conflict:
            return await self.read_state(topic, partition)
        except ZooKeeperUnavailable:
            return None
        return state

    async def read_state(self, topic: str, partition: int) -> PartitionState | None:
        """The state as ZooKeeper has it now; None if it does not answer or the partition is gone."""
        try:
            node = await self._zookeeper.get(znodes.state_path(topic, partition))
        except ZooKeeperUnavailable:
            return None
        return None if node is None else znodes.decode_state(node.data, node.version)

    async def fence(self, broker_id: int, incarnation: int) -> None:
        """End the registration of a broker whose process is gone, and its office if it was controller.

        Only in the life that was watched, and only by the controller or, for the controller itself, by
        anyone: a broker that is alive after all finds its registration gone, registers anew, and has lost its
        offices to the elections in between, which is what epochs are for.
        """
        operations: list[Operation] = [
            Check(znodes.incarnation_path(broker_id), incarnation),
            Delete(znodes.broker_path(broker_id)),
        ]
        try:
            if self.is_controller:
                await self._fenced(operations)
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

    async def claim(self, topic: str, partition: int, claim: znodes.Claim) -> None:
        """Say how far this broker's log reaches."""
        path = znodes.claim_path(topic, partition, self._broker_id)
        node = await self._zookeeper.get(path)
        write: Operation = (
            Create(path, claim.encode()) if node is None else SetData(path, claim.encode(), node.version)
        )
        entry = znodes.Change(claims=((topic, partition),)).encode()
        try:
            await self._zookeeper.multi([write, Create(znodes.CHANGE_PREFIX, entry, sequential=True)])
        except (Conflict, ZooKeeperUnavailable) as error:
            logger.warning("claim not written", topic=topic, partition=partition, reason=str(error))

    # --- The controller ---

    async def _elect(self) -> None:
        """Find out who is controller, or become it: one multi, the epoch checked by its node's version."""
        self._controller_stale = False
        node = await self._zookeeper.get(znodes.CONTROLLER, self._mark_controller)
        if node is None:
            epoch_node = await self._zookeeper.get(znodes.CONTROLLER_EPOCH)
            assert epoch_node is not None
            epoch = int(epoch_node.data) + 1
            # Noted before, for the write may happen though its answer is lost.
            self._controller_epoch = epoch
            self._controller_epoch_version = epoch_node.version + 1
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
                self._mark_controller()  # another one was faster
                return
            self._begin_to_lead()
            return
        self.view.controller_id = znodes.decode_controller(node.data)
        if node.ephemeral_owner != self._zookeeper.session_id:
            self.is_controller = False
        elif not self.is_controller:
            self._begin_to_lead()  # elected by a write whose answer was lost

    def _begin_to_lead(self) -> None:
        self._stale_topics = None
        self.is_controller = True
        self.view.controller_id = self._broker_id
        logger.info("controller elected", controller_epoch=self._controller_epoch)

    async def _lead(self, delta: Delta) -> None:
        for topic in sorted(self.view.pending_deletions & self.view.topics.keys()):
            await self._delete_topic(topic, delta)
        stale, self._stale_topics = self._stale_topics, set()
        changes = plan_states(self.view, self._controller_epoch, self._policy_of, topics=stale)
        try:
            for start in range(0, len(changes), STATES_PER_MULTI):
                await self._write_states(changes[start : start + STATES_PER_MULTI], delta)
        except BaseException:
            self._stale_topics = None
            raise

    async def _fenced(self, operations: list[Operation]) -> None:
        """Write as controller: all of it, and only while this broker still is the controller."""
        fence = Check(znodes.CONTROLLER_EPOCH, self._controller_epoch_version)
        await self._zookeeper.multi([fence, *operations])

    async def _write_states(self, changes: list[StateChange], delta: Delta) -> None:
        operations: list[Operation] = []
        with_parent = {change.topic for change in changes if self.view.topics[change.topic].states}
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
            (self.view.topics[change.topic].topic_id, change.partition, change.state) for change in changes
        )
        entry = znodes.Change(states=states).encode()
        await self._fenced([*operations, Create(znodes.CHANGE_PREFIX, entry, sequential=True)])
        logger.info("partition states written", count=len(changes))
        for change in changes:
            # Known at once, so that the next pass does not plan them again; the feed repeats it.
            if self.view.set_state(change.topic, change.partition, change.state):
                delta.partitions.add((change.topic, change.partition))

    async def _delete_topic(self, name: str, delta: Delta) -> None:
        """Remove the topic's nodes. Its files are removed by the brokers that hold them (R20).

        The marker goes last, in one multi with the topic's own node, so a controller that dies in
        between leaves a deletion that the next one carries on.
        """
        topic = self.view.topics[name]
        marker = znodes.deletion_path(name)
        partitions = await self._zookeeper.children(znodes.partitions_path(name))
        removals: list[Operation] = []
        for partition in partitions:
            path = znodes.partition_path(name, int(partition))
            removals += [Delete(f"{path}/{child}") for child in await self._zookeeper.children(path)]
            removals.append(Delete(path))
        for start in range(0, len(removals), STATES_PER_MULTI):
            await self._fenced([Check(marker, -1), *removals[start : start + STATES_PER_MULTI]])
        last: list[Operation] = [
            Delete(path)
            for path in (znodes.partitions_path(name), znodes.topic_config_path(name))
            if await self._zookeeper.get(path) is not None
        ]
        holders = frozenset(broker for replicas in topic.assignment.replicas.values() for broker in replicas)
        entry = znodes.Change(deleted=((name, topic.topic_id),)).encode()
        await self._fenced(
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
        self._remove(name, topic.topic_id, delta)


def _readable(decode: Callable[P, Content], *arguments: P.args, **named: P.kwargs) -> Content | None:
    """What a node says, or None: one that was written by hand and cannot be read must not stop the rest."""
    try:
        return decode(*arguments, **named)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.error("znode ignored", content=repr(arguments)[:500], reason=repr(error))
        return None


def _now_ms() -> int:
    return int(time.time() * 1000)
