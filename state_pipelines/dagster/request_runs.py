"""The runs of requests: job and configuration of each operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.dagster import ops, upgrading
from state_pipelines.dagster.assets import (
    retention,
    savepoints,
    snapshots,
)
from state_pipelines.dagster.jobs import (
    APPLY_RETENTION,
    AUDIT,
    CONVERT,
    MIGRATE,
    PLAN_RETENTION,
    RESCALE,
    SQL_REPORT,
)
from state_pipelines.errors import UsageError
from state_pipelines.operations.auditing.report import Depth
from state_pipelines.operations.requests import Operation
from state_pipelines.operations.write.keyed_rewrite import Format

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.operations.requests import Request

    Plan = tuple[str, Mapping[str, Any]]
    """Name of a Dagster job, without the prefix of the Flink job, and its run configuration."""

JOBS = frozenset(
    {
        *(APPLY_RETENTION, AUDIT, CONVERT, MIGRATE, PLAN_RETENTION, RESCALE, ops.PIN, ops.RESTORE),
        *(upgrading.UPGRADE, upgrading.REHEARSE),
    }
)
"""Names of the Dagster jobs that requests run, without the prefix of the Flink job."""

UNPARTITIONED = frozenset(
    {
        *(Operation.PIN, Operation.UNPIN, Operation.RESTORE, Operation.RETAIN),
        *(Operation.UPGRADE, Operation.REHEARSE),
    }
)
"""Operations whose runs have no partition key."""


def plan_run(job: FlinkJob, request: Request) -> Plan:
    """Return the run that carries out a request.

    Raises:
        UsageError: the Flink job is not configured for the operation.
    """
    return _PLANS[request.operation](job, request)


def _plan_migration(job: FlinkJob, request: Request) -> Plan:
    if job.migrations is None and job.new_query is None:
        hint = "Set the field migrations in the YAML of the job, or new_query for a query of SQL"
        raise UsageError("the job has no migrations", hint=hint)
    known, other = (_REVISION_FIELDS, "new_query") if job.new_query is None else (_QUERY_FIELDS, "migrations")
    if wrong := sorted(request.options.keys() - known):
        raise UsageError(
            f"{', '.join(wrong)} is a field for jobs with {other}, and this one has none",
            hint=f"A request to migrate this job knows {', '.join(known)}",
        )
    if job.new_query is None:
        names = (snapshots.COMPATIBILITY_REPORT, savepoints.MIGRATED_SAVEPOINT)
        return MIGRATE, {"ops": {job.op(name): {"config": dict(request.options)} for name in names}}
    match = {"match": request.options["match"]} if "match" in request.options else {}
    configs = {SQL_REPORT: match, savepoints.MIGRATED_SAVEPOINT: dict(request.options)}
    return MIGRATE, {"ops": {job.op(name): {"config": config} for name, config in configs.items()}}


_REVISION_FIELDS = ("to", "from_revision")
_QUERY_FIELDS = ("match", "backfill")
"""Fields of requests to migrate, for a job with revisions and for one with a new query."""


def _plan_rescaling(job: FlinkJob, request: Request) -> Plan:
    config = {"request": request.to_yaml(without=("files",))}
    if "files" in request.options:
        config["files"] = request.options["files"]
    return RESCALE, {"ops": {job.op(savepoints.RESCALED_SAVEPOINT): {"config": config}}}


def _plan_conversion(job: FlinkJob, request: Request) -> Plan:
    return CONVERT, {"ops": {job.op(savepoints.CONVERTED_SAVEPOINT): {"config": dict(request.options)}}}


def _plan_copy(job: FlinkJob, request: Request) -> Plan:
    config = {"format": Format.KEEP.value, **request.options}
    return CONVERT, {"ops": {job.op(savepoints.CONVERTED_SAVEPOINT): {"config": config}}}


def _plan_audit(job: FlinkJob, request: Request) -> Plan:
    depth, choices = request.options.get("depth", Depth.SAMPLE), (Depth.SAMPLE, Depth.WHOLE)
    if depth not in choices:
        raise UsageError(f"depth is {depth!r}", hint=f"Choose from {', '.join(choices)}")
    return AUDIT, {"ops": {job.op(snapshots.RESTORE_AUDIT): {"config": {"whole": depth == Depth.WHOLE}}}}


def _plan_retention(job: FlinkJob, request: Request) -> Plan:
    if "policy" in request.options:
        raise UsageError("a request cannot set the policy", hint="Change the field retention in the YAML of the job")
    if "apply" not in request.options:
        return PLAN_RETENTION, {}
    config = {"fingerprint": request.options["apply"]}
    return APPLY_RETENTION, {"ops": {job.op(retention.APPLICATION_NAME): {"config": config}}}


def _plan_pin(job: FlinkJob, request: Request) -> Plan:
    config = {"unpin": request.operation is Operation.UNPIN, **request.options}
    return ops.PIN, {"ops": {job.prefix(ops.pin.name): {"inputs": {"snapshot": request.snapshot}, "config": config}}}


def _plan_restore(job: FlinkJob, request: Request) -> Plan:
    return ops.RESTORE, {
        "ops": {job.prefix(ops.restore.name): {"config": {"snapshot": request.snapshot, **request.options}}}
    }


def _plan_upgrade(job: FlinkJob, request: Request) -> Plan:
    upgrading.make_request(job)
    if request.operation is Operation.REHEARSE:
        return upgrading.REHEARSE, {}
    config = {"approve": "", **request.options}
    return upgrading.UPGRADE, {"ops": {job.prefix(upgrading.plan_job_upgrade.name): {"config": config}}}


_PLANS: Mapping[Operation, Callable[[FlinkJob, Request], Plan]] = {
    Operation.MIGRATE: _plan_migration,
    Operation.RESCALE: _plan_rescaling,
    Operation.CONVERT: _plan_conversion,
    Operation.COPY: _plan_copy,
    Operation.VERIFY: _plan_audit,
    Operation.PIN: _plan_pin,
    Operation.UNPIN: _plan_pin,
    Operation.RESTORE: _plan_restore,
    Operation.RETAIN: _plan_retention,
    Operation.UPGRADE: _plan_upgrade,
    Operation.REHEARSE: _plan_upgrade,
}
