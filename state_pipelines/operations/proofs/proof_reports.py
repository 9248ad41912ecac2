"""Results of a proof: its checks, the numbers of records behind them, and examples of records that differ."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import ProofError, Where
from state_pipelines.snapshot.representation import escape_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ROW_COUNTS = "row_counts_per_key_group"
KEY_SETS = "key_sets"
KEY_HASHES = "key_groups_match_key_hash"
KEYS_UNITED = "equal_keys_united"
ROUND_TRIP = "round_trip"
READ_BACK = "written_reads_back"
OWN = "own_expectations"
SUITES = "expectations_hold"
SOURCE_WHOLE = "source_read_whole"
STATES_AGREE = "states_agree"

DESCRIPTIONS = {
    ROW_COUNTS: "every key group has as many records as before",
    KEY_SETS: "the keys are the same as before, none lost and none duplicated",
    KEY_HASHES: "every key is in the key group that its hash gives",
    KEYS_UNITED: "each new key is there once: as many keys as the new keys of all old entries have different bytes",
    ROUND_TRIP: "upgrade, then downgrade, gives the original values",
    READ_BACK: "the records read back are those that the migration computed",
    OWN: "the rows of the new state meet the expectations of the migration",
    SUITES: "the rows of the states meet the suites of the job",
    SOURCE_WHOLE: "every record that the old handles hold was read",
    STATES_AGREE: "states that an operator of Flink keeps together agree with each other",
}
"""Description of each check of a migration's proof."""

EXAMPLES = 10
"""Largest number of records that a failed check shows."""

BEFORE, AFTER, EXPECTED, RETURNED = "before", "after", "expected", "comes back as"
_SIDES = (BEFORE, AFTER, EXPECTED, RETURNED)
_ABSENT = "(no record)"
_CELL = 160
# A pipe inside of a Markdown table.


@dataclass(frozen=True)
class RecordCounts:
    """Numbers of records that a check compared.

    Attributes:
        compared: records that are there now.
        differing: keys with the expected number of records, but other values.
        missing: expected records that are not there.
        unexpected: records that are there and not expected, duplicates included.
        complete: False where only a part of the differences was counted, so that there may be more.
    """

    compared: int = 0
    differing: int = 0
    missing: int = 0
    unexpected: int = 0
    complete: bool = True

    def __add__(self, other: RecordCounts) -> RecordCounts:
        return RecordCounts(
            self.compared + other.compared,
            self.differing + other.differing,
            self.missing + other.missing,
            self.unexpected + other.unexpected,
            self.complete and other.complete,
        )

    @property
    def failed(self) -> int:
        """Number of differences of any kind."""
        return self.differing + self.missing + self.unexpected

    def __str__(self) -> str:
        least = "" if self.complete else "at least "
        return (
            f"{self.compared:,} records compared: {least}{self.differing:,} differ, {self.missing:,} missing, "
            f"{self.unexpected:,} unexpected"
        )

    def to_numbers(self) -> dict[str, int]:
        """The numbers by name, for metadata that is plotted."""
        return {
            "rows compared": self.compared,
            "rows differing": self.differing,
            "rows missing": self.missing,
            "rows unexpected": self.unexpected,
        }


@dataclass(frozen=True)
class DifferingRecord:
    """A record that is not as expected.

    Attributes:
        state: name of the state.
        key: parts of the key by name: `state_key`, `map_key`, `list_index`, `key_group`, …
        values: value by side: `before`, `after`, `expected`, `comes back as`; a value that JSON has.
        absent: sides without such a record.
        note: more about the record, such as that a key occurs twice; may be empty.
        compared: the two sides that differ, for a display that leaves out equal fields.
        fields: the fields that were compared, where these are not all.
    """

    state: str
    key: Mapping[str, Any]
    values: Mapping[str, Any]
    absent: tuple[str, ...] = ()
    note: str = ""
    compared: tuple[str, str] = field(default=(EXPECTED, AFTER), repr=False)
    fields: frozenset[str] = field(default=frozenset(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """The record as one flat object; sides without a record are listed in `absent`."""
        content: dict[str, Any] = {"state": self.state, "key": dict(self.key)}
        content |= {side: self.values.get(side) for side in _SIDES if side in self.values or side in self.absent}
        content |= {"absent": list(self.absent)} if self.absent else {}
        return content | ({"note": self.note} if self.note else {})

    def to_cells(self) -> dict[str, str]:
        """Short texts by column; of structs only the fields that differ."""
        cells = {"state": self.state, "key": self._show_key()}
        paths = self._find_differing_fields()
        for side in _SIDES:
            if side in self.absent:
                cells[side] = _ABSENT
            elif side in self.values:
                cells[side] = _show(_choose(self.values[side], paths))
        return cells | ({"note": self.note} if self.note else {})

    def _show_key(self) -> str:
        if self.key.keys() - {"key_group"} == {"state_key"}:
            return _show(self.key["state_key"])
        return _crop(", ".join(f"{name} {_show(value)}" for name, value in self.key.items()))

    def name_differing_fields(self) -> str:
        """Return paths of the fields that differ, such as `address.zip`; empty if the values are no structs."""
        return _crop(", ".join(".".join(path) for path in self._find_differing_fields()))

    def _find_differing_fields(self) -> list[tuple[str, ...]]:
        found = list(_list_differing(*(self.values.get(side) for side in self.compared)))
        return [path for path in found if path[0] in self.fields] or found


def _list_differing(one: Any, other: Any) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the innermost fields of structs that differ."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return
    for name in dict.fromkeys((*one, *other)):
        first, second = one.get(name, _ABSENT), other.get(name, _ABSENT)
        if first != second:
            inner = [(name, *path) for path in _list_differing(first, second)]
            yield from inner or [(name,)]


def _choose(value: Any, paths: Sequence[tuple[str, ...]]) -> Any:
    """Return the fields at some paths; the whole value where it has none of them."""
    if not isinstance(value, dict):
        return value
    chosen = {}
    for name, each in value.items():
        if inner := [path[1:] for path in paths if path[:1] == (name,)]:
            chosen[name] = each if () in inner else _choose(each, inner)
    return chosen or value


def _show(value: Any) -> str:
    return _crop(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _crop(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def to_plain(value: Any) -> Any:
    """A value as JSON has it: bytes in hexadecimal, dates in ISO 8601, exact numbers as text."""
    match value:
        case dict():
            return {_plain_key(key): to_plain(each) for key, each in value.items()}
        case list() | tuple() if hasattr(value, "asDict"):
            return to_plain(value.asDict())
        case list() | tuple():
            return [to_plain(each) for each in value]
        case bytes() | bytearray():
            return value.hex()
        case date() | datetime() | time():
            return value.isoformat()
        case Decimal() | timedelta():
            return str(value)
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case _ if hasattr(value, "dtype"):
            return to_plain(value.item())
        case _:
            return value


def _plain_key(key: Any) -> str:
    plain = to_plain(key)
    return plain if isinstance(plain, str) else str(plain)


@dataclass(frozen=True)
class ProofCheck:
    """One property that was judged.

    Attributes:
        name: such as `round_trip`.
        ok: whether it holds.
        description: the property in words.
        expected: what was expected.
        observed: what was found.
        counts: records that were compared; None of a check that compares none.
        rows: at most `EXAMPLES` records that differ.
        blocking: False of a check that fails with a warning only.
    """

    name: str
    ok: bool
    description: str
    expected: str
    observed: str
    counts: RecordCounts | None = None
    rows: tuple[DifferingRecord, ...] = ()
    blocking: bool = True

    @property
    def result(self) -> str:
        """`passed`, `FAILED` or `warning`."""
        return "passed" if self.ok else "FAILED" if self.blocking else "warning"

    def to_json(self) -> dict[str, Any]:
        """The check as plain values."""
        return {
            "name": self.name,
            "ok": self.ok,
            "blocking": self.blocking,
            "description": self.description,
            "expected": self.expected,
            "observed": self.observed,
            "counts": None
            if self.counts is None
            else {
                "compared": self.counts.compared,
                "differing": self.counts.differing,
                "missing": self.counts.missing,
                "unexpected": self.counts.unexpected,
                "complete": self.counts.complete,
            },
            "rows": [row.to_json() for row in self.rows],
        }


@dataclass(frozen=True)
class ProofReport:
    """All checks of one change.

    A check that has nothing to compare is left out: keys of operator state, the round trip of a migration without a
    downgrade. `notes` says so.

    Attributes:
        operator: label of the operator; several, separated by commas.
        state: name of the new state; several, separated by commas.
        rows: records afterwards.
        key_groups: key groups that have any; 0 of operator state.
        checks: the checks.
        seconds: wall time of the proof.
        bytes: size of the files that were read back, or of the keys and values that were compared.
        notes: what the proof did not judge, and why.
        data_docs: URL of the pages of Great Expectations; empty where none are kept.
    """

    operator: str
    state: str
    rows: int
    key_groups: int
    checks: tuple[ProofCheck, ...]
    seconds: float = 0.0
    bytes: int = 0
    notes: tuple[str, ...] = ()
    data_docs: str = ""

    @property
    def ok(self) -> bool:
        """Whether every check holds that is not a warning only."""
        return all(check.ok or not check.blocking for check in self.checks)

    @property
    def failed(self) -> tuple[ProofCheck, ...]:
        """The checks that do not hold, warnings included."""
        return tuple(check for check in self.checks if not check.ok)

    @property
    def numbers(self) -> dict[str, int | float]:
        """Numbers for metadata that is plotted: those of the check with most differences, seconds and bytes."""
        counts = [check.counts for check in self.checks if check.counts is not None]
        worst = max(counts, key=lambda each: each.failed, default=RecordCounts(self.rows))
        return {**replace(worst, compared=self.rows).to_numbers(), "seconds": self.seconds, "bytes": self.bytes}

    def to_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "ok": self.ok,
            "operator": self.operator,
            "state": self.state,
            "rows": self.rows,
            "key_groups": self.key_groups,
            "seconds": self.seconds,
            "bytes": self.bytes,
            "checks": [check.to_json() for check in self.checks],
            "notes": list(self.notes),
            "data_docs": self.data_docs or None,
        }

    def to_markdown(self) -> str:
        """Tables for people."""
        groups = f" in {self.key_groups} key groups" if self.key_groups else ""
        lines = [f"**{escape_markdown(f'{self.operator} / {self.state}')}**: {self.rows:,} records{groups}"]
        if self.checks:
            cells = [
                (each.name, _mark(each), escape_markdown(each.description), escape_markdown(each.observed))
                for each in self.checks
            ]
            lines += ["", *_make_markdown_table(("check", "result", "description", "observed"), cells)]
        for check in self.failed:
            if check.rows:
                columns, rows = arrange_rows(check.rows)
                lines += ["", f"{check.name}, {_count_examples(check)}:", ""]
                lines += _make_markdown_table(columns, (map(escape_markdown, row) for row in rows))
        lines += ["", *(f"- {escape_markdown(note)}" for note in self.notes)] if self.notes else []
        return "\n".join(lines)


def arrange_rows(rows: Sequence[DifferingRecord]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and cells of a table of differing records; the first column names the fields that differ."""
    cells = []
    for row in rows:
        fields = row.name_differing_fields()
        cells.append(({"differs": fields} if fields else {}) | row.to_cells())
    known = ("differs", "state", "key", *_SIDES, "note")
    columns = tuple(name for name in known if any(name in each for each in cells))
    return columns, [tuple(each.get(name, "") for name in columns) for each in cells]


def choose_examples(groups: Iterable[Sequence[DifferingRecord]]) -> tuple[DifferingRecord, ...]:
    """At most `EXAMPLES` records, of every group in turn."""
    turns = zip_longest(*groups)
    return tuple(islice((row for turn in turns for row in turn if row is not None), EXAMPLES))


def _count_examples(check: ProofCheck) -> str:
    total = 0 if check.counts is None else check.counts.failed
    shown = len(check.rows)
    return f"{shown} of {total:,} records" if total > shown else f"{shown} record{'' if shown == 1 else 's'}"


def _mark(check: ProofCheck) -> str:
    return check.result if check.ok else f"**{check.result}**"


def _make_markdown_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def combine_reports(reports: Sequence[ProofReport]) -> ProofReport:
    """One report of several: a check holds when it holds in each."""
    if len(reports) == 1:
        return reports[0]
    names = dict.fromkeys(check.name for report in reports for check in report.checks)
    checks = []
    for name in names:
        found = [(report, check) for report in reports for check in report.checks if check.name == name]
        counts = [check.counts for _, check in found if check.counts is not None]
        # Those that failed first, so that their records are not crowded out.
        failed = [check for _, check in found if not check.ok]
        checks.append(
            replace(
                (failed or [found[0][1]])[0],
                ok=not failed,
                blocking=any(check.blocking for check in failed) if failed else found[0][1].blocking,
                description="; ".join(dict.fromkeys(check.description for _, check in found)),
                expected="; ".join(dict.fromkeys(check.expected for _, check in found)),
                observed="; ".join(f"{report.state}: {check.observed}" for report, check in found),
                counts=sum(counts, RecordCounts()) if counts else None,
                rows=choose_examples(check.rows for check in failed),
            )
        )
    return ProofReport(
        operator=", ".join(dict.fromkeys(report.operator for report in reports)),
        state=", ".join(dict.fromkeys(report.state for report in reports)),
        rows=sum(report.rows for report in reports),
        key_groups=max((report.key_groups for report in reports), default=0),
        checks=tuple(checks),
        seconds=sum(report.seconds for report in reports),
        bytes=sum(report.bytes for report in reports),
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def require_proof(report: ProofReport, *, differences: Sequence[str] = (), hint: str = "") -> None:
    """Stop a change whose proof failed.

    Args:
        report: the proof.
        differences: differences in words, for the error.
        hint: for the error.

    Raises:
        ProofError: a check does not hold; names the checks and shows one record.
    """
    failed = [check for check in report.failed if check.blocking]
    if not failed:
        return
    names = ", ".join(check.name for check in failed)
    first = next((row for check in failed for row in check.rows), None)
    shown = [failed[0].observed] if first is None and not differences else [*differences]
    shown += [] if first is None else [f"such as {_show_record(first)}"]
    state = report.state if len(report.state.split(", ")) == 1 else None
    raise ProofError(
        f"the proof failed ({names}); nothing was published: {'; '.join(shown)}",
        where=Where(operator=report.operator, state=state if first is None else first.state),
        hint=hint,
        report=report,
    )


def _show_record(row: DifferingRecord) -> str:
    cells = {name: text for name, text in row.to_cells().items() if name != "state"}
    return "; ".join(f"{name} {text}" for name, text in cells.items())
