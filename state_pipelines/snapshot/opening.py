"""Opening a snapshot: reads `_metadata` and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.metadata import read_metadata
from state_pipelines.snapshot.snapshot import Snapshot
from state_pipelines.storage import PathMapping, parse_path_mapping, read_file, resolve_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.codecs.kryo.fieldlists import FieldLists


def open_snapshot(
    path: str,
    *,
    path_mapping: PathMapping | Iterable[str] = (),
    uids: Iterable[str] = (),
    classes: FieldLists | None = None,
) -> Snapshot:
    """Open a checkpoint or savepoint.

    Args:
        path: directory of the snapshot or its `_metadata` file; local path or fsspec URL.
        path_mapping: `FROM=TO` texts for directories that were moved (absolute handles name them).
        uids: operator uids, to name the operators of snapshots that store only hashes (before Flink 2.0).
        classes: fields of classes that the snapshot does not describe (see `codecs.kryo.load_classes`): those behind
            Kryo, and subclasses of POJOs in snapshots of the heap backend.

    Raises:
        NotFoundError: there is no snapshot.
        FormatError: `_metadata` is not what the format says.
        UnsupportedError: a metadata version that is not known.
    """
    location = resolve_snapshot(path)
    mapping = path_mapping if isinstance(path_mapping, PathMapping) else parse_path_mapping(path_mapping)
    metadata = read_metadata(read_file(location.metadata), str(location.metadata))
    return Snapshot(location, metadata, mapping, tuple(uids), classes)
