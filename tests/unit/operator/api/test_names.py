"""Names and addresses that the operator makes (R23)."""

from __future__ import annotations

import pytest

from mainstem_operator.api.names import address


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("events.example.com", "events.example.com:9092"),
        ("10.0.0.7", "10.0.0.7:9092"),
        ("fd00::7", "[fd00::7]:9092"),
    ],
)
def test_an_address_of_ipv6_is_in_brackets(host: str, text: str) -> None:
    """Clients take what follows the last colon for the port, and URLs have no other form."""
    assert address(host, 9092) == text
