"""State of sinks: unfinished files of file sinks, and committables that wait in committers, by checkpoint.

* `InProgressFile`, `PendingFile`: uncommitted files of a file sink, with the data that file system writers need to
  resume or commit them. Data of other writers are kept as bytes. Source:
  `org.apache.flink.streaming.api.functions.sink.filesystem.OutputStreamBasedPartFileWriter` (in-progress and pending
  files, versions 1 and 2), `org.apache.flink.core.fs.local.LocalRecoverableSerializer`,
  `org.apache.flink.runtime.fs.hdfs.HadoopRecoverableSerializer`,
  `org.apache.flink.fs.s3.common.writer.S3RecoverableSerializer` (version 1 each; their numbers are little-endian).
* `FileBucket`, `FileCommittable`: the open file of each bucket, and files that are to be committed. Buckets whose ids
  are no strings are not read. Source: `org.apache.flink.connector.file.sink.writer.FileWriterBucketStateSerializer`
  (version 3; 1 and 2 as `StreamingFileSink` wrote them, in
  `org.apache.flink.streaming.api.functions.sink.filesystem.BucketStateSerializer`),
  `org.apache.flink.connector.file.sink.FileSinkCommittableSerializer` (versions 1 and 2), and
  `bucketassigners.SimpleVersionedStringSerializer` for the ids of buckets.
* `Committables`: committables of any sink that are waiting in a committer, by checkpoint. Source:
  `org.apache.flink.streaming.runtime.operators.sink.committables`: `CommittableCollectorSerializer` (version 2;
  checkpoints version 0 and 1, subtasks 0 to 2, requests 0), `SinkV1CommittableDeserializer` (version 1, the state of
  1.13 and 1.14), `CommitRequestState`; the state name is that of `CommitterOperator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_pipelines.binary.data_views import Writer
from state_pipelines.connectors import kafka
from state_pipelines.connectors.registry import (
    ConnectorStateKind,
    Versioned,
    check_name,
    expect_magic,
    read_flag,
    read_versioned,
    read_versioned_list,
    require,
    versioned_state,
    write_little_magic,
    write_magic,
    write_optional,
    write_versioned,
    write_versioned_list,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.binary.data_views import Reader
    from state_pipelines.connectors.registry import Row

IN_PROGRESS_MAGIC = 0xB3A4073D
PENDING_MAGIC = 0x2C853C89
S3_MAGIC = 0x98761432
STREAM_MAGICS = {0x1E744B57: "local", 0xD7436C5E: "hadoop"}


@dataclass(frozen=True)
class StreamRecoverable:
    """A temporary file that becomes the target when it is renamed.

    Attributes:
        file_system: `local` or `hadoop`.
        offset: number of valid bytes in the temporary file.
        target: path of the target.
        temporary: path of the temporary file.
    """

    file_system: str
    offset: int
    target: str
    temporary: str


@dataclass(frozen=True)
class S3Recoverable:
    """A multipart upload to S3 that becomes the target when it is completed.

    Attributes:
        key: name of the object.
        upload_id: id of the upload.
        parts: (number, ETag) of each part.
        bytes_in_parts: total size of the parts.
        last_part: object with the data after the last of `parts`; None if there is none.
        last_part_size: size of that object, or -1.
    """

    key: str
    upload_id: str
    parts: tuple[tuple[int, str], ...]
    bytes_in_parts: int
    last_part: str | None
    last_part_size: int


Recoverable = StreamRecoverable | S3Recoverable | Versioned


@dataclass(frozen=True)
class InProgressFile:
    """A file to which a file sink is still writing.

    Attributes:
        version: 1 or 2.
        path: target, when it is stored (version 2).
        recoverable: the data of the file system.
    """

    version: int
    path: str | None
    recoverable: Recoverable


@dataclass(frozen=True)
class PendingFile:
    """A file that is complete but not committed.

    Attributes:
        version: 1 or 2.
        path: target, when it is stored (version 2).
        size: bytes; None in version 1.
        recoverable: the data of the file system.
    """

    version: int
    path: str | None
    size: int | None
    recoverable: Recoverable


def target_path(file: InProgressFile | PendingFile) -> str | None:
    """Return the final path of a file; None if it is not known."""
    match file.recoverable:
        case _ if file.path is not None:
            return file.path
        case StreamRecoverable(target=target):
            return target
        case S3Recoverable(key=key):
            return key
        case _:
            return None


def read_in_progress_file(versioned: Versioned) -> InProgressFile:
    """Read an in-progress file: magic, in version 2 the path, then the recoverable.

    Raises:
        FormatError: the bytes are something else.
        UnsupportedError: an unknown version.
    """
    with versioned.open("an in-progress file", 1, 2) as reader:
        expect_magic(reader, IN_PROGRESS_MAGIC, "an in-progress file")
        path = reader.utf() if versioned.version > 1 and read_flag(reader) else None
        return InProgressFile(versioned.version, path, read_recoverable(read_versioned(reader)))


def write_in_progress_file(file: InProgressFile) -> Versioned:
    """Encode an in-progress file; the inverse of `read_in_progress_file`."""
    writer = Writer()
    write_magic(writer, IN_PROGRESS_MAGIC)
    if file.version > 1:
        write_optional(writer, file.path, writer.utf)
    write_versioned(writer, write_recoverable(file.recoverable))
    return Versioned(file.version, writer.getvalue())


def read_pending_file(versioned: Versioned) -> PendingFile:
    """Read a pending file: magic, in version 2 the path and an i64 size, then the recoverable.

    Raises:
        FormatError: the bytes are something else.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a pending file", 1, 2) as reader:
        expect_magic(reader, PENDING_MAGIC, "a pending file")
        path, size = None, None
        if versioned.version > 1:
            path = reader.utf() if read_flag(reader) else None
            size = reader.i64()
        return PendingFile(versioned.version, path, size, read_recoverable(read_versioned(reader)))


def write_pending_file(file: PendingFile) -> Versioned:
    """Encode a pending file; the inverse of `read_pending_file`."""
    writer = Writer()
    write_magic(writer, PENDING_MAGIC)
    if file.version > 1:
        write_optional(writer, file.path, writer.utf)
        writer.i64(file.size or 0)
    write_versioned(writer, write_recoverable(file.recoverable))
    return Versioned(file.version, writer.getvalue())


def read_recoverable(versioned: Versioned) -> Recoverable:
    """Read the recoverable of a known file system; return that of any other as it is.

    Raises:
        FormatError: the bytes have the magic number of a known file system, but not its format.
    """
    if versioned.version != 1 or len(versioned.data) < 4:
        return versioned
    reader = versioned.reader()
    magic = reader.little_i32() & 0xFFFFFFFF
    if magic in STREAM_MAGICS:
        found: Recoverable = _read_stream(reader, STREAM_MAGICS[magic])
    elif magic == S3_MAGIC:
        found = _read_upload(reader)
    else:
        return versioned
    reader.expect_end("a recoverable file")
    return found


def write_recoverable(value: Recoverable) -> Versioned:
    """Encode the recoverable of a file system; the inverse of `read_recoverable`."""
    writer = Writer()
    match value:
        case Versioned():
            return value
        case StreamRecoverable():
            magic = next(number for number, name in STREAM_MAGICS.items() if name == value.file_system)
            write_little_magic(writer, magic)
            writer.little_i64(value.offset)
            target, temporary = value.target.encode(), value.temporary.encode()
            writer.little_i32(len(target))
            writer.little_i32(len(temporary))
            writer.take(target + temporary)
        case S3Recoverable():
            write_little_magic(writer, S3_MAGIC)
            writer.little_text(value.key)
            writer.little_text(value.upload_id)
            writer.little_i32(len(value.parts))
            for number, tag in value.parts:
                writer.little_i32(number)
                writer.little_text(tag)
            writer.little_i64(value.bytes_in_parts)
            writer.little_text(value.last_part or "")
            writer.little_i64(value.last_part_size)
    return Versioned(1, writer.getvalue())


def _read_stream(reader: Reader, file_system: str) -> StreamRecoverable:
    offset = reader.little_i64()
    target, temporary = reader.little_i32(), reader.little_i32()
    require(reader, offset >= 0, "the offset of a recoverable file is negative")
    return StreamRecoverable(file_system, offset, reader.little_text(target), reader.little_text(temporary))


def _read_upload(reader: Reader) -> S3Recoverable:
    key, upload_id = reader.little_text(), reader.little_text()
    count = reader.little_i32()
    require(reader, 0 <= 8 * count <= reader.remaining, f"{count} parts do not fit")
    parts = tuple((reader.little_i32(), reader.little_text()) for _ in range(count))
    size = reader.little_i64()
    last = reader.little_text() or None
    return S3Recoverable(key, upload_id, parts, size, last, reader.little_i64())


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
    """State of one bucket (directory) of a file sink.

    Attributes:
        version: 1 to 3.
        bucket: id of the bucket.
        path: its directory.
        created: when the open file was created, epoch milliseconds; Long.MAX_VALUE or -1 if there is none.
        open_file: the open file; in version 1 only its recoverable.
        pending_version: serializer version of the pending files; None in version 3.
        pending: (checkpoint id, pending files) in the order of the bytes; version 3 stores none.
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
        pending: file to be committed; None if there is none.
        clean_up: in-progress file to be cleaned up; None if there is none.
        compacted: path of a file to be deleted, since it was compacted into another file; stored in version 2.
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
    """Encode a bucket of a file sink; the inverse of `read_file_bucket`."""
    writer = Writer()
    write_magic(writer, BUCKET_MAGIC)
    text = Writer()
    text.little_text(bucket.bucket)
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
        FormatError: a file sink cannot have written the bytes.
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


def file_committable_rows(committable: FileCommittable) -> Iterator[Row]:
    """Yield the rows of `COMMITTABLE_COLUMNS`."""
    head = {"bucket": committable.bucket}
    if committable.pending is not None:
        yield {**head, "action": "commit", "file": _target(committable.pending), "size": committable.pending.size}
    if committable.clean_up is not None:
        yield {**head, "action": "clean up", "file": _target(committable.clean_up)}
    if committable.compacted is not None:
        yield {**head, "action": "delete", "file": committable.compacted}


def read_file_committable(versioned: Versioned) -> FileCommittable:
    """Read a committable: magic, in version 2 the bucket, then three optional files: pending, in progress, compacted.

    Version 1 has no compacted file.

    Raises:
        FormatError: a file sink cannot have written the bytes.
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
    """Encode a committable of a file sink; the inverse of `read_file_committable`."""
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
        return inside.little_text()


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


MAGIC = 0xB91F252C
STATE_NAME = "streaming_committer_raw_states"
STATES = ("RECEIVED", "RETRY", "FAILED", "COMMITTED")

HEAD_COLUMNS = pa.schema(
    [
        pa.field("checkpoint_id", pa.int64()),
        pa.field("subtask", pa.int32()),
        pa.field("retries", pa.int32()),
        pa.field("commit_state", pa.string()),
    ]
)
"""Columns before those of the committable; null if an old version does not store them."""

OPAQUE_COLUMNS = pa.schema(
    [
        pa.field("committable_version", pa.int32(), False),
        pa.field("committable", pa.binary(), False),
    ]
)


@dataclass(frozen=True)
class CommitRequest:
    """A committable and how far its commit is.

    Attributes:
        committable: the committable, as its connector decodes it.
        retries: number of attempts after the first one.
        state: one of `STATES`.
    """

    committable: object
    retries: int = 0
    state: str = "RECEIVED"


@dataclass(frozen=True)
class SubtaskCommittables:
    """Committables of one subtask of the writers (`SubtaskCommittableManager`).

    Attributes:
        requests: commit requests that the state still holds.
        expected: number of committables that the subtask announced.
        drained: number of committables that are finished; stored in versions 0 and 1.
        failed: number of committables that failed.
        subtask: the subtask; stored from version 1 on.
    """

    requests: tuple[CommitRequest, ...]
    expected: int
    drained: int | None
    failed: int
    subtask: int | None


@dataclass(frozen=True)
class CheckpointCommittables:
    """Committables of one checkpoint (`CheckpointCommittableManagerImpl`).

    Attributes:
        checkpoint_id: the checkpoint; Long.MAX_VALUE for the end of the input.
        subtasks: the committables of each subtask of the writers.
        subtask_version: 0 to 2, version of `subtasks`.
        number_of_subtasks: parallelism of the writers; stored in version 1.
    """

    checkpoint_id: int
    subtasks: tuple[SubtaskCommittables, ...]
    subtask_version: int = 2
    number_of_subtasks: int | None = None


@dataclass(frozen=True)
class Committables:
    """State of the committer of a sink.

    Attributes:
        checkpoints: committables by checkpoint; none in version 1 of the state.
        checkpoint_version: 0 or 1, version of `checkpoints`.
        plain: committables without a checkpoint id, in version 1 of the state; None in version 2.
        plain_version: serializer version of `plain`.
    """

    checkpoints: tuple[CheckpointCommittables, ...] = ()
    checkpoint_version: int = 1
    plain: tuple[object, ...] | None = None
    plain_version: int = 0


ReadCommittable = Callable[[Versioned], Any]
WriteCommittable = Callable[[Any], Versioned]


def read_committables(versioned: Versioned, read: ReadCommittable) -> Committables:
    """Read the state of a committer.

    Args:
        versioned: the bytes.
        read: reads one committable.

    Raises:
        FormatError: the bytes are no committables, or `read` refuses one.
        UnsupportedError: an unknown version.
    """
    with versioned.open("the state of a committer", 1, 2) as reader:
        expect_magic(reader, MAGIC, "the state of a committer")
        version, elements = read_versioned_list(reader)
    if versioned.version == 1:
        return Committables(plain=tuple(read(each) for each in elements), plain_version=version)
    return Committables(tuple(_read_checkpoint(each, read) for each in elements), version)


def write_committables(state: Committables, write: WriteCommittable) -> Versioned:
    """Encode the state of a committer; the inverse of `read_committables`."""
    writer = Writer()
    write_magic(writer, MAGIC)
    if state.plain is not None:
        write_versioned_list(writer, state.plain_version, [write(each).data for each in state.plain])
        return Versioned(1, writer.getvalue())
    elements = [_write_checkpoint(each, state.checkpoint_version, write) for each in state.checkpoints]
    write_versioned_list(writer, state.checkpoint_version, elements)
    return Versioned(2, writer.getvalue())


def committable_rows(rows: Callable[[Any], Iterable[Mapping[str, Any]]], state: Committables) -> Iterator[Row]:
    """Yield the rows of the committables in the state of a committer, with `HEAD_COLUMNS` before their own columns."""
    for committable in state.plain or ():
        yield from map(dict, rows(committable))
    for checkpoint in state.checkpoints:
        for subtask in checkpoint.subtasks:
            for request in subtask.requests:
                head = {
                    "checkpoint_id": checkpoint.checkpoint_id,
                    "subtask": subtask.subtask,
                    "retries": request.retries,
                    "commit_state": request.state,
                }
                for row in rows(request.committable):
                    yield {**head, **row}


def register_committables(
    connector: str,
    read: ReadCommittable,
    write: WriteCommittable,
    rows: Callable[[Any], Iterable[Mapping[str, Any]]],
    columns: pa.Schema,
    *,
    last_resort: bool = False,
) -> None:
    """Register the committables of a sink, which the state of its committer holds.

    Args:
        connector: name of the connector.
        read: reads one committable; must refuse those of other sinks.
        write: writes a committable as `read` reads it.
        rows: rows of a committable.
        columns: schema of these rows.
        last_resort: used only if no other connector can read the committables.
    """
    versioned_state(
        connector,
        kind=ConnectorStateKind.COMMITTER,
        operator_state_names=[STATE_NAME],
        write=lambda state: write_committables(state, write),
        rows=partial(committable_rows, rows),
        columns=pa.schema([*HEAD_COLUMNS, *columns]),
        last_resort=last_resort,
    )(lambda versioned: read_committables(versioned, read))


def _read_checkpoint(versioned: Versioned, read: ReadCommittable) -> CheckpointCommittables:
    with versioned.open("the committables of a checkpoint", 0, 1) as reader:
        checkpoint_id = reader.i64()
        number = reader.i32() if versioned.version > 0 else None
        require(reader, checkpoint_id >= 0, f"{checkpoint_id} is no checkpoint id")
        version, elements = read_versioned_list(reader)
    subtasks = tuple(_read_subtask(each, read) for each in elements)
    return CheckpointCommittables(checkpoint_id, subtasks, version, number)


def _write_checkpoint(checkpoint: CheckpointCommittables, version: int, write: WriteCommittable) -> bytes:
    writer = Writer()
    writer.i64(checkpoint.checkpoint_id)
    if version > 0:
        writer.i32(checkpoint.number_of_subtasks or 0)
    elements = [_write_subtask(each, checkpoint.subtask_version, write) for each in checkpoint.subtasks]
    write_versioned_list(writer, checkpoint.subtask_version, elements)
    return writer.getvalue()


def _read_subtask(versioned: Versioned, read: ReadCommittable) -> SubtaskCommittables:
    version = versioned.version
    with versioned.open("the committables of a subtask", 0, 1, 2) as reader:
        subtask = reader.i32() if version > 0 else None
        request_version, elements = read_versioned_list(reader)
        Versioned(request_version, b"").expect("a commit request", 0)
        expected = reader.i32()
        drained = reader.i32() if version < 2 else None
        failed = reader.i32()
    requests = tuple(_read_request(each.reader(), read) for each in elements)
    return SubtaskCommittables(requests, expected, drained, failed, subtask)


def _write_subtask(subtask: SubtaskCommittables, version: int, write: WriteCommittable) -> bytes:
    writer = Writer()
    if version > 0:
        writer.i32(subtask.subtask or 0)
    write_versioned_list(writer, 0, [_write_request(each, write) for each in subtask.requests])
    writer.i32(subtask.expected)
    if version < 2:
        writer.i32(subtask.drained or 0)
    writer.i32(subtask.failed)
    return writer.getvalue()


def _read_request(reader: Reader, read: ReadCommittable) -> CommitRequest:
    committable = read(read_versioned(reader))
    retries, state = reader.i32(), reader.i32()
    require(reader, 0 <= state < len(STATES), f"{state} is no state of a commit request")
    reader.expect_end("a commit request")
    return CommitRequest(committable, retries, STATES[state])


def _write_request(request: CommitRequest, write: WriteCommittable) -> bytes:
    writer = Writer()
    write_versioned(writer, write(request.committable))
    writer.i32(request.retries)
    writer.i32(STATES.index(request.state))
    return writer.getvalue()


def _same(versioned: Versioned) -> Versioned:
    return versioned


def _opaque_rows(committable: Versioned) -> Iterator[Row]:
    yield {"committable_version": committable.version, "committable": committable.data}


register_committables(
    "kafka",
    kafka.read_kafka_committable,
    kafka.write_kafka_committable,
    kafka.committable_rows,
    kafka.COMMITTABLE_COLUMNS,
)
register_committables(
    "file",
    read_file_committable,
    write_file_committable,
    file_committable_rows,
    COMMITTABLE_COLUMNS,
)
# Committables of any other sink stay bytes, but their number and checkpoints can still be read.
register_committables("unknown sink", _same, _same, _opaque_rows, OPAQUE_COLUMNS, last_resort=True)
