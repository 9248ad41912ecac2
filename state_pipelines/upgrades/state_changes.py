"""The state of a savepoint for the new program: checked, and changed where that is needed.

Nothing is written where the state restores as it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError, NotFoundError, StateError, UsageError, Where
from state_pipelines.flink.cluster import SavepointFormat
from state_pipelines.metadata import compute_operator_id
from state_pipelines.operations.check.check import CheckVerdict, check_jobs, parse_release
from state_pipelines.operations.check.class_checks import scan_snapshot
from state_pipelines.operations.convert import ConversionRequest, convert, plan_conversion
from state_pipelines.operations.inspect import inspect
from state_pipelines.operations.jobs.flink_config import StateBackend
from state_pipelines.operations.jobs.job_state import JobDescription, describe_job
from state_pipelines.operations.jobs.new_job import NewCode, describe_new_job, migrate_job
from state_pipelines.operations.migration.drafting import refuse_drafts
from state_pipelines.operations.migration.history import RevisionDirectory
from state_pipelines.operations.migration.sql_revisions import draft_sql_revision
from state_pipelines.operations.rescale import rescale
from state_pipelines.operations.rescale.rescale import plan_rescale
from state_pipelines.operations.rescale.rescale_request import RescaleRequest
from state_pipelines.operations.sql_check import check_plans, list_remarks, list_rows
from state_pipelines.snapshot import declare, open_snapshot
from state_pipelines.sql.node_states import list_operators
from state_pipelines.sql.planner import load_queries
from state_pipelines.sql.scripts import parse_script
from state_pipelines.sql.verdict import Verdict as QueryVerdict
from state_pipelines.storage import (
    METADATA_FILE,
    PathMapping,
    exists,
    join,
    parse_path_mapping,
    read_file,
    replace_file,
    resolve,
)
from state_pipelines.storage.snapshot_writer import discard_partial
from state_pipelines.upgrades.upgrade_records import find_records
from state_pipelines.upgrades.upgrade_request import Need, digest_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from state_pipelines.flink.cluster import Submission
    from state_pipelines.operations.check.check import CheckReport
    from state_pipelines.operations.migration.migration_planner import Chain
    from state_pipelines.operations.proofs import ProofReport
    from state_pipelines.operations.sql_check import SqlCheckReport
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.sql.planner import CompiledScript
    from state_pipelines.storage import Location
    from state_pipelines.upgrades.upgrade_request import Program, UpgradeRequest


@dataclass(frozen=True)
class StateChange:
    """Verdict on a snapshot, and the changes that the new program needs.

    Attributes:
        snapshot: path of the snapshot from here.
        needs: results of the check that the policy of the job has to accept; with `compatible` alone, the state
            restores as it is.
        revisions: the revisions to apply, such as `upgrade 0001`, in order.
        max_parallelism: max parallelism to which the state is rescaled; None if it is not rescaled.
        is_converted: whether the state is written in the canonical format.
        verdict: verdict on the state as the new program gets it.
        reasons: why the new program cannot restore the state, why that is not known, or what is lost.
        notes: notes of the check.
        obstacle: why the change cannot be carried out although the state may fit; empty without one.
        is_compiled: whether the job of the snapshot was started from the compiled plan of the old query, whose uids its
            operators have, and not from the text of its script.
    """

    snapshot: str
    needs: tuple[Need, ...]
    revisions: tuple[str, ...]
    max_parallelism: int | None
    is_converted: bool
    verdict: CheckVerdict
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    obstacle: str = ""
    is_compiled: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether the new program cannot restore the state."""
        return self.verdict is CheckVerdict.INCOMPATIBLE or bool(self.obstacle)

    @property
    def writes(self) -> tuple[str, ...]:
        """Operations that write a new savepoint, in order."""
        wanted = (
            ("migrate", bool(self.revisions)),
            ("rescale", self.max_parallelism is not None),
            ("convert", self.is_converted),
        )
        return tuple(name for name, is_wanted in wanted if is_wanted)

    def to_json(self) -> dict[str, object]:
        """Return the change as JSON, without the path of the snapshot: changes of different snapshots can be equal."""
        return {
            "needs": [str(each) for each in self.needs],
            "revisions": list(self.revisions),
            "max_parallelism": self.max_parallelism,
            "converted": self.is_converted,
            "verdict": str(self.verdict),
            "reasons": list(self.reasons),
            **({"is_compiled": True} if self.is_compiled else {}),
        }

    def describe(self) -> dict[str, object]:
        """Return the change as JSON, without the reasons, which differ between snapshots that need the same change."""
        return {name: value for name, value in self.to_json().items() if name != "reasons"}


@dataclass(frozen=True)
class WrittenChange:
    """The savepoint that the new program starts from.

    Attributes:
        path: path of the savepoint from here; the savepoint of the old program if nothing had to be written.
        seconds: wall time of each operation.
        proofs: result of each operation's proof, as JSON.
    """

    path: str
    seconds: Mapping[str, float]
    proofs: Mapping[str, object]


def map_from_cluster(request: UpgradeRequest, path: str) -> str:
    """Convert a path as the cluster names it to the path of the same file from here (`path_mapping`)."""
    return parse_path_mapping(request.path_mapping).apply(path)


def map_to_cluster(request: UpgradeRequest, path: str) -> str:
    """Convert a path from here to the path by which the cluster names the same file (`path_mapping`)."""
    rules = tuple((new, old) for old, new in parse_path_mapping(request.path_mapping).rules)
    return PathMapping(rules).apply(path)


def open_state(request: UpgradeRequest, path: str) -> Snapshot:
    """Open a snapshot from here; `path` is the path by which the cluster names it.

    Raises:
        StateError: the snapshot cannot be read from here; the hint names `--map`.
    """
    here = map_from_cluster(request, path)
    try:
        return open_snapshot(
            here,
            declare(request.declarations),
            path_mapping=parse_path_mapping(request.path_mapping),
            allow_roots=(*request.roots, *request.allow_roots, request.results),
        )
    except NotFoundError as error:
        raise NotFoundError(
            f"the snapshot {path} of the cluster is not reachable from here as {here}",
            where=error.where,
            hint="Say where its directory is from here: --map FROM=TO, or path_mapping in the description of the job",
        ) from error


def plan_change(request: UpgradeRequest, snapshot: Snapshot) -> StateChange:
    """Check a snapshot against the new program, and plan what has to be written; nothing is written yet.

    Raises:
        StateError: the snapshot, the revisions or the classes cannot be read, or a revision does not fit.
    """
    program = request.settings.new
    if program.plan:
        return _plan_query_change(request, snapshot)
    chain = _find_chain(request, snapshot)
    old = describe_job(snapshot)
    wanted = _find_rescaling(request, snapshot, old)
    migrated = _rescale_job(migrate_job(old, snapshot, chain) if chain else old, wanted)
    _check_parallelism(program.parallelism, migrated)
    report = check_jobs(
        migrated,
        _describe_new(request, migrated, chain),
        target=request.target_release,
        backend=program.backend,
        allow_non_restored_state=program.allow_non_restored_state,
        find_data=None if chain else scan_snapshot(snapshot, scan=None),
    )
    revisions = tuple(f"{direction} {migration.revision}" for migration, direction in chain)
    reasons = tuple(_list_reasons(report))
    return _make_change(request, snapshot, report.verdict, revisions, wanted, reasons, report.notes)


def _make_change(
    request: UpgradeRequest,
    snapshot: Snapshot,
    verdict: CheckVerdict,
    revisions: tuple[str, ...],
    max_parallelism: int | None,
    reasons: tuple[str, ...],
    notes: tuple[str, ...],
    obstacle: str = "",
    *,
    is_compiled: bool = False,
) -> StateChange:
    # No conversion is needed after a migration or a rescaling, since both write the canonical format.
    is_converted = _needs_conversion(request, snapshot) and max_parallelism is None and not revisions
    if is_converted:
        # Plan the conversion now: it raises an error for state that cannot be converted, before the job is stopped.
        plan_conversion(snapshot, join(resolve(request.results), "planned"), ConversionRequest())
    kinds = (
        (Need.UNDETERMINED, verdict is CheckVerdict.TO_BE_DETERMINED),
        (Need.PARTIAL, verdict is CheckVerdict.PARTIALLY_COMPATIBLE),
        (Need.MIGRATED, bool(revisions)),
        (Need.RESCALED, max_parallelism is not None),
        (Need.CONVERTED, is_converted),
    )
    return StateChange(
        snapshot=snapshot.path,
        needs=tuple(need for need, is_needed in kinds if is_needed) or (Need.COMPATIBLE,),
        revisions=revisions,
        max_parallelism=max_parallelism,
        is_converted=is_converted,
        verdict=verdict,
        reasons=reasons,
        notes=notes,
        obstacle=obstacle,
        is_compiled=is_compiled,
    )


def _find_rescaling(request: UpgradeRequest, snapshot: Snapshot, job: JobDescription) -> int | None:
    """Return the number of key groups to which the state is to be rescaled; None if it already has this number.

    Raises:
        StateError: the state cannot be rescaled.
    """
    wanted = request.settings.new.max_parallelism
    if wanted is None or not any(each.has_state and each.max_parallelism != wanted for each in job.operators):
        return None
    plan_rescale(snapshot, join(resolve(request.results), "planned"), RescaleRequest(max_parallelism=wanted))
    return wanted


def _rescale_job(job: JobDescription, max_parallelism: int | None) -> JobDescription:
    if max_parallelism is None:
        return job
    return replace(job, operators=tuple(replace(each, max_parallelism=max_parallelism) for each in job.operators))


# Changes from an old SQL query to a new one.


def _plan_query_change(request: UpgradeRequest, snapshot: Snapshot) -> StateChange:
    """Check a snapshot of the old query against the new one.

    Raises:
        StateError: a query cannot be compiled, or the snapshot cannot be read.
    """
    program, old_program = request.settings.new, request.settings.old
    old, new = _load_queries(request)
    _check_release(new.plan.flink_version, request)
    report = check_plans(old.plan, new.plan, snapshot, match=program.match, notes=(*old.notes, *new.notes))
    job = describe_job(snapshot)
    wanted = _find_rescaling(request, snapshot, job)
    _check_parallelism(program.parallelism, _rescale_job(job, wanted))
    obstacle, revisions = report.obstacle, tuple[str, ...]()
    uids = {compute_operator_id(each.uid) for each in list_operators(old.plan)}
    is_compiled = any(each.states and each.metadata.operator_id in uids for each in snapshot.operators)
    if report.binding.labels and not is_compiled and old_program.plan.endswith(".json"):
        obstacle = (
            "the operators of the snapshot do not have the ids of the compiled plan, so the job was started from its "
            "SQL script: give that script as upgrade.old.plan, since a return to the old program needs the same ids"
        )
    if not obstacle and not report.restores_as_it_is:
        try:
            draft = draft_sql_revision(report.comparison, report.binding, snapshot, "planned", program.backfill)
            if draft.migration is not None or not draft.operators.is_empty:
                revisions = (f"query {Path(old_program.plan).name} to {Path(program.plan).name}",)
        except StateError as error:
            obstacle = str(error)
    reasons = [*([obstacle] if obstacle else []), *report.swaps, *_list_query_reasons(report)]
    verdict: CheckVerdict = _QUERY_VERDICTS.get(report.verdict, CheckVerdict.FULLY_COMPATIBLE)
    if verdict is CheckVerdict.FULLY_COMPATIBLE and not report.exact:
        verdict = CheckVerdict.PARTIALLY_COMPATIBLE
    notes = tuple(dict.fromkeys(list_remarks(report)))
    return _make_change(
        request, snapshot, verdict, revisions, wanted, tuple(reasons), notes, obstacle, is_compiled=is_compiled
    )


_QUERY_VERDICTS = {
    QueryVerdict.REFUSED: CheckVerdict.INCOMPATIBLE,
    QueryVerdict.UNDETERMINED: CheckVerdict.TO_BE_DETERMINED,
    QueryVerdict.EMPTY: CheckVerdict.PARTIALLY_COMPATIBLE,
}


def _list_query_reasons(report: SqlCheckReport) -> Iterator[str]:
    """Yield a line for each operator, state and column that starts empty, is refused or is undetermined."""
    for operator in report.comparison.operators:
        for label, state, column, verdict, reason in list_rows(operator):
            if verdict not in (QueryVerdict.CARRIED, QueryVerdict.COMPUTED, QueryVerdict.DROPPED):
                subject = " / ".join(filter(None, (label, state, column)))
                yield f"{subject}: {verdict}{f' ({reason})' if reason else ''}"


def _check_release(compiled: str, request: UpgradeRequest) -> None:
    if parse_release(compiled) > parse_release(request.target_release):
        raise UsageError(
            f"the plan of the new query was compiled by Flink {compiled}, but target_release is "
            f"{request.target_release}",
            where=Where(file=request.settings.new.plan),
            hint="Compile it with the Flink that runs it (FLINK_HOME)",
        )


def _load_queries(request: UpgradeRequest) -> tuple[CompiledScript, CompiledScript]:
    old, new = request.settings.old.plan, request.settings.new.plan
    return _compile_queries(old, new, (digest_file(old), digest_file(new)))


@lru_cache(maxsize=4)
def _compile_queries(old: str, new: str, marks: tuple[str, str]) -> tuple[CompiledScript, CompiledScript]:
    """Compile the queries of two files; `marks` are digests of the files, so that results can be cached.

    Compiling a script takes seconds. Thanks to the cache it happens before the job is stopped, and only once.
    """
    del marks
    before, after = load_queries([old, new])
    return before, after


def stage_plan(request: UpgradeRequest, name: str) -> str:
    """Return the compiled plan of the new query as the cluster names it; empty for another program.

    A script is compiled, and its plan is written beside the records of upgrades.

    Raises:
        StateError: the script cannot be compiled, or the storage refuses.
    """
    plan = request.settings.new.plan
    if not plan.endswith(".sql"):
        return map_to_cluster(request, plan)
    return _write_plan(request, locate_plan(request, name), _load_queries(request)[1])


def stage_old_plan(request: UpgradeRequest, name: str) -> str:
    """Compile the old script, and return its plan as `stage_plan` does; empty if the old program is no script.

    Raises:
        StateError: the script cannot be compiled, or the storage refuses.
    """
    if not request.settings.old.plan.endswith(".sql"):
        return ""
    return _write_plan(request, locate_plan(request, f"{name}-old"), _load_queries(request)[0])


def _write_plan(request: UpgradeRequest, location: Location, query: CompiledScript) -> str:
    replace_file(location, query.json.encode())
    return map_to_cluster(request, str(location))


def locate_plan(request: UpgradeRequest, name: str) -> Location:
    """Return the location of the compiled plan that belongs to an upgrade or a rehearsal."""
    return join(find_records(request.results, request.name).location, f"plan-{name}.json")


def make_submission(
    request: UpgradeRequest, program: Program, snapshot: str, job_id: str, *, job_name: str = "", plan: str = ""
) -> Submission:
    """Make the request with which a cluster starts a program from a snapshot.

    Args:
        request: the job.
        program: the old or the new program of the job.
        snapshot: path of the snapshot, as the cluster names it.
        job_id: id of the new job.
        job_name: name of the new job if it is a query; by default Flink names it after its sink.
        plan: compiled plan, as `stage_plan` returns it; empty to start a script as text.

    Raises:
        StateError: a script cannot be read.
    """
    submission = program.submit(snapshot, job_id)
    if not program.plan:
        return submission
    options = {"pipeline.name": job_name} if job_name else {}
    if program.max_parallelism is not None:
        # Without this option, exchanges of a query have 128 key groups, whatever the snapshot has.
        options["pipeline.max-parallelism"] = str(program.max_parallelism)
    options |= program.configuration
    if program.plan.endswith(".json"):
        return replace(submission, plan=plan or map_to_cluster(request, program.plan), configuration=options)
    text = read_file(resolve(program.plan)).decode()
    if not plan:
        return replace(submission, script=text, configuration=options)
    # A compiled plan does not have the options that its script sets.
    return replace(submission, plan=plan, configuration={**parse_script(text).settings, **options})


def write_change(request: UpgradeRequest, change: StateChange, snapshot: Snapshot, name: str) -> WrittenChange:
    """Write and prove what a change needs, each operation from the result of the one before it.

    A result that has `_metadata`, which is written last, is complete, and is used as it is. An incomplete result of a
    killed process is removed.

    Args:
        request: the job.
        change: the planned change of this snapshot.
        snapshot: the savepoint.
        name: unique beginning of the names of the new savepoints.

    Raises:
        ProofError: a proof failed; the result is not published.
        StateError: a savepoint cannot be read or written.
    """
    seconds: dict[str, float] = {}
    proofs: dict[str, object] = {}
    path = snapshot.path
    for operation in change.writes:
        target = join(resolve(request.results), f"{name}-{operation}")
        if not exists(join(target, METADATA_FILE)):
            discard_partial(target)
            started = time.monotonic()
            proofs[operation] = _write(operation, request, change, open_state(request, path), str(target))
            seconds[operation] = time.monotonic() - started
        path = str(target)
    return WrittenChange(path, seconds, proofs)


def prepare_change(request: UpgradeRequest, change: StateChange) -> None:
    """Start what the change needs before the job is stopped: a Spark session takes seconds to start."""
    if change.revisions:
        from state_pipelines.spark.session import create_session

        create_session(f"state-pipelines upgrade {request.name}")


def _write(operation: str, request: UpgradeRequest, change: StateChange, snapshot: Snapshot, target: str) -> object:
    if operation == "migrate" and request.settings.new.plan:
        proof = _migrate_query(request, snapshot, target)
    elif operation == "migrate":
        from state_pipelines.spark.migration_run import migrate

        chain = _find_chain(request, snapshot)
        done = migrate(snapshot, chain, target, allow_sql=request.allow_sql, allow_python=request.allow_python)
        proof = done.proof
    elif operation == "rescale":
        proof = rescale(snapshot, target, max_parallelism=change.max_parallelism).proof
    else:
        proof = convert(snapshot, target).proof
    return None if proof is None else proof.to_json()


def _migrate_query(request: UpgradeRequest, snapshot: Snapshot, target: str) -> ProofReport | None:
    from state_pipelines.spark.sql_migration import migrate_query

    program = request.settings.new
    with TemporaryDirectory() as directory:
        files = [Path(directory, f"{name}.json") for name in ("old", "new")]
        for file, query in zip(files, _load_queries(request), strict=True):
            file.write_text(query.json, encoding="utf-8")
        done = migrate_query(
            str(files[0]), str(files[1]), snapshot, target, match=program.match, backfill=program.backfill
        )
    return done.proof


def _find_chain(request: UpgradeRequest, snapshot: Snapshot) -> Chain:
    if request.migrations is None:
        return []
    directory = RevisionDirectory(request.migrations, allow_python=request.allow_python)
    current = directory.current(snapshot)
    if current.revision is None:
        hint = f"Migrate the savepoint by hand (`migrate --migrations {request.migrations} --from REVISION`)"
        raise MigrationError(current.explain(), hint=hint)
    chain = directory.between(current.revision, request.migrate_to)
    refuse_drafts(chain)
    return chain


def _describe_new(request: UpgradeRequest, migrated: JobDescription, chain: Chain) -> JobDescription:
    """Describe the new job; if neither its classes nor a description are given, it is the result of the migrations."""
    code = NewCode(request.new_classes, (), ())
    if chain and not code and request.new_job is None:
        return migrated
    return describe_new_job(
        migrated,
        code,
        parse_release(request.target_release),
        new=request.new_job,
        open_other=lambda path: open_state(request, path),
    )


def _needs_conversion(request: UpgradeRequest, snapshot: Snapshot) -> bool:
    """Return whether a native savepoint has the format of another state backend than the new program's."""
    backend = request.settings.new.backend
    if backend is None or request.settings.savepoint_format is SavepointFormat.CANONICAL:
        return False
    other = "RocksDB" if backend == StateBackend.HASHMAP else "heap"
    return any(other in each.format for operator in inspect(snapshot).operators for each in operator.keyed_formats)


def _check_parallelism(parallelism: int | None, migrated: JobDescription) -> None:
    for operator in migrated.operators:
        if parallelism is not None and operator.has_state and operator.max_parallelism < parallelism:
            raise UsageError(
                f"parallelism {parallelism} of the new program exceeds max parallelism "
                f"{operator.max_parallelism} of the state",
                where=Where(operator=operator.label),
                hint="Set max_parallelism of upgrade.new, which rescales the state",
            )


def _list_reasons(report: CheckReport) -> list[str]:
    """Return a line for each entry that decides the verdict."""
    lines = []
    for each in report.checks:
        subject = " / ".join(filter(None, (each.operator, each.state)))
        if each.is_remarkable and (each.error or each.reason):
            lines.append(f"{subject or 'the snapshot'}: {each.outcome}: {each.reason or each.error}")
    return list(dict.fromkeys(lines))
