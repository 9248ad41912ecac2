"""`flink_asset`: the decorator of the assets of a Flink job."""

# Without the import of `annotations`: Dagster reads those of the decorated functions.

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import dagster as dg

from state_pipelines.dagster.checks import specify_checks
from state_pipelines.dagster.failures import reporting_failures
from state_pipelines.dagster.job import FlinkJob

NO_CHECKS: Mapping[str, str] = {}
NO_METADATA: Mapping[str, object] = {}


class AssetStep(StrEnum):
    """Step in the life of a job's state, by which the UI filters assets."""

    RUN = "run"
    SEE = "see"
    JUDGE = "judge"
    CHANGE = "change"
    KEEP = "keep"


def flink_asset(
    job: FlinkJob,
    name: str,
    *,
    step: AssetStep,
    kinds: set[str],
    deps: Sequence[str] = (),
    checks: Mapping[str, str] = NO_CHECKS,
    check_specs: Sequence[dg.AssetCheckSpec] = (),
    writes: bool = False,
    pool: str | None = None,
    partitioned: bool = True,
    output_required: bool = True,
    code_version: str | None = None,
    automation: dg.AutomationCondition[Any] | None = None,
    metadata: Mapping[str, object] = NO_METADATA,
) -> Callable[[Callable[..., object]], dg.AssetsDefinition]:
    """Decorate a function as an asset of a Flink job, with its prefix, group, owners, tags and failure handling.

    The first argument of the decorated function is `context: dg.AssetExecutionContext`.

    Args:
        job: the Flink job.
        name: name of the asset, without the job.
        step: tag for filters in the UI.
        kinds: technologies, shown as icons.
        deps: names of upstream assets of the same job.
        checks: descriptions of blocking checks by name, per snapshot if it is partitioned. A run omits checks
            that do not apply.
        check_specs: specifications of other checks.
        writes: whether it writes or deletes files; runs of such an asset do not overlap.
        pool: name of the asset in whose pool it is; its own by default.
        partitioned: whether it has a partition per snapshot.
        output_required: whether each run must materialise it.
        code_version: version of whatever else determines the result, such as revisions.
        automation: when Dagster materialises it automatically.
        metadata: metadata of the definition.
    """

    def decorate(function: Callable[..., object]) -> dg.AssetsDefinition:
        spec = dg.AssetSpec(
            job.key(name),
            description=inspect.getdoc(function),
            group_name=job.name,
            owners=list(job.owners),
            tags={"state-pipelines/step": str(step), **job.tags},
            kinds=kinds,
            deps=[job.key(each) for each in deps],
            skippable=not output_required,
            code_version=code_version,
            automation_condition=automation,
            metadata=metadata,
        )
        return dg.multi_asset(
            name=job.op(name),
            specs=[spec],
            partitions_def=job.partitions if partitioned else None,
            check_specs=[*specify_checks(job, name, checks, partitioned=partitioned), *check_specs],
            pool=job.prefix(pool or name) if writes else None,
            # No backfill policy: by default each partition has its run, as needed here. With an explicit
            # `multi_run(1)`, Dagster 1.13 omits the tag `dagster/partition`, and splits the assets of a partition.
            # Otherwise Dagster requires a result of each check in each run.
            can_subset=bool(checks),
        )(reporting_failures(function))

    return decorate
