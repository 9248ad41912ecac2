"""Snapshots on any storage that fsspec reaches: found, read, listed, written and published.

Paths come in the forms that Flink writes (`file:/a/b`, `s3://bucket/a`) and as plain local paths. Only this package
talks to fsspec.
"""

from __future__ import annotations

from state_pipelines.storage.files import (
    FileEntry,
    copy_file,
    create_file,
    exists,
    file_size,
    is_directory,
    list_directory,
    open_file,
    read_file,
    replace_file,
)
from state_pipelines.storage.listing import list_files
from state_pipelines.storage.locations import Location, join, parent
from state_pipelines.storage.reading import read_range
from state_pipelines.storage.resolution import (
    PathMapping,
    load_storage_options,
    parse_path_mapping,
    resolve,
    resolve_beside,
    use_storage_options,
)
from state_pipelines.storage.snapshot_writer import (
    METADATA_FILE,
    SnapshotLocation,
    SnapshotWriter,
    read_metadata_file,
    resolve_snapshot,
)

__all__ = [
    "METADATA_FILE",
    "FileEntry",
    "Location",
    "PathMapping",
    "SnapshotLocation",
    "SnapshotWriter",
    "copy_file",
    "create_file",
    "exists",
    "file_size",
    "is_directory",
    "join",
    "list_directory",
    "list_files",
    "load_storage_options",
    "open_file",
    "parent",
    "parse_path_mapping",
    "read_file",
    "read_metadata_file",
    "read_range",
    "replace_file",
    "resolve",
    "resolve_beside",
    "resolve_snapshot",
    "use_storage_options",
]
