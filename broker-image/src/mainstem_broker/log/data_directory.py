"""One data directory of the broker: its lock, its owner, its mark of a clean stop, and the logs in it.

A data directory holds one directory per log, and
    meta.properties                        version=0, broker.id, cluster.id: whose data this is
    .lock                                  locked while a broker runs on the directory
    .kafka_cleanshutdown                   written last by a clean stop, removed at start
    recovery-point-offset-checkpoint       what is flushed, per partition
    log-start-offset-checkpoint            first readable offset, per partition
    replication-offset-checkpoint          high watermark, per partition
    cleaner-offset-checkpoint              up to where it is compacted, per partition
    tree-position-checkpoint               how far ZooKeeper's tree was read

In scope: what a start and a stop do with these files. Out of scope: the checkpoints (`checkpoints`), and the
logs of all directories (`log_manager`). Where not said otherwise, functions may raise OSError.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from mainstem_broker.errors import InvalidSetting, StartupError
from mainstem_broker.log import checkpoints
from mainstem_broker.log.deletion import unlink_all
from mainstem_broker.log.directory_names import (
    DELETED_DIRECTORY_SUFFIX,
    STRAY_DIRECTORY_SUFFIX,
    parse_directory_name,
    unique_directory_name,
)
from mainstem_broker.log.files import fsync_directory

logger = structlog.get_logger(__name__)

_LOCK: Final = ".lock"
_CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"


def lock(directory: Path) -> int:
    """Lock the directory for this process; returns the descriptor, which releases the lock when it is closed.

    Raises:
        StartupError: another broker has locked it.
    """
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise StartupError(
                f"Another broker runs on the data directory {directory}: "
                "stop it first, or name another directory in log.dirs."
            ) from None
        raise
    return descriptor


def check_owner(directory: Path, broker_id: int, cluster_id: str) -> None:
    """Check that the directory belongs to this broker, or take a new one for it.

    Raises:
        StartupError: it belongs to another broker or cluster, or its meta.properties cannot be read.
    """
    try:
        properties = checkpoints.read_meta_properties(directory)
    except InvalidSetting as error:
        raise StartupError(
            f"{directory / checkpoints.META_PROPERTIES} cannot be read ({error}): restore it, or "
            "remove it if this directory surely belongs to this broker."
        ) from error
    if not properties:
        checkpoints.write_meta_properties(directory, broker_id, cluster_id)
        return
    for name, ours in (("version", "0"), ("broker.id", str(broker_id)), ("cluster.id", cluster_id)):
        theirs = properties.get(name, ours)
        if theirs != ours:
            raise StartupError(
                f"The data directory {directory} has {name} {theirs}, but this broker's is {ours}: "
                "name the directory that belongs to it in log.dirs, or correct the setting."
            )


def mark_clean_shutdown(directory: Path) -> None:
    """Say that all logs in the directory are closed, and its checkpoints written."""
    checkpoints.write_atomically(directory / _CLEAN_SHUTDOWN, json.dumps({"version": 0}))


def take_clean_shutdown_mark(directory: Path) -> bool:
    """Whether the last stop was clean; the mark is removed, so the next start needs a new one."""
    try:
        (directory / _CLEAN_SHUTDOWN).unlink()
    except FileNotFoundError:
        return False
    fsync_directory(directory)
    return True


def find_logs(directory: Path) -> list[Path]:
    """The directories of logs in a data directory, after removing those that were being deleted."""
    logs: list[Path] = []
    for path in sorted(path for path in directory.iterdir() if path.is_dir()):
        if path.name.endswith(DELETED_DIRECTORY_SUFFIX):
            unlink_all([path])
            continue
        try:
            parse_directory_name(path.name)
        except ValueError:
            logger.warning("directory is no log and is left alone", path=str(path))
            continue
        logs.append(path)
    return logs


def set_aside(log_directory: Path) -> Path:
    """Rename a log's directory so that it no longer counts, and return the new path. A person removes it."""
    name = unique_directory_name(log_directory.name, STRAY_DIRECTORY_SUFFIX)
    return log_directory.rename(log_directory.with_name(name))


def refuse_duplicates(log_directories: Iterable[Path]) -> None:
    """Check that no partition has logs in two data directories.

    Raises:
        StartupError: one has.
    """
    directory_by_name: dict[str, Path] = {}
    for path in log_directories:
        other = directory_by_name.setdefault(path.name, path)
        if other is not path:
            raise StartupError(
                f"Both {other} and {path} hold the same partition: move the outdated one to another place."
            )
