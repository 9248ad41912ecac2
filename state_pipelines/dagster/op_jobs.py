"""Ops, whose Flink job is a resource or fixed, and Dagster jobs, which have the resources that they need."""

# Without the import of `annotations`: Dagster reads those of the decorated functions.

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dagster as dg

from state_pipelines.dagster.configurations import validate_early
from state_pipelines.dagster.failures import reporting_failures, using_storage_of
from state_pipelines.dagster.flink_asset import SPARK_POOL
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.job_resources import using_resources_of
from state_pipelines.dagster.unexported_names import UnresolvedAssetJobDefinition

FLINK_JOB = "flink_job"
"""Key of the resource, and name of the argument, with the `FlinkJob` that an op is about."""

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
    """Return an op of `checked_op` that is about one Flink job, with the resources of this job.

    Names of ops are unique in a code location, so that of the job is in front.
    """
    function, options = _OPS[op.name]
    signature = inspect.signature(function)
    bound: _Function
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*args: Any, **given: Any) -> Iterator[Any]:
            yield from function(*args, **given, flink_job=job)

        bound = generate
    else:

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            return function(*args, **given, flink_job=job)

        bound = call
    parameters = [each for name, each in signature.parameters.items() if name != FLINK_JOB]
    vars(bound)["__signature__"] = signature.replace(parameters=parameters)
    bound.__annotations__ = {name: each for name, each in function.__annotations__.items() if name != FLINK_JOB}
    return _define(using_resources_of(job.name)(bound), {**options, "name": job.prefix(op.name), "pool": op.pool})


class _OpJob(dg.JobDefinition):
    """A job that gets those resources of the code location that it needs."""

    def with_top_level_resources(self, resource_defs: Mapping[str, dg.ResourceDefinition]) -> dg.JobDefinition:
        """Apply the resources that the job needs."""
        return super().with_top_level_resources(_keep_required(self, resource_defs))


class AssetJob(UnresolvedAssetJobDefinition):
    """A job of assets that gets those resources of the code location that it needs.

    Dagster gives all of them to each job, and reads the whole description of each job every minute: with 30 Flink jobs
    in a code location, 100 MB, which took half of the CPU of an idle instance.
    """

    def resolve(self, *args: Any, **options: Any) -> dg.JobDefinition:
        """Resolve the selection of assets."""
        job = super().resolve(*args, **options)
        return job.with_top_level_resources(_keep_required(job, job.resource_defs))


def _keep_required(
    job: dg.JobDefinition, resources: Mapping[str, dg.ResourceDefinition]
) -> dict[str, dg.ResourceDefinition]:
    """Return the resources that a job needs, those among them that its resources need, and the default I/O manager."""
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

    @dg.graph(name=job.prefix(name))
    def run() -> None:
        compose()

    return _OpJob(graph_def=run, description=description, tags=job.tags, config=config)
