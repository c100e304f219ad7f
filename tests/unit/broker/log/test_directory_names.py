"""Names of the directories of logs."""

from __future__ import annotations

import pytest

from mainstem_broker.log.directory_names import (
    DELETED_DIRECTORY_SUFFIX,
    parse_directory_name,
    unique_directory_name,
)


def test_the_names_of_logs_are_topic_and_partition() -> None:
    assert parse_directory_name("a-b.c_d-12") == ("a-b.c_d", 12)
    for name in ("flights", "flights-", "-0", "flights-x", "flights-٣", "flights-0.abc-delete"):
        with pytest.raises(ValueError, match="topic-partition"):
            parse_directory_name(name)


def test_the_name_of_a_deleted_log_is_unique_and_fits_a_file_name() -> None:
    name = "t" * 249 + "-0"
    names = {unique_directory_name(name, DELETED_DIRECTORY_SUFFIX) for _ in range(10)}
    assert len(names) == 10
    assert all(len(deleted) == 255 and deleted.endswith("-delete") for deleted in names)
    assert unique_directory_name("flights-0", DELETED_DIRECTORY_SUFFIX).startswith("flights-0.")
