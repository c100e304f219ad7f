"""What a person types and imports: the command `mainstem` and the local stack behind it.

The only package that may import the other programs (broker, loader), because it composes them; it does
so lazily, so that `mainstem --help` stays instant. `command.py` is the entry point.
"""

from __future__ import annotations


def installed_version() -> str:
    """The version of the installed distribution, as `0.1.0`."""
    from importlib.metadata import version  # a slow import, which most commands do not need

    return version("mainstem")
