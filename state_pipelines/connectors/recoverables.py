"""Uncommitted files of a file sink: the data that file system writers need to resume or commit them.

Facts from `org.apache.flink.streaming.api.functions.sink.filesystem.OutputStreamBasedPartFileWriter` (in-progress and
pending files, versions 1 and 2), `org.apache.flink.core.fs.local.LocalRecoverableSerializer`,
`org.apache.flink.runtime.fs.hdfs.HadoopRecoverableSerializer`, `org.apache.flink.fs.s3.common.writer.
S3RecoverableSerializer` (version 1 each; their numbers are little-endian). Data of other writers are kept as bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Writer
from state_pipelines.connectors.element_frames import (
    Versioned,
    expect_magic,
    read_flag,
    read_little_i32,
    read_little_i64,
    read_little_text,
    read_versioned,
    require,
    write_little_i32,
    write_little_i64,
    write_little_magic,
    write_little_text,
    write_magic,
    write_optional,
    write_versioned,
)

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader

IN_PROGRESS_MAGIC = 0xB3A4073D
PENDING_MAGIC = 0x2C853C89
S3_MAGIC = 0x98761432
STREAM_MAGICS = {0x1E744B57: "local", 0xD7436C5E: "hadoop"}


@dataclass(frozen=True)
class StreamRecoverable:
    """A temporary file that becomes the target when it is renamed.

    Attributes:
        file_system: `local` or `hadoop`.
        offset: bytes that count.
        target: path of the target.
        temporary: path of the temporary file.
    """

    file_system: str
    offset: int
    target: str
    temporary: str


@dataclass(frozen=True)
class S3Recoverable:
    """A multipart upload.

    Attributes:
        key: name of the object.
        upload_id: id of the upload.
        parts: (number, ETag) of each part.
        bytes_in_parts: their size.
        last_part: object with the data after the last part; None if there is none.
        last_part_size: its size, or -1.
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
    """A file that is being written.

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
    """The final path of the file, as far as it is known."""
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
    """Write what `read_in_progress_file` reads."""
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
    """Write what `read_pending_file` reads."""
    writer = Writer()
    write_magic(writer, PENDING_MAGIC)
    if file.version > 1:
        write_optional(writer, file.path, writer.utf)
        writer.i64(file.size or 0)
    write_versioned(writer, write_recoverable(file.recoverable))
    return Versioned(file.version, writer.getvalue())


def read_recoverable(versioned: Versioned) -> Recoverable:
    """Read the data of a file system; the bytes themselves for an unknown one.

    Raises:
        FormatError: they begin as those of a known one but go on differently.
    """
    if versioned.version != 1 or len(versioned.data) < 4:
        return versioned
    reader = versioned.reader()
    magic = read_little_i32(reader) & 0xFFFFFFFF
    if magic in STREAM_MAGICS:
        found: Recoverable = _read_stream(reader, STREAM_MAGICS[magic])
    elif magic == S3_MAGIC:
        found = _read_upload(reader)
    else:
        return versioned
    reader.expect_end("a recoverable file")
    return found


def write_recoverable(value: Recoverable) -> Versioned:
    """Write what `read_recoverable` reads."""
    writer = Writer()
    match value:
        case Versioned():
            return value
        case StreamRecoverable():
            magic = next(number for number, name in STREAM_MAGICS.items() if name == value.file_system)
            write_little_magic(writer, magic)
            write_little_i64(writer, value.offset)
            target, temporary = value.target.encode(), value.temporary.encode()
            write_little_i32(writer, len(target))
            write_little_i32(writer, len(temporary))
            writer.take(target + temporary)
        case S3Recoverable():
            write_little_magic(writer, S3_MAGIC)
            write_little_text(writer, value.key)
            write_little_text(writer, value.upload_id)
            write_little_i32(writer, len(value.parts))
            for number, tag in value.parts:
                write_little_i32(writer, number)
                write_little_text(writer, tag)
            write_little_i64(writer, value.bytes_in_parts)
            write_little_text(writer, value.last_part or "")
            write_little_i64(writer, value.last_part_size)
    return Versioned(1, writer.getvalue())


def _read_stream(reader: Reader, file_system: str) -> StreamRecoverable:
    offset = read_little_i64(reader)
    target, temporary = read_little_i32(reader), read_little_i32(reader)
    require(reader, offset >= 0, "the offset of a recoverable file is negative")
    return StreamRecoverable(file_system, offset, read_little_text(reader, target), read_little_text(reader, temporary))


def _read_upload(reader: Reader) -> S3Recoverable:
    key, upload_id = read_little_text(reader), read_little_text(reader)
    count = read_little_i32(reader)
    require(reader, 0 <= 8 * count <= reader.remaining, f"{count} parts do not fit")
    parts = tuple((read_little_i32(reader), read_little_text(reader)) for _ in range(count))
    size = read_little_i64(reader)
    last = read_little_text(reader) or None
    return S3Recoverable(key, upload_id, parts, size, last, read_little_i64(reader))
