from __future__ import annotations

import pytest

from mainstem_broker.errors import ThrottlingQuotaExceeded
from mainstem_broker.quota.client_quotas import (
    DEFAULT,
    MEMORY_MAX,
    ClientQuotas,
    QuotaEntity,
    QuotaKind,
    entities_of,
    quotas_in,
)

PRODUCE, CONSUME, REQUEST = (
    QuotaKind.PRODUCER_BYTE_RATE,
    QuotaKind.CONSUMER_BYTE_RATE,
    QuotaKind.REQUEST_PERCENTAGE,
)
NOW_MS = 1_750_000_000_000.0

MOST_TO_LEAST_SPECIFIC = [
    QuotaEntity("alice", "app"),
    QuotaEntity("alice", DEFAULT),
    QuotaEntity("alice", None),
    QuotaEntity(DEFAULT, "app"),
    QuotaEntity(DEFAULT, DEFAULT),
    QuotaEntity(DEFAULT, None),
    QuotaEntity(None, "app"),
    QuotaEntity(None, DEFAULT),
]
"""Kafka's documentation, "Client Quotas"."""


def quotas(settings: dict[QuotaEntity, dict[str, str]]) -> ClientQuotas:
    made = ClientQuotas(11, 1_000)
    made.replace(settings)
    return made


def test_a_client_belongs_to_eight_entities_in_kafkas_order() -> None:
    assert entities_of("alice", "app") == MOST_TO_LEAST_SPECIFIC


@pytest.mark.parametrize("index", range(8))
def test_the_most_specific_quota_counts(index: int) -> None:
    current = MOST_TO_LEAST_SPECIFIC[index:]
    made = quotas({entity: {PRODUCE: str(100 + place)} for place, entity in enumerate(current)})
    assert made.limit(PRODUCE, "alice", "app") == 100


def test_each_kind_of_quota_is_looked_for_by_itself() -> None:
    made = quotas({QuotaEntity("alice", None): {PRODUCE: "1"}, QuotaEntity(None, "app"): {CONSUME: "2"}})
    assert made.limit(PRODUCE, "alice", "app") == 1
    assert made.limit(CONSUME, "alice", "app") == 2
    assert made.limit(REQUEST, "alice", "app") is None
    assert made.limit(CONSUME, "bob", "other") is None


MUTATIONS = QuotaKind.CONTROLLER_MUTATION_RATE


def test_strict_mutations_are_refused_once_something_is_owed_and_reported_for_how_long() -> None:
    """KIP-599: eleven windows of a second save up; the request that exceeds them is still served."""
    made = quotas({QuotaEntity("alice", None): {MUTATIONS: "2"}})
    request = made.mutations("alice", "app", NOW_MS, strict=True)
    request.take(20)
    request.take(5)
    assert request.wait_ms == 0
    with pytest.raises(ThrottlingQuotaExceeded, match="try again in 1500 ms"):
        request.take(1)
    assert request.wait_ms == 1_500
    with pytest.raises(ThrottlingQuotaExceeded):
        made.mutations("alice", "other", NOW_MS + 1_499, strict=True).take(1)
    made.mutations("alice", "other", NOW_MS + 1_500, strict=True).take(1)


def test_other_mutations_only_make_their_client_wait() -> None:
    made = quotas({QuotaEntity("alice", None): {MUTATIONS: "2"}})
    request = made.mutations("alice", "app", NOW_MS, strict=False)
    request.take(22)
    assert request.wait_ms == 0
    request.take(4)
    request.take(4)
    assert request.wait_ms == 4_000


def test_mutations_without_a_quota_are_unlimited() -> None:
    made = quotas({QuotaEntity("alice", None): {PRODUCE: "2"}})
    request = made.mutations("alice", "app", NOW_MS, strict=True)
    request.take(1_000_000)
    request.take(1_000_000)
    assert request.wait_ms == 0


def test_those_who_share_a_quota_of_mutations_take_of_one_bucket() -> None:
    each, all_of_them = QuotaEntity(None, DEFAULT), QuotaEntity("alice", None)
    made = quotas({all_of_them: {MUTATIONS: "1"}, each: {MUTATIONS: "1"}})
    made.mutations("alice", "a", NOW_MS, strict=True).take(100)
    with pytest.raises(ThrottlingQuotaExceeded):
        made.mutations("alice", "b", NOW_MS, strict=True).take(1)
    made.mutations("bob", "a", NOW_MS, strict=True).take(100)
    made.mutations("bob", "b", NOW_MS, strict=True).take(1)


def test_without_quotas_there_is_nothing_to_ask() -> None:
    assert not quotas({}).are_set
    assert not quotas({QuotaEntity("alice", None): {"SCRAM-SHA-256": "salt"}}).are_set
    assert quotas({QuotaEntity("alice", None): {PRODUCE: "1"}}).are_set


@pytest.mark.parametrize(
    ("entity", "shared_with", "not_shared_with"),
    [
        (QuotaEntity("alice", "app"), [("alice", "app")], [("alice", "other"), ("bob", "app")]),
        (QuotaEntity("alice", None), [("alice", "app"), ("alice", "other")], [("bob", "app")]),
        (QuotaEntity(None, "app"), [("alice", "app"), ("bob", "app")], [("alice", "other")]),
        (QuotaEntity(None, DEFAULT), [("alice", "app"), ("bob", "app")], [("alice", "other")]),
        (QuotaEntity(DEFAULT, None), [("alice", "app"), ("alice", "other")], [("bob", "app")]),
        (QuotaEntity(DEFAULT, DEFAULT), [("alice", "app")], [("alice", "other"), ("bob", "app")]),
    ],
)
def test_a_quota_is_shared_by_all_whom_its_entity_names(
    entity: QuotaEntity, shared_with: list[tuple[str, str]], not_shared_with: list[tuple[str, str]]
) -> None:
    made = quotas({entity: {PRODUCE: "1000"}})
    assert made.charge(PRODUCE, "alice", "app", 12_000, NOW_MS) == 2_000
    for user, client_id in shared_with:
        assert made.charge(PRODUCE, user, client_id, 0, NOW_MS) == 2_000
    for user, client_id in not_shared_with:
        assert made.charge(PRODUCE, user, client_id, 0, NOW_MS) == 0


def test_a_quota_that_is_raised_or_taken_back_counts_at_once() -> None:
    entity = QuotaEntity(None, "app")
    made = quotas({entity: {PRODUCE: "1000"}})
    assert made.charge(PRODUCE, "alice", "app", 20_000, NOW_MS) == 10_000
    made.replace({entity: {PRODUCE: "2000"}})
    assert made.charge(PRODUCE, "alice", "app", 0, NOW_MS) == 0
    made.replace({entity: {PRODUCE: "1000"}})
    assert made.charge(PRODUCE, "alice", "app", 0, NOW_MS) == 10_000, "what was taken is not forgotten"
    made.replace({})
    assert made.charge(PRODUCE, "alice", "app", 10**9, NOW_MS) == 0


def test_the_wait_for_processor_time_is_one_window_at_most() -> None:
    made = quotas({QuotaEntity(None, DEFAULT): {REQUEST: "1"}})
    assert made.charge(REQUEST, "alice", "app", 10_000, NOW_MS) == 1_000


def test_what_an_idle_client_may_take_without_waiting_is_known_beforehand() -> None:
    made = quotas({QuotaEntity(None, "app"): {CONSUME: "1000"}})
    most = made.most_at_once(CONSUME, "alice", "app")
    assert most == 10_000
    assert made.charge(CONSUME, "alice", "app", most, NOW_MS) == 0
    assert made.charge(CONSUME, "alice", "app", 1, NOW_MS) > 0
    assert made.most_at_once(CONSUME, "alice", "other") is None


def test_clients_that_come_under_ever_new_names_do_not_fill_the_memory() -> None:
    made = quotas({QuotaEntity(None, DEFAULT): {PRODUCE: "1000"}})
    for number in range(3 * MEMORY_MAX):
        made.charge(PRODUCE, "alice", f"app-{number}", 1, NOW_MS + 10 * number)
    assert len(made._rates) <= MEMORY_MAX
    assert len(made._limits) <= MEMORY_MAX


def test_however_many_clients_there_are_none_is_forgotten_while_its_rate_counts() -> None:
    made = quotas({QuotaEntity(None, DEFAULT): {PRODUCE: "1000"}})
    for number in range(2 * MEMORY_MAX):
        made.charge(PRODUCE, "alice", f"app-{number}", 20_000, NOW_MS)
    assert made.charge(PRODUCE, "alice", "app-0", 0, NOW_MS) == 10_000


@pytest.mark.parametrize("text", ["soon", "nan", "inf", "0", "-1", "", "1_000", "٣"])
def test_what_is_no_limit_limits_nothing(text: str) -> None:
    assert quotas_in({PRODUCE: text, CONSUME: "1.5"}) == {CONSUME: 1.5}
