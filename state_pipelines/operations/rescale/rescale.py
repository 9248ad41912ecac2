"""From an old snapshot to a rescaled one: planned as a whole, written in stages, proven, published."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import ProofError, UnsupportedError, UsageError, Where
from state_pipelines.keyed.digests import sum_digests
from state_pipelines.metadata.handles import KeyGroupsSavepointStateHandle, RelativeFileStateHandle
from state_pipelines.operations.key_search import search_keys
from state_pipelines.operations.local_processes import choose_runner, run_tasks
from state_pipelines.operations.rescale.records import (
    MovedRecords,
    OperatorTasks,
    RescalePlan,
    Way,
    check_chosen_keys,
    move_records,
)
from state_pipelines.operations.rescale.rescale_planner import plan_operator
from state_pipelines.operations.rescale.rescale_proof import (
    CountKeyed,
    ProofSide,
    check_sources,
    compare_sides,
    count_keyed,
    report_rescaling,
)
from state_pipelines.operations.rescale.rescale_request import RescaleRequest, edit_operators, load_request
from state_pipelines.operations.write.publication import (
    FileMode,
    choose_properties,
    note_files,
    plan_copies,
    replace_keyed_state,
)
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.snapshot.snapshot import ensure_open
from state_pipelines.storage import Location, resolve
from state_pipelines.storage.snapshot_writer import open_local_scratch, require_free, require_outside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.operations.proofs import ProofReport, StateProof
    from state_pipelines.snapshot import Operator


@dataclass(frozen=True)
class RescaleResult:
    """Result of a rescaling.

    Attributes:
        path: the new snapshot.
        plan: what was planned.
        files_written: new files.
        files_taken: old files that were copied, linked or referenced.
        bytes: written or copied.
        notes: what users should know.
        states: both sides of every state; empty when no proof was asked for.
        proof: its checks; None when it was not asked for.
        seconds: wall time.
    """

    path: str
    plan: RescalePlan
    files_written: int
    files_taken: int
    bytes: int
    notes: tuple[str, ...]
    states: tuple[StateProof, ...]
    proof: ProofReport | None
    seconds: float

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return self.plan.to_json() | {
            "path": self.path,
            "files_written": self.files_written,
            "files_taken": self.files_taken,
            "bytes": self.bytes,
            "proven": self.proof is not None,
            "proof": None if self.proof is None else self.proof.to_json(),
            "states": [
                {
                    "operator": row.operator,
                    "state": row.state,
                    "entries": row.after.records,
                    "bytes": row.after.bytes,
                    "digest": f"{row.after.content:016x}",
                }
                for row in self.states
            ],
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


def plan_rescale(
    snapshot: Snapshot,
    target: Location,
    request: RescaleRequest,
    *,
    open_other: Callable[[str], Snapshot] = open_snapshot,
    files: FileMode = FileMode.COPY,
    verify: bool = False,
) -> RescalePlan:
    """Decide everything, and refuse what is impossible; nothing is written.

    Args:
        snapshot: the old snapshot.
        target: directory of the new one.
        request: what it is to be.
        open_other: opens the snapshots that the request takes from or merges.
        files: what happens to files that stay as they are.
        verify: every new file is read again and compared; the proof of `run_rescale` does more.

    Raises:
        UsageError: nothing is asked for, the numbers do not go together, or the target is inside of a snapshot.
        NotFoundError: an operator, a state or a snapshot is not there.
        TargetExistsError: there is something at the target.
        UnsupportedError: the hash of a class in the keys is not known, union state is too large to come to every
            subtask, data are in flight, or state has a form that cannot be moved.
        StateError: state cannot be read.
    """
    if request.is_empty:
        raise UsageError(
            "nothing is asked for", hint="Say a parallelism, a max parallelism, or what happens to operators"
        )
    require_free(target)
    paths = dict.fromkeys([*(each.snapshot for each in request.take.values()), *request.merge.snapshots])
    others = {path: open_other(path) for path in paths}
    for each in (snapshot, *others.values()):
        require_outside(target, each.location.directory)
    edited = edit_operators(snapshot, request, others)
    plans = tuple(plan_operator(operator, request, target, files=files, verify=verify) for operator in edited.operators)
    check_sources(edited)
    notes = [*edited.notes, *(note for plan in plans for note in plan.notes)]
    notes += _note_conflicts(plans)
    notes += _note_max_parallelism(plans)
    if (noted := note_files(files)) is not None:
        notes.append(noted)
    plan = RescalePlan(edited, request, target, plans, files, verify, tuple(notes))
    if files is FileMode.LINK:
        # What cannot be linked is refused before anything is written.
        metadata = _make_metadata(plan, [MovedRecords([], []) for _ in plans])
        plan_copies(edited.snapshot, metadata, target, files=files)
    return plan


def _note_conflicts(plans: Sequence[OperatorTasks]) -> list[str]:
    """Note a limit that Flink does not report, for operators that may be chained: those of one parallelism."""
    found: dict[int, dict[int, list[str]]] = {}
    for change in (plan.change for plan in plans if plan.change.keyed is not Way.NONE):
        found.setdefault(change.parallelism[1], {}).setdefault(change.max_parallelism[1], []).append(change.label)
    return [
        "operators of parallelism "
        f"{parallelism} have keyed state with different max parallelism: "
        + "; ".join(f"{number} has {', '.join(labels)}" for number, labels in numbers.items())
        + "; if any of these are chained, Flink loses state without a word"
        for parallelism, numbers in found.items()
        if len(numbers) > 1
    ]


def _note_max_parallelism(plans: Sequence[OperatorTasks]) -> list[str]:
    """Reminder that the job decides what it restores with."""
    changed: dict[int, list[str]] = {}
    for plan in plans:
        before, after = plan.change.max_parallelism
        merged = (each.max_parallelism for each in plan.edited.merged)
        if {before, *merged} != {after} and plan.change.keyed is not Way.NONE:
            changed.setdefault(after, []).append(plan.change.label)
    return [
        f"the job must set the same max parallelism, {number} for {', '.join(labels)}, or none at all "
        "(setMaxParallelism of the operator, pipeline.max-parallelism); Flink refuses keyed state with another one"
        for number, labels in changed.items()
    ]


def run_rescale(
    plan: RescalePlan,
    run: Runner | None = None,
    *,
    prove: bool = True,
    scratch: str | None = None,
    is_shared: bool = False,
) -> RescaleResult:
    """Do what is planned.

    Args:
        plan: from `plan_rescale`.
        run: runs the tasks; default one after the other in this process.
        prove: read both sides and compare before the result is published.
        scratch: directory (path or URL) of temporary files; see `ScratchDirectory` for the default.
        is_shared: `run` uses other machines, which must reach the temporary files.

    Raises:
        ProofError: something was lost, doubled, changed or misplaced; nothing is left at the target.
        IncompatibleError: merged snapshots have the same key, and the request does not say which one counts.
        TargetExistsError: there is something at the target.
        StateError: the old state cannot be read, or the new one not be written.
    """
    started = time.monotonic()
    with SnapshotTransaction(plan.target, run, scratch=scratch, is_shared=is_shared) as transaction:
        run = transaction.run
        assemblies = [task for each in plan.operators for task in each.assemblies]
        size = sum(run(assemblies, "files cannot be put together"))
        moved = move_records(plan, transaction.target, transaction.scratch, run, digests=prove)
        transaction.clear()
        size += sum(file.size for each in moved for _, file in each.files)
        metadata = _make_metadata(plan, moved)
        result = transaction.stage(
            metadata, plan.edited.snapshot, choose_properties(metadata), files=plan.files, verify=plan.verify
        )
        check_chosen_keys(plan, moved)
        if prove:
            _require_gone(plan, result, run)
        states, proof = _prove(plan, moved, result, run) if prove else ((), None)
        failures = [failure for each in states for failure in each.failures]
        transaction.commit(proof, differences=failures, hint="Please report this")
    return RescaleResult(
        path=str(plan.target),
        plan=plan,
        files_written=len(assemblies) + sum(len(each.files) for each in moved),
        files_taken=transaction.copied,
        bytes=size + transaction.copied_bytes,
        notes=plan.notes,
        states=states,
        proof=proof,
        seconds=time.monotonic() - started,
    )


def rehearse(plan: RescalePlan, run: Runner | None = None) -> None:
    """Check what only the records decide, as `run_rescale` will find them; no file remains.

    Old records are read where their keys are hashed, where chosen keys or merged snapshots decide which of them stay,
    and where only their values say where they end. What is merged or chosen is written to a temporary directory.

    Args:
        plan: from `plan_rescale`.
        run: as for `run_rescale`.

    Raises:
        StateError: `run_rescale` would raise the same.
    """
    run = run or run_tasks
    counts = [task for each in plan.operators for task in _plan_rehearsal(each)]
    for task, counted in zip(counts, run(counts, "the old records cannot be read"), strict=True):
        if counted.unread or sum(counted.misfiled.values()):
            raise UnsupportedError(
                counted.unread or "keys lie in other key groups than their hash gives",
                where=Where(file=task.file.name, operator=task.operator),
                hint="" if counted.unread else "Say the hash with --key-hash OPERATOR:CLASS=EXPRESSION",
            )
    operators = [each.change.label for each in plan.operators if each.edited.request.keys or each.edited.merged]
    if not operators:
        return
    with open_local_scratch() as directory:
        target = resolve(str(directory))
        plans = tuple(
            plan_operator(each.edited, plan.request, target, files=plan.files, verify=False)
            for each in plan.operators
            if each.change.label in operators
        )
        chosen = replace(plan, operators=plans, verify=False)
        check_chosen_keys(chosen, move_records(chosen, target, target, run))


def _plan_rehearsal(plan: OperatorTasks) -> Iterator[CountKeyed]:
    if plan.records is None:
        return
    for operator in (plan.edited.operator, *plan.edited.merged):
        for file in operator.stored_files:
            if plan.records.hasher is not None or file.needs_layouts:
                yield from count_keyed(operator, file, plan.records.hasher)


def rescale(
    snapshot: Snapshot | str,
    target: str,
    request: RescaleRequest | str | None = None,
    *,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    open_other: Callable[[str], Snapshot] = open_snapshot,
    files: FileMode | str = FileMode.COPY,
    prove: bool = True,
    processes: int = 1,
    run: Runner | None = None,
    scratch: str | None = None,
) -> RescaleResult:
    """Write a new snapshot with the same state for other subtasks, key groups or operators.

    Args:
        snapshot: the old snapshot, or its path; it is not changed.
        target: directory of the new snapshot, which must not exist.
        request: the whole request, or the path of its YAML file.
        parallelism: subtasks of all operators for which the request names no number.
        max_parallelism: key groups, likewise.
        open_other: opens other snapshots that the request names, from which it takes state.
        files: `copy`, `link` or `reference` files that are not rewritten.
        prove: read the old and the new snapshot and compare them before the result is published.
        processes: that share the work; with more than one, the main module of a script must be guarded by
            `if __name__ == "__main__":`.
        run: runs the tasks in place of processes, such as `spark.tasks.run_tasks` with a session.
        scratch: directory (path or URL) of temporary files; by default the parent of a local target, and the directory
            for temporary files of this machine for other targets.

    Raises:
        UsageError: nothing is requested, or the numbers contradict each other.
        UnsupportedError: it cannot be done, for instance because the hash of a key class is not known.
        ProofError: the proof failed; nothing is left at the target.
        TargetExistsError: the target exists.
        StateError: the snapshot cannot be read.
    """
    wanted = load_request(request) if isinstance(request, str) else request or RescaleRequest()
    numbers = {"parallelism": parallelism, "max_parallelism": max_parallelism}
    wanted = wanted.model_copy(update={name: number for name, number in numbers.items() if number is not None})
    location, mode = resolve(target), FileMode(files)
    plan = plan_rescale(ensure_open(snapshot), location, wanted, open_other=open_other, files=mode, verify=not prove)
    with choose_runner(run, processes) as runner:
        return run_rescale(plan, runner, prove=prove, scratch=scratch)


def _make_metadata(plan: RescalePlan, moved: Sequence[MovedRecords]) -> CheckpointMetadata:
    """Metadata of the new snapshot with its new files; others still have their old names."""
    metadata = replace(plan.edited.snapshot.metadata, operator_states=tuple(each.state for each in plan.operators))
    for each, own in zip(plan.operators, moved, strict=True):
        handles = {
            file.subtask: KeyGroupsSavepointStateHandle(
                task.key_groups, file.offsets, RelativeFileStateHandle(task.target.name, file.size)
            )
            for task, file in own.files
        }
        metadata = replace_keyed_state(metadata, each.state.operator_id, handles)
    return metadata


def _require_gone(plan: RescalePlan, result: Snapshot, run: Runner) -> None:
    """Search the written state for the keys that were to go."""
    for each in plan.operators:
        choice = each.edited.request.keys
        if choice is None or choice.keep:
            continue
        after = _find_written(each, result)
        search = search_keys(result, choice.keys, [after], run)
        if left := [found.state for found in search.found] or [reason for _, reason in search.unsearched]:
            raise ProofError(
                f"keys that were to go may still be there: {', '.join(dict.fromkeys(left))}",
                where=Where(operator=each.change.label),
                hint="Nothing was published; please report this",
            )


def _find_written(plan: OperatorTasks, result: Snapshot) -> Operator:
    """The operator in the new snapshot."""
    found = [each for each in result.operators if each.metadata.operator_id == plan.state.operator_id]
    if not found:
        raise ProofError(
            "the operator is not in the new snapshot; nothing was published",
            where=Where(operator=plan.change.label),
            hint="Please report this",
        )
    return found[0]


def _find_read(plan: OperatorTasks, own: MovedRecords) -> Mapping[str, RecordDigest] | None:
    """Digests of all keyed state of the old operator, where it was read whole to be moved; else it is read again."""
    edited = plan.edited
    if not own.found or edited.merged or plan.dropped or edited.request.keys is not None:
        return None
    read = [file.key_groups for _, file in edited.operator.keyed_files]
    # Databases that several subtasks share have more than the subtasks read of them.
    return own.found if read == [file.key_groups for file in edited.operator.stored_files] else None


def _prove(
    plan: RescalePlan, moved: Sequence[MovedRecords], result: Snapshot, run: Runner
) -> tuple[tuple[StateProof, ...], ProofReport]:
    started = time.monotonic()
    sides = []
    for each, own in zip(plan.operators, moved, strict=True):
        sides.append(
            ProofSide(
                before=(each.edited.operator, *each.edited.merged),
                after=_find_written(each, result),
                planned=each.state,
                dropped=each.dropped,
                removed=sum_digests(own.dropped),
                hasher=None if each.records is None else each.records.hasher,
                moved=each.records is not None,
                found=_find_read(each, own),
            )
        )
    states = compare_sides(sides, run)
    return states, report_rescaling(states, sides, run, time.monotonic() - started)
