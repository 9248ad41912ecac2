"""File source: splits and the pending splits of its enumerator.

Facts from `org.apache.flink.connector.file.src.FileSourceSplitSerializer` (version 1),
`PendingSplitsCheckpointSerializer` (version 1; its own numbers are little-endian), `util.CheckpointedPosition`, and
`org.apache.flink.core.fs.Path` with `StringUtils.writeNullableString` for paths. Sources that extend file splits (Hive,
Iceberg …) have serializers of their own and are not read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.binary.data_views import Writer
from state_pipelines.connectors.registry import (
    Versioned,
    check_name,
    enumerator_state,
    read_flag,
    read_little_i32,
    read_little_text,
    require,
    source_splits,
    write_little_i32,
    write_little_magic,
    write_little_text,
    write_optional,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.binary.data_views import Reader
    from state_pipelines.connectors.registry import Row

PENDING_MAGIC = 0xDEADBEEF
NO_OFFSET = -1
"""Offset of a reader position that is only a number of records (`CheckpointedPosition.NO_OFFSET`)."""

SPLIT_COLUMNS = pa.schema(
    [
        pa.field("split_id", pa.string()),
        pa.field("path", pa.string(), False),
        pa.field("start", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("modified", pa.timestamp("ms", tz="UTC")),
        pa.field("file_size", pa.int64()),
        pa.field("hosts", pa.list_(pa.string())),
        pa.field("offset", pa.int64()),
        pa.field("records_after_offset", pa.int64()),
    ]
)
"""`offset` and `records_after_offset`: how far the split has been read; null before the first record."""

ENUMERATOR_COLUMNS = pa.schema([*SPLIT_COLUMNS, pa.field("processed", pa.bool_(), False)])


@dataclass(frozen=True)
class FlinkPath:
    """The components of a path (`Path.write`); all None for an empty one.

    Attributes:
        scheme: such as `s3`.
        user: user info.
        host: host.
        port: -1 for none.
        path: the path.
        query: query.
        fragment: fragment.
    """

    scheme: str | None = None
    user: str | None = None
    host: str | None = None
    port: int = -1
    path: str | None = None
    query: str | None = None
    fragment: str | None = None

    def __str__(self) -> str:
        user = "" if self.user is None else f"{self.user}@"
        port = "" if self.port == -1 else f":{self.port}"
        scheme = "" if self.scheme is None else f"{self.scheme}:"
        authority = "" if self.host is None else f"//{user}{self.host}{port}"
        query = "" if self.query is None else f"?{self.query}"
        fragment = "" if self.fragment is None else f"#{self.fragment}"
        return f"{scheme}{authority}{self.path or ''}{query}{fragment}"


@dataclass(frozen=True)
class FileSplit:
    """A split of a file (`FileSourceSplit`).

    Attributes:
        split_id: id of the split.
        path: the file.
        start: first byte.
        length: bytes.
        modified: modification time of the file, epoch milliseconds; 0 when not known.
        file_size: bytes of the file; 0 when not known.
        hosts: hosts of the bytes, from the file system.
        position: (offset, records to skip after it) to resume from; None at the start of the split.
    """

    split_id: str
    path: FlinkPath
    start: int
    length: int
    modified: int
    file_size: int
    hosts: tuple[str, ...] = ()
    position: tuple[int, int] | None = None


@dataclass(frozen=True)
class PendingFileSplits:
    """Checkpoint of the enumerator (`PendingSplitsCheckpoint`).

    Attributes:
        splits: splits that are not assigned.
        processed: files that a continuous source has seen.
    """

    splits: tuple[FileSplit, ...]
    processed: tuple[str, ...] = ()


def split_rows(split: FileSplit) -> Iterator[Row]:
    """Yield one row of `SPLIT_COLUMNS`."""
    offset, records = split.position or (None, None)
    yield {
        "split_id": split.split_id,
        "path": str(split.path),
        "start": split.start,
        "length": split.length,
        "modified": split.modified,
        "file_size": split.file_size,
        "hosts": split.hosts,
        "offset": None if offset == NO_OFFSET else offset,
        "records_after_offset": records,
    }


def write_file_split(split: FileSplit) -> Versioned:
    """Write what `read_file_split` reads."""
    writer = Writer()
    writer.utf(split.split_id)
    write_path(writer, split.path)
    for number in (split.start, split.length, split.modified, split.file_size):
        writer.i64(number)
    writer.i32(len(split.hosts))
    for host in split.hosts:
        writer.utf(host)
    writer.bool(split.position is not None)
    for number in split.position or ():
        writer.i64(number)
    return Versioned(1, writer.getvalue())


@source_splits("file", write=write_file_split, rows=split_rows, columns=SPLIT_COLUMNS)
def read_file_split(versioned: Versioned) -> FileSplit:
    """Read a split: id, path, i64 start, length, modification time, file size, hosts, position.

    Raises:
        FormatError: it could not be one of the file source.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a file split", 1) as reader:
        split_id, path = check_name(reader.utf(), "a split id"), read_path(reader)
        start, length, modified, size = (reader.i64() for _ in range(4))
        require(reader, min(start, length) >= 0, "a file split starts or ends before its file")
        hosts = tuple(check_name(reader.utf(), "a host") for _ in range(reader.count(2)))
        position = (reader.i64(), reader.i64()) if read_flag(reader) else None
        require(reader, position is None or min(position) >= NO_OFFSET, "a position in a file is negative")
    return FileSplit(split_id, path, start, length, modified, size, hosts, position)


def enumerator_rows(state: PendingFileSplits) -> Iterator[Row]:
    """Yield a row of `ENUMERATOR_COLUMNS` per pending split and per processed file."""
    for split in state.splits:
        for row in split_rows(split):
            yield {**row, "processed": False}
    for path in state.processed:
        yield {"path": path, "processed": True}


def write_pending_file_splits(state: PendingFileSplits) -> Versioned:
    """Write what `read_pending_file_splits` reads."""
    writer = Writer()
    write_little_magic(writer, PENDING_MAGIC)
    for number in (1, len(state.splits), len(state.processed)):
        write_little_i32(writer, number)
    for split in state.splits:
        data = write_file_split(split).data
        write_little_i32(writer, len(data))
        writer.take(data)
    for path in state.processed:
        write_little_text(writer, path)
    return Versioned(1, writer.getvalue())


@enumerator_state("file", write=write_pending_file_splits, rows=enumerator_rows, columns=ENUMERATOR_COLUMNS)
def read_pending_file_splits(versioned: Versioned) -> PendingFileSplits:
    """Read the checkpoint of an enumerator: magic, version of the splits, two counts, splits, paths.

    Raises:
        FormatError: it could not be one of the file source.
        UnsupportedError: an unknown version.
    """
    with versioned.open("the pending splits of a file source", 1) as reader:
        magic = read_little_i32(reader) & 0xFFFFFFFF
        require(reader, magic == PENDING_MAGIC, f"pending file splits do not begin with {magic:#010x}")
        split_version, splits, paths = (read_little_i32(reader) for _ in range(3))
        smallest = 4 * (max(splits, 0) + max(paths, 0))
        require(reader, min(splits, paths) >= 0 and smallest <= reader.remaining, "pending file splits do not fit")
        pending = tuple(
            read_file_split(Versioned(split_version, reader.take(read_little_i32(reader)))) for _ in range(splits)
        )
        return PendingFileSplits(pending, tuple(check_name(read_little_text(reader), "a path") for _ in range(paths)))


def read_path(reader: Reader) -> FlinkPath:
    """Read a path (`Path.read`).

    Raises:
        FormatError: the bytes are not one.
    """
    if not read_flag(reader):
        return FlinkPath()
    scheme, user, host = (_read_nullable(reader) for _ in range(3))
    port = reader.i32()
    require(reader, -1 <= port <= 0xFFFF, f"{port} is no port")
    return FlinkPath(scheme, user, host, port, *(_read_nullable(reader) for _ in range(3)))


def write_path(writer: Writer, path: FlinkPath) -> None:
    """Write what `read_path` reads."""
    writer.bool(path != FlinkPath())
    if path == FlinkPath():
        return
    for text in (path.scheme, path.user, path.host):
        write_optional(writer, text, writer.vstr)
    writer.i32(path.port)
    for text in (path.path, path.query, path.fragment):
        write_optional(writer, text, writer.vstr)


def _read_nullable(reader: Reader) -> str | None:
    return reader.vstr() if read_flag(reader) else None
