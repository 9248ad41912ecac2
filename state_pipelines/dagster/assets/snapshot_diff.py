"""`snapshot_diff`: changes since the previous snapshot of the same job."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import json
from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets import flink_job
from state_pipelines.dagster.automation import NEW_SNAPSHOT
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import make_table
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.operations.diff import ExampleKind, diff
from state_pipelines.operations.diff.diff_report import StateChange, list_changes
from state_pipelines.operations.inventory import find_previous
from state_pipelines.operations.state_rows import compact
from state_pipelines.snapshot.representation import escape_markdown
from state_pipelines.storage import replace_file

NAME = "snapshot_diff"

SAMPLES = 10
"""Number of sample keys per state and kind of change."""

MAX_ROWS = 100
_SAMPLE_SIZE = 30_000
_TEXT_SIZE = 120

_COLUMNS = [
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

    @flink_asset(job, NAME, step=AssetStep.SEE, kinds={"flink", "json"}, deps=[flink_job.NAME], automation=NEW_SNAPSHOT)
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
        target = job.storage.locate_report(NAME, context.partition_key)
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


def _tabulate(changes: list[StateChange]) -> dg.TableMetadataValue:
    first = sorted(changes, key=lambda each: not each.is_changed)[:MAX_ROWS]
    rows = []
    for each in first:
        numbers = (each.before, each.after, each.added, each.removed, each.changed)
        rows.append((_crop(each.operator), _crop(each.state), each.kind, *numbers, _crop(each.note)))
    return make_table(_COLUMNS, rows)


def show_samples(changes: list[StateChange]) -> str:
    """Format samples as Markdown tables per state, limited to a size that the UI renders quickly."""
    lines: list[str] = []
    size = 0
    for change in changes:
        for kind, title in _TITLES.items():
            samples = change.list_samples(kind)[:SAMPLES]
            if not samples:
                continue
            table = [
                f"**{escape_markdown(_crop(change.operator))}, {escape_markdown(_crop(change.state))}: {title}**",
                "",
            ]
            table += ["| key | before | after |", "| --- | --- | --- |"]
            for each in samples:
                cells = (escape_markdown(_crop(_to_text(cell))) for cell in (each.key, each.one, each.other))
                table.append(f"| {' | '.join(cells)} |")
            size += sum(map(len, table))
            if size > _SAMPLE_SIZE:
                return "\n".join([*lines, "Further samples are in the JSON file."])
            lines += [*table, ""]
    return "\n".join(lines) or "No samples."


def _to_text(cell: dict[str, object] | None) -> str:
    return "" if cell is None else compact(next(iter(cell.values())) if len(cell) == 1 else cell)


def _crop(text: str) -> str:
    return text if len(text) <= _TEXT_SIZE else f"{text[: _TEXT_SIZE - 1]}…"
