from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import messages

from mainstem_broker.errors import CorruptMessage
from mainstem_broker.log import scanning
from mainstem_broker.log.files import LogFile
from mainstem_broker.log.scanning import scan_batches, scan_headers


def file_of(path: Path, content: bytes) -> LogFile:
    path.write_bytes(content)
    return LogFile(path)


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 300), max_size=12), read_bytes=st.integers(61, 700), tail=st.integers(0, 80)
)
def test_walks_meet_every_whole_batch_however_little_is_read_at_a_time(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], read_bytes: int, tail: int
) -> None:
    whole = [encode_batch(messages([bytes(size)]), base_offset=n) for n, size in enumerate(sizes)]
    torn = encode_batch(messages([bytes(100)]))[:tail]
    file = file_of(tmp_path_factory.mktemp("scan") / "f", b"".join(whole) + torn)
    end = sum(map(len, whole)) + tail
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "_HEADERS_READ_BYTES", read_bytes)
        patch.setattr(scanning, "_BATCHES_READ_BYTES", read_bytes)
        headers = list(scan_headers(file, 0, end))
        batches = [(position, header, bytes(batch)) for position, header, batch in scan_batches(file, 0, end)]
    assert [header.base_offset for _, header in headers] == list(range(len(sizes)))
    assert [(position, header) for position, header, _ in batches] == headers
    assert [batch for _, _, batch in batches] == whole


def test_a_walk_stops_at_bytes_that_are_no_batch(tmp_path: Path) -> None:
    batch = encode_batch(messages([b"x"]))
    content = batch + b"\xff" * 100
    file = file_of(tmp_path / "f", content)
    for walk in (scan_headers(file, 0, len(content)), scan_batches(file, 0, len(content))):
        next(walk)
        with pytest.raises(CorruptMessage):
            next(walk)
