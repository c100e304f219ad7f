"""The small text files beside the logs: offset checkpoints, leader epochs, topic id, whose directory it is.

In scope: their formats, atomic writing, and what becomes of a broken one. Out of scope: when they are
written.

A checkpoint is the version `0`, the number of entries, and one entry per line:
    recovery-point-offset-checkpoint, log-start-offset-checkpoint, replication-offset-checkpoint,
    cleaner-offset-checkpoint:
        `topic partition offset`
    leader-epoch-checkpoint (in a log's directory): `epoch start-offset`
    tree-position-checkpoint: `restores change`
Every file is written beside its place, flushed, and renamed over the old one, so a crash leaves the old or
the new. A checkpoint that cannot be read is reported and taken for empty: the cost is a full recovery.
"""

from __future__ import annotations

import base64
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from mainstem_broker.config.properties import parse_properties
from mainstem_broker.errors import InvalidSetting
from mainstem_broker.log.files import fsync_directory
from mainstem_broker.log.leader_epochs import EpochCache, EpochEntry
from mainstem_broker.protocol.topic_partition import TopicPartition

logger = structlog.get_logger(__name__)

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
FIRST_DIRTY_OFFSETS: Final = "cleaner-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
OF_OFFSETS: Final = (RECOVERY_POINTS, LOG_START_OFFSETS, FIRST_DIRTY_OFFSETS, HIGH_WATERMARKS)
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
TREE_POSITION: Final = "tree-position-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
META_PROPERTIES: Final = "meta.properties"
TEMPORARY_SUFFIX: Final = ".tmp"

_VERSION: Final = "0"


class TreePosition(NamedTuple):
    """How far ZooKeeper's tree has been read; of two positions in one tree the later is the greater.

    A tree whose position is lower than one that was read before was restored from an older backup.

    - `restores`: how often that was noticed.
    - `change`: the number of the last entry of the feed of changes, or -1.
    """

    restores: int
    change: int


def write_atomically(path: Path, text: str, *, flush_name: bool = True) -> None:
    """Replace the file by `text`: a crash leaves the old text or the new. May raise OSError.

    Without `flush_name` a crash of the machine may also leave the old one after this has returned.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    if flush_name:
        fsync_directory(path.parent)


def write_offsets(directory: Path, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Write an offset checkpoint into a data directory. May raise OSError."""
    _write(
        directory / name, (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())
    )


def read_offsets(directory: Path, name: str) -> dict[TopicPartition, int]:
    """An offset checkpoint of a data directory; empty when it is missing or broken."""
    try:
        return parse_offsets(directory / name)
    except ValueError as error:
        _report_broken(directory / name, error)
        return {}


def parse_offsets(path: Path) -> dict[TopicPartition, int]:
    """The offsets in a checkpoint; empty when there is no file.

    Raises:
        ValueError: it is not an offset checkpoint; the message says why.
    """
    offsets: dict[TopicPartition, int] = {}
    for line in _read(path):
        try:
            topic, partition, offset = line.split()
            offsets[topic, int(partition)] = int(offset)
        except ValueError:
            raise ValueError(f"{line[:80]!r} is not a topic, a partition and an offset") from None
    return offsets


def write_epochs(directory: Path, entries: Iterable[EpochEntry]) -> None:
    """Write a log's leader epochs. May raise OSError."""
    _write(directory / LEADER_EPOCHS, (f"{entry.epoch} {entry.start_offset}" for entry in entries))


def read_epochs(directory: Path) -> EpochCache:
    """A log's leader epochs; none when the file is missing or broken."""
    path = directory / LEADER_EPOCHS
    try:
        return EpochCache(parse_epochs(path))
    except ValueError as error:
        _report_broken(path, error)
        return EpochCache()


def parse_epochs(path: Path) -> list[EpochEntry]:
    """The entries of a log's leader epochs as they are in the file; empty when there is no file.

    Raises:
        ValueError: it is not such a checkpoint; the message says why.
    """
    entries = []
    for line in _read(path):
        try:
            epoch, start_offset = line.split()
            entries.append(EpochEntry(int(epoch), int(start_offset)))
        except ValueError:
            raise ValueError(f"{line[:80]!r} is not an epoch and an offset") from None
    return entries


def write_tree_position(directory: Path, position: TreePosition) -> None:
    """Write the position of ZooKeeper's tree into a data directory. May raise OSError."""
    _write(directory / TREE_POSITION, [f"{position.restores} {position.change}"])


def read_tree_position(directory: Path) -> TreePosition | None:
    """The position in a data directory; None when the file is missing or broken."""
    path = directory / TREE_POSITION
    try:
        for line in _read(path):
            restores, change = line.split()
            return TreePosition(int(restores), int(change))
    except ValueError as error:
        _report_broken(path, error)
    return None


def _write(path: Path, lines: Iterable[str]) -> None:
    entries = list(lines)
    write_atomically(path, "\n".join([_VERSION, str(len(entries)), *entries, ""]))


def _read(path: Path) -> list[str]:
    """The entries of a checkpoint. Raises ValueError when it is not one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    if len(lines) < 2 or lines[0] != _VERSION:
        raise ValueError("it does not begin with a version and a count")
    if len(lines) - 2 != int(lines[1]):
        raise ValueError(f"it promises {lines[1]} entries and holds {len(lines) - 2}")
    return lines[2:]


def _report_broken(path: Path, error: Exception) -> None:
    logger.warning("checkpoint is broken and ignored", path=str(path), why=str(error))


def write_topic_id(directory: Path, topic_id: uuid.UUID) -> None:
    """Write `partition.metadata`, which binds a log to one topic id. May raise OSError.

    Written before the log's other files, it outlives a crash that any of them outlives.
    """
    text = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    write_atomically(directory / PARTITION_METADATA, f"version: 0\ntopic_id: {text}", flush_name=False)


def read_topic_id(directory: Path) -> uuid.UUID | None:
    """The topic id of `partition.metadata`; None when the file is missing or broken."""
    path = directory / PARTITION_METADATA
    try:
        return parse_topic_id(path)
    except ValueError as error:
        _report_broken(path, error)
        return None


def parse_topic_id(path: Path) -> uuid.UUID | None:
    """The topic id in a `partition.metadata`; None when there is no file.

    Raises:
        ValueError: it holds none.
    """
    try:
        fields = dict(line.split(": ", 1) for line in path.read_text(encoding="utf-8").splitlines())
        return uuid.UUID(bytes=base64.urlsafe_b64decode(fields["topic_id"].strip() + "=="))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        raise ValueError("it holds no topic id") from error


def write_meta_properties(directory: Path, broker_id: int, cluster_id: str) -> None:
    """Write whose data a directory holds. May raise OSError."""
    write_atomically(
        directory / META_PROPERTIES, f"version=0\nbroker.id={broker_id}\ncluster.id={cluster_id}\n"
    )


def read_meta_properties(directory: Path) -> dict[str, str]:
    """The properties of `meta.properties`; empty when there is no such file.

    Raises:
        InvalidSetting: it is not a properties file.
    """
    try:
        return parse_properties((directory / META_PROPERTIES).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"{directory / META_PROPERTIES} is not text.") from error
