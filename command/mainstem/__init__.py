"""What a person types and imports: the command `mainstem` and the local stack behind it.

The only package that may import the other programs (broker, loader), because it composes them; it does
so lazily, so that `mainstem --help` stays instant. `cli/main.py` is the entry point, `paper_client` what
`from mainstem import Consumer, Producer, Message, MessageSet` gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainstem.paper_client import Consumer, Message, MessageSet, Producer

__all__ = ["Consumer", "Message", "MessageSet", "Producer", "installed_version"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mainstem import paper_client

    return getattr(paper_client, name)


def installed_version() -> str:
    """The version of the installed distribution, as `0.1.0`."""
    from importlib.metadata import version  # a slow import, which most commands do not need

    return version("mainstem")
