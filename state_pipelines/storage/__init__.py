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
    find_files,
    is_directory,
    list_directory,
    open_file,
    read_file,
    read_range,
)
from state_pipelines.storage.locations import Location, join, parent, resolve, resolve_beside
from state_pipelines.storage.path_mapping import PathMapping, parse_path_mapping
from state_pipelines.storage.snapshot_location import METADATA_FILE, SnapshotLocation, resolve_snapshot
from state_pipelines.storage.snapshot_writer import SnapshotWriter

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
    "find_files",
    "is_directory",
    "join",
    "list_directory",
    "open_file",
    "parent",
    "parse_path_mapping",
    "read_file",
    "read_range",
    "resolve",
    "resolve_beside",
    "resolve_snapshot",
]
