"""Assets of a Flink job: their decorator, the specifications of their checks, and configurations of their runs.

Choices in run configurations are enums, with validators that Dagster runs before a run starts. The Flink
job of an op is a resource or fixed; Dagster jobs have the resources that their ops need.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

import dagster as dg
from pydantic import BaseModel, Field, ValidationError, create_model

from state_pipelines.dagster.failures import NOT_EVALUATED, reporting_failures, to_tag, using_storage_of
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.partitions import FLINK_JOB, explain_removal
from state_pipelines.dagster.resources import using_resources_of, with_arguments
from state_pipelines.dagster.translation import PRIORITY_TAG
from state_pipelines.dagster.unexported_names import PostProcessingError, UnresolvedAssetJobDefinition
from state_pipelines.errors import StateError
from state_pipelines.operations.models import find_choices, find_kind
from state_pipelines.redaction import redact
from state_pipelines.storage.resolution import scoped_storage_options


def specify_checks(
    job: FlinkJob, asset: str, descriptions: Mapping[str, str], *, partitioned: bool = True, blocking: bool = True
) -> list[dg.AssetCheckSpec]:
    """Return the specifications of the checks of an asset.

    Args:
        job: the Flink job.
        asset: name of the asset, without the prefix of the job.
        descriptions: by name of the check.
        partitioned: whether they have one result per snapshot.
        blocking: whether assets downstream wait for them.
    """
    with warnings.catch_warnings():
        # Partitioned checks are a preview feature of Dagster 1.13, to which the dependencies are pinned.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(
                name,
                asset=job.key(asset),
                description=text,
                blocking=blocking,
                partitions_def=job.partitions if partitioned else None,
            )
            for name, text in descriptions.items()
        ]


# No `from __future__ import annotations`: Dagster reads the annotations of decorated functions as classes.


# Literals, because the launchpad shows a Python enum by the names of its members, such as CANONICAL, not their values.
FileModeName = Literal["copy", "link", "reference"]
"""The values of `FileMode`."""


class _NonEmptyText(type(dg.StringSource)):  # type: ignore[misc]
    def post_process(self, value: object) -> object:
        text = super().post_process(value)
        if not str(text).strip():
            raise PostProcessingError("the text is empty")
        return text


NON_EMPTY_TEXT: Any = _NonEmptyText()
"""Schema of a text, or of the environment variable that has it; no run starts with an empty one."""


def make_config(model: type[BaseModel]) -> Any:
    """Make a class of run configurations: the fields of an operation's model that are numbers, texts, flags or choices.

    Returns:
        a subclass of `dg.Config`, to be derived from.
    """
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind, _ = find_kind(field)
        if values := find_choices(field):
            # The launchpad would show a Python enum by the names of its members, such as CANONICAL.
            choices: Any = Literal[values]
            default = getattr(field.default, "value", field.default)
            fields[name] = choices, Field(default=default, description=field.description)
        elif kind in (int, bool, str):
            fields[name] = field.annotation, Field(default=field.default, description=field.description)
    return create_model(f"{model.__name__}Config", __base__=dg.Config, **fields)


def list_changed(config: dg.Config, model: type[BaseModel]) -> dict[str, Any]:
    """List the fields of a model to which a configuration gives another value than the default one."""
    values = {name: getattr(config, name) for name in model.model_fields if name in type(config).model_fields}
    defaults = {name: field.default for name, field in model.model_fields.items()}
    return {name: value for name, value in values.items() if value != getattr(defaults[name], "value", defaults[name])}


def validate_early(definition: dg.OpDefinition, function: Callable[..., object]) -> None:
    """Validate the configuration of an op when a run is requested, and not only in the step of the op.

    Args:
        definition: the op, or that of an asset.
        function: its function; the parameter `config`, if there is one, is annotated by a subclass of `dg.Config`.
    """
    config = inspect.signature(function).parameters.get("config")
    if config is not None:
        schema: Any = definition.config_schema.config_type
        # Dagster calls `post_process` after it has checked types and filled in defaults, before it plans the execution.
        schema.post_process = functools.partial(_validate, config.annotation)


def _validate(model: type[dg.Config], value: dict[str, Any]) -> dict[str, Any]:
    """Validate a configuration, and return it.

    Raises:
        PostProcessingError: it is invalid; Dagster shows why, and starts no run.
    """
    try:
        model(**value)
    except ValidationError as error:
        texts = [_describe(each) for each in error.errors(include_url=False, include_input=False)]
        raise PostProcessingError("; ".join(texts)) from None
    return value


def _describe(error: Mapping[str, Any]) -> str:
    """Describe an invalid field without its value, which may be the key of a user."""
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{'.'.join(map(str, error['loc']))}: {text}" if error["loc"] else text


SKIPPED_TAG = "state-pipelines/skipped"
"""Run tag with the reason why a step was skipped: Flink had removed the checkpoint."""

_LONGEST_REASON = 1000

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
    deps: Sequence[str] = (FLINK_JOB,),
    checks: Mapping[str, str] = NO_CHECKS,
    blocking: bool = True,
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
        name: name of the asset, without the prefix of the job.
        step: tag for filters in the UI.
        kinds: technologies, shown as icons.
        deps: names of upstream assets of the same job.
        checks: descriptions of checks by name, per snapshot if it is partitioned. A run may omit blocking checks that
            do not apply.
        blocking: whether assets downstream wait for the checks.
        writes: whether it writes or deletes files; runs of such an asset do not overlap, unless the pool permits it.
        pool: name of the asset whose pool it shares; by default it is in `SPARK_POOL` if the function has an argument
            `spark`, otherwise in a pool of its own if it writes.
        partitioned: whether it has a partition per snapshot.
        output_required: whether each run must materialise it.
        code_version: version of inputs that Dagster does not know, such as revisions.
        automation: when Dagster materialises it automatically.
        metadata: metadata of the definition.
        priority: of its step; of the steps of a run that can start, the one with the highest priority starts first.
        freshness: time since the last materialisation after which it is stale.
    """

    def decorate(function: Callable[..., Iterator[object]]) -> dg.AssetsDefinition:
        is_skippable = partitioned and not writes
        spec = job.specify(
            name,
            description=inspect.getdoc(function),
            tags={"state-pipelines/step": str(step)},
            kinds=kinds,
            deps=[job.key(each) for each in deps],
            skippable=is_skippable or not output_required,
            code_version=code_version,
            automation_condition=automation,
            metadata=metadata,
            freshness_policy=freshness,
        )
        specs = specify_checks(job, name, checks, partitioned=partitioned, blocking=blocking)
        hooked = _executing(job, function)
        reporting = reporting_failures(_skipping_removed(job, spec.key, hooked) if is_skippable else hooked)
        definition = dg.multi_asset(
            name=job.op(name),
            specs=[spec],
            partitions_def=job.partitions if partitioned else None,
            check_specs=specs,
            pool=_choose_pool(job, name, function, writes=writes, pool=pool),
            op_tags={PRIORITY_TAG: str(priority)} if priority else None,
            # No backfill policy: by default each partition has its own run, as needed. With an explicit
            # `multi_run(1)`, Dagster 1.13 omits the tag `dagster/partition`, and splits the assets of a partition.
            # Without `can_subset`, Dagster requires a result of each check in each run.
            can_subset=bool(checks) and blocking,
        )(using_resources_of(job.name)(using_storage_of(job)(_completing_checks(specs, reporting))))
        validate_early(definition.op, function)
        return definition

    return decorate


def flink_sensor(
    job: FlinkJob,
    name: str,
    *,
    interval: int,
    runs: str | None = None,
    status: dg.DefaultSensorStatus | None = None,
    decorator: Callable[..., Callable[[Callable[..., Any]], dg.SensorDefinition]] = dg.sensor,
    **options: Any,
) -> Callable[[Callable[..., Any]], dg.SensorDefinition]:
    """Decorate a function as a sensor of a Flink job, with its prefix and storage options; the UI shows its docstring.

    Args:
        job: the Flink job.
        name: name of the sensor, without the prefix of the job.
        interval: seconds between two ticks, unless the field `intervals` of the job says otherwise.
        runs: name of the Dagster job whose runs it requests, without the prefix of the Flink job.
        status: initial status; by default that of the field `sensors`.
        decorator: the decorator of Dagster.
        options: further arguments of the decorator.
    """

    def decorate(function: Callable[..., Any]) -> dg.SensorDefinition:
        return decorator(
            name=job.prefix(name),
            description=inspect.getdoc(function),
            minimum_interval_seconds=job.interval(name, interval),
            default_status=status or job.sensor_status,
            **({} if runs is None else {"job_name": job.prefix(runs)}),
            **options,
        )(_using_options_of(job, function))

    return decorate


def flink_schedule(
    job: FlinkJob, name: str, *, runs: str, cron: str, is_running: bool = False
) -> Callable[[Callable[..., Any]], dg.ScheduleDefinition]:
    """Decorate a function as a schedule of a job, with its prefix and storage options; the UI shows its docstring.

    Args:
        job: the Flink job.
        name: name of the schedule, without the prefix of the job.
        runs: name of the Dagster job whose runs it requests, without the prefix of the Flink job.
        cron: cron expression, in UTC.
        is_running: whether its initial status is that of the field `sensors`; by default it is stopped.
    """

    def decorate(function: Callable[..., Any]) -> dg.ScheduleDefinition:
        return dg.schedule(
            name=job.prefix(name),
            job_name=job.prefix(runs),
            cron_schedule=cron,
            execution_timezone="UTC",
            description=inspect.getdoc(function),
            default_status=dg.DefaultScheduleStatus(job.sensors.upper() if is_running else "STOPPED"),
        )(_using_options_of(job, function))

    return decorate


def _using_options_of(job: FlinkJob, function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the function of a sensor or schedule use the storage options of a job."""

    @functools.wraps(function)
    def call(*args: object, **others: object) -> object:
        # The options must not be passed to child processes: that takes an environment variable, and this process
        # evaluates the sensors of other jobs too.
        with scoped_storage_options(job.storage_options):
            return function(*args, **others)

    return call


def _executing(job: FlinkJob, function: Callable[..., Iterator[object]]) -> Callable[..., Iterator[object]]:
    """Wrap the function of an asset, so that `execute` of the job's translator runs the step."""

    @functools.wraps(function)
    def generate(context: dg.AssetExecutionContext, *args: object, **others: object) -> Iterator[object]:
        yield from job.execute(context, lambda: function(context, *args, **others))

    return generate


def _skipping_removed(
    job: FlinkJob, key: dg.AssetKey, function: Callable[..., Iterator[object]]
) -> Callable[..., Iterator[object]]:
    """Let a step succeed without an output where it fails because Flink has removed the checkpoint meanwhile.

    Steps downstream are skipped. An event with the reason counts as a materialisation: otherwise automation would
    request the missing partition again and again.
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


_Function = Callable[..., Any]
_OPS: dict[str, tuple[_Function, Mapping[str, Any]]] = {}
"""Function and options of each op, by its name."""


def checked_op(job: FlinkJob | None = None, **options: Any) -> Callable[[_Function], dg.OpDefinition]:
    """Decorate a function as an op with failure handling, whose configuration is validated before a run starts.

    Args:
        job: the Flink job whose storage options it uses; by default that of its argument `flink_job`.
        options: arguments of `dg.op`.
    """

    def decorate(function: _Function) -> dg.OpDefinition:
        scoped = using_storage_of(job)(function)
        definition = _define(scoped, options)
        _OPS[definition.name] = scoped, options
        return definition

    return decorate


def _define(function: _Function, options: Mapping[str, Any]) -> dg.OpDefinition:
    pool = SPARK_POOL if "spark" in inspect.signature(function).parameters else None
    definition: dg.OpDefinition = dg.op(**{"pool": pool, **options})(reporting_failures(function))
    validate_early(definition, function)
    return definition


def bind_op(job: FlinkJob, op: dg.OpDefinition) -> dg.OpDefinition:
    """Return an op of `checked_op` bound to one Flink job, with the resources of this job.

    Names of ops are unique in a code location, so the new name begins with the name of the job.
    """
    function, options = _OPS[op.name]
    bound = with_arguments(function, lambda given: {**given, FLINK_JOB: job}, {FLINK_JOB: None})
    return _define(using_resources_of(job.name)(bound), {**options, "name": job.prefix(op.name), "pool": op.pool})


class _OpJob(dg.JobDefinition):
    """A job that gets only those resources of the code location that it needs."""

    def with_top_level_resources(self, resource_defs: Mapping[str, dg.ResourceDefinition]) -> dg.JobDefinition:
        """Apply the resources that the job needs."""
        return super().with_top_level_resources(_keep_required(self, resource_defs))


class AssetJob(UnresolvedAssetJobDefinition):
    """A job of assets that gets only those resources of the code location that it needs.

    Dagster itself gives all resources to each job, and reads the whole description of each job every minute: with 30
    Flink jobs in a code location, 100 MB, which took half of the CPU of an idle instance.
    """

    def resolve(self, *args: Any, **options: Any) -> dg.JobDefinition:
        """Resolve the selection of assets."""
        job = super().resolve(*args, **options)
        return job.with_top_level_resources(_keep_required(job, job.resource_defs))


def _keep_required(
    job: dg.JobDefinition, resources: Mapping[str, dg.ResourceDefinition]
) -> dict[str, dg.ResourceDefinition]:
    """Return the resources that a job needs, the resources that these need, and the default I/O manager."""
    kept: dict[str, dg.ResourceDefinition] = {}
    wanted = [*job.required_resource_keys, "io_manager"]
    while wanted:
        key = wanted.pop()
        if key in resources and key not in kept:
            kept[key] = resources[key]
            wanted.extend(resources[key].get_required_resource_keys(resources))
    return kept


def make_op_job(
    job: FlinkJob, name: str, op: dg.OpDefinition, description: str, launchpad: Mapping[str, object] | None = None
) -> dg.JobDefinition:
    """Make the job of an op, with the prefix and the tags of a Flink job.

    Args:
        job: the Flink job.
        name: name of the job, without the prefix.
        op: the op.
        description: of the job.
        launchpad: the configuration of the op with which the launchpad begins.
    """
    return make_graph_job(job, name, op, description, None if launchpad is None else {op.name: launchpad})


def make_graph_job(
    job: FlinkJob,
    name: str,
    compose: Callable[[], object],
    description: str,
    launchpad: Mapping[str, object] | None = None,
) -> dg.JobDefinition:
    """Make the job of several ops, with the prefix and the tags of a Flink job.

    Args:
        job: the Flink job.
        name: name of the job, without the prefix.
        compose: calls the ops.
        description: of the job.
        launchpad: the configuration of ops, by name, with which the launchpad begins.
    """
    config: Any = None if launchpad is None else {"ops": launchpad}

    # A graph must not have the name of an op in the code location, and the job `rehearse` has an op `rehearse`.
    @dg.graph(name=f"{job.prefix(name)}_graph")
    def run() -> None:
        compose()

    return _OpJob(graph_def=run, name=job.prefix(name), description=description, tags=job.tags, config=config)
