"""`profile_snapshot`: entries, sizes, skew, largest keys, columns, TTL and serializers of a snapshot.

Keyed state is read twice: once as bytes, for sizes and keys (`measure_balance`), and once decoded, for its columns. So
state that cannot be decoded still has sizes. What is held grows with columns and key groups, not with entries.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from state_pipelines.errors import OutOfReachError, StateError, StorageError, UnsupportedError
from state_pipelines.keyed.state_table import TTL_COLUMN, TableOptions
from state_pipelines.operations.balance.balance import measure_balance
from state_pipelines.operations.profiling.columns import ColumnProfile, ColumnProfiler
from state_pipelines.operations.profiling.ttl import TtlOutlook, TtlProfiler
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot.keyed_state import KeyedState, read_states
from state_pipelines.snapshot.operator_state import BytesState
from state_pipelines.snapshot.snapshot import ensure_open, is_damage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import timedelta

    import pyarrow as pa

    from state_pipelines.operations.balance.balance import Run
    from state_pipelines.operations.balance.balance_report import Balance, OperatorBalance
    from state_pipelines.snapshot import Operator, Snapshot, State

_BYTES = ("key_bytes", "value_bytes", "reason")

EVERY_STATE = ""
"""Name under which a TTL is declared for all states that have none of their own."""


@dataclass(frozen=True)
class StateProfile:
    """One state.

    Attributes:
        name: of the state.
        kind: as in `StateReport`.
        key: serializer of the keys; None for operator state.
        namespace: serializer of the namespace; None for operator state and timers.
        value: serializer of the value; empty for raw state.
        entries: rows of keyed state (elements of a list, entries of a map, timers); None when it could not be read.
        bytes: of keys and values without framing; None when they could not be measured.
        keys: distinct keys; None for operator state, and when they could not be distinguished.
        columns: the columns; none of raw state.
        omitted: columns that are too many.
        ttl: None without TTL.
        undecoded: why entries are profiled as bytes; empty when they are decoded.
        failed: entries that cannot be decoded, beside others that can; they count in no column but those of their keys.
        failure: why the first of them cannot.
        error: why the state could not be read; empty when it could.
        damaged: bytes of it are damaged or missing; the reason is `error`.
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
        """Bytes of an entry on average."""
        return self.bytes / self.entries if self.bytes is not None and self.entries else None


@dataclass(frozen=True)
class OperatorProfile:
    """One operator.

    Attributes:
        id: 32 hexadecimal digits.
        uid: when it is known.
        states: those that could be found.
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
    """A snapshot.

    Attributes:
        path: of the snapshot.
        fingerprint: of the snapshot.
        at: time from which ages are counted, ISO text.
        operators: all operators.
        balance: of keyed state, see `measure_balance`.
        unused_ttl: names with a declared TTL that no state has.
    """

    path: str
    fingerprint: str
    at: str
    operators: list[OperatorProfile]
    balance: Balance
    unused_ttl: list[str] = field(default_factory=list)

    @property
    def entries(self) -> int:
        """Of all states that could be read."""
        return sum(state.entries or 0 for operator in self.operators for state in operator.states)

    @property
    def bytes(self) -> int:
        """Of all states that could be measured."""
        return sum(state.bytes or 0 for operator in self.operators for state in operator.states)

    @property
    def expired(self) -> int | None:
        """Entries that have expired; None where no TTL is declared of any state."""
        found = [state.ttl.expired for operator in self.operators for state in operator.states if state.ttl is not None]
        known = [each for each in found if each is not None]
        return sum(known) if known else None

    @property
    def errors(self) -> list[str]:
        """Why operators and states could not be read."""
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
            # The operators of `balance` hold it.
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
        processes: that share the work; with more than one, the main module of a script must be guarded by
            `if __name__ == "__main__":`.
        run: runs the tasks that measure sizes in place of processes.

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
    """Sums over the rows of one state."""

    def __init__(self, state: State, lives: Mapping[str, timedelta], now: datetime) -> None:
        self.columns = ColumnProfiler()
        self.ttl: TtlProfiler | None = None
        self.entries = self.failed = 0
        self.failure = self.error = ""
        self.damaged = False
        names = (f"{state.operator.label}/{state.label}", state.label, EVERY_STATE)
        self._life = next((lives[name] for name in names if name in lives), None)
        self._now = now
        # State that is bytes throughout says so once.
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
    """Read keyed states together, each file once; one that fails is read alone, and the others again without it."""
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
    """Read a state; where single entries cannot be decoded, read it again without their values."""
    try:
        try:
            return _read(state, None, lives, now)
        except UnsupportedError:
            # Timers have no values.
            raw = ("key_bytes", "reason") if state.kind == StateKind.TIMER else _BYTES[1:]
            names = dict.fromkeys((*state.schema.names, *raw))
            return _read(state, TableOptions(columns=tuple(names)), lives, now)
    except StorageError:
        raise
    except StateError as error:
        rows = _Rows(state, lives, now)
        rows.error = str(error)
        # A copied snapshot lacks files that it does not need for the rest.
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
    """Bytes and distinct keys."""
    if not isinstance(state, KeyedState):
        try:
            return (None if rows.error else state.count().bytes), None
        except UnsupportedError:
            return None, None
    for each in () if balance is None else balance.states:
        if each.name == state.name:
            return each.bytes, each.keys
    return None, None
