"""Full snapshots of a keyed state backend, in every format that Flink restores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.operations.convert.conversion_tasks import SubtaskConversion

if TYPE_CHECKING:
    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.metadata.handles import KeyedStateHandle
    from state_pipelines.operations.write.state_formats import Format
    from state_pipelines.storage import Location


@dataclass(frozen=True)
class KeyedSnapshot:
    """Files of one snapshot of one subtask.

    Attributes:
        handle: for the metadata; None when the backend has no state.
        size: bytes written.
    """

    handle: KeyedStateHandle | None
    size: int


def write_full_snapshot(
    backend: KeyedStateBackend,
    file_format: Format,
    directory: Location,
    name: str,
    checkpoint_id: int,
    *,
    compressed: bool = False,
) -> KeyedSnapshot:
    """Write all keyed state of a subtask.

    Args:
        backend: the live state; it must not change meanwhile.
        file_format: canonical, heap or rocksdb.
        directory: of the snapshot.
        name: of the new file, or what the names of several begin with; leftovers are replaced.
        checkpoint_id: of the snapshot.
        compressed: compress key groups (canonical and heap; RocksDB compresses its own blocks).

    Returns:
        The handle, whose files are relative to the directory.

    Raises:
        UnsupportedError: a record has no form in the format.
        StateError: a file cannot be written.
    """
    if not backend.states:
        return KeyedSnapshot(None, 0)
    file = backend.as_file(compressed=compressed)
    task = SubtaskConversion(
        operator_id=b"",
        operator="",
        subtask=0,
        source=file,
        header=file.header,
        format=file_format,
        key_groups=backend.key_groups,
        context=backend.context,
        target=directory,
        name=name,
        checkpoint_id=checkpoint_id,
    )
    return KeyedSnapshot(*task.write())
