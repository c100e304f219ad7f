"""The tables of the end-to-end tests that need no Kubernetes: a wrong one is found before those run (R24)."""

from __future__ import annotations

import pytest
from tests.e2e import test_judged_live as judged_live
from tests.e2e.definitions import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_takes_many_values_is_listed_with_who_judges_them(kind: str) -> None:
    judged_live.test_of_every_field_that_takes_many_values_it_is_known_who_judges_them(kind)


def test_every_listed_reason_is_in_the_operator_and_every_listed_test_exists() -> None:
    judged_live.test_each_judgement_of_the_live_cluster_has_its_reason_in_the_operator_and_its_test()
