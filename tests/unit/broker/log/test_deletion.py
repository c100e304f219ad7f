from __future__ import annotations

from mainstem_broker.log.directory_names import DELETED_DIRECTORY_SUFFIX, unique_directory_name


def test_the_name_of_a_deleted_log_is_unique_and_fits_a_file_name() -> None:
    name = "t" * 249 + "-0"
    names = {unique_directory_name(name, DELETED_DIRECTORY_SUFFIX) for _ in range(10)}
    assert len(names) == 10
    assert all(len(deleted) == 255 and deleted.endswith("-delete") for deleted in names)
    assert unique_directory_name("flights-0", DELETED_DIRECTORY_SUFFIX).startswith("flights-0.")
