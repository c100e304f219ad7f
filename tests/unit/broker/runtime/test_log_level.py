from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from mainstem_broker.runtime.log_level import LogLevel, drop_below_level, log_level, set_log_level


@pytest.fixture(autouse=True)
def level_kept() -> Iterator[None]:
    before = log_level()
    yield
    set_log_level(before)


@pytest.mark.parametrize("level", list(LogLevel), ids=lambda level: level.name)
def test_what_lies_below_the_level_is_dropped(level: LogLevel) -> None:
    set_log_level(level)
    methods = {"debug": 10, "info": 20, "warning": 30, "error": 40, "exception": 40, "critical": 50}
    for method, number in methods.items():
        if number >= level:
            assert drop_below_level(None, method, {"event": "x"}) == {"event": "x"}
        else:
            with pytest.raises(structlog.DropEvent):
                drop_below_level(None, method, {"event": "x"})
