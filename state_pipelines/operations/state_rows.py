"""Rows of one state as tables and as JSON.

`read` gives `ReadableRows`; `to_rows` and `to_values` give Arrow values as JSON, without losing a bit of them. Integers
of any width are JSON numbers, floating-point numbers too (NaN and infinities are the texts `NaN`, `Infinity`,
`-Infinity`), bytes are hexadecimal text. Dates are ISO text (`2025-01-31`), times of day `HH:MM:SS.nnnnnnnnn`, points
in time `2025-01-31T12:00:00.000Z`, for all years that Java has. A struct is an object, a list an array, and a map an
array of `[key, value]`, because its keys need not be texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from state_pipelines.codecs.json import date_text, time_text
from state_pipelines.errors import StateError, StorageError, UsageError, at
from state_pipelines.keyed.keys import KeyText
from state_pipelines.keyed.operator_table import OperatorTableOptions, group_files
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.metadata.handles import parse_key_groups
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.operator_state import BytesState, NonKeyedState
from state_pipelines.snapshot.snapshot import ensure_open, find_failures
from state_pipelines.snapshot.snapshot_files import narrow_key_groups, require_key_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.keyed.state_table import KeyedTable
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.snapshot.keyed_state import KeyedSubtaskState
    from state_pipelines.snapshot.snapshot import Operator
    from state_pipelines.snapshot.state import State

Row: TypeAlias = dict[str, object]

_MILLIS_OF_DAY = 86_400_000
_PER_SECOND = {"s": 1, "us": 1_000_000, "ns": 1_000_000_000}


def to_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch as objects for `json.dumps`."""
    columns = [to_values(column) for column in batch.columns]
    names = batch.schema.names
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def to_values(array: pa.Array) -> list[object]:
    """The values of an array as objects for `json.dumps`."""
    kind = array.type
    if pa.types.is_struct(kind):
        return _structs(array)
    if pa.types.is_map(kind):
        pairs = list(zip(to_values(_child(array, array.keys)), to_values(_child(array, array.items)), strict=True))
        return _slices(array, [list(pair) for pair in pairs])
    if pa.types.is_list(kind):
        return _slices(array, to_values(_child(array, array.values)))
    if pa.types.is_date32(kind):
        return _mapped(array.view(pa.int32()), date_text)
    if pa.types.is_time64(kind):
        return _mapped(array.view(pa.int64()), time_text)
    if pa.types.is_timestamp(kind):
        to_text = _timestamp_text if kind.unit == "ms" else partial(_fine_timestamp_text, _PER_SECOND[kind.unit])
        return _mapped(array.view(pa.int64()), to_text)
    if pa.types.is_binary(kind):
        return _mapped(array, bytes.hex)
    if pa.types.is_floating(kind):
        return _mapped(array, _number)
    values: list[object] = array.to_pylist()
    return values


def _mapped(array: pa.Array, convert: Callable[[Any], object]) -> list[object]:
    return [None if value is None else convert(value) for value in array.to_pylist()]


def _structs(array: pa.Array) -> list[object]:
    fields = array.flatten()
    if not fields:
        return [{} if valid else None for valid in array.is_valid().to_pylist()]
    names = [field.name for field in array.type]
    columns = [to_values(field) for field in fields]
    rows = (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))
    return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _child(array: pa.Array, child: pa.Array) -> pa.Array:
    """Cut a child array to the elements between the first and the last offset of `array`, which may be a slice."""
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return child.slice(first, last - first)


def _slices(array: pa.Array, items: list[Any]) -> list[object]:
    offsets = array.offsets.to_pylist()
    first = offsets[0]
    spans = zip(offsets, offsets[1:], array.is_valid().to_pylist(), strict=False)
    return [items[start - first : end - first] if valid else None for start, end, valid in spans]


def _number(value: float) -> object:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _timestamp_text(millis: int) -> str:
    day, rest = divmod(millis, _MILLIS_OF_DAY)
    return f"{date_text(day)}T{time_text(rest * 1_000_000)[:12]}Z"


def _fine_timestamp_text(per_second: int, value: int) -> str:
    second, rest = divmod(value, per_second)
    return _instant_text(second, rest * (1_000_000_000 // per_second))


def _instant_text(second: int, nano: int) -> str:
    day, rest = divmod(second, _MILLIS_OF_DAY // 1000)
    return f"{date_text(day)}T{time_text(rest * 1_000_000_000 + nano)}Z"


def compact(value: object) -> str:
    """Format a value for people: `{id: 1, tags: [a, b]}`; instants as ISO text."""
    match value:
        case {"epoch_second": int() as second, "nano": int() as nano, **others} if not others:
            return _instant_text(second, nano)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Mapping():
            return f"{{{', '.join(f'{name}: {compact(item)}' for name, item in value.items())}}}"
        case list():
            return f"[{', '.join(map(compact, value))}]"
        case _:
            return str(value)


@dataclass(frozen=True)
class ReadableRows:
    """Rows of the files that can be read, one batch at a time; they can be read once.

    `to_arrow`, and whatever takes Arrow streams (`pyarrow.table(rows)`, polars, DuckDB), raise the first error after
    the last batch. To use the rows in spite of errors, read `batches` and then look at `errors`.

    Attributes:
        schema: schema of the batches.
        batches: the rows; of a damaged file, the rows before the damage.
        errors: why rows are missing; complete only after the last batch.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    errors: list[StateError] = field(default_factory=list)

    def to_arrow(self) -> pa.Table:
        """Read all rows into a table.

        Raises:
            StateError: rows are missing.
        """
        return pa.Table.from_batches(self._complete_batches(), self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows as an Arrow stream, for `pyarrow.table(rows)`, polars, DuckDB and others."""
        return pa.RecordBatchReader.from_batches(self.schema, self._complete_batches()).__arrow_c_stream__(
            requested_schema
        )

    def _complete_batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.batches
        if self.errors:
            raise self.errors[0]


def read(
    snapshot: Snapshot | str,
    operator: str,
    state: str | None = None,
    *,
    states: Sequence[str] | None = None,
    timers: bool = False,
    columns: Sequence[str] | None = None,
    key_groups: KeyGroupRange | str | None = None,
    key: object = None,
    raw: bool = False,
    flatten: bool | None = None,
) -> ReadableRows:
    """Read the rows of one state, or of all keyed states of an operator as one table.

    Args:
        snapshot: a snapshot, or its path.
        operator: uid, id or name.
        state: name of the state; without it one row per key and namespace with a column per keyed state.
        states: without `state`: names of the states to include; default all.
        timers: without `state`: include timers too, as a list per key and namespace.
        columns: names, or dotted paths to fields such as `value.address.zip`; default all.
        key_groups: only these, such as `0-63` (both ends included); keyed state only.
        key: only the entries of this key; text is the key itself where keys are text, else JSON as `dump` shows it.
        raw: keys and values as the stored bytes.
        flatten: with `state`: one row per list element (the default) or one row per key.

    Raises:
        NotFoundError: there is no such operator or state.
        UsageError: options contradict each other, a column or the key groups do not exist.
        StateError: the state has no table. Files that cannot be read are in `errors` of the result.
    """
    if state is None and flatten is not None:
        raise UsageError("flatten is for one state; the table of all states holds lists")
    if state is not None and (states is not None or timers):
        raise UsageError("states and timers are for the table of all states: leave out state, or these two")
    groups = parse_key_groups(key_groups) if isinstance(key_groups, str) else key_groups
    chosen = None if columns is None else tuple(columns)
    wanted = KeyText(key) if isinstance(key, str) else key
    readable = ensure_open(snapshot).operator(operator).readable
    if groups is not None:
        require_key_groups(readable, groups)
    if state is None:
        names = None if states is None else tuple(states)
        return read_operator(readable, OperatorTableOptions(names, timers, chosen, raw, wanted), groups)
    options = TableOptions(columns=chosen, flatten=flatten is not False, raw=raw, key=wanted)
    return read_state(readable.state(state), options, groups)


def read_state(state: State, options: TableOptions, key_groups: KeyGroupRange | None = None) -> ReadableRows:
    """Read a state of an operator, also of a partial one (`Operator.readable`), whose unreadable files are left out.

    The errors of the files that are left out are in `errors` of the result.

    Raises:
        StateError: there is no table of the state; see `State.make_schema`.
        UsageError: key groups of state that has none.
    """
    errors: list[StateError] = []
    if isinstance(state, KeyedState):
        key_groups = narrow_key_groups(state.operator, state.make_table(options).needle, key_groups)
    files = _list_files(state, options, key_groups)
    missing = find_failures(state.operator, state, key_groups)
    return ReadableRows(state.make_schema(options), _read_each(files, missing, errors), errors)


def read_operator(
    operator: Operator, options: OperatorTableOptions, key_groups: KeyGroupRange | None = None
) -> ReadableRows:
    """Read all keyed states of an operator, a row per key and namespace; for partial operators see `read_state`.

    Raises:
        StateError: there is no such table; see `Operator.make_table`.
    """
    errors: list[StateError] = []
    table = operator.make_table(options)
    key_groups = narrow_key_groups(operator, table.needle, key_groups)
    files = (
        table.batches(files, subtask, key_groups)
        for subtask, files in group_files(operator.keyed_files).items()
        if key_groups is None or any(each.key_groups.intersect(key_groups).number for each in files)
    )
    missing = find_failures(operator, None, key_groups)
    with at(operator=operator.label):
        return ReadableRows(table.schema, _read_each(files, missing, errors, operator=operator.label), errors)


def _read_each(
    files: Iterable[Iterator[pa.RecordBatch]],
    missing: Iterable[StateError],
    errors: list[StateError],
    **where: str,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one file after the other; add errors to `errors` instead of raising them.

    An error ends the rows of its file only. `missing` are the errors of files that could not be opened.
    """
    errors.extend(missing)
    for batches in files:
        try:
            with at(**where):
                yield from batches
        except (UsageError, StorageError):
            # Raise these at once: a usage error is not about one file, and a storage error may not occur again.
            raise
        except StateError as error:
            errors.append(error)


def _list_files(
    state: State, options: TableOptions, key_groups: KeyGroupRange | None
) -> Iterable[Iterator[pa.RecordBatch]]:
    """Return the rows of a state: an iterator of batches for each file."""
    match state:
        case KeyedState():
            table = state.make_table(options)
            return (
                _reorder(state, _read_keyed(state, each, table, key_groups))
                for each in state.subtask_states
                if key_groups is None or each.file.key_groups.intersect(key_groups).number
            )
        case NonKeyedState():
            if key_groups is not None:
                raise UsageError("operator state has no key groups")
            return (_reorder(state, each.batches(subtask_states)) for subtask_states, each in state.split(0, options))
        case BytesState():
            names = state.make_schema(options).names
            subtask_states = state.choose_subtask_states(key_groups)
            return (_reorder(state, (batch.select(names) for batch in each.batches())) for each in subtask_states)
    return (state.batches(options, key_groups),)


def _read_keyed(
    state: KeyedState, subtask_state: KeyedSubtaskState, table: KeyedTable, key_groups: KeyGroupRange | None
) -> Iterator[pa.RecordBatch]:
    for records in subtask_state.narrow(table).records(key_groups):
        yield table.make_batch(records, subtask_state.subtask)


def _reorder(state: State, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with at(operator=state.operator.label, state=state.name):
        yield from batches
