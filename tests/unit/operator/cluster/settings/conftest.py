from __future__ import annotations

import pytest
from tests.unit.operator.cluster.settings.played_settings import PlayedBrokers

from mainstem_operator.brokers.admin import Brokers


@pytest.fixture
def defaults(monkeypatch: pytest.MonkeyPatch) -> PlayedBrokers:
    played = PlayedBrokers()
    monkeypatch.setattr(Brokers, "default_settings", lambda _: played.tell())
    monkeypatch.setattr(Brokers, "file_settings", lambda _, names, brokers: played.tell_files(names, brokers))
    monkeypatch.setattr(Brokers, "check_default_settings", lambda _, changes: played.check(changes))
    monkeypatch.setattr(Brokers, "change_default_settings", lambda _, changes: played.take(changes))
    return played
