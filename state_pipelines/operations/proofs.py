"""Results of a proof: its checks, the numbers of records that they compared, and examples of records that differ.

* `ProofReport`, `ProofCheck`, `RecordCounts`, `require_proof`: the report.
* `find_differing_records`: records of keyed state that only one of two snapshots has, for the report of a failed proof.
  Both snapshots are read up to three times: digests of buckets of keys show where differences are, hashes of the
  records of those buckets show which records differ, and the records of ten keys are decoded. Memory is bounded by
  `MOST_HASHES`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.compiled import njit
from state_pipelines.errors import ProofError, StateError, Where
from state_pipelines.keyed.digests import hash_bytes, list_spans
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.state_table import TTL_COLUMN, KeyedTable, TableOptions
from state_pipelines.operations.local_processes import count_kernel_threads
from state_pipelines.operations.state_rows import to_rows
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.representation import escape_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.operations.local_processes import Runner

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
RECOMPUTED = "columns_recomputed"
TEMPLATE = "equals_template"

DESCRIPTIONS = {
    ROW_COUNTS: "every key group has as many records as before",
    KEY_SETS: "the keys are the same as before, none lost and none duplicated",
    KEY_HASHES: "every key is in the key group that its hash gives",
    KEYS_UNITED: "each new key occurs once: there are as many keys as different new keys of all old entries",
    ROUND_TRIP: "upgrade, then downgrade, gives the original values",
    READ_BACK: "the records read back are those that the migration computed",
    OWN: "the rows of the new state meet the expectations of the migration",
    SUITES: "the rows of the states meet the suites of the job",
    SOURCE_WHOLE: "every record that the old handles hold was read",
    RECOMPUTED: "the columns of a changed SQL query are those that a recomputation from the old rows gives",
    TEMPLATE: "operators, states and serializers are those that Flink gives the plan",
    STATES_AGREE: "states that an operator of Flink keeps together agree with each other",
}
"""Description of each check of a migration's proof."""

EXAMPLES = 10
"""Largest number of records that a failed check shows."""

BEFORE, AFTER, EXPECTED, RETURNED = "before", "after", "expected", "comes back as"
_SIDES = (BEFORE, AFTER, EXPECTED, RETURNED)
_ABSENT = "(no record)"
# Characters of the longest text in a cell of a table; longer texts are cropped.
_CELL = 160


@dataclass(frozen=True)
class RecordCounts:
    """Numbers of records that a check compared.

    Attributes:
        compared: records of the result.
        differing: records of the result whose key is expected, but with another value.
        missing: expected records that the result does not have.
        unexpected: records of the result that are not expected, duplicates included.
        complete: False if only some of the differences were counted, so that there may be more.
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
        """Return the numbers by name, for metadata that Dagster plots."""
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
        key: columns of the key by name: `state_key`, `map_key`, `list_index`, `key_group`, …
        values: value by side (`before`, `after`, `expected`, `comes back as`), each as `to_plain` gives it.
        absent: sides that have no such record.
        note: more about the record, such as that a key occurs twice; may be empty.
        compared: the two sides that differ, for a display that leaves out equal fields.
        fields: names of the top-level fields that were compared; empty if all were.
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
        """Return short texts by column, for a table; of structs only the fields that differ are shown."""
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
    """Yield the paths of the innermost fields in which two structs differ; nothing if one value is no struct."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return
    for name in dict.fromkeys((*one, *other)):
        first, second = one.get(name, _ABSENT), other.get(name, _ABSENT)
        if first != second:
            inner = [(name, *path) for path in _list_differing(first, second)]
            yield from inner or [(name,)]


def _choose(value: Any, paths: Sequence[tuple[str, ...]]) -> Any:
    """Reduce a struct to the fields at some paths; return the whole value if it has none of them."""
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
    """Convert a value for `json.dumps`: bytes to hexadecimal text, dates and times to ISO 8601, decimals to text."""
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
    """A property that a proof judged, with its numbers.

    Attributes:
        name: such as `round_trip`.
        ok: whether it holds.
        description: the property in words.
        expected: what was expected.
        observed: what was found.
        counts: numbers of compared and differing records; None for a check that compares no records.
        rows: at most `EXAMPLES` records that differ.
        blocking: False if a failure of the check is only a warning.
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
        """Return the check as an object for `json.dumps`."""
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

    A check that has nothing to compare is left out, and `notes` says so. Examples are the check of keys for operator
    state, and the round trip for a migration without a downgrade.

    Attributes:
        operator: label of the operator; several, separated by commas.
        state: name of the new state; several, separated by commas.
        rows: number of records after the change.
        key_groups: number of key groups that have records after the change; 0 for operator state.
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
        """Whether every blocking check holds; checks that only warn may fail."""
        return all(check.ok or not check.blocking for check in self.checks)

    @property
    def failed(self) -> tuple[ProofCheck, ...]:
        """The checks that do not hold, warnings included."""
        return tuple(check for check in self.checks if not check.ok)

    @property
    def numbers(self) -> dict[str, int | float]:
        """Numbers for metadata that Dagster plots: counts of the check with most differences, seconds and bytes."""
        counts = [check.counts for check in self.checks if check.counts is not None]
        worst = max(counts, key=lambda each: each.failed, default=RecordCounts(self.rows))
        return {**replace(worst, compared=self.rows).to_numbers(), "seconds": self.seconds, "bytes": self.bytes}

    def to_json(self) -> dict[str, Any]:
        """Return the report as an object for `json.dumps`."""
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
        """Return the report as Markdown: a table of the checks, and one of examples for each check that fails."""
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
    """Return columns and rows of a table of differing records; the first column names the fields that differ."""
    cells = []
    for row in rows:
        fields = row.name_differing_fields()
        cells.append(({"differs": fields} if fields else {}) | row.to_cells())
    known = ("differs", "state", "key", *_SIDES, "note")
    columns = tuple(name for name in known if any(name in each for each in cells))
    return columns, [tuple(each.get(name, "") for name in columns) for each in cells]


def choose_examples(groups: Iterable[Sequence[DifferingRecord]]) -> tuple[DifferingRecord, ...]:
    """Choose at most `EXAMPLES` records, from every group in turn."""
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
    """Combine reports into one: a check holds if it holds in every report that has it."""
    if len(reports) == 1:
        return reports[0]
    names = dict.fromkeys(check.name for report in reports for check in report.checks)
    checks = []
    for name in names:
        found = [(report, check) for report in reports for check in report.checks if check.name == name]
        counts = [check.counts for _, check in found if check.counts is not None]
        # The combined check takes its blocking flag and its examples from the failed checks.
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
    """Raise an error if a blocking check of a proof failed, to stop the change.

    Args:
        report: the proof.
        differences: differences in words, for the error.
        hint: hint of the error.

    Raises:
        ProofError: a blocking check does not hold; the message names the checks and shows one record.
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


Hashes = npt.NDArray[np.uint64]

MOST_HASHES = 1 << 22
"""Largest number of records of a side whose hashes are compared."""

_BUCKET_BITS = 12
_SHIFT = np.uint64(64 - _BUCKET_BITS)
_KEY_COLUMNS = ("timestamp", "state_key", "state_namespace", "map_key", "key_bytes")


@dataclass(frozen=True)
class RecordScan:
    """Task that scans the records of one state in a file; can be sent to other processes.

    The first bits of the hash of a key are the number of its bucket. Without `buckets` and `keys`, the scan only sums
    up the hashes of the records of each bucket.

    Attributes:
        file: the file.
        state: name of the state.
        buckets: buckets for whose records the scan returns hashes.
        keys: hashes of the keys whose records the scan decodes; then `buckets` is ignored.
    """

    file: KeyedFile
    state: str
    buckets: npt.NDArray[np.int64] | None = None
    keys: Hashes | None = None

    @property
    def threads(self) -> int:
        """Number of these tasks that can run concurrently in threads; see `local_processes.Work`."""
        return count_kernel_threads([self.file])

    def run(self) -> ScanResult:
        """Scan the records of the state in the file.

        Raises:
            StateError: the file cannot be read.
        """
        result = ScanResult()
        for state_id, info in enumerate(self.file.header.states):
            if info.name != self.state:
                continue
            for _, records in self.file.scan([state_id]):
                base, *spans = list_spans(records, is_map=info.state_type == StateKind.MAP)
                keys, contents = _hash_records(base, *spans)
                if self.keys is not None:
                    rows = np.flatnonzero(np.isin(keys, self.keys))
                    decoded = decode_records(self, state_id, records.select(rows))
                    result.records += zip(keys[rows].tolist(), decoded, strict=True)
                elif self.buckets is not None:
                    rows = np.flatnonzero(np.isin(keys >> _SHIFT, self.buckets.astype(np.uint64)))
                    result.hashes.append((keys[rows], contents[rows]))
                else:
                    _sum_buckets(result.sums, keys, contents)
        return result


@dataclass
class ScanResult:
    """Result of a `RecordScan`, which fills one of the attributes.

    Attributes:
        sums: u64[buckets, 2], for each bucket the number of its records and the sum of their hashes.
        hashes: for each batch, the hashes of the keys and those of the whole records.
        records: for each decoded record, the hash of its key and (key, value).
    """

    sums: Hashes = field(default_factory=lambda: np.zeros((1 << _BUCKET_BITS, 2), np.uint64))
    hashes: list[tuple[Hashes, Hashes]] = field(default_factory=list)
    records: list[tuple[int, tuple[dict[str, Any], Any]]] = field(default_factory=list)


def find_differing_records(
    state: str,
    before: Sequence[KeyedFile],
    after: Sequence[KeyedFile],
    run: Runner,
    *,
    may_lack: bool = False,
) -> tuple[RecordCounts, tuple[DifferingRecord, ...]]:
    """Compare the records of a state in two sets of files; the file and the key group of a record do not matter.

    Args:
        state: name of the state.
        before: files with the expected records.
        after: files of the result.
        run: runs scans and gives their results in order.
        may_lack: expected records that the result does not have are no differences.

    Returns:
        The numbers of records, and examples.

    Raises:
        StateError: a file cannot be read.
    """
    what = "the differing records cannot be read"
    sides = [[RecordScan(each, state) for each in files] for files in (before, after)]
    count = len(sides[0])

    def scan(**wanted: object) -> tuple[list[ScanResult], list[ScanResult]]:
        tasks = [_replace(each, **wanted) for each in (*sides[0], *sides[1])]
        found = list(run(tasks, what))
        return found[:count], found[count:]

    old, new = (_add_sums(each) for each in scan())
    different = np.flatnonzero((old != new).any(axis=1))
    sizes = np.cumsum(np.maximum(old, new)[different, 0])
    fitting = different[: max(1, int(np.searchsorted(sizes, np.uint64(MOST_HASHES), side="right")))]
    compared, complete = int(new[:, 0].sum()), len(fitting) == len(different)
    if not len(different):
        return RecordCounts(compared), ()
    missing, unexpected = _compare(*(_join_hashes(each) for each in scan(buckets=fitting)))
    both = {key: min(missing[key], unexpected[key]) for key in missing.keys() & unexpected.keys()}
    differing = sum(both.values())
    lost = 0 if may_lack else sum(missing.values()) - differing
    chosen = _choose_keys(both, {} if may_lack else missing, unexpected)
    found = scan(keys=np.array(chosen, np.uint64)) if chosen else ([], [])
    one, other = ([record for each in side for record in each.records] for side in found)
    counts = RecordCounts(compared, differing, lost, sum(unexpected.values()) - differing, complete)
    return counts, tuple(_make_rows(state, chosen, one, other))


def _replace(scan: RecordScan, **wanted: Any) -> RecordScan:
    return RecordScan(scan.file, scan.state, **wanted)


def _add_sums(results: Sequence[ScanResult]) -> Hashes:
    return sum((each.sums for each in results), ScanResult().sums)


def _join_hashes(results: Sequence[ScanResult]) -> tuple[Hashes, Hashes]:
    pairs = [pair for each in results for pair in each.hashes]
    none = np.zeros(0, np.uint64)
    return np.concatenate([none, *(one for one, _ in pairs)]), np.concatenate([none, *(other for _, other in pairs)])


def _compare(before: tuple[Hashes, Hashes], after: tuple[Hashes, Hashes]) -> tuple[dict[int, int], dict[int, int]]:
    """Count by hash of the key the records that `before` has more often than `after` (missing), and the reverse.

    Each side is (hashes of the keys, hashes of the whole records). Returns (missing, unexpected).
    """
    keys, contents = (np.concatenate([one, other]) for one, other in zip(before, after, strict=True))
    signs = np.repeat(np.array([-1, 1], np.int64), [len(before[0]), len(after[0])])
    order = np.lexsort((contents, keys))
    keys, contents, signs = keys[order], contents[order], signs[order]
    starts = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]) | (contents[1:] != contents[:-1]))[: len(keys)])
    sums = np.add.reduceat(signs, starts) if len(starts) else signs
    missing: dict[int, int] = {}
    unexpected: dict[int, int] = {}
    for row in np.flatnonzero(sums).tolist():
        key, number = int(keys[starts[row]]), int(sums[row])
        side = unexpected if number > 0 else missing
        side[key] = side.get(key, 0) + abs(number)
    return missing, unexpected


def _choose_keys(*found: Mapping[int, int]) -> list[int]:
    """Choose at most `EXAMPLES` hashes of keys, from each of the given mappings in turn."""
    chosen: dict[int, None] = {}
    kinds = [iter(sorted(each)) for each in found]
    while kinds and len(chosen) < EXAMPLES:
        for kind in list(kinds):
            key = next(kind, None)
            if key is None:
                kinds.remove(kind)
            elif len(chosen) < EXAMPLES:
                chosen[key] = None
    return list(chosen)


def _make_rows(
    state: str,
    keys: Sequence[int],
    before: Sequence[tuple[int, tuple[dict[str, Any], Any]]],
    after: Sequence[tuple[int, tuple[dict[str, Any], Any]]],
) -> Iterator[DifferingRecord]:
    for wanted in keys:
        one, other = ([record for key, record in side if key == wanted] for side in (before, after))
        sides = {BEFORE: one, AFTER: other, EXPECTED: one}
        values = {name: [value for _, value in found] for name, found in sides.items() if found}
        several = [
            f"{len(found)} records {name}" for name, found in sides.items() if len(found) > 1 and name != EXPECTED
        ]
        key = next((key for key, _ in (*one, *other)), {})
        yield DifferingRecord(
            state,
            key,
            {name: found[0] if len(found) == 1 else found for name, found in values.items()},
            tuple(name for name, found in sides.items() if not found),
            f"the key occurs several times: {', '.join(several)}" if several else "",
        )


def decode_records(scan: RecordScan, state_id: int, records: KeyedRecords) -> list[tuple[dict[str, Any], Any]]:
    """Return (key, value) of each record, as objects for `json.dumps`; if they cannot be decoded, their bytes."""
    if not len(records):
        return []
    header, context, options = scan.file.header, scan.file.context, TableOptions(flatten=False)
    try:
        layout = derive_keyed_layout(
            header.states[state_id], header.key_serializer, context.max_parallelism, context.layouts
        )
        rows = list(to_rows(KeyedTable(layout, options).make_batch(records, 0)))
    except StateError as error:
        # A report of differences must not fail if a record cannot be decoded: show its bytes instead.
        rows = list(to_rows(KeyedTable(None, options, error.what).make_batch(records, 0)))
    return [_split_row(row) for row in rows]


def _split_row(row: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    key = {name: row[name] for name in _KEY_COLUMNS if row.get(name) is not None}
    rest = {name: value for name, value in row.items() if name not in (*_KEY_COLUMNS, "key_group", "subtask")}
    if rest.get("reason") is None:
        rest.pop("reason", None)
        rest.pop("value_bytes", None)
    if TTL_COLUMN not in rest and len(rest) == 1:
        return key, next(iter(rest.values()))
    return key, rest or "timer"


@njit(cache=True, nogil=True)
def _hash_records(base, key_starts, key_ends, value_starts, value_ends):  # type: ignore[no-untyped-def]
    keys = np.empty(len(key_starts), np.uint64)
    contents = np.empty(len(key_starts), np.uint64)
    for row in range(len(key_starts)):
        keys[row] = hash_bytes(np.uint64(0), base + key_starts[row], base + key_ends[row])
        contents[row] = hash_bytes(keys[row], base + value_starts[row], base + value_ends[row])
    return keys, contents


@njit(cache=True, nogil=True)
def _sum_buckets(sums, keys, contents):  # type: ignore[no-untyped-def]
    for row in range(len(keys)):
        bucket = keys[row] >> _SHIFT
        sums[bucket, 0] += np.uint64(1)
        sums[bucket, 1] += contents[row]


@dataclass(frozen=True)
class StateProof:
    """Comparison of one state before and after a change.

    Attributes:
        operator: label of the operator.
        state: name.
        keyed: whether it is keyed state, not operator state.
        before: digest of the expected entries.
        after: digest of the entries of the result.
        misplaced: entries in key groups that are not those of their subtask; of broadcast state, subtasks without a
            copy.
        misfiled: entries that are not in the key group that the hash of their key gives; None if that was not checked.
        reformed: whether the kind or a serializer of the state differs from before.
    """

    operator: str
    state: str
    keyed: bool
    before: RecordDigest
    after: RecordDigest
    misplaced: int = 0
    misfiled: int | None = None
    reformed: bool = False

    @property
    def failures(self) -> Iterator[str]:
        """Descriptions of the differences, one sentence for each."""
        name = f"{self.operator}, state {self.state}"
        if self.before != self.after:
            yield (
                f"{name}: {self.after.records:,} entries of {self.after.bytes:,} bytes where there must be "
                f"{self.before.records:,} of {self.before.bytes:,}"
                if (self.before.records, self.before.bytes) != (self.after.records, self.after.bytes)
                else f"{name}: entries with other bytes"
            )
        if self.misplaced:
            what = "entries in key groups of other subtasks" if self.keyed else "subtasks without it"
            yield f"{name}: {self.misplaced:,} {what}"
        if self.reformed:
            yield f"{name}: another kind or other serializers"
        if self.misfiled:
            yield f"{name}: {self.misfiled:,} entries in another key group than their hash gives"


def make_state_check(
    name: str,
    description: str,
    states: Sequence[StateProof],
    failed: Sequence[StateProof],
    counts: RecordCounts,
    rows: Sequence[Sequence[DifferingRecord]],
) -> ProofCheck:
    """Make the check of a proof from the comparisons of its states.

    Args:
        name: name of the check.
        description: the property that it judges, in words.
        states: comparisons of all states.
        failed: those of `states` that fail this check.
        counts: numbers of records, added up over all states.
        rows: for each failed state, examples of records that differ.
    """
    observed = f"{counts.compared:,} entries of {len(states)} state{'' if len(states) == 1 else 's'}"
    if failed:
        named = ", ".join(f"{row.operator} / {row.state}" for row in failed)
        observed = f"{len(failed)} of {len(states)} states differ: {named}; {counts}"
    elif counts.failed:
        counts = RecordCounts(counts.compared)
    shown = choose_examples(rows) if failed else ()
    return ProofCheck(name, not failed, description, "no such entry", observed, counts, shown)
