"""Metadata and files of a snapshot and of its operators, and the declarations of the caller.

* `find_shared_files`: state that handles of two operators name, or two databases of one, which Flink never writes. That
  is files, state inside of `_metadata`, slices of merged files and sets of logged changes. In-flight data, which tasks
  write for all their operators, are not among them.
* `find_held_key_groups`: key groups that each subtask of an operator holds in its keyed state, by the ranges of its
  handles. Flink restores a subtask from handles of any ranges and drops the key groups outside the range that its
  formula gives (`KeyGroupRangeAssignment`). Only the ranges of the handles say which key groups a snapshot holds: they
  follow the formula of the release that wrote them, which may differ from that of current releases.
* `SnapshotFiles`, `OperatorFiles`: the metadata, the files and the declarations of a snapshot and of one operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from state_pipelines.codecs.columns import explain
from state_pipelines.codecs.serializer_layouts import LayoutContext, collect_subclasses
from state_pipelines.errors import (
    EDITED_METADATA,
    FormatError,
    NotFoundError,
    StateError,
    UnsupportedError,
    UsageError,
    Where,
    at,
)
from state_pipelines.keyed.canonical import CanonicalFile
from state_pipelines.keyed.changelog.reader import ChangelogFile, find_key_serializer, find_written_serializers
from state_pipelines.keyed.hashing.value_hashes import find_key_group
from state_pipelines.keyed.heap import check_first_section
from state_pipelines.keyed.key_groups import compute_key_group_range, key_group_prefix_size
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.raw_timers import NotTimersError
from state_pipelines.metadata import CheckpointMetadata, compute_operator_id, find_operator_id
from state_pipelines.metadata.checkpoint import SnapshotKind, find_snapshot_kind, format_operator_id
from state_pipelines.metadata.handles import (
    MAX_PARALLELISM,
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    FileStateHandle,
    IncrementalRemoteKeyedStateHandle,
    InMemoryChangelogStateHandle,
    KeyGroupRange,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.streams import StateCategory, StreamRole, list_references, operator_handles
from state_pipelines.serializers.state_meta_info import VALUE_SERIALIZER, BackendStateType, StateMetaInfo
from state_pipelines.serializers.tree import LogicalType, RowData, Serializer
from state_pipelines.snapshot.declarations import Declarations
from state_pipelines.snapshot.handle_readers import (
    HandleReader,
    find_first_bases,
    find_header_ends,
    list_operator_handles,
)
from state_pipelines.sql.accumulators import UNRESOLVED
from state_pipelines.sql.node_states import PlannedOperator, PlannedRow, list_operators
from state_pipelines.storage import METADATA_FILE, join
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import count_scans_ahead, scan_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from state_pipelines.codecs.kryo.classes import FieldLists
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata import OperatorState
    from state_pipelines.metadata.handles import KeyedStateHandle, StreamStateHandle
    from state_pipelines.serializers.python_types import PythonDeclaration
    from state_pipelines.sql.compiled_plans import Plan
    from state_pipelines.storage import Location, PathMapping, SnapshotLocation


def find_planned(plans: Iterable[Plan]) -> dict[bytes, PlannedOperator]:
    """Return the operators of compiled plans by operator id."""
    return {compute_operator_id(each.uid): each for plan in plans for each in list_operators(plan)}


def label_file(file: KeyedFile, planned: PlannedOperator | None) -> KeyedFile:
    """Return a file of an operator with the column names of a plan in the serializers of its rows.

    Rows with other types than in the plan are not changed.
    """
    if planned is None:
        return file
    key, states = file.described_states()
    keys = () if planned.key is None else (planned.key,)
    return file.with_described_states(
        None if key is None else label_rows(key, keys), tuple(_label_state(info, planned, keys) for info in states)
    )


def label_rows(serializer: Serializer, rows: Sequence[PlannedRow]) -> Serializer:
    """Return a serializer whose rows have the column names of a compiled plan.

    It is returned unchanged if it has another number of rows, or if a row has other types.

    Args:
        serializer: a serializer that contains rows.
        rows: the rows in the plan, in the order in which the serializer contains them.
    """
    if not has_rows(serializer, rows):
        return serializer
    left = iter(rows)
    labelled: Serializer = _replace_rows(serializer, left)
    return labelled


def has_rows(serializer: Serializer, rows: Sequence[PlannedRow]) -> bool:
    """Return whether the row serializers inside a serializer have, in order, the column types of a compiled plan."""
    found = [*_find_rows(serializer)]
    return len(found) == len(rows) and all(map(fits, found, rows))


def fits(row: RowData, planned: PlannedRow) -> bool:
    """Return whether a row serializer has the column types of a plan; a type that the plan lacks fits any type."""
    types = [each.type for each in planned.columns]
    return len(types) == len(row.types) and all(map(_fits_type, row.types, types))


def _fits_type(of: LogicalType, planned: LogicalType) -> bool:
    return planned == UNRESOLVED or of == planned or replace(of, class_name=None) == replace(planned, class_name=None)


def _label_state(info: StateMetaInfo, planned: PlannedOperator, keys: Sequence[PlannedRow]) -> StateMetaInfo:
    if info.backend_type is BackendStateType.PRIORITY_QUEUE:
        rows: Sequence[PlannedRow] = keys
    else:
        state = planned.find_state(info.name)
        rows = () if state is None else state.rows
    if not rows:
        return info
    return replace(
        info,
        serializers=tuple(
            (name, label_rows(each, rows) if name == VALUE_SERIALIZER else each) for name, each in info.serializers
        ),
    )


def _find_rows(node: object) -> Iterator[RowData]:
    """Yield the row serializers in a serializer, except those that are fields of rows."""
    if isinstance(node, RowData):
        yield node
    elif isinstance(node, tuple):
        for each in node:
            yield from _find_rows(each)
    elif isinstance(node, Serializer):
        for field in fields(node):
            yield from _find_rows(getattr(node, field.name))


def _replace_rows(node: Any, rows: Iterator[PlannedRow]) -> Any:
    if isinstance(node, RowData):
        return replace(node, labels=next(rows).names)
    if isinstance(node, tuple):
        return tuple(_replace_rows(each, rows) for each in node)
    if not isinstance(node, Serializer) or not is_dataclass(node):
        return node
    return replace(node, **{field.name: _replace_rows(getattr(node, field.name), rows) for field in fields(node)})


def find_misfits(snapshot: SnapshotFiles) -> Iterator[str]:
    """Yield a note for each state whose rows have other types than a declared plan says; their columns get no names."""
    for operator_id, operator in snapshot.planned.items():
        seen: set[str] = set()
        for _, file in (
            snapshot.keyed_files[operator_id].open_managed()[0] if operator_id in snapshot.keyed_files else ()
        ):
            for info in file.described_states()[1]:
                state = operator.find_state(info.name)
                if state is None or info.name in seen or info.backend_type is BackendStateType.PRIORITY_QUEUE:
                    continue
                if not has_rows(info.value_serializer, state.rows):
                    seen.add(info.name)
                    yield (
                        f"the plan does not fit state {info.name} of operator {operator.uid}, which holds other types "
                        f"than {state.describe()}: its columns get no names. Give the plan of the job that wrote "
                        "the snapshot"
                    )


_OWNED = (
    StateCategory.MANAGED_KEYED,
    StateCategory.RAW_KEYED,
    StateCategory.MANAGED_OPERATOR,
    StateCategory.RAW_OPERATOR,
)

Owners = dict[bytes, tuple[str, bytes]]
"""Operator id -> (a file of its state that another operator or database names too, id of that operator)."""


def find_shared_files(metadata: CheckpointMetadata) -> Owners:
    """Find operators that name the same state, and databases of one operator that name the same private file."""
    first: dict[tuple[str, str], tuple[bytes, object]] = {}
    found: Owners = {}
    for kind, name, own, database in _list_names(metadata):
        other, known = first.setdefault((kind, name), (own, database))
        if (other, known) != (own, database):
            found[own], found[other] = (name, other), (name, own)
    return found


def _list_names(metadata: CheckpointMetadata) -> Iterator[tuple[str, str, bytes, object]]:
    """Yield (kind, name, operator id, database) for all files and changes that only one operator may name.

    The database is None except for private files, which only one database may name.
    """
    for reference in list_references(metadata):
        name = find_name(reference.handle)
        if name is not None and reference.category in _OWNED and reference.role is not StreamRole.CHANGES:
            yield "file", name, reference.operator.operator_id, None
    for operator in metadata.operator_states:
        for subtask in operator.subtasks:
            yield from _list_keyed_names(subtask.managed_keyed_state, operator.operator_id)


def _list_keyed_names(handle: KeyedStateHandle | None, own: bytes) -> Iterator[tuple[str, str, bytes, object]]:
    match handle:
        case IncrementalRemoteKeyedStateHandle():
            # Several subtasks may name the same database with all of its files, so the database identifies the owner.
            database = handle.backend_identifier, handle.meta_data_state
            names = (find_name(each.handle) for each in handle.private_state)
            yield from (("private file", name, own, database) for name in names if name is not None)
        case ChangelogStateBackendHandle():
            for each in (*handle.materialized, *handle.non_materialized):
                yield from _list_keyed_names(each, own)
        case InMemoryChangelogStateHandle():
            yield "changes", handle.state_handle_id, own, None
        case ChangelogStateHandleStream():
            for stream in handle.streams:
                name = find_name(stream.handle)
                if name is not None:
                    yield "changes", f"{name}, changes at {stream.offset}", own, None


def find_name(handle: StreamStateHandle) -> str | None:
    """Return a name that is equal for all handles of one stream; None for empty segments, which have no name."""
    match handle:
        case FileStateHandle(path=name) | RelativeFileStateHandle(relative_path=name):
            return name
        case ByteStreamStateHandle(handle_name=name):
            return name
        case SegmentFileStateHandle(path=path, start=start):
            return f"{path}, bytes from {start} on"
    return None


def check_owner(owners: Owners, operator_id: bytes) -> None:
    """Check that an operator names no files of another operator, and its databases no private files of each other.

    Raises:
        FormatError: such a file is named.
    """
    if operator_id in owners:
        path, other = owners[operator_id]
        raise FormatError(
            "two RocksDB databases of the operator name the same private file"
            if other == operator_id
            else f"the file also belongs to the state of operator {format_operator_id(other)}",
            where=Where(file=path),
            hint=EDITED_METADATA,
        )


_LISTED = 8
"""Largest number of ranges that an error lists."""


def find_held_key_groups(operator: OperatorState) -> dict[int, KeyGroupRange]:
    """Return the key groups of the managed keyed state of each subtask that has any, by index of the subtask.

    A subtask has the range of its handle. But `rescale` may give several subtasks handles of the same RocksDB database
    with overlapping ranges: then each has only the key groups that are also in the range of Flink's formula, to which
    Flink clips the database (`RocksDBIncrementalRestoreOperation`).
    """
    handles = {each.index: each.managed_keyed_state for each in operator.subtasks}
    present = {index: handle for index, handle in handles.items() if handle is not None and handle.key_groups.number}
    shared = _find_shared(present)
    follows_formula = operator.parallelism <= operator.max_parallelism
    return {
        index: handle.key_groups.intersect(_compute(operator, index))
        if index in shared and follows_formula and index < operator.parallelism
        else handle.key_groups
        for index, handle in present.items()
    }


def follows_formula(operator: OperatorState) -> bool:
    """Return whether every subtask holds only key groups that Flink's formula gives to it.

    Flink restores an operator of unchanged parallelism from the handles of the same subtasks, so that key groups
    outside the range of the formula would be lost or refused.
    """
    if not operator.parallelism <= operator.max_parallelism:
        return True
    held = [*find_held_key_groups(operator).items(), *_find_raw(operator).items()]
    return all(
        index < operator.parallelism and _compute(operator, index).intersect(groups) == groups
        for index, groups in held
        if groups.number
    )


def explain_older_ranges(operator: OperatorState, label: str) -> str | None:
    """Return a note for users if subtasks hold other key groups than Flink would give them today, else None."""
    if follows_formula(operator):
        return None
    return (
        f"operator {label}: its subtasks hold other key groups than Flink assigns today, so that Flink restores all of "
        f"its state only at another parallelism; `rescale --parallelism {label}={operator.parallelism}` writes them as "
        "Flink does"
    )


def explain_missing_handles(operator: OperatorState, *, raw: bool = False) -> str | None:
    """Return a note about key groups that are in no handle, although other subtasks have handles, else None.

    Missing handles are legal: a subtask that has registered no state, because it has seen no record yet, has no handle
    (`HeapSnapshotStrategy`, `RocksDBSnapshotStrategyBase`, `ChangelogKeyedStateBackend.buildSnapshotResult`). A handle
    that was removed from `_metadata` looks the same, unless the ranges of adjacent subtasks reveal it
    (`check_held_key_groups`). Subtasks that have finished have no state in any case. Timers on the heap, which are raw
    keyed state, are written by each subtask (`InternalTimeServiceManagerImpl.snapshotToRawKeyedState`).

    Args:
        operator: metadata of an operator that `check_held_key_groups` accepts.
        raw: raw keyed state instead of managed keyed state.
    """
    held = _find_raw(operator) if raw else find_held_key_groups(operator)
    if not held:
        return None
    finished = {each.index for each in operator.subtasks if each.finished}
    missing = np.ones(operator.max_parallelism, np.bool_)
    for groups in held.values():
        missing[groups.start : groups.end + 1] = False
    for index in finished - held.keys() if operator.parallelism <= operator.max_parallelism else ():
        groups = _compute(operator, index)
        missing[groups.start : groups.end + 1] = False
    if not missing.any():
        return None
    without = [str(index) for index in range(operator.parallelism) if index not in held and index not in finished]
    more = f" and {len(without) - _LISTED} more" if len(without) > _LISTED else ""
    subtasks = f"subtask{'s' if len(without) > 1 else ''} {', '.join(without[:_LISTED])}{more}"
    if raw:
        return (
            f"{_name(missing)} in no handle of raw keyed state: {subtasks} without it. Timers on the heap are there, "
            "which Flink writes for every subtask; only an operator that writes raw keyed state itself may leave it out"
        )
    return (
        f"{_name(missing)} in no handle: {subtasks} without keyed state. Flink writes it so where a subtask has "
        "registered no state; nothing shows whether a handle was lost"
    )


def check_subtasks(operator: OperatorState, file: str) -> None:
    """Check that the subtasks of an operator are those that its parallelism gives it, each at most once.

    Args:
        operator: metadata of the operator.
        file: the `_metadata` file, for errors.

    Raises:
        FormatError: a subtask is listed twice, or does not exist.
    """
    indexes = [each.index for each in operator.subtasks]
    if len(set(indexes)) != len(indexes):
        raise FormatError("a subtask is listed twice", where=Where(file=file), hint=EDITED_METADATA)
    outside = next((index for index in indexes if not 0 <= index < operator.parallelism), None)
    if outside is not None and operator.parallelism > 0:
        what = f"subtask {outside} does not exist at parallelism {operator.parallelism}"
        raise FormatError(what, where=Where(file=file), hint=EDITED_METADATA)


def check_parallelism(operator: OperatorState, file: str) -> None:
    """Check that an operator with keyed state can have its parallelism and its number of key groups.

    Args:
        operator: metadata of the operator.
        file: the `_metadata` file, for errors.

    Raises:
        FormatError: the parallelism is below 1, or the max parallelism not between 1 and 32,768
            (`KeyGroupRangeAssignment.checkParallelismPreconditions`).
    """
    where = Where(file=file)
    if operator.parallelism < 1:
        raise FormatError(f"the parallelism {operator.parallelism} is below 1", where=where, hint=EDITED_METADATA)
    if not 0 < operator.max_parallelism <= MAX_PARALLELISM:
        what = f"the max parallelism {operator.max_parallelism} is not between 1 and {MAX_PARALLELISM:,}"
        raise FormatError(what, where=where, hint=EDITED_METADATA)


def check_held_key_groups(operator: OperatorState, file: str, *, raw: bool = False) -> None:
    """Check that the keyed state of an operator covers each key group exactly once.

    Key groups without state are legal where a subtask between the others has none: Flink writes no handle for a
    subtask that has registered no state.

    Args:
        operator: metadata of the operator.
        file: the `_metadata` file, for errors.
        raw: check raw keyed state instead of managed keyed state.

    Raises:
        FormatError: subtasks or parallelism are invalid (`check_subtasks`, `check_parallelism`), or a key group is
            covered by no handle or by several. The message names the key groups and subtasks.
    """
    check_subtasks(operator, file)
    if not any(each.raw_keyed_state if raw else each.managed_keyed_state for each in operator.subtasks):
        return
    check_parallelism(operator, file)
    held = _find_raw(operator) if raw else find_held_key_groups(operator)
    stored = held if raw else _find_stored(operator)
    end = max([operator.max_parallelism, *(each.end + 1 for each in (*held.values(), *stored.values()))])
    counts = np.zeros(min(end, MAX_PARALLELISM) + 1, np.int64)
    for groups in held.values():
        counts[groups.start : groups.end + 1] += 1
    known = np.zeros(len(counts), bool)
    for groups in stored.values():
        known[groups.start : groups.end + 1] = True
    kind = "raw keyed state" if raw else "keyed state"
    handles = {} if raw else {each.index: each.managed_keyed_state for each in operator.subtasks}
    problems = [
        f"no key group in the handle of subtask {index}, which names state"
        for index, handle in handles.items()
        if isinstance(handle, IncrementalRemoteKeyedStateHandle | ChangelogStateBackendHandle)
        and not handle.key_groups.number
    ]
    if (counts > 1).any():
        problems.append(f"{_name(counts > 1)} in several handles ({_name_holders(held, counts > 1)})")
    missing = known & (counts == 0)
    for gap in _find_gaps(operator, held):
        missing[gap.start : gap.end + 1] = True
    if missing.any():
        problems.append(f"{_name(missing)} in none (the handles hold {_name_holders(held, counts > 0)})")
    foreign = [index for index, groups in held.items() if stored[index].number and not groups.number]
    if foreign:
        groups = stored[foreign[0]]
        problems.append(
            f"no key group of subtask {foreign[0]} in its handle ({groups.start}-{groups.end}, of a database that "
            "another subtask has too)"
        )
    outside = known.copy()
    outside[: operator.max_parallelism] = False
    if outside.any():
        problems.append(
            f"{_name(outside)} although there are {operator.max_parallelism} ({_name_holders(held, outside)})"
        )
    if problems:
        raise FormatError(
            f"the {kind} does not hold every key group once: {'; '.join(problems)}",
            where=Where(file=file),
            hint="The snapshot is incomplete or was edited. Use an earlier one, or write it without this operator "
            "(rescale --drop-operator)",
        )


def _compute(operator: OperatorState, subtask: int) -> KeyGroupRange:
    return compute_key_group_range(subtask, operator.parallelism, operator.max_parallelism)


def _find_shared(handles: Mapping[int, KeyedStateHandle]) -> set[int]:
    """Find subtasks that share a database with another subtask whose range overlaps."""
    databases: dict[object, list[int]] = {}
    for index, handle in handles.items():
        if isinstance(handle, IncrementalRemoteKeyedStateHandle):
            databases.setdefault((handle.backend_identifier, handle.meta_data_state), []).append(index)
    found: set[int] = set()
    for same in databases.values():
        end, last = -1, -1
        for groups, index in sorted(((handles[index].key_groups, index) for index in same), key=_start):
            if groups.start <= end:
                found |= {index, last}
            if groups.end > end:
                end, last = groups.end, index
    return found


def _start(held: tuple[KeyGroupRange, int]) -> int:
    return held[0].start


def _find_stored(operator: OperatorState) -> dict[int, KeyGroupRange]:
    """Return the key-group ranges in the handles of managed keyed state, by index of the subtask."""
    handles = {each.index: each.managed_keyed_state for each in operator.subtasks}
    return {index: handle.key_groups for index, handle in handles.items() if handle is not None}


def _find_raw(operator: OperatorState) -> dict[int, KeyGroupRange]:
    handles = {each.index: each.raw_keyed_state for each in operator.subtasks}
    return {
        index: handle.key_groups for index, handle in handles.items() if handle is not None and handle.key_groups.number
    }


def _find_gaps(operator: OperatorState, held: Mapping[int, KeyGroupRange]) -> Iterator[KeyGroupRange]:
    """Yield key groups between the ranges of subtasks with adjacent indices, which no other subtask could hold."""
    ordered = sorted(((groups, index) for index, groups in held.items() if groups.number), key=_start)
    before, position = -1, 0
    for groups, index in [*ordered, (KeyGroupRange(operator.max_parallelism, 0), operator.parallelism)]:
        if groups.start > position and abs(index - before) == 1:
            yield KeyGroupRange(position, groups.start - position)
        position, before = max(position, groups.end + 1), index


def _name(chosen: npt.NDArray[np.bool_]) -> str:
    """Format key groups, such as `key groups 0-3, 12`."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
    ranges = [f"{start}" if end - start == 1 else f"{start}-{end - 1}" for start, end in edges.reshape(-1, 2).tolist()]
    more = f" and {len(ranges) - _LISTED} more ranges" if len(ranges) > _LISTED else ""
    return f"key group{'s' if int(chosen.sum()) > 1 else ''} {', '.join(ranges[:_LISTED])}{more}"


def _name_holders(held: Mapping[int, KeyGroupRange], chosen: npt.NDArray[np.bool_]) -> str:
    """Format the subtasks that hold any of the chosen key groups, with their ranges."""
    holders = [
        f"subtask {index}: {groups.start}-{groups.end}"
        for index, groups in held.items()
        if groups.number and chosen[groups.start : groups.end + 1].any()
    ]
    more = f", and {len(holders) - _LISTED} more" if len(holders) > _LISTED else ""
    return f"{', '.join(holders[:_LISTED])}{more}"


Files = tuple[tuple[int, "KeyedFile"], ...]
"""(index of the subtask, its file)."""


Failures = Mapping["int | None", StateError]
"""Errors of subtasks whose state cannot be read, by index of the subtask; None for an error about all subtasks."""


@dataclass(frozen=True)
class UnreadState:
    """Raw keyed state of a subtask that can be shown as stored bytes only.

    Attributes:
        reason: reason why it cannot be read, and what would help.
        is_timers: the state is timers, but their format or types are not supported; otherwise only the operator knows
            the format.
    """

    reason: str
    is_timers: bool


class KeyedFiles:
    """The files with keyed state of one operator, each of which is opened once.

    Args:
        snapshot: the snapshot.
        operator: metadata of the operator.

    Attributes:
        operator: metadata of the operator.
        evidence: reasons for a key serializer that is derived from logged changes; empty if the snapshot stores it.
    """

    def __init__(self, snapshot: SnapshotFiles, operator: OperatorState) -> None:
        self.operator = operator
        self.evidence = ""
        self._snapshot = snapshot
        self._planned = snapshot.planned.get(operator.operator_id)
        self._managed: tuple[Files, Mapping[int, StateError]] | None = None
        self._complete: tuple[Files, Failures] | None = None
        self._raw: tuple[Files, Mapping[int, UnreadState], Mapping[int, StateError]] | None = None
        self._is_checked = False

    @cached_property
    def context(self) -> RecordContext:
        """The properties that are needed to find records in the bytes; reads the headers of all operators."""
        return RecordContext(self.operator.max_parallelism, self._snapshot.layout_context)

    def open(self) -> Files:
        """Open the files of each subtask: its managed state, then timers in its raw keyed state.

        Raises:
            StateError: a handle cannot be read, timers in raw keyed state are damaged, or a key group is held by no
                subtask or by several.
            UnsupportedError: the key serializer of changelog state is not known.
        """
        files, failures = self.survey()
        for failure in failures.values():
            raise failure
        return files

    def survey(self) -> tuple[Files, Failures]:
        """Open the files that can be read; return them, and the errors of the others by index of the subtask.

        The error under the index None is about the key groups of all subtasks.
        """
        if self._complete is None:
            opened, failures = self.open_managed()
            managed = tuple((index, file.with_context(self.context)) for index, file in opened)
            failed: dict[int | None, StateError] = dict(failures.items())
            try:
                self._check_ranges()
            except StateError as error:
                failed[None] = error
            try:
                managed = self._know_keys(managed)
            except StateError as error:
                failed |= {index: error for index, file in managed if _lacks_key(file)}
                managed = tuple(each for each in managed if not _lacks_key(each[1]))
            raw, _, raw_failures = self._open_raw()
            for index, failure in raw_failures.items():
                failed.setdefault(index, failure)
            self._complete = tuple(sorted((*managed, *raw), key=lambda each: each[0])), failed
        return self._complete

    def find_unread(self) -> Mapping[int, UnreadState]:
        """Find raw keyed state that is not timers, or timers that are not supported, by index of the subtask.

        Raises:
            StateError: a handle cannot be read, timers are damaged, or a key group is held by several subtasks.
        """
        self._check_ranges()
        _, unread, failures = self._open_raw()
        for failure in failures.values():
            raise failure
        return unread

    def survey_unread(self) -> Mapping[int, UnreadState]:
        """Find the same state as `find_unread`, but ignore subtasks with damaged state (their errors: `survey`)."""
        return self._open_raw()[1]

    def open_stored(self) -> tuple[KeyedFile, ...]:
        """Open the files with all key groups of their handles; a database that several subtasks share occurs once.

        `open` limits a shared database to the key groups that each subtask holds (`find_held_key_groups`). Proofs count
        all records in the files, so they use this function.

        Raises:
            StateError: as for `open`.
        """
        found: dict[object, KeyedFile] = {}
        handles = {each.index: each.managed_keyed_state for each in self.operator.subtasks}
        for index, file in self.open():
            handle = handles[index]
            if file.is_database and handle is not None:
                found.setdefault(handle, file.narrow(handle.key_groups))
            else:
                found[id(file)] = file
        return tuple(found.values())

    def open_managed(self) -> tuple[Files, Mapping[int, StateError]]:
        """Open the managed state of subtasks; return the files, and the errors of the others by index of the subtask.

        Layouts may depend on other operators, so the managed state of all operators is opened at once. Only the headers
        of these files may be used, because their context lacks the POJO subclasses that other headers list.
        """
        if self._managed is None:
            _open_managed(self._snapshot)
        assert self._managed is not None
        return self._managed

    def take_managed(self, opened: Iterator[KeyedFile | StateError | None]) -> None:
        """Store the managed state of each subtask, taken in order from `opened`, as the result of `open_managed`."""
        held = find_held_key_groups(self.operator)
        files: list[tuple[int, KeyedFile]] = []
        failures: dict[int, StateError] = {}
        for subtask in self.operator.subtasks:
            file = next(opened)
            if file is not None and not isinstance(file, StateError):
                try:
                    _check_first_sections(file, self.operator.max_parallelism)
                except StateError as error:
                    file = error
            if isinstance(file, StateError):
                failures[subtask.index] = file
            elif file is not None:
                file = label_file(file, self._planned)
                files.append((subtask.index, file.narrow(held[subtask.index]) if subtask.index in held else file))
        self._managed = tuple(files), failures

    def _check_ranges(self) -> None:
        if not self._is_checked:
            metadata = str(join(self._snapshot.handles.directory, METADATA_FILE))
            for raw in (False, True):
                check_held_key_groups(self.operator, metadata, raw=raw)
            check_owner(self._snapshot.shared_files, self.operator.operator_id)
            self._is_checked = True

    def _open_raw(self) -> tuple[Files, Mapping[int, UnreadState], Mapping[int, StateError]]:
        if self._raw is None:
            files, unread, failures = [], {}, {}
            subtasks, handles = self.operator.subtasks, self._snapshot.handles
            opened = handles.open_all_raw_keyed([each.raw_keyed_state for each in subtasks], self.context)
            for subtask, file in zip(subtasks, opened, strict=True):
                if isinstance(file, UnsupportedError):
                    unread[subtask.index] = UnreadState(explain(file), not isinstance(file, NotTimersError))
                elif isinstance(file, StateError):
                    failures[subtask.index] = file
                elif file is not None:
                    files.append((subtask.index, label_file(file, self._planned)))
            self._raw = tuple(files), unread, failures
        return self._raw

    def _know_keys(self, files: Files) -> Files:
        unknown = [file for _, file in files if _lacks_key(file)]
        if not unknown:
            return files
        logs = [file for _, file in files if isinstance(file, ChangelogFile)]
        with at(file=unknown[0].name):
            found = find_key_serializer(logs, self._snapshot.key_candidates)
        self.evidence = found.evidence
        return tuple((index, file.with_key_serializer(found.serializer)) for index, file in files)


def _open_managed(snapshot: SnapshotFiles) -> None:
    """Open the managed state of all operators, many files at a time."""
    keys = {find_operator_id(name): key for name, key in snapshot.declarations.key_serializers.items()}
    opened = iter(
        snapshot.handles.open_side_by_side(
            (
                subtask.managed_keyed_state,
                RecordContext(files.operator.max_parallelism, snapshot.stored_layouts),
                keys.get(files.operator.operator_id),
            )
            for files in snapshot.keyed_files.values()
            for subtask in files.operator.subtasks
        )
    )
    for files in snapshot.keyed_files.values():
        files.take_managed(opened)


def _lacks_key(file: KeyedFile) -> bool:
    return file.described_states()[0] is None


def _check_first_sections(file: KeyedFile, max_parallelism: int) -> None:
    for each in file.bases if isinstance(file, ChangelogFile) else (file,):
        if isinstance(each, CanonicalFile):
            check_first_section(each, key_group_prefix_size(max_parallelism))


FIRST_VERSION_OF_FLINK_2 = 5
"""First metadata version that Flink 2 writes, whose generic types use Kryo 5."""


class SnapshotFiles:
    """Metadata of a snapshot, and the readers of its files; nothing is read before it is asked for.

    Args:
        location: directory and `_metadata` file.
        metadata: content of `_metadata`.
        path_mapping: current locations of directories that absolute handles name.
        declarations: information that the snapshot does not hold.
        copies: URL of a file -> copy that is read instead of it.
    """

    def __init__(
        self,
        location: SnapshotLocation,
        metadata: CheckpointMetadata,
        path_mapping: PathMapping,
        declarations: Declarations | None = None,
        copies: Mapping[str, Location] = MappingProxyType({}),
    ) -> None:
        self.location = location
        self.metadata = metadata
        self.path_mapping = path_mapping
        self.declarations = declarations or Declarations()
        self.handles = HandleReader(
            location.directory,
            path_mapping,
            self.declarations.serializers,
            find_header_ends(metadata),
            find_first_bases(metadata),
            list_operator_handles(metadata),
            copies,
        )
        self.planned = find_planned(self.declarations.plans)
        self.keyed_files = {each.operator_id: KeyedFiles(self, each) for each in metadata.operator_states}

    @property
    def uids(self) -> tuple[str, ...]:
        """Uids that the user has declared."""
        return self.declarations.uids

    @property
    def classes(self) -> FieldLists | None:
        """Classes that the user has declared; None if there are none."""
        return self.declarations.classes

    @cached_property
    def connectors(self) -> dict[bytes, str]:
        """Declared connectors by operator id."""
        return {find_operator_id(name): connector for name, connector in self.declarations.connectors.items()}

    @cached_property
    def python_types(self) -> dict[bytes, Mapping[str, PythonDeclaration]]:
        """Declared types of the states of Python functions, by operator id and name of the state in Python."""
        return {find_operator_id(name): types for name, types in self.declarations.python_types.items()}

    @property
    def path(self) -> str:
        """Directory of the snapshot, as a path or URL that `open_snapshot` takes."""
        return str(self.location.directory)

    @property
    def checkpoint_id(self) -> int:
        """Id of the checkpoint or savepoint."""
        return self.metadata.checkpoint_id

    @property
    def kind(self) -> SnapshotKind:
        """`savepoint` or `checkpoint`; `unknown` before Flink 1.16, whose metadata do not say."""
        return find_snapshot_kind(self.metadata.properties)

    @property
    def kryo_version(self) -> int:
        """Major version of Kryo of generic types: 2 for Flink 1.x, 5 from 2.0."""
        return 5 if self.metadata.version >= FIRST_VERSION_OF_FLINK_2 else 2

    @cached_property
    def file_size(self) -> int:
        """Bytes of state that the handles name, inlined state included."""
        return sum(measure_handle(reference.handle) for reference in list_references(self.metadata))

    @cached_property
    def known_uids(self) -> dict[bytes, str]:
        """Uids by operator id: stored in the snapshot, declared by the user, or taken from declared plans."""
        planned = {operator_id: each.uid for operator_id, each in self.planned.items()}
        declared = planned | {compute_operator_id(uid): uid for uid in self.uids}
        stored = {each.operator_id: each.uid for each in self.metadata.operator_states if each.uid}
        return declared | stored

    def find_operator(self, name: str) -> OperatorState:
        """Return the metadata of an operator, given its uid, 32-digit id, or operator name.

        A uid is hashed, so that it finds its operator in snapshots that store only ids too.

        Raises:
            NotFoundError: there is none; the error lists what there is.
        """
        by_uid = compute_operator_id(name)
        states = self.metadata.operator_states
        for each in states:
            if name in (format_operator_id(each.operator_id), each.uid) or each.operator_id == by_uid:
                return each
        named = [each for each in states if each.name == name]
        if len(named) == 1:
            return named[0]
        known = ", ".join(
            self.known_uids.get(each.operator_id) or format_operator_id(each.operator_id) for each in states
        )
        raise NotFoundError(
            f"the snapshot has no operator {name}",
            where=Where(file=str(self.location.metadata)),
            hint=f"It has {known}" if known else "It has no operators at all",
        )

    def list_keyed_serializers(self) -> Iterator[Serializer]:
        """Yield every serializer in the headers of the managed keyed state of all operators.

        State that cannot be read is left out here; reading its records raises the error.
        """
        # Most subtasks share one header object (see `parse_header`), whose serializers are yielded once.
        seen: set[int] = set()
        for files in self.keyed_files.values():
            for _, file in files.open_managed()[0]:
                key, states = file.described_states()
                if id(states) in seen:
                    continue
                seen.add(id(states))
                if key is not None:
                    yield key
                for info in states:
                    yield from (serializer for _, serializer in info.serializers)

    @cached_property
    def shared_files(self) -> Owners:
        """Files that two operators or databases name, see `find_shared_files`."""
        return find_shared_files(self.metadata)

    @cached_property
    def key_candidates(self) -> tuple[Serializer, ...]:
        """Key serializers that operators of the snapshot name, for changelog state that does not name its own."""
        found: dict[Serializer, None] = {}
        for operator in self.keyed_files.values():
            files, _ = operator.open_managed()
            logs = [file for _, file in files if isinstance(file, ChangelogFile)]
            found.update((serializer, None) for serializer, _ in find_written_serializers(logs))
            found.update((key, None) for _, file in files if (key := file.described_states()[0]) is not None)
        return tuple(found)

    @property
    def stored_layouts(self) -> LayoutContext:
        """The layout context without the POJO subclasses that headers list; it is derived without reading headers."""
        return LayoutContext(self.kryo_version, (), self.classes, self.declarations.messages)

    @cached_property
    def layout_context(self) -> LayoutContext:
        """The properties other than serializers on which layouts depend (see `LayoutContext`)."""
        return self._find_layout_context()

    def read_headers(self) -> None:
        """Read the headers of all operators for `layout_context`, without blocking threads of other snapshots."""
        # Up to Python 3.11, `cached_property` has one lock for all instances, so threads of other snapshots would wait.
        if "layout_context" not in vars(self):
            self.layout_context = self._find_layout_context()

    def _find_layout_context(self) -> LayoutContext:
        serializers = [*self.list_keyed_serializers()]
        subtasks = (subtask for operator in self.metadata.operator_states for subtask in operator.subtasks)
        # Unreadable headers are skipped: reading their state raises the error.
        for unread in self.handles.open_operators(each.managed_operator_state for each in subtasks):
            infos = () if unread is None else (*unread.header.lists, *unread.header.broadcasts)
            serializers += [serializer for info in infos for _, serializer in info.serializers]
        return replace(self.stored_layouts, subclasses=collect_subclasses(serializers))


def measure_handle(handle: object) -> int:
    """Return the bytes of state that a handle names; nothing is read."""
    data = getattr(handle, "data", None)
    return len(data) if data is not None else int(getattr(handle, "size", 0))


class OperatorFiles:
    """Metadata and files of one operator of a snapshot.

    Attributes:
        snapshot: the snapshot.
        metadata: metadata of the operator in `_metadata`.
        uid: uid of the operator, if the snapshot stores it or the caller knows it.
        files: the files with its keyed state.
        is_partial: state in unreadable files is left out; otherwise reading it raises the error of the file.
    """

    def __init__(
        self, snapshot: SnapshotFiles, metadata: OperatorState, uid: str | None = None, *, is_partial: bool = False
    ) -> None:
        self.snapshot = snapshot
        self.metadata = metadata
        self.uid = metadata.uid or uid
        self.files = snapshot.keyed_files[metadata.operator_id]
        self.is_partial = is_partial

    @property
    def id(self) -> str:
        """Operator id, 32 hexadecimal digits."""
        return format_operator_id(self.metadata.operator_id)

    @property
    def name(self) -> str | None:
        """Operator name; Flink stores it from 2.0 on."""
        return self.metadata.name

    @property
    def label(self) -> str:
        """The uid, or the id when the uid is not known."""
        return self.uid or self.id

    @property
    def parallelism(self) -> int:
        """Number of subtasks."""
        return self.metadata.parallelism

    @property
    def max_parallelism(self) -> int:
        """Number of key groups."""
        return self.metadata.max_parallelism

    @property
    def record_context(self) -> RecordContext:
        """The properties that are needed to find the records of its keyed state in the bytes."""
        return self.files.context

    @cached_property
    def keyed_size(self) -> int:
        """Bytes of keyed state that the handles name, managed and raw; nothing is read."""
        return sum(
            measure_handle(reference.handle)
            for reference in operator_handles(self.metadata)
            if reference.category in (StateCategory.MANAGED_KEYED, StateCategory.RAW_KEYED)
        )

    @cached_property
    def keyed_files(self) -> tuple[tuple[int, KeyedFile], ...]:
        """Index of each subtask that has keyed state, and its file."""
        return self.files.survey()[0] if self.is_partial else self.files.open()


Item = TypeVar("Item")
Result = TypeVar("Result")


def scan_files(
    operator: OperatorFiles,
    items: Iterable[Item],
    scan: Callable[[Item], Iterator[Result]],
    most: int | None = None,
) -> Iterator[tuple[Item, Iterator[Result]]]:
    """Scan files of keyed state, or parts of files with at most `most` bytes; see `storage.reading.scan_ahead`."""
    mean = _find_mean_size(operator)
    return scan_ahead(items, scan, operator.snapshot.location.directory, mean if most is None else min(most, mean))


def count_scans(operator: OperatorFiles, target: Location | None = None) -> int:
    """Return how many files of an operator one process should scan at the same time.

    More than one if the snapshot or the target is not local, because a scan then waits for the storage most of the
    time.

    Args:
        operator: the operator.
        target: directory to which the files are written; None if they are only read.
    """
    if all(map(is_local, (operator.snapshot.location.directory, *([] if target is None else [target])))):
        return 1
    return 1 + count_scans_ahead(_find_mean_size(operator))


def _find_mean_size(operator: OperatorFiles) -> int:
    return operator.keyed_size // max(1, len(operator.keyed_files))


def require_key_groups(operator: OperatorFiles, key_groups: KeyGroupRange) -> None:
    """Check that a range of key groups does not begin after the last key group of an operator.

    Raises:
        UsageError: it does; the message names the key groups of the operator.
    """
    if operator.max_parallelism > 0 and key_groups.start >= operator.max_parallelism:
        text = f"{key_groups.start}-{key_groups.start + key_groups.number - 1}"
        raise UsageError(
            f"there are no key groups {text}",
            where=Where(operator=operator.label),
            hint=f"The operator has the key groups 0-{operator.max_parallelism - 1}",
        )


def narrow_key_groups(
    operator: OperatorFiles, key: npt.NDArray[np.uint8] | None, key_groups: KeyGroupRange | None = None
) -> KeyGroupRange | None:
    """Reduce a range of key groups to the key group of a key, so that only this one is read.

    Args:
        operator: the operator.
        key: u8, the key as its serializer writes it; None for all keys.
        key_groups: wanted range; None for all key groups.

    Returns:
        The reduced range, which is empty if the key is in another key group; `key_groups` unchanged if the hash of the
        key cannot be computed.
    """
    if key is None or not operator.keyed_files:
        return key_groups
    serializer, layouts = operator.keyed_files[0][1].header.key_serializer, operator.snapshot.layout_context
    found = find_key_group(serializer, layouts, key, operator.max_parallelism)
    if found is None:
        return key_groups
    return found if key_groups is None else found.intersect(key_groups)
