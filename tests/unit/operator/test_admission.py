"""What the chart's rules know by heart, beside what they mean: labels that Spark sets, and ours (R24)."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pyspark

from mainstem_operator.api import names

TEMPLATE = Path(__file__).parents[3] / "helm/mainstem/templates/admission.yaml"


def allowed_labels() -> set[str]:
    """The keys in the rule's expression."""
    found = re.search(r"object\.metadata\.labels\.all\(key, key in \[([^]]*)\]\)", TEMPLATE.read_text())
    assert found is not None
    return set(re.findall(r"'([^']+)'", found[1]))


def labels_of_spark() -> set[str]:
    """The labels of an executor: what `KubernetesExecutorConf.labels` takes of Spark's constants."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        constants = classes.read("org/apache/spark/deploy/k8s/Constants$.class")
        used = classes.read("org/apache/spark/deploy/k8s/KubernetesExecutorConf.class")
    keys = {
        b"SPARK_VERSION_LABEL": b"spark-version",
        b"SPARK_EXECUTOR_ID_LABEL": b"spark-exec-id",
        b"SPARK_APP_ID_LABEL": b"spark-app-selector",
        b"SPARK_APP_NAME_LABEL": b"spark-app-name",
        b"SPARK_ROLE_LABEL": b"spark-role",
        b"SPARK_RESOURCE_PROFILE_ID_LABEL": b"spark-exec-resourceprofile-id",
    }
    assert set(re.findall(rb"SPARK_[A-Z_]+_LABEL", used)) == keys.keys()
    assert all(key in constants for key in keys.values())
    return {key.decode() for key in keys.values()}


def test_executors_have_the_labels_that_spark_sets_and_no_others() -> None:
    assert allowed_labels() == labels_of_spark()


def test_no_executor_has_a_label_by_which_services_and_network_policies_select() -> None:
    for component in (names.BROKER, names.ZOOKEEPER, "operator"):
        assert not allowed_labels() & names.labels("events", component).keys()


def test_the_operator_may_take_over_what_it_takes_for_an_orphan() -> None:
    """A Secret that has lost its owner has none before the update that takes it over (R38)."""
    rules = TEMPLATE.read_text()
    orphan = rules.partition("- name: isOrphan")[2].partition("\n  validations:")[0]
    assert f"oldObject.metadata.labels['{names.MANAGED_BY_LABEL}'] == '{names.FIELD_MANAGER}'" in orphan
    secrets = rules.partition("request.resource.resource != 'secrets'")[2].partition("message:")[0]
    assert "variables.isOrphan ? [object] : [object, oldObject]" in secrets
