"""File sinks: the open file of each bucket, and files that are to be committed.

Facts from `org.apache.flink.connector.file.sink.writer.FileWriterBucketStateSerializer` (version 3; 1 and 2 as
`StreamingFileSink` wrote them, in `org.apache.flink.streaming.api.functions.sink.filesystem.BucketStateSerializer`),
`org.apache.flink.connector.file.sink.FileSinkCommittableSerializer` (versions 1 and 2), and
`bucketassigners.SimpleVersionedStringSerializer` for the ids of buckets. Buckets whose ids are no strings are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.binary.data_views import Writer
from state_pipelines.connectors.connector_state import ConnectorStateKind
from state_pipelines.connectors.element_frames import (
    Versioned,
    check_name,
    expect_magic,
    read_flag,
    read_little_text,
    read_versioned,
    write_little_text,
    write_magic,
    write_optional,
    write_versioned,
)
from state_pipelines.connectors.recoverables import (
    InProgressFile,
    PendingFile,
    Recoverable,
    read_in_progress_file,
    read_pending_file,
    read_recoverable,
    target_path,
    write_in_progress_file,
    write_pending_file,
    write_recoverable,
)
from state_pipelines.connectors.registry import versioned_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.binary.data_views import Reader
    from state_pipelines.connectors.connector_state import Row

BUCKET_MAGIC = 0x1E764B79
COMMITTABLE_MAGIC = 0x1E765C80

BUCKET_COLUMNS = pa.schema(
    [
        pa.field("bucket", pa.string(), False),
        pa.field("bucket_path", pa.string(), False),
        pa.field("created", pa.timestamp("ms", tz="UTC")),
        pa.field("state", pa.string(), False),
        pa.field("file", pa.string()),
        pa.field("checkpoint_id", pa.int64()),
    ]
)
"""`state`: `open` for the bucket itself (`file` is null when it has none), `pending` for files to be committed."""

COMMITTABLE_COLUMNS = pa.schema(
    [
        pa.field("bucket", pa.string()),
        pa.field("action", pa.string(), False),
        pa.field("file", pa.string()),
        pa.field("size", pa.int64()),
    ]
)
"""`action`: `commit` a pending file, `clean up` an in-progress one, or `delete` one whose content was compacted."""


@dataclass(frozen=True)
class FileBucket:
    """State of one bucket.

    Attributes:
        version: 1 to 3.
        bucket: id of the bucket.
        path: its directory.
        created: when the open file was created, epoch milliseconds; Long.MAX_VALUE or -1 if there is none.
        open_file: the open file; in version 1 only the data of the file system.
        pending_version: version of the pending files; versions 1 and 2.
        pending: (checkpoint id, pending files) in the order of the bytes; versions 1 and 2, 3 has no such files.
    """

    version: int
    bucket: str
    path: str
    created: int
    open_file: InProgressFile | Recoverable | None = None
    pending_version: int | None = None
    pending: tuple[tuple[int, tuple[PendingFile | Recoverable, ...]], ...] = ()


@dataclass(frozen=True)
class FileCommittable:
    """A file to be committed, or one to be cleaned up.

    Attributes:
        version: 1, or 2 since 1.15.
        bucket: id of the bucket; stored in version 2.
        pending: to be committed.
        clean_up: in-progress file to be cleaned up.
        compacted: path of a file to be deleted, its content being in another one; version 2.
    """

    version: int
    bucket: str | None = None
    pending: PendingFile | None = None
    clean_up: InProgressFile | None = None
    compacted: str | None = None


def bucket_rows(bucket: FileBucket) -> Iterator[Row]:
    """Yield the rows of `BUCKET_COLUMNS`: the bucket, then its pending files."""
    head: Row = {"bucket": bucket.bucket, "bucket_path": bucket.path}
    created = bucket.created if bucket.open_file is not None else None
    yield {**head, "created": created, "state": "open", "file": _target(bucket.open_file)}
    for checkpoint_id, files in bucket.pending:
        for file in files:
            yield {**head, "state": "pending", "file": _target(file), "checkpoint_id": checkpoint_id}


def write_file_bucket(bucket: FileBucket) -> Versioned:
    """Write what `read_file_bucket` reads."""
    writer = Writer()
    write_magic(writer, BUCKET_MAGIC)
    text = Writer()
    write_little_text(text, bucket.bucket)
    write_versioned(writer, Versioned(1, text.getvalue()))
    writer.utf(bucket.path)
    writer.i64(bucket.created)
    writer.bool(bucket.open_file is not None)
    if bucket.open_file is not None:
        write_versioned(writer, _write_file(bucket.open_file))
    if bucket.version < 3:
        writer.i32(bucket.pending_version or 0)
        writer.i32(len(bucket.pending))
        for checkpoint_id, files in bucket.pending:
            writer.i64(checkpoint_id)
            writer.i32(len(files))
            for each in files:
                writer.bytes32(_write_file(each).data)
    return Versioned(bucket.version, writer.getvalue())


@versioned_state(
    "file",
    kind=ConnectorStateKind.WRITER,
    operator_state_names=["writer_raw_states", "bucket-states"],
    write=write_file_bucket,
    rows=bucket_rows,
    columns=BUCKET_COLUMNS,
)
def read_file_bucket(versioned: Versioned) -> FileBucket:
    """Read a bucket: magic, id, path, i64 time of creation, open file; in versions 1 and 2 the pending files.

    Raises:
        FormatError: it could not be one of a file sink.
        UnsupportedError: an unknown version.
    """
    version = versioned.version
    with versioned.open("a bucket of a file sink", 1, 2, 3) as reader:
        expect_magic(reader, BUCKET_MAGIC, "a bucket of a file sink")
        bucket, path, created = _read_bucket_id(reader), check_name(reader.utf(), "the path of a bucket"), reader.i64()
        open_file: InProgressFile | Recoverable | None = None
        if read_flag(reader):
            frame = read_versioned(reader)
            open_file = read_recoverable(frame) if version == 1 else read_in_progress_file(frame)
        pending_version, pending = None, []
        if version < 3:
            pending_version = reader.i32()
            for _ in range(reader.count(12)):
                checkpoint_id = reader.i64()
                frames = [Versioned(pending_version, reader.bytes32()) for _ in range(reader.count(4))]
                read = read_recoverable if version == 1 else read_pending_file
                pending.append((checkpoint_id, tuple(read(frame) for frame in frames)))
    return FileBucket(version, bucket, path, created, open_file, pending_version, tuple(pending))


def committable_rows(committable: FileCommittable) -> Iterator[Row]:
    """Yield the rows of `COMMITTABLE_COLUMNS`."""
    head = {"bucket": committable.bucket}
    if committable.pending is not None:
        yield {**head, "action": "commit", "file": _target(committable.pending), "size": committable.pending.size}
    if committable.clean_up is not None:
        yield {**head, "action": "clean up", "file": _target(committable.clean_up)}
    if committable.compacted is not None:
        yield {**head, "action": "delete", "file": committable.compacted}


def read_file_committable(versioned: Versioned) -> FileCommittable:
    """Read a committable: magic, in version 2 the bucket; then three files or none, the last one in version 2 only.

    Raises:
        FormatError: it could not be one of a file sink.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a committable of a file sink", 1, 2) as reader:
        expect_magic(reader, COMMITTABLE_MAGIC, "a committable of a file sink")
        bucket = reader.utf() if versioned.version > 1 else None
        pending = read_pending_file(read_versioned(reader)) if read_flag(reader) else None
        clean_up = read_in_progress_file(read_versioned(reader)) if read_flag(reader) else None
        compacted = reader.utf() if versioned.version > 1 and read_flag(reader) else None
    return FileCommittable(versioned.version, bucket, pending, clean_up, compacted)


def write_file_committable(committable: FileCommittable) -> Versioned:
    """Write what `read_file_committable` reads."""
    writer = Writer()
    write_magic(writer, COMMITTABLE_MAGIC)
    if committable.version > 1:
        writer.utf(committable.bucket or "")
    write_optional(writer, committable.pending, lambda file: write_versioned(writer, write_pending_file(file)))
    write_optional(writer, committable.clean_up, lambda file: write_versioned(writer, write_in_progress_file(file)))
    if committable.version > 1:
        write_optional(writer, committable.compacted, writer.utf)
    return Versioned(committable.version, writer.getvalue())


def _read_bucket_id(reader: Reader) -> str:
    with read_versioned(reader).open("the id of a bucket", 1) as inside:
        return read_little_text(inside)


def _write_file(file: InProgressFile | PendingFile | Recoverable) -> Versioned:
    match file:
        case InProgressFile():
            return write_in_progress_file(file)
        case PendingFile():
            return write_pending_file(file)
        case recoverable:
            return write_recoverable(recoverable)


def _target(file: InProgressFile | PendingFile | Recoverable | None) -> str | None:
    match file:
        case None:
            return None
        case InProgressFile() | PendingFile():
            return target_path(file)
        case recoverable:
            return target_path(InProgressFile(1, None, recoverable))
