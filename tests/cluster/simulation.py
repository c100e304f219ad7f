"""One simulated history: a cluster, its clients, trouble for some seconds, then calm, and the checks.

`run(seed)` is the whole interface; equal seeds make equal histories.
"""

from __future__ import annotations

import asyncio
import math
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from tests.cluster.clients import Consumer, Producer, RackConsumer, Trimmer
from tests.cluster.faults import Faults
from tests.cluster.idempotent_client import IdempotentProducer
from tests.cluster.invariants import Ledger, Violation
from tests.cluster.network import Network
from tests.cluster.simulated_broker import SimulatedBroker
from tests.cluster.simulated_zookeeper import ZooKeeperServer
from tests.cluster.virtual_time import VirtualLoop, run_in_virtual_time

from mainstem_broker.cluster.znodes import TopicAssignment

TOPIC = "t"
PARTITIONS = 2
TROUBLE_S = 7.0
CALM_S_MAX = 60.0
STORY_S_MAX = 150.0
CHECK_INTERVAL_S = 0.05
SEGMENT_BYTES = 1_500
RETAINED_BYTES = 4_000
THREAD_S_MAX = 0.3
"""What creating or deleting a log may take, as on a busy disk."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a history came to; equal for equal seeds."""

    seed: int
    acknowledgements: int
    reads: int
    virtual_s: float
    contents: int
    """A checksum of the logs at the end."""


class Failed(AssertionError):
    """A seed whose history breaks an invariant."""

    def __init__(self, seed: int, error: BaseException, history: list[str]) -> None:
        reported = "\n".join(history)
        super().__init__(
            f"seed {seed}: {error}\n{reported}\n"
            f"Run it again: python -m tests.cluster.soak --first {seed} --seeds 1"
        )
        self.seed = seed
        self.error = error


def run(seed: int, *, idempotent: bool = False) -> Outcome:
    """Live through the history of a seed. If `idempotent`, with two more producers, which send again.

    Raises:
        Failed: an invariant does not hold, or the cluster does not recover.
    """
    history: list[str] = []
    try:
        return run_in_virtual_time(asyncio.wait_for(_live(seed, history, idempotent), STORY_S_MAX))
    except AssertionError as error:
        raise Failed(seed, error, history) from error
    except TimeoutError as error:
        endless = Violation(f"the story did not end within {STORY_S_MAX:.0f} s")
        raise Failed(seed, endless, history) from error
    except Exception as error:
        unforeseen = Violation(f"{type(error).__name__} in what nobody waited for: {error}")
        raise Failed(seed, unforeseen, history) from error


async def _live(seed: int, history: list[str], idempotent: bool) -> Outcome:
    source = random.Random(seed)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.thread_delay_s = lambda: source.choice((0.0, 0.001, THREAD_S_MAX * source.random()))
    server = ZooKeeperServer()
    ledger = Ledger(server, TOPIC)
    network = Network(source, source.choice((0.0, 0.02, 0.1)))
    brokers = {
        broker_id: SimulatedBroker(broker_id, server, network, source, ledger)
        for broker_id in range(1, source.choice((3, 3, 3, 4)) + 1)
    }
    ledger.brokers = brokers
    await asyncio.gather(*(broker.start() for broker in brokers.values()))
    replicas = {index: tuple(source.sample(sorted(brokers), 3)) for index in range(PARTITIONS)}
    assignment = TopicAssignment(TOPIC, UUID(int=source.getrandbits(128)), replicas)
    records_max = source.choice((1, 4, 20))
    trim_pause_s_max = source.choice((None, None, 4.0, 12.0))
    # An idempotent producer whose records retention deletes has to begin anew (KIP-360).
    is_retained = idempotent or source.random() < 0.85
    settings = {
        "segment.bytes": str(SEGMENT_BYTES),
        "retention.bytes": str(-1 if is_retained else RETAINED_BYTES),
        "retention.ms": "-1",
    }
    await brokers[1].member.administration.create_topic(assignment, settings)
    await until(ledger.all_in_sync, "the topic to begin")

    clients = [_check_all_the_time(ledger)]
    for index in range(PARTITIONS):
        clients += [
            Producer(TOPIC, index, network, source, ledger, 2 * index, records_max).run(),
            Producer(TOPIC, index, network, source, ledger, 2 * index + 1, records_max).run(),
            Consumer(TOPIC, index, network, source, ledger).run(),
            RackConsumer(TOPIC, index, network, source, ledger).run(),
        ]
    numbering = [
        IdempotentProducer(TOPIC, index, network, source, ledger, 100 + index, records_max)
        for index in range(PARTITIONS if idempotent else 0)
    ]
    clients += [producer.run() for producer in numbering]
    if trim_pause_s_max is not None:
        limits = [producer.deletable_offset for producer in numbering] or [lambda: math.inf] * PARTITIONS
        clients += [
            Trimmer(TOPIC, index, network, source, ledger, trim_pause_s_max, limit).run()
            for index, limit in enumerate(limits)
        ]
    tasks = [asyncio.create_task(client) for client in clients]
    faults = Faults(brokers, network, source, history, server)
    story = asyncio.create_task(_trouble_and_calm(faults, ledger))
    done, _ = await asyncio.wait([story, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()  # clients end only by a violation
    for task in tasks:
        task.cancel()
    await until(lambda: not ledger.left_behind(), "logs that were moved away to be deleted")
    await until(ledger.all_level, "the followers to have everything")
    ledger.check()
    ledger.check_ends()
    for producer in numbering:
        producer.check(ledger.log_of_leader(producer.index))
    return Outcome(
        seed,
        ledger.acknowledgements,
        ledger.reads,
        loop.time(),
        zlib.crc32(b"".join(ledger.contents(index) for index in range(PARTITIONS))),
    )


async def _trouble_and_calm(faults: Faults, ledger: Ledger) -> None:
    await faults.run(TROUBLE_S)
    await faults.end()
    await until(ledger.all_in_sync, "all to be in sync")
    before = ledger.acknowledgements
    await until(lambda: ledger.acknowledgements > before + 4, "records to be taken")


async def _check_all_the_time(ledger: Ledger) -> None:
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        ledger.check()


async def until(reached: Callable[[], bool], what: str) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + CALM_S_MAX
    while not reached():
        if loop.time() > end_s:
            raise Violation(f"waited {CALM_S_MAX:.0f} s for {what}")
        await asyncio.sleep(0.05)
