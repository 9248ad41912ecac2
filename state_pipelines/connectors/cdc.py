"""Change data capture (Flink CDC): splits of the MySQL source, and offsets of the legacy `DebeziumSourceFunction`.

Facts from the repository apache/flink-cdc, package `org.apache.flink.cdc` (`com.ververica.cdc` in earlier releases):
`connectors.mysql.source.split.MySqlSplitSerializer` and `connectors.mysql.source.utils.SerializerUtils` (versions 1 to
4), `debezium.DebeziumSourceFunction` and `debezium.internal.DebeziumOffsetSerializer`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.java_stream import read_stream
from state_pipelines.codecs.json import dumps, value_json
from state_pipelines.connectors.registry import (
    ConnectorStateKind,
    Versioned,
    check_name,
    connector_state,
    is_byte_array,
    read_flag,
    require,
    source_splits,
)
from state_pipelines.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.connectors.registry import Row
    from state_pipelines.serializers.tree import Serializer

_SNAPSHOT, _BINLOG = 1, 2
KINDS = {_SNAPSHOT: "snapshot", _BINLOG: "binlog"}
_SMALLEST_SPLIT_INFO = 2 + 2 + 2 + 2 + 1
_SMALLEST_SCHEMA = 2 + 2

SPLIT_COLUMNS = pa.schema(
    [
        pa.field("kind", pa.string(), False),
        pa.field("split_id", pa.string(), False),
        pa.field("table", pa.string()),
        pa.field("key_type", pa.string()),
        pa.field("split_start", pa.string()),
        pa.field("split_end", pa.string()),
        pa.field("offset", pa.string()),
        pa.field("ending_offset", pa.string()),
        pa.field("finished_splits", pa.int32()),
        pa.field("suspended", pa.bool_()),
        pa.field("tables", pa.list_(pa.string()), False),
    ]
)
"""Offsets are JSON (`file`, `pos`, `gtids`, …): of a chunk its high watermark, of the binlog the next event."""

OFFSET_COLUMNS = pa.schema([pa.field("partition", pa.string(), False), pa.field("offset", pa.string(), False)])
"""Partition and offset are JSON, in Debezium's format."""


@dataclass(frozen=True)
class FinishedSplit:
    """A chunk of a table that was read before the binlog (`FinishedSnapshotSplitInfo`); fields as in `MySqlSplit`."""

    table: str
    split_id: str
    start: str
    end: str
    high_watermark: str | None


@dataclass(frozen=True)
class MySqlSplit:
    """A chunk of a table, or the binlog, and how far it has been read.

    Attributes:
        version: 1 to 4.
        kind: 1 for a snapshot split, 2 for a binlog split.
        split_id: its id.
        table: quoted name of the table; empty for the binlog.
        key_type: SQL type of the chunk key; empty for the binlog.
        start: first key of the chunk or null, as a Java stream in hexadecimal; empty for the binlog.
        end: first key after the chunk, in the format of `start`.
        offset: JSON of the high watermark or the starting offset, or None.
        ending_offset: JSON of the offset at which the binlog split ends, or None.
        finished: chunks that were read before the binlog.
        schemas: quoted name and JSON of the schema of each table.
        finished_size: number of all finished chunks, from version 3 on.
        suspended: whether reading is suspended, in version 4 of later releases.
    """

    version: int
    kind: int
    split_id: str
    table: str = ""
    key_type: str = ""
    start: str = ""
    end: str = ""
    offset: str | None = None
    ending_offset: str | None = None
    finished: tuple[FinishedSplit, ...] = ()
    schemas: tuple[tuple[str, str], ...] = ()
    finished_size: int | None = None
    suspended: bool | None = None


@dataclass(frozen=True)
class DebeziumOffset:
    """An element of the state of `DebeziumSourceFunction`; `text` is the JSON as stored."""

    text: str


def split_rows(split: MySqlSplit) -> Iterator[Row]:
    """Yield one table row, with the columns `SPLIT_COLUMNS`."""
    binlog = split.kind == _BINLOG
    yield {
        "kind": KINDS[split.kind],
        "split_id": split.split_id,
        "table": None if binlog else split.table,
        "key_type": None if binlog else split.key_type,
        "split_start": _boundary(split.start),
        "split_end": _boundary(split.end),
        "offset": split.offset,
        "ending_offset": split.ending_offset,
        "finished_splits": (split.finished_size if split.finished_size is not None else len(split.finished))
        if binlog
        else None,
        "suspended": split.suspended,
        "tables": [name for name, _ in split.schemas],
    }


def _boundary(text: str) -> str | None:
    """Return a chunk key as JSON; None at the ends of a table, where the key is null, and for the binlog."""
    content = read_stream(Reader(bytes.fromhex(text))) if text else None
    return None if content is None else dumps({"": value_json(content)})[4:-1]


def write_mysql_split(split: MySqlSplit) -> Versioned:
    """Encode a MySQL split; the inverse of `read_mysql_split`."""
    writer = Writer()
    writer.i32(split.kind)
    if split.kind == _SNAPSHOT:
        for text in (split.table, split.split_id, split.key_type, split.start, split.end):
            writer.utf(text)
        _write_offset(writer, split.version, split.offset)
        _write_schemas(writer, split)
        return Versioned(split.version, writer.getvalue())
    writer.utf(split.split_id)
    writer.utf("")
    _write_offset(writer, split.version, split.offset)
    _write_offset(writer, split.version, split.ending_offset)
    writer.i32(len(split.finished))
    for each in split.finished:
        for text in (each.table, each.split_id, each.start, each.end):
            writer.utf(text)
        _write_offset(writer, split.version, each.high_watermark)
    _write_schemas(writer, split)
    if split.finished_size is not None:
        writer.i32(split.finished_size)
    if split.suspended is not None:
        writer.bool(split.suspended)
    return Versioned(split.version, writer.getvalue())


def _write_offset(writer: Writer, version: int, offset: str | None) -> None:
    writer.bool(offset is not None)
    if offset is None:
        return
    if version == 1:
        fields = json.loads(offset)
        writer.utf(fields["file"])
        writer.i64(int(fields["pos"]))
    else:
        writer.bytes32(offset.encode())


def _write_schemas(writer: Writer, split: MySqlSplit) -> None:
    writer.i32(len(split.schemas))
    for name, schema in split.schemas:
        writer.utf(name)
        if split.version == 1:
            writer.utf(schema)
        else:
            writer.bytes32(schema.encode())


@source_splits("mysql-cdc", write=write_mysql_split, rows=split_rows, columns=SPLIT_COLUMNS)
def read_mysql_split(versioned: Versioned) -> MySqlSplit:
    """Read a split: i32 kind, then a chunk of a table or the binlog.

    Raises:
        FormatError: a MySQL source cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    version = versioned.version
    with versioned.open("a MySQL split", 1, 2, 3, 4) as reader:
        kind = reader.i32()
        require(reader, kind in KINDS, f"{kind} is no kind of a MySQL split")
        if kind == _SNAPSHOT:
            table, split_id = check_name(reader.utf(), "a table"), check_name(reader.utf(), "the id of a split")
            key_type, start, end = reader.utf(), _read_boundary(reader), _read_boundary(reader)
            offset, schemas = _read_offset(reader, version), _read_schemas(reader, version)
            return MySqlSplit(version, kind, split_id, table, key_type, start, end, offset, schemas=schemas)
        split_id = check_name(reader.utf(), "the id of a split")
        require(reader, reader.utf() == "", "a binlog split has no key")
        offset, ending = _read_offset(reader, version), _read_offset(reader, version)
        finished = tuple(_read_finished(reader, version) for _ in range(reader.count(_SMALLEST_SPLIT_INFO)))
        schemas = _read_schemas(reader, version)
        size = reader.i32() if version > 2 else None
        suspended = read_flag(reader) if version > 3 and reader.remaining else None
    return MySqlSplit(
        version,
        kind,
        split_id,
        offset=offset,
        ending_offset=ending,
        finished=finished,
        schemas=schemas,
        finished_size=size,
        suspended=suspended,
    )


def _read_finished(reader: Reader, version: int) -> FinishedSplit:
    table, split_id = check_name(reader.utf(), "a table"), check_name(reader.utf(), "the id of a split")
    start, end = _read_boundary(reader), _read_boundary(reader)
    return FinishedSplit(table, split_id, start, end, _read_offset(reader, version))


def _read_boundary(reader: Reader) -> str:
    start, text = reader.position, reader.utf()
    try:
        stream = Reader(bytes.fromhex(text))
    except ValueError:
        raise reader.error("the bound of a split is not hexadecimal", start) from None
    read_stream(stream)
    stream.expect_end("the bound of a split")
    return text


def _read_offset(reader: Reader, version: int) -> str | None:
    if not read_flag(reader):
        return None
    if version == 1:
        return json.dumps({"file": reader.utf(), "pos": str(reader.i64())})
    start, raw = reader.position, reader.bytes32()
    _read_json(raw, reader, start)
    return raw.decode()


def _read_schemas(reader: Reader, version: int) -> tuple[tuple[str, str], ...]:
    found = []
    for _ in range(reader.count(_SMALLEST_SCHEMA)):
        name, start = check_name(reader.utf(), "a table"), reader.position
        raw = reader.utf().encode() if version == 1 else reader.bytes32()
        _read_json(raw, reader, start)
        found.append((name, raw.decode()))
    return tuple(found)


def _read_json(raw: bytes, reader: Reader, start: int) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise reader.error("the text of a schema or an offset is not a JSON object", start)
    return value


def offset_rows(offset: DebeziumOffset) -> Iterator[Row]:
    """Yield one table row, with the columns `OFFSET_COLUMNS`."""
    value = json.loads(offset.text)
    yield {"partition": json.dumps(value["sourcePartition"]), "offset": json.dumps(value["sourceOffset"])}


def write_debezium_offset(offset: DebeziumOffset, serializer: Serializer, context: LayoutContext) -> bytes:
    """Encode an offset of Debezium; the inverse of `read_debezium_offset`."""
    writer = Writer()
    writer.bytes32(offset.text.encode())
    return writer.getvalue()


@connector_state(
    "debezium",
    kind=ConnectorStateKind.SPLIT,
    operator_state_names=["offset-states"],
    accepts=is_byte_array,
    write=write_debezium_offset,
    rows=offset_rows,
    columns=OFFSET_COLUMNS,
)
def read_debezium_offset(element: bytes, serializer: Serializer, context: LayoutContext) -> DebeziumOffset:
    """Read an element: JSON with `sourcePartition` and `sourceOffset`.

    Raises:
        FormatError: Debezium cannot have written the bytes.
    """
    reader = Reader(element)
    raw = reader.bytes32()
    if not {"sourcePartition", "sourceOffset"} <= _read_json(raw, reader, 4).keys():
        raise FormatError("an offset of Debezium lacks sourcePartition or sourceOffset")
    return DebeziumOffset(raw.decode())
