"""`dump`: every entry of a snapshot as JSON lines.

Kinds of lines, with their fields:

* `keyed`: kind, op, state, type, kg, key, ns, [ukey], value, [ttl_ts]
* `timer`: kind, op, service, domain, kg, key, ns, ts
* `operator`: kind, op, state, mode, subtask, index, value (with `splits`, of a known connector: @connector, splits)
* `broadcast`: kind, op, state, subtask, ukey, value
* `unread`, for unreadable state: kind, op, [state], [subtask], error, damaged, [undetermined]

State whose format only its operator or Flink knows is printed as stored:

* `raw_keyed`: kind, op, subtask, range, offsets, hex
* `raw_operator`: kind, op, subtask, offsets, hex
* `inflight`: kind, op, subtask, handle, size, info, offsets, buffers
* `coordinator`: kind, op, hex
* `master`: kind, name, version, bytes

`codecs.json` describes the JSON of values. A key or value that cannot be decoded is `@bytes` hex with its
`@reason`; for broadcast state this covers the remaining entries of a subtask, for keyed state without a readable header
a key group. An undecodable part of a Kryo value is `@undecoded` hex with its `@reason`. State of a Python function has
its name in Python, and `java_state`; without a declared type, `guess` and `key_guess` show what looks like a pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.columns import explain
from state_pipelines.codecs.java import Undecoded
from state_pipelines.codecs.json import Json, access_times, to_json, value_json
from state_pipelines.codecs.pickles import Pickled, is_pickle
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import complete, derive_layout
from state_pipelines.connectors.registry import LIST_INDEX
from state_pipelines.errors import (
    EDITED_METADATA,
    FormatError,
    MissingFileError,
    StateError,
    StorageError,
    UnsupportedError,
    Where,
    at,
)
from state_pipelines.keyed.raw_timers import NEVER_STARTED
from state_pipelines.keyed.record_layout import KeyedRecords, blame_declared
from state_pipelines.metadata.handles import ChannelDirection
from state_pipelines.metadata.streams import channel_states, read_whole_stream
from state_pipelines.operations.state_rows import to_rows
from state_pipelines.serializers import tree
from state_pipelines.serializers.python_types import PICKLED
from state_pipelines.serializers.state_meta_info import TIMER_STATE
from state_pipelines.serializers.tree import BasicKind, StateKind
from state_pipelines.snapshot.keyed_state import KeyedState, KeyedSubtaskState, group_by_file
from state_pipelines.snapshot.operator_state import (
    IN_FLIGHT_NAME,
    InFlightState,
    OperatorBroadcastState,
    OperatorListState,
    RawKeyedState,
    RawOperatorState,
    UnreadKeyedState,
)
from state_pipelines.snapshot.snapshot import Failure, ensure_open, is_undetermined
from state_pipelines.snapshot.snapshot_files import scan_files
from state_pipelines.storage.reading import scan_ahead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.codecs import layout as lay
    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.connectors.registry import ConnectorState
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.metadata import MasterState
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Operator, Snapshot, State

Line = dict[str, Json]
"""An object for `json.dumps`; see `operations.dump`."""


class LineKind(StrEnum):
    """Kind of a line: the kind of state that it shows."""

    KEYED = "keyed"
    TIMER = "timer"
    OPERATOR = "operator"
    BROADCAST = "broadcast"
    RAW_KEYED = "raw_keyed"
    RAW_OPERATOR = "raw_operator"
    IN_FLIGHT = "inflight"
    COORDINATOR = "coordinator"
    MASTER = "master"
    UNREAD = "unread"


def describe_unread(failure: Failure, operator: str, state: str | None = None) -> Line:
    """Make the line that reports state that cannot be read.

    Args:
        failure: the error, and the subtask if only one is affected.
        operator: label of the operator.
        state: name of the state, if known.

    Raises:
        StorageError: the storage failed, which does not mean that the state is damaged.
    """
    if isinstance(failure.error, StorageError):
        raise failure.error
    line: Line = {"kind": LineKind.UNREAD, "op": operator}
    if state is not None:
        line["state"] = state
    if failure.subtask is not None:
        line["subtask"] = failure.subtask
    line |= {"error": str(failure.error), "damaged": failure.is_damage}
    return {**line, "undetermined": True} if is_undetermined(failure.error) else line


def name_state(state: State) -> Line:
    """Return the fields of a line that name a state; a state of PyFlink has its Python name and its Java name."""
    line: Line = {"state": state.label}
    return {**line, "java_state": state.name} if state.python_name else line


def add_value(line: Line, serializer: tree.Serializer, reader: Reader, read: Callable[[Reader], object]) -> None:
    """Add a value to a line, and for state with TTL its times of access.

    If the value cannot be decoded, add its bytes with the reason.

    Args:
        line: the line.
        serializer: serializer of the value.
        reader: reader at the beginning of the value.
        read: function that decodes the value.
    """
    start = reader.position
    try:
        value = read(reader)
    except UnsupportedError as error:
        reader.position = start
        line["value"] = show_bytes(reader, describe_reason(error))
        return
    line["value"] = show_value(serializer, value)
    accessed = access_times(serializer, value)
    if accessed is not None:
        line["ttl_ts"] = accessed if isinstance(accessed, int) else [*accessed]


def show_value(serializer: tree.Serializer, value: object) -> Json:
    """Convert a value to JSON; if it could not be decoded, to its bytes with the reason."""
    if isinstance(value, Undecoded) and isinstance(serializer, tree.Opaque):
        return {"@bytes": value.raw.hex(), "@reason": value.reason}
    return to_json(serializer, value)


def show_bytes(reader: Reader, reason: str) -> Json:
    """Take the remaining bytes of `reader` and convert them to JSON, with the reason why they are not decoded."""
    return {"@bytes": reader.take(reader.remaining).hex(), "@reason": reason}


def describe_reason(error: StateError) -> str:
    """Make the text that says why a value is not decoded, with the path of the field in the value."""
    text = explain(error)
    return f"{text} (at {error.where.path})" if error.where.path else text


_LENGTH_SIZE = 4
_LONG = tree.Basic(snapshot_class="", kind=BasicKind.LONG)

_Show = Callable[[KeyedRecords], Iterator[Line]]
"""Function that makes the lines of some records of a state."""


def dump_keyed_state(state: KeyedState) -> Iterator[Line]:
    """Yield a line for every entry of one keyed state.

    Raises:
        StateError: the state cannot be read.
    """
    for subtask_state in state.subtask_states:
        show = _find_show(state, subtask_state)
        for records in subtask_state.records():
            yield from show(records)


def dump_keyed_states(states: Sequence[KeyedState]) -> Iterator[Line]:
    """Yield a line for every entry of keyed states of one operator; each file is read only once for all of them.

    Yields:
        Lines, file by file. A state that cannot be read gets one line with the error, after which it has no more lines.

    Raises:
        StorageError: the storage fails.
    """
    unread: set[str] = set()

    def begin(wanted: list[tuple[KeyedSubtaskState, KeyedState]]) -> Iterator[tuple[int, KeyedRecords]]:
        return wanted[0][0].file.scan([each.state_id for each, state in wanted if state.name not in unread])

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
    """Yield a line for every entry of some states in a file.

    Args:
        file: the file.
        shows: by state id: the state, and the function that makes its lines.
        unread: names of states that cannot be read, to which more are added here.
        found: (state id, records) of all these states, perhaps also of others, which are ignored.
    """
    if not shows:
        return
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
            # The error may affect only some of the states. Read each state by itself, from the record after the last
            # one that was shown.
            file = file.hold()
        else:
            return
    for state_id, (state, _) in shows.items():
        if state_id in left:
            try:
                with at(operator=state.operator.label, state=state.name):
                    yield from show([state_id], found if len(shows) == 1 else file.scan([state_id]))
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
    # Use the layout of the subtask: the whole state has none if the namespace of a single subtask cannot be read.
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
        raise UnsupportedError("the state is a priority queue without timers, which cannot be shown")
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
    """Decode pickled bytes in the JSON of a value as Python literals.

    Lists keep their structure; everything that does not look like a pickle becomes null.
    """
    if isinstance(value, list):
        return [_guess_pickles(each) for each in value]
    raw = value.get("@bytes") if isinstance(value, dict) else None
    data = bytes.fromhex(raw)[_LENGTH_SIZE:] if isinstance(raw, str) else b""
    return value_json(Pickled(data)) if is_pickle(data) else None


def _guess_key(key: object) -> Json:
    """Decode a key that is a pickle, as PyFlink stores it if `key_by` has no `key_type`; None for other keys."""
    raw = key.get("f0") if isinstance(key, dict) else None
    return value_json(Pickled(raw)) if isinstance(raw, bytes) and is_pickle(raw) else None


def _read_span(layout: lay.Layout, reader: Reader) -> object:
    value = read_value(layout, reader)
    reader.expect_end("the value")
    return value


def _struct(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise FormatError("the decoded key of a record is not a struct with key and namespace")
    return value


# Merged handles are shown as the handles that they consist of, under the names of Flink's classes.
_CHANNEL_NAMES = {
    ChannelDirection.INPUT: (
        "InputChannelStateHandle",
        "InputChannelInfo{{gateIdx={0.group}, inputChannelIdx={0.channel}}}",
    ),
    ChannelDirection.OUTPUT: (
        "ResultSubpartitionStateHandle",
        "ResultSubpartitionInfo{{partitionIdx={0.group}, subPartitionIdx={0.channel}}}",
    ),
}


def dump(
    snapshot: Snapshot | str,
    *,
    operator: str | None = None,
    state: str | None = None,
    in_flight: bool = False,
    splits: bool = False,
) -> Iterator[Line]:
    """Iterate over every entry of a snapshot, of one operator, or of one state.

    Args:
        snapshot: a snapshot, or its path.
        operator: uid, id or name of the only operator to show. The states of the job master are left out then.
        state: name of the only state to show, of all operators that have it or of `operator`. Coordinator state and the
            states of the job master are left out then.
        in_flight: include the buffers of unaligned checkpoints; `state="_in_flight_data"` gives only these.
        splits: show elements of known connectors as their splits or committables, as `inspect` shows them:
            `{"@connector": "kafka", "splits": [...]}`. Otherwise the bytes of an element are shown.

    Yields:
        One line per entry, an object for `json.dumps`. The keyed states of an operator come one file after the other,
        by key groups in a file. State that cannot be read gives one line with the error; other state is still shown.

    Raises:
        NotFoundError: there is no such operator or state.
        StorageError: the storage fails, perhaps after some lines.
    """
    snapshot = ensure_open(snapshot)
    operators = snapshot.operators if operator is None else (snapshot.operator(operator),)
    if operator is None and state is None:
        yield from map(_dump_master, snapshot.metadata.master_states)
    # Read the headers once, before several threads need them.
    snapshot.read_headers()
    found: set[str] = set()
    mean = snapshot.file_size // max(1, len(snapshot.operators))
    for _, lines in scan_ahead(
        operators,
        lambda each: _dump_operator(each, state, found, in_flight=in_flight, splits=splits),
        snapshot.location.directory,
        mean,
    ):
        yield from lines
    if state is not None and not found:
        operators[0].state(state)


def _dump_operator(
    operator: Operator, name: str | None, found: set[str], *, in_flight: bool, splits: bool
) -> Iterator[Line]:
    """Yield a line for every entry of an operator, or only of its states with one name.

    Args:
        operator: the operator.
        name: name of the states; None for all, and the coordinator state.
        found: labels of operators that have such states, to which the label of this one is added.
        in_flight: include the buffers of unaligned checkpoints.
        splits: see `dump`.
    """
    if name is None and operator.metadata.coordinator_state is not None:
        data = operator.metadata.coordinator_state.data
        yield {"kind": LineKind.COORDINATOR, "op": operator.label, "hex": data.hex()}
    survey = operator.survey(in_flight=in_flight or name == IN_FLIGHT_NAME)
    chosen = [one for one in survey.states if name in (None, one.name, one.python_name)]
    if chosen or survey.failures:
        found.add(operator.label)
    yield from dump_keyed_states([one for one in chosen if isinstance(one, KeyedState)])
    for one in chosen:
        if not isinstance(one, KeyedState):
            try:
                with at(operator=operator.label, state=one.name):
                    yield from dump_state(one, splits=splits)
            except StateError as error:
                yield describe_unread(Failure(None, error), operator.label, one.name)
    yield from (describe_unread(failure, operator.label) for failure in survey.failures)


def dump_state(state: State, *, splits: bool = False) -> Iterator[Line]:
    """Yield a line for every entry of one state; `splits` as for `dump`.

    Raises:
        StateError: the state cannot be read.
    """
    match state:
        case KeyedState():
            yield from dump_keyed_state(state)
        case OperatorListState():
            yield from _dump_list(state, _find_splits(state) if splits else None)
        case OperatorBroadcastState():
            yield from _dump_broadcast(state)
        case UnreadKeyedState():
            yield from _dump_key_groups(state)
        case RawKeyedState():
            yield from _dump_raw_keyed(state)
        case RawOperatorState():
            yield from _dump_raw_operator(state)
        case InFlightState():
            yield from _dump_in_flight(state)
        case _:
            raise UnsupportedError(f"{type(state).__name__} cannot be dumped")


def _find_splits(state: OperatorListState) -> ConnectorState | None:
    """Return the connector that wrote the state, with the splits of each element; None if it is not known."""
    try:
        return state.detected.state
    except (FormatError, MissingFileError):
        # The error is reported later, when the elements are read.
        return None


def _dump_list(state: OperatorListState, connector: ConnectorState | None) -> Iterator[Line]:
    context = state.operator.snapshot.layout_context
    head: Line = {"kind": LineKind.OPERATOR, "op": state.operator.label, "state": state.name, "mode": state.kind}
    number = 0
    for subtask_state in state.subtask_states:
        stored = subtask_state.info.value_serializer
        serializer = complete(stored, context)
        data, starts, ends = subtask_state.elements()
        raw = data.tobytes()
        for index in range(len(starts)):
            line = head | {"subtask": subtask_state.subtask, "index": index}
            if connector is not None:
                yield line | {"value": _show_splits(connector, number)}
                number += 1
                continue
            reader = Reader(raw, subtask_state.name, int(starts[index]), int(ends[index]))
            # Do not require that the serializer reads all bytes: bytes after the element may belong to the file format.
            add_value(line, serializer, reader, partial(_read_stored, stored, context))
            yield line


def _show_splits(connector: ConnectorState, number: int) -> Json:
    """Convert the splits of one element to JSON; `number` is its index among the elements of all subtasks."""
    columns = pa.schema([each for each in connector.columns if each.name != LIST_INDEX.name])
    rows = pa.RecordBatch.from_pylist([dict(each) for each in connector.rows[number]], schema=columns)
    splits: list[Any] = list(to_rows(rows))
    return {"@connector": connector.connector, "splits": splits}


def _dump_broadcast(state: OperatorBroadcastState) -> Iterator[Line]:
    context = state.operator.snapshot.layout_context
    head: Line = {"kind": LineKind.BROADCAST, "op": state.operator.label, **name_state(state)}
    for subtask_state in state.subtask_states:
        key, stored = subtask_state.info.key_serializer, subtask_state.info.value_serializer
        serializer = complete(stored, context)
        data, start, end, count = subtask_state.entries()
        reader = Reader(data.tobytes(), subtask_state.name, start, end)
        for index in range(count):
            line = head | {"subtask": subtask_state.subtask}
            first = reader.position
            try:
                user_key = read_value(derive_layout(key, context), reader, tail=False)
                value = read_value(derive_layout(stored, context), reader, tail=index == count - 1)
            except UnsupportedError as error:
                # Without a readable serializer the end of the entry is not known: show all remaining bytes in one line.
                reader.position = first
                yield line | {"entries": count - index, "value": show_bytes(reader, describe_reason(error))}
                break
            line["ukey"] = to_json(key, user_key)
            line["value"] = show_value(serializer, value)
            yield line


def _dump_key_groups(state: UnreadKeyedState) -> Iterator[Line]:
    head: Line = {"kind": LineKind.KEYED, "op": state.operator.label, "state": state.name}
    for batch in state.batches():
        for row in batch.to_pylist():
            yield head | {
                "subtask": row["subtask"],
                "kg": row["key_group"],
                "value": {"@bytes": row["value_bytes"].hex(), "@reason": row["reason"]},
            }


def _dump_master(master: MasterState) -> Line:
    return {"kind": LineKind.MASTER, "name": master.name, "version": master.version, "bytes": master.payload.hex()}


def _dump_raw_keyed(state: RawKeyedState) -> Iterator[Line]:
    for subtask_state in state.subtask_states:
        groups = subtask_state.key_groups
        starts = {section.key_group: section.start for section in subtask_state.sections}
        line: Line = {"kind": LineKind.RAW_KEYED, "op": state.operator.label, "subtask": subtask_state.subtask}
        line["range"] = f"KeyGroupRange{{startKeyGroup={groups.start}, endKeyGroup={groups.end}}}"
        line["offsets"] = [starts.get(group, NEVER_STARTED) for group in groups]
        line["hex"] = read_whole_stream(subtask_state.stream).hex()
        yield line


def _dump_raw_operator(state: RawOperatorState) -> Iterator[Line]:
    for subtask_state in state.subtask_states:
        line: Line = {"kind": LineKind.RAW_OPERATOR, "op": state.operator.label, "subtask": subtask_state.subtask}
        line["offsets"] = [offset for each in subtask_state.handle.states for offset in each.offsets]
        line["hex"] = read_whole_stream(subtask_state.stream).hex()
        yield line


def _dump_in_flight(state: InFlightState) -> Iterator[Line]:
    for subtask_state in state.subtask_states:
        name, info = _CHANNEL_NAMES[subtask_state.direction]
        head: Line = {
            "kind": LineKind.IN_FLIGHT,
            "op": state.operator.label,
            "subtask": subtask_state.subtask,
            "handle": name,
        }
        for channel, position in zip(subtask_state.read(), channel_states(subtask_state.handle), strict=True):
            line = head | {"size": position.state_size}
            line["info"] = info.format(channel.info)
            line["offsets"] = list(position.offsets)
            line["buffers"] = [buffer.hex() for buffer in channel.buffers]
            yield line


def _read_stored(serializer: Serializer, context: LayoutContext, reader: Reader) -> object:
    return read_value(derive_layout(serializer, context), reader)
