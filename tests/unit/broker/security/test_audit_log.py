from __future__ import annotations

import io
import json
from typing import Any

import structlog
from structlog.testing import capture_logs

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.security import audit_log
from mainstem_broker.security.audit_log import (
    ADMINISTRATION,
    ALLOWED,
    AUTHENTICATION,
    CATEGORIES,
    DENIED,
    REFUSED,
    AuditLog,
)


def everything() -> AuditLog:
    return AuditLog(lambda: CATEGORIES)


async def test_a_record_that_repeats_is_written_once_and_then_counted() -> None:
    """R38"""
    log = everything()
    with capture_logs() as lines:
        for _ in range(1000):
            log.record(DENIED, principal="User:a")
        log.record(DENIED, principal="User:b")
        assert lines == [line_of(DENIED, principal="User:a"), line_of(DENIED, principal="User:b")]
        log._lines._end_interval()
        assert lines[2:] == [line_of(DENIED, principal="User:a", repeated=999)]
        log.record(DENIED, principal="User:a")
        assert len(lines) == 4


async def test_only_selected_categories_are_written() -> None:
    log = AuditLog(lambda: [ADMINISTRATION])
    with capture_logs() as lines:
        log.record(DENIED, principal="User:a")
        log.record(ADMINISTRATION, principal="User:a")
    assert lines == [line_of(ADMINISTRATION, principal="User:a")]


async def test_logins_that_fail_are_written_with_what_is_denied_and_others_are_selected() -> None:
    """R38: by default, an attack on passwords is in the audit log."""
    by_default = BrokerConfig({"broker.id": "1", "zookeeper.connect": "z:2181"})
    log = AuditLog(lambda: by_default.string("audit.log.categories").split(","))
    with capture_logs() as lines:
        log.record(AUTHENTICATION, outcome=REFUSED, principal="User:a")
        log.record(AUTHENTICATION, outcome=ALLOWED, principal="User:a")
    assert lines == [line_of(AUTHENTICATION, outcome=REFUSED, principal="User:a")]
    with capture_logs() as lines:
        AuditLog(lambda: ["none"]).record(AUTHENTICATION, outcome=REFUSED, principal="User:a")
        everything().record(AUTHENTICATION, outcome=ALLOWED, principal="User:a")
    assert [line["outcome"] for line in lines] == [ALLOWED]


async def test_a_record_is_one_line_whatever_a_client_calls_itself() -> None:
    """Of JSON, as `__main__.py` configures the log."""
    out = io.StringIO()
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.PrintLoggerFactory(out)
    )
    try:
        hostile = 'x\n{"event": "audit", "outcome": "allowed"}\r\u2028\x1b[2J' + "y" * 10_000
        everything().record(DENIED, client_id=hostile, principal="User:a")
    finally:
        structlog.reset_defaults()
    (text,) = out.getvalue().splitlines()
    record = json.loads(text)
    assert record["client_id"] == hostile[: audit_log.TEXT_CHARACTERS_MAX]
    assert text.isascii()
    assert text.isprintable()


def line_of(category: str, **fields: Any) -> dict[str, Any]:
    level = "info" if category == ADMINISTRATION else "warning"
    return {"event": "audit", "category": category, "log_level": level, **fields}


async def test_records_of_one_category_cannot_hide_those_of_another() -> None:
    log = everything()
    with capture_logs() as lines:
        for number in range(audit_log.LINES_PER_INTERVAL_MAX + 7):
            log.record(AUTHENTICATION, outcome="denied", principal=f"User:{number}")
        log.record(DENIED, principal="User:a")
        log._lines._end_interval()
    assert line_of(DENIED, principal="User:a") in lines
    assert (lines[-1]["of"], lines[-1]["left_out"]) == (AUTHENTICATION, 7)
