"""`mainstem apply`: the manifests of Kubernetes on the local stack (R27)."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from tests.support.clusters import SharedCluster
from tests.support.command_line import mainstem_fails, mainstem_here, mainstem_json
from tests.support.ports import own_ports

from mainstem.cli.apply import apply
from mainstem.errors import ClusterUnreachable

MANIFEST = """
apiVersion: mainstem.dev/v1beta1
kind: Topic
metadata: {{name: {name}}}
spec:
  clusterRef: {{name: any}}
  partitions: {partitions}
  config: {{retention.ms: 60000}}
---
apiVersion: mainstem.dev/v1beta1
kind: ConsumerGroup
metadata: {{name: {name}-readers}}
spec: {{clusterRef: {{name: any}}, maxLag: 10}}
"""


def test_manifests_make_and_grow_topics_and_tell_of_groups(
    local_stack: SharedCluster, tmp_path: Path
) -> None:
    name = f"applied-{uuid4().hex[:8]}"
    file, state = tmp_path / "topic.yaml", tmp_path / "state.json"
    admin = AdminClient({"bootstrap.servers": local_stack.bootstrap_servers})
    try:
        for partitions in (2, 4):
            file.write_text(MANIFEST.format(name=name, partitions=partitions))
            output = mainstem_json("apply", file, "--state", state, cluster=local_stack)
            assert (output[0]["kind"], output[0]["ready"], output[0]["reason"]) == ("Topic", "True", "Synced")
            assert output[1]["kind"] == "ConsumerGroup"
            assert len(admin.list_topics(name, timeout=60).topics[name].partitions) == partitions
        file.write_text(MANIFEST.format(name=name, partitions=5).replace("60000", "70000"))
        shown = mainstem_here("apply", file, "--state", state, cluster=local_stack).stderr.decode()
        assert [line for line in shown.splitlines() if line.startswith("✓")] == [
            f"✓ Topic {name}: partitions: 4 -> 5",
            f"✓ Topic {name}: retention.ms: 60000 -> 70000",
        ]
        again = mainstem_here("apply", file, "--state", state, cluster=local_stack)
        assert "✓" not in again.stderr.decode(), "nothing was changed"
    finally:
        for future in admin.delete_topics([name]).values():
            future.exception()


def test_without_a_cluster_it_says_at_once_what_does_not_listen(tmp_path: Path) -> None:
    """R36. Clients would try again for a minute."""
    file = tmp_path / "topic.yaml"
    file.write_text(MANIFEST.format(name="t", partitions=1))
    first_port = own_ports(2)
    servers = f"127.0.0.1:{first_port},127.0.0.1:{first_port + 1}"
    started = time.monotonic()
    with pytest.raises(ClusterUnreachable) as failure:
        apply([str(file)], tmp_path / "state", bootstrap_servers=servers)
    assert time.monotonic() - started < 5
    assert str(failure.value).startswith(f"No broker listens at {servers} (")
    assert "up`, or give the address of your cluster with --bootstrap-servers." in str(failure.value)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "is not YAML"),
        ("just words", "is not a manifest"),
        ("{apiVersion: mainstem.dev/v1beta1, kind: Cluster, metadata: {name: c}}", "kind"),
        (MANIFEST.format(name="t", partitions=0), "partitions"),
    ],
)
def test_an_invalid_manifest_is_refused_in_a_sentence(
    text: str, sentence: str, local_stack: SharedCluster, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    arguments = ("apply", file, "--state", tmp_path / "s")
    assert sentence in mainstem_fails(*arguments, cluster=local_stack, exit_code=2)
