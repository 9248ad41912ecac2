"""A query that changes: report on the state that it keeps, the savepoint for it, and the sensor that sees the change.

They belong to Flink jobs with the field `new_query`; the query that runs is the one plan or script in `plans`.
"""

# No `from __future__ import annotations`: Dagster compares the annotation of `context` as a class, not as text.

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets import savepoints
from state_pipelines.dagster.assets.savepoints import (
    SCRATCH,
    SavepointMaker,
    SavepointRun,
    WrittenSavepoint,
    describe_savepoint,
    show_proof,
)
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset, flink_sensor
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.jobs import CHECK_QUERY
from state_pipelines.dagster.jobs import SQL_REPORT as NAME
from state_pipelines.dagster.metadata_values import list_texts
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.dagster.translation import METADATA, NEW_SNAPSHOT
from state_pipelines.dagster.triggers import share_instance
from state_pipelines.errors import StateError, UsageError
from state_pipelines.operations.proofs import (
    DESCRIPTIONS,
    KEY_HASHES,
    KEY_SETS,
    KEYS_UNITED,
    READ_BACK,
    RECOMPUTED,
    ROW_COUNTS,
    SOURCE_WHOLE,
    STATES_AGREE,
)
from state_pipelines.operations.sql_check import check, describe_verdict, list_remarks
from state_pipelines.sql.verdict import Verdict
from state_pipelines.storage import resolve
from state_pipelines.storage.files import find_entry, open_file, read_file

if TYPE_CHECKING:
    from state_pipelines.spark.sql_migration import SqlMigration

NEW_QUERY = "new_query"

QUERIES = "queries"
"""Metadata of results: the digest of both queries."""

INTERVAL = 60
"""Seconds between two ticks of the sensor."""

_MOST = 1 << 26
_KEPT = "new_query_keeps_state"
_CHECKS = {_KEPT: "The new query keeps the state, exactly or in part."}
_PROOF = (ROW_COUNTS, KEY_SETS, KEY_HASHES, READ_BACK, RECOMPUTED, KEYS_UNITED, SOURCE_WHOLE, STATES_AGREE)
_MATCH = (
    "Uids of operators of the old query, each with that of the operator of the new one that keeps its state, where "
    "several could keep it."
)


class QueryConfig(dg.Config):
    """Operators of both queries that keep the same state."""

    match: dict[str, str] = Field(default_factory=dict, description=_MATCH)


class QueryRunConfig(QueryConfig):
    """A migration to the new query: tables of values, and where its temporary files go."""

    backfill: dict[str, str] = Field(
        default_factory=dict,
        description="Parquet tables with the values of columns that start empty, by name of the column (docs/sql.md).",
    )
    scratch: str = Field(default="", description=SCRATCH)


def find_queries(job: FlinkJob) -> tuple[str, str]:
    """Return the files of the query that runs and of the new one.

    Raises:
        UsageError: the job has no new query.
    """
    if job.new_query is None or len(job.plans) != 1:
        raise UsageError(f"job {job.name} has no new query", hint="Set new_query, and plans to the query that runs")
    return job.plans[0], job.new_query


def identify_queries(job: FlinkJob) -> str:
    """Return a digest of both queries of a job and their jars, which changes with the content of any file.

    Raises:
        StateError: a file cannot be read.
    """
    return hashlib.sha256(b"".join([*_digest_queries(job), *map(_digest_jar, job.jars)])).hexdigest()[:16]


def are_queries_equal(job: FlinkJob) -> bool:
    """Return whether the files of both queries have the same content.

    Raises:
        StateError: a file cannot be read.
    """
    old, new = _digest_queries(job)
    return old == new


def _digest_queries(job: FlinkJob) -> list[bytes]:
    return [hashlib.sha256(read_file(resolve(path), most=_MOST)).digest() for path in find_queries(job)]


def _digest_jar(path: str) -> bytes:
    location = resolve(path)
    entry = find_entry(location)
    return _digest_version(path, entry.size, entry.modified)


@lru_cache(maxsize=64)
def _digest_version(path: str, size: int, modified: object) -> bytes:
    """Return the digest of a file; a file that has not changed is read only once."""
    digest = hashlib.sha256()
    with open_file(resolve(path)) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.digest()


def _find_version(job: FlinkJob) -> str:
    """Return the digest of both queries; a constant if one is unreadable, since the run reports the reason."""
    try:
        return identify_queries(job)
    except StateError:
        return "unreadable"


def build_sql_compatibility_report(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `sql_compatibility_report` of a job with a new query."""

    @flink_asset(
        job,
        NAME,
        step=AssetStep.JUDGE,
        kinds={"flink", "sql", "markdown"},
        automation=NEW_SNAPSHOT,
        priority=METADATA,
        checks=_CHECKS,
        code_version=_find_version(job),
    )
    def sql_compatibility_report(
        context: dg.AssetExecutionContext, config: QueryConfig
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """Verdict per operator and column: what the new query keeps of the state, and which values would be swapped."""
        snapshot = open_partition(context, job)
        report = check(*find_queries(job), snapshot, match=config.match, jars=job.jars)
        refused = report.verdict is Verdict.REFUSED or bool(report.obstacle)
        yield dg.MaterializeResult(
            asset_key=job.key(NAME),
            metadata={
                "report": dg.MetadataValue.md(report.to_markdown()),
                "verdict": describe_verdict(report),
                "exact": report.exact,
                "restores as it is": report.restores_as_it_is,
                "silent swaps": list_texts(report.swaps),
                QUERIES: identify_queries(job),
                "result": dg.MetadataValue.json(report.to_json()),
                "snapshot": dg.MetadataValue.path(snapshot.path),
            },
            data_version=dg.DataVersion(snapshot.fingerprint),
        )
        yield dg.AssetCheckResult(
            asset_key=job.key(NAME),
            check_name=_KEPT,
            passed=not refused and report.verdict is not Verdict.UNDETERMINED,
            severity=dg.AssetCheckSeverity.ERROR if refused else dg.AssetCheckSeverity.WARN,
            metadata={"expected": "kept", "observed": describe_verdict(report), "sample": list_remarks(report)},
        )

    return sql_compatibility_report


class SavepointOfQuery(SavepointMaker[QueryRunConfig]):
    """A savepoint for the new query, with the compiled plan to start it from.

    Changed states are rewritten, all others copied as bytes. If the proof fails, nothing is published. For a
    snapshot that the new query takes as it is, the step succeeds without a result.
    """

    name = savepoints.MIGRATED_SAVEPOINT
    config = QueryRunConfig
    kinds: ClassVar = {"flink", "spark", "sql"}
    deps = (NAME,)
    checks: ClassVar = {name: DESCRIPTIONS[name] for name in _PROOF}
    is_always_written = False

    def applies(self, job: FlinkJob) -> bool:
        """Return whether the job has a new query."""
        return job.new_query is not None

    def find_version(self, job: FlinkJob) -> str:
        """Return the digest of both queries; a constant if one is unreadable, since the run reports the reason."""
        return _find_version(job)

    def write(self, run: SavepointRun[QueryRunConfig]) -> WrittenSavepoint | None:
        """Write the savepoint for the new query of a job; None where the snapshot fits it as it is.

        Raises:
            IncompatibleError: a state cannot be migrated.
            ProofError: the proof failed, and there is no new savepoint.
        """
        # Importing Spark takes seconds.
        from state_pipelines.spark.sql_migration import PLAN_FILE, REVISION_FILE, migrate_query

        job, config = run.job, run.config
        result = migrate_query(
            *find_queries(job),
            run.snapshot,
            run.name_target("query"),
            jars=job.jars,
            match=config.match,
            backfill=config.backfill,
            spark=lambda: run.spark.session,
            scratch=config.scratch or None,
        )
        if result.path is None:
            return None
        directory = result.path.rstrip("/")
        details = {
            "plan": dg.MetadataValue.path(f"{directory}/{PLAN_FILE}"),
            "revision": dg.MetadataValue.path(f"{directory}/{REVISION_FILE}"),
            "verdict": str(result.comparison.verdict),
            "exact": result.comparison.exact,
            QUERIES: identify_queries(job),
            "proof": show_proof(result.proof),
        }
        written, starts = result.snapshot, list(_list_starts(result))
        return describe_savepoint(result, written, details, bytes=written.file_size, rows=result.rows, notes=starts)


def _list_starts(result: "SqlMigration") -> Iterator[str]:
    """Yield a note on each column whose values are not those of a run of the new query over all rows."""
    for operator in result.comparison.operators:
        for state in operator.states:
            for column in state.columns:
                if not column.exact:
                    yield f"{state.name}, {column.meaning}: {column.verdict} ({column.reason})"


def build_new_query(job: FlinkJob) -> dg.SensorDefinition:
    """Build the sensor `new_query` of a job with a new query."""

    @flink_sensor(job, NEW_QUERY, interval=INTERVAL, runs=CHECK_QUERY)
    def new_query(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Requests a report on the newest snapshot when one of the two queries changes; the cursor is a digest."""
        try:
            mark = identify_queries(job)
        except StateError as error:
            return dg.SkipReason(f"The queries cannot be read: {error}")
        if mark == context.cursor:
            return dg.SkipReason("The queries are those that were checked last")
        partitions = set(share_instance(context).get_dynamic_partitions(str(job.partitions.name)))
        keys = job.storage.read_inventory().table["key"].to_pylist()
        newest = next((each for each in keys if each in partitions), None)
        if newest is None:
            return dg.SkipReason("There is no snapshot yet to check the queries against")
        request = dg.RunRequest(run_key=f"{newest}-{mark}", partition_key=newest)
        return dg.SensorResult(run_requests=[request], cursor=mark)

    return new_query
