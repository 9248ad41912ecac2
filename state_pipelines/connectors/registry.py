"""Registry of connectors: which names their state has, and the functions that read and write its elements.

A connector registers a pair of functions per kind of state with `connector_state` (any serializer) or
`versioned_state` (elements are byte arrays of a `SimpleVersionedSerializer`, as for all new sources and sinks), and its
split enumerator with `enumerator_state`. The connectors of this package register on import. One of your own registers
the same way, or through an entry point of the group `state_pipelines.connectors` whose module does so; entry points are
loaded the first time a state is to be detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.scalar.codec import write_value
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.connectors.connector_state import ConnectorStateKind
from state_pipelines.connectors.element_frames import Versioned, read_versioned_array, write_versioned_array
from state_pipelines.errors import UsageError
from state_pipelines.plugins import load_plugins
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    import pyarrow as pa

    from state_pipelines.codecs.serializer_layouts import LayoutContext

ENTRY_POINT_GROUP = "state_pipelines.connectors"

Value = TypeVar("Value")
Rows = Callable[[Any], Iterable[Mapping[str, Any]]]
ReadElement = Callable[[bytes, tree.Serializer, "LayoutContext"], Value]
WriteElement = Callable[[Value, tree.Serializer, "LayoutContext"], bytes]
ReadVersioned = Callable[[Versioned], Value]
WriteVersioned = Callable[[Value], Versioned]


@dataclass(frozen=True)
class Edit:
    """The columns of a kind of state that may be set.

    Attributes:
        columns: their names; the others say what a row is about.
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
        accepts: whether the state could be stored with a serializer.
        read: (element, serializer, layout context) -> value.
        write: the mirror.
        rows: value -> its rows.
        columns: schema of the rows.
        last_resort: used only if no other codec can read the state.
        edit: columns that may be set; None without any.
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
    """Make a kind of state of a connector known; decorates the function that reads an element.

    The reader must fail (`StateError`) on bytes that the connector could not have written: detecting states rests on
    that.

    Args:
        connector: name of the connector.
        kind: kind of the state, or its text, such as `split`.
        operator_state_names: names of the list states.
        accepts: whether the state could be stored with a serializer.
        write: mirror of the reader.
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
        write: mirror of the reader.
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
    """Make the splits of a source (of Flink's `Source` interface) known; decorates the function that reads one."""
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
    """Make the split enumerator of a connector known; decorates the function that reads its checkpoint."""

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
    """Return everything that is registered, plug-ins included."""
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
    """Read an element of a state of byte arrays: i32 length, then version, mostly length, and bytes.

    Bytes after the array are skipped: they may belong to elements that the handle leaves out.

    Raises:
        FormatError: the length does not fit.
    """
    return read_versioned_array(Reader(element).bytes32())


def write_array_element(value: Versioned) -> bytes:
    """Write what `read_array_element` reads."""
    writer = Writer()
    writer.bytes32(write_versioned_array(value))
    return writer.getvalue()


def write_plain_element(value: Any, serializer: tree.Serializer, context: LayoutContext) -> bytes:
    """Write a value of the scalar codec as its own serializer does, for states of no `SimpleVersionedSerializer`.

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
