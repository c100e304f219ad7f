"""`mainstem apply`: the manifests of Kubernetes on the local stack (R27)."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from tests.support.clusters import Cluster
from tests.support.command_line import mainstem_fails, mainstem_json

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


def test_manifests_make_and_grow_topics_and_tell_of_groups(local_stack: Cluster, tmp_path: Path) -> None:
    name = f"applied-{uuid4().hex[:8]}"
    file, state = tmp_path / "topic.yaml", tmp_path / "state.json"
    admin = AdminClient({"bootstrap.servers": local_stack.bootstrap_servers})
    try:
        for partitions in (2, 4):
            file.write_text(MANIFEST.format(name=name, partitions=partitions))
            told = mainstem_json("apply", file, "--state", state, cluster=local_stack)
            assert (told[0]["kind"], told[0]["ready"], told[0]["reason"]) == ("Topic", "True", "Synced")
            assert told[1]["kind"] == "ConsumerGroup"
            assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == partitions
    finally:
        for future in admin.delete_topics([name]).values():
            future.exception()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "is no YAML"),
        ("just words", "is no manifest"),
        ("{apiVersion: mainstem.dev/v1beta1, kind: Cluster, metadata: {name: c}}", "kind"),
        (MANIFEST.format(name="t", partitions=0), "partitions"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_told_in_a_sentence(
    text: str, sentence: str, local_stack: Cluster, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    arguments = ("apply", file, "--state", tmp_path / "s")
    assert sentence in mainstem_fails(*arguments, cluster=local_stack, exit_code=2)
