"""No thread outlives the unit test that started it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support import isolation
from tests.support.isolation import threads_left


def test_a_thread_that_goes_on_is_named_and_one_that_ends_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "ENDING_S", 0.01)
    before = frozenset(threading.enumerate())
    may_end = threading.Event()
    thread = threading.Thread(target=may_end.wait, name="a client", daemon=True)
    thread.start()
    assert threads_left(before) == ["a client"]
    may_end.set()
    thread.join()
    assert threads_left(before) == []


def test_a_pool_that_is_not_shut_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "ENDING_S", 0.01)
    before = frozenset(threading.enumerate())
    with ThreadPoolExecutor(1, thread_name_prefix="reads") as pool:
        pool.submit(int).result()
        assert threads_left(before) == ["reads_0"]
    assert threads_left(before) == []
