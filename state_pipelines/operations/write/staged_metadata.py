"""Comparison of staged metadata with the expected ones, before they are published.

Digests prove the content of files. This proves that `_metadata` names these files, each for its subtask and with its
offsets, and that everything else in it is as expected. No state is read.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import ProofError, Where
from state_pipelines.metadata import (
    FIRST_VERSION_WITH_PROPERTIES,
    list_references,
    replace_stream_handles,
    with_version,
)
from state_pipelines.metadata.checkpoint import SavepointFormatType, make_savepoint_properties
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    EmptySegmentFileStateHandle,
    FileMergingOperatorStreamStateHandle,
    FileStateHandle,
    IncrementalRemoteKeyedStateHandle,
    OperatorStreamStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.streams import name_file
from state_pipelines.operations.write.publication import FIRST_RELATIVE_VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from state_pipelines.metadata import (
        CheckpointMetadata,
        CheckpointProperties,
        OperatorState,
        StreamReference,
        SubtaskState,
    )
    from state_pipelines.metadata.handles import KeyedStateHandle, OperatorStateHandle, StreamStateHandle
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.operations.write.publication import FileCopy
    from state_pipelines.snapshot import Snapshot

MOST_DIFFERENCES = 3
"""Largest number of differences that an error names."""


def require_staged(
    staged: Snapshot,
    expected: CheckpointMetadata,
    base: Snapshot | None,
    copies: Sequence[FileCopy],
    properties: CheckpointProperties | None,
    changed: Collection[bytes] | None,
) -> None:
    """Require that staged metadata are the expected ones.

    Args:
        staged: the new snapshot, which is not published yet.
        expected: its metadata with handles of new files; files that are taken over have their old names.
        base: the snapshot to whose directory these names are relative.
        copies: of the files that were taken over.
        properties: of the new snapshot, where its version has any; None for those of a canonical savepoint.
        changed: ids of the operators that may differ from those of `base`; None for any.

    Raises:
        ProofError: an operator, a subtask, a handle, an offset or another field is missing, added or different.
    """
    file = str(staged.location.metadata)
    if base is None:
        require_equal(staged.metadata, expected, file)
        return
    labels = {each.metadata.operator_id: each.label for each in base.operators}
    if changed is not None:
        before, after = (
            tuple(each for each in side.operator_states if each.operator_id not in changed)
            for side in (base.metadata, expected)
        )
        require_equal(replace(expected, operator_states=after), replace(expected, operator_states=before), file, labels)
    wanted = with_version(expected, max(expected.version, FIRST_RELATIVE_VERSION))
    if wanted.version >= FIRST_VERSION_WITH_PROPERTIES:
        wanted = replace(wanted, properties=properties or make_savepoint_properties(SavepointFormatType.CANONICAL))
    sources = {each.target.name: each.source for each in copies}
    references = (each.handle for each in list_references(base.metadata))
    old = {each.relative_path for each in references if isinstance(each, RelativeFileStateHandle)}
    require_equal(_normalize(staged.metadata, staged, sources, ()), _normalize(wanted, base, {}, old), file, labels)


def require_equal(
    metadata: CheckpointMetadata,
    expected: CheckpointMetadata,
    file: str,
    labels: Mapping[bytes, str] | None = None,
) -> None:
    """Require that metadata are the expected ones.

    Args:
        metadata: those of the new snapshot.
        expected: as they should be.
        file: of the new metadata, for the error.
        labels: of operators, for the error; default their uid, else their id.

    Raises:
        ProofError: something is missing, added or different.
    """
    differences = list(_compare(expected, metadata, labels or {}))
    if not differences:
        return
    shown = "; ".join(differences[:MOST_DIFFERENCES])
    more = len(differences) - MOST_DIFFERENCES
    raise ProofError(
        "the proof failed (metadata_as_expected); nothing was published: the new metadata differ from the planned "
        f"ones: {shown}{f'; and {more:,} more differences' if more > 0 else ''}",
        where=Where(file=file),
        hint="Please report this",
    )


def _normalize(
    metadata: CheckpointMetadata, snapshot: Snapshot, copies: Mapping[str, StateStream], old: Collection[str]
) -> CheckpointMetadata:
    """`metadata` with the same handles before and after files are copied.

    Args:
        metadata: the metadata.
        snapshot: finds the files.
        copies: old streams by name of the new file.
        old: relative paths of files that will be copied; other relative paths without a copy are those of new files.
    """

    def name(reference: StreamReference) -> StreamStateHandle:
        match reference.handle:
            case ByteStreamStateHandle() as handle:
                # Staging shortens names of inlined state, which are identities only.
                return replace(handle, handle_name="")
            case RelativeFileStateHandle(relative_path=path, size=size) if path in copies:
                return FileStateHandle(f"{copies[path].name} from {copies[path].start}", size)
            case RelativeFileStateHandle(relative_path=path) as handle if path not in old:
                return handle
            case RelativeFileStateHandle() | FileStateHandle() | SegmentFileStateHandle() as handle:
                file = name_file(handle, snapshot.location.directory, snapshot.path_mapping)
                start = handle.start if isinstance(handle, SegmentFileStateHandle) else 0
                return FileStateHandle(f"{file or handle} from {start}", handle.size)
            case handle:
                return handle

    operators = tuple(replace(each, subtasks=tuple(map(_separate, each.subtasks))) for each in metadata.operator_states)
    return replace_stream_handles(replace(metadata, operator_states=operators), name)


def _separate(subtask: SubtaskState) -> SubtaskState:
    """`subtask` without shared tables and merged files, which staging makes its own.

    `publication` does the same; a comparison that called it would not see what it leaves out.
    """
    return replace(
        subtask,
        managed_operator_state=_separate_elements(subtask.managed_operator_state),
        raw_operator_state=_separate_elements(subtask.raw_operator_state),
        managed_keyed_state=_separate_tables(subtask.managed_keyed_state),
    )


def _separate_elements(handle: OperatorStateHandle | None) -> OperatorStateHandle | None:
    if not isinstance(handle, FileMergingOperatorStreamStateHandle):
        return handle
    empty = isinstance(handle.delegate, EmptySegmentFileStateHandle)
    return None if empty else OperatorStreamStateHandle(handle.states, handle.delegate)


def _separate_tables(handle: KeyedStateHandle | None) -> KeyedStateHandle | None:
    match handle:
        case IncrementalRemoteKeyedStateHandle(shared_state=shared, private_state=private):
            return replace(handle, shared_state=(), private_state=(*shared, *private))
        case ChangelogStateBackendHandle(materialized=bases):
            return replace(handle, materialized=tuple(each for each in map(_separate_tables, bases) if each))
        case _:
            return handle


def _compare(expected: CheckpointMetadata, staged: CheckpointMetadata, labels: Mapping[bytes, str]) -> Iterator[str]:
    yield from _compare_fields(expected, staged, "operator_states")
    wanted, found = ({each.operator_id: each for each in side.operator_states} for side in (expected, staged))
    for operator_id in dict.fromkeys((*wanted, *found)):
        label = f"operator {labels.get(operator_id) or (wanted | found)[operator_id].uid or operator_id.hex()}"
        if operator_id not in found:
            yield f"{label} is missing"
        elif operator_id not in wanted:
            yield f"{label} is not expected"
        else:
            one, other = wanted[operator_id], found[operator_id]
            yield from (f"{label}: {each}" for each in _compare_fields(one, other, "subtasks"))
            yield from (f"{label}, {each}" for each in _compare_subtasks(one, other))


def _compare_subtasks(expected: OperatorState, staged: OperatorState) -> Iterator[str]:
    for one, other in zip_longest(expected.subtasks, staged.subtasks):
        if one is None:
            yield f"subtask {other.index}: not expected"
        elif other is None or one.index != other.index:
            yield f"subtask {one.index}: missing"
        else:
            yield from (f"subtask {one.index}: {each}" for each in _compare_fields(one, other))


def _compare_fields(expected: Any, staged: Any, but: str = "") -> Iterator[str]:
    """Differing fields of two dataclasses."""
    for name in (each.name for each in fields(expected) if each.name != but):
        one, other = getattr(expected, name), getattr(staged, name)
        if one != other:
            shown = f" is {other}, not {one}" if isinstance(one, str | int) else " is not the expected one"
            yield f"{name.replace('_', ' ')}{shown}"
