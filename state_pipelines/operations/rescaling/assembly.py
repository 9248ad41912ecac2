"""An operator at another parallelism: its state is handed on or copied as bytes, nothing is decoded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import UnsupportedError, UsageError, at
from state_pipelines.keyed.assignment import compute_key_group_range
from state_pipelines.metadata import KeyGroupRange, OperatorState, SubtaskState
from state_pipelines.metadata.keyed import IncrementalRemoteKeyedStateHandle
from state_pipelines.operations.keyed_formats import FORST, find_keyed_formats
from state_pipelines.operations.rescaling.keyed_assembly import NeedsRecords, assemble_keyed
from state_pipelines.operations.rescaling.operator_assembly import assemble_operator
from state_pipelines.operations.rescaling.pieces import Assembler, FileAssembly

if TYPE_CHECKING:
    from state_pipelines.metadata.keyed import KeyedStateHandle
    from state_pipelines.snapshot import Operator
    from state_pipelines.storage import Location

__all__ = ["FileAssembly", "NeedsRecords", "Reassigned", "plan_parallelism"]


@dataclass(frozen=True)
class Reassigned:
    """An operator at its new parallelism.

    Attributes:
        operator: what `_metadata` says of it. Handles of old files are as they were or name less of them; those of new
            ones are relative to the target.
        pieces: the new files, to be written before `_metadata`.
    """

    operator: OperatorState
    pieces: tuple[FileAssembly, ...]


def plan_parallelism(
    operator: Operator, parallelism: int, target: Location, *, narrow: bool = True, verify: bool = True
) -> Reassigned | NeedsRecords:
    """Decide how the state of an operator is handed to another number of subtasks; nothing is written.

    Args:
        operator: the operator. One that had finished stays as it is.
        parallelism: the new number of subtasks.
        target: directory of the new snapshot.
        narrow: hand on files of which a new subtask needs a part, which is best where files are linked or referenced;
            otherwise that part is copied into a file of its own, so that no copy holds more than is needed.
        verify: new files are read again and compared with what was written.

    Returns:
        The operator and its new files, or why its records must be moved.

    Raises:
        UsageError: the parallelism is not positive, or greater than the max parallelism.
        UnsupportedError: the operator has in-flight data or some of its subtasks have finished, or the states of old
            subtasks do not fit together.
        StateError: a header cannot be read.
    """
    metadata = operator.metadata
    with at(operator=operator.label):
        if metadata.fully_finished or parallelism == metadata.parallelism:
            return Reassigned(metadata, ())
        _refuse(metadata, parallelism)
        reader = operator.snapshot.handles
        assembler = Assembler(target, verify)
        subtasks = sorted(metadata.subtasks, key=lambda each: each.index)
        keyed = hand_on_keyed(operator, parallelism, assembler, narrow=narrow)
        if isinstance(keyed, NeedsRecords):
            return keyed
        states = []
        for raw in (False, True):
            pairs = [(each.index, each.raw_operator_state if raw else each.managed_operator_state) for each in subtasks]
            states.append(
                assemble_operator(
                    [(index, handle) for index, handle in pairs if handle is not None],
                    parallelism,
                    metadata.parallelism,
                    reader,
                    assembler,
                    raw=raw,
                    narrow=narrow,
                )
            )
    new = tuple(
        SubtaskState(
            index,
            managed_operator_state=states[0][index],
            raw_operator_state=states[1][index],
            managed_keyed_state=keyed[index][0],
            raw_keyed_state=keyed[index][1],
        )
        for index in range(parallelism)
    )
    return Reassigned(replace(metadata, parallelism=parallelism, subtasks=new), tuple(assembler.pieces))


def hand_on_keyed(
    operator: Operator, parallelism: int, assembler: Assembler, *, narrow: bool
) -> list[tuple[KeyedStateHandle | None, KeyedStateHandle | None]] | NeedsRecords:
    """Managed and raw keyed state of each new subtask, or why records must be moved; arguments as `plan_parallelism`.

    Raises:
        StateError: a header cannot be read.
    """
    metadata = operator.metadata
    subtasks = sorted(metadata.subtasks, key=lambda each: each.index)
    if parallelism == metadata.parallelism:
        same = {each.index: (each.managed_keyed_state, each.raw_keyed_state) for each in subtasks}
        return [same.get(index, (None, None)) for index in range(parallelism)]
    sides = []
    for raw in (False, True):
        handles = [
            (_find_key_groups(metadata, each.index), each.raw_keyed_state if raw else each.managed_keyed_state)
            for each in subtasks
        ]
        present = [(held, handle) for held, handle in handles if handle is not None]
        assembled = assemble_keyed(
            present, parallelism, metadata.max_parallelism, operator.snapshot.handles, assembler, raw=raw, narrow=narrow
        )
        if isinstance(assembled, NeedsRecords):
            return assembled
        sides.append(assembled)
    if any(isinstance(each, IncrementalRemoteKeyedStateHandle) for each in sides[0]) and _is_forst(operator):
        return NeedsRecords("the database is one of ForSt")
    return list(zip(*sides, strict=True))


def _find_key_groups(metadata: OperatorState, subtask: int) -> KeyGroupRange:
    return compute_key_group_range(subtask, metadata.parallelism, metadata.max_parallelism)


def _refuse(metadata: OperatorState, parallelism: int) -> None:
    if not 1 <= parallelism <= metadata.max_parallelism:
        raise UsageError(
            f"the parallelism {parallelism} does not lie between 1 and the max parallelism {metadata.max_parallelism}",
            hint="Choose another parallelism, or another max parallelism with it",
        )
    if any(each.input_channel_state or each.result_subpartition_state for each in metadata.subtasks):
        raise UnsupportedError(
            "in-flight data cannot be handed to another number of subtasks",
            hint="Take a savepoint or an aligned checkpoint, or drop the in-flight data first "
            "(convert --format keep --in-flight drop)",
        )
    finished = [str(each.index) for each in metadata.subtasks if each.finished]
    if finished:
        raise UnsupportedError(
            f"subtasks {', '.join(finished)} have finished and others have not, so that nothing says which of the new "
            "ones have",
            hint="Keep the parallelism of this operator, or take a snapshot before its first subtask finishes",
        )


def _is_forst(operator: Operator) -> bool:
    handles = [(each.index, each.managed_keyed_state) for each in operator.metadata.subtasks]
    found = find_keyed_formats(handles, operator.keyed_files, operator.snapshot.handles)
    return any(each.format.startswith(FORST) for each in found)
