"""What members of a group of KIP-848 subscribe to, as topics that there are. Pure.

Lives here: names and expressions to topics, kept for as long as the cluster's topics stay the same. Must not:
who subscribes (`consumer_group.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from uuid import UUID

from mainstem_broker.group.topic_patterns import TopicPattern
from mainstem_broker.group.topics import Topics

Interest = tuple[tuple[str, ...], str | None]
"""What a member subscribes to: names, and a regular expression."""


class SubscribedTopics:
    """Of one group. `refresh` before use, whenever the cluster's topics may have changed."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._version: int | None = None
        """Of the cluster's topics that `_names` are of."""
        self._hashed_version: int | None = None
        self._patterns: dict[str, TopicPattern] = {}
        self._names: dict[Interest, frozenset[str]] = {}

    def refresh(self) -> bool:
        """Whether the cluster's topics have changed since `hash` was last asked for, whoever else looked."""
        if self._version != self._topics.version:
            self._version = self._topics.version
            self._names.clear()
        return self._version != self._hashed_version

    def require_pattern(self, regex: str) -> None:
        """Raise InvalidRegularExpression if it is none."""
        if regex not in self._patterns:
            self._patterns[regex] = TopicPattern(regex)

    def forget(self, in_use: Collection[Interest]) -> None:
        """Keep only what members still subscribe to."""
        self._names = {interest: names for interest, names in self._names.items() if interest in in_use}
        regexes = {regex for _, regex in in_use}
        self._patterns = {regex: pattern for regex, pattern in self._patterns.items() if regex in regexes}

    def names(self, interest: Interest) -> frozenset[str]:
        """The names asked for, and those of all topics that the expression matches."""
        found = self._names.get(interest)
        if found is None:
            names, regex = interest
            matched: Iterable[str] = ()
            if regex is not None:
                self.require_pattern(regex)
                matched = filter(self._patterns[regex].matches, self._topics.names())
            found = self._names[interest] = frozenset((*names, *matched))
        return found

    def ids(self, interest: Interest) -> frozenset[UUID]:
        """Of those topics that exist."""
        found = (self._topics.topic_id(name) for name in self.names(interest))
        return frozenset(topic_id for topic_id in found if topic_id is not None)

    def partition_counts(self, interests: Collection[Interest]) -> dict[UUID, int]:
        """Of all topics that somebody subscribes to, by id."""
        counts = {}
        for name in sorted(frozenset[str]().union(*map(self.names, interests))):
            topic_id = self._topics.topic_id(name)
            if topic_id is not None:
                counts[topic_id] = self._topics.partition_count(name)
        return counts

    def hash(self, interests: Collection[Interest]) -> int:
        """Another one when targets have to be computed anew; 0: none of the topics exists."""
        self._hashed_version = self._version
        counts = self.partition_counts(interests)
        if not counts:
            return 0
        digest = hashlib.blake2b(digest_size=8)
        for topic_id, count in sorted(counts.items(), key=lambda one: one[0].int):
            digest.update(topic_id.bytes + count.to_bytes(4, "big"))
        return int.from_bytes(digest.digest(), "big", signed=True)
