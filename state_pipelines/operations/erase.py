"""`erase`: a snapshot without some keys, and the snapshots below a directory that still hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError, Where
from state_pipelines.operations.key_search import KeySearch, search_keys
from state_pipelines.operations.local_processes import choose_runner
from state_pipelines.operations.rescale import OperatorRequest, RescaleRequest, plan_rescale, run_rescale
from state_pipelines.operations.write.keyed_rewrite import make_file_name
from state_pipelines.snapshot import open_snapshot
from state_pipelines.snapshot.snapshot import ensure_open
from state_pipelines.storage import join, parent, resolve
from state_pipelines.storage.snapshot_writer import find_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.operations.rescale import RescalePlan, RescaleResult
    from state_pipelines.snapshot import Snapshot


@dataclass(frozen=True)
class ErasurePlan:
    """The erasure of keys from one snapshot.

    Attributes:
        search: result of the search for the keys in the snapshot.
        rescaling: plan that writes the new snapshot without the keys; None if no operator holds them.
    """

    search: KeySearch
    rescaling: RescalePlan | None


def plan_erasure(
    snapshot: Snapshot,
    keys: Sequence[object],
    target: str | None = None,
    *,
    run: Runner | None = None,
) -> ErasurePlan:
    """Search a snapshot for keys and plan a new one without them; nothing is written.

    Args:
        snapshot: the snapshot.
        keys: values of keys, as `keys.encode_keys` takes them. An operator with keys of another type cannot hold such
            a value.
        target: directory of the new snapshot; None for a plan that is not executed.
        run: runs the tasks; default one after the other in this process.

    Raises:
        UnsupportedError: an operator that holds a key has state whose records cannot move.
        TargetExistsError: there is something at the target.
        StateError: the snapshot cannot be read.
    """
    search = search_keys(snapshot, keys, run=run)
    chosen = [(operator, search.keys_of(operator.label)) for operator in snapshot.operators]
    requests = {
        operator.id: OperatorRequest(drop_keys=tuple(keys[index] for index in found))
        for operator, found in chosen
        if found
    }
    if not requests:
        return ErasurePlan(search, None)
    location = resolve(target) if target else join(parent(snapshot.location.directory), make_file_name())
    return ErasurePlan(search, plan_rescale(snapshot, location, RescaleRequest(operators=requests)))


def run_erasure(plan: ErasurePlan, run: Runner | None = None) -> RescaleResult | None:
    """Write the new snapshot; return None if there is nothing to erase.

    Operators that do not hold the keys are copied as bytes. Before `_metadata` is written, the old and the new state
    are read and compared: every state must have the same entries as before, except those of the keys.

    Raises:
        ProofError: the proof failed; nothing is left at the target.
        TargetExistsError: there is something at the target.
        StateError: the snapshot cannot be read, or the new one not be written.
    """
    return None if plan.rescaling is None else run_rescale(plan.rescaling, run)


def erase(
    snapshot: Snapshot | str, keys: Sequence[object], target: str, *, processes: int = 1, strict: bool = True
) -> RescaleResult | None:
    """Write a new snapshot without the entries and timers of some keys, in every operator keyed by them.

    Args:
        snapshot: the old snapshot, or its path; it is not changed.
        keys: text where keys are text, else values as `read --json` or `dump` shows them.
        target: directory of the new snapshot, which must not exist.
        processes: number of processes that share the work; with more than one, the main module of a script must be
            guarded by `if __name__ == "__main__":`.
        strict: refuse, and write nothing, if some state cannot be searched. False erases the keys from the other state,
            as the command does, which lists the state that cannot be searched.

    Returns:
        The written snapshot; None, and nothing is written, if no operator holds the keys.

    Raises:
        StateError: the snapshot cannot be read, or some state cannot be searched. Without `strict`, state that cannot
            be searched is an error only if no other state has the keys.
        UnsupportedError: an operator that holds a key has state whose records cannot move.
        ProofError: the proof failed; nothing is left at the target.
        TargetExistsError: the target exists.
    """
    with choose_runner(None, processes) as run:
        plan = plan_erasure(ensure_open(snapshot), keys, target, run=run)
        if strict or plan.rescaling is None:
            require_searched(plan)
        return run_erasure(plan, run)


def require_searched(plan: ErasurePlan) -> None:
    """Refuse a plan if some state cannot be searched for the keys.

    Raises:
        StateError: some state cannot be searched; the message names the first operator with such state.
    """
    unsearched = plan.search.unsearched
    if unsearched:
        operator, reason = unsearched[0]
        more = f", and {len(unsearched) - 1} more" if len(unsearched) > 1 else ""
        raise StateError(
            f"it is not certain that the keys are gone: some state cannot be searched ({reason}{more})",
            where=Where(file=plan.search.path, operator=operator or None),
            hint="`state-pipelines erase` lists all state that cannot be searched" if more else "",
        )


def search_below(
    root: str,
    keys: Sequence[object],
    *,
    open_other: Callable[[str], Snapshot] = open_snapshot,
    run: Runner | None = None,
) -> Iterator[KeySearch]:
    """Search every snapshot below a directory for keys, in the key groups that the hashes of the keys give.

    For a snapshot that cannot be read, the result has the reason.

    Args:
        root: the directory.
        keys: as for `plan_erasure`.
        open_other: opens the snapshots.
        run: runs the tasks.

    Raises:
        MissingFileError: a directory cannot be listed.
    """
    for entry in find_snapshots(resolve(root)):
        path = str(entry.location.directory)
        try:
            yield search_keys(open_other(path), keys, run=run, everywhere=False)
        except StateError as error:
            yield KeySearch(path, None, (), (("", str(error)),))
