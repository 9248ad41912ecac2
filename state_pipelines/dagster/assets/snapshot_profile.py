"""`snapshot_profile`: statistics of the entries of a snapshot."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import json
from collections.abc import Iterator
from functools import partial

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets import flink_job
from state_pipelines.dagster.automation import NEW_SNAPSHOT
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import Cell, make_table
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.operations.local_processes import choose_processes, run_tasks
from state_pipelines.operations.profiling import OperatorProfile, Profile, StateProfile, profile_snapshot
from state_pipelines.operations.retention.policy import parse_duration
from state_pipelines.storage import replace_file

NAME = "snapshot_profile"

MAX_ROWS = 100
"""Maximal number of rows per table in the UI; the JSON file contains all."""

_TEXT_SIZE = 120
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

    @flink_asset(job, NAME, step=AssetStep.SEE, kinds={"flink", "json"}, deps=[flink_job.NAME], automation=NEW_SNAPSHOT)
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
        target = job.storage.locate_report(NAME, context.partition_key)
        replace_file(target, json.dumps(profile.to_json()).encode())
        states = [(operator, state) for operator in profile.operators for state in operator.states]
        yield dg.MaterializeResult(
            metadata={
                **_count(profile),
                "states": _make_table(_STATES, [_list_state(*each) for each in states]),
                "columns": _make_table(_FIELDS, [row for each in states for row in _list_columns(*each)]),
                "largest keys": _make_table(_KEYS, _list_keys(profile)),
                "ages": _make_table(_TTL, [row for each in states for row in _list_ages(*each)]),
                "profile": dg.MetadataValue.path(str(target)),
                "snapshot": dg.MetadataValue.path(snapshot.path),
                "errors": [error[: 4 * _TEXT_SIZE] for error in profile.errors[:10]],
                "dagster/row_count": profile.entries,
            },
            data_version=dg.DataVersion(snapshot.fingerprint),
        )

    return snapshot_profile


def _count(profile: Profile) -> dict[str, int | float]:
    """Return numbers, which the UI plots over snapshots."""
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
    if isinstance(value, str) and len(value) > _TEXT_SIZE:
        return f"{value[: _TEXT_SIZE - 1]}…"
    return round(value, _DIGITS) if isinstance(value, float) else value


def _list_state(operator: OperatorProfile, state: StateProfile) -> tuple[Cell, ...]:
    """Return the row of a state in `_STATES`."""
    failed = f"{state.failed} entries: {state.failure}" if state.failed else ""
    types = (state.kind, state.key, state.value)
    numbers = (state.entries, state.keys, state.bytes, state.mean_bytes)
    ages = (None, None) if state.ttl is None else (state.ttl.expired, state.ttl.oldest)
    return (operator.label, state.name, *types, *numbers, *ages, state.error or state.undecoded or failed)


def _list_columns(operator: OperatorProfile, state: StateProfile) -> Iterator[tuple[Cell, ...]]:
    """Yield rows of `_FIELDS`."""
    for each in state.columns:
        ratios = (each.null_ratio, each.default_ratio)
        bounds = (None if bound is None else str(bound) for bound in (each.minimum, each.maximum))
        yield (operator.label, state.name, each.column, each.type, *ratios, str(each.measured), *bounds, each.mean)


def _list_keys(profile: Profile) -> list[tuple[Cell, ...]]:
    """Return rows of `_KEYS`."""
    return [
        (operator.label, key.key, key.key_group, key.subtask, key.bytes, key.records, key.share)
        for operator in profile.balance.operators
        for key in operator.most_bytes
    ]


def _list_ages(operator: OperatorProfile, state: StateProfile) -> list[tuple[Cell, ...]]:
    """Return rows of `_TTL`."""
    if state.ttl is None:
        return []
    expiring = state.ttl.expiring or {}
    return [
        (operator.label, state.name, name, state.ttl.by_age.get(name), expiring.get(name))
        for name in dict.fromkeys((*state.ttl.by_age, *expiring))
        if state.ttl.by_age.get(name) or expiring.get(name)
    ]
