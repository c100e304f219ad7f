"""A producer that counts must not keep an application from sending (R36)."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from mainstem.audit import producer as module
from mainstem.audit.counts import AUDIT_TOPIC
from mainstem.audit.producer import AuditedProducer


def test_an_application_starts_although_the_audit_topic_cannot_be_created(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CREATE_TOPIC_S", 0.5)
    monkeypatch.setattr(module, "_POST_FLUSH_S", 0.5)
    producer = AuditedProducer({"bootstrap.servers": f"127.0.0.1:{closed_port}", "log_level": 0}, "web")
    producer.produce("clicks", b"value")
    producer.purge()
    assert producer.flush(60) == 0


def test_the_client_lives_until_the_audit_topic_is_created(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka drops the requests of a client that is destroyed. Counts expire (R36): a producer never uses
    the keys of another, so compaction would keep them all.
    """
    destroyed: list[bool] = []
    settings: dict[str, str] = {}

    class Answer(Future[None]):
        def result(self, timeout: float | None = None) -> None:
            assert not destroyed
            created.append(AUDIT_TOPIC)

    class Admin:
        def __init__(self, _: object) -> None:
            pass

        def create_topics(self, topics: list[NewTopic], **_: object) -> dict[str, Future[None]]:
            settings.update(topics[0].config)
            return {AUDIT_TOPIC: Answer()}

        def __del__(self) -> None:
            destroyed.append(True)

    created: list[str] = []
    monkeypatch.setattr(module, "AdminClient", Admin)
    producer: Any = AuditedProducer({"bootstrap.servers": f"127.0.0.1:{closed_port}", "log_level": 0}, "web")
    assert created == [AUDIT_TOPIC]
    assert settings == {"cleanup.policy": "compact,delete", "retention.ms": "7776000000"}
    producer.purge()
