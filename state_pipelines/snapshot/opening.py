"""Opening a snapshot: reads `_metadata` and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.metadata import read_metadata
from state_pipelines.snapshot.declarations import Declarations
from state_pipelines.snapshot.snapshot import Snapshot
from state_pipelines.storage import PathMapping, parse_path_mapping, read_file, resolve_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.codecs.kryo.fieldlists import FieldLists


def open_snapshot(
    path: str,
    declarations: Declarations | None = None,
    *,
    path_mapping: PathMapping | Iterable[str] = (),
    uids: Iterable[str] = (),
    classes: FieldLists | None = None,
) -> Snapshot:
    """Open a checkpoint or savepoint.

    Args:
        path: directory of the snapshot or its `_metadata` file; local path or fsspec URL.
        declarations: facts that the snapshot does not hold; `declare` parses them from texts.
        path_mapping: `FROM=TO` texts for directories that were moved (absolute handles name them).
        uids: added to those of `declarations`.
        classes: replaces the classes of `declarations`.

    Raises:
        NotFoundError: there is no snapshot.
        FormatError: `_metadata` is not what the format says.
        UnsupportedError: a metadata version that is not known.
    """
    location = resolve_snapshot(path)
    mapping = path_mapping if isinstance(path_mapping, PathMapping) else parse_path_mapping(path_mapping)
    known = declarations or Declarations()
    known = replace(known, uids=(*known.uids, *uids), classes=known.classes if classes is None else classes)
    metadata = read_metadata(read_file(location.metadata), str(location.metadata))
    return Snapshot(location, metadata, mapping, known)
