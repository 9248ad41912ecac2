"""Assets about snapshots: inventory, profile, difference, balance of key groups, audit, and compatibility with a job.

`snapshot_inventory` lists all snapshots below the roots of a job. The others are per snapshot: `snapshot_profile`
(statistics of its entries), `snapshot_diff` (changes since the previous snapshot of the same job), `key_group_balance`
(distribution of keyed state over key groups and subtasks, and its hottest keys), `restore_audit` (whether it can be
restored, as far as its bytes show) and `compatibility_report` (whether the new job can restore its state, before that
is deployed).
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` as a class, not as text.

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.flink_asset import AssetStep, flink_asset, make_config
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import (
    Cell,
    expect_none,
    list_texts,
    make_table,
    round_seconds,
    to_evaluation,
)
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.dagster.storage import AUDIT_REPORT
from state_pipelines.dagster.translation import DATA_VERSION_TAG, METADATA, NEW_SNAPSHOT, SAMPLE
from state_pipelines.errors import FormatError, Where
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.auditing import Depth, Property, Severity, audit_snapshot
from state_pipelines.operations.balance import measure_balance, render_balance
from state_pipelines.operations.check.check import CheckVerdict, MigrationCheckReport, check_migration, parse_release
from state_pipelines.operations.diff import ExampleKind, diff
from state_pipelines.operations.diff.diff_report import ComparedState, list_changes
from state_pipelines.operations.inventory import find_previous
from state_pipelines.operations.jobs.job_state import JobDescription
from state_pipelines.operations.jobs.new_job import describe_new_job
from state_pipelines.operations.local_processes import choose_processes, run_tasks
from state_pipelines.operations.migration.history import MigrationRequest
from state_pipelines.operations.profiling import OperatorProfile, Profile, StateProfile, profile_snapshot
from state_pipelines.operations.retention.policy import parse_duration
from state_pipelines.operations.state_rows import compact
from state_pipelines.snapshot import Snapshot
from state_pipelines.snapshot.representation import escape_markdown
from state_pipelines.storage import replace_file

if TYPE_CHECKING:
    from state_pipelines.operations.auditing import AuditReport, Finding
    from state_pipelines.operations.balance import Balance, OperatorBalance
    from state_pipelines.operations.inventory import InventoryUpdate, SnapshotSummary


SNAPSHOT_INVENTORY = "snapshot_inventory"

READABLE = "snapshots_are_readable"
ROOTS = "roots_exist"
RECENT = "recent_savepoint"
"""The check of a job with the threshold `max_hours_without_savepoint`."""

INVENTORY_SAMPLE = 10
"""Number of snapshots in the table and in the samples of checks; the Parquet file holds all of them."""

HEARTBEAT = 3600
"""Seconds after which the sensor reports an inventory again in which nothing has changed."""

MIN_AGE = 600
"""Seconds that a report lasts, unless a check has another outcome."""

_TEXT_SIZE = 500

_INVENTORY_COLUMNS = [
    dg.TableColumn("snapshot", description="partition key"),
    dg.TableColumn("kind"),
    dg.TableColumn("format", description="of savepoints: canonical or native"),
    dg.TableColumn("checkpoint id", "int"),
    dg.TableColumn("written", description="modification time of _metadata"),
    dg.TableColumn("bytes", "int", description="size of all state, including shared files"),
    dg.TableColumn("shared bytes", "int", description="size of files that other checkpoints may reference"),
    dg.TableColumn("operators", "int"),
    dg.TableColumn("max parallelism", "int", description="the highest of all operators"),
    dg.TableColumn("path"),
]


def build_snapshot_inventory(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `snapshot_inventory` of a job."""
    limit = job.thresholds.savepoint_limit

    @flink_asset(
        job,
        SNAPSHOT_INVENTORY,
        step=AssetStep.SEE,
        kinds={"flink", "parquet"},
        partitioned=False,
        freshness=_build_freshness(job),
        checks={
            READABLE: "The metadata of every snapshot can be read.",
            ROOTS: "The roots of the job exist.",
            **({} if limit is None else {RECENT: f"The newest savepoint that can be read is at most {limit} old."}),
        },
        blocking=False,
    )
    def snapshot_inventory(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        """All checkpoints and savepoints below the roots: a summary in the metadata, a row for each in a Parquet file.

        Reads only the `_metadata` of snapshots that are not in the file yet. The sensor `new_snapshots`, which lists
        the roots anyway, reports the inventory without a run.
        """
        partitions = context.instance.get_dynamic_partitions(str(job.partitions.name))
        update = job.storage.update_inventory(partitions=partitions)
        if update.rebuilt:
            context.log.warning("The stored inventory was replaced: %s", update.rebuilt)
        yield dg.MaterializeResult(
            metadata=describe_inventory(job, update, partitions),
            data_version=dg.DataVersion(_hash_content(update)),
            check_results=_check(job, update),
        )

    return snapshot_inventory


def describe_inventory(job: FlinkJob, update: "InventoryUpdate", partitions: Iterable[str]) -> dict[str, Any]:
    """Return the metadata of the asset `snapshot_inventory`."""
    inventory = update.inventory
    readable = [each for each in inventory.head(INVENTORY_SAMPLE * 10) if not each.unreadable]
    return {
        **_count(update),
        **_describe_newest(readable[:1]),
        "prunable partitions": len(update.find_prunable(partitions)),
        "newest snapshots": make_table(_INVENTORY_COLUMNS, map(_list_cells, readable[:INVENTORY_SAMPLE])),
        "inventory": dg.MetadataValue.path(str(job.storage.inventory)),
        "roots": "; ".join(job.storage.roots),
        "dagster/row_count": len(inventory),
    }


class InventoryReports:
    """Reports of the inventory by the sensor that lists the roots: when something has changed, and every hour.

    Args:
        job: the Flink job.
        stored: what `to_json` returned at the last report; empty before the first one.
    """

    def __init__(self, job: FlinkJob, stored: Mapping[str, Any]) -> None:
        self._job = job
        self._reported: Mapping[str, Any] = stored

    def report(
        self, update: "InventoryUpdate", partitions: Iterable[str], now: datetime
    ) -> list[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
        """Return the events to report: none if there is nothing new.

        Args:
            update: of the inventory.
            partitions: keys of the partitions of the job.
            now: time of the evaluation.
        """
        checks = _check(self._job, update)
        content = _hash_content(update)
        outcomes = "".join("01"[each.passed] for each in checks)
        age = now.timestamp() - self._reported.get("at", 0)
        is_due = age >= HEARTBEAT or (age >= MIN_AGE and content != self._reported.get("content"))
        if not is_due and outcomes == self._reported.get("checks"):
            return []
        self._reported = {"at": round(now.timestamp()), "content": content, "checks": outcomes}
        key = self._job.key(SNAPSHOT_INVENTORY)
        metadata = describe_inventory(self._job, update, partitions)
        return [
            dg.AssetMaterialization(key, metadata=metadata, tags={DATA_VERSION_TAG: content}),
            *(to_evaluation(each, key) for each in checks),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the last report for the cursor."""
        return dict(self._reported)


def _check(job: FlinkJob, update: "InventoryUpdate") -> list[dg.AssetCheckResult]:
    limit = job.thresholds.savepoint_limit
    recent = [] if limit is None else [_check_recent(update, limit)]
    return [_check_readable(update), _check_roots(update), *recent]


def _hash_content(update: "InventoryUpdate") -> str:
    return hashlib.sha256("\n".join(sorted(update.inventory.keys)).encode()).hexdigest()[:16]


def _build_freshness(job: FlinkJob) -> dg.FreshnessPolicy | None:
    hours = job.thresholds.max_hours_without_inventory
    return None if hours is None else dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=hours))


def _count(update: "InventoryUpdate") -> dict[str, int]:
    """Return the numbers of an inventory update that the UI plots over time."""
    inventory = update.inventory
    kinds = inventory.table["kind"].to_pylist()
    return {
        "snapshots": len(inventory),
        "checkpoints": kinds.count(SnapshotKind.CHECKPOINT),
        "savepoints": kinds.count(SnapshotKind.SAVEPOINT),
        "opened": len(update.new),
        "unreadable": len(inventory.unreadable()),
        "bytes": inventory.sum("bytes"),
        "keyed bytes": inventory.sum("keyed_bytes"),
        "operator bytes": inventory.sum("operator_bytes"),
        "in-flight bytes": inventory.sum("in_flight_bytes"),
        "shared bytes": inventory.sum("shared_bytes"),
    }


def _describe_newest(newest: list["SnapshotSummary"]) -> dict[str, dg.MetadataValue | str | int | float]:
    described: dict[str, dg.MetadataValue | str | int | float] = {}
    for each in newest:
        described = {"newest": each.key, "bytes of the newest": each.bytes}
        if each.modified is not None:
            described["newest written"] = dg.MetadataValue.timestamp(each.modified)
            age = datetime.now(UTC) - each.modified
            described["hours since the newest"] = _to_hours(age)
    return described


def _list_cells(summary: "SnapshotSummary") -> tuple[Cell, ...]:
    """Return the row of a snapshot for the table with the columns `_INVENTORY_COLUMNS`."""
    return (
        summary.key,
        str(summary.kind),
        summary.format,
        summary.checkpoint_id,
        "" if summary.modified is None else summary.modified.isoformat(sep=" ", timespec="seconds"),
        summary.bytes,
        summary.shared_bytes,
        len(summary.operators),
        summary.max_parallelism,
        summary.path[:_TEXT_SIZE],
    )


def _check_readable(update: "InventoryUpdate") -> dg.AssetCheckResult:
    unreadable = update.inventory.unreadable()
    sample = {each.path[:_TEXT_SIZE]: each.unreadable[:_TEXT_SIZE] for each in unreadable.head(INVENTORY_SAMPLE)}
    return expect_none(READABLE, len(unreadable), {"sample": sample})


def _check_roots(update: "InventoryUpdate") -> dg.AssetCheckResult:
    missing = update.missing_roots
    return expect_none(ROOTS, len(missing), {"sample": list(missing)[:INVENTORY_SAMPLE]})


def _check_recent(update: "InventoryUpdate", limit: timedelta) -> dg.AssetCheckResult:
    newest = next((each for each in update.inventory if each.kind is SnapshotKind.SAVEPOINT and each.key), None)
    taken = None if newest is None else newest.modified
    now = datetime.now(UTC)
    metadata: dict[str, dg.MetadataValue | str] = {"expected": dg.MetadataValue.float(_to_hours(limit))}
    if newest is not None:
        metadata["newest savepoint"] = newest.key
        metadata["snapshot"] = dg.MetadataValue.path(newest.path)
    if taken is not None:
        metadata["observed"] = dg.MetadataValue.float(_to_hours(now - taken))
        metadata["taken"] = dg.MetadataValue.timestamp(taken)
    return dg.AssetCheckResult(
        check_name=RECENT,
        passed=taken is not None and now - taken <= limit,
        severity=dg.AssetCheckSeverity.WARN,
        description=None if newest is not None else "There is no savepoint that can be read.",
        metadata=metadata,
    )


def _to_hours(duration: timedelta) -> float:
    return round(duration.total_seconds() / 3600, 3)


SNAPSHOT_PROFILE = "snapshot_profile"

MAX_ROWS = 100
"""Maximal number of rows per table in the UI; the JSON file contains all."""

_PROFILE_TEXT_SIZE = 120
_DIGITS = 4

_STATES = [
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("state"),
    dg.TableColumn("kind"),
    dg.TableColumn("key", description="serializer of the keys"),
    dg.TableColumn("value", description="serializer of the value"),
    dg.TableColumn("entries", "int"),
    dg.TableColumn("keys", "int", description="distinct keys"),
    dg.TableColumn("bytes", "int", description="of keys and values"),
    dg.TableColumn("bytes per entry", "float"),
    dg.TableColumn("expired", "int", description="entries past their TTL; empty if no TTL is declared"),
    dg.TableColumn("oldest access"),
    dg.TableColumn("not decoded", description="why entries were profiled as bytes, or could not be read"),
]
_FIELDS = [
    dg.TableColumn("operator"),
    dg.TableColumn("state"),
    dg.TableColumn("column", description="path of the field"),
    dg.TableColumn("type"),
    dg.TableColumn("null ratio", "float"),
    dg.TableColumn("default ratio", "float", description="share of 0, false or empty"),
    dg.TableColumn("measured", description="whether minimum, maximum and mean are of values or of lengths"),
    dg.TableColumn("minimum"),
    dg.TableColumn("maximum"),
    dg.TableColumn("mean", "float"),
]
_KEYS = [
    dg.TableColumn("operator"),
    dg.TableColumn("key"),
    dg.TableColumn("key group", "int"),
    dg.TableColumn("subtask", "int"),
    dg.TableColumn("bytes", "int"),
    dg.TableColumn("records", "int"),
    dg.TableColumn("share of its subtask", "float"),
]
_TTL = [
    dg.TableColumn("operator"),
    dg.TableColumn("state"),
    dg.TableColumn("within", description="time since the last access, or until entries expire"),
    dg.TableColumn("last accessed", "int", description="entries whose last access was that long ago"),
    dg.TableColumn("expiring", "int", description="entries that expire in that time"),
]


class ProfileConfig(dg.Config):
    """Information on states that snapshots do not store."""

    ttl: dict[str, str] = Field(
        default={},
        description="Time to live by OPERATOR/STATE or STATE; * for all others. Adds to `ttl` of the job.",
    )


def build_snapshot_profile(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `snapshot_profile` of a job."""

    @flink_asset(
        job,
        SNAPSHOT_PROFILE,
        step=AssetStep.SEE,
        kinds={"flink", "json"},
        automation=NEW_SNAPSHOT,
    )
    def snapshot_profile(
        context: dg.AssetExecutionContext, config: ProfileConfig
    ) -> Iterator[dg.MaterializeResult[None]]:
        """Entries, sizes, largest keys, nulls and defaults per column, and ages of entries. Reads all state."""
        snapshot = open_partition(context, job)
        given = {"" if name == "*" else name: parse_duration(text, f"ttl.{name}") for name, text in config.ttl.items()}
        run = partial(run_tasks, processes=choose_processes(snapshot.file_size))
        profile = profile_snapshot(snapshot, ttl=job.lives | given, run=run)
        for name in profile.unused_ttl:
            context.log.info("A TTL is declared for %s, but the snapshot has no such state", name)
        for error in profile.errors:
            context.log.warning("%s", error)
        target = job.storage.locate_report(SNAPSHOT_PROFILE, context.partition_key)
        replace_file(target, json.dumps(profile.to_json()).encode())
        states = [(operator, state) for operator in profile.operators for state in operator.states]
        yield dg.MaterializeResult(
            metadata={
                **_count_entries(profile),
                "states": _make_table(_STATES, [_list_state(*each) for each in states]),
                "columns": _make_table(_FIELDS, [row for each in states for row in _list_columns(*each)]),
                "largest keys": _make_table(_KEYS, _list_keys(profile)),
                "ages": _make_table(_TTL, [row for each in states for row in _list_ages(*each)]),
                "profile": dg.MetadataValue.path(str(target)),
                "snapshot": dg.MetadataValue.path(snapshot.path),
                "errors": [error[: 4 * _PROFILE_TEXT_SIZE] for error in profile.errors[:10]],
                "dagster/row_count": profile.entries,
            },
            data_version=dg.DataVersion(snapshot.fingerprint),
        )

    return snapshot_profile


def _count_entries(profile: Profile) -> dict[str, int | float]:
    """Return the numbers of a profile that the UI plots over snapshots."""
    largest = [key for each in profile.balance.operators for key in each.most_bytes]
    numbers: dict[str, int | float] = {
        "entries": profile.entries,
        "bytes": profile.bytes,
        "keys of the largest operator": max(
            (sum(each.now.loads.keys or ()) for each in profile.balance.operators if each.now is not None), default=0
        ),
        "imbalance": round(profile.balance.imbalance, _DIGITS),
        "bytes of the largest key": max((key.bytes for key in largest), default=0),
        "share of the largest key in its subtask": round(max((key.share for key in largest), default=0.0), _DIGITS),
        "unreadable": len(profile.errors),
    }
    if profile.expired is not None:
        numbers["expired"] = profile.expired
        numbers["expired ratio"] = round(profile.expired / profile.entries, _DIGITS) if profile.entries else 0.0
    return numbers


def _make_table(columns: list[dg.TableColumn], rows: list[tuple[Cell, ...]]) -> dg.TableMetadataValue:
    identity = 3 if columns is _FIELDS else 2
    return make_table(columns, (tuple(map(_crop, row)) for row in rows[:MAX_ROWS]), identity=identity)


def _crop(value: Cell) -> Cell:
    if isinstance(value, str) and len(value) > _PROFILE_TEXT_SIZE:
        return f"{value[: _PROFILE_TEXT_SIZE - 1]}…"
    return round(value, _DIGITS) if isinstance(value, float) else value


def _list_state(operator: OperatorProfile, state: StateProfile) -> tuple[Cell, ...]:
    """Return the row of a state for the table with the columns `_STATES`."""
    failed = f"{state.failed} entries: {state.failure}" if state.failed else ""
    types = (state.kind, state.key, state.value)
    numbers = (state.entries, state.keys, state.bytes, state.mean_bytes)
    ages = (None, None) if state.ttl is None else (state.ttl.expired, state.ttl.oldest)
    return (operator.label, state.name, *types, *numbers, *ages, state.error or state.undecoded or failed)


def _list_columns(operator: OperatorProfile, state: StateProfile) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each column of a state, for the table with the columns `_FIELDS`."""
    for each in state.columns:
        ratios = (each.null_ratio, each.default_ratio)
        bounds = (None if bound is None else str(bound) for bound in (each.minimum, each.maximum))
        yield (operator.label, state.name, each.column, each.type, *ratios, str(each.measured), *bounds, each.mean)


def _list_keys(profile: Profile) -> list[tuple[Cell, ...]]:
    """Return a row for each of the largest keys, for the table with the columns `_KEYS`."""
    return [
        (operator.label, key.key, key.key_group, key.subtask, key.bytes, key.records, key.share)
        for operator in profile.balance.operators
        for key in operator.most_bytes
    ]


def _list_ages(operator: OperatorProfile, state: StateProfile) -> list[tuple[Cell, ...]]:
    """Return the rows on the ages of a state's entries, for the table with the columns `_TTL`."""
    if state.ttl is None:
        return []
    expiring = state.ttl.expiring or {}
    return [
        (operator.label, state.name, name, state.ttl.by_age.get(name), expiring.get(name))
        for name in dict.fromkeys((*state.ttl.by_age, *expiring))
        if state.ttl.by_age.get(name) or expiring.get(name)
    ]


SNAPSHOT_DIFF = "snapshot_diff"

SAMPLES = 10
"""Number of sample keys per state and kind of change."""

_SAMPLE_SIZE = 30_000
_DIFF_TEXT_SIZE = 120

_DIFF_COLUMNS = [
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("state"),
    dg.TableColumn("kind"),
    dg.TableColumn("before", "int", description="records in the previous snapshot"),
    dg.TableColumn("after", "int"),
    dg.TableColumn("added", "int"),
    dg.TableColumn("removed", "int"),
    dg.TableColumn("changed", "int"),
    dg.TableColumn("note", description="why records were not compared, or other differences"),
]
_TITLES = {ExampleKind.OTHER: "added", ExampleKind.ONE: "removed", ExampleKind.CHANGED: "changed"}


class DiffConfig(dg.Config):
    """The snapshot to compare with."""

    previous: str | None = Field(
        default=None, description="Partition key; by default the newest older snapshot of the same Flink job."
    )


def build_snapshot_diff(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `snapshot_diff` of a job."""

    @flink_asset(
        job,
        SNAPSHOT_DIFF,
        step=AssetStep.SEE,
        kinds={"flink", "json"},
        automation=NEW_SNAPSHOT,
    )
    def snapshot_diff(context: dg.AssetExecutionContext, config: DiffConfig) -> Iterator[dg.MaterializeResult[None]]:
        """Records added, removed and changed since the previous snapshot, state by state, with samples."""
        snapshot = open_partition(context, job)
        key = config.previous or _find_previous(job, context.partition_key)
        if key is None:
            context.log.info("There is no older snapshot of the job to compare with")
            yield dg.MaterializeResult(
                metadata={"previous": "none", "snapshot": dg.MetadataValue.path(snapshot.path)},
                data_version=dg.DataVersion(snapshot.fingerprint),
            )
            return
        previous = job.storage.find(key)
        found = diff(previous, snapshot, limit=SAMPLES * len(ExampleKind))
        changes = list_changes(found)
        target = job.storage.locate_report(SNAPSHOT_DIFF, context.partition_key)
        replace_file(target, json.dumps(found.to_json(), default=str).encode())
        yield dg.MaterializeResult(
            metadata={
                "summary": found.summary,
                "previous": key,
                "added": sum(each.added or 0 for each in changes),
                "removed": sum(each.removed or 0 for each in changes),
                "changed": sum(each.changed or 0 for each in changes),
                "records": sum(each.after or 0 for each in changes),
                "states that changed": sum(each.is_changed for each in changes),
                "not compared": sum(each.added is None for each in changes),
                "states": _tabulate(changes),
                "samples": dg.MetadataValue.md(show_samples(changes)),
                "diff": dg.MetadataValue.path(str(target)),
                "previous snapshot": dg.MetadataValue.path(previous.path),
                "snapshot": dg.MetadataValue.path(snapshot.path),
            },
            data_version=dg.DataVersion(f"{previous.fingerprint}-{snapshot.fingerprint}"),
        )

    return snapshot_diff


def _find_previous(job: FlinkJob, key: str) -> str | None:
    inventory = job.storage.read_inventory()
    if not inventory.find(key):
        inventory = job.storage.update_inventory().inventory
    found = find_previous(inventory, key)
    return None if found is None else found.key


def _tabulate(changes: list[ComparedState]) -> dg.TableMetadataValue:
    first = sorted(changes, key=lambda each: not each.is_changed)[:MAX_ROWS]
    rows = []
    for each in first:
        numbers = (each.before, each.after, each.added, each.removed, each.changed)
        rows.append(
            (_crop_change(each.operator), _crop_change(each.state), each.kind, *numbers, _crop_change(each.note))
        )
    return make_table(_DIFF_COLUMNS, rows)


def show_samples(changes: list[ComparedState]) -> str:
    """Format samples as Markdown tables per state, limited to a size that the UI renders quickly."""
    lines: list[str] = []
    size = 0
    for change in changes:
        for kind, title in _TITLES.items():
            samples = change.list_samples(kind)[:SAMPLES]
            if not samples:
                continue
            operator, state = (escape_markdown(_crop_change(each)) for each in (change.operator, change.state))
            table = [
                f"**{operator}, {state}: {title}**",
                "",
            ]
            table += ["| key | before | after |", "| --- | --- | --- |"]
            for each in samples:
                cells = (escape_markdown(_crop_change(_to_text(cell))) for cell in (each.key, each.one, each.other))
                table.append(f"| {' | '.join(cells)} |")
            size += sum(map(len, table))
            if size > _SAMPLE_SIZE:
                return "\n".join([*lines, "Further samples are in the JSON file."])
            lines += [*table, ""]
    return "\n".join(lines) or "No samples."


def _to_text(cell: dict[str, object] | None) -> str:
    return "" if cell is None else compact(next(iter(cell.values())) if len(cell) == 1 else cell)


def _crop_change(text: str) -> str:
    return text if len(text) <= _DIFF_TEXT_SIZE else f"{text[: _DIFF_TEXT_SIZE - 1]}…"


KEY_GROUP_BALANCE = "key_group_balance"
BALANCED = "balanced"


_BALANCE_COLUMNS = [
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("subtask", "int"),
    dg.TableColumn("first key group", "int"),
    dg.TableColumn("last key group", "int"),
    dg.TableColumn("bytes", "int", description="of keys and values"),
    dg.TableColumn("records", "int"),
    dg.TableColumn("keys", "int", description="distinct keys; empty if they cannot be counted"),
]


class BalanceConfig(dg.Config):
    """Configuration of the measurement: its depth, and another parallelism to predict."""

    count: bool = Field(
        default=True,
        description="Read all keyed state to count records and keys; otherwise only measure bytes of key groups.",
    )
    parallelism: int | None = Field(default=None, description="Predict the balance for this parallelism.")
    max_parallelism: int | None = Field(default=None, description="Predict the balance for this max parallelism.")


def build_key_group_balance(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `key_group_balance` of a job."""
    limit = job.thresholds.max_imbalance

    @flink_asset(
        job,
        KEY_GROUP_BALANCE,
        step=AssetStep.SEE,
        kinds={"flink", "markdown"},
        automation=NEW_SNAPSHOT,
        checks={} if limit is None else {BALANCED: f"The largest subtask has at most {limit} times the mean bytes."},
    )
    def key_group_balance(
        context: dg.AssetExecutionContext, config: BalanceConfig
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """Bytes, records and keys per key group and subtask, the skew, and a prediction for another parallelism."""
        snapshot = open_partition(context, job)
        balance = measure_balance(
            snapshot, parallelism=config.parallelism, max_parallelism=config.max_parallelism, count=config.count
        )
        for each in balance.operators:
            if each.error:
                context.log.warning("%s cannot be read: %s", each.label, each.error)
        measured = [each for each in balance.operators if each.now is not None]
        yield dg.MaterializeResult(
            metadata={
                "balance": dg.MetadataValue.md(balance.to_markdown()),
                **({"picture": _draw(balance)} if measured else {}),
                "subtasks": make_table(_BALANCE_COLUMNS, [row for each in measured for row in _list_subtasks(each)]),
                # Numbers, which Dagster plots over snapshots.
                "imbalance": round(balance.imbalance, _DIGITS),
                "idle subtasks": sum(len(each.now.idle) for each in measured if each.now is not None),
                "share of the hottest key group": _find_largest(
                    each.hottest_key_groups[0].share for each in measured if each.hottest_key_groups
                ),
                "share of the hottest key in its subtask": _find_largest(
                    key.share for each in measured for key in each.most_bytes
                ),
                "bytes": sum(each.now.bytes for each in measured if each.now is not None),
                "unreadable": sum(bool(each.error) for each in balance.operators),
                "conflicts of max parallelism": len(balance.conflicts),
                "snapshot": dg.MetadataValue.path(snapshot.path),
            },
            data_version=dg.DataVersion(snapshot.fingerprint),
        )

        if limit is not None:
            yield _check_balance(job, balance, limit)

    return key_group_balance


def _find_largest(shares: Iterable[float]) -> float:
    return round(max(shares, default=0.0), _DIGITS)


def _check_balance(job: FlinkJob, balance: "Balance", limit: float) -> dg.AssetCheckResult:
    beyond = {
        each.label: each.now.imbalance
        for each in balance.operators
        if each.now is not None and each.now.imbalance > limit
    }
    return dg.AssetCheckResult(
        asset_key=job.key(KEY_GROUP_BALANCE),
        check_name=BALANCED,
        passed=not beyond,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "expected": dg.MetadataValue.float(limit),
            "observed": dg.MetadataValue.float(round(balance.imbalance, _DIGITS)),
            "operators": dg.MetadataValue.json(beyond),
        },
    )


def _draw(balance: "Balance") -> dg.MarkdownMetadataValue:
    encoded = base64.b64encode(render_balance(balance, "png")).decode()
    return dg.MetadataValue.md(f"![key groups and subtasks](data:image/png;base64,{encoded})")


def _list_subtasks(operator: "OperatorBalance") -> list[tuple[Cell, ...]]:
    """Return a row for each subtask of an operator, for the table with the columns `_BALANCE_COLUMNS`."""
    return [
        (operator.label, each.subtask, *each.key_groups, each.bytes, each.records, each.keys)
        for each in (operator.now.subtasks if operator.now is not None else ())
    ]


RESTORE_AUDIT = AUDIT_REPORT

_SHOWN = 100
_SAMPLE = 10

AUDIT_CHECKS = {
    Property.METADATA: ("metadata_is_consistent", "The numbers in _metadata agree with each other."),
    Property.FILES: ("files_exist", "Every file that a state handle names exists."),
    Property.SIZES: ("sizes_agree", "Every file has the size that its state handle records."),
    Property.LOCATIONS: ("files_belong_to_the_job", "No file is in the directory of another snapshot or job."),
    Property.SEGMENTS: ("segments_do_not_overlap", "Segments of merged files are inside their file and apart."),
    Property.KEY_GROUPS: ("key_groups_are_held_once", "Every key group is held by exactly one subtask."),
    Property.OFFSETS: ("offsets_are_inside", "Offsets of key groups, elements and buffers are inside their files."),
    Property.TABLES: ("tables_are_whole", "RocksDB tables match their checksums and the MANIFEST."),
    Property.CHECKSUMS: ("files_match_the_manifest", "Files match the checksums of the manifest, if there is one."),
    Property.RECORDS: ("records_can_be_decoded", "Headers, sections, changes and records can be decoded."),
}
"""Name and description of the check of each property."""

_AUDIT_COLUMNS = [
    dg.TableColumn("severity"),
    dg.TableColumn("property"),
    dg.TableColumn("finding"),
    dg.TableColumn("file"),
    dg.TableColumn("offset", "int"),
    dg.TableColumn("operator"),
    dg.TableColumn("state"),
    dg.TableColumn("hint"),
]


class AuditConfig(dg.Config):
    """The amount of data that is read."""

    whole: bool = Field(
        default=False, description="Read every record and checksum; otherwise the ends of every file and some records."
    )


def build_restore_audit(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `restore_audit` of a job."""

    @flink_asset(
        job,
        RESTORE_AUDIT,
        step=AssetStep.KEEP,
        kinds={"flink"},
        automation=NEW_SNAPSHOT,
        priority=SAMPLE,
        checks=dict(AUDIT_CHECKS.values()),
    )
    def restore_audit(
        context: dg.AssetExecutionContext, config: AuditConfig
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult | dg.AssetObservation]:
        """Every handle resolved and sized, every file opened, key groups counted, tables and records read.

        A damaged snapshot fails the step: the partition is failed, not materialised, and the findings are an
        observation.
        """
        key = job.key(RESTORE_AUDIT)
        snapshot = open_partition(context, job)
        report = audit_snapshot(snapshot, Depth.WHOLE if config.whole else Depth.SAMPLE)
        for finding in report.findings[:_SAMPLE]:
            context.log.warning("%s: %s", finding.severity, finding)
        file = job.storage.locate_report(RESTORE_AUDIT, context.partition_key)
        replace_file(file, json.dumps(report.to_json()).encode())
        metadata = describe_audit(report) | {"report": dg.MetadataValue.path(str(file))}
        if report.restorable:
            yield dg.MaterializeResult(
                asset_key=key, metadata=metadata, data_version=dg.DataVersion(snapshot.fingerprint)
            )
        else:
            yield dg.AssetObservation(key, partition=context.partition_key, metadata=metadata)
        yield from (_check_audit(report, key, each) for each in AUDIT_CHECKS)
        if not report.restorable:
            raise make_damage_error(report)

    return restore_audit


def make_damage_error(report: "AuditReport") -> FormatError:
    """Return the error of a damaged snapshot, with the location of the first error that was found."""
    first = next(each for each in report.findings if each.severity is Severity.ERROR)
    count = report.count(Severity.ERROR)
    return FormatError(
        f"the snapshot is damaged: {count:,} {'error' if count == 1 else 'errors'}; the first: {first.what}",
        where=Where(first.file, first.offset, first.operator, first.state, first.path),
        hint=first.hint or "The failed checks list the others: restore another snapshot, or its files from a backup",
    )


def describe_audit(report: "AuditReport") -> dict[str, Any]:
    """Return an audit as metadata."""
    totals = report.totals
    rows = [_list_problem_cells(each) for each in report.findings[:_SHOWN]]
    return {
        "verdict": str(report.verdict),
        "depth": str(report.depth),
        **({"findings": make_table(_AUDIT_COLUMNS, rows, identity=4)} if rows else {}),
        # Numbers, which Dagster plots over snapshots.
        "errors": report.count(Severity.ERROR),
        "undetermined": report.count(Severity.UNDETERMINED),
        "warnings": report.count(Severity.WARNING),
        "files": totals.files,
        "bytes": totals.bytes + totals.inlined_bytes,
        "directories": totals.directories,
        "tables": totals.tables,
        "records read": totals.records,
        "seconds": round_seconds(report.seconds),
        "snapshot": dg.MetadataValue.path(report.path),
    }


def _check_audit(report: "AuditReport", key: dg.AssetKey, property: Property) -> dg.AssetCheckResult:
    """Return the result of a check: findings fail it, with severity ERROR if they are errors, and WARN otherwise."""
    name, _ = AUDIT_CHECKS[property]
    errors = report.count(Severity.ERROR, property)
    doubts = report.count(Severity.UNDETERMINED, property) + report.count(Severity.WARNING, property)
    sample = [str(each) for each in report.findings if each.property is property and each.severity is not Severity.NOTE]
    details = {"sample": list_texts(sample[:_SAMPLE], "*")} if sample else {}
    return expect_none(name, errors + doubts, details, asset=key, is_error=bool(errors))


def _list_problem_cells(finding: "Finding") -> tuple[Cell, ...]:
    """Return the row of a finding for the table with the columns `_AUDIT_COLUMNS`."""
    where = (finding.file, finding.offset, finding.operator, finding.state)
    return (str(finding.severity), str(finding.property), finding.what, *where, finding.hint)


COMPATIBILITY_REPORT = "compatibility_report"

COMPATIBILITY_CHECKS = {"migrated_state_restores": "Flink restores the migrated state in the new job."}


class MigrationConfig(make_config(MigrationRequest)):  # type: ignore[misc]
    """The revision of the snapshot, and the target revision."""


def build_compatibility_report(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `compatibility_report` of a job."""

    @flink_asset(
        job,
        COMPATIBILITY_REPORT,
        step=AssetStep.JUDGE,
        kinds={"flink", "markdown"},
        automation=NEW_SNAPSHOT,
        priority=METADATA,
        checks=COMPATIBILITY_CHECKS,
    )
    def compatibility_report(
        context: dg.AssetExecutionContext, config: MigrationConfig
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """Flink's verdict on the state in the new job, without the pending revisions and with them."""
        snapshot = open_partition(context, job)
        report = judge_snapshot(job, snapshot, config)
        after = report.migrated.verdict
        yield dg.MaterializeResult(
            asset_key=job.key(COMPATIBILITY_REPORT),
            metadata=describe_report(report, snapshot),
            data_version=dg.DataVersion(snapshot.fingerprint),
        )
        yield dg.AssetCheckResult(
            asset_key=job.key(COMPATIBILITY_REPORT),
            check_name="migrated_state_restores",
            passed=report.ok,
            # An undetermined verdict does not block: the proof of the migration decides.
            severity=dg.AssetCheckSeverity.ERROR if after is CheckVerdict.INCOMPATIBLE else dg.AssetCheckSeverity.WARN,
            metadata={
                "expected": str(CheckVerdict.FULLY_COMPATIBLE),
                "observed": str(after),
                "sample": list_reasons(report),
            },
        )

    return compatibility_report


def judge_snapshot(job: FlinkJob, snapshot: Snapshot, config: MigrationConfig) -> MigrationCheckReport:
    """Return Flink's verdict on a snapshot in the new job, without the pending revisions and with them."""
    chain = job.revisions.plan(snapshot, config.from_revision, config.to)
    return check_migration(snapshot, chain, target=job.target_release, new=_find_new_job(job))


def describe_report(report: MigrationCheckReport, snapshot: Snapshot) -> dict[str, Any]:
    """Return a report as metadata."""
    return {
        "report": dg.MetadataValue.md(report.to_markdown()),
        "without the migration": str(report.unmigrated.verdict),
        "with the migration": str(report.migrated.verdict),
        "result": dg.MetadataValue.json(report.to_json()),
        "snapshot": dg.MetadataValue.path(snapshot.path),
    }


def list_reasons(report: MigrationCheckReport) -> list[str]:
    """Return why Flink refuses migrated states, one text for each of them."""
    return [str(each.reason or each.error) for each in report.migrated.checks if each.error]


def _find_new_job(job: FlinkJob) -> Callable[[JobDescription], JobDescription] | None:
    """Return a function that describes the new job, or None if the migrations alone describe it.

    Without migrations and without a description, the new job is the old one on the target release.
    """
    if job.migrations is not None and job.new_job is None and not job.job_classes:
        return None
    release = parse_release(job.target_release)

    def describe(migrated: JobDescription) -> JobDescription:
        return describe_new_job(migrated, job.new_code, release, new=job.new_job, open_other=job.storage.open)

    return describe
