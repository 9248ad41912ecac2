"""`restore_audit`: whether a snapshot can be restored, as far as its bytes show."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets import flink_job
from state_pipelines.dagster.automation import NEW_SNAPSHOT, SAMPLE
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import Cell, list_texts, make_table, round_seconds
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.dagster.storage import AUDIT_REPORT
from state_pipelines.errors import FormatError, Where
from state_pipelines.operations.auditing import Depth, Property, Severity, audit_snapshot
from state_pipelines.storage.files import replace_file

if TYPE_CHECKING:
    from state_pipelines.operations.auditing import AuditReport, Finding

NAME = AUDIT_REPORT

_SHOWN = 100
_SAMPLE = 10

CHECKS = {
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

_COLUMNS = [
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
    """The asset `restore_audit` of a job."""

    @flink_asset(
        job,
        NAME,
        step=AssetStep.KEEP,
        kinds={"flink"},
        deps=[flink_job.NAME],
        automation=NEW_SNAPSHOT,
        priority=SAMPLE,
        checks=dict(CHECKS.values()),
    )
    def restore_audit(
        context: dg.AssetExecutionContext, config: AuditConfig
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult | dg.AssetObservation]:
        """Every handle resolved and sized, every file opened, key groups counted, tables and records read.

        A damaged snapshot fails the step: the partition is failed, not materialised, and the findings are an
        observation.
        """
        key = job.key(NAME)
        snapshot = open_partition(context, job)
        report = audit_snapshot(snapshot, Depth.WHOLE if config.whole else Depth.SAMPLE)
        for finding in report.findings[:_SAMPLE]:
            context.log.warning("%s: %s", finding.severity, finding)
        file = job.storage.locate_report(NAME, context.partition_key)
        replace_file(file, json.dumps(report.to_json()).encode())
        metadata = describe_audit(report) | {"report": dg.MetadataValue.path(str(file))}
        if report.restorable:
            yield dg.MaterializeResult(
                asset_key=key, metadata=metadata, data_version=dg.DataVersion(snapshot.fingerprint)
            )
        else:
            yield dg.AssetObservation(key, partition=context.partition_key, metadata=metadata)
        yield from (_check(report, key, each) for each in CHECKS)
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
    rows = [_list_cells(each) for each in report.findings[:_SHOWN]]
    return {
        "verdict": str(report.verdict),
        "depth": str(report.depth),
        **({"findings": make_table(_COLUMNS, rows, identity=4)} if rows else {}),
        # Numbers, so that they chart over snapshots.
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


def _check(report: "AuditReport", key: dg.AssetKey, property: Property) -> dg.AssetCheckResult:
    """A check fails on errors; what cannot be judged, and dependence on others, is a warning."""
    name, _ = CHECKS[property]
    errors = report.count(Severity.ERROR, property)
    doubts = report.count(Severity.UNDETERMINED, property) + report.count(Severity.WARNING, property)
    sample = [str(each) for each in report.findings if each.property is property and each.severity is not Severity.NOTE]
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=name,
        passed=not errors and not doubts,
        severity=dg.AssetCheckSeverity.ERROR if errors else dg.AssetCheckSeverity.WARN,
        metadata={
            "expected": 0,
            "observed": errors + doubts,
            **({"sample": list_texts(sample[:_SAMPLE], "*")} if sample else {}),
        },
    )


def _list_cells(finding: "Finding") -> tuple[Cell, ...]:
    """Return the row of a finding in `_COLUMNS`."""
    where = (finding.file, finding.offset, finding.operator, finding.state)
    return (str(finding.severity), str(finding.property), finding.what, *where, finding.hint)
