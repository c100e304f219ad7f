"""Why a pod does not run, of which no container can say everything itself (R25)."""

from __future__ import annotations

from typing import Any

import pytest

from mainstem_operator.snapshot import trouble_of

CRASHING = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"containerStatuses": [{"state": CRASHING, "lastState": {"terminated": {"message": "a\nb\n"}}}]},
            "CrashLoopBackOff: b",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "state": CRASHING,
                        "lastState": {"terminated": {"reason": "OOMKilled", "message": "log loaded\n"}},
                    }
                ]
            },
            "CrashLoopBackOff: it needed more memory than its limit allows (OOMKilled)",
        ),
        (
            {
                "initContainerStatuses": [
                    {"state": CRASHING, "lastState": {"terminated": {"message": "iptables: not permitted"}}}
                ],
                "containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}],
            },
            "CrashLoopBackOff: iptables: not permitted",
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        ({}, ""),
    ],
    ids=["its last words", "killed for its memory", "an init container of others", "being created", "new"],
)
def test_a_pod_that_does_not_run_says_why(status: dict[str, Any], words: str) -> None:
    assert trouble_of(status) == words
