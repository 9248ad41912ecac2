"""Changes of a job's assets: keys, groups, descriptions, automation, and the translator that a subclass overrides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import dagster as dg
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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

ASSET_NAMES = frozenset(
    {
        *("flink_job", "snapshot_inventory", "snapshot_profile", "snapshot_diff", "key_group_balance", "restore_audit"),
        *("retention_plan", "applied_retention", "compatibility_report", "state_tables", "state_expectations"),
        *("migrated_savepoint", "converted_savepoint", "rescaled_savepoint", "bootstrapped_savepoint"),
        *("checkpoint", "savepoint", "sql_compatibility_report"),
    }
)
"""Names of all assets that a job may have."""

NEVER = "never"
_CONDITIONS: dict[str, dg.AutomationCondition[Any] | None] = {
    NEVER: None,
    "new_snapshot": NEW_SNAPSHOT,
    "every_ten_minutes": EVERY_TEN_MINUTES,
    "eager": dg.AutomationCondition.eager(),
    "on_missing": dg.AutomationCondition.on_missing(),
}


def parse_condition(text: str) -> dg.AutomationCondition[Any] | None:
    """Return the automation condition of a name, or of a cron expression.

    Raises:
        ValueError: it is neither.
    """
    if text in _CONDITIONS:
        return _CONDITIONS[text]
    try:
        # A schedule checks the cron expression, for which `on_cron` has no error of its own.
        dg.ScheduleDefinition(name="check", cron_schedule=text, target="*")
    except dg.DagsterInvalidDefinitionError:
        known = ", ".join(_CONDITIONS)
        raise ValueError(f"{text!r} is no automation condition: write a cron expression, or one of {known}") from None
    return dg.AutomationCondition.on_cron(text)


def _check_condition(text: str) -> str:
    parse_condition(text)
    return text


def _check_names(by_name: dict[str, str]) -> dict[str, str]:
    if unknown := sorted(by_name.keys() - ASSET_NAMES):
        raise ValueError(f"there is no asset {unknown[0]}; the names are {', '.join(sorted(ASSET_NAMES))}")
    return by_name


ByAsset = Annotated[dict[str, str], AfterValidator(_check_names)]
Conditions = Annotated[dict[str, Annotated[str, AfterValidator(_check_condition)]], AfterValidator(_check_names)]


class Translation(BaseModel):
    """Differences of a job's assets from the default."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    key_prefix: tuple[str, ...] = Field(default=(), description="Components before the keys of the assets.")
    group_name: str | None = Field(default=None, description="Group of the assets; by default the name of the job.")
    descriptions: ByAsset = Field(default_factory=dict, description="Descriptions by name of the asset.")

    def apply(self, spec: dg.AssetSpec, asset: str) -> dg.AssetSpec:
        """Return the specification of an asset after the translation."""
        changed: dict[str, Any] = {}
        if self.key_prefix:
            changed["key"] = spec.key.with_prefix(self.key_prefix)
        if self.group_name is not None:
            changed["group_name"] = self.group_name
        if asset in self.descriptions:
            changed["description"] = self.descriptions[asset]
        return spec.replace_attributes(**changed)


class AssetTranslator:
    """Keys, groups, tags, owners and descriptions of a job's assets, and how their steps run.

    A subclass overrides its methods. `FlinkJobComponent` is a translator of its job.
    """

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Return the specification of an asset; overridden to change keys, groups, tags, owners or descriptions.

        Args:
            spec: the default, after `translation` of the YAML. A new key must be derived from `spec.key` only, because
                jobs and sensors look it up by that; names of ops, jobs and partitions stay those of the job.
        """
        return spec

    def execute(self, context: dg.AssetExecutionContext, run: Callable[[], Iterator[object]]) -> Iterator[object]:
        """Run the step of an asset; overridden to do something before or after, or to change the results.

        Args:
            context: of the step.
            run: runs the step; yields its materialisations and check results.

        Yields:
            The results, which Dagster stores.
        """
        yield from run()


DEFAULT_TRANSLATOR = AssetTranslator()
"""The translator of jobs without one of their own; it changes nothing."""
