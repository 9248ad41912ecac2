"""Replay of logged changes over the records of a state.

* `ChangedState`: the logged changes of a state; `measure` and `span` give the fields of a change.
* `replay`: the resulting records. Where the last change of a key decides (values, maps, timers), many changes are
  replayed at once. Source: the appliers in `org.apache.flink.state.changelog.restore`.
* `replay_in_order`: sequential replay of changes whose order matters: lists, and values whose namespaces were merged.
  Source: `ListStateChangeApplier`, `KvStateChangeApplier`, `RocksDBListState`, `AbstractHeapMergingState`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.binary.data_views import Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import walk_layout
from state_pipelines.codecs.scalar import unknown_class, write_value
from state_pipelines.errors import FormatError, UnsupportedError, Where
from state_pipelines.keyed.changelog.changes import StateChangeOperation
from state_pipelines.keyed.heap_entries import find_unread_class
from state_pipelines.keyed.record_layout import KeyedRecords, Measure, concat_records, derive_keyed_layout, take_bytes
from state_pipelines.serializers.build import basic, list_of, map_of
from state_pipelines.serializers.state_meta_info import BackendStateType, keyed_state
from state_pipelines.serializers.tree import BasicKind, MapOf, StateKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.changelog.changes import Changes
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

BYTES = basic(BasicKind.BYTE_PRIMITIVE_ARRAY)

HEAD = 3
"""Bytes of operation and state id."""

REST = lay.Span(lay.Rest())
SETS = (StateChangeOperation.SET, StateChangeOperation.SET_INTERNAL)
_VALUE_OPERATIONS = {
    StateKind.VALUE: (StateChangeOperation.CLEAR, StateChangeOperation.SET),
    StateKind.REDUCING: (StateChangeOperation.CLEAR, *SETS, StateChangeOperation.MERGE_NS),
    StateKind.AGGREGATING: (StateChangeOperation.CLEAR, *SETS, StateChangeOperation.MERGE_NS),
    StateKind.LIST: (
        StateChangeOperation.CLEAR,
        *SETS,
        StateChangeOperation.ADD,
        StateChangeOperation.ADD_ELEMENT,
        StateChangeOperation.MERGE_NS,
    ),
    StateKind.MAP: (
        StateChangeOperation.CLEAR,
        StateChangeOperation.ADD,
        StateChangeOperation.ADD_ELEMENT,
        StateChangeOperation.ADD_OR_UPDATE_ELEMENT,
        StateChangeOperation.REMOVE_ELEMENT,
    ),
    StateKind.TIMER: (StateChangeOperation.ADD_ELEMENT, StateChangeOperation.REMOVE_ELEMENT),
}


@dataclass(frozen=True)
class ChangedState:
    """A state with logged changes, and the layouts by which they are parsed.

    Attributes:
        name: its name, for errors.
        layout: layout of its records.
        file: name of the log, for errors.
        unknown: why the ends of values (list elements, map values) cannot be found; None when they can.
    """

    name: str
    layout: KeyedLayout
    file: str
    unknown: UnsupportedError | None = None

    @property
    def scope(self) -> tuple[tuple[str, lay.Layout], ...]:
        """Layouts that find the bounds of key and namespace in changes, which store no lengths."""
        return tuple((name, lay.Span(each)) for name, each in self.bare[:2])

    @property
    def bare(self) -> tuple[tuple[str, lay.Layout], ...]:
        """Layouts of the fields of the key, without the lengths that records store for ambiguous keys."""
        return tuple(
            (name, each.inner if isinstance(each, lay.MeasuredKey) else each) for name, each in self.layout.key.fields
        )

    @property
    def is_ambiguous(self) -> bool:
        """Return whether records have lengths after key and namespace."""
        return isinstance(self.layout.key.fields[0][1], lay.MeasuredKey)

    @property
    def value(self) -> lay.Layout:
        """Layout of the value; in list state of one element, in map state of one value without its null flag."""
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
    """Derive the layouts by which the changes of a state are replayed; values that cannot be decoded stay bytes.

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
    """Return the operation of each change, u8[n]."""
    operations: npt.NDArray[np.uint8] = changes.data[changes.starts]
    return operations


def state_ids_of(changes: Changes) -> npt.NDArray[np.int64]:
    """Return the state id of each change, i64[n]; ids are those of its change set, not of the file."""
    return changes.data[changes.starts + 1].astype(np.int64) << 8 | changes.data[changes.starts + 2]


def check_operations(changes: Changes, state_type: StateKind) -> None:
    """Make sure that a state has only operations that belong to it.

    Raises:
        UnsupportedError: a timer was polled, and the log does not say which one (Flink 1.14).
        FormatError: an operation does not belong to the state type, or Flink logs no changes of such a state.
    """
    known = _VALUE_OPERATIONS.get(state_type)
    if known is None:
        raise FormatError(f"Flink logs no changes of {state_type} state", where=Where(offset=0))
    for operation in np.unique(operations_of(changes)).tolist():
        if operation in known:
            continue
        row = int(np.flatnonzero(operations_of(changes) == operation)[0])
        where = Where(offset=int(changes.starts[row]))
        if operation == StateChangeOperation.METADATA and state_type == StateKind.TIMER:
            raise UnsupportedError(
                "the log says that a timer fired, but not which one, as Flink 1.14 wrote it",
                where=where,
                hint="Take a savepoint (`flink savepoint --type canonical`), and use that",
            )
        raise FormatError(f"operation {operation} is not one that Flink logs for {state_type} state", where=where)


def find_scopes(state: ChangedState, changes: Changes) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return key and namespace of each change in the layout of records, and where the operands after them start."""
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
    """Join key and namespace as a record has them: each followed by its length when `ambiguous`."""
    if not ambiguous:
        return key + namespace
    writer = Writer()
    for encoded in (key, namespace):
        write_value(lay.MeasuredKey(lay.Rest()), writer, encoded)
    return writer.getvalue()


def require_ends(state: ChangedState, changes: Changes, starts: npt.NDArray[np.int64]) -> None:
    """Make sure that the ends of values in lists or maps of logged changes can be found.

    A single value of unknown type needs no reader: it ends where its change ends.

    Args:
        state: the state.
        changes: those that hold an i32 count and as many values.
        starts: offset of each count.

    Raises:
        UnsupportedError: a change holds several values, and nothing reads them.
    """
    if state.unknown is None:
        return
    for row, start in enumerate(starts.tolist()):
        if int.from_bytes(changes.data[start : start + 4].tobytes(), "big", signed=True) > 1:
            raise UnsupportedError(
                f"a logged change holds several values, and their ends are unknown: {state.unknown.what}",
                where=Where(offset=int(changes.starts[row])),
                hint=state.unknown.hint,
            )


def measure(layout: lay.Layout, changes: Changes, start: npt.NDArray[np.int64] | int, state: ChangedState) -> pa.Array:
    """Parse every change from `start` on by a layout of spans; return the spans as an Arrow array, one row per change.

    `start` is an offset from the start of each change, or i64[n], a position in the data for each change.
    """
    starts = changes.starts + start if isinstance(start, int) else start
    return Measure(layout).spans(changes.data, starts, changes.ends, offset=0, name=state.file)


def span(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the starts and the ends of the spans in an array."""
    start, stop = (array.field(name).to_numpy(zero_copy_only=False) for name in ("start", "stop"))
    return start, stop


def parents(lists: pa.Array) -> npt.NDArray[np.int64]:
    """Return the index of the list that contains each element, i64."""
    return np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy(zero_copy_only=False))


def base_scopes(state: ChangedState, base: KeyedRecords) -> pa.Array:
    """Return the bytes of key and namespace, without the map key, of each record of a map state."""
    names = ("state_key", "state_namespace")
    fields = dict(state.layout.key.fields)
    layout = lay.Struct((*((name, lay.Span(fields[name])) for name in names), ("map_key", REST)))
    spans = Measure(layout).spans(base.data, base.key_starts, base.key_ends, offset=base.offset, name=base.file)
    return take_bytes(base.data, base.key_starts, span(spans.field(1))[1])


def keep(base: KeyedRecords | None, touched: pa.Array, keys: pa.Array | None = None) -> KeyedRecords | None:
    """Return the records of `base` whose key is not in `touched`, the keys that changes have written or removed.

    `keys` has one key per record to compare instead of the stored key, such as key and namespace without the map key.
    """
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
    """Make records from some rows of `keys` and `values`; a row whose value is null gives no record."""
    rows = rows[values.take(pa.array(rows)).is_valid().to_numpy(zero_copy_only=False)]
    taken = pa.array(rows)
    columns = [flatten_bytes(array.take(taken)) for array in (keys, values)]
    shift = len(columns[0][0])
    (key_starts, key_ends), (value_starts, value_ends) = columns[0][1:], (each + shift for each in columns[1][1:])
    data = np.concatenate([columns[0][0], columns[1][0]])
    return KeyedRecords(key_groups[rows], data, key_starts, key_ends, value_starts, value_ends, 0, state.file)


def flatten_bytes(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (bytes, starts, ends) of a binary array without nulls."""
    _, offset_buffer, data = array.buffers()
    if not len(array) or offset_buffer is None:
        none = np.zeros(0, np.int64)
        return np.zeros(0, np.uint8), none, none
    offsets = np.frombuffer(offset_buffer, np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    flat = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return flat[offsets[0] : offsets[-1]], offsets[:-1] - offsets[0], offsets[1:] - offsets[0]


_UNKNOWN = object()


def replay_in_order(
    state: ChangedState, base: KeyedRecords | None, changes: Changes
) -> tuple[KeyedRecords | None, KeyedRecords]:
    """Replay the changes of a list, reducing or aggregating state (see `replay.replay`).

    Returns:
        (the records of `base` without changes, the records of the changed keys).

    Raises:
        UnsupportedError: two values are merged, and the result is not overwritten later.
    """
    operations = operations_of(changes)
    scopes, starts = find_scopes(state, changes)
    keys = scopes.to_pylist()
    merges = _find_merges(state, changes, starts)
    merged = [each for target, sources in merges.values() for each in (target, *sources)]
    touched = pa.concat_arrays([scopes, pa.array(merged, pa.binary())]).unique()
    is_list = state.layout.state_type == StateKind.LIST
    held: dict[bytes, object] = {}
    for key, value in _lookup(base, touched):
        # A list without bytes is an empty list, which heap state may hold; it is not a list of one empty element.
        held[key] = ([value] if value else []) if is_list else value
    groups: dict[bytes, int] = {}
    lists = _find_lists(state, changes, starts) if is_list else {}
    raw = changes.data.tobytes() if len(keys) else b""
    ends, key_groups = changes.ends.tolist(), changes.key_groups.tolist()
    for row, (operation, start) in enumerate(zip(operations.tolist(), starts.tolist(), strict=True)):
        key = keys[row]
        groups[key] = key_groups[row]
        if operation == StateChangeOperation.MERGE_NS:
            key, sources = merges[row]
            _merge(held, key, sources, is_list=is_list)
            groups[key] = key_groups[row]
        elif operation == StateChangeOperation.CLEAR:
            held.pop(key, None)
        elif not is_list:
            held[key] = raw[start : ends[row]]
        elif operation == StateChangeOperation.ADD_ELEMENT:
            _append(held, key, [raw[start : ends[row]]])
        elif operation == StateChangeOperation.ADD:
            _append(held, key, lists[row])
        else:
            held[key] = lists[row]
    if any(value is _UNKNOWN for value in held.values()):
        _refuse_merge(state)
    return keep(base, touched), _make_scalar_records(state, held, groups)


def _append(held: dict[bytes, object], key: bytes, elements: Sequence[bytes]) -> None:
    value = held.setdefault(key, [])
    assert isinstance(value, list)
    value.extend(elements)


def _merge(held: dict[bytes, object], target: bytes, sources: Iterable[bytes], *, is_list: bool) -> None:
    """Append the contents of the sources to the target (`InternalMergingState.mergeNamespaces`)."""
    for source in sources:
        value = held.pop(source, None)
        if value is None:
            continue
        if is_list:
            assert isinstance(value, list)
            _append(held, target, value)
        else:
            # Only the user's function can merge two values. Mostly a later change sets the target: no error yet.
            held[target] = _UNKNOWN if target in held else value


def _refuse_merge(state: ChangedState) -> NoReturn:
    raise UnsupportedError(
        f"the log merges windows of a {state.layout.state_type} state, which needs the user's function",
        where=Where(file=state.file, state=state.name),
        hint="Take a savepoint (`flink savepoint --type canonical`), which holds the merged values, and use that",
    )


def _find_merges(
    state: ChangedState, changes: Changes, starts: npt.NDArray[np.int64]
) -> dict[int, tuple[bytes, list[bytes]]]:
    """Return the target and the source namespaces of each merge, each with its key, by row in `changes`."""
    rows = np.flatnonzero(operations_of(changes) == StateChangeOperation.MERGE_NS)
    if not len(rows):
        return {}
    namespace = lay.Span(state.bare[1][1])
    layout = lay.Struct((("target", namespace), ("sources", lay.Sequence(namespace))))
    chosen = changes.select(rows)
    spans = measure(layout, chosen, starts[rows], state).to_pylist()
    keys = measure(lay.Struct((*state.scope, ("rest", REST))), chosen, HEAD, state).field(0).to_pylist()
    raw = changes.data.tobytes()

    def scope(key: dict[str, int], namespace: dict[str, int]) -> bytes:
        encoded = [raw[each["start"] : each["stop"]] for each in (key, namespace)]
        return compose(encoded[0], encoded[1], ambiguous=state.is_ambiguous)

    return {
        int(row): (scope(key, each["target"]), [scope(key, source) for source in each["sources"]])
        for row, key, each in zip(rows, keys, spans, strict=True)
    }


def _find_lists(state: ChangedState, changes: Changes, starts: npt.NDArray[np.int64]) -> dict[int, list[bytes]]:
    """Return the elements of each change that holds a whole list, by row in `changes`."""
    rows = np.flatnonzero(np.isin(operations_of(changes), (*SETS, StateChangeOperation.ADD)))
    if not len(rows):
        return {}
    require_ends(state, changes.select(rows), starts[rows])
    lists = measure(lay.Sequence(lay.Span(state.value)), changes.select(rows), starts[rows], state)
    elements = take_bytes(changes.data, *span(lists.flatten())).to_pylist()
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(pc.list_value_length(lists).to_numpy())])
    return {int(row): elements[offsets[index] : offsets[index + 1]] for index, row in enumerate(rows)}


def _lookup(base: KeyedRecords | None, keys: pa.Array) -> Iterable[tuple[bytes, bytes]]:
    """Return key and value of each record of `base` that has one of `keys`."""
    if base is None:
        return ()
    mask = pc.is_in(take_bytes(base.data, base.key_starts, base.key_ends), value_set=keys)
    found = base.select(np.flatnonzero(mask))
    return zip(
        take_bytes(found.data, found.key_starts, found.key_ends).to_pylist(),
        take_bytes(found.data, found.value_starts, found.value_ends).to_pylist(),
        strict=True,
    )


def _make_scalar_records(state: ChangedState, held: dict[bytes, object], groups: dict[bytes, int]) -> KeyedRecords:
    keys: list[bytes] = []
    values: list[bytes] = []
    for key, value in held.items():
        if isinstance(value, list):
            if not value:
                continue
            value = b",".join(value)
        assert isinstance(value, bytes)
        keys.append(key)
        values.append(value)
    key_groups = np.array([groups[key] for key in keys], np.int32)
    rows = np.arange(len(keys))
    return make_records(state, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), key_groups, rows)


def replay(state: ChangedState, base: KeyedRecords | None, changes: Changes) -> KeyedRecords:
    """Return the records of a state after its changes, ascending by key group.

    Args:
        state: the state.
        base: its records before the changes, of the same key groups; None if there are none.
        changes: all of the state, at least one; in order.

    Raises:
        FormatError: a change does not fit the serializers, or its operation not the state.
        UnsupportedError: a merge needs the user's code, or data cannot be parsed.
    """
    state_type = state.layout.state_type
    check_operations(changes, state_type)
    if state_type == StateKind.TIMER:
        kept, added = _replay_timers(state, base, changes)
    elif state_type == StateKind.MAP:
        kept, added = _replay_map(state, base, changes)
    elif state_type == StateKind.LIST or (operations_of(changes) == StateChangeOperation.MERGE_NS).any():
        kept, added = replay_in_order(state, base, changes)
    else:
        kept, added = _replay_values(state, base, changes)
    batches = [added] if kept is None or not len(kept) else [kept, added]
    records = concat_records(batches)
    return records.select(np.argsort(records.key_groups, kind="stable"))


def _replay_values(
    state: ChangedState, base: KeyedRecords | None, changes: Changes
) -> tuple[KeyedRecords | None, KeyedRecords]:
    scopes, starts = find_scopes(state, changes)
    values = take_bytes(changes.data, starts, changes.ends)
    values = pc.if_else(
        pa.array(operations_of(changes) != StateChangeOperation.CLEAR), values, pa.scalar(None, pa.binary())
    )
    rows, touched = _last(scopes)
    return keep(base, touched), make_records(state, scopes, values, changes.key_groups, rows)


def _replay_timers(
    state: ChangedState, base: KeyedRecords | None, changes: Changes
) -> tuple[KeyedRecords | None, KeyedRecords]:
    added, removed = (
        operations_of(changes) == each
        for each in (StateChangeOperation.ADD_ELEMENT, StateChangeOperation.REMOVE_ELEMENT)
    )
    element = lay.Span(state.layout.key)
    order, timers = [np.flatnonzero(removed)], [changes.select(removed)]
    spans = [(timers[0].starts + HEAD, timers[0].ends)]
    lists = measure(lay.Sequence(element), changes.select(added), HEAD, state)
    order.append(np.flatnonzero(added)[parents(lists)])
    spans.append(span(lists.flatten()))
    starts, ends = (np.concatenate(each) for each in zip(*spans, strict=True))
    rows = np.concatenate(order)
    elements = take_bytes(changes.data, starts, ends)
    # The arrays have all removed elements before the added ones: restore the order of the log.
    in_order = pa.array(np.argsort(rows, kind="stable"))
    is_added = pa.array(np.arange(len(rows)) >= len(order[0]))
    values = pc.if_else(is_added, pa.scalar(b""), pa.scalar(None, pa.binary()))
    elements, values = elements.take(in_order), values.take(in_order)
    last, touched = _last(elements)
    return keep(base, touched), make_records(state, elements, values, changes.key_groups[np.sort(rows)], last)


def _replay_map(
    state: ChangedState, base: KeyedRecords | None, changes: Changes
) -> tuple[KeyedRecords | None, KeyedRecords]:
    operations = operations_of(changes)
    scopes, starts = find_scopes(state, changes)
    cleared_rows = np.flatnonzero(operations == StateChangeOperation.CLEAR)
    user_key = lay.Span(dict(state.layout.key.fields)["map_key"])
    none = pa.array([], pa.binary())
    rows, keys, values = [], [none], [none]

    puts = np.isin(operations, (StateChangeOperation.ADD_ELEMENT, StateChangeOperation.ADD_OR_UPDATE_ELEMENT))
    if puts.any():
        layout = lay.Struct((("key", user_key), ("value", REST)))
        array = measure(layout, changes.select(puts), starts[puts], state)
        rows.append(np.flatnonzero(puts))
        keys.append(take_bytes(changes.data, *span(array.field("key"))))
        # The logged change of one map entry has no null flag, while the record of an entry has one: add it.
        bare = take_bytes(changes.data, *span(array.field("value")))
        values.append(pc.binary_join_element_wise(pa.scalar(b"\0"), bare, pa.scalar(b"")))
    adds = operations == StateChangeOperation.ADD
    if adds.any():
        require_ends(state, changes.select(adds), starts[adds])
        layout = lay.Struct((("key", user_key), ("value", lay.Span(lay.Optional(state.value)))))
        lists = measure(lay.Sequence(layout), changes.select(adds), starts[adds], state)
        rows.append(np.flatnonzero(adds)[parents(lists)])
        entries = lists.flatten()
        keys.append(take_bytes(changes.data, *span(entries.field("key"))))
        values.append(take_bytes(changes.data, *span(entries.field("value"))))
    removes = operations == StateChangeOperation.REMOVE_ELEMENT
    if removes.any():
        rows.append(np.flatnonzero(removes))
        keys.append(take_bytes(changes.data, starts[removes], changes.ends[removes]))
        values.append(pa.nulls(int(removes.sum()), pa.binary()))

    order = np.concatenate([np.zeros(0, np.int64), *rows])
    in_order = np.argsort(order, kind="stable")
    order = order[in_order]
    scope_of = scopes.take(pa.array(order))
    entry_keys = pc.binary_join_element_wise(
        scope_of, pa.concat_arrays(keys).take(pa.array(in_order)), pa.scalar(b"", pa.binary())
    )
    entry_values = pa.concat_arrays(values).take(pa.array(in_order))
    last, touched = _last(entry_keys)
    cleared, last_clear = _last_clears(scopes, cleared_rows)
    if len(cleared):
        found = pc.index_in(scope_of, value_set=cleared).fill_null(-1).to_numpy(zero_copy_only=False)
        clears = np.where(found >= 0, last_clear[found], -1)
        last = last[clears[last] < order[last]]
    kept = keep(base, touched)
    if len(cleared) and kept is not None:
        kept = keep(kept, cleared, base_scopes(state, kept))
    return kept, make_records(state, entry_keys, entry_values, changes.key_groups[order], last)


def _last_clears(scopes: pa.Array, rows: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the scopes (key and namespace) that were cleared, and the row of the last clear of each."""
    encoded = scopes.take(pa.array(rows)).dictionary_encode()
    clears = np.empty(len(encoded.dictionary), np.int64)
    clears[encoded.indices.to_numpy()] = rows
    return encoded.dictionary, clears


def _last(keys: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Return the last row of each key, ascending, and the distinct keys."""
    encoded = keys.dictionary_encode()
    last = np.empty(len(encoded.dictionary), np.int64)
    # NumPy assigns in order: if an index occurs several times, its last row stays.
    last[encoded.indices.to_numpy()] = np.arange(len(keys))
    return np.sort(last), encoded.dictionary
