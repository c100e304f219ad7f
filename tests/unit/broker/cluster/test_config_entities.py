"""Entities have their settings where Kafka keeps them (R18)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_broker.cluster.config_entities import (
    DEFAULT_ENTITY,
    group_of,
    group_path,
    quota_entity,
    quota_path,
)
from mainstem_broker.quota.client_quotas import QuotaEntity


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (QuotaEntity("alice", None), "users/alice"),
        (QuotaEntity(None, "app"), "clients/app"),
        (QuotaEntity("alice", "app"), "users/alice/clients/app"),
        (QuotaEntity(DEFAULT_ENTITY, DEFAULT_ENTITY), "users/<default>/clients/<default>"),
        (QuotaEntity("CN=a b,O=*~/+", None), "users/CN%3Da%20b%2CO%3D%2A%7E%2F%2B"),
        (QuotaEntity("grüße", ".."), "users/gr%C3%BC%C3%9Fe/clients/%2E%2E"),
    ],
)
def test_quotas_lie_where_kafka_keeps_them(entity: QuotaEntity, path: str) -> None:
    assert quota_path(entity) == path
    assert quota_entity(path) == entity


@pytest.mark.parametrize("path", ["groups/g", "users", "users/a/clients", "users/a/groups/g", "ips/10.0.0.1"])
def test_other_settings_are_no_quotas(path: str) -> None:
    assert quota_entity(path) is None


@given(name=st.text(min_size=1))
def test_any_name_of_a_group_is_one_name_of_a_znode(name: str) -> None:
    path = group_path(name)
    assert path.count("/") == 1
    assert path.partition("/")[2] not in (".", "..", "<default>")
    assert group_of(path) == name
