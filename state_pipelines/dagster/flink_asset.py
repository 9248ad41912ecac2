"""`flink_asset`: the decorator of the assets of a Flink job."""

# Without the import of `annotations`: Dagster reads those of the decorated functions.

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import dagster as dg

from state_pipelines.dagster.automation import PRIORITY_TAG
from state_pipelines.dagster.checks import specify_checks
from state_pipelines.dagster.configurations import validate_early
from state_pipelines.dagster.failures import reporting_failures, to_tag, using_storage_of
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.job_resources import using_resources_of
from state_pipelines.dagster.partitions import explain_removal
from state_pipelines.dagster.run_outcomes import NOT_EVALUATED
from state_pipelines.errors import StateError
from state_pipelines.redaction import redact
from state_pipelines.storage.resolution import scoped_storage_options

SKIPPED_TAG = "state-pipelines/skipped"
"""Run tag with the reason why a step was skipped: Flink had removed the checkpoint."""

_LONGEST_REASON = 1000

_Definition = TypeVar("_Definition")

NO_CHECKS: Mapping[str, str] = {}
NO_METADATA: Mapping[str, object] = {}


SPARK_POOL = "spark"
"""Pool of everything that uses Spark, of all jobs of the instance: its limit is the number of sessions at a time."""


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
    priority: int = 0,
    freshness: dg.FreshnessPolicy | None = None,
) -> Callable[[Callable[..., Iterator[object]]], dg.AssetsDefinition]:
    """Decorate a function as an asset of a Flink job, with its prefix, group, owners, tags and failure handling.

    The first argument of the decorated function, a generator, is `context: dg.AssetExecutionContext`. When it fails,
    the checks that it has not evaluated get a warning that says so: without a result, Dagster shows them as failed.
    Where Flink has removed the checkpoint of a partition, an asset that writes no snapshot is skipped, not failed.

    Args:
        job: the Flink job.
        name: name of the asset, without the job.
        step: tag for filters in the UI.
        kinds: technologies, shown as icons.
        deps: names of upstream assets of the same job.
        checks: descriptions of blocking checks by name, per snapshot if it is partitioned. A run omits checks
            that do not apply.
        check_specs: specifications of other checks.
        writes: whether it writes or deletes files; runs of such an asset do not overlap, unless the pool permits it.
        pool: name of the asset in whose pool it is; by default `SPARK_POOL` if the function has an argument `spark`,
            otherwise its own if it writes.
        partitioned: whether it has a partition per snapshot.
        output_required: whether each run must materialise it.
        code_version: version of whatever else determines the result, such as revisions.
        automation: when Dagster materialises it automatically.
        metadata: metadata of the definition.
        priority: of its step among those of a run that can start; the highest is first.
        freshness: time after which it is stale without a materialisation.
    """

    def decorate(function: Callable[..., Iterator[object]]) -> dg.AssetsDefinition:
        is_skippable = partitioned and not writes
        spec = job.specify(
            name,
            description=inspect.getdoc(function),
            tags={"state-pipelines/step": str(step), **job.tags},
            kinds=kinds,
            deps=[job.key(each) for each in deps],
            skippable=is_skippable or not output_required,
            code_version=code_version,
            automation_condition=automation,
            metadata=metadata,
            freshness_policy=freshness,
        )
        specs = [*specify_checks(job, name, checks, partitioned=partitioned), *check_specs]
        hooked = _executing(job, function)
        reporting = reporting_failures(_skipping_removed(job, spec.key, hooked) if is_skippable else hooked)
        definition = dg.multi_asset(
            name=job.op(name),
            specs=[spec],
            partitions_def=job.partitions if partitioned else None,
            check_specs=specs,
            pool=_choose_pool(job, name, function, writes=writes, pool=pool),
            op_tags={PRIORITY_TAG: str(priority)} if priority else None,
            # No backfill policy: by default each partition has its run, as needed here. With an explicit
            # `multi_run(1)`, Dagster 1.13 omits the tag `dagster/partition`, and splits the assets of a partition.
            # Otherwise Dagster requires a result of each check in each run.
            can_subset=bool(checks),
        )(using_resources_of(job.name)(using_storage_of(job)(_completing_checks(specs, reporting))))
        validate_early(definition.op, function)
        return definition

    return decorate


def documented(
    job: FlinkJob, decorator: Callable[..., Callable[[Callable[..., Any]], _Definition]], **options: Any
) -> Callable[[Callable[..., Any]], _Definition]:
    """Decorate a function of a job with `dg.sensor` or `dg.schedule`, and show its docstring in the UI.

    Args:
        job: the Flink job, whose storage options the function uses.
        decorator: the decorator of Dagster.
        options: its arguments.
    """

    def decorate(function: Callable[..., Any]) -> _Definition:
        description = inspect.getdoc(function)

        @functools.wraps(function)
        def call(*args: object, **others: object) -> object:
            # Not for other processes: one of Dagster evaluates the sensors of several jobs at a time.
            with scoped_storage_options(job.storage_options):
                return function(*args, **others)

        return decorator(**{"description": description, **options})(call)

    return decorate


def _executing(job: FlinkJob, function: Callable[..., Iterator[object]]) -> Callable[..., Iterator[object]]:
    """Run a step through the hook of the job's component."""

    @functools.wraps(function)
    def generate(context: dg.AssetExecutionContext, *args: object, **others: object) -> Iterator[object]:
        yield from job.execute(context, lambda: function(context, *args, **others))

    return generate


def _skipping_removed(
    job: FlinkJob, key: dg.AssetKey, function: Callable[..., Iterator[object]]
) -> Callable[..., Iterator[object]]:
    """Let a step succeed without an output where it fails because Flink has removed the checkpoint meanwhile.

    Steps downstream are skipped. The event with the reason counts as a materialisation: automation would request a
    missing partition again and again.
    """

    @functools.wraps(function)
    def generate(context: dg.AssetExecutionContext, *args: object, **others: object) -> Iterator[object]:
        try:
            yield from function(context, *args, **others)
        except StateError:
            reason = explain_removal(job, context.partition_key)
            if not reason:
                raise
            context.log.warning("Skipped: %s", reason)
            context.instance.add_run_tags(context.run.run_id, {SKIPPED_TAG: to_tag(reason)})
            yield dg.AssetMaterialization(key, partition=context.partition_key, metadata={"skipped": reason})

    return generate


def _completing_checks(
    specs: Sequence[dg.AssetCheckSpec], function: Callable[..., Iterator[object]]
) -> Callable[..., Iterator[object]]:
    """Yield a warning for each check that a failed step has not evaluated."""

    @functools.wraps(function)
    def generate(context: dg.AssetExecutionContext, *args: object, **others: object) -> Iterator[object]:
        evaluated: set[str | None] = set()
        try:
            for event in function(context, *args, **others):
                results = [event] if isinstance(event, dg.AssetCheckResult) else getattr(event, "check_results", ())
                evaluated.update(each.check_name for each in results)
                yield event
        except dg.RetryRequested:
            raise
        except Exception as error:
            for spec in specs:
                if spec.key in context.selected_asset_check_keys and spec.name not in evaluated:
                    yield dg.AssetCheckResult(
                        asset_key=spec.asset_key,
                        check_name=spec.name,
                        passed=False,
                        severity=dg.AssetCheckSeverity.WARN,
                        description="Not evaluated, because the step failed.",
                        metadata={NOT_EVALUATED: redact(str(error))[:_LONGEST_REASON]},
                    )
            raise

    return generate


def _choose_pool(
    job: FlinkJob, name: str, function: Callable[..., object], *, writes: bool, pool: str | None
) -> str | None:
    if pool is None and "spark" in inspect.signature(function).parameters:
        return SPARK_POOL
    return job.prefix(pool or name) if writes else None
