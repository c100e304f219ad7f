"""Names of settings, owners of quotas, and values that are refused before a request is sent."""

from __future__ import annotations

import pytest

from mainstem.errors import BadInput
from mainstem.kafka.quotas import Client, quota_value
from mainstem.kafka.setting_requests import Kind
from mainstem.kafka.settings import Resource, check_names

KNOWN = ("retention.ms", "retention.bytes", "segment.ms")


def test_a_mistyped_setting_is_answered_with_similar_ones() -> None:
    check_names(["retention.ms"], KNOWN, "topic clicks")
    with pytest.raises(BadInput, match=r"no setting retention\.m of topic clicks: did you mean"):
        check_names(["segment.ms", "retention.m"], KNOWN, "topic clicks")
    with pytest.raises(BadInput, match="--all` shows all"):
        check_names(["colour"], KNOWN, "topic clicks")


def test_owners_are_named_as_people_say_it() -> None:
    assert str(Resource(Kind.TOPIC, "clicks")) == "topic clicks"
    assert str(Resource(Kind.BROKER, "1")) == "broker 1"
    assert str(Resource(Kind.BROKER, "")) == "all brokers"
    assert str(Client("ann", "app")) == "user ann with client id app"


def test_quotas_hold_for_a_user_a_client_id_or_both() -> None:
    assert Client("ann").entity == {"user": "ann"}
    assert Client(None, "app").entity == {"client-id": "app"}
    assert Client("<default>", "app").entity == {"user": None, "client-id": "app"}


@pytest.mark.parametrize("text", ["-1", "0", "fast", "", "inf", "nan", "1_000", " 5", "٣", "0x10"])
def test_a_quota_is_a_number_above_zero(text: str) -> None:
    assert quota_value("producer_byte_rate", "1024") == 1024.0
    with pytest.raises(BadInput, match="producer_byte_rate takes a number greater than 0"):
        quota_value("producer_byte_rate", text)
