"""Forms around serializer snapshots: outer, versioned, composite header, linked optional map.

A snapshot body has no length: only the class that wrote it knows where it ends. Frames with a length exist in one
position, the linked optional maps of POJO and Kryo snapshots.
Source: `TypeSerializerSnapshotSerializationUtil`, `TypeSerializerSnapshot.writeVersionedSnapshot`,
`CompositeTypeSerializerSnapshot`, `NestedSerializersSnapshotDelegate`, `LinkedOptionalMapSerializer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from state_pipelines.binary.data_views import Reader
from state_pipelines.errors import UnsupportedVersionError, Where, older_than_promised, unsupported_version

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.binary.data_views import Writer

OUTER_VERSION = 2
COMPOSITE_MAGIC = 911108
NESTED_MAGIC = 1333245
NESTED_VERSION = 1
LAST_LEGACY_COMPOSITE = 2
CURRENT_COMPOSITE = 3
OPTIONAL_MAP_MAGIC = 0x000004F2C69A3D70

# A class name, its length and the version: the least that a nested snapshot takes.
SMALLEST_SNAPSHOT = 6
# A key name (2 bytes of length) and two flags: the least that an entry of a linked optional map takes.
SMALLEST_ENTRY = 4


class Marks(TypedDict):
    """Class name and versions of a snapshot, as keyword arguments of every node."""

    snapshot_class: str
    snapshot_version: int


class CompositeMarks(Marks):
    """`Marks` of a composite node."""

    outer_version: int


@dataclass(frozen=True)
class Head:
    """Class name and version before a snapshot body.

    Attributes:
        snapshot_class: binary name of the snapshot class.
        version: version that the class wrote.
        file: name of the file, for errors.
        offset: where the class name starts.
    """

    snapshot_class: str
    version: int
    file: str | None = None
    offset: int | None = None

    @property
    def marks(self) -> Marks:
        """Class and version as keyword arguments of a node."""
        return {"snapshot_class": self.snapshot_class, "snapshot_version": self.version}

    def composite_marks(self, outer_version: int) -> CompositeMarks:
        """Return class and both versions as keyword arguments of a composite node."""
        return {**self.marks, "outer_version": outer_version}

    def expect(self, *versions: int) -> None:
        """Refuse a version of the snapshot class that is not among `versions`.

        Raises:
            UnsupportedVersionError: the version is another one.
        """
        if self.version not in versions:
            known = ", ".join(map(str, versions))
            raise UnsupportedVersionError(
                f"version {self.version} of {self.snapshot_class} is not supported (known: {known})",
                where=Where(file=self.file, offset=self.offset),
                hint="Take a savepoint with a Flink release from 1.8 to 2.x and use that",
            )


def read_outer_version(reader: Reader) -> None:
    """Read the version before an outer snapshot (state meta infos, key serializers).

    Raises:
        UnsupportedVersionError: version 1, the config snapshots of releases before 1.7, or a later version.
        FormatError: the number is no version.
    """
    start = reader.position
    version = reader.i32()
    if version == 1:
        raise older_than_promised("serializer stored as a config snapshot", Where(file=reader.name, offset=start))
    if version != OUTER_VERSION:
        raise unsupported_version(
            "a serializer snapshot", version, OUTER_VERSION, Where(file=reader.name, offset=start)
        )


def write_outer_version(writer: Writer) -> None:
    """Write what `read_outer_version` reads."""
    writer.i32(OUTER_VERSION)


def read_head(reader: Reader) -> Head:
    """Read class name and version of a versioned snapshot."""
    offset = reader.position
    return Head(reader.utf(), reader.i32(), reader.name, offset)


def write_head(writer: Writer, snapshot_class: str, version: int) -> None:
    """Write what `read_head` reads."""
    writer.utf(snapshot_class)
    writer.i32(version)


def read_composite_header(reader: Reader, head: Head) -> int:
    """Read magic and version of the outer data of a composite snapshot.

    Snapshots of version 2 and less have no such header; their outer data follow the layout of the snapshot version.

    Returns:
        The version of the outer data.

    Raises:
        FormatError: wrong magic number.
        UnsupportedVersionError: a composite version that no known release writes.
    """
    head.expect(*range(CURRENT_COMPOSITE + 1))
    if head.version <= LAST_LEGACY_COMPOSITE:
        return head.version
    _expect_magic(reader, COMPOSITE_MAGIC, head.snapshot_class)
    return reader.i32()


def write_composite_header(writer: Writer, version: int, outer_version: int) -> None:
    """Write what `read_composite_header` reads."""
    if version > LAST_LEGACY_COMPOSITE:
        writer.i32(COMPOSITE_MAGIC)
        writer.i32(outer_version)


def read_nested_count(reader: Reader) -> int:
    """Read the head of a list of nested snapshots and return how many follow.

    Raises:
        UnsupportedVersionError: a later version.
        FormatError: wrong magic, a number that is no version, or a count that cannot fit.
    """
    _expect_magic(reader, NESTED_MAGIC, "nested serializers")
    start = reader.position
    version = reader.i32()
    if version != NESTED_VERSION:
        where = Where(file=reader.name, offset=start)
        raise unsupported_version("a list of nested serializers", version, NESTED_VERSION, where)
    return reader.count(SMALLEST_SNAPSHOT)


def write_nested_count(writer: Writer, count: int) -> None:
    """Write what `read_nested_count` reads."""
    writer.i32(NESTED_MAGIC)
    writer.i32(NESTED_VERSION)
    writer.i32(count)


def read_optional_map(reader: Reader) -> list[tuple[str, Reader | None, Reader | None]]:
    """Read a linked optional map: entries of name, key frame and value frame, either of which may be absent.

    Frames come as readers over the same bytes, so that errors name offsets in the file; the caller reads them to
    their end.

    Raises:
        FormatError: wrong magic, or a frame outside the data.
    """
    start = reader.position
    magic = reader.i64()
    if magic != OPTIONAL_MAP_MAGIC:
        raise reader.error(f"a linked optional map starts with {OPTIONAL_MAP_MAGIC:#018x}, not {magic:#018x}", start)
    count = reader.count(SMALLEST_ENTRY)
    return [(reader.utf(), _read_frame(reader), _read_frame(reader)) for _ in range(count)]


def write_optional_map(writer: Writer, entries: Iterable[tuple[str, bytes | None, bytes | None]]) -> None:
    """Write what `read_optional_map` reads."""
    rows = list(entries)
    writer.i64(OPTIONAL_MAP_MAGIC)
    writer.i32(len(rows))
    for name, key, value in rows:
        writer.utf(name)
        _write_frame(writer, key)
        _write_frame(writer, value)


def _read_frame(reader: Reader) -> Reader | None:
    if not reader.bool():
        return None
    size = reader.i32()
    start = reader.position
    reader.skip(size)
    return Reader(reader.data, reader.name, start, start + size)


def _write_frame(writer: Writer, frame: bytes | None) -> None:
    writer.bool(frame is not None)
    if frame is not None:
        writer.bytes32(frame)


def _expect_magic(reader: Reader, magic: int, what: str) -> None:
    start = reader.position
    found = reader.i32()
    if found != magic:
        raise reader.error(f"{what}: magic number {magic:#010x} expected, {found & 0xFFFFFFFF:#010x} found", start)
