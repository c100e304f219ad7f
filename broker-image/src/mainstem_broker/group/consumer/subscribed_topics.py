"""The subscriptions of a consumer group's members, resolved to topics that exist. Pure.

Belongs here: names and expressions to topics, cached while the cluster's topics stay the same. Who subscribes
belongs to `group.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from mainstem_broker.group.consumer.topic_patterns import TopicPattern
from mainstem_broker.group.topics import Topics

Interest = tuple[tuple[str, ...], str | None, frozenset[str] | None]
"""A member's subscription: names, a regular expression, and the topics that it matches for this member.

The last one is None where every member may see all topics: then the expression alone decides.
"""


class SubscribedTopics:
    """Of one group. Call `refresh` before use, whenever the cluster's topics may have changed."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._version: int | None = None
        """Of the cluster's topics that `_names` was computed from."""
        self._hashed_version: int | None = None
        self._patterns: dict[str, TopicPattern] = {}
        self._names: dict[Interest, frozenset[str]] = {}

    def refresh(self) -> bool:
        """Drop cached names if topics have changed; returns whether they have since the last `hash`."""
        if self._version != self._topics.version:
            self._version = self._topics.version
            self._names.clear()
        return self._version != self._hashed_version

    def require_pattern(self, regex: str) -> None:
        """Raise InvalidRegularExpression unless the expression is valid."""
        if regex not in self._patterns:
            self._patterns[regex] = TopicPattern(regex)

    def forget(self, in_use: Collection[Interest]) -> None:
        """Drop cached names and patterns that no member subscribes to any more."""
        self._names = {interest: names for interest, names in self._names.items() if interest in in_use}
        regexes = {regex for _, regex, _ in in_use}
        self._patterns = {regex: pattern for regex, pattern in self._patterns.items() if regex in regexes}

    def names(self, interest: Interest) -> frozenset[str]:
        """The names that are subscribed to, and those of all topics that the expression matches."""
        resolved = self._names.get(interest)
        if resolved is None:
            names, regex, visible = interest
            matched: Iterable[str] = () if visible is None else visible
            if regex is not None and visible is None:
                matched = self._matches(regex)
            resolved = self._names[interest] = frozenset((*names, *matched))
        return resolved

    def visible(self, regex: str, may_see: Callable[[str], bool]) -> frozenset[str]:
        """The names of all topics that the expression matches and the client may see."""
        return frozenset(filter(may_see, self._matches(regex)))

    def _matches(self, regex: str) -> Iterable[str]:
        self.require_pattern(regex)
        return filter(self._patterns[regex].matches, self._topics.names())

    def ids(self, interest: Interest) -> frozenset[UUID]:
        """The ids of the subscribed topics that exist."""
        topic_ids = (self._topics.topic_id(name) for name in self.names(interest))
        return frozenset(topic_id for topic_id in topic_ids if topic_id is not None)

    def partition_counts(self, interests: Collection[Interest]) -> dict[UUID, int]:
        """The partition counts of all subscribed topics that exist, by id."""
        counts = {}
        for name in sorted(frozenset[str]().union(*map(self.names, interests))):
            topic_id = self._topics.topic_id(name)
            if topic_id is not None:
                counts[topic_id] = self._topics.partition_count(name)
        return counts

    def hash(self, interests: Collection[Interest]) -> int:
        """A hash of the ids and partition counts of all subscribed topics; 0 if none exists."""
        self._hashed_version = self._version
        counts = self.partition_counts(interests)
        if not counts:
            return 0
        digest = hashlib.blake2b(digest_size=8)
        for topic_id, count in sorted(counts.items(), key=lambda one: one[0].int):
            digest.update(topic_id.bytes + count.to_bytes(4, "big"))
        return int.from_bytes(digest.digest(), "big", signed=True)
