"""ZooKeeper's four-letter words: commands of four bytes, answered in text."""

from __future__ import annotations

import asyncio
from typing import Final

_TIMEOUT_SECONDS: Final = 3.0
_CHUNK_BYTES: Final = 65_536


async def server_mode(host: str, port: int) -> str | None:
    """leader, follower or standalone, from the answer to `srvr`; None if the server does not serve."""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"srvr")
                answer = await reader.read(_CHUNK_BYTES)
                while not reader.at_eof() and b"Mode:" not in answer:
                    answer += await reader.read(_CHUNK_BYTES)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    for line in answer.decode(errors="replace").splitlines():
        if line.startswith("Mode: "):
            return line.removeprefix("Mode: ").strip()
    return None
