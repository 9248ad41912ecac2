"""Sequential replay of changes whose order matters: lists, and values whose namespaces were merged.

Source: `ListStateChangeApplier`, `KvStateChangeApplier`, `RocksDBListState`, `AbstractHeapMergingState`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs import layout as lay
from state_pipelines.errors import UnsupportedError, Where
from state_pipelines.keyed.changelog.changed_states import (
    HEAD,
    REST,
    SETS,
    ChangedState,
    compose,
    find_scopes,
    keep,
    make_records,
    measure,
    operations_of,
    require_ends,
    span,
)
from state_pipelines.keyed.changelog.changes import Operation
from state_pipelines.keyed.record_bounds import take_bytes
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.keyed.changelog.change_streams import Changes
    from state_pipelines.keyed.record_layout import KeyedRecords

_UNKNOWN = object()


def replay_in_order(
    state: ChangedState, base: KeyedRecords | None, changes: Changes
) -> tuple[KeyedRecords | None, KeyedRecords]:
    """Replay the changes of a list, reducing or aggregating state (see `replay.replay`).

    Returns:
        (the records before that have no changes, the records of the others).

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
        # Heap state may hold an empty list: no element, not an empty one.
        held[key] = ([value] if value else []) if is_list else value
    groups: dict[bytes, int] = {}
    lists = _find_lists(state, changes, starts) if is_list else {}
    raw = changes.data.tobytes() if len(keys) else b""
    ends, key_groups = changes.ends.tolist(), changes.key_groups.tolist()
    for row, (operation, start) in enumerate(zip(operations.tolist(), starts.tolist(), strict=True)):
        key = keys[row]
        groups[key] = key_groups[row]
        if operation == Operation.MERGE_NS:
            key, sources = merges[row]
            _merge(held, key, sources, is_list=is_list)
            groups[key] = key_groups[row]
        elif operation == Operation.CLEAR:
            held.pop(key, None)
        elif not is_list:
            held[key] = raw[start : ends[row]]
        elif operation == Operation.ADD_ELEMENT:
            _append(held, key, [raw[start : ends[row]]])
        elif operation == Operation.ADD:
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
            # Two values become one by a function of the user's. Mostly the target is set right after.
            held[target] = _UNKNOWN if target in held else value


def _refuse_merge(state: ChangedState) -> NoReturn:
    raise UnsupportedError(
        f"the log merges windows of a {state.layout.state_type} state, which takes the user's function",
        where=Where(file=state.file, state=state.name),
        hint="Take a savepoint (`flink savepoint --type canonical`), which holds the merged values, and use that",
    )


def _find_merges(
    state: ChangedState, changes: Changes, starts: npt.NDArray[np.int64]
) -> dict[int, tuple[bytes, list[bytes]]]:
    """Target and sources of each merge, by row."""
    rows = np.flatnonzero(operations_of(changes) == Operation.MERGE_NS)
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
    """The elements of each change that holds a whole list, by row."""
    rows = np.flatnonzero(np.isin(operations_of(changes), (*SETS, Operation.ADD)))
    if not len(rows):
        return {}
    require_ends(state, changes.select(rows), starts[rows])
    lists = measure(lay.Sequence(lay.Span(state.value)), changes.select(rows), starts[rows], state)
    elements = take_bytes(changes.data, *span(lists.flatten())).to_pylist()
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(pc.list_value_length(lists).to_numpy())])
    return {int(row): elements[offsets[index] : offsets[index + 1]] for index, row in enumerate(rows)}


def _lookup(base: KeyedRecords | None, keys: pa.Array) -> Iterable[tuple[bytes, bytes]]:
    """Key and value of the records that have one of `keys`."""
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
