"""`dump`: every entry of a snapshot, one JSON object each, decoded one value at a time.

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

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.json import to_json
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.codecs.serializer_layouts import complete, derive_layout
from state_pipelines.connectors.registry import LIST_INDEX
from state_pipelines.errors import FormatError, MissingFileError, StateError, UnsupportedError, at
from state_pipelines.keyed.raw_timers import NEVER_STARTED
from state_pipelines.metadata.handles import ChannelDirection
from state_pipelines.metadata.streams import channel_states, read_whole_stream
from state_pipelines.operations.dump_lines import (
    Line,
    LineKind,
    add_value,
    describe_reason,
    describe_unread,
    name_state,
    show_bytes,
    show_value,
)
from state_pipelines.operations.json_rows import to_rows
from state_pipelines.operations.keyed_dump import dump_keyed_state, dump_keyed_states
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.operator_state import (
    IN_FLIGHT_NAME,
    BroadcastState,
    InFlightState,
    OperatorListState,
    RawKeyedState,
    RawOperatorState,
    UnreadKeyedState,
)
from state_pipelines.snapshot.snapshot import Failure, ensure_open
from state_pipelines.storage.reading import scan_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.codecs.json import Json
    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.connectors.registry import ConnectorState
    from state_pipelines.metadata import MasterState
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Operator, Snapshot, State

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
        operator: uid, id or name; then without the states of the job master.
        state: state name, in every operator that has it unless `operator` names one; then without coordinator state.
        in_flight: include the buffers of unaligned checkpoints; `state="_in_flight_data"` gives only these.
        splits: elements of known connectors as their splits or committables, `{"@connector": "kafka", "splits": [...]}`
            in the form of `inspect`, not as the bytes of the element.

    Yields:
        One line per entry, an object for `json.dumps`. The keyed states of an operator come one file after the other,
        by key groups in a file. State that cannot be read is one line too and does not hide other state.

    Raises:
        NotFoundError: there is no such operator or state.
        StorageError: the storage fails; lines of what was read before have been given.
    """
    snapshot = ensure_open(snapshot)
    operators = snapshot.operators if operator is None else (snapshot.operator(operator),)
    if operator is None and state is None:
        yield from map(_dump_master, snapshot.metadata.master_states)
    # Once for all threads.
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
    """Every entry of an operator, or of its states of one name; adds its label to `found` where it has any state."""
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
    """Every entry of one state; `splits` as of `dump`.

    Raises:
        StateError: the state cannot be read.
    """
    match state:
        case KeyedState():
            yield from dump_keyed_state(state)
        case OperatorListState():
            yield from _dump_list(state, _find_splits(state) if splits else None)
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


def _find_splits(state: OperatorListState) -> ConnectorState | None:
    """The connector that the state is that of, with the splits of its elements; None where that is not known."""
    try:
        return state.detected.state
    except (FormatError, MissingFileError):
        # Reading the elements reports it.
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
            # An element ends where its serializer does; what follows may belong to the file.
            add_value(line, serializer, reader, partial(_read_stored, stored, context))
            yield line


def _show_splits(connector: ConnectorState, number: int) -> Json:
    """The splits of an element, which is counted over all subtasks."""
    columns = pa.schema([each for each in connector.columns if each.name != LIST_INDEX.name])
    rows = pa.RecordBatch.from_pylist([dict(each) for each in connector.rows[number]], schema=columns)
    splits: list[Any] = list(to_rows(rows))
    return {"@connector": connector.connector, "splits": splits}


def _dump_broadcast(state: BroadcastState) -> Iterator[Line]:
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
                # Only the serializers know where an entry ends.
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
