"""What Secrets hold, as texts. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from mainstem_operator.api.fields import Object

SecretData = Mapping[str, str]
"""The content of a Secret, decoded."""


def encoded(data: SecretData) -> dict[str, str]:
    """`data` of a Secret."""
    return {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}


def decoded(secret: Object) -> dict[str, str]:
    """The texts of a Secret; what is not text is left out."""
    found = {}
    for name, content in (secret.get("data") or {}).items():
        try:
            found[name] = base64.b64decode(content, validate=True).decode()
        except (binascii.Error, ValueError):
            continue
    return found
