"""Every codec in every form that clients write (R7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.loader.batch_bytes import GZIP, LZ4, NONE, SNAPPY, XERIAL_SNAPPY, ZSTD, compress

from mainstem_loader.kafka.compression import DecompressionFailedError, Decompressor

CODECS = [NONE, GZIP, SNAPPY, XERIAL_SNAPPY, LZ4, ZSTD]


def on_the_wire(codec: int) -> int:
    return SNAPPY if codec == XERIAL_SNAPPY else codec


@pytest.mark.parametrize("codec", CODECS)
@given(
    plain=st.binary(min_size=1, max_size=200)
    | st.binary(min_size=1, max_size=4).map(lambda part: part * 60_000)
)
def test_what_a_client_compressed_comes_back(codec: int, plain: bytes) -> None:
    block = memoryview(compress(codec, plain))
    assert bytes(Decompressor().decompress(on_the_wire(codec), block)) == plain


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, XERIAL_SNAPPY, LZ4, ZSTD])
def test_one_decompressor_takes_batches_that_are_unlike(codec: int) -> None:
    decompressor = Decompressor()
    for plain in (b"a" * 3_000_000, b"b", bytes(range(256)) * 10, b"a" * 3_000_000):
        assert bytes(decompressor.decompress(on_the_wire(codec), memoryview(compress(codec, plain)))) == plain


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, XERIAL_SNAPPY, LZ4, ZSTD])
def test_data_that_is_cut_short_is_refused(codec: int) -> None:
    block = compress(codec, bytes(range(256)) * 300)
    with pytest.raises(DecompressionFailedError):
        Decompressor().decompress(on_the_wire(codec), memoryview(block[:-5]))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@given(block=st.binary(max_size=100))
def test_random_bytes_never_do_harm(codec: int, block: bytes) -> None:
    try:
        Decompressor().decompress(codec, memoryview(block))
    except DecompressionFailedError:
        pass


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_bomb_is_refused(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstem_loader.kafka.compression.INFLATED_BYTES_MAX", 1_000_000)
    with pytest.raises(DecompressionFailedError, match="more than 1000000 bytes"):
        Decompressor().decompress(codec, memoryview(compress(codec, bytes(1_000_001))))


def test_a_codec_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DecompressionFailedError, match="codec 5 does not exist"):
        Decompressor().decompress(5, memoryview(b""))
