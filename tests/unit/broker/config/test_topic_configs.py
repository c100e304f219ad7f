from __future__ import annotations

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.config.topic_configs import TopicConfigs
from mainstem_broker.errors import InvalidSetting

NEEDED = {"broker.id": "1", "zookeeper.connect": "z:2181"}


class Configs(TopicConfigs):
    """Of a broker whose settings change; notes what is wrong."""

    def __init__(self) -> None:
        self.broker = BrokerConfig(NEEDED)
        self.wrong: list[str] = []
        super().__init__(lambda: self.broker, self._note)

    def _note(self, topic: str, _error: InvalidSetting) -> None:
        self.wrong.append(topic)


def test_settings_are_worked_out_once_until_they_change() -> None:
    """R40: ten thousand partitions may need them in one turn."""
    configs = Configs()
    first = configs.get("t", {"retention.ms": "5"})
    assert first.retention_ms == 5
    assert configs.get("t", {"retention.ms": "5"}) is first

    assert configs.get("t", {"retention.ms": "6"}).retention_ms == 6
    assert configs.get("u", {"retention.ms": "7"}).retention_ms == 7


def test_a_change_of_the_broker_settings_counts_at_once() -> None:
    configs = Configs()
    configs.get("t", {})
    configs.broker = configs.broker.with_dynamic({"log.retention.ms": "8"}, {})
    assert configs.get("t", {}).retention_ms == 8


def test_settings_that_the_caller_changes_in_place_count() -> None:
    configs = Configs()
    overrides = {"retention.ms": "5"}
    configs.get("t", overrides)
    overrides["retention.ms"] = "6"
    assert configs.get("t", overrides).retention_ms == 6


def test_wrong_settings_do_not_count_and_are_reported_once() -> None:
    configs = Configs()
    for _ in range(3):
        assert configs.get("t", {"retention.ms": "soon"}) == configs.broker.topic({})
    assert configs.wrong == ["t"]


def test_a_deleted_topic_is_forgotten() -> None:
    configs = Configs()
    first = configs.get("t", {})
    configs.forget("t")
    configs.forget("u")
    assert configs.get("t", {}) is not first
