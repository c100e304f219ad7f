"""What goes wrong in a simulated cluster: one thing after another, chosen and timed by the seed.

What a cluster must survive is bounded as in R22: of the replicas, fewer than min.insync.replicas have lost
unsynced data, or have a failed disk, at a time. Everything else may happen to all of them at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from tests.cluster.memory_segments import Disk
from tests.cluster.network import Network
from tests.cluster.simulated_broker import SESSION_TIMEOUT_MS, SimulatedBroker
from tests.cluster.simulated_zookeeper import ZooKeeperServer

from mainstem_broker.cluster.elections import ElectionType
from mainstem_broker.cluster.reassignment import Move, move_of, with_moves
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.cluster.zookeeper import ZooKeeperUnavailable

SESSION_S = SESSION_TIMEOUT_MS / 1000
STALL_S_MAX = 0.3


class Faults:
    """Makes trouble until it is stopped, and then sees that all is well again."""

    def __init__(
        self,
        brokers: dict[int, SimulatedBroker],
        network: Network,
        source: random.Random,
        history: list[str],
        server: ZooKeeperServer,
    ) -> None:
        """`history` gets a line for everything that is done."""
        self._server = server
        self._brokers = brokers
        self._network = network
        self._random = source
        self._busy: set[int] = set()
        """Brokers that are not running as they should, or are being stopped or started."""
        self._damaged: int | None = None
        self._under_way: dict[asyncio.Task[None], None] = {}
        everything = self._kinds()
        # Few kinds in a history let each go further than all of them at once would (swarm testing).
        self._chosen = source.sample(everything, source.randint(1, len(everything)))
        self._history = history

    async def run(self, duration_s: float) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + duration_s
        while loop.time() < end_s:
            await asyncio.sleep(self._random.random() * 1.2)
            fault = self._random.choice(self._chosen)
            task = asyncio.create_task(fault())
            self._under_way[task] = None
            task.add_done_callback(lambda done: self._under_way.pop(done, None))

    async def end(self) -> None:
        """Let everything that was begun come to its end."""
        while self._under_way:
            await asyncio.gather(*self._under_way)
        self._network.calm = True

    def _kinds(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        return [
            self._kill,
            self._kill,
            self._lose_power,
            self._stop,
            self._pause,
            self._cut_from_zookeeper,
            self._cut_one_way,
            self._isolate,
            self._fill_disk,
            self._break_disk,
            self._slow_disk,
            self._kill_all,
            self._cut_all_from_zookeeper,
            self._stop_zookeeper,
            self._stop_zookeeper,
            self._hang_zookeeper,
            self._misjudge,
            self._move,
            self._move,
            self._move,
            self._elect,
        ]

    def _note(self, text: str) -> None:
        self._history.append(f"{asyncio.get_running_loop().time():7.3f} {text}")

    def _duration_s(self) -> float:
        """Often just about a session's length, where things are awkward."""
        if self._random.random() < 0.5:
            return SESSION_S * (0.6 + 0.9 * self._random.random())
        return self._random.random() * 3

    def _choose(self) -> SimulatedBroker | None:
        free = [broker_id for broker_id in self._brokers if broker_id not in self._busy]
        return self._brokers[self._random.choice(free)] if free else None

    # --- Processes ---

    async def _kill(self) -> None:
        broker = self._choose()
        if broker is not None:
            self._busy.add(broker.broker_id)
            await self._crash(broker, lose_unsynced=False)

    async def _kill_all(self) -> None:
        if self._random.random() < 0.5:
            return
        victims = [broker for broker in self._brokers.values() if broker.broker_id not in self._busy]
        self._busy.update(broker.broker_id for broker in victims)
        await asyncio.gather(*(self._crash(broker, lose_unsynced=False) for broker in victims))

    async def _lose_power(self) -> None:
        broker = self._choose()
        if broker is None or self._damaged is not None:
            return
        self._busy.add(broker.broker_id)
        self._damaged = broker.broker_id
        await self._crash(broker, lose_unsynced=True)
        await self._heal(broker)

    async def _heal(self, broker: SimulatedBroker) -> None:
        """Wait until a broker that has lost something is in sync everywhere again."""
        while not self._in_sync_everywhere(broker):  # noqa: ASYNC110  # ZooKeeper's tree tells nobody here
            await asyncio.sleep(0.1)
        self._damaged = None

    def _in_sync_everywhere(self, broker: SimulatedBroker) -> bool:
        ledger = broker.ledger
        return broker.alive and all(
            state is not None
            and broker.broker_id in state.isr
            and ledger.is_unbroken(state, broker.broker_id)
            for state in (
                ledger.state(partition)
                for partition, holders in ledger.replicas().items()
                if broker.broker_id in holders
            )
        )

    async def _crash(self, broker: SimulatedBroker, *, lose_unsynced: bool) -> None:
        self._note(f"kill {broker.broker_id}{' and lose what was not synced' if lose_unsynced else ''}")
        life = broker.ledger.life(broker.broker_id)
        broker.crash(lose_unsynced=lose_unsynced)
        if self._random.random() < 0.5:
            await asyncio.sleep(0.25 + self._random.random() * 0.2)
            await self._notice_death(broker.broker_id, life)
        await asyncio.sleep(self._duration_s())
        await self._start(broker)

    async def _notice_death(self, broker_id: int, life: int) -> None:
        """As `server/failure_detector.py`: the controller sees it, or anyone if it was the controller."""
        for other in list(self._network.brokers.values()):
            watches = other.member.is_controller or other.member.view.controller_id == broker_id
            if watches and other.broker_id != broker_id:
                other.spawn(other.member.controllership.fence(broker_id, life))

    async def _start(self, broker: SimulatedBroker) -> None:
        self._note(f"start {broker.broker_id}")
        await broker.start()
        self._busy.discard(broker.broker_id)

    async def _stop(self) -> None:
        broker = self._choose()
        if broker is None:
            return
        self._busy.add(broker.broker_id)
        self._note(f"stop {broker.broker_id}")
        await broker.stop()
        await asyncio.sleep(self._duration_s())
        await self._start(broker)

    async def _pause(self) -> None:
        broker = self._choose()
        if broker is None:
            return
        self._busy.add(broker.broker_id)
        self._note(f"pause {broker.broker_id}")
        broker.running.clear()
        broker.zookeeper.pause()
        await asyncio.sleep(self._duration_s())
        self._resume(broker)

    def _resume(self, broker: SimulatedBroker) -> None:
        self._note(f"resume {broker.broker_id}")
        broker.running.set()
        broker.zookeeper.resume()
        self._busy.discard(broker.broker_id)

    async def _misjudge(self) -> None:
        """The controller pauses while it carries out a failover, and the others take it for dead.

        As when a firewall refuses in its place: it lives, its session too, but not its leaderships.
        """
        controllers = [broker for broker in self._network.brokers.values() if broker.member.is_controller]
        if not controllers or controllers[0].broker_id in self._busy:
            return
        controller = controllers[0]
        self._busy.add(controller.broker_id)
        controller.ledger.leaderships_are_exclusive = False
        victim = self._choose()
        crash = None
        if victim is not None:
            self._busy.add(victim.broker_id)
            life = victim.ledger.life(victim.broker_id)
            crash = asyncio.create_task(self._crash(victim, lose_unsynced=False))
            await asyncio.sleep(0.001)
            await self._notice_death(victim.broker_id, life)
        await asyncio.sleep(self._random.random() * 0.05)
        self._note(f"pause {controller.broker_id} and take it for dead")
        controller.running.clear()
        controller.zookeeper.pause()
        await self._notice_death(controller.broker_id, controller.ledger.life(controller.broker_id))
        await asyncio.sleep(SESSION_S * (0.2 + 0.6 * self._random.random()))
        self._resume(controller)
        if crash is not None:
            await crash

    # --- Links ---

    async def _cut_from_zookeeper(self) -> None:
        broker = self._choose()
        if broker is not None:
            await self._cut_link(broker)

    async def _cut_all_from_zookeeper(self) -> None:
        await asyncio.gather(
            *(
                self._cut_link(broker)
                for broker in self._brokers.values()
                if broker.broker_id not in self._busy
            )
        )

    async def _stop_zookeeper(self) -> None:
        """The whole ensemble is gone for a while, whatever else happens to brokers."""
        if not self._server.is_up.is_set():
            return
        self._note("stop ZooKeeper")
        self._server.stop()
        await asyncio.sleep(self._duration_s() * (1 + self._random.random()))
        keeps_sessions = self._random.random() < 0.5
        self._note(f"start ZooKeeper, {'with' if keeps_sessions else 'without'} its sessions")
        self._server.start(lambda: keeps_sessions)

    async def _hang_zookeeper(self) -> None:
        """The whole ensemble stands still, and connections to it are accepted and not answered.

        If that lasts long enough, none, some or all of the sessions have ended when it goes on.
        """
        if not self._server.is_up.is_set():
            return
        self._note("ZooKeeper hangs")
        self._server.hang()
        duration_s = self._duration_s() * (1 + self._random.random())
        await asyncio.sleep(duration_s)
        kept_share = self._random.choice((0.0, 0.5, 1.0)) if duration_s > SESSION_S else 1.0
        self._note(f"ZooKeeper goes on, and keeps a session with a chance of {kept_share}")
        self._server.start(lambda: self._random.random() < kept_share)

    async def _cut_link(self, broker: SimulatedBroker) -> None:
        self._busy.add(broker.broker_id)
        self._note(f"cut {broker.broker_id} from ZooKeeper")
        broker.zookeeper.cut()
        await asyncio.sleep(self._duration_s())
        self._note(f"mend {broker.broker_id} to ZooKeeper")
        broker.zookeeper.mend()
        self._busy.discard(broker.broker_id)

    async def _cut_one_way(self) -> None:
        origin, target = self._random.sample(sorted(self._brokers), 2)
        await self._cut({(origin, target)})

    async def _isolate(self) -> None:
        alone = self._random.choice(sorted(self._brokers))
        others = [broker_id for broker_id in self._brokers if broker_id != alone]
        await self._cut({(alone, other) for other in others} | {(other, alone) for other in others})

    async def _cut(self, pairs: set[tuple[int, int]]) -> None:
        self._note(f"cut {sorted(pairs)}")
        self._network.cut |= pairs
        await asyncio.sleep(self._duration_s())
        self._note(f"mend {sorted(pairs)}")
        self._network.cut -= pairs

    # --- Disks ---

    async def _fill_disk(self) -> None:
        """Nothing can be written for a while."""
        broker = self._choose()
        if broker is None or self._damaged is not None:
            return
        self._damaged = broker.broker_id
        self._note(f"disks of {broker.broker_id} are full")
        for disk in broker.disks.disks.values():
            disk.is_full = True
        await asyncio.sleep(self._duration_s())
        self._note(f"disks of {broker.broker_id} have room")
        for disk in broker.disks.disks.values():
            disk.is_full = False
        self._damaged = None

    async def _slow_disk(self) -> None:
        """Writes block the broker again and again, and what it has written does not reach the disk.

        Its session lives on: ZooKeeper's client has a thread of its own.
        """
        broker = self._choose()
        if broker is None:
            return
        self._note(f"disks of {broker.broker_id} are slow")
        for disk in broker.disks.disks.values():
            disk.is_slow = True
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._duration_s()
        while loop.time() < end_s:
            await asyncio.sleep(self._random.random() * 0.1)
            await self._stall(broker, STALL_S_MAX)
        self._note(f"disks of {broker.broker_id} are as fast as ever")
        for disk in broker.disks.disks.values():
            disk.is_slow = False

    async def _stall(self, broker: SimulatedBroker, seconds_max: float) -> None:
        """Have a broker stand still for a moment, if nothing else is wrong with it."""
        if broker.broker_id in self._busy:
            return
        self._busy.add(broker.broker_id)
        broker.running.clear()
        await asyncio.sleep(self._random.random() * seconds_max)
        broker.running.set()
        self._busy.discard(broker.broker_id)

    async def _break_disk(self) -> None:
        """The disk of a data directory breaks, or all of them; some time and maybe lives later it is mended.

        A broker that goes on with what is left is open to the other faults meanwhile; one with nothing
        left stops by itself.
        """
        broker = self._choose()
        if broker is None or self._damaged is not None:
            return
        self._damaged = broker.broker_id
        disks = list(broker.disks.disks.values())
        if self._random.random() < 0.2:
            self._busy.add(broker.broker_id)
            self._break(broker, disks)
            await broker.failed.wait()
            await broker.stop()
            await asyncio.sleep(self._duration_s())
        else:
            disks = [self._random.choice(disks)]
            self._break(broker, disks)
            await asyncio.sleep(self._duration_s())
            while broker.broker_id in self._busy:  # noqa: ASYNC110  # another fault has it
                await asyncio.sleep(0.05)
            self._busy.add(broker.broker_id)
            self._note(f"stop {broker.broker_id} to mend its disk")
            await broker.stop()
        self._mend(broker, disks)
        await asyncio.sleep(self._random.random())
        await self._start(broker)
        await self._heal(broker)

    def _break(self, broker: SimulatedBroker, disks: list[Disk]) -> None:
        self._note(f"{', '.join(str(disk.directory) for disk in disks)} of {broker.broker_id} breaks")
        for disk in disks:
            disk.is_broken = True

    def _mend(self, broker: SimulatedBroker, disks: list[Disk]) -> None:
        """A disk comes back as it was, but for what had not reached it, or empty."""
        for disk in disks:
            disk.is_broken = False
            broker.disks.lose_unsynced(disk.directory)
            if self._random.random() < 0.5:
                self._note(f"{disk.directory} of {broker.broker_id} is replaced by an empty one")
                broker.disks.replace(disk.directory)

    # --- What people ask for ---

    async def _move(self) -> None:
        """Have a partition held by other brokers, or take the last wish back."""
        broker = self._anyone()
        if broker is None:
            return
        topic = broker.member.view.topics[broker.ledger.topic]
        index = self._random.choice(sorted(topic.assignment.replicas))
        target = tuple(self._random.sample(sorted(self._brokers), self._random.choice((2, 3, 3))))
        takes_back = self._random.random() < 0.3
        before = broker.ledger.replicas()[index]
        self._note(f"take the move of {index} back" if takes_back else f"move {index} to {target}")
        await self._wish(broker, index, lambda move: move.origin if takes_back else target)
        if self._random.random() < 0.5:
            await self._move_back(index, before)

    async def _move_back(self, index: int, before: tuple[int, ...]) -> None:
        """Bring back whom a move lets go as soon as it has ended, while all stand still by turns.

        So some hear of both at once, and others of one after the other.
        """
        hiccups = [asyncio.create_task(self._stand_still(broker)) for broker in self._brokers.values()]
        end_s = asyncio.get_running_loop().time() + STALL_S_MAX
        while asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(self._random.random() * 0.02)
            broker = self._anyone()
            if broker is not None and not set(before) <= set(broker.ledger.replicas()[index]):
                self._note(f"move {index} back to {before}")
                await self._wish(broker, index, lambda _: before)
                break
        await asyncio.gather(*hiccups)

    async def _stand_still(self, broker: SimulatedBroker) -> None:
        """Again and again, for some milliseconds each, as for the collection of garbage."""
        for _ in range(4):
            await asyncio.sleep(self._random.random() * 0.05)
            await self._stall(broker, 0.05)

    async def _wish(
        self, broker: SimulatedBroker, index: int, target_of: Callable[[Move], tuple[int, ...]]
    ) -> None:
        """Have a broker write that other brokers shall hold a partition."""
        topic = broker.member.view.topics[broker.ledger.topic]

        def change(assignment: TopicAssignment) -> TopicAssignment:
            move = move_of(assignment, index)
            return with_moves(assignment, {index: move.towards(target_of(move))})

        await self._ask(
            broker, broker.member.administration.change_assignment(topic.name, topic.topic_id, change)
        )

    async def _elect(self) -> None:
        """Have the preferred leaders lead."""
        broker = self._anyone()
        if broker is None:
            return
        topic = broker.member.view.topics[broker.ledger.topic]
        self._note("elect preferred leaders")
        elections = [(topic.topic_id, index, int(ElectionType.PREFERRED)) for index in sorted(topic.states)]
        await self._ask(broker, broker.member.administration.ask_for_elections(elections))

    def _anyone(self) -> SimulatedBroker | None:
        """A broker that answers."""
        joined = [broker for broker in self._network.brokers.values() if broker.joined]
        return self._random.choice(joined) if joined else None

    @staticmethod
    async def _ask(broker: SimulatedBroker, work: Coroutine[Any, Any, Any]) -> None:
        """Have the broker do it, unless its life ends, or that of its session."""
        task: asyncio.Task[Any] = broker.spawn(work)
        await asyncio.wait([task])
        try:
            await task
        except (asyncio.CancelledError, ZooKeeperUnavailable):
            pass
