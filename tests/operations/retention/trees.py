"""Small trees of checkpoints and savepoints: real snapshots, installed where a test wants them."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.metadata import read_metadata, replace_stream_handles, write_metadata
from state_pipelines.metadata.handles import FileStateHandle, SegmentFileStateHandle
from state_pipelines.operations.retention import plan_retention

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.metadata import StreamReference
    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.operations.retention import RetentionPlan

DATA = Path(__file__).resolve().parents[2] / "data" / "types"
INCREMENTAL = DATA / "flink-1.20" / "rocksdb-incremental" / "66118ec2bdec60853755d7eb60512360"
JOB = INCREMENTAL.name
OTHER_JOB = "0123456789abcdef0123456789abcdef"
SAVEPOINT = DATA / "flink-1.20" / "heap" / "savepoint-b1f07a-79dd7bd926d0"
NATIVE = DATA / "flink-1.20" / "rocksdb-native" / "savepoint-5d2ba2-2e17e74d550e"
NOW = datetime.now(UTC)
OLD = timedelta(days=30)
UUIDS = tuple(f"{number:08x}-aaaa-4bbb-8ccc-{number:012x}" for number in range(1, 20))


def rewrite(metadata: Path, change: Callable[[str], str]) -> None:
    """Change the absolute paths in a `_metadata` file."""
    content = read_metadata(metadata.read_bytes())

    def replace(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if isinstance(handle, FileStateHandle):
            return FileStateHandle(change(handle.path), handle.size)
        if isinstance(handle, SegmentFileStateHandle):
            return SegmentFileStateHandle(
                change(handle.path), handle.start, handle.size, handle.scope, handle.logical_file_id
            )
        return handle

    metadata.write_bytes(write_metadata(replace_stream_handles(content, replace)))


def install_job(root: Path, source: Path = INCREMENTAL, *, job: str = "", url: str = "") -> Path:
    """Copy the checkpoints of a job below a root, whose files then name this root.

    Args:
        root: the root.
        source: directory of a job.
        job: new job id.
        url: how `_metadata` names the root; its path by default.
    """
    target = root / (job or source.name)
    shutil.copytree(source, target)
    for metadata in target.glob("chk-*/_metadata"):
        rewrite(metadata, lambda path: f"{url or root}/{target.name}/{path.partition(source.name + '/')[2]}")
    set_age(target, OLD)
    return target


def install_savepoint(root: Path, source: Path = SAVEPOINT, *, name: str = "", age: timedelta = OLD) -> Path:
    """Copy a savepoint below a root."""
    target = root / (name or source.name)
    shutil.copytree(source, target)
    set_age(target, age)
    return target


def put(path: Path, data: bytes = b"state", age: timedelta = OLD) -> Path:
    """Write a file of some age; directories above it get the age too."""
    made = []
    parent = path.parent
    while not parent.exists():
        made.append(parent)
        parent = parent.parent
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    for each in (path, *made):
        set_age(each, age)
    return path


def set_age(path: Path, age: timedelta) -> None:
    """Set the age of a file, or of a directory and all in it."""
    time = (NOW - age).timestamp()
    if path.is_dir():
        for each in path.rglob("*"):
            os.utime(each, (time, time), follow_symlinks=False)
    os.utime(path, (time, time))


def plan(*roots: Path | str, **options: object) -> RetentionPlan:
    """The plan of some roots."""
    return plan_retention([str(root) for root in roots], **options)  # type: ignore[arg-type]


def deleted(result: RetentionPlan) -> list[str]:
    """The paths that go, in order."""
    return [path.path for path in result.delete]


def kept_reason(result: RetentionPlan, path: Path) -> str:
    """Why a path stays."""
    return next(each.reason for each in result.keep if each.path == str(path))
