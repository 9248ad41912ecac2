"""Checkpoints and savepoints of Apache Flink: see, judge, change and prove them, without a Flink cluster.

    import state_pipelines as sp

    snapshot = sp.open_snapshot("s3://bucket/savepoint-1a2b")
    snapshot.operator("orders").state("order").to_arrow()
    sp.diff(old, new)
    sp.check(old, new)
    sp.migrate(snapshot, "migrations/0001.yaml", "s3://bucket/migrated")
    sp.convert(snapshot, "s3://bucket/canonical", format="canonical")
    sp.rescale(snapshot, "s3://bucket/rescaled", max_parallelism=1024)
    sp.erase(snapshot, ["order-0001"], "s3://bucket/without")
    sp.spark.register(spark)

Nothing is imported before it is asked for; only `migrate` and `spark` need Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines import errors, spark
    from state_pipelines.operations.check import check
    from state_pipelines.operations.comparing.report import SnapshotDiff
    from state_pipelines.operations.converting import ConversionResult, Format, InFlight
    from state_pipelines.operations.migration import Migration
    from state_pipelines.operations.migration.history import RevisionDirectory
    from state_pipelines.operations.migration.planning import Chain
    from state_pipelines.operations.publishing import FileMode
    from state_pipelines.operations.rescaling import RescaleRequest, RescaleResult
    from state_pipelines.snapshot import Declarations, Operator, Snapshot, State, declare, open_snapshot
    from state_pipelines.spark import MigrationResult

__all__ = [
    "Declarations",
    "Operator",
    "RevisionDirectory",
    "Snapshot",
    "State",
    "__version__",
    "check",
    "convert",
    "declare",
    "diff",
    "erase",
    "errors",
    "migrate",
    "open_snapshot",
    "rescale",
    "spark",
]

__version__ = "0.1.0"

_PLACES = {
    "Operator": "state_pipelines.snapshot",
    "RevisionDirectory": "state_pipelines.operations.migration.history",
    "Snapshot": "state_pipelines.snapshot",
    "State": "state_pipelines.snapshot",
    "Declarations": "state_pipelines.snapshot",
    "check": "state_pipelines.operations.check",
    "declare": "state_pipelines.snapshot",
    "open_snapshot": "state_pipelines.snapshot",
}
_MODULES = ("errors", "spark")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def migrate(
    snapshot: Snapshot | str,
    migration: Migration | Chain | str,
    target: str,
    *,
    direction: str = "upgrade",
    prove: bool = True,
) -> MigrationResult:
    """Write a new savepoint in which states are as migrations say; in the active Spark session, or a new one.

    Args:
        snapshot: the old snapshot, or its path; it is not touched.
        migration: what to do, or the file that says it; or several with their directions, as
            `RevisionDirectory.between` gives them.
        target: directory of the new savepoint, which must not exist.
        direction: `upgrade` or `downgrade`, of a single migration.
        prove: read the result back and judge it before it is published.

    Raises:
        MigrationError: the migration does not fit the state.
        TargetExistsError: there is something at the target.
        ProofError: the proof failed; nothing is left at the target.
        StateError: the snapshot cannot be read.
    """
    from state_pipelines.operations.migration import load_migration
    from state_pipelines.snapshot import open_snapshot
    from state_pipelines.spark import create_session
    from state_pipelines.spark import migrate as migrate_in_spark

    source = open_snapshot(snapshot) if isinstance(snapshot, str) else snapshot
    plan = load_migration(migration) if isinstance(migration, str) else migration
    session = create_session("state-pipelines")
    return migrate_in_spark(session, source, plan, target, direction=direction, prove=prove)


def convert(
    snapshot: Snapshot | str,
    target: str,
    format: Format | str = "canonical",
    *,
    compress: bool | None = None,
    in_flight: InFlight | str = "refuse",
    verify: bool = True,
    files: FileMode | str = "copy",
    checksums: bool = False,
    move: bool = False,
    processes: int = 1,
) -> ConversionResult:
    """Write a snapshot of its own with the same state: other format, other place, other compression.

    Args:
        snapshot: the old snapshot, or its path; it is not touched unless it is moved.
        target: directory of the new one, which must not exist.
        format: `canonical`, `heap`, `rocksdb`, or `keep` for copies of the files as they are.
        compress: snappy compression of canonical and heap files; None keeps what each subtask has.
        in_flight: `refuse`, `keep` or `drop` the in-flight data of an unaligned checkpoint.
        verify: read what was written again and compare before it is published.
        files: `copy` the files that are not written anew, `link` them (one local volume), or `reference` them where
            they lie, which makes the result depend on the old snapshot.
        checksums: read every copied file again and compare its checksum.
        move: remove the old snapshot once the new one is published and every copy has been compared.
        processes: that share the work; with more than one, the main module of a script must be guarded by
            `if __name__ == "__main__":`.

    Raises:
        UnsupportedError: the snapshot holds what the format cannot carry; nothing is left at the target.
        ProofError: what was written is not what was there; nothing is left at the target.
        TargetExistsError: there is something at the target.
        UsageError: files cannot be linked, or a move is to leave something unchecked or referenced.
        StateError: the snapshot cannot be read.
    """
    from state_pipelines.operations.converting import convert as convert_snapshot
    from state_pipelines.operations.processes import Processes
    from state_pipelines.snapshot import open_snapshot

    source = open_snapshot(snapshot) if isinstance(snapshot, str) else snapshot
    with Processes(processes) as shared:
        return convert_snapshot(
            source,
            target,
            format,
            compress=compress,
            in_flight=in_flight,
            verify=verify,
            files=files,
            checksums=checksums,
            move=move,
            run=shared.run,
        )


def rescale(
    snapshot: Snapshot | str,
    target: str,
    request: RescaleRequest | str | None = None,
    *,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    files: FileMode | str = "copy",
    prove: bool = True,
    processes: int = 1,
) -> RescaleResult:
    """Write a snapshot of its own with the same state for other subtasks, key groups or operators.

    Args:
        snapshot: the old snapshot, or its path; it is not touched.
        target: directory of the new one, which must not exist.
        request: everything that can be asked for, or the file that says it.
        parallelism: subtasks of all operators that the request says nothing of.
        max_parallelism: key groups, likewise.
        files: `copy`, `link` or `reference` files that stay as they are.
        prove: read both sides and compare before the result is published.
        processes: that share the work; with more than one, the main module of a script must be guarded by
            `if __name__ == "__main__":`.

    Raises:
        UsageError: nothing is asked for, or the numbers do not go together.
        UnsupportedError: it cannot be done, for instance because the hash of a class in the keys is not known.
        ProofError: the proof failed; nothing is left at the target.
        TargetExistsError: there is something at the target.
        StateError: the snapshot cannot be read.
    """
    from dataclasses import replace

    from state_pipelines.operations.processes import Processes
    from state_pipelines.operations.publishing import FileMode
    from state_pipelines.operations.rescaling import RescaleRequest, load_request
    from state_pipelines.operations.rescaling import rescale as rescale_snapshot
    from state_pipelines.snapshot import open_snapshot

    source = open_snapshot(snapshot) if isinstance(snapshot, str) else snapshot
    wanted = load_request(request) if isinstance(request, str) else request or RescaleRequest()
    wanted = replace(
        wanted,
        parallelism=wanted.parallelism if parallelism is None else parallelism,
        max_parallelism=wanted.max_parallelism if max_parallelism is None else max_parallelism,
    )
    with Processes(processes) as shared:
        return rescale_snapshot(source, target, wanted, files=FileMode(files), prove=prove, run=shared.run)


def erase(snapshot: Snapshot | str, keys: Sequence[object], target: str, *, processes: int = 1) -> RescaleResult | None:
    """Write a snapshot of its own without the entries and timers of some keys, in every operator keyed by them.

    Args:
        snapshot: the old snapshot, or its path; it is not touched.
        keys: text where keys are text, else values as `read --json` or `dump` shows them.
        target: directory of the new one, which must not exist.
        processes: that share the work; with more than one, the main module of a script must be guarded by
            `if __name__ == "__main__":`.

    Returns:
        What was written; None, and nothing is written, where the keys are nowhere.

    Raises:
        UnsupportedError: an operator that holds a key has state whose records cannot move.
        ProofError: the proof failed; nothing is left at the target.
        TargetExistsError: there is something at the target.
        StateError: the snapshot cannot be read.
    """
    from state_pipelines.operations.erasing import plan_erasure, run_erasure
    from state_pipelines.operations.processes import Processes
    from state_pipelines.snapshot import open_snapshot

    source = open_snapshot(snapshot) if isinstance(snapshot, str) else snapshot
    with Processes(processes) as shared:
        return run_erasure(plan_erasure(source, keys, target, run=shared.run), shared.run)


def diff(
    one: Snapshot | str,
    other: Snapshot | str,
    *,
    operator: str | None = None,
    state: str | None = None,
    metadata_only: bool = False,
    limit: int = 10,
    processes: int = 1,
) -> SnapshotDiff:
    """Compare two snapshots, whatever formats they have: operators, states, serializers and records.

    Args:
        one: a snapshot, or its path.
        other: the other one.
        operator: uid, id or name; only this operator. Facts of the snapshots do not count then.
        state: name; only states of this name. Facts of snapshots and operators do not count then.
        metadata_only: read headers only, no records.
        limit: how many of the records that differ are shown, per state.
        processes: that share the work; with more than one, the main module of a script must be guarded by
            `if __name__ == "__main__":`.

    Raises:
        NotFoundError: neither snapshot has such an operator or state.
        UsageError: the limit is negative.
        StateError: a snapshot cannot be read. What is merely not covered is told as not compared.
    """
    from state_pipelines.operations.comparing import diff as compare_snapshots
    from state_pipelines.operations.processes import Processes
    from state_pipelines.snapshot import open_snapshot

    snapshots = [open_snapshot(each) if isinstance(each, str) else each for each in (one, other)]
    with Processes(processes) as shared:
        return compare_snapshots(
            snapshots[0],
            snapshots[1],
            operator=operator,
            state=state,
            metadata_only=metadata_only,
            limit=limit,
            run=shared.run,
        )
