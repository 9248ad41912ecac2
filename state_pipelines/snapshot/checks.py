"""Checks of a snapshot: in-flight data, keys of databases, elements that handles leave out, names in declarations.

* `check_database_keys`: keys of a RocksDB database outside of the key groups of its handle, which `_metadata` hides if
  it was edited. Flink clips a database that it restores for fewer key groups by deleting what is outside
  (`RocksDBIncrementalCheckpointUtils.clipDBWithKeyGroupRange`), so that its files may hold such keys, but no live one.
* `check_channels`, `check_declared_names`: handles of in-flight data; names in declarations.
* `check_elements`, `check_offsets`: elements of operator state that handles leave out or name twice, before a snapshot
  is written. Files of operator state are copied, and no element of them is decoded, so that nothing else would notice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.errors import EDITED_METADATA, FormatError, StateError, UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.changelog.reader import ChangelogFile, find_bases
from state_pipelines.keyed.key_groups import encode_prefix
from state_pipelines.keyed.rocksdb import RocksFile
from state_pipelines.metadata import find_operator_id
from state_pipelines.metadata.handles import ChangelogStateBackendHandle, IncrementalRemoteKeyedStateHandle
from state_pipelines.metadata.streams import HEADER_SIZE, channel_states, measure_channel
from state_pipelines.operatorstate import read_list_state
from state_pipelines.rocksdb.scans import find_files, scan, split_keys
from state_pipelines.serializers.tree import Kryo, walk
from state_pipelines.snapshot.operator_state import NonKeyedState
from state_pipelines.snapshot.snapshot import survey_operator
from state_pipelines.snapshot.snapshot_files import check_subtasks, find_misfits, find_name, measure_handle
from state_pipelines.snapshot.state import python_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata import CheckpointMetadata, SubtaskState
    from state_pipelines.metadata.handles import ChannelInfo, KeyedStateHandle, KeyGroupRange
    from state_pipelines.rocksdb.manifest import ColumnFamily
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.snapshot.declarations import Declarations
    from state_pipelines.snapshot.operator_state import NonKeyedSubtaskState
    from state_pipelines.snapshot.snapshot import Operator

_FIRST = 64 << 10
"""Bytes of keys and values that are read for each state before and after the key groups of a handle."""


def check_database_keys(operator: Operator) -> None:
    """Check that the RocksDB databases of an operator hold no keys outside the key groups of their handles.

    Tables whose bounds are inside the key groups are not read; a few blocks are read of each other table. A database
    that several subtasks share is checked against the key groups of all of them.

    Raises:
        FormatError: a database holds such a key.
        StateError: a table cannot be read.
    """
    databases: dict[object, tuple[RocksFile, list[KeyGroupRange]]] = {}
    for identity, file, groups in _list_databases(operator):
        # Skip handles without key groups, which `check_held_key_groups` reports.
        if groups.number:
            databases.setdefault(identity, (file, []))[1].append(groups)
    for file, ranges in databases.values():
        start, end = min(each.start for each in ranges), max(each.end for each in ranges)
        _check(operator, file, start, end)


def _check(operator: Operator, file: RocksFile, start: int, end: int) -> None:
    prefix = operator.record_context.prefix
    sides: list[tuple[bytes, bytes | None]] = [(b"", encode_prefix(start, prefix))] if start else []
    if end + 1 < 1 << 8 * prefix:
        sides.append((encode_prefix(end + 1, prefix), None))
    for info, column_family in zip(file.header.states, file.column_families, strict=True):
        for low, high in sides:
            key = _find_first(column_family, low, high)
            if key is not None:
                raise FormatError(
                    f"the database holds records of key group {int.from_bytes(key[:prefix], 'big')}, and `_metadata` "
                    f"says that it has key groups {start}-{end}",
                    where=Where(file=file.name, operator=operator.label, state=info.name),
                    hint=EDITED_METADATA,
                )


def _find_first(column_family: ColumnFamily, low: bytes, high: bytes | None) -> bytes | None:
    """Return the first live key in a range; None if the range is empty, or its first entries are all deleted."""
    files = find_files(column_family, low, high)
    if not files:
        return None
    low = max(low, min(file.smallest for file in files))
    cuts = split_keys(column_family, low, high, _FIRST)
    for entries in scan(column_family, low, cuts[0] if cuts else high, window=_FIRST):
        return entries.data[entries.key_starts[0] : entries.key_ends[0]].tobytes()
    return None


def _list_databases(operator: Operator) -> Iterator[tuple[object, RocksFile, KeyGroupRange]]:
    """Yield for each handle an identifier of its database, the opened database, and the key groups of the handle."""
    handles = {each.index: each.managed_keyed_state for each in operator.metadata.subtasks}
    # Leave out files that cannot be opened: other checks report them.
    files, _ = operator.files.survey()
    for index, file in files:
        for handle, database in _pair(handles[index], file):
            if isinstance(handle, IncrementalRemoteKeyedStateHandle) and isinstance(database, RocksFile):
                yield (handle.backend_identifier, handle.meta_data_state), database, handle.key_groups


def _pair(handle: KeyedStateHandle | None, file: KeyedFile) -> Iterator[tuple[KeyedStateHandle | None, KeyedFile]]:
    if isinstance(handle, ChangelogStateBackendHandle) and isinstance(file, ChangelogFile):
        yield from zip(find_bases(handle), file.bases, strict=False)
    else:
        yield handle, file


_GROUPS = {"input": "gate", "output": "partition"}


def find_wrong_channels(subtask: SubtaskState) -> Iterator[str]:
    """Yield a message for each error in the handles of in-flight data of a subtask.

    Each channel must occur once, in a handle of its own or in a merged one (`ChannelStateCheckpointWriter.complete`).
    """
    for kind, handles in (("input", subtask.input_channel_state), ("output", subtask.result_subpartition_state)):
        known: set[ChannelInfo] = set()
        for handle in handles:
            if handle.subtask_index != subtask.index:
                yield f"in-flight {kind} data of subtask {handle.subtask_index} are listed for subtask {subtask.index}"
            for state in channel_states(handle):
                if state.info in known:
                    group, channel = state.info.group, state.info.channel
                    yield f"in-flight {kind} data of channel {channel} of {_GROUPS[kind]} {group} are listed twice"
                known.add(state.info)


@dataclass
class _Stream:
    """Bytes and buffers in a stream of in-flight data, according to all handles that name it.

    Attributes:
        size: size of the stream in bytes.
        operator_id: id of an operator that has a handle of the stream.
        named: bytes of all buffers that handles name.
        offsets: offsets of these buffers.
        twice: offsets that occur in two handles.
    """

    size: int
    operator_id: bytes
    named: int = 0
    offsets: set[int] = field(default_factory=set)
    twice: set[int] = field(default_factory=set)


def find_wrong_streams(metadata: CheckpointMetadata) -> Iterator[tuple[bytes, FormatError]]:
    """Yield an error for each stream of in-flight data whose handles do not name every byte once.

    Each error comes with the id of an operator that has a handle of the stream. Channels of several subtasks and
    operators share a stream, which holds a version and then only their buffers (`ChannelStateCheckpointWriter`).
    """
    streams: dict[str, _Stream] = {}
    for operator in metadata.operator_states:
        for subtask in operator.subtasks:
            for handle in (*subtask.input_channel_state, *subtask.result_subpartition_state):
                name = find_name(handle.delegate)
                if name is None:
                    continue
                stream = streams.setdefault(name, _Stream(measure_handle(handle.delegate), operator.operator_id))
                for state in channel_states(handle):
                    stream.named += measure_channel(state, handle.delegate)
                    stream.twice |= stream.offsets.intersection(state.offsets)
                    stream.offsets.update(state.offsets)
    for name, stream in streams.items():
        if stream.twice:
            what, offset = "a buffer of in-flight data is in two handles", min(stream.twice)
        elif HEADER_SIZE + stream.named != stream.size:
            what = f"handles name {stream.named} of the {stream.size - HEADER_SIZE} bytes of in-flight data"
            offset = None
        else:
            continue
        yield stream.operator_id, FormatError(what, where=Where(file=name, offset=offset), hint=EDITED_METADATA)


def check_channels(snapshot: Snapshot) -> None:
    """Check that handles list all in-flight data exactly once.

    Raises:
        FormatError: in-flight data are listed twice or not at all.
    """
    for operator in snapshot.operators:
        for subtask in operator.metadata.subtasks:
            for problem in find_wrong_channels(subtask):
                where = Where(file=str(snapshot.location.metadata), operator=operator.label)
                raise FormatError(problem, where=where, hint=EDITED_METADATA)
    for _, error in find_wrong_streams(snapshot.metadata):
        raise error


def check_declared_names(*snapshots: Snapshot) -> list[str]:
    """Check that each name in the declarations exists in at least one of the snapshots.

    Args:
        snapshots: at least one, opened with the same declarations.

    Returns:
        Notes about declarations without effect.

    Raises:
        UsageError: no snapshot has a declared operator, or none a declared state of a Python function.
    """
    declared = snapshots[0].declarations
    kinds: Sequence[tuple[str, Mapping[str, object]]] = (
        ("key serializer", declared.key_serializers),
        ("connector", declared.connectors),
        ("type of Python states", declared.python_types),
    )
    found = {(what, name): _find_operators(what, name, snapshots) for what, names in kinds for name in names}
    for name, types in declared.python_types.items():
        _check_states(name, types, found["type of Python states", name])
    return [
        *(
            f"the key serializer declared for operator {name} has no effect: it has no changelog state"
            for name in declared.key_serializers
            if not any(map(_has_changelog, found["key serializer", name]))
        ),
        *(
            f"the connector declared for operator {name} has no effect: it has no list state"
            for name in declared.connectors
            if not any(map(_may_have_connector, found["connector", name]))
        ),
        *_find_unused_classes(declared, snapshots),
        *_find_unused_plans(snapshots),
    ]


def _find_operators(what: str, name: str, snapshots: Sequence[Snapshot]) -> list[Operator]:
    """Return the operator with this name in each snapshot that has it.

    Raises:
        UsageError: no snapshot has the operator; `what` is declared for it.
    """
    wanted = find_operator_id(name)
    found = [each for snapshot in snapshots if (each := snapshot.get_operator(wanted)) is not None]
    if not found:
        raise UsageError(
            f"a {what} is declared for operator {name}, which is not in the snapshot",
            where=Where(file=snapshots[0].path),
            hint=_list_known(operator.label for snapshot in snapshots for operator in snapshot.operators),
        )
    return found


def _check_states(name: str, types: Iterable[str], operators: Sequence[Operator]) -> None:
    surveys = [operator.survey() for operator in operators]
    if any(each.failures for each in surveys):
        # Skip this check if some files cannot be read: a declared state that is not found may be in one of them.
        return
    states = [state for each in surveys for state in each.states if python_name(state.info)]
    known = {each for state in states for each in (state.name, state.python_name)}
    for wanted in types:
        if wanted not in known:
            raise UsageError(
                f"a type is declared for state {wanted}, which is no state of a Python function of the operator",
                where=Where(file=operators[0].snapshot.path, operator=name),
                hint=_list_known(state.python_name for state in states),
            )


def _list_known(names: Iterable[str]) -> str:
    known = ", ".join(dict.fromkeys(names))
    return f"It has {known}" if known else "It has none at all"


def _has_changelog(operator: Operator) -> bool:
    handles = (subtask.managed_keyed_state for subtask in operator.metadata.subtasks)
    return any(isinstance(handle, ChangelogStateBackendHandle) for handle in handles)


def _may_have_connector(operator: Operator) -> bool:
    metadata = operator.metadata
    return metadata.coordinator_state is not None or any(each.managed_operator_state for each in metadata.subtasks)


def _find_unused_classes(declared: Declarations, snapshots: Sequence[Snapshot]) -> Iterator[str]:
    left = {each.snapshot_class for each in declared.serializers}
    if left:
        for snapshot in snapshots:
            left -= set(_list_classes(snapshot))
    for name in sorted(left):
        yield f"the serializer class {name} is declared, and no serializer snapshot of the snapshot names it"


def _find_unused_plans(snapshots: Sequence[Snapshot]) -> Iterator[str]:
    """Yield notes about declared plans that have no operator of the snapshots, or do not fit one of the states."""
    planned = snapshots[0].planned
    if planned and not any(each.operator_id in planned for one in snapshots for each in one.metadata.operator_states):
        yield (
            "the plan names no operator of the snapshot: its nodes have other numbers. Give the plan that the job was "
            "started from; a job that was started from SQL text has no such names (table.exec.uid.generation)"
        )
    for each in snapshots:
        yield from find_misfits(each)


def _list_classes(snapshot: Snapshot) -> Iterator[str]:
    for operator in snapshot.operators:
        try:
            states = operator.survey().states
        except StateError:
            continue
        for state in states:
            for _, serializer in state.info.serializers:
                yield from _list_named(serializer)
        for _, file in operator.readable.keyed_files:
            yield from _list_named(file.header.key_serializer)


def _list_named(serializer: Serializer) -> Iterator[str]:
    """Yield the snapshot classes of a serializer and its nested ones, and the classes in Kryo serializers."""
    for node in walk(serializer):
        yield node.snapshot_class
        if isinstance(node, Kryo):
            yield node.type_class
            yield from (each.class_name for each in (*node.registrations, *node.default_serializers))
            yield from (each.class_name for each in node.default_serializer_classes)


LARGEST_DECODED = 64 << 20
"""Maximum bytes of a file whose elements are decoded here; for larger files, only `verify` finds missing elements."""


def check_elements(operator: Operator) -> list[str]:
    """Check that the handles of an operator name every element of list state once.

    Returns:
        Notes about states with bytes between an element and the next one, which may be elements missing in the handles.

    Raises:
        FormatError: as for `check_offsets`.
        StateError: a file cannot be read.
    """
    check_offsets(operator)
    notes = []
    for state in _find_states(operator):
        with at(operator=operator.label, state=state.name):
            for subtask_state in state.subtask_states:
                if (problem := _find_problem(state, subtask_state)) is not None:
                    notes.append(
                        f"operator {operator.label}, state {state.name}: elements may be missing, since `_metadata` "
                        f"does not fit the file: {problem}"
                    )
                    break
    return notes


def check_offsets(operator: Operator) -> None:
    """Check that the offsets in handles of operator state fit their files, of which only the headers are read.

    Raises:
        FormatError: the offsets do not fit (see `operatorstate`).
        StateError: a file cannot be read.
    """
    check_subtasks(operator.metadata, str(operator.snapshot.location.metadata))
    states, failures = survey_operator(operator)
    for failure in failures:
        if not isinstance(failure.error, UnsupportedError):
            # State in an unsupported format is no error here, since it is copied as it is.
            raise failure.error
    for state in states:
        assert isinstance(state, NonKeyedState)
        with at(operator=operator.label):
            for subtask_state in state.subtask_states:
                subtask_state.unread.check()


def _find_states(operator: Operator) -> list[NonKeyedState]:
    """Return the list and broadcast states of an operator that can be read; failures are ignored here."""
    return [state for state in survey_operator(operator)[0] if isinstance(state, NonKeyedState)]


def _find_problem(state: NonKeyedState, subtask_state: NonKeyedSubtaskState) -> FormatError | None:
    """Return an error if bytes of a subtask's list state belong to no element that a handle names; else None."""
    # Broadcast state is not checked: every subtask has a copy, and one copy is enough.
    if not subtask_state.unread.header.has_list(subtask_state.info.name):
        return None
    if subtask_state.unread.stream.size > LARGEST_DECODED:
        return None
    try:
        read_list_state(subtask_state.read(), subtask_state.info, state.operator.snapshot.layout_context)
    except UnsupportedError:
        return None
    except FormatError as error:
        return error
    return None
