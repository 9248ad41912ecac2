"""Audit of what `_metadata` alone says: subtasks, key groups, and offsets against the sizes of their streams."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.errors import EDITED_METADATA, FormatError, StateError
from state_pipelines.keyed.changelog.changes import find_missing_base, find_missing_changes
from state_pipelines.metadata.checkpoint import (
    compute_operator_id,
    format_operator_id,
    is_operator_id,
    parse_operator_id,
)
from state_pipelines.metadata.handles import (
    MAX_PARALLELISM,
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    EmptySegmentFileStateHandle,
    InMemoryChangelogStateHandle,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
    MergedChannelStateHandle,
)
from state_pipelines.metadata.streams import open_stream
from state_pipelines.operations.auditing.report import Finding, Property, Severity, from_error
from state_pipelines.snapshot.checks import find_wrong_channels, find_wrong_streams
from state_pipelines.snapshot.snapshot_files import (
    check_held_key_groups,
    check_owner,
    check_subtasks,
    explain_missing_handles,
    explain_older_ranges,
    find_shared_files,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.metadata import OperatorState, SubtaskState
    from state_pipelines.metadata.handles import KeyedStateHandle, StreamStateHandle
    from state_pipelines.operations.auditing.report import Findings
    from state_pipelines.snapshot import Operator, Snapshot


def audit_structure(snapshot: Snapshot, findings: Findings) -> None:
    """Check `_metadata` against itself; no state is read."""
    names = [each.name for each in snapshot.metadata.master_states]
    for name in sorted({each for each in names if names.count(each) > 1}):
        # Each hook has one state (`MasterHooks.restoreMasterHooks`).
        what = f"the state of the master hook {name} is listed twice"
        file = str(snapshot.location.metadata)
        findings.add(Finding(Severity.ERROR, Property.METADATA, what, file=file, hint=EDITED_METADATA))
    owners = find_shared_files(snapshot.metadata)
    for operator in snapshot.operators:
        try:
            check_owner(owners, operator.metadata.operator_id)
        except FormatError as error:
            findings.add(from_error(error, Property.METADATA, operator=operator.label))
        if _check_subtasks(operator, findings):
            _check_key_groups(operator, findings)
        for subtask in operator.metadata.subtasks:
            for handle, offsets, begins in _iter_offsets(subtask):
                _check_offsets(operator, subtask, handle, offsets, begins, findings)
            _check_changes(operator, subtask, findings)
            for what in find_wrong_channels(subtask):
                findings.add(_find(operator, subtask, Property.METADATA, what, hint=EDITED_METADATA))
        for doubt in _find_foreign_names(operator.metadata):
            findings.add(Finding(Severity.WARNING, Property.METADATA, doubt, operator=operator.label))
    labels = {each.metadata.operator_id: each.label for each in snapshot.operators}
    for operator_id, problem in find_wrong_streams(snapshot.metadata):
        findings.add(from_error(problem, Property.METADATA, operator=labels[operator_id]))


def _find_foreign_names(operator: OperatorState) -> Iterator[str]:
    """Yield what an operator has of another one, as far as Flink stores names that it does not read."""
    if operator.uid is not None and compute_operator_id(operator.uid) != operator.operator_id:
        # `StreamGraphHasherV2.generateUserSpecifiedHash`; the hash of `setUidHash` is stored nowhere.
        yield (
            f"the operator has the id {format_operator_id(operator.operator_id)}, which is not that of its uid "
            f"{operator.uid}. Flink restores by the id"
        )
    coordinator = operator.coordinator_state
    if coordinator is not None and is_operator_id(coordinator.handle_name):
        # `OperatorCoordinatorCheckpoints` names the state by the id of its operator.
        other = parse_operator_id(coordinator.handle_name)
        if other != operator.operator_id:
            yield (
                f"its coordinator state was written for the operator {format_operator_id(other)}. That is right where "
                "a tool has renamed the operator since"
            )


def _check_subtasks(operator: Operator, findings: Findings) -> bool:
    """Check subtasks and parallelism; returns whether key groups can be checked, which would find the same again."""
    metadata = operator.metadata
    error = None
    try:
        check_subtasks(metadata, str(operator.snapshot.location.metadata))
    except FormatError as failed:
        error = failed
        findings.add(from_error(error, Property.METADATA, operator=operator.label))
    problems = []
    if metadata.parallelism > metadata.max_parallelism > 0:
        problems.append(f"parallelism {metadata.parallelism} is above max parallelism {metadata.max_parallelism}")
    if metadata.max_parallelism > MAX_PARALLELISM:
        problems.append(f"max parallelism {metadata.max_parallelism} is above Flink's limit of {MAX_PARALLELISM}")
    for problem in problems:
        findings.add(_find(operator, None, Property.METADATA, problem, hint=EDITED_METADATA))
    return error is None and metadata.max_parallelism <= MAX_PARALLELISM


def _check_key_groups(operator: Operator, findings: Findings) -> None:
    file = str(operator.snapshot.location.metadata)
    failed = False
    for raw in (False, True):
        try:
            check_held_key_groups(operator.metadata, file, raw=raw)
        except StateError as error:
            failed = True
            findings.add(from_error(error, Property.KEY_GROUPS, operator=operator.label))
    notes = [explain_older_ranges(operator.metadata, operator.label)]
    if not failed:
        notes += [explain_missing_handles(operator.metadata, raw=raw) for raw in (False, True)]
    for note in filter(None, notes):
        findings.add(Finding(Severity.WARNING, Property.KEY_GROUPS, note, file=file, operator=operator.label))


Offsets = tuple["StreamStateHandle", "Sequence[int]", str]
"""Stream, offsets into it, and what begins there."""


def _iter_offsets(subtask: SubtaskState) -> Iterator[Offsets]:
    for keyed in (subtask.managed_keyed_state, subtask.raw_keyed_state):
        if keyed is not None:
            yield from _iter_keyed_offsets(keyed)
    for lists in (subtask.managed_operator_state, subtask.raw_operator_state):
        for state in () if lists is None else lists.states:
            assert lists is not None
            yield lists.delegate, state.offsets, f"an element of state {state.state_name}"
    for channel in (*subtask.input_channel_state, *subtask.result_subpartition_state):
        states = channel.states if isinstance(channel, MergedChannelStateHandle) else (channel.state,)
        for each in states:
            yield channel.delegate, each.offsets, "a buffer in flight"


def _iter_keyed_offsets(handle: KeyedStateHandle) -> Iterator[Offsets]:
    if isinstance(handle, KeyGroupsStateHandle | KeyGroupsSavepointStateHandle):
        yield handle.delegate, handle.offsets, "a key group"
    elif isinstance(handle, ChangelogStateBackendHandle):
        for each in handle.materialized:
            yield from _iter_keyed_offsets(each)


def _check_offsets(
    operator: Operator,
    subtask: SubtaskState,
    handle: StreamStateHandle,
    offsets: Sequence[int],
    what: str,
    findings: Findings,
) -> None:
    if not offsets or isinstance(handle, EmptySegmentFileStateHandle):
        return
    # -1 and 0 stand for key groups without state; elements and sections may be empty at the end of the stream.
    smallest, largest = min(offsets), max(offsets)
    if smallest >= -1 and largest <= (size := _get_size(handle)):
        return
    wrong = smallest if smallest < -1 else largest
    size = _get_size(handle)
    text = f"{what} begins at offset {wrong:,}, outside the {size:,} bytes of state"
    findings.add(
        _find(operator, subtask, Property.OFFSETS, text, handle=handle, offset=max(wrong, 0), hint=EDITED_METADATA)
    )


def _get_size(handle: StreamStateHandle) -> int:
    while isinstance(handle, KeyGroupsStateHandle):
        handle = handle.delegate
    if isinstance(handle, ByteStreamStateHandle):
        return len(handle.data)
    return 0 if isinstance(handle, EmptySegmentFileStateHandle) else handle.size


def _check_changes(operator: Operator, subtask: SubtaskState, findings: Findings) -> None:
    """Check that a changelog handle holds what can be replayed: changes of its key groups over whole bases."""
    handle = subtask.managed_keyed_state
    if not isinstance(handle, ChangelogStateBackendHandle):
        return
    for change in handle.non_materialized:
        if not isinstance(change, ChangelogStateHandleStream | InMemoryChangelogStateHandle):
            text = f"a {type(change).__name__} is among the changes of a changelog handle, which cannot replay it"
            findings.add(_find(operator, subtask, Property.METADATA, text, hint=EDITED_METADATA))
        elif not change.key_groups.intersect(handle.key_groups).number and handle.key_groups.number:
            text = (
                f"changes of key groups {change.key_groups.start}-{change.key_groups.end} are in a changelog handle of "
                f"key groups {handle.key_groups.start}-{handle.key_groups.end}"
            )
            findings.add(_find(operator, subtask, Property.KEY_GROUPS, text, hint=EDITED_METADATA))
    for problem in find_missing_changes(handle):
        findings.add(_find(operator, subtask, Property.METADATA, problem, hint=EDITED_METADATA))
    missing = find_missing_base(handle)
    if missing is not None:
        found = _find(operator, subtask, Property.METADATA, missing, hint=EDITED_METADATA)
        findings.add(replace(found, severity=Severity.WARNING))


def _find(
    operator: Operator,
    subtask: SubtaskState | None,
    property: Property,
    what: str,
    *,
    handle: StreamStateHandle | None = None,
    offset: int | None = None,
    hint: str = "",
) -> Finding:
    file = str(operator.snapshot.location.metadata)
    if handle is not None:
        try:
            snapshot = operator.snapshot
            file = open_stream(handle, snapshot.location.directory, snapshot.path_mapping).name
        except StateError:
            # A handle that cannot be resolved is a finding of its own.
            pass
    return Finding(
        Severity.ERROR,
        property,
        what,
        file=file,
        offset=offset,
        operator=operator.label,
        subtask=None if subtask is None else subtask.index,
        hint=hint,
    )
