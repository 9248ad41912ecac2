"""Snapshots with many handles or many files; of their state only the headers are there, the rest is a hole."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Writer
from state_pipelines.keyed.header import KeyedHeader, write_keyed_header
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.metadata import CheckpointMetadata, OperatorState, compute_operator_id, write_metadata
from state_pipelines.metadata.checkpoint import (
    CheckpointType,
    SavepointFormatType,
    SubtaskState,
    make_checkpoint_properties,
    make_savepoint_properties,
)
from state_pipelines.metadata.handles import (
    FileStateHandle,
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    KeyGroupsSavepointStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.rocksdb import DatabaseWriter
from state_pipelines.serializers.build import VOID_NAMESPACE, basic
from state_pipelines.serializers.state_meta_info import keyed_state
from tests.snapshot.built import write_list_state

if TYPE_CHECKING:
    from pathlib import Path

MAX_PARALLELISM = 1024
STATES = ("total", "last-order", "recent")


def write_keyed_savepoint(directory: Path, operators: int, subtasks: int, *, size: int = 1 << 16) -> None:
    """A canonical savepoint: a file of `size` bytes for each subtask, and a source with inlined list state.

    Args:
        directory: is made.
        operators: with keyed state.
        subtasks: of each.
        size: of a file; most of it is a hole.
    """
    directory.mkdir()
    keyed = [_write_operator(directory, number, subtasks, size) for number in range(operators)]
    readers = tuple(
        SubtaskState(index, managed_operator_state=write_list_state("SourceReaderState", [b"split"]))
        for index in range(subtasks)
    )
    source = OperatorState(compute_operator_id("source"), subtasks, MAX_PARALLELISM, readers, "Source", "source")
    properties = make_savepoint_properties(SavepointFormatType.CANONICAL)
    metadata = CheckpointMetadata(6, 1, (), (source, *keyed), properties)
    (directory / "_metadata").write_bytes(write_metadata(metadata))


def write_incremental_checkpoint(directory: Path, operators: int, subtasks: int, files: int) -> None:
    """A checkpoint of RocksDB: `files` shared files for each subtask, all named by their absolute paths.

    The databases are without entries, so that no shared file has to be there.
    """
    directory.mkdir()
    header = _header()
    with DatabaseWriter(directory / "database", STATES) as database:
        private = database.finish()
    writer = Writer()
    write_keyed_header(writer, header)
    meta = directory / "database" / "meta"
    meta.write_bytes(writer.getvalue())
    shared = f"file:{directory}/shared"
    made = []
    for number in range(operators):
        states = []
        for subtask in range(subtasks):
            place = f"{number:04x}-{subtask:04x}"
            own = directory / place
            own.mkdir()
            for path in (meta, *private):
                (own / path.name).hardlink_to(path)
            handle = IncrementalRemoteKeyedStateHandle(
                1,
                f"00000000-0000-0000-{place}-000000000000",
                compute_key_group_range(subtask, subtasks, MAX_PARALLELISM),
                _file(own / meta.name),
                tuple(
                    HandleAndLocalPath(
                        f"{file:06d}.sst", FileStateHandle(f"{shared}/{place}-0000-{file:012x}", 1 << 26)
                    )
                    for file in range(files)
                ),
                tuple(HandleAndLocalPath(path.name, _file(own / path.name)) for path in private),
                0,
                f"handle-{place}",
            )
            states.append(SubtaskState(subtask, managed_keyed_state=handle))
        uid = f"operator-{number}"
        made.append(
            OperatorState(compute_operator_id(uid), subtasks, MAX_PARALLELISM, tuple(states), f"Operator {number}", uid)
        )
    properties = make_checkpoint_properties(CheckpointType())
    (directory / "_metadata").write_bytes(write_metadata(CheckpointMetadata(6, 1, (), tuple(made), properties)))


def _header() -> KeyedHeader:
    states = tuple(keyed_state(name, "VALUE", basic("Long"), VOID_NAMESPACE) for name in STATES)
    return KeyedHeader(key_serializer=basic("String"), states=states)


def _write_operator(directory: Path, number: int, subtasks: int, size: int) -> OperatorState:
    output = BytesIO()
    writer = Writer()
    write_keyed_header(writer, _header())
    output.write(writer.getvalue())
    head = output.getvalue()
    states = []
    for subtask in range(subtasks):
        key_groups = compute_key_group_range(subtask, subtasks, MAX_PARALLELISM)
        name = f"{number:04x}-{subtask:04x}"
        with (directory / name).open("wb") as file:
            file.write(head)
            file.truncate(size)
        offsets = tuple(len(head) + 100 * each for each in range(key_groups.number))
        handle = KeyGroupsSavepointStateHandle(key_groups, offsets, RelativeFileStateHandle(name, size))
        states.append(SubtaskState(subtask, managed_keyed_state=handle))
    uid = f"operator-{number}"
    return OperatorState(compute_operator_id(uid), subtasks, MAX_PARALLELISM, tuple(states), f"Operator {number}", uid)


def _file(path: Path) -> FileStateHandle:
    return FileStateHandle(f"file:{path}", path.stat().st_size)
