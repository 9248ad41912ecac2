"""Automation conditions: when Dagster materialises assets without a request."""

from __future__ import annotations

import dagster as dg

_MISSING = dg.AutomationCondition.missing()

NEW_SNAPSHOT = (
    (_MISSING.newly_true() | (_MISSING & dg.AutomationCondition.initial_evaluation()))
    # Not `since_last_handled`, which takes the first evaluation for a materialisation.
    .since(dg.AutomationCondition.newly_requested() | dg.AutomationCondition.newly_updated())
    & ~dg.AutomationCondition.in_progress()
).with_label("a new snapshot")
"""Each new partition once, even if its run fails; at the first evaluation, all partitions without a materialisation.

Unlike `AutomationCondition.on_missing`, it does not wait for upstream assets: these assets read the snapshot itself.
"""

EVERY_TEN_MINUTES = (
    (dg.AutomationCondition.cron_tick_passed("*/10 * * * *") | (_MISSING & dg.AutomationCondition.initial_evaluation()))
    & ~dg.AutomationCondition.in_progress()
).with_label("every ten minutes")
"""Every ten minutes, and at the first evaluation.

Unlike `AutomationCondition.on_cron`, it does not wait for an update of the external Flink job upstream.
"""
