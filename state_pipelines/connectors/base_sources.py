"""Sources of Flink's own base: files, number sequences, and the hybrid source that runs others one after the other.

* `FileSplit`, `PendingFileSplits`: splits of the file source and the pending splits of its enumerator. Sources that
  extend file splits (Hive, Iceberg …) have serializers of their own and are not read here. Source:
  `org.apache.flink.connector.file.src.FileSourceSplitSerializer` (version 1), `PendingSplitsCheckpointSerializer`
  (version 1; its own numbers are little-endian), `util.CheckpointedPosition`, and `org.apache.flink.core.fs.Path` with
  `StringUtils.writeNullableString` for paths.
* `NumberSequenceSplit`: splits and enumerator of `NumberSequenceSource`, and of the data generator source based on it,
  which uses the same splits. Source: `org.apache.flink.api.connector.source.lib.NumberSequenceSource` (split and
  enumerator checkpoint, version 1) and `org.apache.flink.connector.datagen.source.DataGeneratorSource`.
* `HybridSplit`, `HybridEnumerator`: splits and enumerator of the sources that a hybrid source runs. Source:
  `org.apache.flink.connector.base.source.hybrid.HybridSourceSplitSerializer` (versions 0 and 1) and
  `HybridSourceEnumeratorStateSerializer` (version 0).
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
    read_versioned,
    require,
    source_splits,
    write_little_magic,
    write_optional,
    write_versioned,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.binary.data_views import Reader
    from state_pipelines.connectors.registry import Row

PENDING_MAGIC = 0xDEADBEEF
NO_OFFSET = -1
"""Offset of a reader position that is only a number of records (`CheckpointedPosition.NO_OFFSET`)."""

FILE_SPLIT_COLUMNS = pa.schema(
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

FILE_ENUMERATOR_COLUMNS = pa.schema([*FILE_SPLIT_COLUMNS, pa.field("processed", pa.bool_(), False)])


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
        start: offset of the first byte in the file.
        length: number of bytes.
        modified: modification time of the file, epoch milliseconds; 0 when not known.
        file_size: bytes of the file; 0 when not known.
        hosts: hosts that store the bytes, according to the file system.
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


def file_split_rows(split: FileSplit) -> Iterator[Row]:
    """Yield one table row, with the columns `FILE_SPLIT_COLUMNS`."""
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
    """Encode a file split; the inverse of `read_file_split`."""
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


@source_splits("file", write=write_file_split, rows=file_split_rows, columns=FILE_SPLIT_COLUMNS)
def read_file_split(versioned: Versioned) -> FileSplit:
    """Read a split: id, path, i64 start, length, modification time, file size, hosts, position.

    Raises:
        FormatError: the file source cannot have written the bytes.
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


def file_enumerator_rows(state: PendingFileSplits) -> Iterator[Row]:
    """Yield a row of `FILE_ENUMERATOR_COLUMNS` per pending split and per processed file."""
    for split in state.splits:
        for row in file_split_rows(split):
            yield {**row, "processed": False}
    for path in state.processed:
        yield {"path": path, "processed": True}


def write_pending_file_splits(state: PendingFileSplits) -> Versioned:
    """Encode the checkpoint of a file enumerator; the inverse of `read_pending_file_splits`."""
    writer = Writer()
    write_little_magic(writer, PENDING_MAGIC)
    for number in (1, len(state.splits), len(state.processed)):
        writer.little_i32(number)
    for split in state.splits:
        data = write_file_split(split).data
        writer.little_i32(len(data))
        writer.take(data)
    for path in state.processed:
        writer.little_text(path)
    return Versioned(1, writer.getvalue())


@enumerator_state("file", write=write_pending_file_splits, rows=file_enumerator_rows, columns=FILE_ENUMERATOR_COLUMNS)
def read_pending_file_splits(versioned: Versioned) -> PendingFileSplits:
    """Read the checkpoint of an enumerator: magic, version of the splits, two counts, splits, paths.

    Raises:
        FormatError: the file source cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    with versioned.open("the pending splits of a file source", 1) as reader:
        magic = reader.little_i32() & 0xFFFFFFFF
        require(reader, magic == PENDING_MAGIC, f"pending file splits do not begin with {magic:#010x}")
        split_version, splits, paths = (reader.little_i32() for _ in range(3))
        smallest = 4 * (max(splits, 0) + max(paths, 0))
        require(reader, min(splits, paths) >= 0 and smallest <= reader.remaining, "pending file splits do not fit")
        pending = tuple(
            read_file_split(Versioned(split_version, reader.take(reader.little_i32()))) for _ in range(splits)
        )
        return PendingFileSplits(pending, tuple(check_name(reader.little_text(), "a path") for _ in range(paths)))


def read_path(reader: Reader) -> FlinkPath:
    """Read a path (`Path.read`).

    Raises:
        FormatError: the bytes are not a path.
    """
    if not read_flag(reader):
        return FlinkPath()
    scheme, user, host = (_read_nullable(reader) for _ in range(3))
    port = reader.i32()
    require(reader, -1 <= port <= 0xFFFF, f"{port} is no port")
    return FlinkPath(scheme, user, host, port, *(_read_nullable(reader) for _ in range(3)))


def write_path(writer: Writer, path: FlinkPath) -> None:
    """Write the components of a path; the inverse of `read_path`."""
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


NUMBER_COLUMNS = pa.schema(
    [
        pa.field("split_id", pa.string(), False),
        pa.field("from", pa.int64(), False),
        pa.field("to", pa.int64(), False),
    ]
)
"""The next number and the last one."""

_SMALLEST_SPLIT = 2 + 8 + 8


@dataclass(frozen=True)
class NumberSequenceSplit:
    """The range of numbers that the split has yet to emit, both ends included."""

    split_id: str
    start: int
    end: int


def number_split_rows(split: NumberSequenceSplit) -> Iterator[Row]:
    """Yield one table row, with the columns `NUMBER_COLUMNS`."""
    yield {"split_id": split.split_id, "from": split.start, "to": split.end}


def write_number_sequence_split(split: NumberSequenceSplit) -> Versioned:
    """Encode a split of a number sequence; the inverse of `read_number_sequence_split`."""
    writer = Writer()
    _write(writer, split)
    return Versioned(1, writer.getvalue())


@source_splits("number-sequence", write=write_number_sequence_split, rows=number_split_rows, columns=NUMBER_COLUMNS)
def read_number_sequence_split(versioned: Versioned) -> NumberSequenceSplit:
    """Read a split: id (UTF), i64 from, i64 to.

    Raises:
        FormatError: a number sequence source cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a number sequence split", 1) as reader:
        return _read(reader)


def number_enumerator_rows(splits: tuple[NumberSequenceSplit, ...]) -> Iterator[Row]:
    """Yield a row of `NUMBER_COLUMNS` per split that is not assigned."""
    for split in splits:
        yield from number_split_rows(split)


def write_number_sequence_enumerator(splits: tuple[NumberSequenceSplit, ...]) -> Versioned:
    """Encode the checkpoint of a number sequence enumerator; the inverse of `read_number_sequence_enumerator`."""
    writer = Writer()
    writer.i32(len(splits))
    for split in splits:
        _write(writer, split)
    return Versioned(1, writer.getvalue())


@enumerator_state(
    "number-sequence", write=write_number_sequence_enumerator, rows=number_enumerator_rows, columns=NUMBER_COLUMNS
)
def read_number_sequence_enumerator(versioned: Versioned) -> tuple[NumberSequenceSplit, ...]:
    """Read the checkpoint of an enumerator: the splits that are not assigned.

    Raises:
        FormatError: a number sequence source cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    with versioned.open("the enumerator of number sequences", 1) as reader:
        return tuple(_read(reader) for _ in range(reader.count(_SMALLEST_SPLIT)))


def _read(reader: Reader) -> NumberSequenceSplit:
    split = NumberSequenceSplit(check_name(reader.utf(), "a split id"), reader.i64(), reader.i64())
    require(reader, split.start <= split.end, f"the sequence from {split.start} to {split.end} is empty")
    return split


def _write(writer: Writer, split: NumberSequenceSplit) -> None:
    writer.utf(split.split_id)
    writer.i64(split.start)
    writer.i64(split.end)


HYBRID_SPLIT_COLUMNS = pa.schema(
    [
        pa.field("source_index", pa.int32(), False),
        pa.field("split_id", pa.string(), False),
        pa.field("finished", pa.bool_(), False),
        pa.field("wrapped_version", pa.int32(), False),
        pa.field("wrapped", pa.binary(), False),
    ]
)
HYBRID_ENUMERATOR_COLUMNS = pa.schema(
    [
        pa.field("source_index", pa.int32(), False),
        pa.field("wrapped_version", pa.int32(), False),
        pa.field("wrapped", pa.binary(), False),
    ]
)


@dataclass(frozen=True)
class HybridSplit:
    """A split of one of the sources that a hybrid source reads in turn (`HybridSourceSplit`).

    Attributes:
        version: 0 or 1.
        source_index: index of the source in the hybrid source.
        split_id: id of the split.
        wrapped: the split as the source wrote it.
        finished: the split is read to its end; stored from version 1 on.
    """

    version: int
    source_index: int
    split_id: str
    wrapped: Versioned
    finished: bool = False


@dataclass(frozen=True)
class HybridEnumerator:
    """Checkpoint of a hybrid source's enumerator: index of the current source, and checkpoint of its enumerator."""

    source_index: int
    wrapped: Versioned


def hybrid_split_rows(split: HybridSplit) -> Iterator[Row]:
    """Yield one table row, with the columns `HYBRID_SPLIT_COLUMNS`."""
    yield {
        "source_index": split.source_index,
        "split_id": split.split_id,
        "finished": split.finished,
        "wrapped_version": split.wrapped.version,
        "wrapped": split.wrapped.data,
    }


def write_hybrid_split(split: HybridSplit) -> Versioned:
    """Encode a split of a hybrid source; the inverse of `read_hybrid_split`."""
    writer = Writer()
    writer.i32(split.source_index)
    writer.utf(split.split_id)
    write_versioned(writer, split.wrapped)
    if split.version > 0:
        writer.bool(split.finished)
    return Versioned(split.version, writer.getvalue())


@source_splits("hybrid", write=write_hybrid_split, rows=hybrid_split_rows, columns=HYBRID_SPLIT_COLUMNS)
def read_hybrid_split(versioned: Versioned) -> HybridSplit:
    """Read a split: i32 index of its source, id (UTF), the wrapped split; in version 1 whether it is finished.

    Raises:
        FormatError: a hybrid source cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    with versioned.open("a hybrid split", 0, 1) as reader:
        index = reader.i32()
        require(reader, index >= 0, f"{index} is no position of a source")
        split_id, wrapped = check_name(reader.utf(), "a split id"), read_versioned(reader)
        finished = read_flag(reader) if versioned.version > 0 else False
    return HybridSplit(versioned.version, index, split_id, wrapped, finished)


def hybrid_enumerator_rows(state: HybridEnumerator) -> Iterator[Row]:
    """Yield one table row, with the columns `HYBRID_ENUMERATOR_COLUMNS`."""
    yield {
        "source_index": state.source_index,
        "wrapped_version": state.wrapped.version,
        "wrapped": state.wrapped.data,
    }


def write_hybrid_enumerator(state: HybridEnumerator) -> Versioned:
    """Encode the checkpoint of a hybrid enumerator; the inverse of `read_hybrid_enumerator`."""
    writer = Writer()
    writer.i32(state.source_index)
    write_versioned(writer, state.wrapped)
    return Versioned(0, writer.getvalue())


@enumerator_state(
    "hybrid", write=write_hybrid_enumerator, rows=hybrid_enumerator_rows, columns=HYBRID_ENUMERATOR_COLUMNS
)
def read_hybrid_enumerator(versioned: Versioned) -> HybridEnumerator:
    """Read the checkpoint of an enumerator: i32 index of the current source, then the checkpoint of its enumerator.

    Raises:
        FormatError: a hybrid source cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    with versioned.open("the enumerator of a hybrid source", 0) as reader:
        state = HybridEnumerator(reader.i32(), read_versioned(reader))
        require(reader, state.source_index >= 0, f"{state.source_index} is no position of a source")
    return state
