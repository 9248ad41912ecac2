"""Automation conditions, evaluated as the daemon does, tick by tick."""

from __future__ import annotations

import dagster as dg
import pytest

from state_pipelines.dagster.automation import NEW_SNAPSHOT

# The tester of Dagster selects with an argument of its own, and warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter `include_sources`")

SNAPSHOTS = dg.DynamicPartitionsDefinition(name="snapshots")


@dg.asset(partitions_def=SNAPSHOTS, automation_condition=NEW_SNAPSHOT)
def profile() -> None:
    """Derived from each snapshot."""


def test_every_snapshot_is_taken_once_those_at_the_first_evaluation_too() -> None:
    requested = []
    cursor = None
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("snapshots", ["old"])
        for tick in range(5):
            if tick == 2:
                instance.add_dynamic_partitions("snapshots", ["new"])
            result = dg.evaluate_automation_conditions(defs=[profile], instance=instance, cursor=cursor)
            requested.append(set(result.get_requested_partitions(profile.key)))
            cursor = result.cursor
    assert requested == [{"old"}, set(), {"new"}, set(), set()]
