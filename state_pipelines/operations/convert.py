"""`convert`: the same state in another format, in another location, in files of its own.

What a format cannot carry is said before anything is written. Each subtask is one task, so that any number of
processes can share it; what was written is read again and compared with what was there before `_metadata` is written.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

from pydantic import Field

from state_pipelines.errors import FormatError, OutOfReachError, StateError, UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.changelog.reader import ChangelogFile
from state_pipelines.keyed.digests import RecordDigest
from state_pipelines.keyed.heap import check_section_starts, may_hold_timestamps
from state_pipelines.keyed.heap_entries import make_entry_codecs
from state_pipelines.keyed.keyed_file import FileFormat, SectionFile, combine_files, digest_states
from state_pipelines.metadata import CheckpointMetadata, CheckpointProperties, list_references
from state_pipelines.metadata.checkpoint import SavepointFormatType, make_savepoint_properties
from state_pipelines.metadata.handles import KeyedStateHandle, KeyGroupsSavepointStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.streams import open_stream
from state_pipelines.operations.inspect import FORST, find_keyed_formats
from state_pipelines.operations.jobs.flink_config import StateBackend
from state_pipelines.operations.local_processes import choose_runner
from state_pipelines.operations.models import OperationModel, read_keywords, takes
from state_pipelines.operations.proofs import (
    DifferingRecord,
    ProofReport,
    RecordCounts,
    StateProof,
    find_differing_records,
    make_state_check,
)
from state_pipelines.operations.write.keyed_rewrite import Format, NativeFiles, copy_states, make_file_name
from state_pipelines.operations.write.publication import (
    FIRST_RELATIVE_VERSION,
    FileMode,
    choose_properties,
    note_files,
    plan_copies,
    replace_keyed_state,
    require_equal,
)
from state_pipelines.operations.write.transaction import SnapshotTransaction, check_source_whole
from state_pipelines.serializers.state_meta_info import BackendStateType
from state_pipelines.snapshot import open_snapshot
from state_pipelines.snapshot.checks import check_channels, check_database_keys, check_elements
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.snapshot.snapshot import ensure_open
from state_pipelines.snapshot.snapshot_files import check_held_key_groups, count_scans, explain_older_ranges
from state_pipelines.storage import Location, PathMapping, exists, join, list_directory, parent, resolve
from state_pipelines.storage.files import remove_directory
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.resolution import MANIFEST_FILE
from state_pipelines.storage.snapshot_writer import (
    delete_files,
    find_snapshots,
    remove_empty_directory,
    require_free,
    require_outside,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.heap_entries import EntryCodec
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata import OperatorState, SubtaskState
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.snapshot import Operator, Snapshot


@dataclass(frozen=True)
class WrittenState:
    """Result of the conversion of one subtask.

    Attributes:
        handle: new handle for the metadata; it names the new files relative to the target.
        states: digests of the old states, by name.
        size: bytes written.
        read_back: digests of the states in the new files, by name; None if these were not read back.
    """

    handle: KeyedStateHandle
    states: dict[str, RecordDigest]
    size: int
    read_back: dict[str, RecordDigest] | None = None


@dataclass(frozen=True)
class SubtaskConversion:
    """Task that writes the keyed state of one subtask in the new format.

    Attributes:
        operator_id: id of the operator.
        operator: label of the operator, for errors.
        subtask: index of the subtask.
        source: the old state.
        header: the new header.
        format: the new format.
        key_groups: key groups of the subtask.
        target: directory of the new snapshot.
        name: name of the new file; for RocksDB the beginning of the names of the new files. It is chosen before the
            first attempt, so that another attempt replaces the files of a failed one.
        checkpoint_id: checkpoint id of the snapshot.
        verify: read the new files again.
        in_flight: see `Work`.
    """

    operator_id: bytes
    operator: str
    subtask: int
    source: KeyedFile
    header: KeyedHeader
    format: Format
    key_groups: KeyGroupRange
    target: Location
    name: str
    checkpoint_id: int
    verify: bool = True
    in_flight: int = 1

    def run(self) -> WrittenState:
        """Write the new files, and read them again; files that a failed attempt has left are replaced.

        Raises:
            UnsupportedError: a record cannot be stored in the new format.
            StateError: the old state cannot be read.
        """
        with at(operator=self.operator):
            if self.needs_ends:
                self._require_ends()
            handle, size = self.write()
            # Read the old state a second time for the digests, because the writer may have missed records.
            before = digest_states(self.source, self.key_groups)
            after = None
            if self.verify:
                again = self.open_written(handle)
                after = {} if again is None else digest_states(again, self.key_groups)
        return WrittenState(handle, before, size, after)

    @property
    def needs_ends(self) -> bool:
        """Whether the ends of all entries must be computable: heap files, which store no lengths, will be read back."""
        return self.format is Format.HEAP and self.verify

    def find_doubtful(self) -> list[tuple[int, EntryCodec]]:
        """Return the ids and heap codecs of states with values whose ends may be impossible to find."""
        codecs = make_entry_codecs(self.header, self.source.context)
        return [(number, each) for number, each in enumerate(codecs) if each.is_opaque or not each.entries.is_compiled]

    def _require_ends(self) -> None:
        for state_id, codec in self.find_doubtful():
            with at(state=self.header.states[state_id].name):
                for _, records in self.source.scan([state_id]):
                    codec.require_ends(records)

    def write(self) -> tuple[KeyedStateHandle, int]:
        """Write the new files without reading them back; return the handle and the bytes written. Errors as `run`."""
        return _WRITERS[self.format](self)

    @property
    def native_files(self) -> NativeFiles:
        """Writer of the new files, for native formats."""
        return NativeFiles(
            self.source, self.header, self.key_groups, self.source.context, self.target, self.name, self.checkpoint_id
        )

    def open_written(self, handle: KeyedStateHandle) -> KeyedFile | None:
        """Open the new file before it is published."""
        return HandleReader(self.target, PathMapping()).open_keyed(handle, self.source.context)


def _write_canonical(task: SubtaskConversion) -> tuple[KeyedStateHandle, int]:
    file = join(task.target, task.name)
    written = copy_states(task.subtask, task.source, task.header, file).run()
    stream = RelativeFileStateHandle(file.name, written.size)
    return KeyGroupsSavepointStateHandle(task.key_groups, written.offsets, stream), written.size


def _write_heap(task: SubtaskConversion) -> tuple[KeyedStateHandle, int]:
    return task.native_files.write_heap()


def _write_rocksdb(task: SubtaskConversion) -> tuple[KeyedStateHandle, int]:
    return task.native_files.write_rocksdb()


_WRITERS = {Format.CANONICAL: _write_canonical, Format.HEAP: _write_heap, Format.ROCKSDB: _write_rocksdb}

NEIGHBOUR_DEPTH = 2
"""Levels below the parent directory of a snapshot that are searched for other snapshots that need its files."""


@dataclass(frozen=True)
class Removal:
    """Removal of a snapshot whose files no other snapshot needs.

    Attributes:
        directory: directory of the snapshot; if it is local, without symbolic links.
        metadata: the `_metadata` file; it is removed first, so that an interrupted removal leaves no broken snapshot.
        files: the other files of the snapshot, all of them in `directory`.
    """

    directory: Location
    metadata: Location
    files: tuple[Location, ...]

    def run(self) -> int:
        """Remove the files, and the directory if it is empty then; return the number of removed files.

        Raises:
            StateError: the storage refuses.
        """
        # `delete_files` refuses files that symbolic links lead out of the given root. Take the parent as the root: the
        # directory itself may have been replaced by a link since it was read.
        root = parent(self.directory)
        for files in ([self.metadata], self.files):
            for error in delete_files(files, [root] * len(files)):
                if error is not None:
                    raise error
        if is_local(self.directory):
            remove_empty_directory(self.directory, root)
        # In object stores an empty directory mostly does not exist any more.
        elif exists(self.directory) and not list_directory(self.directory):
            remove_directory(self.directory)
        return 1 + len(self.files)


def plan_removal(snapshot: Snapshot, target: Location) -> Removal:
    """List the files that are removed when a snapshot is moved to `target`; nothing is removed yet.

    Raises:
        UnsupportedError: a file is outside the directory of the snapshot, so that other snapshots may need it.
        UsageError: the target is the snapshot itself, or another snapshot near it references one of the files.
        StateError: another snapshot near it cannot be read, so that its references are not known.
    """
    directory = snapshot.location.directory
    if str(target).rstrip("/") == str(directory).rstrip("/"):
        raise UsageError("a snapshot cannot be moved to where it is", where=Where(file=str(target)))
    files: dict[str, Location] = {}
    for handle in (reference.handle for reference in list_references(snapshot.metadata)):
        location = open_stream(handle, directory, snapshot.path_mapping).location
        if location is None:
            continue
        if str(parent(location)) != str(directory).rstrip("/"):
            raise UnsupportedError(
                "the snapshot has files outside its directory, which other checkpoints may need",
                where=Where(file=str(location)),
                hint="Copy it without moving, and let Flink remove the old one",
            )
        files[str(location)] = location
    manifest = join(directory, MANIFEST_FILE)
    if exists(manifest):
        files[str(manifest)] = manifest
    _refuse_neighbours(snapshot, {_identify(location) for location in files.values()})
    real = replace(directory, path=os.path.realpath(directory.path)) if is_local(directory) else directory
    metadata, *others = (join(real, each.name) for each in (snapshot.location.metadata, *files.values()))
    return Removal(real, metadata, tuple(others))


def _refuse_neighbours(snapshot: Snapshot, files: Collection[str]) -> None:
    """Refuse to remove files that another snapshot near this one references, for instance after `--files reference`.

    Args:
        snapshot: the snapshot that is to be removed.
        files: its files, as `_identify` names them.

    Raises:
        UsageError: another snapshot references a file.
        StateError: another snapshot cannot be read.
    """
    directory = snapshot.location.directory
    try:
        for entry in find_snapshots(parent(directory), depth=NEIGHBOUR_DEPTH):
            if _identify(entry.location.directory) != _identify(directory):
                _refuse_neighbour(snapshot, str(entry.location.directory), files)
    except StateError as error:
        error.hint = error.hint or (
            "Before a snapshot is removed, all others near it are read, to find out whether they need its files. "
            "Convert without moving, or put the snapshot into a directory of its own first"
        )
        raise


def _refuse_neighbour(snapshot: Snapshot, path: str, files: Collection[str]) -> None:
    other = open_snapshot(path, path_mapping=snapshot.path_mapping, allow_roots=[snapshot.location.directory.url])
    for reference in list_references(other.metadata):
        try:
            location = open_stream(reference.handle, other.location.directory, other.path_mapping).location
        except OutOfReachError:
            # `other` may access all files of `snapshot`, so the file that is out of its reach is none of them.
            continue
        if location is not None and _identify(location) in files:
            raise UsageError(
                f"the snapshot {path} needs a file that would be removed",
                where=Where(file=str(location)),
                hint="Convert that snapshot with --files copy and remove it first, or copy this one without moving",
            )


def _identify(location: Location) -> str:
    # A local file may have several paths, because of symbolic links.
    return os.path.realpath(location.path) if is_local(location) else str(location).rstrip("/")


_DATABASES = 8
"""Maximum number of RocksDB databases that are written concurrently to a remote storage."""


class InFlight(Enum):
    """Treatment of the in-flight data of an unaligned checkpoint."""

    REFUSE = "refuse"
    KEEP = "keep"
    DROP = "drop"


class ConversionRequest(OperationModel):
    """A conversion; one that says nothing writes the canonical format."""

    format: Annotated[Format, Field(strict=False)] = Format.CANONICAL
    """Format of keyed state; keep copies every file as it is."""

    compress: bool | None = None
    """Snappy compression of canonical and heap files; by default as each subtask has it."""

    in_flight: Annotated[InFlight, Field(strict=False)] = InFlight.REFUSE
    """Treatment of the in-flight data of an unaligned checkpoint."""

    files: Annotated[FileMode, Field(strict=False)] = FileMode.COPY
    """Copy files that stay as they are, link them on one local volume, or reference them: the old one must stay."""


class ConversionKeywords(TypedDict, total=False):
    """Keyword arguments of `convert` that are fields of `ConversionRequest`, with their types."""

    compress: bool | None
    in_flight: InFlight | str
    files: FileMode | str


@dataclass(frozen=True)
class ConversionPlan:
    """Plan of a conversion.

    Attributes:
        snapshot: the old snapshot.
        metadata: metadata of the old snapshot, without in-flight data that are dropped, and without raw keyed state
            whose timers become managed state.
        target: directory of the new snapshot.
        format: format of keyed state.
        tasks: tasks for the subtasks whose keyed state is rewritten.
        properties: properties of the new snapshot.
        notes: remarks for the user, for instance on state that the new format stores in another way.
        files: copy, link or reference the files that are not rewritten.
        checksums: read every copied file again and compare.
        removal: removal of the old snapshot once the new one is published; None if the old one stays.
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
        """Return the metadata with the new handles that the tasks have returned, in their order."""
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
    request: ConversionRequest,
    *,
    verify: bool = True,
    checksums: bool = False,
    move: bool = False,
) -> ConversionPlan:
    """Decide which subtasks are rewritten and which files are copied.

    Args:
        snapshot: the old snapshot.
        target: directory of the new snapshot.
        request: format, compression, and treatment of in-flight data and files.
        verify: read new files again.
        checksums: see `convert`.
        move: see `convert`.

    Raises:
        TargetExistsError: there is something at the target.
        UnsupportedError: the snapshot has state that the format cannot store, or cannot be moved.
        UsageError: compression cannot be chosen for the format, files cannot be linked, the target is inside the
            snapshot, or a move would leave files unchecked or referenced.
        StateError: keyed state cannot be read.
    """
    format, compress, files = request.format, request.compress, request.files
    if move and (not verify or files is FileMode.REFERENCE):
        raise UsageError(
            "a move removes the old snapshot: it needs the verification, and cannot reference the old files",
            hint="Verify and copy (or link) the files, or do not move",
        )
    removal = plan_removal(snapshot, target) if move else None
    require_free(target)
    require_outside(target, snapshot.location.directory)
    if compress is not None and format not in (Format.CANONICAL, Format.HEAP):
        raise UsageError(
            f"compression cannot be chosen for the format {format.value}",
            hint="RocksDB compresses its own blocks; keep copies files as they are",
        )
    notes: list[str] = []
    metadata = _plan_in_flight(snapshot, request.in_flight, notes)
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
    # Refuse files that cannot be linked or read before anything is written; the planned copies are not used here.
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
    # Files of ForSt have the format of RocksDB, but only ForSt restores them: so convert them instead of copying.
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
                    f"{info.backend_type} state cannot be converted to another format",
                    where=Where(state=info.name),
                    hint="Copy the files as they are (--format keep)",
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
    """Refuse entries whose ends cannot be found, if the old or the new files store no lengths of entries.

    If the serializer of a state cannot be read, the state is refused if it has an entry. Of other states only the first
    entries are checked here; `SubtaskConversion.run` checks all of them before it writes the new files.

    Args:
        task: the task of a subtask.
        lacks_lengths: the old files have the native format of the heap backend, which stores no lengths.

    Raises:
        UnsupportedError: there are such entries.
    """
    if not (task.needs_ends or lacks_lengths):
        return
    for state_id, codec in task.find_doubtful():
        with at(operator=task.operator, state=task.header.states[state_id].name):
            batches = (records for _, records in task.source.scan([state_id]) if len(records))
            first = next(batches, None)
            if first is None or not task.needs_ends:
                continue
            if codec.is_opaque:
                raise UnsupportedError(
                    "the state has entries whose serializer is not known, and the native format of the heap backend "
                    "stores no lengths of entries, so that the new file could not be compared with the old one",
                    hint="Declare the serializer (`--serializer`), or choose another format",
                )
            codec.require_ends(first)


def _find_forst(operator: Operator) -> frozenset[int]:
    """Return the indices of the subtasks whose database was written by ForSt."""
    handles = [(subtask.index, subtask.managed_keyed_state) for subtask in operator.metadata.subtasks]
    formats = find_keyed_formats(handles, operator.keyed_files, operator.snapshot.handles)
    return frozenset(index for each in formats if each.format.startswith(FORST) for index in each.subtasks)


def _is_written(subtask: SubtaskState, source: KeyedFile, format: Format) -> bool:
    """Return whether the files of a subtask already have the new format, so that they can be copied."""
    if format is Format.CANONICAL and not isinstance(subtask.managed_keyed_state, KeyGroupsSavepointStateHandle):
        # Flink before 1.13, and full checkpoints of RocksDB, write the canonical format with another class of handle,
        # which only one backend accepts. Rewrite such files: the new handles are of the class that all backends accept.
        return False
    return source.format is _FILES[format]


def _drop_raw_timers(
    metadata: CheckpointMetadata, operator: Operator, tasks: Sequence[SubtaskConversion]
) -> CheckpointMetadata:
    """Remove raw keyed state from the metadata of subtasks whose tasks write its timers, if any, as managed state.

    Raw keyed state that is not timers, or whose timers cannot be read, stays.

    Args:
        metadata: the metadata.
        operator: the operator.
        tasks: tasks for subtasks of the operator.
    """
    unread = operator.files.find_unread()
    written = {task.subtask for task in tasks} - unread.keys()
    moved = {each.index for each in operator.metadata.subtasks if each.index in written and each.raw_keyed_state}
    if not moved:
        return metadata

    def drop(each: OperatorState, subtask: SubtaskState) -> SubtaskState:
        is_moved = each.operator_id == operator.metadata.operator_id and subtask.index in moved
        return replace(subtask, raw_keyed_state=None) if is_moved else subtask

    return metadata.map_subtasks(drop)


def _note_operator(operator: Operator, tasks: Sequence[SubtaskConversion], format: Format) -> Iterator[str]:
    states = {info.name: info for task in tasks for info in task.header.states}
    if any(isinstance(file, ChangelogFile) for _, file in operator.keyed_files):
        yield f"operator {operator.label}: the base of the changelog and its changes become one state"
    if tasks and any(file.holds_raw_timers for _, file in operator.keyed_files):
        yield f"operator {operator.label}: the timers in raw keyed state become timer states"
    unread = operator.files.find_unread().values()
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
    """Return a note on errors in the key-group ranges of an operator whose files are copied as they are."""
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
    return snapshot.metadata.map_subtasks(
        lambda _, each: replace(each, input_channel_state=(), result_subpartition_state=())
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


READS_BACK = "reads_back_equal"
DESCRIPTION = "the new files hold the records of the old ones, in the same key groups"


def prove_conversion(plan: ConversionPlan, written: Sequence[WrittenState], run: Runner) -> ProofReport | None:
    """Compare the digests of the new files with those of the old ones, and make the report of the proof.

    Args:
        plan: plan of the conversion.
        written: results of its tasks, in their order.
        run: runs tasks and returns their results in order.

    Returns:
        The report; None if no new file was read back.

    Raises:
        StateError: an old file cannot be read.
    """
    started = time.monotonic()
    pairs = [pair for pair in zip(plan.tasks, written, strict=True) if pair[1].read_back is not None]
    if not pairs:
        return None
    states = {key: StateProof(*key, True, *digests) for key, digests in _sum_sides(pairs).items()}
    counts = RecordCounts(sum(row.before.records for row in states.values()))
    failed: dict[tuple[str, str], StateProof] = {}
    rows: list[Sequence[DifferingRecord]] = []
    for task, result in pairs:
        for name, digest in result.states.items():
            # Compare each subtask by itself. Sums over all subtasks would hide records that are in a wrong subtask, and
            # a state without records that a file lacks: it adds nothing to a sum.
            if digest != (result.read_back or {}).get(name):
                failed[task.operator, name] = states[task.operator, name]
                file = task.open_written(result.handle)
                new = [] if file is None else [file]
                found, examples = find_differing_records(name, [task.source], new, run)
                counts += RecordCounts(0, found.differing, found.missing, found.unexpected, found.complete)
                rows.append(examples)
    check = make_state_check(READS_BACK, DESCRIPTION, tuple(states.values()), tuple(failed.values()), counts, rows)
    converted = {task.operator_id for task, _ in pairs}
    whole = check_source_whole(
        [each for each in plan.snapshot.operators if each.metadata.operator_id in converted], run
    )
    return ProofReport(
        ", ".join(dict.fromkeys(row.operator for row in states.values())),
        ", ".join(dict.fromkeys(row.state for row in states.values())),
        counts.compared,
        len({group for task, _ in pairs for group in task.key_groups}),
        (check,) if whole is None else (check, whole),
        time.monotonic() - started,
        sum(row.before.bytes for row in states.values()),
    )


def require_conversion(plan: ConversionPlan, written: Sequence[WrittenState], metadata: CheckpointMetadata) -> None:
    """Check that the new metadata name the files that the tasks wrote, and otherwise equal those of the plan.

    Args:
        plan: plan of the conversion.
        written: results of its tasks, in their order.
        metadata: metadata of the new snapshot, in which files that are copied still have their old names.

    Raises:
        ProofError: the metadata differ.
    """
    handles = {
        (task.operator_id, task.subtask): result.handle for task, result in zip(plan.tasks, written, strict=True)
    }

    def know(operator: OperatorState, each: SubtaskState) -> SubtaskState:
        handle = handles.get((operator.operator_id, each.index), each.managed_keyed_state)
        return replace(each, managed_keyed_state=handle)

    require_equal(
        metadata,
        plan.metadata.map_subtasks(know),
        str(plan.target),
        {each.metadata.operator_id: each.label for each in plan.snapshot.operators},
    )


def _sum_sides(
    pairs: Sequence[tuple[SubtaskConversion, WrittenState]],
) -> dict[tuple[str, str], tuple[RecordDigest, RecordDigest]]:
    """Add up, over all subtasks, (digest of the old files, digest of the new files) by (operator, state)."""
    totals: dict[tuple[str, str], tuple[RecordDigest, RecordDigest]] = {}
    for task, result in pairs:
        for name, digest in result.states.items():
            before, after = totals.get((task.operator, name), (RecordDigest(), RecordDigest()))
            totals[task.operator, name] = (before + digest, after + (result.read_back or {}).get(name, RecordDigest()))
    return totals


def sum_states(
    tasks: Sequence[SubtaskConversion], written: Sequence[WrittenState]
) -> tuple[tuple[str, str, RecordDigest], ...]:
    """Add up the digests of the old states over all subtasks: (operator, state, digest)."""
    totals: dict[tuple[str, str], RecordDigest] = {}
    for task, result in zip(tasks, written, strict=True):
        for name, digest in result.states.items():
            totals[task.operator, name] = totals.get((task.operator, name), RecordDigest()) + digest
    return tuple((operator, state, digest) for (operator, state), digest in totals.items())


@dataclass(frozen=True)
class ConversionResult:
    """Result of a conversion.

    Attributes:
        path: path of the new snapshot.
        states: (operator, state, digest) of the rewritten keyed states.
        converted: number of rewritten subtasks.
        copied: number of files that were copied or linked.
        bytes: bytes written and copied.
        notes: remarks for the user, for instance on state that the new format stores in another way.
        verified: whether rewritten state was read back and compared; None if no state was rewritten.
        seconds: wall time.
        checksums: whether every copied file was read again and compared.
        removed: number of files of the old snapshot that were removed; None if it stays.
        proof: comparison of the new files with the old ones; None if no new file was read back.
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


@takes(ConversionRequest)
def convert(
    snapshot: Snapshot | str,
    target: str,
    format: Format | str = Format.CANONICAL,
    *,
    verify: bool = True,
    checksums: bool = False,
    move: bool = False,
    processes: int = 1,
    run: Runner | None = None,
    **keywords: Unpack[ConversionKeywords],
) -> ConversionResult:
    """Write a new snapshot with the same state in another format, directory or compression.

    Args:
        snapshot: the old snapshot, or its path; it is not changed unless it is moved.
        target: directory of the new snapshot, which must not exist.
        format: `canonical`, `heap`, `rocksdb`, or `keep` for copies of the files as they are.
        verify: read the written files back and compare them with the old ones before the snapshot is published.
        checksums: read every copied file again and compare its checksum.
        move: remove the old snapshot once the new one is published and every copy has been compared.
        processes: number of processes that share the work; with more than one, the main module of a script must be
            guarded by `if __name__ == "__main__":`.
        run: runs the tasks in place of processes, such as `spark.tasks.run_tasks` with a session.
        keywords: the other fields of `ConversionRequest`.

    Raises:
        UnsupportedError: the snapshot holds state that the format cannot store; nothing is left at the target.
        ProofError: the written state differs from the old state; nothing is left at the target.
        TargetExistsError: the target exists.
        UsageError: an argument is not one of the words above, files cannot be linked, or a move would leave files
            unchecked or referenced.
        StateError: the snapshot cannot be read.
    """
    request = read_keywords(ConversionRequest, {"format": format, **keywords}, "the conversion")
    source, location = ensure_open(snapshot), resolve(target)
    plan = plan_conversion(source, location, request, verify=verify, checksums=checksums, move=move)
    with choose_runner(run, processes) as runner:
        return run_conversion(plan, runner)


def _remove_source(plan: ConversionPlan) -> int | None:
    """Remove the old snapshot if it was moved; return the number of removed files, or None."""
    if plan.removal is None:
        return None
    try:
        return plan.removal.run()
    except StateError as error:
        error.hint = f"The new snapshot {plan.target} is complete; remove what is left of the old one"
        raise


def run_conversion(plan: ConversionPlan, run: Runner | None = None) -> ConversionResult:
    """Execute a plan: write, prove and publish the new snapshot; arguments and errors as for `convert`."""
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
