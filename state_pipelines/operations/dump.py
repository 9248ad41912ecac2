"""`dump`: every entry of a snapshot, one JSON object each, decoded one value at a time.

Kinds of lines, with their fields:

* `keyed`: kind, op, state, type, kg, key, ns, [ukey], value, [ttl_ts]
* `timer`: kind, op, service, domain, kg, key, ns, ts
* `operator`: kind, op, state, mode, subtask, index, value
* `broadcast`: kind, op, state, subtask, ukey, value
* `unread`, for unreadable state: kind, op, [state], [subtask], error, damaged

State whose format only its operator or Flink knows is printed as stored:

* `raw_keyed`: kind, op, subtask, range, offsets, hex
* `raw_operator`: kind, op, subtask, offsets, hex
* `inflight`: kind, op, subtask, handle, size, info, offsets, buffers
* `coordinator`: kind, op, hex
* `master`: kind, name, version, bytes

`codecs.json.json_lines` describes the JSON of values. A key or value that cannot be decoded is `@bytes` hex with its
`@reason`; for broadcast state this covers the remaining entries of a subtask, for keyed state without a readable header
a key group. An undecodable part of a Kryo value is `@undecoded` hex with its `@reason`. State of a Python function has
its name in Python, and `java_state`; without a declared type, `guess` and `key_guess` show what looks like a pickle.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from state_pipelines.binary.reader import Reader
from state_pipelines.codecs.columns import explain
from state_pipelines.codecs.java.typed_values import Undecoded
from state_pipelines.codecs.json.json_lines import Json, access_times, to_json, value_json
from state_pipelines.codecs.pickles import Pickled, is_pickle
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.codecs.subclasses import complete
from state_pipelines.errors import FormatError, StateError, UnsupportedError, at
from state_pipelines.keyed.raw_timers import NEVER_STARTED
from state_pipelines.keyed.record_layout import blame_declared
from state_pipelines.metadata.channel_data import channel_states
from state_pipelines.metadata.channel_handles import ChannelDirection
from state_pipelines.metadata.streams import read_whole_stream
from state_pipelines.serializers import tree
from state_pipelines.serializers.python_types import PICKLED
from state_pipelines.snapshot.broadcast_state import BroadcastState
from state_pipelines.snapshot.keyed_state import TIMER, KeyedState
from state_pipelines.snapshot.list_state import OperatorListState
from state_pipelines.snapshot.opening import ensure_open
from state_pipelines.snapshot.raw_state import (
    IN_FLIGHT_NAME,
    InFlightState,
    RawKeyedState,
    RawOperatorState,
    UnreadKeyedState,
)
from state_pipelines.snapshot.survey import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.codecs import layout as lay
    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.metadata import MasterState
    from state_pipelines.snapshot import Snapshot, State

Line = dict[str, Json]

_LENGTH_SIZE = 4
_TIMER_PREFIX = "_timer_state/"
# Merged handles come as those that they are made of; names and texts are those of Flink's classes.
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
    snapshot: Snapshot | str, *, operator: str | None = None, state: str | None = None, in_flight: bool = False
) -> Iterator[Line]:
    """Iterate over every entry of a snapshot, of one operator, or of one state.

    Args:
        snapshot: a snapshot, or its path.
        operator: uid, id or name; then without the states of the job master.
        state: state name, in every operator that has it unless `operator` names one; then without coordinator state.
        in_flight: include the buffers of unaligned checkpoints; `state="_in_flight_data"` gives only these.

    Yields:
        One line per entry, an object for `json.dumps`. State that cannot be read is one line too and does not hide
        other state.

    Raises:
        NotFoundError: there is no such operator or state.
    """
    snapshot = ensure_open(snapshot)
    operators = snapshot.operators if operator is None else (snapshot.operator(operator),)
    if operator is None and state is None:
        yield from map(_dump_master, snapshot.metadata.master_states)
    found = False
    for each in operators:
        if state is None and each.metadata.coordinator_state is not None:
            yield {"kind": "coordinator", "op": each.label, "hex": each.metadata.coordinator_state.data.hex()}
        survey = each.survey(in_flight=in_flight or state == IN_FLIGHT_NAME)
        for one in survey.states:
            if state in (None, one.name, one.python_name):
                found = True
                try:
                    with at(operator=each.label, state=one.name):
                        yield from dump_state(one)
                except StateError as error:
                    yield _unread(Failure(None, error), each.label, one.name)
        yield from (_unread(failure, each.label) for failure in survey.failures)
        found |= bool(survey.failures)
    if state is not None and not found:
        operators[0].state(state)


def _unread(failure: Failure, operator: str, state: str | None = None) -> Line:
    line: Line = {"kind": "unread", "op": operator}
    if state is not None:
        line["state"] = state
    if failure.subtask is not None:
        line["subtask"] = failure.subtask
    return line | {"error": str(failure.error), "damaged": failure.is_damage}


def dump_state(state: State) -> Iterator[Line]:
    """Every entry of one state."""
    match state:
        case KeyedState(kind=kind) if kind == TIMER and state.find_layout()[0] is not None:
            yield from _dump_timers(state)
        case KeyedState():
            yield from _dump_keyed(state)
        case OperatorListState():
            yield from _dump_list(state)
        case BroadcastState():
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


def _dump_keyed(state: KeyedState) -> Iterator[Line]:
    op, kind = state.operator.label, state.kind
    head: Line = {"kind": "keyed", "op": op, **_name_state(state), "type": kind}
    guessed = state.guess is not None and PICKLED in state.guess.type
    for part in state.parts:
        layout, unread = state.find_part_layout(part)
        key_serializer, namespace, value = state.find_part_serializers(part)
        value = complete(value, state.operator.snapshot.layout_context)
        user_key = value.key if kind == "MAP" and isinstance(value, tree.MapOf) else None
        user_value = value.value if user_key is not None and isinstance(value, tree.MapOf) else value
        for records in part.records(state.context):
            data = records.data.tobytes()
            for row in range(len(records)):
                keys = Reader(data, records.file, int(records.key_starts[row]), int(records.key_ends[row]))
                values = Reader(data, records.file, int(records.value_starts[row]), int(records.value_ends[row]))
                line = dict(head)
                line["kg"] = int(records.key_groups[row])
                if layout is None:
                    if keys.remaining:
                        line["key"] = _keep(keys, unread)
                    line["value"] = _keep(values, unread)
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
                    line["key"] = _keep(keys, _reason(error))
                with blame_declared(layout):
                    _add_value(line, user_value, values, partial(_read_span, layout.value))
                if guessed:
                    line["guess"] = _guess_pickles(line["value"])
                yield line


def _name_state(state: State) -> Line:
    """The name of a state; of a Python function that in Python, and beside it that in Java."""
    line: Line = {"state": state.label}
    return {**line, "java_state": state.name} if state.python_name else line


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


def _dump_timers(state: KeyedState) -> Iterator[Line]:
    domain, _, service = state.name.removeprefix(_TIMER_PREFIX).partition("_")
    element = state.info.element
    if not isinstance(element, tree.Timer):
        raise UnsupportedError("a priority queue that does not hold timers is not read")
    for part in state.parts:
        for records in part.records(state.context):
            data = records.data.tobytes()
            for row in range(len(records)):
                reader = Reader(data, records.file, int(records.key_starts[row]), int(records.key_ends[row]))
                timer = _struct(read_value(state.layout.key, reader))
                reader.expect_end("the timer")
                yield {
                    "kind": "timer",
                    "op": state.operator.label,
                    "service": service,
                    "domain": domain,
                    "kg": int(records.key_groups[row]),
                    "key": to_json(element.key, timer["state_key"]),
                    "ns": to_json(element.namespace, timer["state_namespace"]),
                    "ts": to_json(_LONG, timer["timestamp"]),
                }


def _dump_list(state: OperatorListState) -> Iterator[Line]:
    context = state.operator.snapshot.layout_context
    for part in state.parts:
        stored = part.info.value_serializer
        serializer = complete(stored, context)
        data, starts, ends = part.elements()
        raw = data.tobytes()
        for index in range(len(starts)):
            line: Line = {"kind": "operator", "op": state.operator.label, "state": state.name, "mode": state.kind}
            line |= {"subtask": part.subtask, "index": index}
            reader = Reader(raw, part.name, int(starts[index]), int(ends[index]))
            # An element ends where its serializer does; what follows may belong to the file.
            _add_value(line, serializer, reader, partial(_read_stored, stored, context))
            yield line


def _dump_broadcast(state: BroadcastState) -> Iterator[Line]:
    context = state.operator.snapshot.layout_context
    for part in state.parts:
        key, stored = part.info.key_serializer, part.info.value_serializer
        serializer = complete(stored, context)
        data, start, end, count = part.entries()
        reader = Reader(data.tobytes(), part.name, start, end)
        for index in range(count):
            line: Line = {"kind": "broadcast", "op": state.operator.label, **_name_state(state)}
            line["subtask"] = part.subtask
            first = reader.position
            try:
                user_key = read_value(derive_layout(key, context), reader, tail=False)
                value = read_value(derive_layout(stored, context), reader, tail=index == count - 1)
            except UnsupportedError as error:
                # Only the serializers know where an entry ends.
                reader.position = first
                yield line | {"entries": count - index, "value": _keep(reader, _reason(error))}
                break
            line["ukey"] = to_json(key, user_key)
            line["value"] = _show(serializer, value)
            yield line


def _dump_key_groups(state: UnreadKeyedState) -> Iterator[Line]:
    for batch in state.batches():
        for row in batch.to_pylist():
            line: Line = {"kind": "keyed", "op": state.operator.label, "state": state.name, "subtask": row["subtask"]}
            yield line | {
                "kg": row["key_group"],
                "value": {"@bytes": row["value_bytes"].hex(), "@reason": row["reason"]},
            }


def _dump_master(master: MasterState) -> Line:
    return {"kind": "master", "name": master.name, "version": master.version, "bytes": master.payload.hex()}


def _dump_raw_keyed(state: RawKeyedState) -> Iterator[Line]:
    for part in state.parts:
        groups = part.key_groups
        starts = {section.key_group: section.start for section in part.sections}
        line: Line = {"kind": "raw_keyed", "op": state.operator.label, "subtask": part.subtask}
        line["range"] = f"KeyGroupRange{{startKeyGroup={groups.start}, endKeyGroup={groups.end}}}"
        line["offsets"] = [starts.get(group, NEVER_STARTED) for group in groups]
        line["hex"] = read_whole_stream(part.stream).hex()
        yield line


def _dump_raw_operator(state: RawOperatorState) -> Iterator[Line]:
    for part in state.parts:
        line: Line = {"kind": "raw_operator", "op": state.operator.label, "subtask": part.subtask}
        line["offsets"] = [offset for each in part.handle.states for offset in each.offsets]
        line["hex"] = read_whole_stream(part.stream).hex()
        yield line


def _dump_in_flight(state: InFlightState) -> Iterator[Line]:
    for part in state.parts:
        kind, info = _CHANNEL_NAMES[part.direction]
        for channel, place in zip(part.read(), channel_states(part.handle), strict=True):
            line: Line = {"kind": "inflight", "op": state.operator.label, "subtask": part.subtask, "handle": kind}
            line["size"] = place.state_size
            line["info"] = info.format(channel.info)
            line["offsets"] = list(place.offsets)
            line["buffers"] = [buffer.hex() for buffer in channel.buffers]
            yield line


def _add_value(line: Line, serializer: tree.Serializer, reader: Reader, read: Callable[[Reader], object]) -> None:
    start = reader.position
    try:
        value = read(reader)
    except UnsupportedError as error:
        reader.position = start
        line["value"] = _keep(reader, _reason(error))
        return
    line["value"] = _show(serializer, value)
    accessed = access_times(serializer, value)
    if accessed is not None:
        line["ttl_ts"] = accessed if isinstance(accessed, int) else [*accessed]


def _show(serializer: tree.Serializer, value: object) -> Json:
    if isinstance(value, Undecoded) and isinstance(serializer, tree.Opaque):
        return {"@bytes": value.raw.hex(), "@reason": value.reason}
    return to_json(serializer, value)


def _keep(reader: Reader, reason: str) -> Json:
    """Take the remaining bytes of `reader`."""
    return {"@bytes": reader.take(reader.remaining).hex(), "@reason": reason}


def _read_stored(serializer: tree.Serializer, context: LayoutContext, reader: Reader) -> object:
    return read_value(derive_layout(serializer, context), reader)


def _read_span(layout: lay.Layout, reader: Reader) -> object:
    value = read_value(layout, reader)
    reader.expect_end("the value")
    return value


def _reason(error: StateError) -> str:
    text = explain(error)
    return f"{text} (at {error.where.path})" if error.where.path else text


def _struct(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise FormatError("a key is not made of fields")
    return value


_LONG = tree.Basic(snapshot_class="", kind="Long")
