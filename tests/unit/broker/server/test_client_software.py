"""Counts of clients by software that clients cannot inflate (R40)."""

from __future__ import annotations

import sys

import pytest

from mainstem_broker.server.client_software import (
    OTHER,
    SERIES_MAX,
    UNKNOWN,
    ClientSoftware,
    client_software,
    count_software,
)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("librdkafka", "2.11.0"),
        ("apache-kafka-java", "4.1.0"),
        ("confluent-kafka-python", "2.12.1-librdkafka-2.12.1"),
        ("a", "1"),
    ],
)
def test_what_stock_clients_say_is_taken(name: str, version: str) -> None:
    assert client_software(name, version) == ClientSoftware(name, version)


@pytest.mark.parametrize(
    "word", ["", " ", "-a", "a-", "a b", 'a"} 1\n', "ä", "a" * 65, "a\0", "a_b", "." * 10_000]
)
def test_words_of_another_form_count_as_unknown(word: str) -> None:
    assert client_software(word, "1.0") == UNKNOWN
    assert client_software("kafka", word) == UNKNOWN


def test_no_long_word_is_kept() -> None:
    """R40: a client may send a hundred megabytes."""
    word = "x" * 100_000
    references = sys.getrefcount(word)
    assert client_software(word, word) == UNKNOWN
    assert sys.getrefcount(word) == references


def test_connections_are_counted_by_name_and_version() -> None:
    old, new = ClientSoftware("java", "3.9"), ClientSoftware("java", "4.1")
    assert count_software([old, new, new, UNKNOWN]) == {old: 1, new: 2, UNKNOWN: 1}


def test_software_that_many_use_is_shown_whatever_else_clients_say() -> None:
    common = [ClientSoftware("java", "4.1")] * 3 + [UNKNOWN] * 2
    invented = [ClientSoftware(f"x{number}", str(number)) for number in range(10_000)]
    counts = count_software([*invented, *common])
    assert (counts[common[0]], counts[UNKNOWN]) == (3, 2)
    assert len(counts) == SERIES_MAX + 1
    assert counts[OTHER] == 10_000 - (SERIES_MAX - 2)
    assert counts == count_software([*common, *reversed(invented)]), "in whatever order they have come"
