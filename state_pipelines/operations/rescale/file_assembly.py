"""Keyed state of an operator at another parallelism: reused or copied as bytes, nothing is decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import OutOfReachError
from state_pipelines.metadata.handles import IncrementalRemoteKeyedStateHandle
from state_pipelines.operations.inspect.keyed_formats import FORST, find_keyed_formats
from state_pipelines.operations.rescale.keyed_assembly import NeedsRecords, assemble_keyed
from state_pipelines.snapshot.snapshot_files import find_held_key_groups, follows_formula

if TYPE_CHECKING:
    from state_pipelines.metadata.handles import KeyedStateHandle
    from state_pipelines.operations.rescale.file_ranges import Assembler
    from state_pipelines.snapshot import Operator


def hand_on_keyed(
    operator: Operator, parallelism: int, assembler: Assembler, *, narrow: bool
) -> list[tuple[KeyedStateHandle | None, KeyedStateHandle | None]] | NeedsRecords:
    """Managed and raw keyed state of each new subtask, or why records must be moved; nothing is written.

    Args:
        operator: the operator.
        parallelism: the new number of subtasks, at most the max parallelism.
        assembler: takes the new files.
        narrow: reuse files of which a new subtask needs a range, which is best where files are linked or referenced;
            otherwise that part is copied into a file of its own, so that no copy holds more than is needed.

    Raises:
        StateError: a header cannot be read.
    """
    metadata = operator.metadata
    subtasks = sorted(metadata.subtasks, key=lambda each: each.index)
    try:
        _require_reach(operator)
    except OutOfReachError as error:
        # Such as one of options, which no reader of records needs: a copy of the database would not be complete.
        return NeedsRecords(f"a file of the database cannot be copied: {error.what}")
    if parallelism == metadata.parallelism and follows_formula(metadata):
        same = {each.index: (each.managed_keyed_state, each.raw_keyed_state) for each in subtasks}
        return [same.get(index, (None, None)) for index in range(parallelism)]
    sides = []
    held = find_held_key_groups(metadata)
    for raw in (False, True):
        handles = [each.raw_keyed_state if raw else each.managed_keyed_state for each in subtasks]
        present = [
            (handle.key_groups if raw else held.get(each.index, handle.key_groups), handle)
            for each, handle in zip(subtasks, handles, strict=True)
            if handle is not None
        ]
        assembled = assemble_keyed(
            present, parallelism, metadata.max_parallelism, operator.snapshot.handles, assembler, raw=raw, narrow=narrow
        )
        if isinstance(assembled, NeedsRecords):
            return assembled
        sides.append(assembled)
    if any(isinstance(each, IncrementalRemoteKeyedStateHandle) for each in sides[0]) and _is_forst(operator):
        return NeedsRecords("the database is one of ForSt")
    return list(zip(*sides, strict=True))


def _require_reach(operator: Operator) -> None:
    """Make sure that every file of the databases of an operator may be copied; none is opened.

    Raises:
        OutOfReachError: a file is elsewhere, mostly because the snapshot was moved.
    """
    for subtask in operator.metadata.subtasks:
        handle = subtask.managed_keyed_state
        if isinstance(handle, IncrementalRemoteKeyedStateHandle):
            for each in (*handle.shared_state, *handle.private_state):
                operator.snapshot.handles.open_stream(each.handle)


def _is_forst(operator: Operator) -> bool:
    handles = [(each.index, each.managed_keyed_state) for each in operator.metadata.subtasks]
    found = find_keyed_formats(handles, operator.keyed_files, operator.snapshot.handles)
    return any(each.format.startswith(FORST) for each in found)
