"""`convert`: the same state in another format, at another place, in files of its own.

What a format cannot carry is said before anything is written. Each subtask is one piece of work, so that any number of
processes can share it; what was written is read again and compared with what was there before `_metadata` is written.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.errors import ProofError, UnsupportedError, Where, at
from state_pipelines.keyed.canonical import CanonicalFile
from state_pipelines.keyed.digest import RecordDigest, digest_states
from state_pipelines.keyed.heap import HeapFile, HeapWriter
from state_pipelines.keyed.rocksdb import RocksFile, RocksWriter
from state_pipelines.metadata import CheckpointMetadata, CheckpointProperties, write_metadata
from state_pipelines.metadata.handles import KeyGroupsStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.keyed import (
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsSavepointStateHandle,
)
from state_pipelines.metadata.properties import SavepointFormatType, make_savepoint_properties
from state_pipelines.operations.publishing import FileCopy, make_file_name, place_keyed_state, plan_copies
from state_pipelines.operations.rewriting import FileRewrite
from state_pipelines.serializers.metainfo import StateKind
from state_pipelines.snapshot.handles import HandleReader
from state_pipelines.storage import Location, PathMapping, SnapshotWriter, create_file, join, resolve
from state_pipelines.storage.files import remove_file

if TYPE_CHECKING:
    from state_pipelines.keyed.files import KeyedFile, RecordContext
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.metadata import SubtaskState
    from state_pipelines.metadata.key_groups import KeyGroupRange
    from state_pipelines.snapshot import Operator, Snapshot


class Format(Enum):
    """Formats that can be written, by the word that users say."""

    CANONICAL = "canonical"
    HEAP = "heap"
    ROCKSDB = "rocksdb"
    KEEP = "keep"


class InFlight(Enum):
    """What becomes of the in-flight data of an unaligned checkpoint."""

    REFUSE = "refuse"
    KEEP = "keep"
    DROP = "drop"


@dataclass(frozen=True)
class WrittenState:
    """What was written of one subtask.

    Attributes:
        handle: for the metadata; its files are relative to the target.
        states: digest of each state.
        size: bytes written.
    """

    handle: KeyedStateHandle
    states: dict[str, RecordDigest]
    size: int


@dataclass(frozen=True)
class SubtaskConversion:
    """The keyed state of one subtask in its new format: one piece of work.

    Attributes:
        operator_id: of the operator.
        place: label of the operator, for errors.
        subtask: index of the subtask.
        source: the old state.
        header: the new header.
        format: the new format.
        key_groups: range of the subtask.
        context: of the operator.
        target: directory of the new snapshot.
        checkpoint_id: of the snapshot.
        verify: read the new files again.
    """

    operator_id: bytes
    place: str
    subtask: int
    source: KeyedFile
    header: KeyedHeader
    format: Format
    key_groups: KeyGroupRange
    context: RecordContext
    target: Location
    checkpoint_id: int
    verify: bool = True

    def run(self) -> WrittenState:
        """Write it, and read it again.

        Raises:
            ProofError: what was written is not what was there.
            StateError: the old state cannot be read.
        """
        with at(operator=self.place):
            handle, size = _WRITERS[self.format](self)
            before = digest_states(self.source, self.context, self.key_groups)
            if self.verify:
                again = HandleReader(self.target, PathMapping()).open_keyed(handle)
                after = {} if again is None else digest_states(again, self.context, self.key_groups)
                if before != after:
                    changed = ", ".join(sorted(name for name in before if before[name] != after.get(name)))
                    raise ProofError(
                        f"subtask {self.subtask}: what was written of {changed} is not what was there",
                        where=Where(operator=self.place),
                        hint="Nothing was published; please report this",
                    )
        return WrittenState(handle, before, size)


def _write_canonical(task: SubtaskConversion) -> tuple[KeyedStateHandle, int]:
    place = join(task.target, make_file_name())
    states = tuple((each, each) for each in range(len(task.header.states)))
    rewrite = FileRewrite(task.subtask, task.source, task.header, states, (), task.key_groups, task.context, place)
    written = rewrite.run()
    stream = RelativeFileStateHandle(place.name, written.size)
    return KeyGroupsSavepointStateHandle(task.key_groups, written.offsets, stream), written.size


def _write_heap(task: SubtaskConversion) -> tuple[KeyedStateHandle, int]:
    place = join(task.target, make_file_name())
    # Whatever an attempt that died has left is ours: nobody else knows the name.
    remove_file(place)
    with create_file(place) as output:
        writer = HeapWriter(output, task.header, task.key_groups, task.context)
        found = task.source.scan_key_groups(task.context, task.key_groups)
        pending = next(found, None)
        for key_group in task.key_groups:
            runs = []
            if pending is not None and pending[0] == key_group:
                runs, pending = pending[1], next(found, None)
            writer.write_key_group(key_group, runs)
    stream = RelativeFileStateHandle(place.name, writer.size)
    handle = KeyGroupsStateHandle(task.key_groups, writer.offsets, stream, state_handle_id=str(uuid.uuid4()))
    return handle, writer.size


def _write_rocksdb(task: SubtaskConversion) -> tuple[KeyedStateHandle, int]:
    with tempfile.TemporaryDirectory() as directory:
        writer = RocksWriter(Path(directory, "db"), task.header, task.context)
        writer.write(task.source, task.key_groups)
        meta = _put(task.target, writer.meta)
        files = tuple(HandleAndLocalPath(path.name, _upload(task.target, path)) for path in writer.files)
    size = meta.size + sum(file.handle.size for file in files if isinstance(file.handle, RelativeFileStateHandle))
    handle = IncrementalRemoteKeyedStateHandle(
        checkpoint_id=task.checkpoint_id,
        backend_identifier=str(uuid.uuid4()),
        key_groups=task.key_groups,
        meta_data_state=meta,
        shared_state=(),
        private_state=files,
        persisted_size=size,
        state_handle_id=str(uuid.uuid4()),
    )
    return handle, size


_WRITERS = {Format.CANONICAL: _write_canonical, Format.HEAP: _write_heap, Format.ROCKSDB: _write_rocksdb}


def _put(target: Location, data: bytes) -> RelativeFileStateHandle:
    place = join(target, make_file_name())
    with create_file(place) as output:
        output.write(data)
    return RelativeFileStateHandle(place.name, len(data))


def _upload(target: Location, path: Path) -> RelativeFileStateHandle:
    place = join(target, make_file_name())
    with path.open("rb") as source, create_file(place) as output:
        while piece := source.read(_PIECE):
            output.write(piece)
    return RelativeFileStateHandle(place.name, path.stat().st_size)


_PIECE = 8 << 20


@dataclass(frozen=True)
class ConversionPlan:
    """What a conversion does.

    Attributes:
        snapshot: the old snapshot.
        metadata: its metadata without what is dropped.
        tasks: the subtasks whose keyed state is written anew.
        properties: of the new snapshot.
        notes: what the new format does not carry as the old one did.
    """

    snapshot: Snapshot
    metadata: CheckpointMetadata
    tasks: tuple[SubtaskConversion, ...]
    properties: CheckpointProperties | None
    notes: tuple[str, ...]

    def assemble(self, written: Sequence[WrittenState], target: Location) -> tuple[CheckpointMetadata, list[FileCopy]]:
        """Metadata of the new snapshot, and the files that go there as they are."""
        by_operator: dict[bytes, dict[int, KeyedStateHandle]] = {}
        for task, result in zip(self.tasks, written, strict=True):
            by_operator.setdefault(task.operator_id, {})[task.subtask] = result.handle
        metadata = self.metadata
        for operator_id, handles in by_operator.items():
            metadata = place_keyed_state(metadata, operator_id, handles)
        return plan_copies(self.snapshot, metadata, target, self.properties)


def plan_conversion(
    snapshot: Snapshot,
    target: Location,
    format: Format,
    *,
    compress: bool | None = None,
    in_flight: InFlight = InFlight.REFUSE,
    verify: bool = True,
) -> ConversionPlan:
    """Decide what is written anew and what is copied.

    Args:
        snapshot: the old snapshot.
        target: directory of the new one.
        format: of keyed state; with `KEEP` every file is copied as it is.
        compress: snappy compression of canonical and heap files; None keeps what each subtask has.
        in_flight: what becomes of in-flight data, which savepoints do not carry.
        verify: read what was written again.

    Raises:
        UnsupportedError: the snapshot holds what the format cannot carry.
    """
    notes: list[str] = []
    metadata = _plan_in_flight(snapshot, in_flight, notes)
    tasks = []
    for operator in snapshot.operators:
        with at(operator=operator.label):
            for subtask in operator.metadata.subtasks:
                task = _plan_subtask(operator, subtask, target, format, compress, verify=verify)
                if task is not None:
                    tasks.append(task)
            if format is Format.ROCKSDB:
                notes += _note_timers(operator, tasks)
    return ConversionPlan(
        snapshot, metadata, tuple(tasks), _choose_properties(snapshot, metadata, format), tuple(notes)
    )


def _plan_subtask(
    operator: Operator,
    subtask: SubtaskState,
    target: Location,
    format: Format,
    compress: bool | None,
    *,
    verify: bool,
) -> SubtaskConversion | None:
    handle = subtask.managed_keyed_state
    if handle is None or format is Format.KEEP:
        return None
    source = operator.snapshot.handles.open_keyed(handle)
    assert source is not None
    compressed = source.header.compressed if compress is None else compress
    header = replace(source.header, compressed=compressed and format is not Format.ROCKSDB)
    if isinstance(source, _FILES[format]) and source.header == header:
        return None
    for info in header.states:
        if info.kind not in (StateKind.KEY_VALUE, StateKind.PRIORITY_QUEUE):
            raise UnsupportedError(f"{info.kind} state is not written", where=Where(state=info.name))
    return SubtaskConversion(
        operator_id=operator.metadata.operator_id,
        place=operator.label,
        subtask=subtask.index,
        source=source,
        header=header,
        format=format,
        key_groups=handle.key_groups,
        context=operator.record_context,
        target=target,
        checkpoint_id=operator.snapshot.checkpoint_id,
        verify=verify,
    )


_FILES: dict[Format, type] = {Format.CANONICAL: CanonicalFile, Format.HEAP: HeapFile, Format.ROCKSDB: RocksFile}


def _note_timers(operator: Operator, tasks: list[SubtaskConversion]) -> list[str]:
    mine = [task for task in tasks if task.operator_id == operator.metadata.operator_id]
    if any(info.kind is StateKind.PRIORITY_QUEUE for task in mine for info in task.header.states):
        return [
            f"operator {operator.label} has timers: a job that keeps its timers on the heap "
            "(state.backend.rocksdb.timer-service.factory: HEAP) does not find them in this format"
        ]
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
            hint="Keep it, and the result is a checkpoint as before (keep), or lose these records (drop)",
        )
    if choice is InFlight.KEEP:
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
    native = format in (Format.HEAP, Format.ROCKSDB)
    if format is Format.KEEP:
        handles = [each.managed_keyed_state for operator in metadata.operator_states for each in operator.subtasks]
        native = any(each is not None and not isinstance(each, KeyGroupsSavepointStateHandle) for each in handles)
    return make_savepoint_properties(SavepointFormatType.NATIVE if native else SavepointFormatType.CANONICAL)


@dataclass(frozen=True)
class ConversionResult:
    """What a conversion did.

    Attributes:
        path: the new snapshot.
        states: (operator, state, digest) of the keyed states that were written anew.
        converted: subtasks that were written anew.
        copied: files that were copied.
        bytes: written and copied.
        notes: what the new format does not carry as the old one did.
        seconds: wall time.
    """

    path: str
    states: tuple[tuple[str, str, RecordDigest], ...]
    converted: int
    copied: int
    bytes: int
    notes: tuple[str, ...]
    seconds: float


Runner = Callable[[Sequence[SubtaskConversion | FileCopy], str], list[object]]
"""Runs pieces of work and gives their results in order; the text says what failed."""


def convert(
    snapshot: Snapshot,
    target: str,
    format: Format | str = Format.CANONICAL,
    *,
    compress: bool | None = None,
    in_flight: InFlight | str = InFlight.REFUSE,
    verify: bool = True,
    run: Runner | None = None,
) -> ConversionResult:
    """Write a snapshot of its own with the same state: other format, other place, other compression.

    Args:
        snapshot: the old snapshot; it is not touched.
        target: directory of the new one, which must not exist.
        format: `canonical`, `heap`, `rocksdb`, or `keep` for copies of the files as they are.
        compress: snappy compression of canonical and heap files; None keeps what each subtask has.
        in_flight: `refuse`, `keep` or `drop` the in-flight data of an unaligned checkpoint.
        verify: read what was written again and compare before it is published.
        run: runs the pieces of work; default one after the other in this process.

    Raises:
        UnsupportedError: the snapshot holds what the format cannot carry; nothing was written.
        ProofError: what was written is not what was there; nothing is left at the target.
        TargetExistsError: there is something at the target.
        StateError: the snapshot cannot be read.
    """
    started = time.monotonic()
    place = resolve(target)
    plan = plan_conversion(
        snapshot, place, Format(format), compress=compress, in_flight=InFlight(in_flight), verify=verify
    )
    run = run or run_here
    with SnapshotWriter(place) as writer:
        written = [each for each in run(plan.tasks, "keyed state cannot be written") if isinstance(each, WrittenState)]
        metadata, copies = plan.assemble(written, writer.target)
        copied = [each for each in run(copies, "files cannot be copied") if isinstance(each, int)]
        writer.publish(write_metadata(metadata))
    return ConversionResult(
        str(place),
        _sum_states(plan.tasks, written),
        len(written),
        len(copied),
        sum(each.size for each in written) + sum(copied),
        plan.notes,
        time.monotonic() - started,
    )


def run_here(tasks: Sequence[SubtaskConversion | FileCopy], what: str) -> list[object]:
    """Run pieces of work one after the other."""
    return [task.run() for task in tasks]


def _sum_states(
    tasks: Sequence[SubtaskConversion], written: Sequence[WrittenState]
) -> tuple[tuple[str, str, RecordDigest], ...]:
    totals: dict[tuple[str, str], RecordDigest] = {}
    for task, result in zip(tasks, written, strict=True):
        for name, digest in result.states.items():
            old = totals.get((task.place, name), RecordDigest(0, 0, 0))
            totals[task.place, name] = RecordDigest(
                old.records + digest.records, old.bytes + digest.bytes, (old.digest + digest.digest) % (1 << 64)
            )
    return tuple((operator, state, digest) for (operator, state), digest in totals.items())
