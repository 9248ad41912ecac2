"""Options of the format `flink-state`, the splits of a state that tasks read, and searches for values in all states."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import InputPartition

from state_pipelines.errors import FormatError, MissingFileError, StateError, UsageError, at
from state_pipelines.keyed.keyed_file import choose_least
from state_pipelines.keyed.keys import KeyText
from state_pipelines.keyed.operator_table import (
    OperatorTable,
    OperatorTableOptions,
    choose_files,
    group_files,
    split_files,
)
from state_pipelines.keyed.state_table import KeyedTable, TableOptions
from state_pipelines.metadata.handles import KeyGroupRange, parse_key_groups
from state_pipelines.operations.state_rows import to_rows
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot import Operator, Snapshot, State, declare, open_snapshot
from state_pipelines.snapshot.declarations import KINDS
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.operator_state import BytesState, NonKeyedState
from state_pipelines.snapshot.snapshot import choose_states, find_failures
from state_pipelines.snapshot.snapshot_files import narrow_key_groups, require_key_groups
from state_pipelines.spark.tasks import read_splits
from state_pipelines.spark.types import to_spark
from state_pipelines.storage import load_storage_options, use_storage_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.keyed.operator_columns import StateLayout
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.snapshot.keyed_state import KeyedSubtaskState
    from state_pipelines.snapshot.operator_state import BytesSubtaskState, NonKeyedSubtaskState, NonKeyedTable

_log = logging.getLogger(__name__)

SPLIT_SIZE = 64 << 20
"""Bytes of file per task unless the option `splitSize` says otherwise."""

MOST_SPLITS = 4096
"""Approximate maximum of the number of splits if every task of a job gets the list of all splits: large states then
have larger splits instead of more."""

_IGNORED: dict[str, type[StateError]] = {
    "ignoreCorruptFiles": FormatError,
    "ignoreMissingFiles": MissingFileError,
}

_LISTS = ("pathMapping", "allowRoots")

_PROVIDER = "provider"
"""Property that the options of a source have if it is a table in a catalog."""

_COMMON_OPTIONS = ("path", "storageOptions", *_LISTS, *(kind.spark_option for kind in KINDS))
"""Options of every data source, for reading and writing."""

READ_OPTIONS = (
    *_COMMON_OPTIONS,
    *("operatorId", "stateVarName", "states", "readRegisteredTimers", "columns", "keyGroups", "key"),
    *("flattenCollectionTypes", "raw", "splitSize", *_IGNORED),
)
"""Options of the format `flink-state`, for reading."""

WRITE_OPTIONS = (
    *_COMMON_OPTIONS,
    *("operatorId", "stateVarName", "base", "scratch", "stateType", "parallelism", "maxParallelism"),
    *("keySerializer", "valueSerializer", "namespaceSerializer"),
)
"""Options of the format `flink-state`, for writing."""

METADATA_OPTIONS = (*_COMMON_OPTIONS, "count")
"""Options of the format `flink-state-metadata`."""

BATCH_ROWS = 1 << 16
"""Maximum number of rows in a batch that is sent to Spark."""


@dataclass(frozen=True)
class StateOptions:
    """Options of the format `flink-state`.

    Attributes:
        operator: `operatorId`: uid, 32-digit id or name.
        state: `stateVarName`; None is all keyed states as one table.
        table: `columns` (comma separated, dotted paths), `flattenCollectionTypes` (default true), `raw`, `key` (see
            `KeyText`).
        states: `states` (comma separated), the states in the table of all keyed states; None for all.
        timers: `readRegisteredTimers` (default false), add timers to the table of all keyed states.
        key_groups: `keyGroups` as `a-b`, inclusive.
        ignored: errors of files whose rows are left out with a warning: `ignoreCorruptFiles` and `ignoreMissingFiles`
            (default false, as those of Spark's file sources).
        split_size: `splitSize`, bytes of file per task.
    """

    operator: str
    state: str | None
    table: TableOptions
    key_groups: KeyGroupRange | None
    split_size: int
    states: tuple[str, ...] | None = None
    timers: bool = False
    ignored: tuple[type[StateError], ...] = ()

    @property
    def operator_table(self) -> OperatorTableOptions:
        """Options of the table of all keyed states."""
        return OperatorTableOptions(self.states, self.timers, self.table.columns, self.table.raw, self.table.key)

    @staticmethod
    def parse(options: Mapping[str, str]) -> StateOptions:
        """Parse the options that Spark passes.

        Raises:
            UsageError: an option is missing or cannot be understood.
        """
        operator, state = options.get("operatorId"), options.get("stateVarName")
        if not operator:
            raise UsageError("the option operatorId is missing", hint="`flink-state-metadata` lists the operators")
        alone = ("states", "readRegisteredTimers") if state else ("flattenCollectionTypes",)
        for name in alone:
            if options.get(name, "false").lower() != "false":
                what = "the table of all states" if state else "the table of one state; this one holds lists"
                hint = f"Leave the option {'stateVarName' if state else name} out"
                raise UsageError(f"the option {name} is for {what}", hint=hint)
        columns, states = options.get("columns"), options.get("states")
        key = options.get("key")
        table = TableOptions(
            columns=tuple(name.strip() for name in columns.split(",")) if columns else None,
            flatten=_flag(options, "flattenCollectionTypes", default=True),
            raw=_flag(options, "raw", default=False),
            key=KeyText(key) if key is not None else None,
        )
        groups = options.get("keyGroups")
        size = options.get("splitSize", str(SPLIT_SIZE))
        if not size.isdecimal() or int(size) == 0:
            raise UsageError(f"the option splitSize is {size!r}, not a number of bytes")
        return StateOptions(
            operator,
            state or None,
            table,
            parse_key_groups(groups) if groups else None,
            int(size),
            tuple(name.strip() for name in states.split(",")) if states else None,
            _flag(options, "readRegisteredTimers", default=False),
            tuple(error for name, error in _IGNORED.items() if _flag(options, name, default=False)),
        )


def check_options(options: Mapping[str, str], known: Iterable[str]) -> None:
    """Refuse options that nothing reads, such as misspelt ones; names with a dot are Spark's own.

    Args:
        options: options as Spark gives them, in any case.
        known: names of the options.

    Raises:
        UsageError: an option is unknown, and the hint names the nearest ones; or the source is a table in a catalog, as
            after CREATE TABLE … USING, whose options Spark does not give to readers.
    """
    if not options or _PROVIDER in options:
        raise UsageError(
            "the source has no options: Spark does not give those of CREATE TABLE … USING to it",
            hint="Use CREATE TEMPORARY VIEW … USING `flink-state` OPTIONS (path '…', operatorId '…'), or spark.read",
        )
    names = {each.lower(): each for each in known}
    for name in options:
        if name.lower() not in names and "." not in name:
            close = [names[each] for each in get_close_matches(name.lower(), names, 3)]
            hint = f"Did you mean {' or '.join(close)}?" if close else f"Known are {', '.join(sorted(names.values()))}"
            raise UsageError(f"the option {name} is unknown", hint=hint)


def choose_whole(state: KeyedState, table: TableOptions) -> StateOptions:
    """Return options for reading all rows of a state in at most about `MOST_SPLITS` splits."""
    size = max(SPLIT_SIZE, state.operator.snapshot.file_size // MOST_SPLITS)
    return StateOptions(state.operator.label, state.name, table, None, size)


@dataclass(frozen=True)
class KeyedSplit(InputPartition):
    """Key groups of a subtask, or records of one key group: all that a task needs to read them.

    Attributes:
        subtask_state: the subtask's file, or only some key groups of it, or a span of one.
        layout: layouts of the records; None if there are none, and `reason` says why.
        labels: operator and state, for errors.
    """

    subtask_state: KeyedSubtaskState
    layout: KeyedLayout | None
    reason: str
    options: TableOptions
    labels: tuple[str, str]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the split; for any choice of columns they have the same rows in the same order."""
        operator, state = self.labels
        with at(operator=operator, state=state):
            table = KeyedTable(self.layout, self.options, self.reason)
            for records in self.subtask_state.records():
                yield table.make_batch(records, self.subtask_state.subtask)

    def read(self) -> Iterator[pa.RecordBatch]:
        """The batches of the split, in the types of Spark."""
        for batch in self.batches():
            yield from _slices(batch)


@dataclass(frozen=True)
class OperatorSplit(InputPartition):
    """Key groups of a subtask, with all their states.

    Attributes:
        subtask: its index.
        files: the subtask's files, or only some key groups of them.
        key_groups: key groups of the split; None for all in the files.
        states: the states in the table.
        operator: label of the operator, for errors.
    """

    subtask: int
    files: tuple[KeyedFile, ...]
    key_groups: KeyGroupRange | None
    states: tuple[StateLayout, ...]
    options: OperatorTableOptions
    operator: str

    def read(self) -> Iterator[pa.RecordBatch]:
        """The batches of the split, in the types of Spark."""
        with at(operator=self.operator):
            table = OperatorTable(self.states, self.options)
            for batch in table.batches(self.files, self.subtask, self.key_groups):
                yield from _slices(batch)


@dataclass(frozen=True)
class BytesSplit(InputPartition):
    """Raw state, or in-flight data, of one subtask.

    Attributes:
        subtask_state: the state of the subtask; its bytes are not read yet.
        columns: names of the wanted columns.
        labels: operator and state, for errors.
    """

    subtask_state: BytesSubtaskState
    columns: tuple[str, ...]
    labels: tuple[str, str]

    def read(self) -> Iterator[pa.RecordBatch]:
        """The batches of the split, in the types of Spark."""
        operator, state = self.labels
        with at(operator=operator, state=state):
            for batch in self.subtask_state.batches():
                yield from _slices(batch.select(list(self.columns)))


@dataclass(frozen=True)
class NonKeyedSplit(InputPartition):
    """A list or broadcast state of some subtasks.

    Attributes:
        subtask_states: the state of these subtasks, not read yet.
        table: makes batches of them.
        labels: operator and state, for errors.
    """

    subtask_states: tuple[NonKeyedSubtaskState, ...]
    table: NonKeyedTable
    labels: tuple[str, str]

    def read(self) -> Iterator[pa.RecordBatch]:
        """The batches of the split, in the types of Spark."""
        operator, state = self.labels
        with at(operator=operator, state=state):
            for batch in self.table.batches(self.subtask_states):
                yield from _slices(batch)


@dataclass(frozen=True)
class UnreadableSplit(InputPartition):
    """Split for a file that cannot be opened; the rows of other files are in other splits.

    Attributes:
        error: the error that reading raises.
    """

    error: StateError

    def read(self) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self.error
        yield


class EmptySplit(InputPartition):
    """Split of a table without rows, because Spark requires at least one split."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Return no batches."""
        yield from ()


AnySplit: TypeAlias = KeyedSplit | OperatorSplit | BytesSplit | NonKeyedSplit | UnreadableSplit


def open_options(options: Mapping[str, str]) -> Snapshot:
    """Open the snapshot that the option `path` names, see `open_with`."""
    path = options.get("path")
    if not path:
        raise UsageError("the option path is missing", hint="Give the directory of a snapshot or its _metadata")
    return open_with(path, options)


def use_options(options: Mapping[str, str]) -> None:
    """Use the storage options of the option `storageOptions` in this process, see `open_with`."""
    if options.get("storageOptions"):
        use_storage_options(load_storage_options(options["storageOptions"]))


def open_with(path: str, options: Mapping[str, str]) -> Snapshot:
    """Open the snapshot at `path`.

    Options: `pathMapping` and `allowRoots` (comma separated, or a JSON list where a directory has a comma),
    `storageOptions` (a file of options by root, or a JSON object), and those of `DeclarationKind`.

    Raises:
        UsageError: an option cannot be understood.
        StateError: the snapshot cannot be read.
    """
    use_options(options)
    mapping, roots = (_split_list(options.get(name, ""), name) for name in _LISTS)
    texts = {kind.name: kind.split(options.get(kind.spark_option, "")) for kind in KINDS}
    return open_snapshot(path, declare(texts), path_mapping=mapping, allow_roots=roots)


def _split_list(text: str, option: str) -> list[str]:
    if not text.startswith("["):
        return [each for each in text.split(",") if each]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise UsageError(f"the option {option} is no JSON list of texts", hint='Write ["a","b"], or a,b')
    return found


def find_state(snapshot: Snapshot, options: StateOptions) -> State | Operator:
    """Return the state that the options name, or the operator if they name no state; unreadable files are left out."""
    operator = snapshot.operator(options.operator).readable
    if options.key_groups is not None:
        require_key_groups(operator, options.key_groups)
    return operator if options.state is None else operator.state(options.state)


def split_unreadable(found: State | Operator, options: StateOptions) -> Iterator[UnreadableSplit]:
    """Yield a split for each file that cannot be opened and may hold wanted rows."""
    match found:
        case Operator():
            errors = find_failures(found, None, _narrow_to_key(found, options))
        case KeyedState():
            errors = find_failures(found.operator, found, _narrow_to_key(found, options))
        case _:
            errors = find_failures(found.operator, found, options.key_groups)
    yield from map(UnreadableSplit, errors)


def _narrow_to_key(found: KeyedState | Operator, options: StateOptions) -> KeyGroupRange | None:
    """Return the wanted key groups; if a single key is wanted and its hash is known, only its key group."""
    if options.table.key is None:
        return options.key_groups
    if isinstance(found, Operator):
        return narrow_key_groups(found, found.make_table(options.operator_table).needle, options.key_groups)
    return narrow_key_groups(found.operator, found.make_table(options.table).needle, options.key_groups)


def ignoring(batches: Iterator[pa.RecordBatch], ignored: tuple[type[StateError], ...]) -> Iterator[pa.RecordBatch]:
    """Yield batches; an error of one of the classes `ignored` ends them with a warning."""
    try:
        yield from batches
    except ignored as error:
        _log.warning("rows are left out: %s", error)


def find_schema(found: State | Operator, options: StateOptions) -> pa.Schema:
    """Return the schema of the batches of a state or operator."""
    if isinstance(found, Operator):
        return found.make_schema(options.operator_table)
    return found.make_schema(options.table)


def plan_splits(found: State | Operator, options: StateOptions) -> Iterator[AnySplit]:
    """Split a state or operator into tasks of about `splitSize` bytes; a file that cannot be opened is a task, too.

    Raises:
        UsageError: the state is of a kind that this source does not read.
    """
    match found:
        case Operator():
            yield from split_operator(found, options)
        case KeyedState():
            yield from split_state(found, options)
        case BytesState():
            yield from split_bytes(found, options)
        case NonKeyedState():
            yield from split_non_keyed(found, options)
        case _:
            raise UsageError(f"{type(found).__name__} is not a state that this source reads")
    yield from split_unreadable(found, options)


def split_operator(operator: Operator, options: StateOptions) -> Iterator[OperatorSplit]:
    """Yield tasks over all keyed states: whole key groups, about `split_size` bytes of file each.

    A key group is never cut here, whatever its size. The states of a key are stored apart in a key group, and only the
    RocksDB backend writes them in the order of their keys: a cut would separate the states of a key.
    """
    wanted = options.operator_table
    states = tuple(choose_states(operator, operator.keyed_states, wanted))
    names = {state.name for state in states}
    key_groups = _narrow_to_key(operator, options)
    for subtask, found in group_files(operator.keyed_files).items():
        if key_groups is not None and not any(each.key_groups.intersect(key_groups) for each in found):
            continue
        for files, groups in split_files(choose_files(found, names), options.split_size, key_groups):
            yield OperatorSplit(subtask, files, groups, states, wanted, operator.label)


def split_state(state: KeyedState, options: StateOptions) -> Iterator[KeyedSplit]:
    """Yield tasks over a keyed state: adjacent key groups of about `split_size` bytes of file each.

    A key group that is much larger than `split_size` and than the others becomes several tasks (see
    `keyed.keyed_file`); to find where it can be cut, its bytes are read once, here.
    """
    layout, reason = state.find_layout()
    labels = (state.operator.label, state.name)
    size = options.split_size
    key_groups = _narrow_to_key(state, options)
    if key_groups is not None and not key_groups:
        return
    table = state.make_table(options.table)
    narrowed = [each.narrow(table) for each in state.subtask_states]
    least = choose_least([(each.file, each.state_id) for each in narrowed], size, key_groups)
    for each in narrowed:
        for file, state_id in each.file.split_records(each.state_id, size, least, key_groups):
            split = replace(each, file=file, state_id=state_id)
            yield KeyedSplit(split, layout, reason, options.table, labels)


def split_bytes(state: BytesState, options: StateOptions) -> Iterator[BytesSplit]:
    """Yield tasks over raw state or in-flight data: one per subtask; of raw keyed state one per some key groups."""
    columns = tuple(state.make_schema(options.table).names)
    for subtask_state in state.choose_subtask_states(options.key_groups):
        yield BytesSplit(subtask_state, columns, (state.operator.label, state.name))


def split_non_keyed(state: NonKeyedState, options: StateOptions) -> Iterator[NonKeyedSplit]:
    """Tasks over a list or broadcast state: each has subtasks with about `split_size` bytes of files.

    Raises:
        UsageError: key groups are asked for.
    """
    if options.key_groups is not None:
        raise UsageError("the option keyGroups is for keyed state only", hint="Leave it out for operator state")
    for subtask_states, table in state.split(options.split_size, options.table):
        yield NonKeyedSplit(subtask_states, table, (state.operator.label, state.name))


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    converted = to_spark(batch)
    for start in range(0, len(converted), BATCH_ROWS):
        yield converted.slice(start, BATCH_ROWS)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise UsageError(f"the option {name} is {text!r}, not true or false")
    return text.lower() == "true"


_UNRESOLVED = ("UNRESOLVED_COLUMN", "FIELD_NOT_FOUND", "INVALID_EXTRACT_BASE_FIELD_TYPE", "DATATYPE_MISMATCH")
"""Error conditions of a predicate that does not fit the columns of a table, as opposed to one that is no SQL."""


@dataclass(frozen=True)
class FoundRows:
    """Rows of one state for which a predicate is true.

    Attributes:
        path: of the snapshot.
        operator: label of the operator.
        state: name of the state.
        rows: number of these rows.
        examples: the first rows, as `operations.state_rows.to_rows` gives them.
    """

    path: str
    operator: str
    state: str
    rows: int
    examples: tuple[dict[str, object], ...]

    def to_json(self) -> dict[str, object]:
        """Return the value for `json.dumps`."""
        return {
            "path": self.path,
            "operator": self.operator,
            "state": self.state,
            "rows": self.rows,
            "examples": list(self.examples),
        }


def find_rows(spark: SparkSession, snapshot: Snapshot, predicate: str, examples: int = 3) -> Iterator[FoundRows]:
    """Count the rows of every state for which a predicate is true.

    Args:
        spark: the session.
        snapshot: the snapshot.
        predicate: Spark SQL over the columns of a state's table. States without those columns are left out.
        examples: rows of each state that are returned.

    Yields:
        One result for each state that has the columns.

    Raises:
        UsageError: the predicate is no SQL, or fits no state.
        StateError: a state cannot be read.
    """
    fitting, misfit = 0, ""
    for operator in snapshot.operators:
        for state in operator.states:
            if state.kind == StateKind.TIMER or state.undecoded:
                continue
            frame = _load(spark, snapshot, operator.label, state.name)
            try:
                found = frame.filter(predicate)
            except AnalysisException as error:
                condition = error.getCondition() or ""
                if not condition.startswith(_UNRESOLVED):
                    raise UsageError(f"the predicate cannot be evaluated: {error}") from None
                misfit = str(error).partition("\n")[0]
                continue
            fitting += 1
            first = [row for batch in found.limit(examples).toArrow().to_batches() for row in to_rows(batch)]
            yield FoundRows(snapshot.path, operator.label, state.name, found.count(), tuple(first))
    if not fitting:
        raise UsageError(
            f"no state has the columns of the predicate: {misfit}",
            hint="`read --operator UID --state NAME` shows the columns of a state",
        )


def _load(spark: SparkSession, snapshot: Snapshot, operator: str, name: str) -> DataFrame:
    """Return the rows of a state; splits are planned in this process, which has opened the snapshot already."""
    options = StateOptions(operator, name, TableOptions(), None, SPLIT_SIZE)
    state = find_state(snapshot, options)
    return read_splits(spark, plan_splits(state, options), find_schema(state, options))
