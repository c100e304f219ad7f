"""Names of the directories of logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstem_broker.log.directory_names import parse_directory_name


def test_the_names_of_logs_are_topic_and_partition(tmp_path: Path) -> None:
    assert parse_directory_name("a-b.c_d-12") == ("a-b.c_d", 12)
    for name in ("flights", "flights-", "-0", "flights-x", "flights-٣", "flights-0.abc-delete"):
        with pytest.raises(ValueError, match="topic-partition"):
            parse_directory_name(name)
