"""`dump` of keyed states and timers: each file is read once, whatever the number of states in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.json import Json, to_json, value_json
from state_pipelines.codecs.pickles import Pickled, is_pickle
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.codecs.serializer_layouts import complete
from state_pipelines.errors import (
    EDITED_METADATA,
    FormatError,
    StateError,
    StorageError,
    UnsupportedError,
    Where,
    at,
)
from state_pipelines.keyed.record_layout import KeyedRecords, blame_declared
from state_pipelines.operations.dump_lines import (
    Line,
    LineKind,
    add_value,
    describe_reason,
    describe_unread,
    name_state,
    show_bytes,
)
from state_pipelines.serializers import tree
from state_pipelines.serializers.python_types import PICKLED
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import TIMER_STATE
from state_pipelines.serializers.tree import BasicKind
from state_pipelines.snapshot.keyed_state import KeyedState, KeyedSubtaskState, group_by_file
from state_pipelines.snapshot.snapshot import Failure
from state_pipelines.snapshot.snapshot_files import scan_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.codecs import layout as lay
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.keyed.record_layout import KeyedLayout

_LENGTH_SIZE = 4
_LONG = tree.Basic(snapshot_class="", kind=BasicKind.LONG)

_Show = Callable[[KeyedRecords], Iterator[Line]]
"""Makes the lines of some records."""


def dump_keyed_state(state: KeyedState) -> Iterator[Line]:
    """Every entry of one keyed state.

    Raises:
        StateError: the state cannot be read.
    """
    for subtask_state in state.subtask_states:
        show = _find_show(state, subtask_state)
        for records in subtask_state.records(state.context):
            yield from show(records)


def dump_keyed_states(states: Sequence[KeyedState]) -> Iterator[Line]:
    """Every entry of keyed states of one operator; each file is read once.

    Yields:
        Lines file after file; one line for each state that cannot be read, after which no more of that state come.

    Raises:
        StorageError: the storage fails.
    """
    unread: set[str] = set()

    def begin(wanted: list[tuple[KeyedSubtaskState, KeyedState]]) -> Iterator[tuple[int, KeyedRecords]]:
        (file, context) = wanted[0][0].file, wanted[0][1].context
        return file.scan([each.state_id for each, state in wanted if state.name not in unread], context)

    for wanted, found in scan_files(states[0].operator, group_by_file(states), begin) if states else ():
        shows: dict[int, tuple[KeyedState, _Show]] = {}
        for subtask_state, state in wanted:
            if state.name not in unread:
                try:
                    with at(operator=state.operator.label, state=state.name):
                        shows[subtask_state.state_id] = state, _find_show(state, subtask_state)
                except StateError as error:
                    unread.add(state.name)
                    yield describe_unread(Failure(None, error), state.operator.label, state.name)
        yield from _dump_file(wanted[0][0].file, shows, unread, found)


def _dump_file(
    file: KeyedFile,
    shows: dict[int, tuple[KeyedState, _Show]],
    unread: set[str],
    found: Iterator[tuple[int, KeyedRecords]],
) -> Iterator[Line]:
    """Every entry of some states in a file; adds names of states that cannot be read to `unread`.

    Args:
        file: the file.
        shows: by state id the state, and what makes its lines.
        unread: names of states.
        found: the records of all of them, and maybe of states that are left out.
    """
    if not shows:
        return
    context = next(iter(shows.values()))[0].context
    shown = dict.fromkeys(shows, 0)
    left = dict(shows)

    def show(state_ids: Sequence[int], found: Iterator[tuple[int, KeyedRecords]]) -> Iterator[Line]:
        skipped = {each: shown[each] for each in state_ids}
        for state_id, records in found:
            if state_id not in left:
                continue
            first = min(skipped[state_id], len(records))
            skipped[state_id] -= first
            shown[state_id] += len(records) - first
            state, show_records = left[state_id]
            try:
                with at(operator=state.operator.label, state=state.name):
                    yield from show_records(records.cut(first, len(records)))
            except StateError as error:
                yield leave(state_id, error)

    def leave(state_id: int, error: StateError) -> Line:
        state, _ = left.pop(state_id)
        unread.add(state.name)
        return describe_unread(Failure(None, error), state.operator.label, state.name)

    if len(left) > 1:
        try:
            yield from show(list(left), found)
        except StorageError:
            raise
        except StateError:
            # It may concern some of the states only: each is read alone, from the record after the last one shown.
            file = file.hold()
        else:
            return
    for state_id, (state, _) in shows.items():
        if state_id in left:
            try:
                with at(operator=state.operator.label, state=state.name):
                    yield from show([state_id], found if len(shows) == 1 else file.scan([state_id], context))
            except StateError as error:
                yield leave(state_id, error)


def _find_show(state: KeyedState, subtask_state: KeyedSubtaskState) -> _Show:
    own = subtask_state.file.header.states[subtask_state.state_id]
    first = state.stored_info
    if (own.backend_type, own.state_type) != (first.backend_type, first.state_type):
        raise FormatError(
            f"subtasks have this state as {first.state_type or first.backend_type.name} and as "
            f"{own.state_type or own.backend_type.name}",
            where=Where(file=subtask_state.file.name),
            hint=EDITED_METADATA,
        )
    # The subtask's own layout: the state as a whole has none where one subtask has a namespace that nothing reads.
    layout, _ = state.find_subtask_layout(subtask_state) if state.kind == StateKind.TIMER else (None, "")
    return _show_entries(state, subtask_state) if layout is None else _show_timers(state, subtask_state, layout)


def _show_entries(state: KeyedState, subtask_state: KeyedSubtaskState) -> _Show:
    op, kind = state.operator.label, state.kind
    head: Line = {"kind": LineKind.KEYED, "op": op, **name_state(state), "type": kind}
    guessed = state.guess is not None and PICKLED in state.guess.type
    layout, unread = state.find_subtask_layout(subtask_state)
    key_serializer, namespace, value = state.find_subtask_serializers(subtask_state)
    value = complete(value, state.operator.snapshot.layout_context)
    user_key = value.key if kind == StateKind.MAP and isinstance(value, tree.MapOf) else None
    user_value = value.value if user_key is not None and isinstance(value, tree.MapOf) else value

    def show(records: KeyedRecords) -> Iterator[Line]:
        data = records.data.tobytes()
        for row in range(len(records)):
            keys = Reader(data, records.file, int(records.key_starts[row]), int(records.key_ends[row]))
            values = Reader(data, records.file, int(records.value_starts[row]), int(records.value_ends[row]))
            line = dict(head)
            line["kg"] = int(records.key_groups[row])
            if layout is None:
                if keys.remaining:
                    line["key"] = show_bytes(keys, unread)
                line["value"] = show_bytes(values, unread)
                yield line
                continue
            start = keys.position
            try:
                key = _struct(read_value(layout.key, keys))
                keys.expect_end("the key")
                line["key"] = to_json(key_serializer, key["state_key"])
                line["ns"] = to_json(namespace, key["state_namespace"])
                if state.python_name and (guess := _guess_key(key["state_key"])) is not None:
                    line["key_guess"] = guess
                if user_key is not None:
                    line["ukey"] = to_json(user_key, key["map_key"])
            except UnsupportedError as error:
                keys.position = start
                line = {**head, "kg": line["kg"]}
                line["key"] = show_bytes(keys, describe_reason(error))
            with blame_declared(layout):
                add_value(line, user_value, values, partial(_read_span, layout.value))
            if guessed:
                line["guess"] = _guess_pickles(line["value"])
            yield line

    return show


def _show_timers(state: KeyedState, subtask_state: KeyedSubtaskState, layout: KeyedLayout) -> _Show:
    domain, _, service = state.name.removeprefix(TIMER_STATE).partition("_")
    _, _, element = state.find_subtask_serializers(subtask_state)
    if not isinstance(element, tree.Timer):
        raise UnsupportedError("a priority queue that does not hold timers is not read")
    head: Line = {"kind": LineKind.TIMER, "op": state.operator.label, "service": service, "domain": domain}

    def show(records: KeyedRecords) -> Iterator[Line]:
        data = records.data.tobytes()
        for row in range(len(records)):
            reader = Reader(data, records.file, int(records.key_starts[row]), int(records.key_ends[row]))
            timer = _struct(read_value(layout.key, reader))
            reader.expect_end("the timer")
            yield {
                **head,
                "kg": int(records.key_groups[row]),
                "key": to_json(element.key, timer["state_key"]),
                "ns": to_json(element.namespace, timer["state_namespace"]),
                "ts": to_json(_LONG, timer["timestamp"]),
            }

    return show


def _guess_pickles(value: Json) -> Json:
    """The literals of bytes that look like pickles, in the form of the value; null for what does not."""
    if isinstance(value, list):
        return [_guess_pickles(each) for each in value]
    raw = value.get("@bytes") if isinstance(value, dict) else None
    data = bytes.fromhex(raw)[_LENGTH_SIZE:] if isinstance(raw, str) else b""
    return value_json(Pickled(data)) if is_pickle(data) else None


def _guess_key(key: object) -> Json:
    """The literals of a key that looks like a pickle, as keys without a `key_type` are in PyFlink; else None."""
    raw = key.get("f0") if isinstance(key, dict) else None
    return value_json(Pickled(raw)) if isinstance(raw, bytes) and is_pickle(raw) else None


def _read_span(layout: lay.Layout, reader: Reader) -> object:
    value = read_value(layout, reader)
    reader.expect_end("the value")
    return value


def _struct(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise FormatError("a key is not made of fields")
    return value
