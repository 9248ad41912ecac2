"""`upgrade`: a running job from its old program to the new one, or back."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from state_pipelines.errors import NotFoundError, UsageError
from state_pipelines.upgrades.cluster_connections import connect_clusters
from state_pipelines.upgrades.leases import hold_lease
from state_pipelines.upgrades.upgrade_plan import plan_upgrade
from state_pipelines.upgrades.upgrade_records import UpgradeOutcome, UpgradeRecord, find_records
from state_pipelines.upgrades.upgrade_reports import (
    UpgradeReport,
    report_plan,
    report_record,
    report_undecided,
)
from state_pipelines.upgrades.upgrade_request import UpgradeRequest, fingerprint, load_upgrade_request
from state_pipelines.upgrades.upgrade_run import UndecidedError, UpgradeRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.flink.cluster import FlinkCluster
    from state_pipelines.upgrades.upgrade_plan import UpgradePlan
    from state_pipelines.upgrades.upgrade_records import RecordDirectory


def upgrade(
    job: UpgradeRequest | str,
    *,
    clusters: tuple[FlinkCluster, FlinkCluster] | None = None,
    approve: str | None = None,
    plan_only: bool = False,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    report: Callable[[str], object] = lambda text: None,
) -> UpgradeReport:
    """Upgrade a running job, or continue an upgrade that was interrupted.

    Args:
        job: the job, or the path of its `JOB.yaml`.
        clusters: of the old and of the new program; by default those that the job names.
        approve: fingerprint of the plan that may be carried out whatever the policy of the job says.
        plan_only: stop nothing, and report what would happen.
        sleep: waits between two polls.
        clock: seconds that only grow.
        report: gets a line for each step.

    Raises:
        UsageError: the job is not described completely, or another process upgrades it.
        NotFoundError: the cluster has no such job.
        ClusterError: the cluster cannot be reached, before anything was stopped.
        StateError: records or revisions cannot be read.
    """
    request = load_upgrade_request(job) if isinstance(job, str) else job
    old, new = clusters or connect_clusters(request)
    records = find_records(request.results, request.name)
    if plan_only:
        unfinished = records.find_unfinished()
        if unfinished is not None:
            raise UsageError(
                f"an upgrade of {request.name} is not decided yet ({unfinished.id})",
                hint="Run it without --plan, which continues it",
            )
        return report_plan(request, plan_upgrade(request, old, new, records, sleep=sleep), is_wanted=True)
    with hold_lease(records.location, request.name) as lease:
        record, plan = records.find_unfinished(), None
        if record is None:
            done = find_done(request, new, records)
            if done is not None:
                return report_record(request, done, None)
            plan = plan_upgrade(request, old, new, records, sleep=sleep)
            refusal = refuse_plan(request, plan, records, approve)
            if refusal is not None:
                return refusal
            record = begin_record(plan, records)
        run = UpgradeRun(request, old, new, records, lease, record, sleep=sleep, clock=clock, report=report)
        require_same_programs(request, record)
        try:
            return report_record(request, run.finish(), plan)
        except UndecidedError as error:
            return report_undecided(request, run.record, error, plan)


def refuse_plan(
    request: UpgradeRequest, plan: UpgradePlan, records: RecordDirectory, approve: str | None
) -> UpgradeReport | None:
    """Report why a plan is not carried out; None if it is.

    Raises:
        UsageError: another plan was approved.
        StorageError: the approval cannot be read or written.
    """
    if plan.refusals:
        return report_plan(request, plan, is_wanted=False)
    if approve is not None:
        if approve != plan.fingerprint:
            raise UsageError(
                f"the plan is {plan.fingerprint}, not {approve}: something of it has changed",
                hint=f"Read it again: state-pipelines upgrade {request.file} --plan",
            )
        records.approve(approve, "the command")
    elif plan.to_approve and not records.is_approved(plan.fingerprint):
        return report_plan(request, plan, is_wanted=False)
    return None


def find_done(request: UpgradeRequest, cluster: FlinkCluster, records: RecordDirectory) -> UpgradeRecord | None:
    """Find the upgrade that has started the very program that is asked for; None unless its job runs.

    Raises:
        ClusterError: the cluster cannot be reached.
        StateError: a record or a jar cannot be read.
    """
    last = records.find_last()
    if last is None or last.outcome is not UpgradeOutcome.UPGRADED:
        return None
    if last.plan.get("programs") != fingerprint(request.describe_change()):
        return None
    try:
        status = cluster.read_status(last.make_id("new"))
    except NotFoundError:
        return None
    return None if status.is_terminal else last


def begin_record(plan: UpgradePlan, records: RecordDirectory) -> UpgradeRecord:
    """Write the record of a new upgrade.

    Raises:
        StorageError: the storage refuses.
    """
    number = len(records.list_records())
    mark = fingerprint([plan.job, plan.old_job, plan.fingerprint, number])[:12]
    created = datetime.now(UTC).isoformat(timespec="microseconds")
    record = UpgradeRecord(mark, plan.job, created, plan.old_job, plan.fingerprint, plan.to_json())
    records.write(record)
    return record


def require_same_programs(request: UpgradeRequest, record: UpgradeRecord) -> None:
    """Make sure that an upgrade is continued with the programs that it was begun with.

    Raises:
        UsageError: they are others.
    """
    if record.plan.get("programs") != fingerprint(request.describe_change()):
        raise UsageError(
            f"upgrade {record.id} of {record.job}, begun {record.created}, is not decided, and it was planned with "
            "other programs",
            hint="Continue it with the description of the job that it was begun with",
        )
