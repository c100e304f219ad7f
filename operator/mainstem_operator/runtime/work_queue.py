"""What is to be looked at next: one queue of keys, worked on by a few tasks.

A key is worked on by one task at a time. One that is added while it is worked on is looked at again after;
one that is added many times meanwhile, once. So a burst of events costs one look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["cluster", "topics", "groups", "users"]
GATHER_SECONDS: Final = 0.2  # events come in bursts: 300 Topics that are applied at once are one look


@dataclass(frozen=True, slots=True)
class Key:
    """The BrokerCluster `name` itself, or its Topics, its ConsumerGroups or its Users."""

    kind: Kind
    namespace: str
    name: str


class WorkQueue:
    """Keys, each due at a moment of the loop's clock."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    @property
    def idle(self) -> bool:
        """Whether nothing is worked on, nor due within the time that events are gathered for."""
        soon = asyncio.get_running_loop().time() + GATHER_SECONDS
        return not self._busy and not any(due <= soon for due in self._due.values())

    def add(self, key: Key, after_seconds: float = GATHER_SECONDS) -> None:
        """Look at `key` then, or earlier if it is due earlier already."""
        due = asyncio.get_running_loop().time() + after_seconds
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._changed.set()

    async def work(self, look: Callable[[Key], Awaitable[float | None]]) -> None:
        """Take keys as they come due, for ever. `look` says in how many seconds to look again, if at all."""
        while True:
            key = await self._next()
            self._busy.add(key)
            try:
                again = await look(key)
            finally:
                self._busy.discard(key)
                self._changed.set()
            if again is not None:
                self.add(key, again)

    async def _next(self) -> Key:
        while True:
            self._changed.clear()
            now = asyncio.get_running_loop().time()
            waiting = {key: due for key, due in self._due.items() if key not in self._busy}
            ready = [key for key, due in waiting.items() if due <= now]
            if ready:
                key = min(ready, key=waiting.__getitem__)
                del self._due[key]
                return key
            timeout = min(waiting.values(), default=now + 3600) - now
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except TimeoutError:
                pass
