"""SQL queries that change and keep their state: the savepoint of the old plan becomes one of the new plan."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import yaml

from state_pipelines.errors import MigrationError, TargetExistsError, Where
from state_pipelines.operations.migration.migration_files import dump_migration
from state_pipelines.operations.migration.sql_revisions import SqlRevision, draft_sql_revision
from state_pipelines.operations.proofs import ProofCheck, ProofReport, require_proof
from state_pipelines.operations.rescale import rescale
from state_pipelines.operations.rescale.rescale_request import edit_operators
from state_pipelines.operations.sql_check import check_plans, leave_out_plans
from state_pipelines.operations.sql_recomputation import compare_with_template, find_unfit_value, recompute_columns
from state_pipelines.snapshot.snapshot import ensure_open, open_snapshot
from state_pipelines.spark.migration_run import migrate
from state_pipelines.sql.planner import load_queries
from state_pipelines.sql.templates import open_cluster
from state_pipelines.storage import exists, join, resolve
from state_pipelines.storage.files import create_file
from state_pipelines.storage.locations import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot
    from state_pipelines.sql.verdict import Binding, PlanComparison
    from state_pipelines.storage import Location

PLAN_FILE = "plan.json"
"""Name of the file with the compiled plan of the new query, in the directory of the savepoint."""
REVISION_FILE = "revision.yaml"
"""Name of the file with the generated steps, in the directory of the savepoint."""


@dataclass(frozen=True)
class SqlMigration:
    """Result of a migration to another query.

    Attributes:
        path: the new savepoint; None where the old one fits the new plan as it is, and nothing was written.
        comparison: verdicts on operators, states and columns.
        revision: the changes of operators and the steps of states that were applied.
        snapshot: the new savepoint, opened; the old one where nothing was written.
        rows: rewritten records.
        proof: proof of the changed states; None if no state changed, or no proof was asked for.
        seconds: wall time.
        notes: for users.
    """

    path: str | None
    comparison: PlanComparison
    revision: SqlRevision
    snapshot: Snapshot
    rows: int
    proof: ProofReport | None
    seconds: float
    notes: tuple[str, ...]


def migrate_query(
    old: str,
    new: str,
    snapshot: Snapshot | str,
    target: str,
    *,
    flink_home: str | None = None,
    flink: str | None = None,
    jars: Sequence[str] = (),
    match: Mapping[str, str] | None = None,
    backfill: Mapping[str, str] | None = None,
    prove: bool = True,
    template: bool = False,
    spark: SparkSession | Callable[[], SparkSession] | None = None,
    scratch: str | None = None,
) -> SqlMigration:
    """Write a savepoint for another query: with the operators, states and columns of its plan.

    The plan (`plan.json`) and the steps (`revision.yaml`) are written beside it. A change whose correct result cannot
    be computed is refused before anything is written.

    Args:
        old: file of the plan (`.json`) or script that the job of the snapshot runs.
        new: file of the plan or script that takes over.
        snapshot: savepoint of the old query, or its path; it is not changed.
        target: directory of the new savepoint, which must not exist.
        flink_home: directory of the Flink that compiles scripts.
        flink: release line that this Flink must have, such as 1.20.
        jars: of connectors, formats and functions.
        match: by uid of an operator of the old plan, the uid of the operator of the new plan that gets its state, where
            several could.
        backfill: by name of a column (of a state or a sink) that would start empty, a Parquet table with its values: it
            has a column of this name and the columns of the key, and one row per key.
        prove: read the result back and verify it before it is published.
        template: compare the result with a savepoint that Flink takes of the new plan, in a cluster inside a Java
            process, before it is published.
        spark: the session, or what starts one where it is needed; default the active one, or a new local one.
        scratch: directory of temporary files.

    Raises:
        IncompatibleError: a state cannot be migrated; says which, why, and what can be done.
        UsageError: a script is refused, or there is no Flink to compile it.
        TargetExistsError: the target exists.
        MigrationError: a value does not fit its new column; names file, operator, state, column, key and value.
        ProofError: the proof failed; nothing is left at the target.
        StateError: the snapshot cannot be read.
    """
    started = time.monotonic()
    location = resolve(target)
    if exists(location):
        raise TargetExistsError("the target exists", where=Where(file=target), hint="Name a new directory")
    opened = leave_out_plans(ensure_open(snapshot))
    loaded = load_queries([old, new], flink_home=flink_home, flink=flink, jars=jars)
    before, after = (each.plan for each in loaded)
    report = check_plans(before, after, opened, match=match)
    comparison = report.comparison
    revision = draft_sql_revision(report.comparison, report.binding, opened, location.name, backfill)
    notes = [*(note for each in loaded for note in each.notes), *revision.notes]
    given = (*jars, *loaded[1].jars)
    planned = _take_template(loaded[1].json, flink_home, flink, given, scratch) if template else None
    if planned is not None and revision.migration is None:
        edited = edit_operators(opened, revision.operators, {}).snapshot
        require_proof(_report(compare_with_template(edited, planned)))
    if revision.migration is None and revision.operators.is_empty:
        seconds = time.monotonic() - started
        return SqlMigration(None, comparison, revision, opened, 0, None, seconds, tuple(notes))
    rows, proof = 0, None
    if revision.migration is None:
        renamed = rescale(opened, target, revision.operators, prove=prove, scratch=scratch)
        notes += renamed.notes
    else:
        edited = opened
        if not revision.operators.is_empty:
            found = edit_operators(opened, revision.operators, {})
            edited, notes = found.snapshot, [*notes, *found.notes]
        session = spark() if callable(spark) else spark
        try:
            result = migrate(
                edited,
                revision.migration,
                target,
                prove=prove,
                allow_sql=bool(backfill),
                spark=session,
                scratch=scratch,
                judge=partial(_judge, comparison, report.binding, opened, planned),
            )
        except MigrationError as error:
            unfit = find_unfit_value(comparison, report.binding, opened)
            if unfit is None:
                raise
            raise unfit from error
        rows, proof, notes = result.rows, result.proof, [*notes, *result.notes]
    _write(join(location, PLAN_FILE), loaded[1].json)
    _write(join(location, REVISION_FILE), format_revision(revision))
    uids = [each.new.uid for each in comparison.operators if each.new is not None]
    written = open_snapshot(target, uids=uids)
    return SqlMigration(
        target, comparison, revision, written, rows, proof, time.monotonic() - started, tuple(dict.fromkeys(notes))
    )


def _take_template(
    plan: str, flink_home: str | None, flink: str | None, jars: Sequence[str], scratch: str | None
) -> Snapshot:
    """Run a job with the new plan in a cluster, take its savepoint, and open it.

    All headers are read here, because the files are removed at the end; the comparison needs no more of them.
    """
    local = scratch if scratch is not None and is_local(resolve(scratch)) else None
    with TemporaryDirectory(prefix="state-pipelines-", dir=local) as directory:
        with open_cluster(flink_home, flink, jars) as take:
            opened = open_snapshot(take(plan, directory))
        opened.read_headers()
        return opened


def _judge(
    comparison: PlanComparison, binding: Binding, old: Snapshot, template: Snapshot | None, new: Snapshot
) -> tuple[ProofCheck, ...]:
    found = recompute_columns(comparison, binding, old, new)
    return found if template is None else (*found, *compare_with_template(new, template))


def _report(checks: tuple[ProofCheck, ...]) -> ProofReport:
    return ProofReport("", "", 0, 0, checks)


def _write(location: Location, text: str) -> None:
    with create_file(location, replace=True) as file:
        file.write(text.encode())


def format_revision(revision: SqlRevision) -> str:
    """Format the steps as a migration file; comments in it list the operators that are renamed or dropped."""
    lines = ["# Generated by `sql migrate`. Operators are named as in the new plan."]
    lines += [
        f"# {operator} {'is dropped' if each.drop else f'becomes {each.uid}'}"
        for operator, each in revision.operators.operators.items()
    ]
    if revision.migration is None:
        return "\n".join([*lines, "# No state changes.", ""])
    content = yaml.safe_dump(dump_migration(revision.migration), sort_keys=False, allow_unicode=True, width=120)
    return "\n".join([*lines, content])
