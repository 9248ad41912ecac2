"""Replay of logged changes over the records of a state.

Where the last change of a key decides (values, maps, timers), many changes are replayed at once; see `ordered_replay`
for the others. Source: the appliers in `org.apache.flink.state.changelog.restore`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs import layout as lay
from state_pipelines.keyed.changelog.changed_states import (
    HEAD,
    REST,
    ChangedState,
    base_scopes,
    check_operations,
    find_scopes,
    keep,
    make_records,
    measure,
    operations_of,
    parents,
    require_ends,
    span,
)
from state_pipelines.keyed.changelog.changes import Operation
from state_pipelines.keyed.changelog.ordered_replay import replay_in_order
from state_pipelines.keyed.record_bounds import take_bytes
from state_pipelines.keyed.record_layout import concat_records
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from state_pipelines.keyed.changelog.change_streams import Changes
    from state_pipelines.keyed.record_layout import KeyedRecords


def replay(state: ChangedState, base: KeyedRecords | None, changes: Changes) -> KeyedRecords:
    """The records of a state after its changes, ascending by key group.

    Args:
        state: the state.
        base: its records before, of the same key groups; None when there are none.
        changes: all of the state, at least one; in order.

    Raises:
        FormatError: a change does not fit the serializers, or its operation not the state.
        UnsupportedError: a merge needs code of the user's, or data cannot be parsed.
    """
    state_type = state.layout.state_type
    check_operations(changes, state_type)
    if state_type == StateKind.TIMER:
        kept, added = _replay_timers(state, base, changes)
    elif state_type == StateKind.MAP:
        kept, added = _replay_map(state, base, changes)
    elif state_type == StateKind.LIST or (operations_of(changes) == Operation.MERGE_NS).any():
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
    values = pc.if_else(pa.array(operations_of(changes) != Operation.CLEAR), values, pa.scalar(None, pa.binary()))
    rows, touched = _last(scopes)
    return keep(base, touched), make_records(state, scopes, values, changes.key_groups, rows)


def _replay_timers(
    state: ChangedState, base: KeyedRecords | None, changes: Changes
) -> tuple[KeyedRecords | None, KeyedRecords]:
    added, removed = (operations_of(changes) == each for each in (Operation.ADD_ELEMENT, Operation.REMOVE_ELEMENT))
    element = lay.Span(state.layout.key)
    order, timers = [np.flatnonzero(removed)], [changes.select(removed)]
    spans = [(timers[0].starts + HEAD, timers[0].ends)]
    lists = measure(lay.Sequence(element), changes.select(added), HEAD, state)
    order.append(np.flatnonzero(added)[parents(lists)])
    spans.append(span(lists.flatten()))
    starts, ends = (np.concatenate(each) for each in zip(*spans, strict=True))
    rows = np.concatenate(order)
    elements = take_bytes(changes.data, starts, ends)
    # Removed ones are in front; in the order of the log again.
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
    cleared_rows = np.flatnonzero(operations == Operation.CLEAR)
    user_key = lay.Span(dict(state.layout.key.fields)["map_key"])
    none = pa.array([], pa.binary())
    rows, keys, values = [], [none], [none]

    puts = np.isin(operations, (Operation.ADD_ELEMENT, Operation.ADD_OR_UPDATE_ELEMENT))
    if puts.any():
        layout = lay.Struct((("key", user_key), ("value", REST)))
        array = measure(layout, changes.select(puts), starts[puts], state)
        rows.append(np.flatnonzero(puts))
        keys.append(take_bytes(changes.data, *span(array.field("key"))))
        # A change of one entry has no null flag, a record has one.
        bare = take_bytes(changes.data, *span(array.field("value")))
        values.append(pc.binary_join_element_wise(pa.scalar(b"\0"), bare, pa.scalar(b"")))
    adds = operations == Operation.ADD
    if adds.any():
        require_ends(state, changes.select(adds), starts[adds])
        layout = lay.Struct((("key", user_key), ("value", lay.Span(lay.Optional(state.value)))))
        lists = measure(lay.Sequence(layout), changes.select(adds), starts[adds], state)
        rows.append(np.flatnonzero(adds)[parents(lists)])
        entries = lists.flatten()
        keys.append(take_bytes(changes.data, *span(entries.field("key"))))
        values.append(take_bytes(changes.data, *span(entries.field("value"))))
    removes = operations == Operation.REMOVE_ELEMENT
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
    """The scopes that were cleared, and the change that cleared each last."""
    encoded = scopes.take(pa.array(rows)).dictionary_encode()
    clears = np.empty(len(encoded.dictionary), np.int64)
    clears[encoded.indices.to_numpy()] = rows
    return encoded.dictionary, clears


def _last(keys: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """(the last row of each key, ascending; the distinct keys)."""
    encoded = keys.dictionary_encode()
    last = np.empty(len(encoded.dictionary), np.int64)
    # Of several assignments to one position the last one stays.
    last[encoded.indices.to_numpy()] = np.arange(len(keys))
    return np.sort(last), encoded.dictionary
