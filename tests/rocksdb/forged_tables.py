"""Tables and MANIFESTs with changes whose checksums are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rocksdict import DBCompressionType, Rdict

from state_pipelines.metadata.streams import StateStream
from state_pipelines.rocksdb import read_database
from state_pipelines.rocksdb.manifest import Cursor
from tests.rocksdb.checksums import masked_crc32c
from tests.rocksdb.databases import Pairs, frame_log, list_streams, make_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from state_pipelines.rocksdb import ColumnFamily

FOOTER = 53
PUT = 1
MANIFEST = "MANIFEST-000004"


class Listed(NamedTuple):
    """A table as a MANIFEST lists it; the bounds are user keys."""

    number: int
    size: int
    smallest: bytes
    largest: bytes
    level: int = 6
    sequence: int = 0


def write_table(directory: Path, rows: Pairs, name: str = "default") -> bytes:
    """The table that RocksDB writes for a column family: without compression, its index with internal keys."""
    options = make_options(version=2)
    options.set_compression_type(DBCompressionType.none())
    database = Rdict(str(directory), options)
    column_family = database if name == "default" else database.create_column_family(name, options)
    for key, value in rows:
        column_family[key] = value
    column_family.flush()
    database.close()
    (table,) = (stream for each, stream in list_streams(directory).items() if each.endswith(".sst"))
    return table.data


def forge_table(
    data: bytes,
    *,
    blocks: Callable[[list[Pairs]], list[Pairs]] = lambda blocks: blocks,
    index: Callable[[Pairs], Pairs] = lambda index: index,
    alignment: int = 1,
) -> bytes:
    """A table with other data blocks, or with another index of them; its properties stay.

    Args:
        data: the table.
        blocks: changes the entries of the data blocks, as many as there are.
        index: changes the entries of the index.
        alignment: multiple at which data blocks start, zeros before them.
    """
    cursor = Cursor(data[-FOOTER + 1 : -12], "footer")
    metaindex = _read_block(data, cursor)
    separators = _read_block(data, cursor)
    out = bytearray()
    named: Pairs = []
    contents = blocks([_read_block(data, Cursor(value, "index")) for _, value in separators])
    for (separator, _), entries in zip(separators, contents, strict=True):
        out += bytes(-len(out) % alignment)
        named.append((separator, _append(out, _write_block(entries))))
    meta: Pairs = []
    for key, value in metaindex:
        if key == b"rocksdb.properties":
            place = Cursor(value, "metaindex")
            start, size = place.varint(), place.varint()
            meta.append((key, _append(out, data[start : start + size])))
    ranges = _append(out, _write_block(meta)) + _append(out, _write_block(index(named)))
    return bytes(out) + data[-FOOTER : -FOOTER + 1] + ranges.ljust(FOOTER - 13, b"\0") + data[-12:]


def write_manifest(column_families: Mapping[str, Sequence[Listed]]) -> bytes:
    """A MANIFEST with column families and their tables."""
    edits = [b"\x01" + _prefix(b"leveldb.BytewiseComparator") + b"\x02\x00\x03\x64\x04\x63"]
    for number, (name, tables) in enumerate(column_families.items()):
        selected = b"\xc8\x01" + _varint(number)
        if number:
            edits.append(selected + b"\xc9\x01" + _prefix(name.encode()))
        for table in tables:
            trailer = (table.sequence << 8 | PUT).to_bytes(8, "little")
            bounds = _prefix(table.smallest + trailer) + _prefix(table.largest + trailer)
            numbers = _varint(table.level) + _varint(table.number) + _varint(table.size)
            edits.append(selected + b"\x67" + numbers + bounds + b"\x00\x63\x01")
    return b"".join(frame_log(edit) for edit in edits)


def make_family(data: bytes, smallest: bytes, largest: bytes) -> ColumnFamily:
    """The default column family of a database with one table."""
    manifest = write_manifest({"default": [Listed(12, len(data), smallest, largest)]})
    contents = {"CURRENT": MANIFEST.encode() + b"\n", MANIFEST: manifest, "000012.sst": data}
    files = {name: StateStream(name, len(each), data=each) for name, each in contents.items()}
    return read_database(files).column_families[0]


def _read_block(data: bytes, place: Cursor) -> Pairs:
    """The entries of the block whose offset and size come next."""
    start, size = place.varint(), place.varint()
    block = data[start : start + size]
    cursor = Cursor(block[: -4 - 4 * int.from_bytes(block[-4:], "little")], "block")
    pairs: Pairs = []
    while cursor.remaining:
        shared, rest, value = cursor.varint(), cursor.varint(), cursor.varint()
        key = pairs[-1][0][:shared] if pairs else b""
        pairs.append((key + cursor.take(rest), cursor.take(value)))
    return pairs


def _write_block(entries: Pairs) -> bytes:
    """A block whose entries share no bytes."""
    body, restarts = b"", [0] if not entries else []
    for key, value in entries:
        restarts.append(len(body))
        body += b"\0" + _varint(len(key)) + _varint(len(value)) + key + value
    return body + b"".join(each.to_bytes(4, "little") for each in (*restarts, len(restarts)))


def _append(out: bytearray, block: bytes) -> bytes:
    """Append a block with its trailer; returns its offset and size."""
    trailed = np.frombuffer(block + b"\0", np.uint8)
    place = _varint(len(out)) + _varint(len(block))
    out += trailed.tobytes() + masked_crc32c(trailed.tobytes()).to_bytes(4, "little")
    return place


def _prefix(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))
