"""The chart installs under quotas and on tainted nodes, and says what an upgrade needs (R23)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[3] / "helm/mainstem"
TEMPLATES = sorted((CHART / "templates").rglob("*.yaml"))
OURS = ("brokerclusters", "topics", "consumergroups", "users")


def test_the_chart_is_whole_without_links() -> None:
    """Flux and others leave links out of what they package, and some checkouts write them as files."""
    assert [path for path in (CHART, *CHART.rglob("*")) if path.is_symlink()] == []
    assert len(list((CHART / "crds").glob("*.yaml"))) == 4


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_first_requires_the_values_that_older_releases_may_not_have(path: Path) -> None:
    assert path.read_text().startswith('{{- include "mainstem.requireValues" . }}\n')


def test_values_are_required_that_have_fields_or_are_not_empty_by_default() -> None:
    """Reading a field of a value that is missing fails with a nil pointer; what is on by default would be
    off; and without its default a value such as `replicas` is not valid.
    """
    helper = (CHART / "templates/_names.tpl").read_text()
    listed = re.search(r'define "mainstem.requireValues" -}}\n{{- range list ([^}]*) }}', helper)
    assert listed
    required = set(re.findall(r'"([^"]+)"', listed[1]))
    read = {
        parent
        for path in [*TEMPLATES, CHART / "templates/_names.tpl"]
        for chain in re.findall(r"\.Values((?:\.\w+){2,})", path.read_text())
        for parent in parents_of(chain[1:])
    }
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    texts = [path.read_text() for path in [*TEMPLATES, CHART / "templates/_names.tpl"]]
    names = {name for text in texts for name in re.findall(r"\.Values\.([\w.]+)", text)}
    names |= {
        f"image.{name}" for text in texts for name in re.findall(r'"mainstem.image" \(list \. "(\w+)"', text)
    }
    lists = {name for name in names if isinstance(default_of(values, name), list)}
    assert required == read | {name for name in names - lists if default_of(values, name)}


def test_upgrades_as_documented_take_the_defaults_of_the_new_chart() -> None:
    """`--reuse-values` keeps those of the old one, and fails where the new one has more values."""
    commands = [
        line.strip()
        for page in sorted((CHART.parents[1] / "docs").rglob("*.md"))
        for line in page.read_text().splitlines()
        if line.strip().startswith("helm upgrade")
    ]
    assert commands
    assert all(" --reset-then-reuse-values " in command for command in commands)


def default_of(values: Any, name: str) -> Any:
    for part in name.split("."):
        values = values[part]
    return values


def test_numbers_are_printed_as_integers() -> None:
    """Helm reads numbers as floating point, and prints a million as 1e+06."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    texts = [path.read_text() for path in [*TEMPLATES, CHART / "templates/_names.tpl"]]
    read = [found for text in texts for found in re.findall(r"(\w+ )?\.Values\.([\w.]+)", text)]
    numbers = {(before, name) for before, name in read if type(default_of(values, name)) is int}
    assert {name for _, name in numbers} >= {"replicas", "resyncSeconds", "test.records"}
    assert {before for before, _ in numbers} == {"int "}


def test_labels_annotations_and_node_selectors_take_texts_only() -> None:
    """As Kubernetes does, which refuses the whole release for a `true` of `--set` in the middle of it."""

    def maps(schema: dict[str, Any]) -> list[dict[str, Any]]:
        found = []
        for name, value in schema.get("properties", {}).items():
            if re.search(r"(?i)(labels|annotations|selector)$", name):
                found.append(value)
            found += maps(value)
        return found

    schemas = maps(json.loads((CHART / "values.schema.json").read_text()))
    assert len(schemas) == 7
    assert all(item["additionalProperties"] == {"type": "string"} for item in schemas)


def test_no_label_is_written_twice() -> None:
    """`podLabels` and `commonLabels` may have one key, and YAML may not: Flux and kustomize refuse it."""
    helper = (CHART / "templates/_names.tpl").read_text()
    for name in ("labelsWith", "podLabels"):
        defined = re.search(rf'define "mainstem.{name}" -}}}}\n(.*?){{{{- end -}}}}', helper, re.DOTALL)
        assert defined
        assert "merge" in defined[1]
        assert ".Values.commonLabels" in defined[1]
    for path in [*TEMPLATES, CHART / "templates/_names.tpl"]:
        assert not re.search(r"with [$.\w]*[lL]abels }}.*toYaml", path.read_text()), path


def parents_of(chain: str) -> set[str]:
    parts = chain.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}


@pytest.mark.parametrize("name", ["uninstall.yaml", "definitions-upgrade.yaml", "tests/round-trip.yaml"])
def test_the_pods_of_hooks_take_resources_and_placement_from_the_values(name: str) -> None:
    template = (CHART / "templates" / name).read_text()
    assert 'include "mainstem.placement" .' in template
    assert "resources: {{- toYaml .Values.resources" in template


@pytest.mark.parametrize("name", ["uninstall.yaml", "definitions-upgrade.yaml"])
def test_a_hook_brings_its_account_and_rights_with_it(name: str) -> None:
    """Those of the release do not exist while it is being installed, nor after that failed."""
    documents = (CHART / "templates" / name).read_text().split("\n---\n")
    kinds = {kind for document in documents for kind in re.findall(r"^kind: (\w+)", document, re.MULTILINE)}
    assert kinds >= {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"}
    assert all(") $hook | toYaml" in document for document in documents)


def test_what_a_failed_hook_leaves_does_not_block_the_next_run() -> None:
    """Helm replaces an object of a hook only if its policy says so, and fails otherwise."""
    texts = [path.read_text() for path in TEMPLATES if "helm.sh/hook" in path.read_text()]
    assert len(texts) == 3
    for text in texts:
        (policy,) = re.findall(r'helm.sh/hook-delete-policy"?:? "?([\w,-]+)', text)
        assert set(policy.split(",")) == {"before-hook-creation", "hook-succeeded"}


@pytest.mark.parametrize("path", [*TEMPLATES, CHART / "templates/_names.tpl"], ids=lambda path: path.name)
def test_names_stay_texts_whatever_they_look_like(path: Path) -> None:
    """YAML takes a release `123` for a number, and a BrokerCluster `yes` for true."""
    name = (
        r"\.Release\.\w+|\.Values\.cluster\.name|\.Values\.serviceAccount\.name|\."
        r'|include "mainstem\.(?:home|fullname|clusterName|serviceAccount|name)" [.$]'
    )
    unquoted = rf"(?:: |\[){{{{-? (?:{name}) -?}}}}(?=[\s,}}\]]|$)"
    allowed = {": {{ .Release.Service }}"}  # which is Helm
    assert set(re.findall(unquoted, path.read_text(), re.MULTILINE)) <= allowed


def test_what_is_not_in_a_namespace_has_the_whole_name_of_the_release() -> None:
    """Two that are cut after the same characters would be one object."""
    helper = (CHART / "templates/_names.tpl").read_text()
    defined = re.search(r'define "mainstem.clusterName" -}}\n(.*?){{- end -}}', helper, re.DOTALL)
    assert defined
    assert "trunc" not in defined[1]


@pytest.mark.parametrize("name", ["operator.yaml", "uninstall.yaml", "definitions-upgrade.yaml"])
def test_what_talks_to_kubernetes_has_the_same_environment(name: str) -> None:
    """As the address of a proxy."""
    assert "with .Values.extraEnv" in (CHART / "templates" / name).read_text()


RULE = re.compile(
    r"- apiGroups: \[(.*)\]\n +resources: \[(.*)\]\n(?: +resourceNames: .*\n)? +verbs: (\[.*\]|\{\{.*\}\})"
)
READ, CHANGE = {"get", "list", "watch"}, {"create", "update", "patch", "delete", "deletecollection"}
NOBODYS: dict[str, set[str]] = {
    "secrets": {"list", "watch", "update", "delete", "deletecollection"},
    "nodes": {"get", "watch"} | CHANGE,
    "persistentvolumes": {"list", "watch"} | CHANGE,
    "namespaces": CHANGE,
    "serviceaccounts": {"delete", "deletecollection"},
    "statefulsets": {"update", "delete", "deletecollection"},
    "deployments": CHANGE,
    "daemonsets": CHANGE,
    "customresourcedefinitions": {"update", "delete", "deletecollection"},
    "roles": {"delete", "deletecollection"},
    "clusterroles": CHANGE,
    "clusterrolebindings": CHANGE,
    "validatingadmissionpolicies": CHANGE,
    "certificatesigningrequests": CHANGE,
    **{kind: {"create", "delete", "deletecollection"} for kind in OURS},
    **dict.fromkeys(
        (
            "nodes/proxy",
            "pods/attach",
            "pods/ephemeralcontainers",
            "pods/exec",
            "pods/portforward",
            "serviceaccounts/token",
        ),
        READ | CHANGE,
    ),
}
"""What no account of ours may do, by resource."""


def test_nobody_may_list_secrets_touch_nodes_or_give_himself_rights() -> None:
    """R38: it holds whatever else the roles say, which the end-to-end tests read as a whole."""
    texts = [path.read_text() for path in TEMPLATES if "kind: ClusterRole\n" in path.read_text()]
    rules = [rule for text in texts for rule in RULE.findall(text)]
    assert len(rules) == sum(text.count("- apiGroups: ") for text in texts) > 20
    for _, resources, verbs in rules:
        if verbs == "{{ toJson $verbs }}":
            continue  # of people, by the cluster's own roles
        for resource in re.findall(r"[\w/*.]+", resources):
            granted = set(re.findall(r"[\w*]+", verbs))
            assert granted <= READ | CHANGE | {"use"}, (resource, verbs)
            assert resource != "*" and not granted & NOBODYS.get(resource, set()), (resource, verbs)


def test_the_namespace_of_the_operators_metrics_is_that_of_the_resource() -> None:
    """Prometheus would keep it as exported_namespace, and alerts would name the operator's own."""
    text = (CHART / "templates/monitors.yaml").read_text()
    (service_monitor,) = (part for part in text.split("\n---\n") if "kind: ServiceMonitor" in part)
    assert "honorLabels: true" in service_monitor


def test_alerts_on_brokers_that_are_gone_and_on_an_operator_that_is_gone() -> None:
    """The series of pods end with them, and with the series each alert that compares them."""
    rules = {
        rule["alert"]: rule["expr"]
        for group in yaml.safe_load((CHART / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    }
    assert rules["MainstemNoBrokerReady"].startswith("mainstem_operator_")
    assert rules["MainstemOperatorAway"].startswith("absent(mainstem_operator_")
