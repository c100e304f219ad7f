"""Requests that end transactions (R12)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from mainstem.kafka import transactions
from mainstem.kafka.client import Cluster


def test_r12_an_abort_keeps_the_timeout_of_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one may be more than the cluster's transaction.max.timeout.ms permits."""
    requests: list[Any] = []
    codes = [ErrorCode.concurrent_transactions, ErrorCode.none]

    def answer(_cluster: Cluster, _transactional_id: str, request: Any, *_rest: Any) -> Any:
        requests.append(request)
        return SimpleNamespace(error_code=codes.pop(0))

    monkeypatch.setattr(transactions, "ask_transaction_coordinator", answer)
    monkeypatch.setattr(transactions, "_PAUSE_SECONDS", 0)
    described = transactions.Transaction("orders", 7, 3, "Ongoing", 5_000, 1, (("t", 0),))
    transactions.abort_transaction(cast(Cluster, None), described)
    assert [(one.transactional_id, one.transaction_timeout) for one in requests] == [
        ("orders", timedelta(seconds=5))
    ] * 2


def test_r12_a_transaction_that_ends_while_coordinators_are_asked_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does the next transaction of its producer, which begins meanwhile."""
    hanging, ended = (transactions.OpenTransaction("t", index, 7 + index, 0, 1, 5, 0) for index in (0, 1))
    looks = [[hanging, ended], [hanging, replace(ended, start_offset=9)]]
    asked: list[set[tuple[str, int]]] = []

    def open_transactions(_cluster: Cluster, partitions: Any) -> Any:
        asked.append(set(partitions))
        return looks.pop(0)

    monkeypatch.setattr(transactions, "open_transactions", open_transactions)
    monkeypatch.setattr(transactions, "list_transactions", lambda *_, **__: [])
    partitions = [("t", 0), ("t", 1), ("t", 2)]
    assert transactions.hanging_transactions(cast(Cluster, None), partitions, 0) == [hanging]
    assert asked == [set(partitions), {("t", 0), ("t", 1)}]
