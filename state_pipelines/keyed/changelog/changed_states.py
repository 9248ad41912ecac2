"""States with logged changes: the fields of a change, and the records that result.

Source: the appliers in `org.apache.flink.state.changelog.restore`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.binary.data_views import Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import walk_layout
from state_pipelines.codecs.scalar.codec import write_value
from state_pipelines.codecs.scalar.self_describing import unknown_class
from state_pipelines.errors import FormatError, UnsupportedError, Where
from state_pipelines.keyed.changelog.changes import Operation
from state_pipelines.keyed.heap.entries import find_unread_class
from state_pipelines.keyed.record_bounds import Measure, take_bytes
from state_pipelines.keyed.record_layout import KeyedRecords, derive_keyed_layout
from state_pipelines.serializers.build import basic, list_of, map_of
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import BackendStateType, keyed_state
from state_pipelines.serializers.tree import BasicKind, MapOf

if TYPE_CHECKING:
    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.changelog.change_streams import Changes
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

BYTES = basic(BasicKind.BYTE_PRIMITIVE_ARRAY)

HEAD = 3
"""Bytes of operation and state id."""

REST = lay.Span(lay.Rest())
SETS = (Operation.SET, Operation.SET_INTERNAL)
_VALUE_OPERATIONS = {
    StateKind.VALUE: (Operation.CLEAR, Operation.SET),
    StateKind.REDUCING: (Operation.CLEAR, *SETS, Operation.MERGE_NS),
    StateKind.AGGREGATING: (Operation.CLEAR, *SETS, Operation.MERGE_NS),
    StateKind.LIST: (Operation.CLEAR, *SETS, Operation.ADD, Operation.ADD_ELEMENT, Operation.MERGE_NS),
    StateKind.MAP: (
        Operation.CLEAR,
        Operation.ADD,
        Operation.ADD_ELEMENT,
        Operation.ADD_OR_UPDATE_ELEMENT,
        Operation.REMOVE_ELEMENT,
    ),
    StateKind.TIMER: (Operation.ADD_ELEMENT, Operation.REMOVE_ELEMENT),
}


@dataclass(frozen=True)
class ChangedState:
    """A state that has changes.

    Attributes:
        name: its name, for errors.
        layout: of its records.
        file: name of the log, for errors.
        unknown: why the ends of values (list elements, map values) cannot be found; None when they can.
    """

    name: str
    layout: KeyedLayout
    file: str
    unknown: UnsupportedError | None = None

    @property
    def scope(self) -> tuple[tuple[str, lay.Layout], ...]:
        """Bounds of key and namespace of changes, which store no lengths."""
        return tuple((name, lay.Span(each)) for name, each in self.bare[:2])

    @property
    def bare(self) -> tuple[tuple[str, lay.Layout], ...]:
        """The parts of a key without the lengths that ambiguous ones have in records."""
        return tuple(
            (name, each.inner if isinstance(each, lay.MeasuredKey) else each) for name, each in self.layout.key.fields
        )

    @property
    def is_ambiguous(self) -> bool:
        """Return whether records have lengths after key and namespace."""
        return isinstance(self.layout.key.fields[0][1], lay.MeasuredKey)

    @property
    def value(self) -> lay.Layout:
        """Of the value; of a list one element, of a map one value without its null flag."""
        value = self.layout.value
        match self.layout.state_type, value:
            case StateKind.LIST, lay.Delimited(element=element):
                return element
            case StateKind.MAP, lay.Optional(inner=inner):
                return inner
            case _:
                return value


def derive_replay_layout(
    info: StateMetaInfo, key_serializer: Serializer, max_parallelism: int, context: LayoutContext
) -> tuple[KeyedLayout, UnsupportedError | None]:
    """Layouts by which the changes of a state are replayed; values that cannot be decoded are bytes.

    Returns:
        (the layouts, why values are bytes or None).

    Raises:
        UnsupportedError: keys, namespaces, timers or keys of a map cannot be decoded.
    """
    try:
        layout = derive_keyed_layout(info, key_serializer, max_parallelism, context)
    except UnsupportedError as error:
        if info.backend_type is not BackendStateType.KEY_VALUE:
            raise
        unknown = error
    else:
        nodes = (each for inner in walk_layout(layout.value) if (each := find_unread_class(inner)) is not None)
        node = next(nodes, None)
        if node is None or info.backend_type is not BackendStateType.KEY_VALUE:
            return layout, None
        unknown = unknown_class(node)
    state_type, value = info.state_type or StateKind.VALUE, info.value_serializer
    if state_type == StateKind.MAP:
        if not isinstance(value, MapOf):
            raise unknown
        stand_in: Serializer = map_of(value.key, BYTES)
    else:
        stand_in = BYTES if state_type != StateKind.LIST else list_of(BYTES)
    known = keyed_state(info.name, state_type, stand_in, info.namespace_serializer)
    layout = derive_keyed_layout(known, key_serializer, max_parallelism, context)
    match state_type:
        case StateKind.LIST:
            rest: lay.Layout = lay.Delimited(lay.Rest())
        case StateKind.MAP:
            rest = lay.Optional(lay.Rest(), rest_is_null=True)
        case _:
            rest = lay.Rest()
    return replace(layout, value=rest), unknown


def operations_of(changes: Changes) -> npt.NDArray[np.uint8]:
    """u8[n], the operation of each change."""
    operations: npt.NDArray[np.uint8] = changes.data[changes.starts]
    return operations


def state_ids_of(changes: Changes) -> npt.NDArray[np.int64]:
    """i64[n], the state id of each change, as its own log numbers states."""
    return changes.data[changes.starts + 1].astype(np.int64) << 8 | changes.data[changes.starts + 2]


def check_operations(changes: Changes, state_type: StateKind) -> None:
    """Make sure that a state has only operations that belong to it.

    Raises:
        UnsupportedError: timers were polled in the way of Flink 1.14, which does not say which one.
        FormatError: another operation, or a type that no state has.
    """
    known = _VALUE_OPERATIONS.get(state_type)
    if known is None:
        raise FormatError(f"the changes of a state of type {state_type} are not known", where=Where(offset=0))
    for operation in np.unique(operations_of(changes)).tolist():
        if operation in known:
            continue
        row = int(np.flatnonzero(operations_of(changes) == operation)[0])
        where = Where(offset=int(changes.starts[row]))
        if operation == Operation.METADATA and state_type == StateKind.TIMER:
            raise UnsupportedError(
                "the log says that a timer fired, but not which one, as Flink 1.14 wrote it",
                where=where,
                hint="Take a savepoint (`flink savepoint --type canonical`), and use that",
            )
        raise FormatError(f"operation {operation} is none of a {state_type} state", where=where)


def find_scopes(state: ChangedState, changes: Changes) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """(key and namespace of each change as records have them, where its payload starts)."""
    spans = measure(lay.Struct((*state.scope, ("rest", REST))), changes, HEAD, state)
    (key_starts, key_ends), (starts, ends) = span(spans.field(0)), span(spans.field(1))
    if not state.is_ambiguous:
        return take_bytes(changes.data, key_starts, ends), ends
    keys, namespaces = (
        take_bytes(changes.data, *each).to_pylist() for each in ((key_starts, key_ends), (starts, ends))
    )
    scopes = [compose(key, namespace, ambiguous=True) for key, namespace in zip(keys, namespaces, strict=True)]
    return pa.array(scopes, pa.binary()), ends


def compose(key: bytes, namespace: bytes, *, ambiguous: bool) -> bytes:
    """Key and namespace as a record has them: with their lengths when `ambiguous`."""
    if not ambiguous:
        return key + namespace
    writer = Writer()
    for encoded in (key, namespace):
        write_value(lay.MeasuredKey(lay.Rest()), writer, encoded)
    return writer.getvalue()


def require_ends(state: ChangedState, changes: Changes, starts: npt.NDArray[np.int64]) -> None:
    """Make sure that the ends of values in lists or maps of logged changes can be found.

    A list of a single element of unknown type ends with its change.

    Args:
        state: the state.
        changes: those that hold an i32 count and as many values.
        starts: offset of each count.

    Raises:
        UnsupportedError: they cannot, as nothing reads the values.
    """
    if state.unknown is None:
        return
    for row, start in enumerate(starts.tolist()):
        if int.from_bytes(changes.data[start : start + 4].tobytes(), "big", signed=True) > 1:
            raise UnsupportedError(
                f"the log holds several values in one change, and their ends are unknown: {state.unknown.what}",
                where=Where(offset=int(changes.starts[row])),
                hint=state.unknown.hint,
            )


def measure(layout: lay.Layout, changes: Changes, start: npt.NDArray[np.int64] | int, state: ChangedState) -> pa.Array:
    """Measure what every change holds from `start` on: `HEAD` after its first byte, or positions."""
    starts = changes.starts + start if isinstance(start, int) else start
    return Measure(layout).spans(changes.data, starts, changes.ends, offset=0, name=state.file)


def span(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Starts and stops of an array of spans."""
    start, stop = (array.field(name).to_numpy(zero_copy_only=False) for name in ("start", "stop"))
    return start, stop


def parents(lists: pa.Array) -> npt.NDArray[np.int64]:
    """i64, the list that each element is in."""
    return np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy(zero_copy_only=False))


def base_scopes(state: ChangedState, base: KeyedRecords) -> pa.Array:
    """Key and namespace of the records of a map."""
    names = ("state_key", "state_namespace")
    fields = dict(state.layout.key.fields)
    layout = lay.Struct((*((name, lay.Span(fields[name])) for name in names), ("map_key", REST)))
    spans = Measure(layout).spans(base.data, base.key_starts, base.key_ends, offset=base.offset, name=base.file)
    return take_bytes(base.data, base.key_starts, span(spans.field(1))[1])


def keep(base: KeyedRecords | None, touched: pa.Array, keys: pa.Array | None = None) -> KeyedRecords | None:
    """The records whose key (or its surrogate in `keys`) is not in `touched`."""
    if base is None:
        return None
    if keys is None:
        keys = take_bytes(base.data, base.key_starts, base.key_ends)
    return base.select(np.flatnonzero(pc.invert(pc.is_in(keys, value_set=touched))))


def make_records(
    state: ChangedState,
    keys: pa.Array,
    values: pa.Array,
    key_groups: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int64],
) -> KeyedRecords:
    """Records of some rows, those without a value left out."""
    rows = rows[values.take(pa.array(rows)).is_valid().to_numpy(zero_copy_only=False)]
    taken = pa.array(rows)
    columns = [flatten_bytes(array.take(taken)) for array in (keys, values)]
    shift = len(columns[0][0])
    (key_starts, key_ends), (value_starts, value_ends) = columns[0][1:], (each + shift for each in columns[1][1:])
    data = np.concatenate([columns[0][0], columns[1][0]])
    return KeyedRecords(key_groups[rows], data, key_starts, key_ends, value_starts, value_ends, 0, state.file)


def flatten_bytes(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(bytes, starts, ends) of a binary array without nulls."""
    _, offset_buffer, data = array.buffers()
    if not len(array) or offset_buffer is None:
        none = np.zeros(0, np.int64)
        return np.zeros(0, np.uint8), none, none
    offsets = np.frombuffer(offset_buffer, np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    flat = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return flat[offsets[0] : offsets[-1]], offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
