"""Names of the directories of logs: a log in use, one that is to be removed, one that was set aside.

`<topic>-<partition>` is a log in use. The others are named `<topic>-<partition>.<32 hex digits><suffix>`.
"""

from __future__ import annotations

import uuid
from typing import Final

from mainstem_broker.whole_numbers import is_whole_number

DELETED_DIRECTORY_SUFFIX: Final = "-delete"
STRAY_DIRECTORY_SUFFIX: Final = "-stray"
"""Of a log that the cluster does not know here. It is kept until a person removes it, as in Kafka."""

_FILE_NAME_BYTES_MAX: Final = 255


def parse_directory_name(name: str) -> tuple[str, int]:
    """The topic and partition that a log's directory is named after.

    Raises:
        ValueError: it is not the name of a log's directory.
    """
    topic, dash, partition = name.rpartition("-")
    if not (dash and topic and is_whole_number(partition)):
        raise ValueError(f"{name!r} is not of the form topic-partition")
    return topic, int(partition)


def unique_directory_name(name: str, suffix: str) -> str:
    """`name` with a unique part and `suffix`; the topic is cut where it would be too long for a file name."""
    suffix = f".{uuid.uuid4().hex}{suffix}"
    return name[: _FILE_NAME_BYTES_MAX - len(suffix)] + suffix
