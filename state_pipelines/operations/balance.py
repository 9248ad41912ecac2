"""Balance: bytes and records of key groups and subtasks, the hottest keys, other parallelism, and pictures.

With another parallelism whole key groups change their subtasks, so that the prediction is exact. With another max
parallelism keys change their key groups: by their Java hash, unless the new number divides the old one (then
`key group % new number` is the new key group, because `hash % old % new == hash % new`).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.columns import explain
from state_pipelines.codecs.json import to_json
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import StateError, StorageError, UnsupportedError, UsageError, at
from state_pipelines.keyed.key_groups import check_max_parallelism, compute_key_group_range, compute_operator_index
from state_pipelines.keyed.operator_table import group_files, split_files
from state_pipelines.keyed.sections import measure_sections
from state_pipelines.keyed.stats import Counts, HotKey, KeyGroupMeasurement, KeyGroupSizes, Move, merge_sizes
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.local_processes import Work, choose_runner
from state_pipelines.operations.rescale.snapshot_merge import find_key_hasher
from state_pipelines.operations.state_rows import compact
from state_pipelines.snapshot.operator_state import RAW_KEYED_NAME, RawKeyedState
from state_pipelines.snapshot.representation import escape_markdown
from state_pipelines.snapshot.snapshot import ensure_open
from state_pipelines.snapshot.snapshot_files import check_parallelism
from state_pipelines.storage import create_file, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.ticker import MultipleLocator

    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.snapshot import Operator, Snapshot


class BalanceMethod(StrEnum):
    """Method by which the state of an operator was measured."""

    RECORDS = "records"
    """All records were read. Bytes are those of keys and values."""
    OFFSETS = "offsets"
    """Only handles and headers were read. Bytes are exact sizes of key groups in the files, compressed or not."""
    ESTIMATE = "estimate"
    """As `OFFSETS`, but for some files, which do not record where key groups begin, bytes are estimates."""
    NONE = ""
    """Nothing was measured."""


@dataclass(frozen=True)
class KeyGroupLoads:
    """Entries and bytes of each key group; the lists are indexed by key group.

    Attributes:
        bytes: bytes of all keyed state.
        records: number of records; None if they were not counted.
        keys: number of distinct keys; None if they were not counted.
    """

    bytes: list[int]
    records: list[int] | None = None
    keys: list[int] | None = None


@dataclass(frozen=True)
class SubtaskLoad:
    """Entries and bytes of one subtask.

    Attributes:
        subtask: index of the subtask.
        key_groups: [first, last] key group of the subtask.
        bytes: bytes of all keyed state.
        records: number of records; None if they were not counted.
        keys: number of distinct keys; None if they were not counted.
    """

    subtask: int
    key_groups: list[int]
    bytes: int
    records: int | None
    keys: int | None


@dataclass(frozen=True)
class StateDistribution:
    """Distribution of the keyed state of an operator over its subtasks.

    Attributes:
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        subtasks: load of each subtask.
        imbalance: bytes of the largest subtask divided by the mean of all subtasks; 1 for an even distribution, and for
            an operator without state.
        idle: indices of subtasks without state.
        loads: loads of all key groups.
    """

    parallelism: int
    max_parallelism: int
    subtasks: list[SubtaskLoad]
    imbalance: float
    idle: list[int]
    loads: KeyGroupLoads

    @property
    def bytes(self) -> int:
        """Bytes of all subtasks."""
        return sum(self.loads.bytes)


@dataclass(frozen=True)
class StateSizes:
    """Sizes of a state over all key groups.

    Attributes:
        bytes: bytes of the state; 0 if only the bytes of all states together are known.
        records: number of records; None if they were not counted.
        keys: number of distinct keys; None if they were not counted.
    """

    name: str
    bytes: int
    records: int | None
    keys: int | None


@dataclass(frozen=True)
class HotKeyGroup:
    """One of the key groups that hold the most bytes of an operator.

    Attributes:
        subtask: index of the subtask that has the key group now.
        share: share of the bytes of the operator, 0 to 1.
    """

    key_group: int
    subtask: int
    bytes: int
    records: int | None
    keys: int | None
    share: float


@dataclass(frozen=True)
class HotKeyLoad:
    """One of the keys that hold the most records or bytes of an operator.

    Attributes:
        key: the key as text; `0x` and hexadecimal digits if it cannot be decoded.
        subtask: index of the subtask that has the key now.
        records: records of the key in all states.
        bytes: bytes of the key in all states.
        share: share of the bytes of the subtask, 0 to 1.
    """

    key: str
    key_group: int
    subtask: int
    records: int
    bytes: int
    share: float


@dataclass(frozen=True)
class OperatorBalance:
    """The distribution of the keyed state of an operator.

    Attributes:
        id: operator id, 32 hexadecimal digits.
        uid: uid; None if it is not known.
        measured: method of measurement.
        states: sizes of the states of the operator; empty if records were not counted.
        now: distribution with the present parallelism; None if nothing could be measured.
        predicted: distribution with the requested parallelism and max parallelism; None if there is no prediction.
        unpredicted: why a requested prediction is not possible; else empty.
        hottest_key_groups: key groups with the most bytes, descending.
        most_bytes: keys with the most bytes, descending; empty if keys were not counted.
        most_records: keys with the most records, descending; empty if keys were not counted.
        advice: anomalies of the distribution, with remedies.
        notes: limits of the numbers, such as state that was not counted.
        error: why the state could not be read; empty if it could.
    """

    id: str
    uid: str | None
    parallelism: int
    max_parallelism: int
    measured: BalanceMethod = BalanceMethod.NONE
    states: list[StateSizes] = field(default_factory=list)
    now: StateDistribution | None = None
    predicted: StateDistribution | None = None
    unpredicted: str = ""
    hottest_key_groups: list[HotKeyGroup] = field(default_factory=list)
    most_bytes: list[HotKeyLoad] = field(default_factory=list)
    most_records: list[HotKeyLoad] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def label(self) -> str:
        """The uid, or the id if the uid is not known."""
        return self.uid or self.id


@dataclass(frozen=True)
class MaxParallelismConflict:
    """Operators whose max parallelisms contradict each other, or are lower than their parallelism.

    Attributes:
        parallelism: parallelism, which all these operators have.
        max_parallelisms: max parallelism of each operator, by label of the operator.
    """

    parallelism: int
    max_parallelisms: dict[str, int]

    def __str__(self) -> str:
        named = ", ".join(f"{name} ({number})" for name, number in self.max_parallelisms.items())
        if len(set(self.max_parallelisms.values())) == 1:
            return (
                f"the parallelism {self.parallelism} exceeds the max parallelism of {named}: Flink cannot restore that"
            )
        return (
            f"operators of parallelism {self.parallelism} hold keyed state with different max parallelism: {named}. "
            "If they are chained, Flink takes one of the numbers for all of them and loses the state of the others "
            "without a word; bring them to one max parallelism"
        )


@dataclass(frozen=True)
class Balance:
    """Distribution of the keyed state of a snapshot over key groups and subtasks.

    Attributes:
        path: path of the snapshot.
        parallelism: parallelism for which the prediction was requested; None for that of each operator.
        max_parallelism: max parallelism for which the prediction was requested; None for that of each operator.
        operators: operators with keyed state.
        conflicts: operators whose max parallelisms contradict each other.
    """

    path: str
    parallelism: int | None
    max_parallelism: int | None
    operators: list[OperatorBalance]
    conflicts: list[MaxParallelismConflict]

    @property
    def imbalance(self) -> float:
        """The highest imbalance of all operators now, see `StateDistribution.imbalance`."""
        return max((each.now.imbalance for each in self.operators if each.now is not None), default=1.0)

    def to_json(self) -> dict[str, object]:
        """The report as an object for `json.dumps`."""
        report = asdict(self)
        report["conflicts"] = [{**asdict(each), "text": str(each)} for each in self.conflicts]
        return report

    def to_markdown(self) -> str:
        """The report as tables: subtasks, hottest key groups, hottest keys and advice of each operator."""
        lines = [f"- **{escape_markdown(str(conflict))}**" for conflict in self.conflicts]
        for operator in self.operators:
            lines += ["", f"### {escape_markdown(_crop(operator.label))}", "", *_describe(operator)]
        return "\n".join(lines).strip() + "\n"


_SHOWN = 10


def _describe(operator: OperatorBalance) -> list[str]:
    if operator.now is None:
        return [escape_markdown(operator.error or "; ".join(operator.notes))]
    lines = [*_tabulate_distributions(operator), ""]
    lines += [
        f"- {escape_markdown(str(each))}"
        for each in (*operator.advice, *operator.notes, *filter(None, [operator.unpredicted]))
    ]
    lines += ["", "| hottest key group | subtask | bytes | share | records | keys |", "|--:|--:|--:|--:|--:|--:|"]
    lines += [
        f"| {each.key_group} | {each.subtask} | {each.bytes:,} | {each.share:.1%} | {_number(each.records)} "
        f"| {_number(each.keys)} |"
        for each in operator.hottest_key_groups[:_SHOWN]
    ]
    for title, keys in (("most bytes", operator.most_bytes), ("most records", operator.most_records)):
        if keys:
            lines += ["", f"| key with {title} | key group | subtask | bytes | records | share of the subtask |"]
            lines += ["|---|--:|--:|--:|--:|--:|"]
            lines += [
                f"| {escape_markdown(_crop(each.key))} | {each.key_group} | {each.subtask} | {each.bytes:,} "
                f"| {each.records:,} | {each.share:.1%} |"
                for each in keys[:_SHOWN]
            ]
    return lines


def _tabulate_distributions(operator: OperatorBalance) -> list[str]:
    lines = [
        "| | parallelism | max parallelism | bytes | largest subtask | imbalance | idle subtasks |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, each in (("now", operator.now), ("predicted", operator.predicted)):
        if each is not None:
            largest = max(subtask.bytes for subtask in each.subtasks)
            lines.append(
                f"| {name} | {each.parallelism} | {each.max_parallelism} | {each.bytes:,} | {largest:,} "
                f"| {each.imbalance:.2f} | {len(each.idle)} |"
            )
    return lines


def _number(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _crop(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


UNEVEN = 1.1
"""Advice is given if a subtask has at least so many times the mean number of key groups."""

HOT = 1.2
"""Advice is given if a key group has at least so many times the mean bytes of a subtask."""

DOMINANT = 0.5
"""A key with at least such a share of the bytes of its hot key group is taken for the cause."""

_SHOWN_KEY = 60


def refuse(parallelism: int, max_parallelism: int) -> str:
    """Explain why Flink refuses this parallelism with this max parallelism; return an empty text if it does not."""
    if parallelism <= max_parallelism:
        return ""
    return (
        f"parallelism {parallelism} exceeds max parallelism {max_parallelism}: every subtask needs a key group, and "
        f"Flink refuses to start; choose a parallelism up to {max_parallelism}, or a larger max parallelism"
    )


def advise(distribution: StateDistribution, keys: Sequence[HotKeyLoad]) -> list[str]:
    """Describe anomalies of a distribution with remedies, one line of text each.

    Args:
        distribution: the distribution.
        keys: the keys that hold the most bytes of the operator, descending.
    """
    return [*_advise_ranges(distribution), *_advise_idle(distribution), *_advise_hottest(distribution, keys)]


def _advise_ranges(distribution: StateDistribution) -> Iterator[str]:
    p, m = distribution.parallelism, distribution.max_parallelism
    small, large = m // p, -(-m // p)
    if small != large and large * p / m >= UNEVEN:
        divisors = [each for each in range(1, m + 1) if m % each == 0]
        near = [*[each for each in divisors if each < p][-1:], *[each for each in divisors if each > p][:1]]
        yield (
            f"parallelism {p} with max parallelism {m} gives subtasks of {small} and {large} key groups: the largest "
            f"has {large * p / m:.2g} times the mean; choose a divisor of {m} "
            f"({' or '.join(map(str, near))}) or a larger max parallelism"
        )


def _advise_idle(distribution: StateDistribution) -> Iterator[str]:
    p, idle = distribution.parallelism, len(distribution.idle)
    if not idle or not distribution.bytes:
        return
    noun = "subtask has" if idle == 1 else "subtasks have"
    text = f"{idle} of {p} {noun} no state, because no key falls into the key groups"
    if distribution.loads.keys is not None and sum(distribution.loads.keys) < 2 * p:
        text += f": there are only {sum(distribution.loads.keys)} keys"
    yield text


def _advise_hottest(distribution: StateDistribution, keys: Sequence[HotKeyLoad]) -> Iterator[str]:
    loads, total, p = distribution.loads, distribution.bytes, distribution.parallelism
    if p == 1 or not total:
        return
    hottest = max(range(len(loads.bytes)), key=loads.bytes.__getitem__)
    share = loads.bytes[hottest] / total
    if share * p < HOT:
        return
    text = (
        f"key group {hottest} alone holds {share:.0%} of the bytes, {share * p:.2g} times the even share of a subtask: "
        f"no more than {max(1, int(1 / share))} subtasks can be even"
    )
    largest = keys[0] if keys else None
    if largest is not None and largest.bytes >= DOMINANT * loads.bytes[hottest]:
        shown = largest.key if len(largest.key) <= _SHOWN_KEY else f"{largest.key[: _SHOWN_KEY - 1]}…"
        yield f"{text}. Most of it is the one key {shown}, and no rescaling splits a key: give it a finer key"
    elif loads.keys is None or loads.keys[hottest] > 1:
        yield f"{text}; a larger max parallelism spreads its keys"
    else:
        yield f"{text}. It has one key, and no rescaling splits a key: give it a finer key"


def find_max_parallelism_conflicts(snapshot: Snapshot) -> list[MaxParallelismConflict]:
    """Find operators with keyed state whose max parallelisms contradict each other, or are lower than the parallelism.

    Operators of one chain run in one job vertex with one max parallelism. On restore, Flink sets the max parallelism of
    the vertex from the state of each of its operators in turn
    (`StateAssignmentOperation.checkParallelismPreconditions`), so the last operator wins, and the others read other key
    groups than were written. `_metadata` does not record which operators are chained, but only operators of the same
    parallelism can be.
    """
    found: dict[int, dict[str, int]] = {}
    for operator in snapshot.operators:
        if any(each.managed_keyed_state or each.raw_keyed_state for each in operator.metadata.subtasks):
            found.setdefault(operator.parallelism, {})[operator.label] = operator.max_parallelism
    conflicts = []
    for parallelism, numbers in sorted(found.items()):
        if len(set(numbers.values())) > 1:
            conflicts.append(MaxParallelismConflict(parallelism, numbers))
        exceeded = {label: number for label, number in numbers.items() if number < parallelism}
        conflicts += [MaxParallelismConflict(parallelism, {label: number}) for label, number in exceeded.items()]
    return conflicts


Run = Callable[[Sequence[Work[KeyGroupSizes]], str], list[KeyGroupSizes]]
"""Runs tasks; the text is part of the error when a process dies."""

TASK_SIZE = 256 << 20
"""Bytes of file in one task."""


def measure_balance(
    snapshot: Snapshot | str,
    *,
    operators: Iterable[str] | None = None,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    hashers: Mapping[bytes, KeyHasher] | None = None,
    count: bool = True,
    top: int = 10,
    processes: int = 1,
    run: Run | None = None,
) -> Balance:
    """Measure how keyed state is distributed over key groups and subtasks, now and with other numbers of them.

    If an operator cannot be measured, its result has the error, and other operators are measured nevertheless.

    Args:
        snapshot: a snapshot, or its path.
        operators: uids, ids or names; default all that have keyed state.
        parallelism: number of subtasks to predict for; default that of each operator.
        max_parallelism: number of key groups to predict for; default that of each operator.
        hashers: by operator id: computes the hashes of keys. They are needed for a max parallelism that does not divide
            the present one. By default the hasher is found from the snapshot.
        count: read all keyed state, for bytes without framing and compression, records, keys and the hottest keys.
            Otherwise only bytes are known, from handles and headers.
        top: number of hottest key groups and keys.
        processes: number of processes that share the work; with more than one, the main module of a script must be
            guarded by `if __name__ == "__main__":`.
        run: runs the tasks in place of processes, such as `spark.tasks.run_tasks` with a session.

    Raises:
        NotFoundError: there is no such operator.
        UsageError: Flink does not allow one of the numbers.
        StateError: `_metadata` cannot be read.
    """
    snapshot = ensure_open(snapshot)
    for name, number in (("parallelism", parallelism), ("max parallelism", max_parallelism)):
        if number is not None:
            check_max_parallelism(number, name)
    if parallelism is not None and max_parallelism is not None and parallelism > max_parallelism:
        raise UsageError(
            f"a parallelism of {parallelism} does not go with a max parallelism of {max_parallelism}",
            hint="Every subtask needs at least one key group",
        )
    chosen = snapshot.operators if operators is None else [snapshot.operator(name) for name in operators]
    with choose_runner(run, processes) as runner:
        wish = _Wish(parallelism, max_parallelism, hashers or {}, count, top, runner)
        found = [_measure(each, wish) for each in chosen if _has_keyed_state(each)]
    return Balance(snapshot.path, parallelism, max_parallelism, found, find_max_parallelism_conflicts(snapshot))


@dataclass(frozen=True)
class _Wish:
    parallelism: int | None
    max_parallelism: int | None
    hashers: Mapping[bytes, KeyHasher]
    count: bool
    top: int
    run: Run


@dataclass(frozen=True, eq=False)
class _Found:
    """Measurements of an operator.

    Attributes:
        sizes: sizes of the records; None if they were not counted.
        raw: i64[max parallelism], bytes of each key group in raw keyed state that is not timers; if records were not
            counted, in all keyed state.
        estimated: `raw` has estimates.
        unknown_hash: why the key groups under the requested max parallelism cannot be computed; empty if they can, or
            need not.
    """

    sizes: KeyGroupSizes | None
    raw: Counts
    estimated: bool = False
    unknown_hash: str = ""

    @property
    def loads(self) -> KeyGroupLoads:
        """Loads of all key groups; records and keys are None if they were not counted."""
        if self.sizes is None:
            return KeyGroupLoads(self.raw.tolist())
        return _make_loads(
            self.sizes.bytes.sum(0) + self.raw,
            None if self.sizes.blocks else self.sizes.records.sum(0),
            None if self.sizes.uncounted else self.sizes.all_keys,
        )


def _has_keyed_state(operator: Operator) -> bool:
    return any(each.managed_keyed_state or each.raw_keyed_state for each in operator.metadata.subtasks)


def _measure(operator: Operator, wish: _Wish) -> OperatorBalance:
    blank = OperatorBalance(operator.id, operator.uid, operator.parallelism, operator.max_parallelism)
    try:
        with at(operator=operator.label):
            check_parallelism(operator.metadata, str(operator.snapshot.location.metadata))
            return _judge(operator, blank, _read(operator, wish), wish)
    except StorageError:
        raise
    except StateError as error:
        return replace(blank, error=str(error))


def _read(operator: Operator, wish: _Wish) -> _Found:
    everything = KeyGroupRange(0, operator.max_parallelism)
    raw = np.zeros(len(everything), np.int64)
    for state in operator.raw_states:
        if isinstance(state, RawKeyedState):
            for subtask_state in state.subtask_states:
                raw += measure_sections(subtask_state.sections, everything)[0]
    if not wish.count:
        return _find_stored(operator, raw)
    move, reason = _plan_move(operator, wish)
    tasks = [
        KeyGroupMeasurement(operator.label, split, groups, wish.top, move)
        for files in group_files(operator.keyed_files).values()
        for split, groups in _split(operator, files)
    ]
    found = wish.run(tasks, f"{operator.label} cannot be measured")
    return _Found(merge_sizes(found, everything, wish.top), raw, unknown_hash=reason)


def _find_stored(operator: Operator, found: Counts) -> _Found:
    everything = KeyGroupRange(0, operator.max_parallelism)
    estimated = False
    for _, file in operator.keyed_files:
        stored, rough = file.measure_stored_bytes(everything)
        own = file.key_groups
        found[own.start : own.end + 1] += stored[own.start : own.end + 1]
        estimated |= rough
    return _Found(None, found, estimated)


def _split(operator: Operator, files: Sequence[KeyedFile]) -> Iterable[tuple[tuple[KeyedFile, ...], KeyGroupRange]]:
    start, end = min(file.key_groups.start for file in files), max(file.key_groups.end for file in files)
    own = KeyGroupRange(start, end + 1 - start)
    for split, groups in split_files(files, TASK_SIZE, own):
        yield split, own if groups is None else groups


def _plan_move(operator: Operator, wish: _Wish) -> tuple[Move | None, str]:
    """Find out how to compute the key groups under the requested max parallelism.

    Returns:
        (requested max parallelism and hasher, None if no hashes are needed or known; why the hashes are not known, else
        empty).
    """
    wanted = wish.max_parallelism
    if wanted is None or operator.max_parallelism % wanted == 0 or not operator.keyed_files:
        return None, ""
    hasher = wish.hashers.get(operator.metadata.operator_id)
    if hasher is None:
        try:
            hasher, _ = find_key_hasher([operator], operator.keyed_files[0][1].header.key_serializer, {})
        except (UnsupportedError, UsageError) as error:
            return None, explain(error)
        if hasher is None:
            return None, "there are no keys"
    return Move(wanted, hasher), ""


def _judge(operator: Operator, blank: OperatorBalance, found: _Found, wish: _Wish) -> OperatorBalance:
    """Make the balance of an operator from its measurements, with prediction and advice."""
    p, m, sizes, loads = operator.parallelism, operator.max_parallelism, found.sizes, found.loads
    notes = _note(found)
    if refuse(p, m):
        # The parallelism exceeds the max parallelism, so Flink's formula gives no key-group ranges. `Balance.conflicts`
        # reports that, too.
        return replace(blank, measured=_find_method(found), notes=[*notes, refuse(p, m)])
    now = distribute(loads, p, m)
    most_bytes, most_records = ([], []) if sizes is None else _name_keys(operator, sizes, now)
    predicted, reason = None, ""
    if wish.parallelism is not None or wish.max_parallelism is not None:
        predicted, reason = _predict(operator, found, wish)
    subject = predicted or (None if reason else now)
    return replace(
        blank,
        measured=_find_method(found),
        states=[] if sizes is None else _name_states(sizes, found.raw),
        now=now,
        predicted=predicted,
        unpredicted=reason,
        hottest_key_groups=_find_hottest(now, wish.top),
        most_bytes=most_bytes,
        most_records=most_records,
        advice=[] if subject is None else advise(subject, most_bytes),
        notes=notes,
    )


def _find_method(found: _Found) -> BalanceMethod:
    if found.sizes is not None:
        return BalanceMethod.RECORDS
    return BalanceMethod.ESTIMATE if found.estimated else BalanceMethod.OFFSETS


def _note(found: _Found) -> list[str]:
    if found.sizes is None:
        how = "roughly where key groups are stored" if found.estimated else "where key groups begin"
        return [f"bytes of the files, which say {how}; records and keys were not counted"]
    notes = [
        f"{'records and keys' if name in found.sizes.blocks else 'keys'} of {name} are not counted: {reason}"
        for name, reason in found.sizes.uncounted
    ]
    if found.raw.any():
        notes.append("raw keyed state counts with its bytes; what its keys are, only the operator knows")
    return notes


def _predict(operator: Operator, found: _Found, wish: _Wish) -> tuple[StateDistribution | None, str]:
    """Predict the distribution with the requested numbers; return (None, reason) if that is not possible."""
    p = wish.parallelism or operator.parallelism
    m = wish.max_parallelism or operator.max_parallelism
    reason = refuse(p, m)
    loads = None
    if not reason:
        loads, reason = _move(operator, found, m)
    return (None, reason) if loads is None else (distribute(loads, p, m), "")


def _move(operator: Operator, found: _Found, m: int) -> tuple[KeyGroupLoads | None, str]:
    old, sizes = found.loads, found.sizes
    if m == operator.max_parallelism:
        return old, ""
    unknown = f"max parallelism {m} cannot be predicted"
    if found.raw.any() and sizes is not None:
        return None, f"{unknown}: raw keyed state does not say what its keys are"
    if operator.max_parallelism % m == 0:
        return KeyGroupLoads(_fold(old.bytes, m) or [], _fold(old.records, m), _fold(old.keys, m)), ""
    if found.unknown_hash:
        return None, f"{unknown}: {found.unknown_hash}"
    if sizes is None or sizes.moved is None:
        return None, f"{unknown}: its keys were not read; count the records"
    if sizes.uncounted:
        return None, f"{unknown}: keys of {', '.join(name for name, _ in sizes.uncounted)} cannot be found"
    if sizes.moved.misfiled:
        wrong, total = sizes.moved.misfiled, int(sizes.all_keys.sum())
        return None, f"{unknown}: the hash does not give the key groups of {wrong:,} of {total:,} keys"
    return _make_loads(sizes.moved.bytes, sizes.moved.records, sizes.moved.keys), ""


def _fold(numbers: list[int] | None, m: int) -> list[int] | None:
    """Add up numbers per old key group to numbers per new one; the new max parallelism `m` must divide the old one."""
    if numbers is None:
        return None
    folded: list[int] = np.array(numbers, np.int64).reshape(-1, m).sum(0).tolist()
    return folded


def _make_loads(nbytes: Counts, records: Counts | None, keys: Counts | None) -> KeyGroupLoads:
    return KeyGroupLoads(nbytes.tolist(), *(None if each is None else each.tolist() for each in (records, keys)))


def distribute(loads: KeyGroupLoads, parallelism: int, max_parallelism: int) -> StateDistribution:
    """Distribute key groups over subtasks (`KeyGroupRangeAssignment.computeKeyGroupRangeForOperatorIndex`).

    Args:
        loads: loads of all key groups.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.

    Raises:
        UsageError: the parallelism is higher than the max parallelism, or a number is not valid.
    """
    ranges = [compute_key_group_range(each, parallelism, max_parallelism) for each in range(parallelism)]
    starts = [each.start for each in ranges]

    def add(numbers: list[int] | None) -> list[int] | None:
        if numbers is None:
            return None
        sums: list[int] = np.add.reduceat(np.array(numbers, np.int64), starts).tolist()
        return sums

    nbytes, records, keys = add(loads.bytes) or [], add(loads.records), add(loads.keys)
    subtasks = [
        SubtaskLoad(
            index,
            [each.start, each.end],
            nbytes[index],
            None if records is None else records[index],
            None if keys is None else keys[index],
        )
        for index, each in enumerate(ranges)
    ]
    mean = sum(nbytes) / parallelism
    imbalance = max(nbytes) / mean if mean else 1.0
    idle = [each.subtask for each in subtasks if not (each.bytes or each.records)]
    return StateDistribution(parallelism, max_parallelism, subtasks, imbalance, idle, loads)


def _name_states(sizes: KeyGroupSizes, raw: Counts) -> list[StateSizes]:
    uncounted = dict(sizes.uncounted)
    states = [
        StateSizes(name, nbytes, None if name in sizes.blocks else records, None if name in uncounted else keys)
        for name, nbytes, records, keys in zip(
            sizes.states, *(each.sum(1).tolist() for each in (sizes.bytes, sizes.records, sizes.keys)), strict=True
        )
    ]
    return [*states, StateSizes(RAW_KEYED_NAME, int(raw.sum()), None, None)] if raw.any() else states


def _find_hottest(now: StateDistribution, top: int) -> list[HotKeyGroup]:
    loads, total = now.loads, now.bytes
    order = sorted((group for group, size in enumerate(loads.bytes) if size), key=lambda each: -loads.bytes[each])
    return [
        HotKeyGroup(
            group,
            compute_operator_index(group, now.parallelism, now.max_parallelism),
            loads.bytes[group],
            None if loads.records is None else loads.records[group],
            None if loads.keys is None else loads.keys[group],
            loads.bytes[group] / total,
        )
        for group in order[:top]
    ]


def _name_keys(
    operator: Operator, sizes: KeyGroupSizes, now: StateDistribution
) -> tuple[list[HotKeyLoad], list[HotKeyLoad]]:
    """Decode the hottest keys; return (those with the most bytes, those with the most records)."""
    serializer = operator.keyed_files[0][1].header.key_serializer if operator.keyed_files else None

    def decode(key: bytes) -> str:
        if serializer is None:
            return f"0x{key.hex()}"
        try:
            reader = Reader(key)
            value = read_value(derive_layout(serializer, operator.record_context.layouts), reader)
            reader.expect_end("the key")
            return compact(to_json(serializer, value)) or '""'
        except UnsupportedError:
            return f"0x{key.hex()}"

    def name(key: HotKey) -> HotKeyLoad:
        subtask = compute_operator_index(key.key_group, now.parallelism, now.max_parallelism)
        share = key.bytes / (now.subtasks[subtask].bytes or 1)
        return HotKeyLoad(decode(key.key), key.key_group, subtask, key.records, key.bytes, share)

    return [name(each) for each in sizes.most_bytes], [name(each) for each in sizes.most_records]


MOST_OPERATORS = 8
"""Maximum number of operators in one picture; those with the most bytes are shown."""

MOST_CELLS = 1024
"""Maximum number of cells in one row. With more key groups, a cell shows the largest of several adjacent ones."""

_NOW, _PREDICTED, _MEAN, _EMPTY = "#3b6ea5", "#d9822b", "#444444", "#f3f3f3"
_SHADES = {_NOW: ("#3b6ea5", "#a9c4e0"), _PREDICTED: ("#d9822b", "#f3cfa5")}
_MOST_BORDERS = 64
"""Maximum number of subtasks whose borders are drawn through the cells; more borders would hide the cells."""

_WIDTH = 11.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def render_balance(balance: Balance, format: str = "svg") -> bytes:
    """Draw a balance.

    Args:
        balance: the balance.
        format: `svg` or `png`.

    Raises:
        UsageError: the format is neither of these, or no operator was measured.
    """
    if format not in ("svg", "png"):
        raise UsageError(f"pictures are SVG or PNG, not {format or 'without a format'}", hint="Name it .svg or .png")
    output = io.BytesIO()
    with _drawing():
        figure = draw_balance(balance)
        figure.savefig(output, format=format, dpi=110, metadata={"Date": None} if format == "svg" else None)
    return output.getvalue()


def save_balance(balance: Balance, path: str) -> None:
    """Draw a balance into a new file, whose path or URL ends with `.svg` or `.png`.

    Raises:
        UsageError: the path has another ending, or no operator was measured.
        TargetExistsError: the file exists.
    """
    picture = render_balance(balance, choose_format(path))
    with create_file(resolve(path)) as file:
        file.write(picture)


def choose_format(path: str) -> str:
    """Return the format of a picture by the ending of its path: `svg` or `png`.

    Raises:
        UsageError: the path has another ending.
    """
    _, dot, suffix = path.rpartition(".")
    if not dot or suffix.lower() not in ("svg", "png"):
        raise UsageError(f"{path} names neither an SVG nor a PNG picture", hint="Let it end with .svg or .png")
    return suffix.lower()


def draw_balance(balance: Balance) -> Figure:
    """Draw a balance as a figure of matplotlib, which can be saved without a screen.

    Raises:
        UsageError: no operator was measured.
    """
    from matplotlib.figure import Figure  # imported on use: it takes half a second

    measured = [each for each in balance.operators if each.now is not None]
    if not measured:
        raise UsageError(f"{balance.path} has no keyed state that a picture could show")
    measured.sort(key=lambda each: -(each.now.bytes if each.now else 0))
    shown = measured[:MOST_OPERATORS]
    heights = [_find_heights(each) for each in shown]
    figure = Figure(figsize=(_WIDTH, 0.9 + sum(map(sum, heights)) + 0.8 * len(shown)), layout="constrained")
    title = f"Keyed state over key groups and subtasks\n{balance.path}"
    if len(measured) > len(shown):
        title += f" ({len(shown)} of {len(measured)} operators, those with the most bytes)"
    figure.suptitle(title, fontsize=11)
    _explain(figure, predicted=any(each.predicted is not None for each in shown))
    subfigures = figure.subfigures(len(shown), 1, height_ratios=[sum(each) + 0.8 for each in heights], squeeze=False)
    for subfigure, operator, rows in zip(subfigures[:, 0], shown, heights, strict=True):
        subfigure.suptitle(_name(operator), fontsize=10, fontweight="bold", x=0.01, ha="left")
        _draw_operator(operator, subfigure.subplots(len(rows), 1, height_ratios=rows, squeeze=False)[:, 0])
    return figure


def _explain(figure: Figure, *, predicted: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [Patch(color=_NOW, label="subtasks now (shades alternate)")]
    if predicted:
        handles.append(Patch(color=_PREDICTED, label="subtasks predicted"))
    handles.append(Patch(facecolor=_EMPTY, edgecolor="#cccccc", label="key group without state"))
    handles.append(Line2D([], [], color=_MEAN, linewidth=1, linestyle="--", label="mean of the subtasks"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)


def _find_heights(operator: OperatorBalance) -> list[float]:
    """Return the heights, in inches, of the rows of an operator: bars and cells now, cells and bars as predicted.

    If the max parallelism stays, one row of cells is enough for both.
    """
    if operator.predicted is None:
        return [1.3, 0.55]
    if operator.predicted.max_parallelism == operator.max_parallelism:
        return [1.3, 0.75, 1.3]
    return [1.3, 0.55, 0.55, 1.3]


def _name(operator: OperatorBalance) -> str:
    label = operator.label if len(operator.label) <= 80 else f"{operator.label[:79]}…"
    return label if operator.measured is BalanceMethod.RECORDS else f"{label} (bytes of files: {operator.measured})"


def _draw_operator(operator: OperatorBalance, rows: Sequence[Axes]) -> None:
    now, predicted = operator.now, operator.predicted
    assert now is not None
    _draw_bars(rows[0], now, "now", _NOW)
    if predicted is None:
        _draw_cells(rows[1], now, [(now, _NOW)])
        rows[1].set_xlabel("key group", fontsize=8)
        return
    if len(rows) == 3:
        _draw_cells(rows[1], now, [(now, _NOW), (predicted, _PREDICTED)])
    else:
        _draw_cells(rows[1], now, [(now, _NOW)])
        _draw_cells(rows[2], predicted, [(predicted, _PREDICTED)], below=True)
    _draw_bars(rows[-1], predicted, "predicted", _PREDICTED)
    rows[-2].set_xlabel("key group", fontsize=8)


def _draw_bars(axes: Axes, each: StateDistribution, name: str, colour: str) -> None:
    """Draw the bytes of each subtask as a bar, which spans its key groups."""
    sizes = np.array([subtask.bytes for subtask in each.subtasks], np.float64)
    largest, mean = int(sizes.argmax()), float(sizes.mean())
    _draw_subtasks(axes, each, np.zeros(len(sizes)), sizes, colour)
    axes.axhline(mean, color=_MEAN, linewidth=1, linestyle="--")
    axes.set_xlim(0, each.max_parallelism)
    axes.set_ylim(0, max(float(sizes.max()), 1.0) * 1.12)
    axes.yaxis.set_major_formatter(lambda value, _: _format_bytes(value))
    axes.yaxis.set_major_locator(_locate_bytes(float(sizes.max())))
    axes.tick_params(labelsize=8, labelbottom=False)
    axes.spines[["top", "right"]].set_visible(False)
    lines = [
        f"{name}: parallelism {each.parallelism} of {each.max_parallelism}",
        f"largest subtask {largest} with {_format_bytes(sizes[largest])}, {each.imbalance:.2f} times the mean (dashed)",
    ]
    if each.idle:
        lines.append(f"{len(each.idle)} without state")
    axes.set_title("; ".join(lines), fontsize=9, loc="left", color=_SHADES[colour][0])


def _draw_subtasks(
    axes: Axes, each: StateDistribution, low: npt.NDArray[np.float64], high: npt.NDArray[np.float64], colour: str
) -> None:
    """Draw a rectangle for each subtask, which spans its key groups, in alternating shades."""
    from matplotlib.collections import PolyCollection

    starts = np.array([subtask.key_groups[0] for subtask in each.subtasks], np.float64)
    ends = np.array([subtask.key_groups[1] + 1 for subtask in each.subtasks], np.float64)
    corners = np.stack([starts, low, starts, high, ends, high, ends, low], 1).reshape(-1, 4, 2)
    shades = [_SHADES[colour][index % 2] for index in range(len(starts))]
    axes.add_collection(PolyCollection([*corners], facecolors=shades, linewidths=0))


def _draw_cells(
    axes: Axes, each: StateDistribution, edges: Sequence[tuple[StateDistribution, str]], *, below: bool = False
) -> None:
    """Draw key groups as cells, and the subtasks of distributions as bands above and below the cells.

    Args:
        axes: axes of the row.
        each: distribution whose key groups are drawn.
        edges: (distribution, colour) of one or two bands; the first is above the cells, the second below.
        below: draw the only band below the cells.
    """
    image, skewed = _draw_loads(axes, each)
    # The cells are drawn from 0 to 1; bands of subtasks are above and below that.
    axes.set_ylim(-0.45 if below or len(edges) > 1 else 0, 1.45 if not below else 1)
    bands = [(-0.4, -0.08)] if below else [(1.08, 1.4), (-0.4, -0.08)]
    for (distribution, colour), (low, high) in zip(edges, bands, strict=False):
        count = len(distribution.subtasks)
        _draw_subtasks(axes, distribution, np.full(count, low), np.full(count, high), colour)
        if count <= _MOST_BORDERS:
            borders = [subtask.key_groups[0] for subtask in distribution.subtasks[1:]]
            axes.vlines(borders, min(low, 0), max(high, 1), colors=colour, linewidths=0.8)
    axes.set_xlim(0, each.max_parallelism)
    axes.set_yticks([])
    axes.tick_params(labelsize=8)
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, fraction=0.04, aspect=5)
    bar.ax.yaxis.set_major_formatter(lambda value, _: _format_bytes(value))
    bar.ax.tick_params(labelsize=7, which="both")
    bar.ax.minorticks_off()
    low, high = image.get_clim()
    bar.set_ticks([low, high] if high > low else [high])
    bar.set_label("bytes, log" if skewed else "bytes", fontsize=7)


def _draw_loads(axes: Axes, each: StateDistribution) -> tuple[AxesImage, bool]:
    """Draw the cells; return them, and whether the scale of their colours is logarithmic."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize

    loads = np.array(each.loads.bytes, np.float64)
    # A cell of several key groups shows the largest, so that a hot key group is not averaged away.
    width = -(-len(loads) // MOST_CELLS)
    cells = np.zeros(-(-len(loads) // width) * width)
    cells[: len(loads)] = loads
    cells = cells.reshape(-1, width).max(1)
    filled = cells[cells > 0]
    high = float(filled.max()) if len(filled) else 1.0
    low = float(filled.min()) if len(filled) else 0.0
    skewed = bool(len(filled)) and high > 8 * float(np.median(filled))
    norm = LogNorm(max(low, high / 1e6), high) if skewed else Normalize(0, high)
    image = axes.imshow(
        np.ma.masked_equal(cells, 0)[np.newaxis, :],
        aspect="auto",
        interpolation="nearest",
        cmap=colormaps["viridis_r"].with_extremes(bad=_EMPTY),
        norm=norm,
        extent=(0, float(len(cells) * width), 0, 1),
    )
    return image, skewed


def _locate_bytes(largest: float) -> MultipleLocator:
    """Make a locator of ticks at round numbers of bytes, KiB and so on, as suits the largest value."""
    from matplotlib.ticker import MultipleLocator

    unit = 1024.0 ** _find_unit(largest)
    wanted = max(largest / unit, 1e-9) / 3
    power = 10.0 ** np.floor(np.log10(wanted))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted)
    return MultipleLocator(max(step * unit, 1.0))


def _find_unit(size: float) -> int:
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return unit


def _format_bytes(size: float) -> str:
    unit = _find_unit(size)
    return f"{size / 1024**unit:.{0 if unit == 0 or size >= 100 * 1024**unit else 1}f} {_UNITS[unit]}"


@contextmanager
def _drawing() -> Iterator[None]:
    """Set the style of all charts in the block. Matplotlib does not warn of characters that the font lacks."""
    from matplotlib import rc_context

    # Do not parse `$` in names of the snapshot as formulas, and keep text as text in SVG.
    with rc_context({"text.parse_math": False, "svg.fonttype": "none", "font.size": 9}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        yield
