"""Schedules and sensors of a job, and the cursors that are kept in files.

* `daily_audit` audits the newest snapshots, `daily_retention_plan` plans the retention, `periodic_checkpoint` runs a
  stream every checkpoint interval.
* `new_input` runs a stream when files appear in its input, `agreed_plans` applies plans of retention when the grace
  period is over, `automation` and `table_automation` evaluate the conditions of the assets.
* `load_cursor`, `store_cursor`: cursors of sensors that grow with the number of files: kept in a file, of which the
  instance stores the digest. Dagster stores the cursor with each tick, also where nothing has changed.
* `share_instance`: the instance, opened once for a process of the code location: opening it reads the list of all
  migrations of its database, which took a quarter of the CPU of idle sensors.
"""

from __future__ import annotations

import hashlib
import json
import threading
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.checkpoints.coordinator import FailureReason
from state_pipelines.dagster.assets import retention, savepoints, state_tables
from state_pipelines.dagster.flink_asset import flink_schedule, flink_sensor
from state_pipelines.dagster.job_settings import PlanApplication
from state_pipelines.dagster.jobs import APPLY_RETENTION, AUDIT, PLAN_RETENTION, TAKE_CHECKPOINT
from state_pipelines.dagster.partitions import find_name_conflict
from state_pipelines.dagster.translation import DESCRIPTION, PRIORITY_TAG, TABLES
from state_pipelines.errors import FormatError, MissingFileError, StorageError
from state_pipelines.storage import Location, join, list_files, parent, read_file, resolve
from state_pipelines.storage.files import list_directory, remove_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.dagster.job import FlinkJob

_LONGEST = 300
"""Number of characters up to which the instance stores the content itself."""

_FILE = "file"


def load_cursor(job: FlinkJob, sensor: str, context: dg.SensorEvaluationContext) -> dict[str, Any]:
    """Return the content of a cursor; empty where it was cleared, or its file was deleted.

    Args:
        job: the Flink job.
        sensor: name of the sensor, without the prefix of the job.
        context: of the tick.

    Raises:
        FormatError: the file is not the one that the tick before has written.
        StorageError: the storage fails.
    """
    content: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
    if _FILE not in content:
        return content
    location = _locate(job, sensor, content[_FILE])
    try:
        data = read_file(location)
    except MissingFileError:
        context.log.warning("The file of the cursor was deleted, so that the sensor begins again: %s", location)
        return {}
    if _digest(data) != content[_FILE]:
        raise FormatError(
            f"the file of the cursor was changed: {location}", hint="Delete it, or clear the cursor of the sensor"
        )
    loaded: dict[str, Any] = json.loads(data)
    return loaded


def store_cursor(job: FlinkJob, sensor: str, context: dg.SensorEvaluationContext, content: dict[str, Any]) -> str:
    """Return the cursor for a content; write the content to a file if it is long and has changed.

    The file of the previous cursor is kept, because that cursor is valid until Dagster has stored the new one.

    Raises:
        StorageError: the storage fails.
    """
    text = json.dumps(content)
    if len(text) <= _LONGEST:
        return text
    data = text.encode()
    cursor = json.dumps({_FILE: _digest(data)})
    if cursor != context.cursor:
        location = _locate(job, sensor, _digest(data))
        replace_file(location, data)
        _remove_others(location, f"{sensor}-", context.cursor or "")
    return cursor


def _locate(job: FlinkJob, sensor: str, digest: str) -> Location:
    return join(parent(job.storage.inventory), "cursors", f"{sensor}-{digest}.json")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _remove_others(location: Location, beginning: str, before: str) -> None:
    for entry in list_directory(parent(location)):
        name = entry.location.name
        digest = name.removeprefix(beginning).removesuffix(".json")
        if name.startswith(beginning) and name != location.name and f'"{digest}"' not in before:
            try:
                remove_file(entry.location)
            except StorageError:
                # A file of an old cursor that cannot be removed now does no harm; the next change removes it.
                continue


_LOCK = threading.Lock()
_SHARED: list[tuple[object, dg.DagsterInstance]] = []
"""The instance that was opened last, with its reference; a code location serves one."""


def share_instance(context: dg.SensorEvaluationContext) -> dg.DagsterInstance:
    """Return the instance of a sensor, opened once for all ticks; in tests, which have no reference, the context's."""
    reference = context.instance_ref
    if reference is None:
        return context.instance
    with _LOCK:
        for known, instance in _SHARED:
            if known == reference:
                return instance
        instance = dg.DagsterInstance.from_ref(reference)
        _SHARED[:] = [(reference, instance)]
        return instance


_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def find_obstacle(instance: dg.DagsterInstance, job: FlinkJob) -> str:
    """Return why a periodic checkpoint cannot start now, or an empty text if it can.

    As in Flink, the checkpoint waits while another one is pending, and for the minimum pause after the last one.
    """
    assert job.stream is not None
    options = job.stream.parsed
    wanted = dg.RunsFilter(job_name=job.prefix(TAKE_CHECKPOINT), statuses=_UNFINISHED)
    pending = instance.get_runs(wanted, limit=1)
    if pending:
        return f"A checkpoint is pending: run {pending[0].run_id}"
    event = instance.get_latest_materialization_event(job.key(savepoints.CHECKPOINT))
    if event is not None and options.min_pause:
        passed = (datetime.now(UTC) - datetime.fromtimestamp(event.timestamp, UTC)).total_seconds() * 1000
        if passed < options.min_pause:
            return FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS.message
    return ""


DAILY_AUDIT = "daily_audit"

NEWEST = 3
"""Number of snapshots audited each day."""


def build_daily_audit(job: FlinkJob) -> dg.ScheduleDefinition:
    """Build the schedule `daily_audit` of a job."""

    @flink_schedule(job, DAILY_AUDIT, runs=AUDIT, cron="0 4 * * *")
    def daily_audit(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        """Requests an audit of the newest snapshots every day, because files can go missing at any time."""
        partitions = context.instance.get_dynamic_partitions(str(job.partitions.name))
        update = job.storage.update_inventory(partitions=partitions)
        for each in update.new:
            if each.unreadable:
                context.log.warning("%s cannot be read: %s", each.path, each.unreadable)
        keys = list(update.inventory.keys[:NEWEST])
        if not keys:
            return dg.SkipReason(f"No readable snapshots below {', '.join(job.all_roots)}")
        if conflict := find_name_conflict(context.instance, job):
            return dg.SkipReason(conflict)
        context.instance.add_dynamic_partitions(str(job.partitions.name), keys)
        day = f"{context.scheduled_execution_time:%Y-%m-%d}"
        return [dg.RunRequest(run_key=f"{key}-{day}", partition_key=key) for key in keys]

    return daily_audit


DAILY_RETENTION_PLAN = "daily_retention_plan"


def build_retention_schedule(job: FlinkJob) -> dg.ScheduleDefinition:
    """Build the schedule `daily_retention_plan` of a job; running by default only with `apply: scheduled`."""
    settings = job.retention_runs
    is_scheduled = settings.apply is PlanApplication.SCHEDULED
    return dg.ScheduleDefinition(
        name=job.prefix(DAILY_RETENTION_PLAN),
        job_name=job.prefix(PLAN_RETENTION),
        cron_schedule=settings.cron,
        execution_timezone="UTC",
        description="Plans which snapshots and files to delete. Deletes nothing; a check warns until it is applied.",
        default_status=dg.DefaultScheduleStatus.RUNNING if is_scheduled else dg.DefaultScheduleStatus.STOPPED,
    )


PERIODIC_CHECKPOINT = "periodic_checkpoint"


def build_periodic_checkpoint(job: FlinkJob, cron: str) -> dg.ScheduleDefinition:
    """Build the schedule `periodic_checkpoint` of a job whose stream has a checkpoint interval.

    Args:
        job: the Flink job.
        cron: cron expression of the interval.
    """

    @flink_schedule(job, PERIODIC_CHECKPOINT, runs=TAKE_CHECKPOINT, cron=cron, is_running=True)
    def periodic_checkpoint(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        """Requests a run of the stream, unless one is pending or the pause after the last checkpoint is not over."""
        obstacle = find_obstacle(context.instance, job)
        return dg.SkipReason(obstacle) if obstacle else dg.RunRequest()

    return periodic_checkpoint


NEW_INPUT = "new_input"

NEW_INPUT_INTERVAL = 30
"""Seconds between two ticks."""

_WILDCARDS = ("*", "?", "[")


def build_new_input(job: FlinkJob, pattern: str) -> dg.SensorDefinition:
    """Build the sensor `new_input` of a job whose stream names its input.

    Args:
        job: the Flink job.
        pattern: directory, or pattern of files in one.
    """

    @flink_sensor(job, NEW_INPUT, interval=NEW_INPUT_INTERVAL, runs=TAKE_CHECKPOINT)
    def new_input(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Requests a run of the stream when files of its input are new or have changed; the cursor is their digest."""
        count, digest = _digest_files(pattern)
        if not count:
            return dg.SkipReason(f"There are no files in {pattern}")
        if digest == context.cursor:
            return dg.SkipReason(f"Nothing is new in the {count} files in {pattern}")
        # The cursor stays, so that the next tick looks again.
        if obstacle := find_obstacle(share_instance(context), job):
            return dg.SkipReason(obstacle)
        return dg.SensorResult(run_requests=[dg.RunRequest()], cursor=digest)

    return new_input


def _digest_files(pattern: str) -> tuple[int, str]:
    """Return the number of files and a digest of their names, sizes and times; without hidden files, as in Spark."""
    directory, slash, names = pattern.rpartition("/")
    if not slash or not any(each in names for each in _WILDCARDS):
        directory, names = pattern, "*"
    lines = []
    for each in list_files(resolve(directory)):
        name = each.location.name
        if fnmatchcase(name, names) and not name.startswith(("_", ".")):
            lines.append(f"{each.location.path}\n{each.size}\n{each.modified}")
    return len(lines), hashlib.sha256("\n".join(sorted(lines)).encode(errors="surrogateescape")).hexdigest()[:32]


AGREED_PLANS = "agreed_plans"

AGREED_PLANS_INTERVAL = 60
"""Seconds between two ticks."""


def build_agreed_plans(job: FlinkJob) -> dg.SensorDefinition:
    """Build the sensor that requests the application of a plan of retention when its grace period is over.

    A job has it if its retention says `apply: scheduled`.
    """
    running = dg.DefaultSensorStatus.RUNNING

    @flink_sensor(job, AGREED_PLANS, interval=AGREED_PLANS_INTERVAL, runs=APPLY_RETENTION, status=running)
    def agreed_plans(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        """Requests the application of the newest plan, once, when the grace period is over.

        The run plans again, and deletes nothing unless both plans have the same fingerprint.
        """
        event = share_instance(context).get_latest_materialization_event(job.key(retention.PLAN_NAME))
        plan = None if event is None else event.asset_materialization
        # A materialization that somebody reports in the UI has no metadata.
        if event is None or plan is None or retention.FINGERPRINT not in plan.metadata:
            return dg.SkipReason("There is no plan yet")
        fingerprint = str(plan.metadata[retention.FINGERPRINT].value)
        has_paths = plan.metadata[retention.PATHS].value
        if not has_paths and not plan.metadata[retention.IN_QUARANTINE].value:
            return dg.SkipReason("The newest plan deletes nothing, and nothing is in quarantine")
        due = datetime.fromtimestamp(event.timestamp, UTC) + job.retention_runs.grace_period
        if datetime.now(UTC) < due:
            return dg.SkipReason(f"The plan {fingerprint} is made again at {due:%Y-%m-%d %H:%M} UTC")
        config = {"fingerprint": fingerprint, "scheduled": True}
        return dg.RunRequest(
            # The key has the run of the plan: each plan is applied once, even if two plans have the same fingerprint.
            run_key=f"{fingerprint}-{event.run_id}",
            run_config={"ops": {job.op(retention.APPLICATION_NAME): {"config": config}}},
        )

    return agreed_plans


AUTOMATION = "automation"
TABLES_NAME = "table_automation"

AUTOMATION_INTERVAL = 300
"""Seconds between two evaluations, which cost more than a tick of other sensors; nothing urgent waits for them."""


def build_automation(job: FlinkJob, keys: Sequence[dg.AssetKey]) -> Iterator[dg.AutomationConditionSensorDefinition]:
    """Yield the sensors of a job, so that the automation of each job can be switched separately.

    All assets that one sensor requests for a snapshot are materialised by one run. Tables have a sensor and runs of
    their own, because they take long and use Spark.

    Args:
        job: the Flink job.
        keys: keys of its assets, which select them; post-processing may change their groups.
    """
    tables = dg.AssetSelection.assets(job.key(state_tables.STATE_TABLES))
    selection: dg.AssetSelection = dg.AssetSelection.assets(*keys)
    if job.tables is not None:
        selection -= tables
        yield _build(job, TABLES_NAME, tables, TABLES, "Writes the tables of new snapshots.")
    yield _build(job, AUTOMATION, selection, DESCRIPTION, "Describes, checks and audits new snapshots.")


def _build(
    job: FlinkJob, name: str, selection: dg.AssetSelection, priority: int, description: str
) -> dg.AutomationConditionSensorDefinition:
    return dg.AutomationConditionSensorDefinition(
        job.prefix(name),
        target=selection,
        run_tags={PRIORITY_TAG: str(priority), **job.tags},
        minimum_interval_seconds=job.interval(name, AUTOMATION_INTERVAL),
        default_status=job.sensor_status,
        description=description,
        # A backfill submits its runs in the order of the graph, so that a canceled or failed one takes others with it.
        # Without backfills each snapshot has a run that nothing else can cancel.
        emit_backfills=False,
    )
