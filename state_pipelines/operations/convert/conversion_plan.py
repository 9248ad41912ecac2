"""Plans of conversions: what is written in the new format, what is copied, and what the format cannot carry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.heap import check_section_starts, may_hold_timestamps
from state_pipelines.keyed.keyed_file import FileFormat, SectionFile, combine_files
from state_pipelines.metadata import CheckpointMetadata, CheckpointProperties
from state_pipelines.metadata.checkpoint import SavepointFormatType, make_savepoint_properties
from state_pipelines.metadata.handles import KeyedStateHandle, KeyGroupsSavepointStateHandle
from state_pipelines.operations.convert.conversion_tasks import SubtaskConversion, WrittenState
from state_pipelines.operations.convert.source_removal import Removal, plan_removal
from state_pipelines.operations.inspect.keyed_formats import FORST, find_keyed_formats
from state_pipelines.operations.jobs.flink_config import StateBackend
from state_pipelines.operations.write.file_names import make_file_name
from state_pipelines.operations.write.publication import (
    FIRST_RELATIVE_VERSION,
    FileMode,
    choose_properties,
    note_files,
    plan_copies,
    replace_keyed_state,
)
from state_pipelines.operations.write.state_formats import Format
from state_pipelines.serializers.state_meta_info import BackendStateType
from state_pipelines.snapshot.checks import check_channels, check_database_keys, check_elements
from state_pipelines.snapshot.snapshot_files import check_held_key_groups, count_scans, explain_older_ranges
from state_pipelines.storage.snapshot_writer import require_free, require_outside

_DATABASES = 8
"""RocksDB databases that are written at a time at most where the storage takes long to answer."""

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata import SubtaskState
    from state_pipelines.snapshot import Operator, Snapshot
    from state_pipelines.snapshot.snapshot_files import UnreadState
    from state_pipelines.storage import Location


class InFlight(Enum):
    """Treatment of the in-flight data of an unaligned checkpoint."""

    REFUSE = "refuse"
    KEEP = "keep"
    DROP = "drop"


@dataclass(frozen=True)
class ConversionPlan:
    """Plan of a conversion.

    Attributes:
        snapshot: the old snapshot.
        metadata: its metadata without what is dropped, and without timers that move into managed state.
        target: directory of the new snapshot.
        format: of keyed state.
        tasks: the subtasks whose keyed state is rewritten.
        properties: of the new snapshot.
        notes: what the new format does not carry as the old one did.
        files: whether the files that are not rewritten are copied, linked or referenced.
        checksums: every copied file is read again and compared.
        removal: of the old snapshot, once the new one is published; None when it stays.
    """

    snapshot: Snapshot
    metadata: CheckpointMetadata
    target: Location
    format: Format
    tasks: tuple[SubtaskConversion, ...]
    properties: CheckpointProperties | None
    notes: tuple[str, ...]
    files: FileMode = FileMode.COPY
    checksums: bool = False
    removal: Removal | None = None

    def make_metadata(self, written: Sequence[WrittenState]) -> CheckpointMetadata:
        """The metadata with the new files of the tasks."""
        by_operator: dict[bytes, dict[int, KeyedStateHandle]] = {}
        for task, result in zip(self.tasks, written, strict=True):
            by_operator.setdefault(task.operator_id, {})[task.subtask] = result.handle
        metadata = self.metadata
        for operator_id, handles in by_operator.items():
            metadata = replace_keyed_state(metadata, operator_id, handles)
        return metadata


def plan_conversion(
    snapshot: Snapshot,
    target: Location,
    format: Format,
    *,
    compress: bool | None = None,
    in_flight: InFlight = InFlight.REFUSE,
    verify: bool = True,
    files: FileMode = FileMode.COPY,
    checksums: bool = False,
    move: bool = False,
) -> ConversionPlan:
    """Decide which subtasks are rewritten and which files are copied.

    Args:
        snapshot: the old snapshot.
        target: directory of the new one.
        format: of keyed state; with `KEEP` every file is copied as it is.
        compress: snappy compression of canonical and heap files; None keeps what each subtask has.
        in_flight: what happens to in-flight data, which savepoints do not carry.
        verify: read what was written again.
        files: see `convert`.
        checksums: see `convert`.
        move: see `convert`.

    Raises:
        TargetExistsError: there is something at the target.
        UnsupportedError: the snapshot holds what the format cannot carry, or cannot be moved.
        UsageError: the format does not let one choose about compression, the files cannot be linked, the target is
            inside the snapshot, or a move is to leave something unchecked or referenced.
        StateError: keyed state cannot be read.
    """
    if move and (not verify or files is FileMode.REFERENCE):
        raise UsageError(
            "a move removes the old snapshot, so that nothing may stay unchecked or be referenced there",
            hint="Verify and copy (or link) the files, or do not move",
        )
    removal = plan_removal(snapshot, target) if move else None
    require_free(target)
    require_outside(target, snapshot.location.directory)
    if compress is not None and format not in (Format.CANONICAL, Format.HEAP):
        raise UsageError(
            f"nothing is to be chosen about compression with {format.value}",
            hint="RocksDB compresses its own blocks; keep copies files as they are",
        )
    notes: list[str] = []
    metadata = _plan_in_flight(snapshot, in_flight, notes)
    tasks: list[SubtaskConversion] = []
    for operator in snapshot.operators:
        if (older := explain_older_ranges(operator.metadata, operator.label)) is not None:
            notes.append(older)
        if format is Format.KEEP:
            notes += _note_key_groups(operator)
            continue
        notes += check_elements(operator)
        with at(operator=operator.label):
            check_database_keys(operator)
            converted = _plan_operator(operator, target, format, compress, verify=verify)
            notes += _note_operator(operator, converted, format)
            metadata = _drop_raw_timers(metadata, operator, converted)
            tasks += converted
    if tasks and format in _BACKENDS:
        notes.append(
            f"the native format restores with state.backend.type: {_BACKENDS[format]} and Flink 1.15 or newer only; "
            "canonical restores everywhere"
        )
    if metadata.version < FIRST_RELATIVE_VERSION:
        notes.append(f"the metadata become version {FIRST_RELATIVE_VERSION}, which Flink reads from 1.11 on")
    noted = note_files(files)
    notes += [noted] if noted else []
    properties = _choose_properties(snapshot, metadata, format)
    plan = ConversionPlan(
        snapshot, metadata, target, format, tuple(tasks), properties, tuple(notes), files, checksums or move, removal
    )
    # What cannot be linked, or is out of reach, is refused before anything is written.
    for task in tasks:
        metadata = replace_keyed_state(metadata, task.operator_id, {task.subtask: None})
    plan_copies(snapshot, metadata, target, files=files)
    return plan


_FILES = {Format.CANONICAL: FileFormat.CANONICAL, Format.HEAP: FileFormat.HEAP, Format.ROCKSDB: FileFormat.ROCKSDB}
_BACKENDS = {Format.HEAP: StateBackend.HASHMAP, Format.ROCKSDB: StateBackend.ROCKSDB}


def _plan_operator(
    operator: Operator, target: Location, format: Format, compress: bool | None, *, verify: bool
) -> list[SubtaskConversion]:
    subtasks = {subtask.index: subtask for subtask in operator.metadata.subtasks}
    by_subtask: dict[int, list[KeyedFile]] = {}
    for index, file in operator.keyed_files:
        by_subtask.setdefault(index, []).append(file)
    # Files of ForSt look like those of RocksDB, but only ForSt restores them.
    foreign = _find_forst(operator) if format is Format.ROCKSDB else frozenset()
    in_flight = count_scans(operator, target)
    if format is Format.ROCKSDB:
        in_flight = min(in_flight, _DATABASES)
    tasks = []
    copied: list[SectionFile] = []
    for index, files in by_subtask.items():
        source = combine_files(sorted(files, key=lambda file: file.holds_raw_timers))
        compressed = source.header.compressed if compress is None else compress
        header = replace(source.header, compressed=compressed and format is not Format.ROCKSDB)
        if source.header == header and index not in foreign and _is_written(subtasks[index], source, format):
            if isinstance(source, SectionFile):
                copied.append(source)
            continue
        for info in header.states:
            if info.backend_type not in (BackendStateType.KEY_VALUE, BackendStateType.PRIORITY_QUEUE):
                raise UnsupportedError(
                    f"{info.backend_type} state is not written",
                    where=Where(state=info.name),
                    hint="Copy the files as they are (keep)",
                )
        tasks.append(
            SubtaskConversion(
                operator_id=operator.metadata.operator_id,
                operator=operator.label,
                subtask=index,
                source=source,
                header=header,
                format=format,
                key_groups=source.key_groups,
                context=operator.record_context,
                target=target,
                name=make_file_name(),
                checkpoint_id=operator.snapshot.checkpoint_id,
                verify=verify,
                in_flight=in_flight,
            )
        )
        _require_lengths(tasks[-1], lacks_lengths=any(file.lacks_lengths for file in files))
    check_section_starts(copied, operator.record_context.prefix, operator.snapshot.location.directory)
    return tasks


def _require_lengths(task: SubtaskConversion, *, lacks_lengths: bool) -> None:
    """Refuse entries whose ends nothing here finds, where the old or the new files store no lengths of entries.

    States of unread serializers are refused if they have an entry, others by their first entries here, and by all
    before the subtask is written.

    Args:
        task: of a subtask.
        lacks_lengths: the old files are those of the heap backend.

    Raises:
        UnsupportedError: there are such entries.
    """
    if not (task.needs_ends or lacks_lengths):
        return
    for state_id, codec in task.find_doubtful():
        with at(operator=task.operator, state=task.header.states[state_id].name):
            batches = (records for _, records in task.source.scan([state_id], task.context) if len(records))
            first = next(batches, None)
            if first is None or not task.needs_ends:
                continue
            if codec.is_opaque:
                raise UnsupportedError(
                    "the state has entries that nothing here reads, and the native format of the heap backend stores "
                    "no lengths of entries, so that what is written could not be compared",
                    hint="Declare the serializer (`--serializer`), or choose another format",
                )
            codec.require_ends(first)


def _find_forst(operator: Operator) -> frozenset[int]:
    """The subtasks whose databases are of ForSt."""
    handles = [(subtask.index, subtask.managed_keyed_state) for subtask in operator.metadata.subtasks]
    formats = find_keyed_formats(handles, operator.keyed_files, operator.snapshot.handles)
    return frozenset(index for each in formats if each.format.startswith(FORST) for index in each.subtasks)


def _is_written(subtask: SubtaskState, source: KeyedFile, format: Format) -> bool:
    """Whether the files of a subtask can be copied."""
    if format is Format.CANONICAL and not isinstance(subtask.managed_keyed_state, KeyGroupsSavepointStateHandle):
        # Behind another handle (before 1.13, full checkpoints of RocksDB) only one backend takes the format.
        return False
    return source.format is _FILES[format]


def _drop_raw_timers(
    metadata: CheckpointMetadata, operator: Operator, tasks: Sequence[SubtaskConversion]
) -> CheckpointMetadata:
    """`metadata` without the raw keyed state whose timers are written as managed state, or which has no timers."""
    unread = _find_unread(operator)
    written = {task.subtask for task in tasks} - unread.keys()
    moved = {each.index for each in operator.metadata.subtasks if each.index in written and each.raw_keyed_state}
    if not moved:
        return metadata
    return replace(
        metadata,
        operator_states=tuple(
            replace(
                each,
                subtasks=tuple(
                    replace(subtask, raw_keyed_state=None) if subtask.index in moved else subtask
                    for subtask in each.subtasks
                ),
            )
            if each.operator_id == operator.metadata.operator_id
            else each
            for each in metadata.operator_states
        ),
    )


def _find_unread(operator: Operator) -> Mapping[int, UnreadState]:
    """By index of the subtask the raw keyed state that is not timers, or timers that are not read."""
    return operator.snapshot.keyed_files.find_unread(operator.metadata, operator.snapshot.layout_context)


def _note_operator(operator: Operator, tasks: Sequence[SubtaskConversion], format: Format) -> Iterator[str]:
    states = {info.name: info for task in tasks for info in task.header.states}
    if any(file.change_logs() for _, file in operator.keyed_files):
        yield f"operator {operator.label}: the base of the changelog and its changes become one state"
    if tasks and any(file.holds_raw_timers for _, file in operator.keyed_files):
        yield f"operator {operator.label}: the timers in raw keyed state become timer states"
    unread = _find_unread(operator).values()
    if any(not each.is_timers for each in unread):
        yield f"operator {operator.label}: its raw keyed state is not timers and is copied as it is"
    for reason in dict.fromkeys(each.reason for each in unread if each.is_timers):
        what = "its timers in raw keyed state are not read and are copied as they are"
        yield f"operator {operator.label}: {what}: {reason}"
    if format is Format.ROCKSDB and any(
        info.backend_type is BackendStateType.PRIORITY_QUEUE for info in states.values()
    ):
        yield (
            f"operator {operator.label} has timers: a job that keeps its timers on the heap "
            "(state.backend.rocksdb.timer-service.factory: HEAP) does not find them in this format"
        )
    if format is Format.HEAP:
        key = {task.header.key_serializer for task in tasks}
        found = [name for name, info in states.items() if any(may_hold_timestamps(info, each) for each in key)]
        if found:
            yield (
                f"operator {operator.label}, state {', '.join(sorted(found))}: SQL timestamps that are null cannot be "
                "restored from this format; the conversion stops if there is one"
            )


def _note_key_groups(operator: Operator) -> list[str]:
    """Note errors in the key-group ranges of an operator whose files are copied as they are."""
    file = str(operator.snapshot.location.metadata)
    try:
        for raw in (False, True):
            check_held_key_groups(operator.metadata, file, raw=raw)
    except FormatError as error:
        return [f"operator {operator.label}, which is copied as it is: {error.what}"]
    return []


def _plan_in_flight(snapshot: Snapshot, choice: InFlight, notes: list[str]) -> CheckpointMetadata:
    labels = [operator.label for operator in snapshot.operators if _has_in_flight(operator.metadata.subtasks)]
    if not labels:
        return snapshot.metadata
    of = f"in-flight data of {', '.join(labels)}"
    if choice is InFlight.REFUSE:
        raise UnsupportedError(
            f"the checkpoint holds {of}, which no savepoint carries",
            where=Where(file=str(snapshot.location.metadata)),
            hint="Keep it with --in-flight keep, and the result is a checkpoint as before, or lose these records with "
            "--in-flight drop",
        )
    if choice is InFlight.KEEP:
        check_channels(snapshot)
        notes.append(f"{of} is kept as it is; the result is a checkpoint, not a savepoint")
        return snapshot.metadata
    notes.append(f"{of} is dropped: these records are lost")
    return replace(
        snapshot.metadata,
        operator_states=tuple(
            replace(
                operator,
                subtasks=tuple(
                    replace(each, input_channel_state=(), result_subpartition_state=()) for each in operator.subtasks
                ),
            )
            for operator in snapshot.metadata.operator_states
        ),
    )


def _has_in_flight(subtasks: Sequence[SubtaskState]) -> bool:
    return any(each.input_channel_state or each.result_subpartition_state for each in subtasks)


def _choose_properties(
    snapshot: Snapshot,
    metadata: CheckpointMetadata,
    format: Format,
) -> CheckpointProperties | None:
    old = snapshot.metadata.properties
    if any(_has_in_flight(operator.subtasks) for operator in metadata.operator_states):
        return old if isinstance(old, CheckpointProperties) else None
    if format is Format.KEEP:
        return choose_properties(metadata)
    return make_savepoint_properties(
        SavepointFormatType.NATIVE if format in _BACKENDS else SavepointFormatType.CANONICAL
    )
