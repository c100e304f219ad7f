"""This broker as a member of the cluster: it registers, follows the feed and, if elected, is the controller.

It owns the view. One task does everything, in passes. Watches, session events and requests only make work due
(`member_state.py`) and wake that task, so every pass starts from ZooKeeper's present state and may be
repeated:

1. after a new session, load everything (`feed_reader.py`) and register this broker (`registration.py`);
2. read what is due: brokers, the feed, topics;
3. as controller, write what `controllership.py` plans.

A second task renews the lease (`lease.py`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable
from secrets import token_bytes
from typing import Final, TypeVar
from uuid import UUID, uuid4

import structlog

from mainstem_broker.cluster import restores, znodes
from mainstem_broker.cluster.administration import Administration
from mainstem_broker.cluster.controller import ElectionPolicy, may_stop
from mainstem_broker.cluster.controllership import Controllership
from mainstem_broker.cluster.elections import ElectionType, plan_rebalance
from mainstem_broker.cluster.feed_reader import FeedReader
from mainstem_broker.cluster.lease import LeaseKeeper
from mainstem_broker.cluster.member_state import READS, WRITES, Action, Event, MemberState, Work
from mainstem_broker.cluster.producer_ids import ProducerIds
from mainstem_broker.cluster.registration import Registration
from mainstem_broker.cluster.state_writer import StateWriter
from mainstem_broker.cluster.view import ClusterView, Delta, Topic
from mainstem_broker.cluster.zookeeper import (
    WAIT_REPORT_INTERVAL_S,
    Conflict,
    SessionListener,
    ZooKeeperSession,
    ZooKeeperUnavailable,
)
from mainstem_broker.errors import RequestTimedOut, StartupError
from mainstem_broker.log.checkpoints import TreePosition
from mainstem_broker.replica.lease import LEASE_SHARE, Lease
from mainstem_broker.security.scram_decoys import SECRET_BYTES

logger = structlog.get_logger(__name__)

Result = TypeVar("Result")
BeginLease = Callable[[], None]

RETRY_DELAY_S: Final = 0.5
_SESSION_EVENTS: Final = {
    "connected": Event.CONNECTED,
    "suspended": Event.SUSPENDED,
    "lost": Event.LOST,
}


class ClusterMember:
    """Membership of one broker. `connect`, `load`, `join`, and at the end `leave`."""

    def __init__(
        self,
        registration: znodes.BrokerRegistration,
        connect: Callable[[SessionListener], ZooKeeperSession],
        lease: Lease,
        *,
        now_s: Callable[[], float],
        session_timeout_ms: int,
        connection_timeout_ms: int,
        on_settings: Callable[[], None],
        on_change: Callable[[Delta, BeginLease | None], Awaitable[None]],
        policy_of: Callable[[Topic], ElectionPolicy],
    ) -> None:
        """Take what is needed; nothing begins yet.

        Args:
            connection_timeout_ms: limits each wait for ZooKeeper at the start; -1 is no limit.
            on_change: carries a change of the view to the replicas. After a new registration the second
                argument begins the lease, and must be called when no replica is left that leads by a state
                from before, and before one takes a leadership of the new incarnation.
        """
        self.view = ClusterView()
        self._lease = lease
        self._now_s = now_s
        self._broker_id = registration.broker_id
        self._connection_timeout_s = None if connection_timeout_ms < 0 else connection_timeout_ms / 1000
        self._session_timeout_ms = session_timeout_ms
        self._on_settings = on_settings
        self._on_change = on_change
        self._zookeeper = connect(self._on_session)
        self.administration = Administration(self._zookeeper, self._broker_id)
        self.controllership = Controllership(self._zookeeper, self._broker_id, self.view, policy_of)
        self.states = StateWriter(self._zookeeper, self._broker_id, self.view, self._on_stale_topic)
        self.producer_ids = ProducerIds(self._zookeeper, self._broker_id)
        self._reader = FeedReader(self._zookeeper, self.view, self.controllership, self._notice)
        self._registration = Registration(
            self._zookeeper, registration, session_timeout_ms, self.controllership.vacate
        )
        self._lease_keeper = LeaseKeeper(
            self._zookeeper, lease, session_timeout_ms, now_s, self._on_return_of_zookeeper
        )
        self._state = MemberState()
        self._stale_topics: set[str] = set()
        self._registered: tuple[int, int] | None = None
        """What a registration began, until it is known what was elected before it."""
        self._has_read_since = False
        self.has_joined = False
        """Whether this process was registered."""
        self._controller_epoch = 0
        """When the tree was loaded."""
        self._wake = asyncio.Event()
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self._passes_begun = self._passes_done = 0
        # What changed since the last `on_change`. A pass that fails leaves it for the next one to publish.
        self._delta = Delta()

    @property
    def is_controller(self) -> bool:
        return self.controllership.is_held

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to ZooKeeper."""
        return self._state.is_connected

    @property
    def outage(self) -> str | None:
        """The sentence about ZooKeeper in errors, if it is unreachable."""
        if not self._lease.is_cut_off:
            return None
        return f"ZooKeeper has not answered broker {self._broker_id} {self._lease.silence}."

    # --- Events ---

    def _notice(self, event: Event) -> None:
        """Take an event from outside the present pass, and wake the task for it."""
        self._apply(event)
        self._wake.set()

    def _apply(self, event: Event) -> None:
        for action in self._state.apply(event):
            match action:
                case Action.LOSE_SESSION:
                    self._registered = None
                    self._lease.lose_session()
                case Action.END_LEASE:
                    self._registered = None
                    self._lease.end()
                    self._registration.begin_anew()
                case Action.RESIGN:
                    self.controllership.lose()

    def _on_session(self, state: str) -> None:
        logger.info("zookeeper session", state=state)
        if state == "connected":
            self._lease.reconnected()
        self._notice(_SESSION_EVENTS[state])
        self._lease_keeper.renew_soon()

    def _on_stale_topic(self, topic: str) -> None:
        self._stale_topics.add(topic)
        self._notice(Event.TOPIC_CHANGED)

    def _on_return_of_zookeeper(self) -> None:
        """An outage is over, or its aftermath: absent brokers are waited for, or no longer."""
        self.controllership.look_again()
        self.producer_ids.prefetch()
        self._wake.set()

    def _on_controller_changed(self) -> None:
        self._notice(Event.CONTROLLER_CHANGED)

    def report_offline(self, partitions: Iterable[tuple[UUID, int]]) -> None:
        """Report to the cluster, soon, that this broker cannot serve these partitions, by topic id and
        number."""
        self._registration.set_offline(partitions)
        self._notice(Event.OFFLINE_REPORTED)

    # --- Start and stop ---

    async def connect(self) -> str:
        """Open the session and make the permanent nodes.

        Returns the cluster's id, which the first broker makes.

        Raises:
            StartupError: ZooKeeper does not answer.
        """
        begun_s = self._now_s()
        await self._zookeeper.start(self._connection_timeout_s)
        if self._now_s() - begun_s > LEASE_SHARE * self._session_timeout_ms / 1000:
            self._lease.note_outage()  # ZooKeeper was away, and other brokers may still be without it
        return await self.with_patience(self._find_cluster)

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

    async def read_scram_secret(self) -> None:
        """Read the secret of which answers to unknown users are made. The first broker makes it.

        Raises:
            StartupError: ZooKeeper does not answer.
        """

        async def read() -> None:
            await self._zookeeper.create(znodes.SCRAM_SECRET, token_bytes(SECRET_BYTES))
            secret = await self._zookeeper.get(znodes.SCRAM_SECRET)
            assert secret is not None
            self.view.scram_decoys.secret = secret.data

        await self.with_patience(read)

    async def load(self) -> None:
        """Read the whole cluster into the view, before this broker is registered in it."""

        async def load() -> None:
            self._state.begin(Work.LOAD)
            # A server that lags behind would look like one that was restored from an older backup.
            await self._zookeeper.sync()
            await self._reader.load(Delta())  # nothing follows the view yet
            node = await self._zookeeper.get(znodes.RESTORES)
            self.view.restores = znodes.Restores() if node is None else znodes.Restores.decode(node.data)
            node = await self._zookeeper.get(znodes.CONTROLLER_EPOCH)
            assert node is not None
            self._controller_epoch = int(node.data)

        await self.with_patience(load)

    @property
    def tree_position(self) -> TreePosition | None:
        """How far ZooKeeper's tree has been read, for the next start to compare with.

        None before this broker has registered. A start that ends before may have left undone what a restore
        calls for, so the next one has to notice the restore as well.
        """
        return self._position if self.has_joined else None

    @property
    def _position(self) -> TreePosition:
        return TreePosition(self.view.restores.count, self._reader.last_number)

    def may_be_restored(self, known: Collection[TreePosition | None]) -> bool:
        """Whether the tree that `load` read may be older than this broker's logs; `known` are the positions
        that were written down beside them, one in each data directory."""
        found = self._position
        latest = max((position for position in known if position is not None), default=None)
        if latest is not None and restores.is_behind(found, latest):
            self._registration.known_restores = latest.restores
            # Until the registration writes it down.
            self.view.restores = znodes.Restores(latest.restores + 1, self._controller_epoch)
            logger.warning(
                "ZooKeeper is older than this broker's logs, as after a restore from a backup",
                known=latest,
                found=found,
            )
        return restores.may_be_restored(found, known)

    async def join(self, *, stopped_uncleanly: bool) -> None:
        """Register this broker and follow the cluster from now on.

        `stopped_uncleanly` says that the ends of its logs may be lost: it is then not trusted to be in sync.

        Raises:
            StartupError: a broker of this id is registered from another address, or none can be elected.
        """
        self._registration.stopped_uncleanly = stopped_uncleanly
        await self.with_patience(self._register)
        self.has_joined = True
        self._tasks = [
            asyncio.create_task(self._run(), name="cluster member"),
            asyncio.create_task(self._lease_keeper.run(), name="heartbeats"),
        ]
        self._wake.set()
        try:
            async with asyncio.timeout(self._connection_timeout_s), self._changed:
                await self._changed.wait_for(
                    lambda: self.view.controller_id >= 0 and self._broker_id in self.view.brokers
                )
        except TimeoutError:
            raise StartupError(
                f"No broker became controller within {self._connection_timeout_s:g} s: see whether ZooKeeper"
                " takes writes, or raise zookeeper.connection.timeout.ms."
            ) from None

    async def _register(self) -> None:
        self._state.begin(Work.REGISTER)
        registered = await self._registration.register()
        if registered is not None:
            self.view.restores = self._registration.restores
            self.producer_ids.follow_restores(self.view.restores.count)
            self._apply(Event.REGISTERED)
            self._registered = registered
            self._has_read_since = False

    async def with_patience(self, step: Callable[[], Awaitable[Result]]) -> Result:
        """Repeat a step of the start while ZooKeeper is away; a line in the log says so each time.

        Raises:
            StartupError: it is away for longer than `zookeeper.connection.timeout.ms`.
        """
        timeout_s = self._connection_timeout_s
        end_s = math.inf if timeout_s is None else self._now_s() + timeout_s
        next_report_s = -math.inf
        while True:
            try:
                return await step()
            except ZooKeeperUnavailable as error:
                if self._now_s() >= end_s:
                    raise StartupError(
                        f"ZooKeeper was lost during the start, and not back within {timeout_s:g} s: see"
                        " whether it is up, or raise zookeeper.connection.timeout.ms."
                    ) from error
                now_s = self._now_s()
                if now_s >= next_report_s:
                    next_report_s = now_s + WAIT_REPORT_INTERVAL_S
                    logger.warning("the start waits for ZooKeeper", reason=str(error))
                await asyncio.sleep(RETRY_DELAY_S)

    async def retire(self, timeout_ms: float) -> None:
        """Hand this broker's leaderships over, as far as others can take them, and wait for that.

        The first step of a controlled shutdown. What cannot be done in time is left to the brokers that stay.
        """
        if not self._state.is_registered:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._registration.mark_leaving()
                await self.wait_until(self._may_stop, timeout_ms)
        except (Conflict, ZooKeeperUnavailable, RequestTimedOut, TimeoutError) as error:
            logger.warning("leaderships not handed over", reason=str(error))

    def _may_stop(self) -> bool:
        own = self.view.brokers.get(self._broker_id)
        return own is None or (own.leaving and may_stop(self.view, self._broker_id))

    async def leave(self) -> None:
        """Stop following; the broker's and the controller's nodes go at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lease.end()
        await self._zookeeper.stop()

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
            raise RequestTimedOut("The change is not complete yet; the cluster continues with it.") from None

    async def catch_up(self, timeout_ms: float) -> bool:
        """Return once the view is as new as ZooKeeper was at the call, or when the time is over.

        For requests about what another broker may have seen already and this one not yet. Returns whether
        the view is that new; False also without a connection to ZooKeeper.
        """
        if not self._state.is_connected:
            return False
        # Not the pass under way: that may have read already.
        first_pass = self._passes_begun + 1
        self._notice(Event.CATCH_UP_REQUESTED)
        try:
            await self.wait_until(lambda: self._passes_done >= first_pass, timeout_ms)
        except RequestTimedOut:
            return False  # the request is answered from the view as it is
        return True

    async def rebalance_leaders(self, imbalance_percentage: int) -> None:
        """As controller, request that leaders hand over to preferred ones that have lost more than this."""
        planned = plan_rebalance(self.view, imbalance_percentage) if self.is_controller else []
        if planned:
            await self.administration.ask_for_elections(
                (self.view.topics[name].topic_id, partition, int(ElectionType.PREFERRED))
                for name, partition in planned
            )

    # --- The pass ---

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._state.is_connected:
                continue
            try:
                await self._pass()
                continue
            except (ZooKeeperUnavailable, Conflict, StartupError) as error:
                # The connection is lost, or another broker wrote first, or has this broker's id.
                logger.warning("cluster pass repeated", reason=str(error))
            except Exception:
                logger.exception("cluster pass failed")
            self._apply(Event.FAILED)
            asyncio.get_running_loop().call_later(RETRY_DELAY_S, self._wake.set)

    async def _pass(self) -> None:
        delta = self._delta
        begun = self._passes_begun = self._passes_begun + 1
        for work in READS:
            await self._do_if_due(work, delta)
        if self._state.is_registered and self._broker_id not in self.view.brokers:
            # Another broker took this process for dead (see `fence`), or the view is older than the
            # registration. In both cases it is written again only if it is not there.
            self._apply(Event.EXPELLED)
        for work in WRITES:
            await self._do_if_due(work, delta)
        if any(entity.startswith("brokers/") for entity in delta.configs):
            self._on_settings()  # before elections, which depend on them
            self.controllership.look_again()
        try:
            if self.is_controller:
                await self.controllership.lead(delta, is_patient=self._lease.is_in_aftermath)
        except Exception:
            # What was read is true also if this broker could not act on it as controller.
            await self._publish(begun)
            raise
        if self.is_controller and self.controllership.is_unfinished:
            asyncio.get_running_loop().call_later(RETRY_DELAY_S, self._wake.set)
        await self._publish(begun)

    async def _do_if_due(self, work: Work, delta: Delta) -> None:
        if not self._state.begin(work):
            return
        match work:
            case Work.SYNC:
                await self._zookeeper.sync()
                self._apply(Event.SYNCED)
            case Work.LOAD:
                await self._reader.load(delta)
                self._has_read_since = True
            case Work.REGISTER:
                await self._register()
            case Work.BROKERS:
                await self._reader.read_brokers(delta)
            case Work.FEED:
                await self._reader.read_feed(delta)
                self._has_read_since = True
            case Work.TOPICS:
                stale, self._stale_topics = self._stale_topics, set()
                await self._reader.read_topics(sorted(stale), delta)
            case Work.OFFLINE:
                await self._registration.write_offline()
            case Work.CONTROLLER:
                controller = self.view.controller_id
                await self.controllership.seek(self._on_controller_changed)
                self.producer_ids.follow_restores(self.view.restores.count)
                delta.brokers |= self.view.controller_id != controller

    async def _publish(self, pass_number: int) -> None:
        if self._registered is not None and not self._has_read_since:
            # The next pass reads the feed. Until then replicas hear of nothing: one that is elected in the
            # new incarnation would not take the role.
            self._wake.set()
            return
        if self._delta or self._registered is not None:
            # If it fails, the next pass publishes it again.
            await self._on_change(self._delta, None if self._registered is None else self._begin_lease)
            self._delta = Delta()
        self._passes_done = pass_number
        async with self._changed:
            self._changed.notify_all()

    def _begin_lease(self) -> None:
        """Begin the lease of the registration that this pass publishes.

        Raises:
            ZooKeeperUnavailable: the session has ended meanwhile.
        """
        if self._registered is None:
            raise ZooKeeperUnavailable("The session ended before its lease began.")
        self._lease.begin(*self._registered)
        self._registered = None
