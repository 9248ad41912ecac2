"""Registry of connectors: functions that read and write their state, and detection of the connector of a state.

A connector registers a pair of functions per kind of state with `connector_state` (any serializer) or `versioned_state`
(elements are byte arrays of a `SimpleVersionedSerializer`, as for all new sources and sinks), and its split enumerator
with `enumerator_state`. The connectors of this package register on import. Other connectors register the same way, or
through an entry point of the group `state_pipelines.connectors` whose module does so; entry points are loaded the first
time a state is to be detected.

* `read_versioned`, `write_versioned` and others: frames around connector data: a version, mostly a length, then the
  bytes of the connector's serializer. Sources and sinks give Flink bytes and the version of the serializer that made
  them. Source: `SimpleVersionedSerialization`, `SimpleVersionedListState`, `SerdeUtils`.
* `detect`: the connector that wrote a state: a candidate by name and serializer that reads every element fully. Source
  of the frames: `SourceOperator`, `SinkWriterOperator`, `CommitterOperator`, `SourceCoordinator`,
  `SourceCoordinatorSerdeUtils`.
* `decode_splits`, `encode_elements`: elements as rows of splits, and back; `read_coordinator`, `write_coordinator`:
  state of source coordinators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.scalar import write_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import FormatError, StateError, UnsupportedError, UnsupportedVersionError, UsageError
from state_pipelines.plugins import load_plugins
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.serializers.tree import Serializer

Value = TypeVar("Value")

_TAKE_NEWER = "Install a newer release of this package, or read the state as raw bytes"


@dataclass(frozen=True)
class Versioned:
    """Bytes of a `SimpleVersionedSerializer`.

    Attributes:
        version: version of the serializer (`getVersion`).
        data: the bytes of the serializer.
        has_length: whether the frame holds the length of `data` too; only arrays of old releases do not.
    """

    version: int
    data: bytes = field(repr=False)
    has_length: bool = True

    def reader(self) -> Reader:
        """Return a cursor over the bytes."""
        return Reader(self.data)

    def expect(self, what: str, *versions: int) -> None:
        """Refuse a version that is not among `versions`.

        Raises:
            UnsupportedVersionError: the version is another one.
        """
        if self.version not in versions:
            known = ", ".join(map(str, versions))
            raise UnsupportedVersionError(
                f"version {self.version} of {what} is not supported (supported: {known})", hint=_TAKE_NEWER
            )

    @contextmanager
    def open(self, what: str, *versions: int) -> Iterator[Reader]:
        """Check the version, and yield a cursor over the bytes; the block must read all of them.

        Raises:
            UnsupportedVersionError: the version is another one.
            FormatError: bytes are left after the block.
        """
        self.expect(what, *versions)
        reader = self.reader()
        yield reader
        reader.expect_end(what)


def read_versioned(reader: Reader) -> Versioned:
    """Read i32 version, i32 length and the bytes (`writeVersionAndSerialize` into a stream).

    Raises:
        FormatError: the length does not fit.
    """
    return Versioned(reader.i32(), reader.bytes32())


def write_versioned(writer: Writer, value: Versioned) -> None:
    """Write i32 version, i32 length and the bytes; the inverse of `read_versioned`."""
    writer.i32(value.version)
    writer.bytes32(value.data)


def read_versioned_array(data: bytes) -> Versioned:
    """Read a whole array: version, length and bytes, or, from old releases, version and bytes.

    The second i32 is taken as the length if it equals the number of bytes after it.

    Raises:
        FormatError: there is not even a version.
    """
    reader = Reader(data)
    version = reader.i32()
    if reader.remaining >= 4 and int.from_bytes(data[4:8], "big", signed=True) == len(data) - 8:
        return Versioned(version, data[8:])
    return Versioned(version, data[4:], has_length=False)


def write_versioned_array(value: Versioned) -> bytes:
    """Encode a version and its bytes as an array; the inverse of `read_versioned_array`."""
    writer = Writer()
    if value.has_length:
        write_versioned(writer, value)
    else:
        writer.i32(value.version)
        writer.take(value.data)
    return writer.getvalue()


def read_versioned_list(reader: Reader) -> tuple[int, tuple[Versioned, ...]]:
    """Read i32 version, i32 count, then i32 length and bytes of each (`writeVersionAndSerializeList`).

    Returns:
        (the version, the elements); the version is that of every element.

    Raises:
        FormatError: count or a length does not fit.
    """
    version = reader.i32()
    return version, tuple(Versioned(version, reader.bytes32()) for _ in range(reader.count(4)))


def write_versioned_list(writer: Writer, version: int, elements: Sequence[bytes]) -> None:
    """Write i32 version, i32 count, then length and bytes of each element; the inverse of `read_versioned_list`."""
    writer.i32(version)
    writer.i32(len(elements))
    for element in elements:
        writer.bytes32(element)


def expect_magic(reader: Reader, magic: int, what: str) -> None:
    """Read an i32 that must be `magic`.

    Raises:
        FormatError: it is another one.
    """
    start = reader.position
    found = reader.i32() & 0xFFFFFFFF
    if found != magic:
        raise reader.error(f"{what} begins with {magic:#010x}, not {found:#010x}", start)


def write_magic(writer: Writer, magic: int) -> None:
    """Write a magic number as an i32; `expect_magic` reads it."""
    writer.take(magic.to_bytes(4, "big"))


def write_little_magic(writer: Writer, magic: int) -> None:
    """Write a magic number little-endian; `Reader.little_i32` reads it with the sign of an i32."""
    writer.take(magic.to_bytes(4, "little"))


def read_flag(reader: Reader) -> bool:
    """Read a boolean; a byte other than 0 or 1 shows that the bytes belong to another connector.

    Raises:
        FormatError: another byte.
    """
    start = reader.position
    value = reader.u8()
    if value > 1:
        raise reader.error(f"{value} is not a boolean", start)
    return value == 1


def write_optional(writer: Writer, value: Value | None, write: Callable[[Value], None]) -> None:
    """Write whether there is a value (the mirror of `read_flag`), and the value with a method of the writer."""
    writer.bool(value is not None)
    if value is not None:
        write(value)


def require(reader: Reader, condition: bool, what: str) -> None:
    """Refuse a value that the connector could not have written.

    Raises:
        FormatError: the condition is false; `what` is the message.
    """
    if not condition:
        raise reader.error(what)


def check_name(text: str | None, what: str) -> str:
    """Return `text`, which must not be empty or have control characters.

    Raises:
        FormatError: the text is None or empty, or has control characters.
    """
    if not text or not text.isprintable():
        raise FormatError(f"{what} {text!r:.80} is not one")
    return text


Row = dict[str, Any]
"""A row of the table of a state, by column."""

CONNECTOR = pa.field("connector", pa.string(), False)
LIST_INDEX = pa.field("list_index", pa.int32(), False)


class ConnectorStateKind(StrEnum):
    """Kind of state that a connector keeps."""

    SPLIT = "split"
    WRITER = "writer"
    COMMITTER = "committer"
    TRANSACTIONAL_IDS = "transactional-ids"
    ENUMERATOR = "enumerator"


@dataclass(frozen=True)
class ConnectorState:
    """Decoded state of a connector.

    Attributes:
        connector: such as `kafka`.
        kind: kind of the state.
        values: the content of each element, as defined by the module of the connector.
        rows: rows of each element; a committer has many per element.
        columns: schema of the rows.
    """

    connector: str
    kind: ConnectorStateKind
    values: tuple[object, ...]
    rows: tuple[tuple[Mapping[str, Any], ...], ...] = field(repr=False)
    columns: pa.Schema = field(repr=False)

    @property
    def schema(self) -> pa.Schema:
        """`connector`, `list_index` (position of the element), then the columns of the connector."""
        return pa.schema([CONNECTOR, LIST_INDEX, *self.columns])

    def to_batch(self) -> pa.RecordBatch:
        """Return all rows, in the order of the elements."""
        head = {"connector": self.connector}
        rows = [{**head, "list_index": index, **row} for index, rows in enumerate(self.rows) for row in rows]
        return pa.RecordBatch.from_pylist(rows, schema=self.schema)


@dataclass(frozen=True)
class AmbiguousState:
    """State that fits several connectors, which the bytes do not distinguish.

    Attributes:
        candidates: the state as each of them reads it.
    """

    candidates: tuple[ConnectorState, ...]

    @property
    def connectors(self) -> tuple[str, ...]:
        """Names of the connectors."""
        return tuple(candidate.connector for candidate in self.candidates)


@dataclass(frozen=True)
class CoordinatorState:
    """State of an operator coordinator.

    Attributes:
        size: total bytes.
        version: version of the format of source coordinators; None if the bytes are not those of one.
        enumerator: the checkpoint of the split enumerator; None if the bytes are not those of a source coordinator.
        rest: bytes after the checkpoint of the enumerator: in version 0 the split assignments, later none.
        state: the decoded enumerator; None when no known connector wrote it.
    """

    size: int
    version: int | None = None
    enumerator: Versioned | None = None
    rest: bytes = field(default=b"", repr=False)
    state: ConnectorState | AmbiguousState | None = None


ENTRY_POINT_GROUP = "state_pipelines.connectors"

Rows = Callable[[Any], Iterable[Mapping[str, Any]]]
ReadElement = Callable[[bytes, tree.Serializer, "LayoutContext"], Value]
WriteElement = Callable[[Value, tree.Serializer, "LayoutContext"], bytes]
ReadVersioned = Callable[[Versioned], Value]
WriteVersioned = Callable[[Value], Versioned]


@dataclass(frozen=True)
class Edit:
    """The columns that migrations may set in a kind of state.

    Attributes:
        columns: names of these columns; the others say which split or offset a row describes.
        apply: (value, its rows with other values in these columns) -> the new value; raises `ValueRangeError` for
            values that the connector could not have written.
    """

    columns: tuple[str, ...]
    apply: Callable[[Any, Sequence[Mapping[str, Any]]], Any]


@dataclass(frozen=True)
class Codec:
    """Reader, writer and columns of one kind of state of one connector.

    Attributes:
        connector: its name.
        kind: kind of the state.
        state_names: names of the operator list states that hold it; none for an enumerator.
        accepts: (serializer) -> whether the state can be stored with it.
        read: (element, serializer, layout context) -> value.
        write: the inverse of `read`.
        rows: value -> its rows.
        columns: schema of the rows.
        last_resort: whether it is used only if no other codec can read the state.
        edit: columns that migrations may set; None if there are none.
    """

    connector: str
    kind: ConnectorStateKind
    state_names: tuple[str, ...]
    accepts: Callable[[tree.Serializer], bool]
    read: ReadElement[Any]
    write: WriteElement[Any]
    rows: Rows
    columns: pa.Schema
    last_resort: bool = False
    edit: Edit | None = None


_codecs: dict[tuple[str, ConnectorStateKind], Codec] = {}


def connector_state(
    connector: str,
    *,
    kind: ConnectorStateKind | str,
    operator_state_names: Iterable[str],
    accepts: Callable[[tree.Serializer], bool],
    write: WriteElement[Value],
    rows: Callable[[Value], Iterable[Mapping[str, Any]]],
    columns: pa.Schema,
    edit: Edit | None = None,
) -> Callable[[ReadElement[Value]], ReadElement[Value]]:
    """Register a kind of state of a connector; decorates the function that reads an element.

    The reader must raise a `StateError` for bytes that the connector cannot have written: `detect` relies on that.

    Args:
        connector: name of the connector.
        kind: kind of the state, or its text, such as `split`.
        operator_state_names: names of the list states.
        accepts: whether the state could be stored with a serializer.
        write: writes a value as the reader reads it.
        rows: rows of a value.
        columns: schema of the rows.
        edit: columns that migrations may set.

    Raises:
        UsageError: another reader is registered for this kind of state of the connector.
    """

    def decorate(read: ReadElement[Value]) -> ReadElement[Value]:
        names = tuple(operator_state_names)
        _register(Codec(connector, _find_kind(kind), names, accepts, read, write, rows, columns, edit=edit))
        return read

    return decorate


def versioned_state(
    connector: str,
    *,
    kind: ConnectorStateKind | str,
    operator_state_names: Iterable[str],
    write: WriteVersioned[Value],
    rows: Callable[[Value], Iterable[Mapping[str, Any]]],
    columns: pa.Schema,
    last_resort: bool = False,
    edit: Edit | None = None,
) -> Callable[[ReadVersioned[Value]], ReadVersioned[Value]]:
    """Register a connector state whose elements are arrays of a `SimpleVersionedSerializer`.

    Example::

        @versioned_state("acme", kind="split", operator_state_names=["SourceReaderState"], write=write_split,
                         rows=lambda split: [{"shelf": split.shelf}], columns=pa.schema([("shelf", pa.string())]))
        def read_split(versioned):
            with versioned.open("a split of acme", 1) as reader:
                return AcmeSplit(reader.utf())

    Args:
        connector: name of the connector.
        kind: kind of the state, or its text, such as `split`.
        operator_state_names: names of the list states.
        write: writes a value as the reader reads it.
        rows: rows of a value.
        columns: schema of the rows.
        last_resort: used only if no other reader can read the state.
        edit: columns that migrations may set.
    """

    def decorate(read: ReadVersioned[Value]) -> ReadVersioned[Value]:
        _register(
            Codec(
                connector,
                _find_kind(kind),
                tuple(operator_state_names),
                is_byte_array,
                lambda element, _serializer, _context: read(read_array_element(element)),
                lambda value, _serializer, _context: write_array_element(write(value)),
                rows,
                columns,
                last_resort,
                edit,
            )
        )
        return read

    return decorate


def source_splits(
    connector: str,
    *,
    write: WriteVersioned[Value],
    rows: Callable[[Value], Iterable[Mapping[str, Any]]],
    columns: pa.Schema,
    edit: Edit | None = None,
) -> Callable[[ReadVersioned[Value]], ReadVersioned[Value]]:
    """Register the splits of a source (of Flink's `Source` interface); decorates the function that reads one."""
    return versioned_state(
        connector,
        kind=ConnectorStateKind.SPLIT,
        operator_state_names=["SourceReaderState"],
        write=write,
        rows=rows,
        columns=columns,
        edit=edit,
    )


def enumerator_state(
    connector: str,
    *,
    write: WriteVersioned[Value],
    rows: Callable[[Value], Iterable[Mapping[str, Any]]],
    columns: pa.Schema,
) -> Callable[[ReadVersioned[Value]], ReadVersioned[Value]]:
    """Register the split enumerator of a connector; decorates the function that reads its checkpoint."""

    def decorate(read: ReadVersioned[Value]) -> ReadVersioned[Value]:
        _register(
            Codec(
                connector,
                ConnectorStateKind.ENUMERATOR,
                (),
                is_byte_array,
                lambda element, _serializer, _context: read(read_versioned_array(element)),
                lambda value, _serializer, _context: write_versioned_array(write(value)),
                rows,
                columns,
            )
        )
        return read

    return decorate


def list_codecs(kind: ConnectorStateKind | None = None) -> tuple[Codec, ...]:
    """Return the registered codecs, those of plug-ins included."""
    load_plugins(ENTRY_POINT_GROUP, "connector")
    return tuple(codec for codec in _codecs.values() if kind is None or codec.kind is kind)


def find_codec(connector: str, kind: ConnectorStateKind) -> Codec:
    """Return the codec of a kind of state of a connector.

    Raises:
        UsageError: none is registered.
    """
    for codec in list_codecs(kind):
        if codec.connector == connector:
            return codec
    raise UsageError(f"no connector {connector} with {kind} state is registered")


def is_byte_array(serializer: tree.Serializer) -> bool:
    """Return whether a state holds byte arrays (`BytePrimitiveArraySerializer`)."""
    return isinstance(serializer, tree.Basic) and serializer.kind == BasicKind.BYTE_PRIMITIVE_ARRAY


def read_array_element(element: bytes) -> Versioned:
    """Read an element of a state of byte arrays: i32 length of the array, then version, length and bytes.

    Old releases omit the second length. Bytes after the array are skipped: they may belong to elements whose offsets
    the handle does not list.

    Raises:
        FormatError: the length does not fit.
    """
    return read_versioned_array(Reader(element).bytes32())


def write_array_element(value: Versioned) -> bytes:
    """Encode an element of a state of byte arrays; the inverse of `read_array_element`."""
    writer = Writer()
    writer.bytes32(write_versioned_array(value))
    return writer.getvalue()


def write_plain_element(value: Any, serializer: tree.Serializer, context: LayoutContext) -> bytes:
    """Write a value of the scalar codec with the serializer of its state, which is no `SimpleVersionedSerializer`.

    Raises:
        ValueRangeError: the value does not fit the serializer.
        UnsupportedError: the serializer is not covered.
    """
    writer = Writer()
    write_value(derive_layout(serializer, context), writer, value)
    return writer.getvalue()


def _find_kind(kind: ConnectorStateKind | str) -> ConnectorStateKind:
    if kind not in tuple(ConnectorStateKind):
        raise UsageError(f"{kind!r} is no kind of connector state", hint=f"Choose from {', '.join(ConnectorStateKind)}")
    return ConnectorStateKind(kind)


def _register(codec: Codec) -> None:
    key = (codec.connector, codec.kind)
    if key in _codecs:
        raise UsageError(f"a reader for the {codec.kind} state of {codec.connector} is registered already")
    _codecs[key] = codec


_BYTES = basic(BasicKind.BYTE_PRIMITIVE_ARRAY)
_COORDINATOR_VERSIONS = (0, 1)


def detect(
    state_name: str, serializer: Serializer, elements: Sequence[bytes], context: LayoutContext | None = None
) -> ConnectorState | AmbiguousState | None:
    """Find the connector that wrote an operator list state, and decode it.

    Args:
        state_name: name of the state.
        serializer: serializer of its elements.
        elements: bytes of all elements, of one subtask or of all of them; the more, the surer the answer.
        context: context of the layouts; only legacy connectors need it.

    Returns:
        None if no known connector wrote the state, or if it has no elements and its name is ambiguous.
    """
    candidates = find_candidates(state_name, serializer)
    if not elements and len(candidates) > 1:
        return None
    return _decide(candidates, serializer, elements, context or LayoutContext())


def find_candidates(state_name: str, serializer: Serializer) -> tuple[Codec, ...]:
    """Return the connectors that have an operator list state of this name and serializer; no element is looked at."""
    return tuple(codec for codec in list_codecs() if state_name in codec.state_names and codec.accepts(serializer))


def decode_splits(
    state_name: str, serializer: Serializer, elements: Sequence[bytes], context: LayoutContext | None = None
) -> pa.RecordBatch | None:
    """Return the elements of an operator list state as a table; see `detect` for the arguments.

    Returns:
        Columns `connector`, `list_index` and the connector's columns; None when no known connector wrote the state.

    Raises:
        UnsupportedError: several connectors could have written the state.
    """
    state = detect(state_name, serializer, elements, context)
    if isinstance(state, AmbiguousState):
        names = " and ".join(state.connectors)
        raise UnsupportedError(
            f"the state could be that of {names}", hint="Call `detect`, which returns what each of them reads"
        )
    return None if state is None else state.to_batch()


def encode_elements(
    state: ConnectorState, serializer: Serializer, context: LayoutContext | None = None
) -> tuple[bytes, ...]:
    """Write the elements of a state that `detect` has decoded.

    Raises:
        UsageError: no connector of this name has such a state.
    """
    codec = find_codec(state.connector, state.kind)
    return tuple(codec.write(value, serializer, context or LayoutContext()) for value in state.values)


def read_coordinator(data: bytes) -> CoordinatorState:
    """Read the state of a source coordinator; of any other operator coordinator, return the size only.

    A source coordinator writes i32 version, i32 version of the enumerator's serializer, i32 length and the bytes;
    in version 0 (up to 1.12) the split assignments follow.
    """
    reader = Reader(data)
    try:
        version = reader.i32()
        enumerator = read_versioned(reader)
    except FormatError:
        return CoordinatorState(len(data))
    if version not in _COORDINATOR_VERSIONS or enumerator.version < 0 or (version and reader.remaining):
        return CoordinatorState(len(data))
    rest = reader.take(reader.remaining)
    element = write_versioned_array(enumerator)
    state = _decide(list_codecs(ConnectorStateKind.ENUMERATOR), _BYTES, [element], LayoutContext())
    return CoordinatorState(len(data), version, enumerator, rest, state)


def write_coordinator(state: CoordinatorState) -> bytes:
    """Encode the state of a source coordinator with the bytes in `enumerator`; the decoded `state` is not used.

    Raises:
        UsageError: the state is not that of a source coordinator.
    """
    if state.version is None or state.enumerator is None:
        raise UsageError(
            "the bytes of this coordinator state are not those of a source coordinator", hint="Copy the bytes instead"
        )
    writer = Writer()
    writer.i32(state.version)
    write_versioned(writer, Versioned(state.enumerator.version, state.enumerator.data))
    writer.take(state.rest)
    return writer.getvalue()


def _decide(
    candidates: Sequence[Codec], serializer: Serializer, elements: Sequence[bytes], context: LayoutContext
) -> ConnectorState | AmbiguousState | None:
    for last_resort in (False, True):
        found = [
            state
            for codec in candidates
            if codec.last_resort is last_resort and (state := _try(codec, serializer, elements, context)) is not None
        ]
        if len(found) == 1:
            return found[0]
        if found:
            return AmbiguousState(tuple(sorted(found, key=lambda state: state.connector)))
    return None


def _try(
    codec: Codec, serializer: Serializer, elements: Sequence[bytes], context: LayoutContext
) -> ConnectorState | None:
    try:
        values = tuple(codec.read(element, serializer, context) for element in elements)
    except StateError:
        # An error only shows that this connector did not write the state.
        return None
    rows = tuple(tuple(codec.rows(value)) for value in values)
    return ConnectorState(codec.connector, codec.kind, values, rows, codec.columns)
