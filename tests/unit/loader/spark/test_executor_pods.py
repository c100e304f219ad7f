"""Executors as Kubernetes pods (R28)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mainstem_loader.errors import SettingsError
from mainstem_loader.spark.executor_pods import (
    CONTAINER,
    RECORDS_PER_EXECUTOR_MIN,
    ExecutorPods,
    executor_count,
    pod_template,
    pods_from_environment,
    spark_settings,
)

ENVIRONMENT = {
    "SPARK_IMAGE": "mainstem/spark:1",
    "POD_NAMESPACE": "data",
    "POD_NAME": "clicks-load-29384756-x7f2q",
    "POD_IP": "10.0.0.7",
}
PODS = ExecutorPods(4, "mainstem/spark:1", "data", "clicks-load-29384756-x7f2q", "10.0.0.7")


def test_a_pod_learns_what_it_needs_from_its_environment() -> None:
    assert pods_from_environment(ENVIRONMENT, 4) == PODS
    more = {
        "EXECUTOR_SECRET": "store",
        "EXECUTOR_CORES": "2",
        "EXECUTOR_MEMORY_MIB": "512",
        "AWS_ENDPOINT_URL": "http://s3:9000",
        "AWS_SECRET_ACCESS_KEY": "hush",
    }
    assert pods_from_environment(ENVIRONMENT | more, 4) == replace(
        PODS, secret="store", cores=2, memory_mib=512, environment=(("AWS_ENDPOINT_URL", "http://s3:9000"),)
    )


def test_executors_mount_the_key_of_their_load_where_the_driver_has_it() -> None:
    more = {"EXECUTOR_IDENTITY_SECRET": "clicks-load-identity", "EXECUTOR_IDENTITY_PATH": "/etc/load"}
    spec = pod_template(pods_from_environment(ENVIRONMENT | more, 4))["spec"]
    mount = {"name": "identity", "mountPath": "/etc/load", "readOnly": True}
    assert mount in spec["containers"][0]["volumeMounts"]
    (volume,) = [item for item in spec["volumes"] if item["name"] == "identity"]
    assert volume["secret"] == {"secretName": "clicks-load-identity", "defaultMode": 0o440}
    assert [item["name"] for item in pod_template(PODS)["spec"]["volumes"]] == ["scratch"]


def test_executors_run_where_the_driver_says() -> None:
    placement = '{"tolerations": [{"key": "dedicated", "operator": "Exists"}], "priorityClassName": "high"}'
    spec = pod_template(pods_from_environment(ENVIRONMENT | {"EXECUTOR_PLACEMENT": placement}, 4))["spec"]
    assert spec["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
    assert spec["priorityClassName"] == "high"
    assert "tolerations" not in pod_template(PODS)["spec"]


def test_executors_pull_their_image_with_the_secrets_that_the_driver_names() -> None:
    pods = pods_from_environment(ENVIRONMENT | {"EXECUTOR_PULL_SECRETS": "registry,mirror"}, 4)
    assert spark_settings(pods, 1)["spark.kubernetes.container.image.pullSecrets"] == "registry,mirror"
    assert "spark.kubernetes.container.image.pullSecrets" not in spark_settings(PODS, 1)


def test_outside_a_pod_executors_are_refused_with_what_is_missing() -> None:
    with pytest.raises(SettingsError, match="POD_NAME, POD_IP in the environment"):
        pods_from_environment({"SPARK_IMAGE": "i", "POD_NAMESPACE": "n"}, 1)


@pytest.mark.parametrize("cores", ["0", "-1", "two", "1.5"])
def test_a_number_of_cores_that_is_none_is_refused(cores: str) -> None:
    with pytest.raises(SettingsError, match="EXECUTOR_CORES"):
        pods_from_environment(ENVIRONMENT | {"EXECUTOR_CORES": cores}, 1)


@pytest.mark.parametrize(
    ("records", "tasks", "count"),
    [
        (0, 0, 0),
        (RECORDS_PER_EXECUTOR_MIN - 1, 8, 0),  # the driver alone is faster
        (3 * RECORDS_PER_EXECUTOR_MIN, 8, 3),
        (100 * RECORDS_PER_EXECUTOR_MIN, 8, 4),  # as many as there may be
        (100 * RECORDS_PER_EXECUTOR_MIN, 2, 2),  # no more than have something to do
    ],
)
def test_a_load_gets_as_many_executors_as_it_is_worth(records: int, tasks: int, count: int) -> None:
    assert executor_count(PODS, records, tasks) == count


def test_a_load_may_be_configured_to_use_executors_though_it_is_small() -> None:
    assert executor_count(pods_from_environment(ENVIRONMENT, 2, records_min=1), 100, 8) == 2


def test_spark_needs_rights_on_pods_only() -> None:
    """Else it makes a ConfigMap for executors, and deletes Services and claims when it stops."""
    settings = spark_settings(PODS, 1)
    assert settings["spark.kubernetes.executor.disableConfigMap"] == "true"
    for name in ("service.deleteOnTermination", "ownPersistentVolumeClaim", "reusePersistentVolumeClaim"):
        assert settings[f"spark.kubernetes.driver.{name}"] == "false"


def test_executors_call_the_pod_of_the_driver_and_belong_to_it() -> None:
    settings = spark_settings(PODS, 3)
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "10.0.0.7"
    assert settings["spark.kubernetes.driver.pod.name"] == PODS.driver_pod
    assert settings["spark.executor.instances"] == "3"


def test_two_runs_of_a_driver_never_share_names_of_executors() -> None:
    prefix = "spark.kubernetes.executor.podNamePrefix"
    assert spark_settings(PODS, 1)[prefix] != spark_settings(PODS, 1)[prefix]
    assert len(spark_settings(replace(PODS, driver_pod="x" * 63), 1)[prefix]) <= 47  # Spark's own limit


@pytest.mark.parametrize("topic", ["orders.v1", f"{'a' * 35}.v1"])
def test_executors_of_a_topic_with_dots_in_its_name_have_names_that_spark_takes(topic: str) -> None:
    """Spark refuses to start with another prefix, so that no load of the Topic would succeed."""
    pods = replace(PODS, driver_pod=f"{topic}-load-29403360-x7k2p")
    prefix = spark_settings(pods, 1)["spark.kubernetes.executor.podNamePrefix"]
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", prefix)
    assert len(prefix) <= 47


def test_executors_are_as_restricted_as_pods_can_be_and_hold_no_token() -> None:
    spec = pod_template(replace(PODS, secret="store"))["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    assert container["name"] == CONTAINER
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert "envFrom" not in pod_template(PODS)["spec"]["containers"][0]
