"""Distribution of keyed state over key groups and subtasks, as measured by `measure_balance`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum

from state_pipelines.snapshot.representation import escape_markdown


class BalanceMethod(StrEnum):
    """Method by which the state of an operator was measured."""

    RECORDS = "records"
    """All records were read: bytes are those of keys and values."""
    OFFSETS = "offsets"
    """Nothing but headers was read: bytes are those of the file, compressed where it is, and exact."""
    ESTIMATE = "estimate"
    """As `OFFSETS`, with estimates for files that do not record where key groups begin."""
    NONE = ""
    """Nothing was measured."""


@dataclass(frozen=True)
class KeyGroupLoads:
    """Entries and bytes of each key group, by number of the key group.

    Attributes:
        bytes: of all keyed state.
        records: None when they were not counted.
        keys: distinct keys; None when they were not counted.
    """

    bytes: list[int]
    records: list[int] | None = None
    keys: list[int] | None = None


@dataclass(frozen=True)
class SubtaskLoad:
    """Entries and bytes of one subtask.

    Attributes:
        subtask: its index.
        key_groups: [first, last].
        bytes: of all keyed state.
        records: None when they were not counted.
        keys: distinct keys; None when they were not counted.
    """

    subtask: int
    key_groups: list[int]
    bytes: int
    records: int | None
    keys: int | None


@dataclass(frozen=True)
class Distribution:
    """State over the subtasks of an operator.

    Attributes:
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        subtasks: one per subtask.
        imbalance: bytes of the largest subtask by the mean; 1 is even, and what an operator without state has.
        idle: indices of subtasks that hold nothing.
        loads: of the key groups.
    """

    parallelism: int
    max_parallelism: int
    subtasks: list[SubtaskLoad]
    imbalance: float
    idle: list[int]
    loads: KeyGroupLoads

    @property
    def bytes(self) -> int:
        """Of all subtasks."""
        return sum(self.loads.bytes)


@dataclass(frozen=True)
class StateSizes:
    """One state over all key groups.

    Attributes:
        bytes: 0 where only the bytes of all states together are known.
        records: None when they were not counted.
        keys: distinct keys; None when they were not counted.
    """

    name: str
    bytes: int
    records: int | None
    keys: int | None


@dataclass(frozen=True)
class HotKeyGroup:
    """A key group that holds much.

    Attributes:
        subtask: that has it now.
        share: of the bytes of the operator, 0 to 1.
    """

    key_group: int
    subtask: int
    bytes: int
    records: int | None
    keys: int | None
    share: float


@dataclass(frozen=True)
class HotKeyLoad:
    """A key that has much.

    Attributes:
        key: as text; `0x` and hexadecimal digits when it cannot be decoded.
        subtask: that has it now.
        records: of all states.
        bytes: of all states.
        share: of the bytes of the subtask, 0 to 1.
    """

    key: str
    key_group: int
    subtask: int
    records: int
    bytes: int
    share: float


@dataclass(frozen=True)
class OperatorBalance:
    """One operator with keyed state.

    Attributes:
        id: 32 hexadecimal digits.
        uid: when it is known.
        measured: by which method.
        states: of the operator, when records were counted.
        now: None when nothing could be measured.
        predicted: with the parallelism and max parallelism that were asked for; None when there is no prediction.
        unpredicted: why there is none; empty when there is one, or none was asked for.
        hottest_key_groups: those with the most bytes, descending.
        most_bytes: the keys with the most bytes, descending; none when keys were not counted.
        most_records: the keys with the most records, descending.
        advice: anomalies and remedies.
        notes: state that the numbers leave out.
        error: why the state could not be read; empty when it could.
    """

    id: str
    uid: str | None
    parallelism: int
    max_parallelism: int
    measured: BalanceMethod = BalanceMethod.NONE
    states: list[StateSizes] = field(default_factory=list)
    now: Distribution | None = None
    predicted: Distribution | None = None
    unpredicted: str = ""
    hottest_key_groups: list[HotKeyGroup] = field(default_factory=list)
    most_bytes: list[HotKeyLoad] = field(default_factory=list)
    most_records: list[HotKeyLoad] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def label(self) -> str:
        """The uid, or the id when the uid is not known."""
        return self.uid or self.id


@dataclass(frozen=True)
class MaxParallelismConflict:
    """Operators whose max parallelism does not go together, or not with their parallelism.

    Attributes:
        parallelism: of the operators.
        max_parallelisms: by label of the operator.
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
        path: of the snapshot.
        parallelism: that was asked for.
        max_parallelism: that was asked for.
        operators: those with keyed state.
        conflicts: of max parallelism.
    """

    path: str
    parallelism: int | None
    max_parallelism: int | None
    operators: list[OperatorBalance]
    conflicts: list[MaxParallelismConflict]

    @property
    def imbalance(self) -> float:
        """The highest of all operators, see `Distribution.imbalance`."""
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
