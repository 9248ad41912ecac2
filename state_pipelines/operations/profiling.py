"""Profiles of the entries of a snapshot: sizes, skew, largest keys, columns, TTL and serializers.

    profile = profile_snapshot(open_snapshot("s3://bucket/savepoint-1a2b"), ttl={"": timedelta(days=7)})

Keyed state is read twice: once as bytes, for sizes and keys (`measure_balance`), and once decoded, for its columns. So
state that cannot be decoded still has sizes. The memory that is used grows with columns and key groups, not with
entries.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.errors import OutOfReachError, StateError, StorageError, UnsupportedError
from state_pipelines.keyed.state_table import TTL_COLUMN, TableOptions
from state_pipelines.operations.balance import measure_balance
from state_pipelines.operations.state_rows import to_values
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.keyed_state import KeyedState, read_states
from state_pipelines.snapshot.operator_state import BytesState
from state_pipelines.snapshot.snapshot import ensure_open, is_damage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from state_pipelines.operations.balance import Balance, OperatorBalance, Run
    from state_pipelines.snapshot import Operator, Snapshot, State

MAX_COLUMNS = 200
"""Columns of one state that are profiled; wide records have thousands."""


class Quantity(StrEnum):
    """Quantity of a column whose minimum, maximum and mean a profile gives: the values themselves or their lengths."""

    VALUE = "value"
    LENGTH = "length"
    NONE = ""


_NOT_PROFILED = frozenset({"key_group", "subtask", "list_index", "ttl_last_access", "reason"})
_DEPTH = 8


@dataclass(frozen=True)
class ColumnProfile:
    """Profile of a column, or of a field of a nested column.

    Attributes:
        column: dotted path, such as `value.address.zip`; `[]` for the elements of a list, `{}` for the keys and values
            of a map.
        type: Arrow type.
        rows: rows in which the column could have a value: those in which the record around it is not null.
        nulls: those of `rows` that have no value.
        defaults: rows with the default of Java's primitive types (0, false) or an empty text, list or map; None for
            types that have none.
        measured: quantity whose `minimum`, `maximum` and `mean` are given; `NONE` if there are none.
        minimum: number, or text as in `state_rows` (dates and times, `NaN`, `Infinity`); None without values.
        maximum: as `minimum`.
        mean: mean of the numbers or lengths; None without values, for dates and times, and if it is not finite.
    """

    column: str
    type: str
    rows: int
    nulls: int
    defaults: int | None
    measured: Quantity
    minimum: float | str | None
    maximum: float | str | None
    mean: float | None

    @property
    def null_ratio(self) -> float:
        """Share of rows without a value, 0 to 1."""
        return self.nulls / self.rows if self.rows else 0.0

    @property
    def default_ratio(self) -> float | None:
        """Share of rows with Java's default value (0, false) or an empty text, list or map, 0 to 1.

        None for types without such a value.
        """
        if self.defaults is None:
            return None
        return self.defaults / self.rows if self.rows else 0.0


class ColumnProfiler:
    """Profiles the columns of one state, batch by batch; memory grows with the columns, not the rows.

    The attribute `omitted` has the paths of columns that are not profiled because there are more than `MAX_COLUMNS`.
    """

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self.omitted: set[str] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            if name not in _NOT_PROFILED and not pa.types.is_null(array.type):
                for path, each, rows in _flatten(name, array, len(array), _DEPTH):
                    self._add(path, each, rows)

    def _add(self, path: str, array: pa.Array, rows: int) -> None:
        column = self._columns.get(path)
        if column is None:
            if len(self._columns) >= MAX_COLUMNS:
                self.omitted.add(path)
                return
            column = self._columns[path] = _Column(path, array.type)
        column.add(array, rows)

    def result(self) -> list[ColumnProfile]:
        """Return the profiles of the columns, in the order in which they were first added."""
        return [each.result() for each in self._columns.values()]


def _flatten(path: str, array: pa.Array, rows: int, depth: int) -> Iterator[tuple[str, pa.Array, int]]:
    """Yield (path, values, rows) of a column and of its nested fields, at most `depth` levels deep.

    `rows` counts the rows in which the record around the field is not null. A struct itself is yielded only if it has
    nulls.
    """
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        array, kind = array.storage, array.storage.type
    if pa.types.is_null(kind):
        return
    if pa.types.is_struct(kind):
        if array.null_count:
            yield path, array, rows
        present = rows - array.null_count if rows == len(array) else len(array) - array.null_count
        if depth and present:
            whole = array.drop_null() if array.null_count else array
            for index in range(kind.num_fields):
                yield from _flatten(f"{path}.{kind.field(index).name}", whole.field(index), present, depth - 1)
        return
    yield path, array, rows
    if not depth:
        return
    if pa.types.is_map(kind):
        whole = array.drop_null() if array.null_count else array
        keys, items = whole.keys, whole.items
        offsets = whole.offsets
        start, stop = (offsets[0].as_py(), offsets[-1].as_py()) if len(offsets) else (0, 0)
        for name, each in (("key", keys), ("value", items)):
            values = each.slice(start, stop - start)
            if len(values):
                yield from _flatten(f"{path}{{}}.{name}", values, len(values), depth - 1)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        elements = array.flatten()
        if len(elements):
            yield from _flatten(f"{path}[]", elements, len(elements), depth - 1)


class _Column:
    """Running totals of one column: rows, nulls, defaults, minimum, maximum and sum."""

    def __init__(self, path: str, kind: pa.DataType) -> None:
        self._path, self._kind = path, kind
        self._measured = _choose_quantity(kind)
        self._rows = self._nulls = self._values = 0
        self._defaults: int | None = 0 if _has_default(kind) else None
        self._minimum: pa.Scalar | None = None
        self._maximum: pa.Scalar | None = None
        self._total = 0.0

    def add(self, array: pa.Array, rows: int) -> None:
        """Add the values that one batch has of the column; `rows` as in `_flatten`."""
        self._rows += rows
        self._nulls += array.null_count
        self._values += len(array) - array.null_count
        if len(array) == array.null_count or self._defaults is None:
            return
        if pa.types.is_duration(array.type):
            # `pc.min_max` does not take durations.
            array = array.cast(pa.int64())
        measured = array if self._measured is not Quantity.LENGTH else _measure_lengths(array)
        self._defaults += _count_defaults(measured)
        if not self._measured:
            return
        bounds = pc.min_max(measured)
        self._minimum = _choose(self._minimum, bounds["min"], pc.less)
        self._maximum = _choose(self._maximum, bounds["max"], pc.greater)
        if _is_number(measured.type):
            self._total += pc.sum(pc.cast(measured, pa.float64(), safe=False)).as_py() or 0.0

    def result(self) -> ColumnProfile:
        """Return the profile of the column over all arrays that were added."""
        is_number = self._measured is Quantity.LENGTH or _is_number(self._kind) or pa.types.is_duration(self._kind)
        return ColumnProfile(
            self._path,
            str(self._kind) if not pa.types.is_nested(self._kind) else str(self._kind).partition("<")[0],
            self._rows,
            self._nulls,
            self._defaults,
            self._measured if self._minimum is not None else Quantity.NONE,
            _to_plain(self._minimum),
            _to_plain(self._maximum),
            self._find_mean() if is_number and self._minimum is not None else None,
        )

    def _find_mean(self) -> float | None:
        return self._total / self._values if self._values and math.isfinite(self._total) else None


def _choose_quantity(kind: pa.DataType) -> Quantity:
    if _is_number(kind) or pa.types.is_temporal(kind):
        return Quantity.VALUE
    if _has_length(kind):
        return Quantity.LENGTH
    return Quantity.NONE


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _has_length(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
            pa.types.is_list,
            pa.types.is_large_list,
            pa.types.is_map,
        )
    )


def _has_default(kind: pa.DataType) -> bool:
    return bool(_choose_quantity(kind)) or pa.types.is_boolean(kind)


def _measure_lengths(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.utf8_length(array)
    if pa.types.is_map(kind):
        # Arrow counts the entries of lists only, and a map has the memory layout of a list.
        array = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return pc.binary_length(array)
    return pc.list_value_length(array)


def _count_defaults(array: pa.Array) -> int:
    kind = array.type
    if pa.types.is_boolean(kind):
        return int(pc.sum(pc.invert(array)).as_py() or 0)
    if pa.types.is_temporal(kind):
        array = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    zero = pa.scalar(Decimal(0), kind) if pa.types.is_decimal(kind) else pa.scalar(0, array.type)
    return int(pc.sum(pc.equal(array, zero)).as_py() or 0)


def _choose(known: pa.Scalar | None, found: pa.Scalar, is_better: object) -> pa.Scalar | None:
    if not found.is_valid or (known is not None and not is_better(found, known).as_py()):  # type: ignore[operator]
        return known
    return found


def _to_plain(scalar: pa.Scalar | None) -> float | str | None:
    if scalar is None:
        return None
    if pa.types.is_decimal(scalar.type):
        return float(scalar.as_py())
    # `to_values` gives text for NaN and infinities, which JSON lacks, and for dates and times, in all years of Java.
    (value,) = to_values(pa.array([scalar], scalar.type))
    return value if isinstance(value, int | float) else str(value)


_STEPS = {
    "1 min": timedelta(minutes=1),
    "1 h": timedelta(hours=1),
    "6 h": timedelta(hours=6),
    "1 d": timedelta(days=1),
    "7 d": timedelta(days=7),
    "30 d": timedelta(days=30),
    "90 d": timedelta(days=90),
    "365 d": timedelta(days=365),
}
OLDER = "older"
LATER = "later"
_MILLISECOND = timedelta(milliseconds=1)
_FARTHEST = 1 << 62
"""Limit in milliseconds to which times of access are clipped: sums with larger numbers would exceed 64 bits."""


@dataclass(frozen=True)
class TtlOutlook:
    """Ages of the entries of a state with TTL, and the times until they expire.

    Attributes:
        entries: entries that have a time of last access.
        oldest: earliest last access, ISO text, or milliseconds since 1970 where the year has not four digits; None
            without entries.
        newest: latest last access.
        by_age: entries by the time since their last access: up to 1 min, more than that and up to 1 h, …, `older`.
        ttl: declared time to live in seconds; None when none is declared (snapshots do not hold it).
        expired: entries of the snapshot that have expired and that Flink has not removed yet; None without a declared
            TTL.
        expiring: the other entries by the time until they expire: up to 1 min, more than that and up to 1 h, …,
            `later`; None without a declared TTL.
    """

    entries: int
    oldest: str | None
    newest: str | None
    by_age: Mapping[str, int]
    ttl: float | None = None
    expired: int | None = None
    expiring: Mapping[str, int] | None = None

    @property
    def expired_ratio(self) -> float | None:
        """Share of entries that have expired, 0 to 1."""
        if self.expired is None:
            return None
        return self.expired / self.entries if self.entries else 0.0


class TtlProfiler:
    """Counts the entries of one state by time of last access.

    Args:
        now: time from which ages are counted.
        ttl: declared time to live; None when it is not known.
    """

    def __init__(self, now: datetime, ttl: timedelta | None = None) -> None:
        self._now = round(now.timestamp() * 1000)
        self._ttl = ttl
        self._steps = np.array([step // _MILLISECOND for step in _STEPS.values()])
        self._ages = np.zeros(len(_STEPS) + 1, np.int64)
        self._expiring = np.zeros(len(_STEPS) + 1, np.int64)
        self._expired = self._entries = 0
        self._oldest: int | None = None
        self._newest: int | None = None

    def add(self, accessed: pa.Array) -> None:
        """Add times of last access, timestamps in milliseconds; nulls do not count."""
        times = accessed.drop_null().cast(pa.int64()).to_numpy()
        if not len(times):
            return
        self._entries += len(times)
        low, high = int(times.min()), int(times.max())
        self._oldest = low if self._oldest is None else min(low, self._oldest)
        self._newest = high if self._newest is None else max(high, self._newest)
        times = times.clip(-_FARTHEST, _FARTHEST)
        count = len(self._ages)
        self._ages += np.bincount(np.searchsorted(self._steps, self._now - times), minlength=count)
        if self._ttl is not None:
            # As in `TtlUtils.expired`, an entry whose time to live ends exactly now has expired.
            left = times + self._ttl // _MILLISECOND - self._now
            self._expired += int((left <= 0).sum())
            self._expiring += np.bincount(np.searchsorted(self._steps, left[left > 0]), minlength=count)

    def result(self) -> TtlOutlook:
        """Return the outlook for all times that were added."""
        found = TtlOutlook(
            self._entries,
            _to_text(self._oldest),
            _to_text(self._newest),
            dict(zip((*_STEPS, OLDER), self._ages.tolist(), strict=True)),
        )
        if self._ttl is None:
            return found
        return TtlOutlook(
            found.entries,
            found.oldest,
            found.newest,
            found.by_age,
            self._ttl.total_seconds(),
            self._expired,
            dict(zip((*_STEPS, LATER), self._expiring.tolist(), strict=True)),
        )


def _to_text(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    try:
        return (datetime.fromtimestamp(0, UTC) + milliseconds * _MILLISECOND).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{milliseconds} ms"


_BYTES = ("key_bytes", "value_bytes", "reason")

EVERY_STATE = ""
"""Key of the `ttl` mapping of `profile_snapshot` whose TTL holds for all states that have none of their own."""


@dataclass(frozen=True)
class StateProfile:
    """Profile of a state.

    Attributes:
        name: name of the state.
        kind: kind of the state, as in `StateReport`.
        key: serializer of the keys; None for operator state.
        namespace: serializer of the namespace; None for operator state and timers.
        value: serializer of the value; empty for raw state.
        entries: rows of keyed state (elements of a list, entries of a map, timers); None when it could not be read.
        bytes: bytes of keys and values without framing; None when they could not be measured.
        keys: number of distinct keys; None for operator state, and when they could not be distinguished.
        columns: profiles of the columns; empty for raw state.
        omitted: number of columns that are not profiled, because there are more than `MAX_COLUMNS`.
        ttl: ages of the entries; None for a state without TTL.
        undecoded: why entries are profiled as bytes; empty when they are decoded.
        failed: entries that cannot be decoded, in a state that otherwise can be; they count as nulls of their columns.
        failure: why the first of the `failed` entries cannot be decoded.
        error: why the state could not be read; empty when it could.
        damaged: whether bytes of the state are damaged or missing; `error` then says which.
    """

    name: str
    kind: str
    key: str | None
    namespace: str | None
    value: str
    entries: int | None
    bytes: int | None
    keys: int | None
    columns: list[ColumnProfile] = field(default_factory=list)
    omitted: int = 0
    ttl: TtlOutlook | None = None
    undecoded: str = ""
    failed: int = 0
    failure: str = ""
    error: str = ""
    damaged: bool = False

    @property
    def mean_bytes(self) -> float | None:
        """Mean size of an entry in bytes; None without entries, or if sizes are not known."""
        return self.bytes / self.entries if self.bytes is not None and self.entries else None


@dataclass(frozen=True)
class OperatorProfile:
    """Profile of an operator.

    Attributes:
        id: operator id, 32 hexadecimal digits.
        uid: uid; None when it is not known.
        states: profiles of the states that could be found.
        balance: sizes over key groups and subtasks, and the largest keys; None without keyed state.
        errors: why not all states could be found.
    """

    id: str
    uid: str | None
    states: list[StateProfile]
    balance: OperatorBalance | None
    errors: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The uid, or the id when the uid is not known."""
        return self.uid or self.id


@dataclass(frozen=True)
class Profile:
    """Profile of a snapshot.

    Attributes:
        path: path of the snapshot.
        fingerprint: fingerprint of the snapshot.
        at: time from which ages are counted, ISO text.
        operators: profiles of the requested operators.
        balance: balance of the keyed state, see `measure_balance`.
        unused_ttl: names for which a TTL was declared and that match no state.
    """

    path: str
    fingerprint: str
    at: str
    operators: list[OperatorProfile]
    balance: Balance
    unused_ttl: list[str] = field(default_factory=list)

    @property
    def entries(self) -> int:
        """Number of entries of all states that could be read."""
        return sum(state.entries or 0 for operator in self.operators for state in operator.states)

    @property
    def bytes(self) -> int:
        """Bytes of all states that could be measured."""
        return sum(state.bytes or 0 for operator in self.operators for state in operator.states)

    @property
    def expired(self) -> int | None:
        """Entries that have expired; None if no state with TTL has a declared one."""
        found = [state.ttl.expired for operator in self.operators for state in operator.states if state.ttl is not None]
        known = [each for each in found if each is not None]
        return sum(known) if known else None

    @property
    def errors(self) -> list[str]:
        """Errors of operators and states that could not be read."""
        return [
            f"operator {operator.label}: {error}"
            for operator in self.operators
            for error in dict.fromkeys(
                [
                    *operator.errors,
                    *(state.error for state in operator.states if state.error),
                    *([operator.balance.error] if operator.balance is not None and operator.balance.error else []),
                ]
            )
        ]

    @property
    def damage(self) -> list[str]:
        """Errors of states whose bytes are damaged or missing; those of operators are in `SnapshotReport.damage`."""
        return [
            f"operator {operator.label} cannot be read: {state.error}"
            for operator in self.operators
            for state in operator.states
            if state.damaged
        ]

    @property
    def notes(self) -> list[str]:
        """Undamaged state that is not profiled, each with operator and reason."""
        notes = []
        for operator in self.operators:
            for state in operator.states:
                label = f"operator {operator.label}: state {state.name}"
                if state.error and not state.damaged:
                    notes.append(f"{label} is not profiled: {state.error}")
                if state.failed:
                    notes.append(f"{label} has {state.failed:,} entries that cannot be decoded: {state.failure}")
        return notes

    def to_json(self) -> dict[str, object]:
        """The profile as an object for `json.dumps`."""
        report = asdict(self)
        report["balance"] = self.balance.to_json()
        for operator, shown in zip(self.operators, cast("list[dict[str, object]]", report["operators"]), strict=True):
            # Leave out the balance of each operator, which is already in `balance` of the profile.
            del shown["balance"]
            for state, row in zip(operator.states, cast("list[dict[str, object]]", shown["states"]), strict=True):
                row["columns"] = [
                    {**asdict(each), "null_ratio": each.null_ratio, "default_ratio": each.default_ratio}
                    for each in state.columns
                ]
        return {**report, "entries": self.entries, "bytes": self.bytes, "errors": self.errors}


def profile_snapshot(
    snapshot: Snapshot | str,
    *,
    operators: Iterable[str] | None = None,
    ttl: Mapping[str, timedelta] | None = None,
    now: datetime | None = None,
    top: int = 10,
    processes: int = 1,
    run: Run | None = None,
) -> Profile:
    """Profile a snapshot: entries, bytes, largest keys, ratios of nulls and defaults per column, ages of entries.

    Errors of operators and states are in the profile and do not hide the others.

    Args:
        snapshot: a snapshot, or its path.
        operators: uids, ids or names; default all.
        ttl: time to live by `OPERATOR/STATE` or `STATE`, or of all other states under `EVERY_STATE` (the empty name);
            snapshots do not store it.
        now: time from which ages are computed; default the present.
        top: number of hottest key groups and largest keys.
        processes: number of processes that share the work; with more than one, the main module of a script must be
            guarded by `if __name__ == "__main__":`.
        run: function that runs the tasks that measure sizes, in place of processes.

    Raises:
        NotFoundError: there is no such operator.
        StorageError: the storage fails.
        StateError: `_metadata` cannot be read.
    """
    snapshot = ensure_open(snapshot)
    moment = now or datetime.now(UTC)
    names = None if operators is None else list(operators)
    chosen = snapshot.operators if names is None else [snapshot.operator(name) for name in names]
    balance = measure_balance(snapshot, operators=names, top=top, processes=processes, run=run)
    balances = {each.id: each for each in balance.operators}
    lives = dict(ttl or {})
    profiles = [_profile_operator(each, balances.get(each.id), lives, moment) for each in chosen]
    known = {name for each in profiles for state in each.states for name in (state.name, f"{each.label}/{state.name}")}
    unused = [name for name in lives if name != EVERY_STATE and name not in known]
    return Profile(snapshot.path, snapshot.fingerprint, moment.isoformat(timespec="seconds"), profiles, balance, unused)


class _Rows:
    """Running totals and profilers of the rows of one state."""

    def __init__(self, state: State, lives: Mapping[str, timedelta], now: datetime) -> None:
        self.columns = ColumnProfiler()
        self.ttl: TtlProfiler | None = None
        self.entries = self.failed = 0
        self.failure = self.error = ""
        self.damaged = False
        names = (f"{state.operator.label}/{state.label}", state.label, EVERY_STATE)
        self._life = next((lives[name] for name in names if name in lives), None)
        self._now = now
        # If the whole state is undecoded, every row has a `reason`. `StateProfile.undecoded` gives it once, and the
        # rows are profiled as bytes instead of being counted as failed.
        self._is_decoded = not state.undecoded

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch; rows that cannot be decoded have a `reason`, and bytes in place of values."""
        self.entries += batch.num_rows
        if self._is_decoded and "reason" in batch.schema.names:
            reasons = batch.column("reason").drop_null()
            self.failed += len(reasons)
            self.failure = self.failure or (reasons[0].as_py() if len(reasons) else "")
            batch = batch.drop_columns([name for name in _BYTES if name in batch.schema.names])
        self.columns.add(batch)
        if TTL_COLUMN in batch.schema.names:
            if self.ttl is None:
                self.ttl = TtlProfiler(self._now, self._life)
            self.ttl.add(batch.column(TTL_COLUMN))


def _profile_operator(
    operator: Operator, balance: OperatorBalance | None, lives: Mapping[str, timedelta], now: datetime
) -> OperatorProfile:
    found = operator.survey()
    rows: dict[int, _Rows] = {}
    keyed = [each for each in found.states if isinstance(each, KeyedState)]
    for readable, read in _read_keyed(keyed, lives, now):
        rows[id(readable)] = read
    for state in found.states:
        if id(state) not in rows:
            rows[id(state)] = _read_alone(state, lives, now)
    return OperatorProfile(
        operator.id,
        operator.uid,
        [_report(state, rows[id(state)], balance) for state in found.states],
        balance,
        [str(each.error) for each in found.failures],
    )


def _read_keyed(
    states: list[KeyedState], lives: Mapping[str, timedelta], now: datetime
) -> list[tuple[KeyedState, _Rows]]:
    """Read keyed states together, so that each file is read once.

    If a state fails, it is read alone, and the other states are read together again from the start.
    """
    alone: list[KeyedState] = []
    wanted = list(states)
    while wanted:
        rows = {state.name: _Rows(state, lives, now) for state in wanted}
        try:
            for name, batch in read_states(wanted):
                rows[name].add(batch)
        except StorageError:
            raise
        except StateError as error:
            failed = [state for state in wanted if state.name == error.where.state] or wanted
            alone += failed
            wanted = [state for state in wanted if state not in failed]
        else:
            break
    read = [(state, rows[state.name]) for state in wanted]
    return [*read, *((state, _read_alone(state, lives, now)) for state in alone)]


def _read_alone(state: State, lives: Mapping[str, timedelta], now: datetime) -> _Rows:
    """Read a state alone; if single entries cannot be decoded, read it again with nulls for what is undecodable."""
    try:
        try:
            return _read(state, None, lives, now)
        except UnsupportedError:
            # Timers have no values: read the bytes of their keys instead.
            raw = ("key_bytes", "reason") if state.kind == StateKind.TIMER else _BYTES[1:]
            names = dict.fromkeys((*state.schema.names, *raw))
            return _read(state, TableOptions(columns=tuple(names)), lives, now)
    except StorageError:
        raise
    except StateError as error:
        rows = _Rows(state, lives, now)
        rows.error = str(error)
        # A file out of reach is not damage: a copied snapshot may lack files that other state does not need.
        rows.damaged = is_damage(error) and not isinstance(error, OutOfReachError)
        return rows


def _read(state: State, options: TableOptions | None, lives: Mapping[str, timedelta], now: datetime) -> _Rows:
    rows = _Rows(state, lives, now)
    for batch in state.batches(options):
        rows.add(batch)
    return rows


def _report(state: State, rows: _Rows, balance: OperatorBalance | None) -> StateProfile:
    key = namespace = None
    if isinstance(state, KeyedState):
        key = describe(state.key_serializer)
        namespace = describe(state.info.namespace_serializer) if state.kind != StateKind.TIMER else None
    nbytes, keys = _find_sizes(state, rows, balance)
    return StateProfile(
        name=state.label,
        kind=str(state.kind),
        key=key,
        namespace=namespace,
        value="" if isinstance(state, BytesState) else describe(state.serializer),
        entries=None if rows.error else rows.entries,
        bytes=nbytes,
        keys=keys,
        columns=[] if isinstance(state, BytesState) else rows.columns.result(),
        omitted=len(rows.columns.omitted),
        ttl=None if rows.ttl is None else rows.ttl.result(),
        undecoded="" if rows.error else state.undecoded,
        failed=rows.failed,
        failure=rows.failure,
        error=rows.error,
        damaged=rows.damaged,
    )


def _find_sizes(state: State, rows: _Rows, balance: OperatorBalance | None) -> tuple[int | None, int | None]:
    """Return the bytes and the number of distinct keys of a state; None for a number that is not known."""
    if not isinstance(state, KeyedState):
        try:
            return (None if rows.error else state.count().bytes), None
        except UnsupportedError:
            return None, None
    for each in () if balance is None else balance.states:
        if each.name == state.name:
            return each.bytes, each.keys
    return None, None
