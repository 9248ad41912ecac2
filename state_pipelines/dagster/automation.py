"""Automation: when Dagster materialises assets without a request, and which of the waiting runs come first."""

from __future__ import annotations

import dagster as dg

PRIORITY_TAG = "dagster/priority"
"""Tag of runs that wait in the queue, and of the steps of one run; the highest number is first."""

MIGRATION = 10
"""Priority of runs that migrate, for which deployments wait; that of runs that people launch is 0."""

DESCRIPTION = -10
"""Priority of runs that describe and audit new snapshots."""

TABLES = -20
"""Priority of runs and steps that write tables: they take long, and nothing waits for them."""

METADATA = 20
"""Priority of steps that read metadata only: of a run's results, theirs are there first."""

SAMPLE = 10
"""Priority of steps that read samples; that of steps that read all state is 0."""

DATA_VERSION_TAG = "dagster/data_version"
"""Tag of an event outside of runs with the data version of the asset."""

_MISSING = dg.AutomationCondition.missing()

NEW_SNAPSHOT = (
    (
        _MISSING.newly_true()
        | (_MISSING & dg.AutomationCondition.initial_evaluation())
        | dg.AutomationCondition.cron_tick_passed("0 * * * *").with_label("a new hour")
    )
    # Not `since_last_handled`, which takes the first evaluation for a materialisation.
    .since(dg.AutomationCondition.newly_requested() | dg.AutomationCondition.newly_updated())
    & _MISSING
    & ~dg.AutomationCondition.in_progress()
    & ~dg.AutomationCondition.execution_failed()
).with_label("a new snapshot")
"""Each new partition once; at the first evaluation, all partitions without a materialisation.

Requested again at the next hour if nothing was materialised and no run failed, for instance because the run was
canceled while it waited. A failed run is not repeated. Unlike `AutomationCondition.on_missing`, it does not wait for
upstream assets: these assets read the snapshot itself.
"""

EVERY_TEN_MINUTES = (
    (dg.AutomationCondition.cron_tick_passed("*/10 * * * *") | (_MISSING & dg.AutomationCondition.initial_evaluation()))
    & ~dg.AutomationCondition.in_progress()
).with_label("every ten minutes")
"""Every ten minutes, and at the first evaluation.

Unlike `AutomationCondition.on_cron`, it does not wait for an update of the external Flink job upstream.
"""
