"""Lines about clients that are turned away, which must not fill the disk (R38)."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.server.peers import until

from mainstem_broker.runtime import bounded_lines
from mainstem_broker.server.refusal_log import LINES_PER_INTERVAL_MAX, RefusalLog

EVENT = "TLS handshake failed"


async def test_what_repeats_of_an_address_is_one_line_and_then_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_lines, "INTERVAL_S", 0.01)
    log = RefusalLog()
    with capture_logs() as lines:
        for port in range(1000):
            log.write(EVENT, f"10.0.0.1:{port}", reason="unknown ca")
        log.write(EVENT, "10.0.0.2:1", reason="unknown ca", user=None)
        assert [(line["peer"], line.get("repeated")) for line in lines] == [
            ("10.0.0.1:0", None),
            ("10.0.0.2:1", None),
        ]
        await until(lambda: len(lines) == 3)
        assert (lines[2]["peer"], lines[2]["repeated"]) == ("10.0.0.1", 999)
        log.write(EVENT, "10.0.0.1:5", reason="unknown ca")
        assert lines[3]["peer"] == "10.0.0.1:5", "the next interval begins with a line"


async def test_addresses_and_reasons_that_differ_are_limited_for_each_event() -> None:
    log = RefusalLog()
    with capture_logs() as lines:
        for number in range(LINES_PER_INTERVAL_MAX + 7):
            log.write(EVENT, f"[fd00::{number:x}]:1", reason="unknown ca")
        log.write("login failed", "10.0.0.1:1", reason="The password is wrong")
        assert len(lines) == LINES_PER_INTERVAL_MAX + 1
        log._lines._end_interval()
    assert lines[-1] == {"event": EVENT, "left_out": 7, "log_level": "info"}
