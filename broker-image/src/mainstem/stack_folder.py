"""The folder of a local stack: may it be used, by one stack at a time, and what does it hold.

layout.json                     {"layout": 1, "mainstem": VERSION}: which versions may open it
stack.lock                      held while a stack runs (flock); its text is the owner's process id
stack.json                      while all is ready: see `Stack.start`; removed by a clean stop
zookeeper/zoo.cfg, data/        keeps ZooKeeper's port and tree between runs
broker-N/server.properties      written at each start
broker-N/data/                  the partitions of broker N
broker-N/server.log             what broker N logs, one JSON object a line
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from pathlib import Path
from typing import IO, Any, Final

from mainstem import installed_version
from mainstem.errors import StackError

LAYOUT: Final = 1  # raised when a folder written by an older version can no longer be opened as it is
DISK_BYTES_MIN: Final = 256 * 1024 * 1024
_BROKER_FOLDER: Final = re.compile(r"broker-([1-9]\d*)")


class StackFolder:
    """The folder at `path`, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock_file: IO[str] | None = None

    @property
    def is_open(self) -> bool:
        return self._lock_file is not None

    @property
    def zookeeper_directory(self) -> Path:
        return self.path / "zookeeper"

    @property
    def state_path(self) -> Path:
        return self.path / "stack.json"

    def broker_directory(self, broker_id: int) -> Path:
        return self.path / f"broker-{broker_id}"

    def broker_count(self) -> int:
        """How many brokers' data it holds; 0 if it is new."""
        try:
            names = [entry.name for entry in self.path.iterdir()]
        except OSError:
            return 0
        return max((int(found[1]) for name in names if (found := _BROKER_FOLDER.fullmatch(name))), default=0)

    def open(self, brokers: int) -> None:
        """Create it if needed and take it for a stack of `brokers` brokers.

        Raises:
            StackError: another stack runs in it, or it cannot be used; the message tells what to do.
        """
        if "," in str(self.path):  # `log.dirs` is a comma separated list
            raise StackError(f"The data folder {self.path} has a comma in its path: choose another.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock()
            free_bytes = shutil.disk_usage(self.path).free
            self._check_layout()
            self.state_path.unlink(missing_ok=True)  # left by a stack that was killed
        except (FileExistsError, NotADirectoryError) as error:
            raise StackError(f"{self.path} is not a folder: choose another data folder.") from error
        except OSError as error:
            raise StackError(
                f"The data folder {self.path} cannot be used ({error.strerror}): change that or use another."
            ) from error
        if free_bytes < DISK_BYTES_MIN:
            raise StackError(
                f"Only {free_bytes // 2**20} MiB are free in {self.path}, and at least "
                f"{DISK_BYTES_MIN // 2**20} MiB are needed: free some, or choose another data folder."
            )
        existing = self.broker_count()
        if brokers < existing:
            raise StackError(
                f"{self.path} holds the data of {existing} brokers, and without all of them partitions would "
                f"have no leader: start {existing} brokers, or choose another data folder."
            )

    def write_state(self, state: object) -> None:
        """Write `stack.json`, wholly or not at all."""
        _write_atomically(self.state_path, state)

    def close(self) -> None:
        """Remove `stack.json` and let others open the folder."""
        if self._lock_file is not None:
            self.state_path.unlink(missing_ok=True)
            self._lock_file.close()  # releases the lock
            self._lock_file = None

    def _lock(self) -> None:
        lock_file = (self.path / "stack.lock").open("a+")
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock_file.seek(0)
            owner = lock_file.read().strip()
            lock_file.close()
            raise StackError(
                f"A stack already runs in {self.path} (process {owner or 'unknown'}): stop it first, or "
                "choose another data folder."
            ) from None
        lock_file.seek(0)
        lock_file.truncate()
        lock_file.write(f"{os.getpid()}\n")
        lock_file.flush()
        self._lock_file = lock_file

    def _check_layout(self) -> None:
        path = self.path / "layout.json"
        try:
            written: dict[str, Any] = json.loads(path.read_text())
            layout, version = int(written["layout"]), str(written["mainstem"])
        except FileNotFoundError:
            _write_atomically(path, {"layout": LAYOUT, "mainstem": installed_version()})
            return
        except (ValueError, KeyError, TypeError) as error:
            raise StackError(
                f"{path} cannot be read, so it is unknown which version wrote this folder: choose another "
                "data folder, or delete this one if its data is not needed."
            ) from error
        if layout != LAYOUT:
            raise StackError(
                f"{self.path} was written by mainstem {version} in layout {layout}, and this version "
                f"{installed_version()} knows layout {LAYOUT}: use that version or another data folder."
            )


def _write_atomically(path: Path, value: object) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    temporary.replace(path)
