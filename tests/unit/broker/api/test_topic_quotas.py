from __future__ import annotations

import pytest
from tests.unit.broker.api.brokers import LocalBroker
from tests.unit.broker.api.topic_requests import create, delete, grow, results, topic

from mainstem_broker.quota.client_quotas import DEFAULT, QuotaEntity, QuotaKind


def limit_mutations(broker: LocalBroker, per_second: float) -> None:
    kind = QuotaKind.CONTROLLER_MUTATION_RATE
    broker.context.quotas.replace({QuotaEntity(None, DEFAULT): {kind: str(per_second)}})


@pytest.mark.parametrize(("version", "is_refused"), [(5, False), (6, True)])
async def test_topics_over_the_quota_are_refused_to_clients_that_know_how(
    broker: LocalBroker, version: int, is_refused: bool
) -> None:
    limit_mutations(broker, 0.001)
    requested = [topic(f"t{number}", 2) for number in range(3)]
    body = await create(broker, *requested, version=version, validate_only=True)
    assert {error for _, error in results(body)} == {"none"}, "a dry run takes nothing"
    body = await create(broker, *requested, version=version)
    errors = [error for _, error in results(body)]
    assert errors == (["none"] + 2 * ["throttling_quota_exceeded"] if is_refused else 3 * ["none"])
    assert body["throttle_time"] > 0
    assert list(broker.view.topics) == (["t0"] if is_refused else ["t0", "t1", "t2"])


async def test_growth_and_deletions_take_of_the_same_quota(broker: LocalBroker) -> None:
    broker.create("t")
    broker.create("u")
    limit_mutations(broker, 0.001)
    assert (await grow(broker, "t", 10, version=3))[0] == "none"
    assert (await grow(broker, "t", 11, version=3))[0] == "throttling_quota_exceeded"
    assert await delete(broker, ["u"], 5) == [("u", "throttling_quota_exceeded")]
    assert broker.view.topics.keys() == {"t", "u"}
    assert await delete(broker, ["u"], 4) == [("u", "none")]
