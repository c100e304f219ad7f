"""The reference of conditions and events, from the calls in the operator that write them.

The calls are read from the source (`Condition(TYPE, ..., REASON, ...)` and `event(manifest, REASON, ...)`).
What a type means is written here, once; a test holds these words to what the source has.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from scripts.documentation.markdown import code, escaped, table, with_facts

CONDITIONS: Final[Mapping[str, str]] = {
    "Active": "ConsumerGroup: the group has members.",
    "AuthoritiesChanging": "BrokerCluster: its authorities get other keys; the message says how far that is.",
    "AutoCreateEnabled": (
        "BrokerCluster: `auto.create.topics.enable` is on, so a deleted topic returns with its next client."
    ),
    "CertificatesEnding": (
        "BrokerCluster: a certificate of its brokers or of the operator ends soon and is not renewed. While"
        " it is false, the message says until when they are valid."
    ),
    "ClaimsDeleting": "BrokerCluster: claims were deleted that pods still hold; the data goes with the pods.",
    "CoordinationHealthy": "BrokerCluster: all ZooKeeper servers serve.",
    "ExecutorsIgnored": "Topic: loads have no executors, since the warehouse is a volume.",
    "Fresh": "Topic: the last successful load is recent enough (`warehouse.freshWithinSeconds`).",
    "Healthy": "BrokerCluster: every broker is ready and every replica is in sync.",
    "KeptUntilLoaded": (
        "Topic: retention waits for loads (`warehouse.retention`), and its limit has deleted no records"
        " before they were loaded."
    ),
    "Loaded": "Topic: the last load was successful.",
    "LoadedAgain": "Topic: its `backfill`, `rewind` and `replayDeadLetters` were carried out.",
    "Maintained": "Topic: the last maintenance of its table was successful (`warehouse.maintenance`).",
    "MoveLimitOverridden": (
        "BrokerCluster: others have set the rate of moves, so `rolling.moveBytesPerSecond` has no effect."
    ),
    "Paused": "Reconciliation is paused by the annotation `mainstem.dev/pause-reconciliation`.",
    "Progressing": "BrokerCluster: the operator has work to do; the message says what it waits for.",
    "RackUnknown": "BrokerCluster: the label of `brokers.rack.nodeLabel` is missing on nodes.",
    "Ready": "The resource is usable: brokers serve, the topic exists, or the group could be observed.",
    "Reassigning": "Topic: replicas are being moved.",
    "RecordsRejected": (
        "Topic: a load rejected more records than `warehouse.maxRejectedPercent`, and no load that read"
        " records has stayed within it since."
    ),
    "ResetDone": "ConsumerGroup: the requested reset was carried out.",
    "ResetPending": "ConsumerGroup: the requested reset has not ended.",
    "ScaleDownBlocked": "BrokerCluster: brokers cannot be removed; the message says why.",
    "SettingsOverridden": "BrokerCluster: others have set defaults that differ from `brokers.config`.",
    "SettingsRefused": "BrokerCluster: the brokers refused values of `brokers.config`; nothing was changed.",
    "SettingsReplaced": "BrokerCluster: names in `brokers.config` that the operator sets to other values.",
    "SettingsUnknown": "BrokerCluster: names in `brokers.config` that brokers do not know, and do not get.",
    "Stable": (
        "BrokerCluster: everything is as in the manifest but for what other conditions say, and nothing is in"
        " progress."
    ),
    "StorageUnresizable": "BrokerCluster: a volume cannot get the requested size.",
    "Unmanaged": "Topic: the annotation `mainstem.dev/managed` tells the operator not to change it.",
    "WithinSLO": "ConsumerGroup: the lag is within `maxLag` and `maxLagSeconds`.",
}
"""What each type of condition means when it is true."""

EVENTS: Final[Mapping[str, str]] = {
    "ChangingSecurity": "Listeners or authorization change by rolling restarts; the message has the next.",
    "Draining": "Replicas are being moved away from brokers that will be removed.",
    "FinalizerRefused": (
        "A Topic or User stays, because the removal of its finalizer was refused; the message has the reason."
    ),
    "MoveRefused": "The brokers refused a move of replicas.",
    "RemovingBroker": "A broker is removed. A warning: it still held replicas, and was removed on request.",
    "ReplacingVolume": "The claim of a volume whose node is lost is deleted, and the pod gets a new one.",
    "Reset*": "A reset of offsets has reached this state: `ResetDone` or `ResetFailed`.",
    "RestartingPod": "A pod is deleted so that it starts with its new settings; the message has the reason.",
    "SettingsChanged": "Settings took effect without a restart.",
    "TopicKept": "A Topic was deleted and its topic was not; the message has the reason.",
    "TopicRecreated": "The topic of a Topic had been deleted by others and was created again.",
    "UserKept": "A User was deleted, and what brokers have of its user stays; the message has the reason.",
}
"""What each event says."""

_CONDITIONS: Final = """# Conditions

Conditions are in the `status` of the custom resources: `kubectl describe` shows them with a message, and
`kubectl wait --for=condition=TYPE` waits for one. A reason is a stable word for programs; the message says
what was found and what to do. `Unknown` means that the operator could not find out.
"""
_EVENTS: Final = """# Events

The operator writes Kubernetes events to the resource that they concern: `kubectl describe` and
`kubectl get events` show them.
"""


@dataclass(slots=True)
class Messages:
    """Reasons by type of condition, and texts by reason of event, as the source has them."""

    conditions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    events: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def read(folder: Path) -> Messages:
    """Every condition and event that Python files below `folder` write."""
    messages = Messages()
    paths = {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}
    trees = list(paths.values())
    by_module = {
        ".".join(path.relative_to(folder).with_suffix("").parts): _texts_by_name(tree.body)
        for path, tree in paths.items()
    }
    reasons_of_progress = {reason for tree in trees for reason in _returned_reasons(tree)}
    for tree in trees:
        names = _imported_texts(tree.body, by_module) | _texts_by_name(tree.body)
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            texts = names | _texts_by_name(function.body)
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                name = ast.unparse(call.func).rpartition(".")[2]
                if name == "Condition" and len(call.args) >= 3:
                    reasons = reasons_of_progress
                    if not isinstance(call.args[2], ast.Starred):
                        reasons = set(_texts(call.args[2], texts))
                    for kind in _texts(call.args[0], texts):
                        messages.conditions[kind] |= reasons
                elif name == "event" and len(call.args) >= 3 and not _is_watch(call):
                    for reason in _texts(call.args[1], texts):
                        messages.events[reason] |= _types_of_event(call)
    return messages


def conditions_page(messages: Messages) -> str:
    rows = [
        (code(kind), with_facts(escaped(CONDITIONS.get(kind, "")), [", ".join(map(code, sorted(reasons)))]))
        for kind, reasons in sorted(messages.conditions.items())
    ]
    return _CONDITIONS + "\n" + table(("condition", "meaning and reasons"), rows)


def events_page(messages: Messages) -> str:
    rows = [
        (code(reason), with_facts(escaped(EVENTS.get(reason, "")), [" or ".join(sorted(types))]))
        for reason, types in sorted(messages.events.items())
    ]
    return _EVENTS + "\n" + table(("event", "meaning and type"), rows)


def _imported_texts(body: Iterable[ast.stmt], by_module: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Names of texts that these statements import from other modules."""
    return {
        alias.asname or alias.name: texts[alias.name]
        for node in body
        if isinstance(node, ast.ImportFrom)
        for texts in (by_module.get(node.module or "", {}),)
        for alias in node.names
        if alias.name in texts
    }


def _texts_by_name(body: Iterable[ast.stmt]) -> dict[str, str]:
    """Names that are bound to a text by these statements."""
    texts: dict[str, str] = {}
    for node in body:
        pairs: list[tuple[ast.expr, ast.expr]]
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            else:
                pairs = [(target, node.value)]
        else:
            continue
        for name, value in pairs:
            text = value.value if isinstance(value, ast.Constant) else None
            if isinstance(name, ast.Name) and isinstance(text, str):
                texts[name.id] = text
    return texts


def _returned_reasons(tree: ast.Module) -> Iterator[str]:
    """The first texts of what functions return as `tuple[str, str] | None`: a reason, and a sentence."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        if function.returns is None or ast.unparse(function.returns) != "tuple[str, str] | None":
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                first = node.value.elts[0]
                if isinstance(first, ast.Constant) and str(first.value).isalpha():
                    yield str(first.value)


def _texts(node: ast.expr, constants: Mapping[str, str]) -> Iterator[str]:
    """The texts that an expression may be; none where only running it would tell."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, constants)
        yield from _texts(node.orelse, constants)
    elif isinstance(node, ast.Name) and node.id in constants:
        yield constants[node.id]
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)


def _is_watch(call: ast.Call) -> bool:
    """`kopf.on.event` declares a watch."""
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value).endswith("kopf.on")


def _types_of_event(call: ast.Call) -> set[str]:
    for keyword in call.keywords:
        if keyword.arg == "warning":
            if isinstance(keyword.value, ast.Constant):
                return {"warning" if keyword.value.value else "normal"}
            return {"normal", "warning"}
    return {"normal"}
