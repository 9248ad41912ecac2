"""The state of a savepoint for the new program: checked, and changed where that is needed.

Nothing is written where the state restores as it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import NotFoundError, UsageError, Where
from state_pipelines.flink.cluster import SavepointFormat
from state_pipelines.operations.check.check import Verdict, check_jobs, parse_release
from state_pipelines.operations.check.data_classes import scan_snapshot
from state_pipelines.operations.convert import convert
from state_pipelines.operations.inspect import inspect
from state_pipelines.operations.jobs.flink_config import StateBackend
from state_pipelines.operations.jobs.job_state import Job, describe_job
from state_pipelines.operations.jobs.migrated_job import migrate_job
from state_pipelines.operations.jobs.new_job import NewCode, describe_new_job
from state_pipelines.operations.migration.drafts import refuse_drafts
from state_pipelines.operations.migration.history import RevisionDirectory
from state_pipelines.operations.rescale import rescale
from state_pipelines.operations.rescale.rescale import plan_rescale
from state_pipelines.operations.rescale.rescale_request import RescaleRequest
from state_pipelines.snapshot import declare, open_snapshot
from state_pipelines.storage import METADATA_FILE, PathMapping, exists, join, parse_path_mapping, resolve
from state_pipelines.storage.snapshot_writer import discard_partial
from state_pipelines.upgrades.upgrade_request import Need

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.operations.check.check import CheckReport
    from state_pipelines.operations.migration.migration_planner import Chain
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.upgrades.upgrade_request import UpgradeRequest


@dataclass(frozen=True)
class StateChange:
    """Verdict on a snapshot, and the changes that the new program needs.

    Attributes:
        snapshot: path of the snapshot from here.
        needs: what the policy of the job has to accept; the state restores as it is if that is `compatible` alone.
        revisions: `upgrade 0001` and so on, in order.
        max_parallelism: to which the state is rescaled; None if it is not.
        is_converted: whether the state is written in the canonical format.
        verdict: of the state as the new program gets it.
        reasons: why the new program cannot have it, or why that is not known; what is lost.
        report: of the check.
    """

    snapshot: str
    needs: tuple[Need, ...]
    revisions: tuple[str, ...]
    max_parallelism: int | None
    is_converted: bool
    verdict: Verdict
    reasons: tuple[str, ...]
    report: CheckReport

    @property
    def is_refused(self) -> bool:
        """Whether the new program cannot restore the state."""
        return self.verdict is Verdict.INCOMPATIBLE

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
        """The change for machines, without the path of the snapshot: that of another snapshot is the same."""
        return {
            "needs": [str(each) for each in self.needs],
            "revisions": list(self.revisions),
            "max_parallelism": self.max_parallelism,
            "converted": self.is_converted,
            "verdict": str(self.verdict),
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True)
class WrittenChange:
    """The savepoint that the new program starts from.

    Attributes:
        path: of the savepoint from here; that of the old program where nothing was needed.
        seconds: wall time of each operation.
        proofs: result of each operation's proof, as JSON.
    """

    path: str
    seconds: Mapping[str, float]
    proofs: Mapping[str, object]


def map_from_cluster(request: UpgradeRequest, path: str) -> str:
    """Return the path from here of what the cluster names by a path."""
    return parse_path_mapping(request.path_mapping).apply(path)


def map_to_cluster(request: UpgradeRequest, path: str) -> str:
    """Return the path by which the cluster names what is at a path here."""
    rules = tuple((new, old) for old, new in parse_path_mapping(request.path_mapping).rules)
    return PathMapping(rules).apply(path)


def open_state(request: UpgradeRequest, path: str) -> Snapshot:
    """Open a snapshot that the cluster names by a path.

    Raises:
        StateError: it cannot be read from here; the hint names `--map`.
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
    """Check a snapshot against the new program, and find out what has to be written; nothing is.

    Raises:
        StateError: the snapshot, the revisions or the classes cannot be read, or a revision does not fit.
    """
    program = request.settings.new
    chain = _find_chain(request, snapshot)
    old = describe_job(snapshot)
    migrated = migrate_job(old, snapshot, chain) if chain else old
    wanted = program.max_parallelism
    is_rescaled = wanted is not None and any(
        each.has_state and each.max_parallelism != wanted for each in old.operators
    )
    if is_rescaled and wanted is not None:
        migrated = replace(
            migrated, operators=tuple(replace(each, max_parallelism=wanted) for each in migrated.operators)
        )
        target = join(resolve(request.results), "planned")
        plan_rescale(snapshot, target, RescaleRequest(max_parallelism=wanted))
    _check_parallelism(program.parallelism, migrated)
    report = check_jobs(
        migrated,
        _describe_new(request, migrated, chain),
        target=request.target_release,
        backend=program.backend,
        allow_non_restored_state=program.allow_non_restored_state,
        find_data=None if chain else scan_snapshot(snapshot, scan=None),
    )
    is_converted = _needs_conversion(request, snapshot) and not is_rescaled and not chain
    needs = []
    if report.verdict is Verdict.TO_BE_DETERMINED:
        needs.append(Need.UNDETERMINED)
    elif report.verdict is Verdict.PARTIALLY_COMPATIBLE:
        needs.append(Need.PARTIAL)
    kinds = ((Need.MIGRATED, bool(chain)), (Need.RESCALED, is_rescaled), (Need.CONVERTED, is_converted))
    needs += [need for need, is_needed in kinds if is_needed]
    return StateChange(
        snapshot=snapshot.path,
        needs=tuple(needs) or (Need.COMPATIBLE,),
        revisions=tuple(f"{direction} {migration.revision}" for migration, direction in chain),
        max_parallelism=wanted if is_rescaled else None,
        is_converted=is_converted,
        verdict=report.verdict,
        reasons=tuple(_list_reasons(report)),
        report=report,
    )


def write_change(request: UpgradeRequest, change: StateChange, snapshot: Snapshot, name: str) -> WrittenChange:
    """Write and prove what a change needs, each operation from the result of the one before it.

    A result that is there is complete, since `_metadata` is written last: it is taken as it is. What a killed process
    has left is removed.

    Args:
        request: the job.
        change: of this snapshot.
        snapshot: the savepoint.
        name: beginning of the names of the new savepoints, which nothing else has.

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
    if operation == "migrate":
        from state_pipelines.spark.migration_run import migrate

        chain = _find_chain(request, snapshot)
        done = migrate(snapshot, chain, target, allow_sql=request.allow_sql, allow_python=request.allow_python)
        proof = done.proof
    elif operation == "rescale":
        proof = rescale(snapshot, target, max_parallelism=change.max_parallelism).proof
    else:
        proof = convert(snapshot, target).proof
    return None if proof is None else proof.to_json()


def _find_chain(request: UpgradeRequest, snapshot: Snapshot) -> Chain:
    if request.migrations is None:
        return []
    directory = RevisionDirectory(request.migrations, allow_python=request.allow_python)
    chain = directory.between(directory.current(snapshot).require(), request.migrate_to)
    refuse_drafts(chain)
    return chain


def _describe_new(request: UpgradeRequest, migrated: Job, chain: Chain) -> Job:
    """The new job; that of the migrations where nothing else describes it."""
    code = NewCode(request.classes, (), ())
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
    """Whether a native savepoint is of another state backend than that of the new program."""
    backend = request.settings.new.backend
    if backend is None or request.settings.savepoint_format is SavepointFormat.CANONICAL:
        return False
    other = "RocksDB" if backend == StateBackend.HASHMAP else "heap"
    return any(other in each.format for operator in inspect(snapshot).operators for each in operator.keyed_formats)


def _check_parallelism(parallelism: int | None, migrated: Job) -> None:
    for operator in migrated.operators:
        if parallelism is not None and operator.has_state and operator.max_parallelism < parallelism:
            raise UsageError(
                f"the new program has parallelism {parallelism}, its state {operator.max_parallelism} key groups",
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
