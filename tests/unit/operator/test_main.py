"""The operator's settings, from its environment."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mainstem_operator.__main__ import Options

SCHEMA = Path(__file__).parents[3] / "helm/mainstem/values.schema.json"


def test_times_and_ports_are_read_from_the_environment() -> None:
    options = Options.read({"RESYNC_S": "0.5", "HTTP_PORT": "9090"})
    assert (options.resync_seconds, options.http_port) == (0.5, 9090)
    assert (Options.read({}).resync_seconds, Options.read({}).http_port) == (120.0, 8080)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "1_0", " 5", "1e3", "٣"])
def test_a_time_that_is_no_plain_number_is_refused(text: str) -> None:
    """A resync of nan seconds would never come."""
    with pytest.raises(ValueError, match="RESYNC_S must be a number of seconds"):
        Options.read({"RESYNC_S": text})


@pytest.mark.parametrize("text", ["80.5", "65536", "-1", "8_080", "http"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HTTP_PORT must be a port from 0 to 65535"):
        Options.read({"HTTP_PORT": text})


def test_the_domain_of_kubernetes_dns_is_cluster_local_or_what_the_environment_says() -> None:
    assert Options.read({}).cluster_domain == Options.read({"CLUSTER_DOMAIN": ""}).cluster_domain
    assert Options.read({}).cluster_domain == "cluster.local"
    assert Options.read({"CLUSTER_DOMAIN": "k8s.example.org"}).cluster_domain == "k8s.example.org"


@pytest.mark.parametrize(
    "text",
    [".local", "cluster.local.", "a..b", "Cluster.local", "a_b", "-a", "a" * 64, "a b", "a\n", "a." * 127],
)
def test_a_domain_that_is_no_dns_name_is_refused_by_the_operator_and_the_chart(text: str) -> None:
    with pytest.raises(ValueError, match=r"CLUSTER_DOMAIN must be a DNS name such as cluster\.local"):
        Options.read({"CLUSTER_DOMAIN": text})
    rule = json.loads(SCHEMA.read_text())["properties"]["clusterDomain"]
    # As Go's regular expressions, where $ is the end of the text alone.
    is_taken = re.fullmatch(rule["pattern"], text) and len(text) <= rule["maxLength"]
    assert not is_taken
    assert re.fullmatch(rule["pattern"], "k8s.example-1.org")
