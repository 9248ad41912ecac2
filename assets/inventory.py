"""`snapshot_inventory`: what lies below the watched directory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg

from assets.partitions import make_partition_key
from resources import StorageResource
from state_pipelines.errors import StateError
from state_pipelines.operations.inspect import inspect

if TYPE_CHECKING:
    from state_pipelines.operations.inspect import SnapshotReport

_COLUMNS = [
    dg.TableColumn("snapshot", description="partition key"),
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("state"),
    dg.TableColumn("kind"),
    dg.TableColumn("key", description="serializer of the keys"),
    dg.TableColumn("namespace", description="serializer of the namespace"),
    dg.TableColumn("value", description="serializer of the value"),
    dg.TableColumn("entries", "int"),
    dg.TableColumn("bytes", "int"),
]


@dg.asset(
    group_name="flink_state",
    kinds={"flink"},
    owners=["team:streaming"],
    tags={"state-pipelines/step": "see"},
    check_specs=[
        dg.AssetCheckSpec(
            "snapshots_are_readable",
            asset="snapshot_inventory",
            description="The metadata of every snapshot can be read.",
        )
    ],
)
def snapshot_inventory(storage: StorageResource) -> Iterator[dg.MaterializeResult[None]]:
    """All checkpoints and savepoints below the watched directory, with their operators and states."""
    rows: list[dg.TableRecord] = []
    errors: dict[str, str] = {}
    keys: list[str] = []
    size = 0
    for entry in storage.list_snapshots():
        path = str(entry.location.directory)
        try:
            snapshot = storage.open(path)
            report = inspect(snapshot)
        except StateError as error:
            errors[path] = str(error)
            continue
        rows += _list_states(make_partition_key(snapshot), report)
        errors |= {f"{path} {each.uid or each.id}": each.first_error for each in report.operators if each.first_error}
        keys.append(make_partition_key(snapshot))
        size += snapshot.file_size
    yield dg.MaterializeResult(
        metadata={
            "states": dg.MetadataValue.table(rows, dg.TableSchema(_COLUMNS)),
            "directory": dg.MetadataValue.path(storage.snapshots),
            "snapshots": len(keys),
            "bytes": size,
            "unreadable": len(errors),
            "dagster/row_count": len(rows),
            "dagster/column_schema": dg.TableSchema(_COLUMNS),
        },
        data_version=dg.DataVersion(hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()[:16]),
        check_results=[
            dg.AssetCheckResult(
                check_name="snapshots_are_readable",
                passed=not errors,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"expected": 0, "observed": len(errors), "sample": errors},
            )
        ],
    )


def _list_states(key: str, report: SnapshotReport) -> list[dg.TableRecord]:
    return [
        dg.TableRecord(
            {
                "snapshot": key,
                "operator": operator.uid or operator.id,
                "state": state.name,
                "kind": state.kind,
                "key": state.key,
                "namespace": state.namespace,
                "value": state.value,
                "entries": state.entries,
                "bytes": state.bytes,
            }
        )
        for operator in report.operators
        for state in operator.states
    ]
