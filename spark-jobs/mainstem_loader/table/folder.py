"""A folder of the warehouse: on a disk, or in a bucket of an S3-compatible store.

The only module that knows where files lie. On a disk a file is synced before `close` returns, so that no
commit ever names data that a power loss would take. In a bucket, an upload becomes an object when it is
complete and not before.

S3 is set up by the environment, in the names that all of its clients know: AWS_ENDPOINT_URL (for a store that
is not Amazon's), AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or whatever else the default chain of
credentials finds. The environment of executors has to hold the same.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from mainstem_loader.errors import DiskFullError, WarehouseError

_S3: Final = "s3://"
_UNFIT_CHARACTERS: Final = "%#?[\\]^|"
_PART_BYTES_MAX: Final = 150
_DIGEST_DIGITS: Final = 32
_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]+:")
_REGION: Final = "us-east-1"  # what stores other than Amazon's take for granted
_CONNECT_TIMEOUT_S: Final = 10
_REQUEST_TIMEOUT_S: Final = 60
_RETRIES_MAX: Final = 5


def unfit_character(path: str) -> str | None:
    """The first character of a path with which the Delta library fails or goes elsewhere; None without any.

    The library makes a URL of a path, which its parts decode once or twice. Some they do not take in a URL.
    """
    return next((each for each in path if each in _UNFIT_CHARACTERS or each < " " or each == "\x7f"), None)


def shortened(name: str) -> str:
    """A table's name as a part of the name of a file or folder: as it is, or its beginning and a digest if it
    has more than `_PART_BYTES_MAX` bytes.

    Tables and topics have names of up to 255 and 249 bytes, and usual file systems take 255 in all.
    """
    encoded = os.fsencode(name)
    if len(encoded) <= _PART_BYTES_MAX:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:_DIGEST_DIGITS]
    return f"{encoded[: _PART_BYTES_MAX - len(digest) - 1].decode(errors='ignore')}-{digest}"


@dataclass(frozen=True, slots=True)
class Folder:
    """`url` is a path, or s3://bucket/prefix; without a slash at its end."""

    url: str

    @classmethod
    def of(cls, where: str | Path | Folder) -> Folder:
        """The folder of that path or URL.

        Raises:
            WarehouseError: the URL is of no store that the warehouse can lie in, or the path cannot be used.
        """
        if isinstance(where, Folder):
            return where
        text = str(where)
        if not text:
            raise WarehouseError(
                "The warehouse has no name; name a folder, or a bucket as s3://bucket/prefix."
            )
        if text == "~" or text.startswith("~/"):
            # A shell does not see it in --warehouse=~/folder. The Delta library goes home, all else does not.
            text = str(Path(text).expanduser())
        scheme, separator, rest = text.partition("://")
        if separator and (scheme != "s3" or not rest.strip("/")):
            raise WarehouseError(
                f"The warehouse cannot lie in {text}; name a folder, or a bucket as s3://bucket/prefix."
            )
        if not separator and _SCHEME.match(text):
            raise WarehouseError(
                f"The warehouse cannot lie in {text!r}, which reads as a URL; write ./{text} for a folder of"
                " that name."
            )
        if (character := unfit_character(text)) is not None:
            raise WarehouseError(
                f"The warehouse cannot lie in {text!r}: the Delta library reads its path as a URL, in which"
                f" {character!r} is not what it is in a path. Choose a folder without it."
            )
        folder = cls(text.rstrip("/") or "/")
        folder.check()
        return folder

    def check(self) -> None:
        """Whether a folder is or can be here. In a bucket it always can.

        Raises:
            WarehouseError: this path, or one on the way to it, is of a file.
        """
        if not self.is_local:
            return
        path = Path(self.url)
        # A link to nothing is there, too: no folder can be made in its place.
        nearest = next((part for part in (path, *path.parents) if os.path.lexists(part)), None)
        if nearest is not None and not nearest.is_dir():
            raise WarehouseError(
                f"{self} cannot be a folder of the warehouse, because {nearest} is not a folder; choose"
                " another place, or move that file away."
            )

    def create(self) -> None:
        """Make the folder, if it is not there. A bucket has none.

        Raises:
            WarehouseError: that is not possible.
        """
        if not self.is_local:
            return
        try:
            with explaining_file_errors(self):
                Path(self.url).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WarehouseError(
                f"The folder {self} cannot be made ({error.strerror}); choose another place."
            ) from error

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def is_local(self) -> bool:
        return not self.url.startswith(_S3)

    @property
    def delta_options(self) -> dict[str, str] | None:
        """deltalake's `storage_options`; credentials it finds by itself."""
        if self.is_local:
            return None
        options = {
            "AWS_REGION": os.environ.get("AWS_REGION", _REGION),
            "connect_timeout": f"{_CONNECT_TIMEOUT_S}s",
            "timeout": f"{_REQUEST_TIMEOUT_S}s",
            "max_retries": str(_RETRIES_MAX),
        }
        if endpoint := os.environ.get("AWS_ENDPOINT_URL"):
            options["AWS_ENDPOINT_URL"] = endpoint
            options["AWS_ALLOW_HTTP"] = str(endpoint.startswith("http://")).lower()
        return options

    def open_file(self, path: str) -> pa.NativeFile:
        """A new file at `path` below here; folders on the way are made."""
        if self.is_local:
            (Path(self.url) / path).parent.mkdir(parents=True, exist_ok=True)
        return self._filesystem().open_output_stream(self._inside(path))

    def open_to_read(self, path: str) -> pa.NativeFile:
        """The file at `path` below here; a context manager."""
        return self._filesystem().open_input_file(self._inside(path))

    def finish(self, path: str, file: pa.NativeFile) -> None:
        """Close a file that `open_file` made, so that it outlives what may come."""
        file.close()
        if self.is_local:
            whole = Path(self.url) / path
            _sync(whole)
            _sync(whole.parent)  # its name, too

    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""
        try:
            self._filesystem().delete_file(self._inside(path))
        except FileNotFoundError:
            pass

    def delete_all(self) -> None:
        """Remove the folder with everything in it, if it is there."""
        if self._filesystem().get_file_info(self._inside("")).type == fs.FileType.Directory:
            self._filesystem().delete_dir(self._inside(""))

    def holds(self, path: str) -> bool:
        """Whether there is a file at `path` below here."""
        info = self._filesystem().get_file_info(self._inside(path))
        return bool(info.type == fs.FileType.File)

    def first_missing(self, paths: Sequence[str]) -> str | None:
        """The first of these paths below here that is not that of a file; None if all are."""
        infos = self._filesystem().get_file_info([self._inside(path) for path in paths])
        found = zip(paths, infos, strict=True)
        return next((path for path, info in found if info.type != fs.FileType.File), None)

    def subfolders(self) -> list[str]:
        """Names of the folders right below, sorted; none if this one does not exist."""
        selector = fs.FileSelector(self._inside(""), allow_not_found=True)
        entries = self._filesystem().get_file_info(selector)
        return sorted(info.base_name for info in entries if info.type == fs.FileType.Directory)

    def files(self) -> list[tuple[str, float]]:
        """All files below here except those of the Delta log: relative path, and time of the last change in
        seconds since 1970.
        """
        selector = fs.FileSelector(self._inside(""), allow_not_found=True, recursive=True)
        prefix = self._inside("").rstrip("/") + "/"
        return [
            (info.path.removeprefix(prefix), (info.mtime_ns or 0) / 1e9)
            for info in self._filesystem().get_file_info(selector)
            if info.type == fs.FileType.File and "_delta_log" not in info.path.split("/")
        ]

    def visible_files(self) -> list[str]:
        """All files below here, as relative paths, except those that are hidden: with a dot or an underscore
        at the beginning of a name on the way.
        """
        return [path for path, _ in self.files() if not any(part[0] in "._" for part in path.split("/"))]

    def _inside(self, path: str) -> str:
        """`path` as its file system wants it."""
        whole = f"{self.url}/{path}" if path else self.url
        return whole if self.is_local else whole.removeprefix(_S3)

    def _filesystem(self) -> fs.FileSystem:
        return _local() if self.is_local else _s3()


@contextmanager
def explaining_file_errors(folder: Folder) -> Iterator[None]:
    """Turns the errors of a file system under `folder` into the loader's."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
            raise DiskFullError(
                f"The disk of {folder} is full; nothing of this run was loaded. Free some room, then load"
                " again."
            ) from error
        if not folder.is_local:
            raise WarehouseError(
                f"{folder} cannot be used ({str(error).splitlines()[0]}); check that the bucket exists, that"
                " AWS_ENDPOINT_URL names the store, and that its credentials may write there."
            ) from error
        if error.errno == errno.EROFS or "Read-only file system" in str(error):
            raise WarehouseError(
                f"{folder} is on a read-only file system, so nothing was loaded; mount it for writing, or"
                " choose another warehouse."
            ) from error
        if isinstance(error, PermissionError):
            raise WarehouseError(
                f"{folder} may not be written ({error}); give the loader that right."
            ) from error
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@cache
def _local() -> fs.FileSystem:
    return fs.LocalFileSystem()


@cache
def _s3() -> fs.FileSystem:
    endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL", ""))
    return fs.S3FileSystem(
        region=os.environ.get("AWS_REGION", _REGION),
        endpoint_override=endpoint.netloc or None,
        scheme="http" if endpoint.scheme == "http" else "https",
        connect_timeout=_CONNECT_TIMEOUT_S,
        request_timeout=_REQUEST_TIMEOUT_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(_RETRIES_MAX),
    )
