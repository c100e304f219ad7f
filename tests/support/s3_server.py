"""A real S3 interface for tests: moto's server, in a virtual environment of its own.

Of its own, because what it depends on does not go together with what the operator needs.
"""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.ports import own_ports
from tests.support.waiting import PATIENCE_SECONDS, let_pass

from mainstem.local.child_process import spawn

MOTO: Final = "moto[s3,server]==5.1.13"
BUCKET: Final = "warehouse"
_CACHE: Final = Path(__file__).parent.parent / ".cache" / "moto-5.1.13"
_START_TIMEOUT_S: Final = PATIENCE_SECONDS
_SERVER: Final = """
import threading
from moto import server

lock = threading.Lock()
answer = server.DomainDispatcherApplication.__call__

def answer_one_at_a_time(application, environ, start_response):
    if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
        return answer(application, environ, start_response)
    with lock:
        return answer(application, environ, start_response)

server.DomainDispatcherApplication.__call__ = answer_one_at_a_time
server.main()
"""
"""Real stores look for an object and create it in one step. Threads of moto do not: under load, two
conditional puts of one object succeeded."""


def installed() -> Path:
    """The interpreter that has moto; installs it the first time."""
    python = _CACHE / "bin" / "python"
    done = _CACHE / ".ready"
    if not done.exists():
        venv.create(_CACHE, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", MOTO]
        subprocess.run(command, check=True)
        done.touch()
    return python


@contextmanager
def s3_store() -> Iterator[dict[str, str]]:
    """A store with an empty bucket `warehouse`; answers the environment that its clients need."""
    port = own_ports()
    endpoint = f"http://127.0.0.1:{port}"
    process = spawn(
        [str(installed()), "-c", _SERVER, "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(endpoint)
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"), timeout=60)
        yield {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
    finally:
        process.kill()
        process.wait()


def _await(endpoint: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            urllib.request.urlopen(endpoint, timeout=60).read()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"moto did not answer within {_START_TIMEOUT_S} s") from None
            let_pass(0.05, "between two attempts to connect")
