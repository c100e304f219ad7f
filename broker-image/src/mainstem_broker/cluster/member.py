"""This broker as a member of the cluster: registers, follows the feed of changes, and, if elected, leads.

It owns the view and says how long this broker's office is open (`replica/office.py`). One task does
everything, in passes. Watches, lost sessions and requests only mark what has to be looked at again and
wake it, so that every pass starts from ZooKeeper's present state and may be repeated:

1. after a new session: load everything, register this broker (`/brokers/ids/N`, ephemeral);
2. read what was marked: brokers, the feed, the controller's node;
3. as controller: what `controllership.py` has to write.

The feed (`/mainstem/changes`) stands for a watch per partition, which would not scale: numbers are dense,
so a gap says that entries were trimmed, and everything is loaded anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from typing import Final, ParamSpec, TypeVar
from uuid import UUID, uuid4

import structlog

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.administration import Administration
from mainstem_broker.cluster.controller import ElectionPolicy, may_stop, must_claim
from mainstem_broker.cluster.controllership import Controllership
from mainstem_broker.cluster.elections import ElectionType, plan_rebalance
from mainstem_broker.cluster.producer_ids import ProducerIds
from mainstem_broker.cluster.reassignment import is_moving
from mainstem_broker.cluster.replica_states import ReplicaStates
from mainstem_broker.cluster.view import ClusterView, Delta, Topic
from mainstem_broker.cluster.zookeeper import (
    Conflict,
    Create,
    Delete,
    Operation,
    SessionListener,
    SetData,
    ZooKeeperSession,
    ZooKeeperUnavailable,
)
from mainstem_broker.errors import RequestTimedOut, StartupError
from mainstem_broker.replica.office import Office
from mainstem_broker.replica.state import PartitionState

logger = structlog.get_logger(__name__)

P = ParamSpec("P")
Content = TypeVar("Content")
Result = TypeVar("Result")

RETRY_DELAY_S: Final = 0.5
OFFICE_SHARE: Final = 0.75
"""Of a session's timeout: how long a leader acts after its last heartbeat; the rest is for slow clocks."""
HEARTBEATS_PER_SESSION: Final = 6
RELOAD: Final = -2
"""In place of the last change's number: load everything. -1 says that there was no change yet."""


class ClusterMember:
    """Membership of one broker. `connect`, then `join`, then `leave`."""

    def __init__(
        self,
        registration: znodes.BrokerRegistration,
        connect: Callable[[SessionListener], ZooKeeperSession],
        office: Office,
        *,
        now_s: Callable[[], float],
        session_timeout_ms: int,
        connection_timeout_ms: int,
        on_settings: Callable[[], None],
        on_change: Callable[[Delta], None],
        policy_of: Callable[[Topic], ElectionPolicy],
    ) -> None:
        self.view = ClusterView()
        self._office = office
        self._now_s = now_s
        self._registration = registration
        self._broker_id = registration.broker_id
        self._session_timeout_ms = session_timeout_ms
        self._connection_timeout_ms = connection_timeout_ms
        self._on_settings = on_settings
        self._on_change = on_change
        self._zookeeper = connect(self._on_session)
        self.administration = Administration(self._zookeeper, self._broker_id)
        self.controllership = Controllership(self._zookeeper, self._broker_id, self.view, policy_of)
        self.states = ReplicaStates(self._zookeeper, self._broker_id, self.view, self._mark_topic)
        self.producer_ids = ProducerIds(self._zookeeper, self._broker_id)
        self._wake = asyncio.Event()
        self._heartbeat_due = asyncio.Event()
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._connected = False
        self._registered = False
        self._stopped_uncleanly = False
        self._offline: frozenset[tuple[UUID, int]] = frozenset()
        self._offline_untold = False
        # What the next pass has to look at again.
        self._brokers_stale = self._feed_stale = self._controller_stale = True
        self._stale_topics: set[str] = set()
        self._last_change = -1
        self._sync_wanted = False
        self._passes_begun = self._passes_done = 0
        self._delta = Delta()
        """What changed since the last news; a pass that fails leaves it for the next one to tell."""

    @property
    def is_controller(self) -> bool:
        return self.controllership.is_held

    # --- Life ---

    async def connect(self) -> str:
        """Open the session, make the standing nodes; answer the cluster's id, which the first broker makes.

        Raises:
            StartupError: ZooKeeper does not answer.
        """
        await self._zookeeper.start(self._connection_timeout_ms)
        return await self._patiently(self._find_cluster)

    async def _find_cluster(self) -> str:
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
        await self._patiently(lambda: self._load(Delta()))  # nobody listens yet

    async def join(self, *, stopped_uncleanly: bool) -> None:
        """Register this broker and follow the cluster from now on.

        `stopped_uncleanly` says that the ends of its logs may be lost: it is then not trusted to be in sync.

        Raises:
            StartupError: a broker of this id is registered from another address, or nobody can be elected.
        """
        self._stopped_uncleanly = stopped_uncleanly
        await self._patiently(self._register)
        self._tasks = [
            asyncio.create_task(self._run(), name="cluster member"),
            asyncio.create_task(self._keep_office(), name="heartbeats"),
        ]
        self._wake.set()
        try:
            await self.wait_until(
                lambda: self.view.controller_id >= 0 and self._broker_id in self.view.brokers,
                self._connection_timeout_ms,
            )
        except RequestTimedOut:
            raise StartupError(
                f"No broker became controller within {self._connection_timeout_ms} ms: see whether ZooKeeper"
                " takes writes, or raise zookeeper.connection.timeout.ms."
            ) from None

    async def _patiently(self, step: Callable[[], Awaitable[Result]]) -> Result:
        """Do a step of the start again while ZooKeeper, which may just be restarting itself, is away.

        Raises:
            StartupError: it is away for too long.
        """
        timeout_ms = self._connection_timeout_ms
        end_s = self._now_s() + timeout_ms / 1000
        while True:
            try:
                return await step()
            except ZooKeeperUnavailable as error:
                if self._now_s() >= end_s:
                    raise StartupError(
                        f"ZooKeeper was lost during the start, and not back within {timeout_ms} ms: see"
                        " whether it is up, or raise zookeeper.connection.timeout.ms."
                    ) from error
                logger.warning("start repeated", reason=str(error))
                await asyncio.sleep(RETRY_DELAY_S)

    async def retire(self, timeout_ms: float) -> None:
        """Give this broker's leaderships away, as far as others can take them, and wait for that.

        The first step of a controlled shutdown. What cannot be done in time is left to those who remain.
        """
        if not self._registered:
            return
        self._registration = replace(self._registration, leaving=True)
        path = znodes.broker_path(self._broker_id)
        entry = znodes.Change(brokers=(self._broker_id,)).encode()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._zookeeper.multi(
                    [
                        SetData(path, self._registration.encode(_now_ms())),
                        Create(znodes.CHANGE_PREFIX, entry, sequential=True),
                    ]
                )
                await self.wait_until(self._may_stop, timeout_ms)
        except (Conflict, ZooKeeperUnavailable, RequestTimedOut, TimeoutError) as error:
            logger.warning("leaderships not given away", reason=str(error))

    def _may_stop(self) -> bool:
        me = self.view.brokers.get(self._broker_id)
        return me is None or (me.leaving and may_stop(self.view, self._broker_id))

    def report_offline(self, partitions: Iterable[tuple[UUID, int]]) -> None:
        """Tell the cluster, soon, that this broker cannot serve these partitions, by topic id and number."""
        self._offline = frozenset(partitions)
        self._offline_untold = True
        self._wake.set()

    async def _tell_offline(self) -> None:
        path = znodes.offline_path(self._broker_id)
        data = znodes.encode_offline(self._offline)
        node = await self._zookeeper.get(path)
        operations: list[Operation] = [
            Create(path, data, ephemeral=True),
            Create(znodes.CHANGE_PREFIX, znodes.Change(brokers=(self._broker_id,)).encode(), sequential=True),
        ]
        # That of an earlier session goes, or it would take this one's word with it.
        await self._zookeeper.multi(operations if node is None else [Delete(path, node.version), *operations])
        self._offline_untold = False

    async def leave(self) -> None:
        """Stop following; the broker's and the controller's nodes go at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._office.end()
        await self._zookeeper.stop()

    def _on_session(self, state: str) -> None:
        logger.info("zookeeper session", state=state)
        self._connected = state == "connected"
        self._mark_everything()  # a new connection has none of the old one's watches
        if state == "lost":
            self._registered = False
            self._office.end()
            self.controllership.lose()
        self._heartbeat_due.set()
        self._wake.set()

    async def _keep_office(self) -> None:
        """Prolong the office by heartbeats of our own: kazoo does not tell when its pings were answered."""
        while True:
            self._heartbeat_due.clear()
            sent_s = self._now_s()
            try:
                await self._zookeeper.get(znodes.CONTROLLER_EPOCH)
            except ZooKeeperUnavailable:
                pass  # the office stays open until the time that is known
            except Exception:
                logger.exception("heartbeat failed")  # but never without another one
            else:
                # The news that a session was lost comes before an answer in the next one.
                self._office.extend(sent_s + OFFICE_SHARE * self._session_timeout_ms / 1000)
            try:
                async with asyncio.timeout(self._session_timeout_ms / 1000 / HEARTBEATS_PER_SESSION):
                    await self._heartbeat_due.wait()
            except TimeoutError:
                pass

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

        For requests about what another broker knows already and this one does not yet.
        """
        pass_wanted = self._passes_begun + 1
        self._sync_wanted = self._feed_stale = True
        self._wake.set()
        try:
            await self.wait_until(lambda: self._passes_done >= pass_wanted, timeout_ms)
        except RequestTimedOut:
            pass  # the view stays what it is, and the request gets the answer that it gives

    async def rebalance_leaders(self, imbalance_percentage: int) -> None:
        """As controller, ask leaders to hand over to preferred ones that have lost more than this."""
        wanted = plan_rebalance(self.view, imbalance_percentage) if self.is_controller else []
        if wanted:
            await self.administration.ask_for_elections(
                (self.view.topics[name].topic_id, partition, int(ElectionType.PREFERRED))
                for name, partition in wanted
            )

    async def _publish(self) -> None:
        if self._delta:
            self._on_change(self._delta)  # if it fails, the next pass tells it again
            self._delta = Delta()
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
            self._feed_stale = True
        if not self._registered:
            await self._load(delta)
            await self._register()
        if self._brokers_stale:
            await self._read_brokers(delta)
        if self._feed_stale:
            await self._read_feed(delta)
        if self._stale_topics:
            stale, self._stale_topics = self._stale_topics, set()
            await self._read_topics(sorted(stale), delta)
        if self._broker_id not in self.view.brokers:
            # Somebody took this process for dead (see `fence`), or it is a moment before our own news.
            self._office.end()
            self._registered = False  # if the answer to the next is lost, the next pass finds out
            await self._register()
            await self._read_brokers(delta)
        if self._offline_untold:
            await self._tell_offline()
        if self._controller_stale:
            controller = self.view.controller_id
            self._controller_stale = False
            await self.controllership.seek(self._mark_controller)
            delta.brokers |= self.view.controller_id != controller
        if any(entity.startswith("brokers/") for entity in delta.configs):
            self._on_settings()  # before elections, which go by them
            self.controllership.look_again()
        if self.is_controller:
            await self.controllership.lead(delta)
            if self.controllership.is_unfinished:
                asyncio.get_running_loop().call_later(RETRY_DELAY_S, self._wake.set)
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

    def _mark_topic(self, topic: str) -> None:
        self._stale_topics.add(topic)
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
                operations += await self.controllership.vacate(existing.ephemeral_owner)
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
            self._offline_untold = bool(self._offline)  # it was told by the session before
            # As controller it must count itself among the living, in its new life.
            self._brokers_stale = True
        life = await self._zookeeper.get(znodes.incarnation_path(self._broker_id))
        # Not if the session was lost since: the news of that may have come before this.
        self._registered = session_id != 0 and session_id == self._zookeeper.session_id
        if self._registered and life is not None:
            self._office.begin(life.version)
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
                if must_claim(state, self.view.brokers_for(known.topic_id, partition)):
                    await self._read_claims(known.name, partition)
        self.view.pending_deletions = set(await zookeeper.children(znodes.DELETE_TOPICS))
        entities = await self._configured_entities()
        await self._read_configs(sorted({*entities, *self.view.entity_configs}), delta)
        self._last_change = max(numbers, default=-1)
        self.controllership.look_again()

    async def _read_brokers(self, delta: Delta) -> None:
        self._brokers_stale = False
        names = await self._zookeeper.children(znodes.BROKER_IDS, self._mark_brokers)
        ids = [int(name) for name in names if name.isdecimal()]
        nodes = await self._zookeeper.get_many([znodes.broker_path(broker_id) for broker_id in ids])
        lives = await self._zookeeper.get_many([znodes.incarnation_path(broker_id) for broker_id in ids])
        offline = await self._zookeeper.get_many([znodes.offline_path(broker_id) for broker_id in ids])
        known = dict(self.view.brokers)
        self.view.set_brokers(
            replace(
                registration,
                incarnation=life.version,
                last_unclean=last_unclean,
                offline=(gone and _readable(znodes.decode_offline, gone.data)) or frozenset(),
            )
            for broker_id, node, life, gone in zip(ids, nodes, lives, offline, strict=True)
            if node is not None
            and life is not None
            and (
                registration := _readable(znodes.BrokerRegistration.decode, broker_id, node.data, node.czxid)
            )
            and (last_unclean := _readable(znodes.decode_incarnation, life.data)) is not None
        )
        if self.view.brokers != known:
            self.controllership.look_again()
            delta.brokers = True

    async def _read_topics(self, names: Collection[str], delta: Delta) -> set[str]:
        """Read assignments and settings; answer the topics whose assignment is now the one that is there."""
        read = set()
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
            before = None if known is None else known.assignment.replicas
            topic = self.view.set_topic(assignment, overrides)
            delta.configs.add(f"topics/{name}")
            if before is not None:
                delta.partitions.update(
                    (name, partition)
                    for partition, replicas in topic.assignment.replicas.items()
                    if before.get(partition) != replicas
                )
            self.controllership.look_again([name])
            if topic.assignment is assignment:  # and not older than the known one
                read.add(name)
        return read

    async def _read_states(self, partitions: list[tuple[str, int]], delta: Delta) -> None:
        nodes = await self._zookeeper.get_many([znodes.state_path(*key) for key in partitions])
        states = {
            key: state
            for key, node in zip(partitions, nodes, strict=True)
            if node is not None
            and (state := _readable(znodes.decode_state, node.data, node.version)) is not None
        }
        moved = {topic for (topic, _), state in states.items() if self.view.lacks_assignment_of(topic, state)}
        if moved:  # since their assignments were read
            before = {name: self.view.topics[name] for name in moved}
            read = await self._read_topics(sorted(moved), delta)
            # One that was deleted, and perhaps created again, in between has other states by now.
            same = {name for name in read if self.view.topics.get(name) is before[name]}
            states = {key: state for key, state in states.items() if key[0] in same or key[0] not in moved}
        written_anew = set()
        for (topic, partition), state in states.items():
            if self.view.lacks_assignment_of(topic, state):  # nobody has a later one
                written_anew.add(topic)
                version = self.view.topics[topic].assignment.version
                state = replace(state, assignment_version=version)  # noqa: PLW2901
            if self.view.set_state(topic, partition, state):
                delta.partitions.add((topic, partition))
        for topic in sorted(written_anew):
            logger.error("assignment older than its states: it was written anew", topic=topic)

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
        self.controllership.look_again([topic])

    async def _configured_entities(self) -> list[str]:
        """All entities but topics that have settings."""
        entities = []
        for folder in ("brokers", "clients", "users", "groups"):
            for name in await self._zookeeper.children(znodes.config_path(folder)):
                entity = f"{folder}/{name}"
                entities.append(entity)
                if folder == "users":
                    below = f"{entity}/clients"
                    names = await self._zookeeper.children(znodes.config_path(below))
                    entities += [f"{below}/{client}" for client in names]
        return entities

    async def _read_configs(self, entities: Collection[str], delta: Delta) -> None:
        """Read the settings of entities that are no topics; one without a node has none."""
        nodes = await self._zookeeper.get_many([znodes.config_path(entity) for entity in entities])
        for entity, node in zip(entities, nodes, strict=True):
            config = None if node is None else _readable(znodes.decode_config, node.data)
            self.view.set_config(entity, config or {})
            delta.configs.add(entity)

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
        if self.is_controller:
            await self.controllership.trim_feed(numbers)

    def _is_unfinished(self, topic: str, partition: int, state: PartitionState) -> bool:
        """Whether what a leader wrote, its in-sync set or its heir, is for the controller to carry on."""
        leaving = any(
            broker in self.view.brokers and self.view.brokers[broker].leaving for broker in state.isr
        )
        return leaving or is_moving(self.view.topics[topic].assignment, partition)

    async def _apply(self, change: znodes.Change, delta: Delta) -> None:
        if change.brokers:
            await self._read_brokers(delta)
        for topic, topic_id in change.deleted:
            self._remove(topic, topic_id, delta)
        if change.topics:
            await self._read_topics(change.topics, delta)
        for topic_id, partition, state in change.states:
            name = self.view.topic_names.get(topic_id)
            if name is not None and self.view.set_state(name, partition, state):
                delta.partitions.add((name, partition))
                if self._is_unfinished(name, partition, state):
                    self.controllership.look_again([name])
        for topic, partition in change.claims:
            await self._read_claims(topic, partition)
        self.view.pending_deletions.update(
            self.view.topic_names[topic_id]
            for topic_id in change.deletions
            if topic_id in self.view.topic_names
        )
        for topic_id, partition, election in change.elections:
            if election == ElectionType.PREFERRED:
                delta.elections.add((topic_id, partition))
            elif self.is_controller:
                self.controllership.want_unclean_election(topic_id, partition)
        for entity in change.configs:
            kind, _, name = entity.partition("/")
            if kind == "topics":
                await self._read_topics([name], delta)
            else:
                await self._read_configs([entity], delta)


def _readable(decode: Callable[P, Content], *arguments: P.args, **named: P.kwargs) -> Content | None:
    """What a node says, or None: one that was written by hand and cannot be read must not stop the rest."""
    try:
        return decode(*arguments, **named)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.error("znode ignored", content=repr(arguments)[:500], reason=repr(error))
        return None


def _now_ms() -> int:
    return int(time.time() * 1000)
