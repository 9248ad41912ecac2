"""Opening a snapshot: reads `_metadata` and nothing else."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from state_pipelines.metadata import read_metadata
from state_pipelines.snapshot.declarations import Declarations
from state_pipelines.snapshot.snapshot import Snapshot
from state_pipelines.storage import PathMapping, parse_path_mapping, read_metadata_file, resolve
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import do_together
from state_pipelines.storage.snapshot_listing import read_metadata_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from state_pipelines.codecs.kryo.classes import FieldLists
    from state_pipelines.storage import SnapshotLocation


def open_snapshot(
    path: str,
    declarations: Declarations | None = None,
    *,
    path_mapping: PathMapping | Iterable[str] = (),
    allow_roots: Iterable[str] = (),
    uids: Iterable[str] = (),
    classes: FieldLists | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Open a checkpoint or savepoint.

    Args:
        path: directory of the snapshot or its `_metadata` file; local path or fsspec URL.
        declarations: information that the snapshot does not hold; `declare` parses them from texts.
        path_mapping: `FROM=TO` texts for directories that were moved (absolute handles name them).
        allow_roots: further directories that its files may be in. By default these are its own directory, for a
            checkpoint those of its job (`storage.resolution`), and the new ones of `path_mapping`.
        uids: added to those of `declarations`.
        classes: replaces the classes of `declarations`.
        storage_options: options of the fsspec file system, such as `key` and `secret` of S3; they are added to those
            of `use_storage_options`.

    Raises:
        NotFoundError: there is no snapshot.
        FormatError: `_metadata` is not what the format says.
        UnsupportedError: a metadata version that is not known.
        StorageError: the storage fails or refuses.
    """
    location, raw = read_metadata_file(path, **(storage_options or {}))
    mapping = path_mapping if isinstance(path_mapping, PathMapping) else parse_path_mapping(path_mapping)
    known = declarations or Declarations()
    known = replace(known, uids=(*known.uids, *uids), classes=known.classes if classes is None else classes)
    return Snapshot(location, read_metadata(raw, str(location.metadata)), mapping.allow(allow_roots), known)


def ensure_open(snapshot: Snapshot | str) -> Snapshot:
    """Open the snapshot at a path as `open_snapshot` does; return an open one unchanged."""
    return open_snapshot(snapshot) if isinstance(snapshot, str) else snapshot


def open_together(*snapshots: Snapshot | str) -> list[Snapshot]:
    """Open snapshots as `ensure_open`, and the files that the layouts of their states depend on, at the same time."""

    def read(snapshot: Snapshot | str) -> Snapshot:
        opened = ensure_open(snapshot)
        opened.read_headers()
        return opened

    roots = (resolve(each) if isinstance(each, str) else each.location.directory for each in snapshots)
    remote = next((each for each in roots if not is_local(each)), None)
    return do_together([partial(read, each) for each in snapshots], remote)


def open_location(
    location: SnapshotLocation, declarations: Declarations | None = None, *, path_mapping: PathMapping | None = None
) -> Snapshot:
    """Open a snapshot whose `_metadata` is known, for instance from a listing.

    Args:
        location: directory and `_metadata`.
        declarations: information that the snapshot does not hold.
        path_mapping: current directories of absolute handles, and further allowed ones.

    Raises:
        MissingFileError: there is no `_metadata`, or it cannot be read.
        FormatError: `_metadata` is not what the format says.
        UnsupportedError: a metadata version that is not known.
        StorageError: the storage fails or refuses.
    """
    metadata = read_metadata(read_metadata_bytes(location.metadata), str(location.metadata))
    return Snapshot(location, metadata, path_mapping or PathMapping(), declarations or Declarations())
