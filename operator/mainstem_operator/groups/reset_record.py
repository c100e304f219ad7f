"""The record of a group's completed resets, which is kept next to its offsets. Pure.

The status of a ConsumerGroup is lost when the object is deleted, or restored without it, and then a request
that was carried out long ago would be carried out again. So the same commit that sets the offsets also
stores this record: as the metadata of offsets that the group has "committed" for `__consumer_offsets`, a
topic that exists wherever a group has offsets and that no consumer of the group reads. Both are stored at
once or not at all, and both go when the group is deleted.

The record is JSON in ASCII, cut into pieces of `PIECE_CHARACTERS`, one for each partition from 0 on:
`{"pieces": 1, "done": ["DIGEST", ...], "request": "r1", "undo": [["clicks", 0, 20, 100], ...]}`. `done`
lists the digests of the completed requests, the newest last; `undo` what the newest one changed: topic,
partition, the offset before (null for none) and after.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mainstem_operator.api.whole_numbers import is_whole_number

PIECE_CHARACTERS: Final = 4000  # offset.metadata.max.bytes is 4096 unless somebody has lowered it
_DONE_MAX: Final = 200
_DIGEST_CHARACTERS: Final = 16

Undo = tuple[tuple[str, int, int | None, int], ...]
"""Topic, partition, offset before (None for none) and after."""


@dataclass(frozen=True, slots=True)
class ResetRecord:
    """Which requests have been carried out, and what the newest one, `request`, changed."""

    done: tuple[str, ...] = ()
    request: str = ""
    undo: Undo = ()

    def has(self, request_id: str) -> bool:
        """Whether this request has been carried out."""
        return _digest(request_id) in self.done

    def with_completed(self, request_id: str, undo: Undo) -> ResetRecord:
        """The record once this request is carried out."""
        digest = _digest(request_id)
        earlier = tuple(item for item in self.done if item != digest)
        return ResetRecord((*earlier, digest)[-_DONE_MAX:], request_id, undo)


def pieces_of(record: ResetRecord, pieces_max: int) -> list[str]:
    """The record as metadata of at most so many offsets: without `undo` where that does not fit, and then
    without as many of the oldest requests as needed.
    """
    text, limit = _text(record), pieces_max * PIECE_CHARACTERS
    if len(text) > limit:
        record = replace(record, undo=())
        text = _text(record)
    while len(text) > limit and len(record.done) > 1:
        record = replace(record, done=record.done[1:])
        text = _text(record)
    return [text[start : start + PIECE_CHARACTERS] for start in range(0, len(text), PIECE_CHARACTERS)]


def record_in(metadata: Mapping[int, str]) -> ResetRecord:
    """The record in a group's metadata, by partition of `__consumer_offsets`; empty if there is none."""
    # A shorter record leaves the last pieces of a longer one behind: the first piece says how many count.
    first = metadata.get(0, "")
    count = first.partition(",")[0].removeprefix('{"pieces": ')
    if not is_whole_number(count):
        return ResetRecord()
    try:
        record = json.loads("".join(metadata.get(piece, "") for piece in range(int(count))))
        return ResetRecord(
            tuple(map(str, record["done"])),
            str(record["request"]),
            tuple(
                (str(topic), int(partition), None if before is None else int(before), int(after))
                for topic, partition, before, after in record["undo"]
            ),
        )
    except (ValueError, KeyError, TypeError):
        return ResetRecord()


def _text(record: ResetRecord) -> str:
    body: dict[str, Any] = {"done": record.done, "request": record.request, "undo": record.undo}
    count = 1
    while True:  # the number of pieces is part of the text
        text = json.dumps({"pieces": count, **body})
        needed = -(-len(text) // PIECE_CHARACTERS)
        if needed <= count:
            return text
        count = needed


def _digest(request_id: str) -> str:
    return hashlib.sha256(request_id.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def undo_of(changes: Sequence[Any]) -> Undo:
    """What a reset changes, to be recorded with it."""
    return tuple((item.topic, item.partition, item.before, item.after) for item in changes)
