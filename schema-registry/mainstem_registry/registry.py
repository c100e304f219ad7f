"""One instance: reads from its own state, writes if it leads, and hands writes to the leader if not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import structlog

from mainstem_registry.election import Election
from mainstem_registry.errors import RegistryError, leader_unknown, store_failed
from mainstem_registry.records import Record
from mainstem_registry.state import RegistryState
from mainstem_registry.store import Store

logger = structlog.get_logger(__name__)

Answer = TypeVar("Answer")
Decision = Callable[[RegistryState], tuple[Answer, Sequence[Record]]]

ATTEMPTS: Final = 5
"""How often a write is decided again because a former leader's record came in between."""
LEADER_WAIT_S: Final = 15.0


class NotLeader(Exception):
    """The write belongs to the instance at `leader_url`."""

    def __init__(self, leader_url: str) -> None:
        super().__init__(leader_url)
        self.leader_url = leader_url


class Registry:
    """Puts store and election together."""

    def __init__(self, store: Store, election: Election) -> None:
        self.store = store
        self.election = election
        self._writing = asyncio.Lock()
        self._prepared_generation: int | None = None
        """The generation in which this instance, as leader, has read all that was written before."""

    async def read(self, query: Callable[[RegistryState], Answer], *, newest: bool = False) -> Answer:
        """What `query` finds. What it does not find is looked for in the newest records, too.

        `newest` is for queries whose answer misleads if records are missing, although they find something:
        all records that are in the topic now are applied first.

        Raises:
            RegistryError: of the query, or the topic cannot be read.
        """
        self._check_loaded()
        if newest:
            await self.store.catch_up()
            return query(self.store.state)
        try:
            return query(self.store.state)
        except RegistryError as error:
            if error.status != 404:
                raise
        await self.store.catch_up()
        return query(self.store.state)

    async def write(self, decide: Decision[Answer]) -> Answer:
        """Decide and append as the leader, and wait until the decision is part of the state.

        Raises:
            NotLeader: another instance leads.
            RegistryError: of the decision; or no instance leads; or the topic cannot be written.
        """
        self._check_loaded()
        leader_url = await self.election.wait_for_leader(LEADER_WAIT_S)
        if leader_url is None:
            raise leader_unknown()
        async with self._writing:
            if not self.election.is_leader:
                if self.election.leader_url is None:
                    raise leader_unknown()
                raise NotLeader(self.election.leader_url)
            generation = self.election.generation
            if self._prepared_generation != generation:
                await self.store.prepare_writes()
                self._prepared_generation = generation
            try:
                return await self._decide_and_append(decide)
            except RegistryError as error:
                if error.status >= 500:  # whether it was written is open: read first, next time
                    self._prepared_generation = None
                raise
            except asyncio.CancelledError:
                self._prepared_generation = None
                raise

    def _check_loaded(self) -> None:
        if not self.store.loaded.is_set():
            raise store_failed("the topic is still being read. Try again.")

    async def _decide_and_append(self, decide: Decision[Answer]) -> Answer:
        for _ in range(ATTEMPTS):
            answer, records = decide(self.store.state)
            if not records or await self.store.append(records):
                return answer
            await self.store.repair()
        raise store_failed("another leader writes at the same time. Try again.")
