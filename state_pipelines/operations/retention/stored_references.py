"""References that an earlier plan has read, in one Parquet file; a row per snapshot."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from state_pipelines.errors import FormatError, MissingFileError
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.retention.policy import SnapshotFormat
from state_pipelines.operations.retention.references import KnownReferences, SnapshotReferences
from state_pipelines.storage import read_file, replace_file
from state_pipelines.storage.documents import MOST_LINES
from state_pipelines.storage.locations import is_local

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from state_pipelines.operations.retention.path_keys import PathKeys
    from state_pipelines.operations.retention.references import MetadataFile
    from state_pipelines.storage import Location, PathMapping

_VERSION = 1
_SETTINGS_KEY = b"state-pipelines.references"
_IDENTITY = ("path", "directory_key", "size", "modified")
_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("directory_key", pa.string()),
        ("size", pa.int64()),
        ("modified", pa.timestamp("us", "UTC")),
        ("checkpoint_id", pa.int64()),
        ("kind", pa.string()),
        ("formats", pa.list_(pa.string())),
        ("files", pa.list_(pa.string())),
        ("texts", pa.list_(pa.string())),
        ("least_sizes", pa.list_(pa.int64())),
        ("found_sizes", pa.list_(pa.int64())),
        ("directories", pa.list_(pa.string())),
        ("has_write_ahead_log", pa.bool_()),
        ("restorable", pa.bool_()),
    ]
)


class StoredReferences:
    """A file of references; it is read whole and replaced whole, and has only snapshots of the newest plan.

    Snapshots on this machine are not stored: links, by which their files may be named, can change.

    Args:
        location: the file.
        keys: the one spelling of paths.
        path_mapping: current directories of absolute handles.
        roots: keys of the roots.
    """

    def __init__(self, location: Location, keys: PathKeys, path_mapping: PathMapping, roots: Iterable[str]) -> None:
        self._location = location
        settings = [_VERSION, keys.equal_schemes, keys.equal_authorities, repr(path_mapping), sorted(roots)]
        self._settings = sha256(json.dumps(settings).encode()).hexdigest().encode()
        self._rows: list[dict[str, Any]] = []
        self._known: dict[tuple[object, ...], KnownReferences] = {}

    def load(self) -> None:
        """Read the file; one that does not exist, is damaged, or was written with other settings has no references."""
        try:
            table = pq.read_table(pa.BufferReader(read_file(self._location, most=MOST_LINES)))
        except (FormatError, MissingFileError, pa.ArrowException, OSError):
            # Arrow raises `OSError` for pages that it cannot decode.
            return
        if (table.schema.metadata or {}).get(_SETTINGS_KEY) == self._settings and table.schema == _SCHEMA:
            rows = table.to_pylist()
            try:
                self._known = {tuple(row[name] for name in _IDENTITY): _to_known(row) for row in rows}
            except (TypeError, ValueError):
                # Arrow does not notice all damage.
                return
            self._rows = rows

    def find(self, file: MetadataFile) -> KnownReferences | None:
        """The references of a `_metadata` file that has this size and time; None when they are not known."""
        return self._known.get(tuple(getattr(file, name) for name in _IDENTITY))

    def save(self, known: Iterable[tuple[MetadataFile, KnownReferences]]) -> None:
        """Replace the file if references have changed.

        Raises:
            StateError: the storage refuses.
        """
        # Without a time, a `_metadata` file may be another one by now.
        chosen = (each for each in known if each[0].modified is not None and not is_local(each[0].location))
        rows = sorted((_to_row(file, *each) for file, each in chosen), key=lambda row: str(row["path"]))
        if rows == self._rows:
            return
        table = pa.Table.from_pylist(rows, _SCHEMA.with_metadata({_SETTINGS_KEY: self._settings}))
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        replace_file(self._location, sink.getvalue().to_pybytes())


def _to_row(file: MetadataFile, reading: SnapshotReferences, found_sizes: tuple[int | None, ...]) -> dict[str, Any]:
    return {
        "path": file.path,
        "directory_key": file.directory_key,
        "size": file.size,
        "modified": file.modified,
        "checkpoint_id": reading.checkpoint_id,
        "kind": reading.kind,
        "formats": sorted(reading.formats),
        "files": list(reading.files),
        "texts": [reading.texts.get(name) for name in reading.files],
        "least_sizes": list(reading.files.values()),
        "found_sizes": list(found_sizes),
        "directories": sorted(reading.directories),
        "has_write_ahead_log": reading.has_write_ahead_log,
        "restorable": reading.restorable,
    }


def _to_known(row: Mapping[str, Any]) -> KnownReferences:
    texts = zip(row["files"], row["texts"], strict=True)
    reading = SnapshotReferences(
        row["checkpoint_id"],
        SnapshotKind(row["kind"]),
        frozenset(map(SnapshotFormat, row["formats"])),
        dict(zip(row["files"], row["least_sizes"], strict=True)),
        {name: text for name, text in texts if text is not None},
        frozenset(row["directories"]),
        row["has_write_ahead_log"],
        row["restorable"],
    )
    return KnownReferences(reading, tuple(row["found_sizes"]))
