from __future__ import annotations

import pytest

from mainstem_broker.config.broker_config import BrokerConfig, readable_settings
from mainstem_broker.config.setting import INT64_MAX
from mainstem_broker.config.topic_configs import TopicConfigs
from mainstem_broker.errors import InvalidSetting

NEEDED = {"broker.id": "1", "zookeeper.connect": "z:2181"}


class Configs(TopicConfigs):
    """Of a broker whose settings change; notes what is wrong."""

    def __init__(self) -> None:
        self.broker = BrokerConfig(NEEDED)
        self.wrong: list[str] = []
        super().__init__(lambda: self.broker, self._note)

    def _note(self, topic: str, _reason: str) -> None:
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
        assert configs.get("t", {"segment.ms": "soon"}) == configs.broker.topic({})
    assert configs.wrong == ["t"]


@pytest.mark.parametrize("wrong", [{"segment.ms": "soon"}, {"of.another.version": "1"}])
def test_r4_the_settings_beside_a_wrong_one_hold(wrong: dict[str, str]) -> None:
    """If they did not, a topic that keeps everything would lose what is older than a week."""
    configs = Configs()
    kept = {"cleanup.policy": "compact", "retention.ms": "-1", "min.insync.replicas": "2"}
    assert configs.get("t", kept | wrong) == configs.broker.topic(kept)
    assert configs.wrong == ["t"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("cleanup.policy", "remove", ""),
        ("delete.retention.ms", "1d", INT64_MAX),
        ("min.compaction.lag.ms", "1d", INT64_MAX),
        ("retention.bytes", "1GB", -1),
        ("retention.ms", "30d", -1),
        ("unclean.leader.election.enable", "no", False),
    ],
)
def test_r4_nothing_is_lost_by_a_setting_that_cannot_be_read(name: str, text: str, expected: object) -> None:
    configs = Configs()
    broker = {"log.cleanup.policy": "compact", "unclean.leader.election.enable": "true"}
    configs.broker = configs.broker.with_dynamic({}, broker)
    assert getattr(configs.get("t", {name: text}), name.replace(".", "_")) == expected


def test_r44_numbers_that_earlier_versions_took_hold_where_they_are_stored() -> None:
    configs = Configs()
    stored = {"retention.ms": "3_600_000", "min.cleanable.dirty.ratio": "0_1.5e-1"}
    made = configs.get("t", stored)
    assert (made.retention_ms, made.min_cleanable_dirty_ratio, configs.wrong) == (3_600_000, 0.15, [])
    with pytest.raises(InvalidSetting):
        configs.broker.check_new_topic_overrides(stored, {})
    configs.broker.check_new_topic_overrides(stored, stored)


def test_r44_brokers_lose_nothing_either_by_what_is_stored_for_them() -> None:
    layer = {"log.retention.ms": "30d", "log.segment.bytes": "1_000", "log.roll.ms": "soon"}
    taken, wrong = readable_settings(layer, {})
    assert (taken, len(wrong)) == ({"log.retention.ms": "-1", "log.segment.bytes": "1_000"}, 2)
    assert BrokerConfig(NEEDED, taken).integer("log.segment.bytes") == 1_000
    taken, _ = readable_settings(layer, {"log.retention.ms": "5"})
    assert taken["log.retention.ms"] == "5"


def test_a_deleted_topic_is_forgotten() -> None:
    configs = Configs()
    first = configs.get("t", {})
    configs.forget("t")
    configs.forget("u")
    assert configs.get("t", {}) is not first
