"""The longest time in which records were in flight and none arrived."""

from __future__ import annotations

from mainstem.trials.pauses import PauseMeter


def test_a_pause_lasts_from_one_arrival_to_the_next() -> None:
    meter = PauseMeter(0.0)
    for now, arrived in ((1.0, True), (2.0, False), (5.0, False), (6.0, True), (7.0, True)):
        meter.observe(now, arrived=arrived, in_flight=True)
    assert meter.longest_seconds == 5.0


def test_time_without_records_in_flight_is_no_pause() -> None:
    meter = PauseMeter(0.0)
    for now in (10.0, 20.0):
        meter.observe(now, arrived=False, in_flight=False)
    meter.observe(20.5, arrived=True, in_flight=False)
    assert meter.longest_seconds == 0.5


def test_a_pause_that_has_not_ended_counts() -> None:
    meter = PauseMeter(0.0)
    meter.observe(30.0, arrived=False, in_flight=True)
    assert meter.longest_seconds == 30.0
