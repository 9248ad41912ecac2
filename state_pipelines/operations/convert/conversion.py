"""`convert`: the same state in another format, in another location, in files of its own.

What a format cannot carry is said before anything is written. Each subtask is one task, so that any number of
processes can share it; what was written is read again and compared with what was there before `_metadata` is written.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError
from state_pipelines.operations.choices import parse_choice
from state_pipelines.operations.convert.conversion_plan import ConversionPlan, InFlight, plan_conversion
from state_pipelines.operations.convert.conversion_proof import prove_conversion, require_conversion, sum_states
from state_pipelines.operations.local_processes import choose_runner
from state_pipelines.operations.write.publication import (
    FileMode,
)
from state_pipelines.operations.write.state_formats import Format
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.snapshot.snapshot import ensure_open
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.operations.proofs.proof_reports import ProofReport
    from state_pipelines.snapshot import Snapshot


@dataclass(frozen=True)
class ConversionResult:
    """Result of a conversion.

    Attributes:
        path: the new snapshot.
        states: (operator, state, digest) of the rewritten keyed states.
        converted: number of rewritten subtasks.
        copied: files that were copied or linked.
        bytes: written and copied.
        notes: what the new format does not carry as the old one did.
        verified: whether rewritten state was read back and compared; None when nothing was, files were only
            copied.
        seconds: wall time.
        checksums: whether every copied file was read again and compared.
        removed: files of the old snapshot that were removed; None when it stays.
        proof: comparison of the new files with the old ones; None where none was read back.
    """

    path: str
    states: tuple[tuple[str, str, RecordDigest], ...]
    converted: int
    copied: int
    bytes: int
    notes: tuple[str, ...]
    verified: bool | None
    seconds: float
    checksums: bool = False
    removed: int | None = None
    proof: ProofReport | None = None


def convert(
    snapshot: Snapshot | str,
    target: str,
    format: Format | str = Format.CANONICAL,
    *,
    compress: bool | None = None,
    in_flight: InFlight | str = InFlight.REFUSE,
    verify: bool = True,
    files: FileMode | str = FileMode.COPY,
    checksums: bool = False,
    move: bool = False,
    processes: int = 1,
    run: Runner | None = None,
) -> ConversionResult:
    """Write a new snapshot with the same state in another format, directory or compression.

    Args:
        snapshot: the old snapshot, or its path; it is not changed unless it is moved.
        target: directory of the new snapshot, which must not exist.
        format: `canonical`, `heap`, `rocksdb`, or `keep` for copies of the files as they are.
        compress: snappy compression of canonical and heap files; None keeps what each subtask has.
        in_flight: `refuse`, `keep` or `drop` the in-flight data of an unaligned checkpoint.
        verify: read the written files back and compare them with the old ones before the snapshot is published.
        files: `copy` the files that are not rewritten, `link` them (one local volume), or `reference` them in the old
            snapshot, on which the new one then depends.
        checksums: read every copied file again and compare its checksum.
        move: remove the old snapshot once the new one is published and every copy has been compared.
        processes: that share the work; with more than one, the main module of a script must be guarded by
            `if __name__ == "__main__":`.
        run: runs the tasks in place of processes, such as `spark.tasks.run_tasks` with a session.

    Raises:
        UnsupportedError: the snapshot holds state that the format cannot store; nothing is left at the target.
        ProofError: the written state differs from the old state; nothing is left at the target.
        TargetExistsError: the target exists.
        UsageError: an argument is not one of the words above, files cannot be linked, or a move would leave files
            unchecked or referenced.
        StateError: the snapshot cannot be read.
    """
    chosen, kept = (
        parse_choice(Format, format, "format"),
        parse_choice(InFlight, in_flight, "choice for in-flight data"),
    )
    plan = plan_conversion(
        ensure_open(snapshot),
        resolve(target),
        chosen,
        compress=compress,
        in_flight=kept,
        verify=verify,
        files=parse_choice(FileMode, files, "choice for files"),
        checksums=checksums,
        move=move,
    )
    with choose_runner(run, processes) as runner:
        return run_conversion(plan, runner)


def _remove_source(plan: ConversionPlan) -> int | None:
    """Remove the old snapshot after a move; returns the number of files."""
    if plan.removal is None:
        return None
    try:
        return plan.removal.run()
    except StateError as error:
        error.hint = f"The new snapshot {plan.target} is complete; remove what is left of the old one"
        raise


def run_conversion(plan: ConversionPlan, run: Runner | None = None) -> ConversionResult:
    """Do what is planned; arguments and errors as for `convert`."""
    started = time.monotonic()
    with SnapshotTransaction(plan.target, run) as transaction:
        written = transaction.run(plan.tasks, "keyed state cannot be written")
        metadata = plan.make_metadata(written)
        require_conversion(plan, written, metadata)
        transaction.stage(metadata, plan.snapshot, plan.properties, files=plan.files, verify=plan.checksums)
        proof = prove_conversion(plan, written, transaction.run)
        transaction.commit(proof, hint="Please report this")
    removed = _remove_source(plan)
    return ConversionResult(
        path=str(plan.target),
        states=sum_states(plan.tasks, written),
        converted=len(written),
        copied=transaction.copied,
        bytes=sum(each.size for each in written) + transaction.copied_bytes,
        notes=plan.notes,
        verified=all(task.verify for task in plan.tasks) if plan.tasks else None,
        seconds=time.monotonic() - started,
        checksums=plan.checksums,
        removed=removed,
        proof=proof,
    )
