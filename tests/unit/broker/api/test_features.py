"""What ApiVersions says that clients may rely on (KIP-584)."""

from __future__ import annotations

import pytest
from tests.unit.broker.api.brokers import LocalBroker, run

from mainstem_broker.config.broker_config import BrokerConfig


@pytest.mark.parametrize(
    ("protocols", "expected"),
    [
        ("classic,consumer", {"group.version": 1, "transaction.version": 2}),
        ("classic", {"transaction.version": 2}),
    ],
)
@pytest.mark.parametrize("version", [3, 4])
def test_features_are_finalized_at_what_is_served(
    broker: LocalBroker, protocols: str, expected: dict[str, int], version: int
) -> None:
    static = broker.context.config.static | {"group.coordinator.rebalance.protocols": protocols}
    broker.context.config = BrokerConfig(static)
    software = {"client_software_name": "kafka", "client_software_version": "4.4.0"}
    body = run(broker.answer("ApiVersions", version, software))
    finalized = body["finalized_features"]
    assert {feature["name"]: feature["max_version_level"] for feature in finalized} == expected
    assert all(feature["min_version_level"] == feature["max_version_level"] for feature in finalized)
    assert body["finalized_features_epoch"] == 0, "below 0 clients ignore features"
    supported = {
        feature["name"]: (feature["min_version"], feature["max_version"])
        for feature in body.get("supported_features", ())
    }
    assert supported == ({name: (0, level) for name, level in expected.items()} if version >= 4 else {})
