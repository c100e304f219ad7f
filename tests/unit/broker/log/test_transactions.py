"""Open transactions, and those whose marker is not replicated yet, in their order."""

from __future__ import annotations

from mainstem_broker.log.transactions import CompletedTransaction, Transactions


def test_a_completed_transaction_is_unstable_until_its_marker_is_replicated() -> None:
    transactions = Transactions()
    transactions.begin(3)
    transactions.begin(5)
    transactions.complete(3, 8)
    transactions.replicated_to(8)
    assert transactions.first_unstable_offset == 3
    transactions.replicated_to(9)
    assert transactions.first_unstable_offset == 5


def test_the_entry_of_an_abort_has_the_stable_offset_that_open_transactions_leave() -> None:
    transactions = Transactions([3, 5])
    transactions.complete(3, 8)
    first = transactions.aborted(CompletedTransaction(7, 3, 8, is_aborted=True))
    assert first.last_stable_offset == 5
    transactions.complete(5, 9)
    second = transactions.aborted(CompletedTransaction(8, 5, 9, is_aborted=True))
    assert second.last_stable_offset == 10


def test_truncation_drops_what_began_later_and_keeps_what_awaits_replication() -> None:
    former = Transactions([3, 5, 9])
    former.complete(3, 8)
    former.complete(9, 10)
    restored = Transactions([5])
    restored.keep_completed(former, 9)
    restored.truncate_to(9)
    assert restored.first_unstable_offset == 3
    restored.replicated_to(9)
    assert restored.first_unstable_offset == 5
