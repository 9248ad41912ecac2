"""Changes of a job's assets: keys, groups, descriptions and automation, and the hooks of a subclass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import dagster as dg
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from state_pipelines.dagster.automation import EVERY_TEN_MINUTES, NEW_SNAPSHOT
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        # It checks the expression, for which `on_cron` has no error of its own.
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


@dataclass(frozen=True)
class Hooks:
    """Methods of a subclass of the component.

    Attributes:
        get_asset_spec: returns the specification of an asset for the default one.
        execute: runs the step of an asset; yields its results.
    """

    get_asset_spec: Callable[[dg.AssetSpec], dg.AssetSpec]
    execute: Callable[[dg.AssetExecutionContext, Callable[[], Iterator[object]]], Iterator[object]]


def check_key(spec: dg.AssetSpec, key: dg.AssetKey) -> dg.AssetSpec:
    """Refuse a specification with another key than the one that follows from the default key alone.

    Raises:
        UsageError: it has another key; jobs and sensors, which know the key only, would not find the asset.
    """
    if spec.key != key:
        raise UsageError(
            f"get_asset_spec returns the key {spec.key.to_user_string()} for an asset, and {key.to_user_string()} for "
            "a specification that has nothing but its key",
            hint="Derive the key from `spec.key` only",
        )
    return spec
