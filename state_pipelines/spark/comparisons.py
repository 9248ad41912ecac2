"""Comparisons of two frames: a small table of what is the same in each key group, which Great Expectations judges.

All columns of one side are digested in one pass over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from state_pipelines.errors import MigrationError
from state_pipelines.keyed.tables import TTL_COLUMN
from state_pipelines.spark.digests import Metric, count_rows, digest_keys, digest_payload, identify, profile
from state_pipelines.spark.expectations import import_expectations, judge_table
from state_pipelines.spark.flows import KEYS, hidden
from state_pipelines.spark.reports import KEY_HASHES, KEY_SETS, READ_BACK, ROUND_TRIP, ROW_COUNTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from great_expectations.expectations.expectation import Expectation

    from state_pipelines.operations.migration.files import RowExpectation
    from state_pipelines.spark.expectations import Judgement

COMPARED = (ROW_COUNTS, KEY_SETS, ROUND_TRIP, READ_BACK)
"""The checks that hold when both sides are equal."""


@dataclass(frozen=True)
class Pair:
    """Two metrics per key group that must be equal: one of each side.

    Attributes:
        check: one of `COMPARED`.
        what: is compared, for people.
        before: of the left side.
        after: of the right side.
    """

    check: str
    what: str
    before: Metric
    after: Metric


@dataclass(frozen=True)
class Comparison:
    """Two frames and what of them must be equal.

    Attributes:
        left: what was, or was meant.
        right: what was written, or what came back.
        identity: columns that tell rows apart on both sides.
        pairs: what is compared.
        hashed: the right side is what was written, with `hashed_key_group`; its records are counted first.
    """

    left: DataFrame
    right: DataFrame
    identity: tuple[str, ...]
    pairs: tuple[Pair, ...]
    hashed: bool = False


@dataclass(frozen=True)
class GroupResult:
    """One comparison in one key group.

    Attributes:
        state: its name.
        key_group: the key group, or a heap of keys where keys have changed their key group.
        values: by check: what was compared, and what it is before and after.
        records: that were written; None where rows of the way back are compared.
        misplaced: records of them that lie in another key group than their hash gives.
        unhashed: records of them whose hash is not known.
    """

    state: str
    key_group: int
    values: dict[str, list[tuple[str, str, str]]]
    records: int | None
    misplaced: int
    unhashed: int


def find_identity(left: DataFrame, right: DataFrame) -> tuple[str, ...]:
    """What tells rows apart on both sides: the bytes of the keys, or the keys where only they are the same."""
    both = set(left.columns) & set(right.columns)
    if hidden("key_bytes") in both:
        names = [hidden("key_bytes")]
    else:
        names = [name for name in map(hidden, (*KEYS, "timestamp")) if name in both]
    return (*names, *(name for name in [hidden("list_index")] if name in both))


def pair_rows() -> tuple[Pair, ...]:
    """The number of rows, and their keys."""
    return Pair(ROW_COUNTS, "records", count_rows(), count_rows()), pair_keys(KEY_SETS, "keys")


def pair_keys(check: str, what: str) -> Pair:
    """The keys alone."""
    return Pair(check, what, digest_keys(), digest_keys())


def pair_times() -> Pair:
    """The times of the last access."""
    metric = digest_payload(hidden(TTL_COLUMN), ())
    return Pair(READ_BACK, TTL_COLUMN, metric, metric)


def pair_payloads(
    check: str, left: DataFrame, right: DataFrame, columns: tuple[str, str], losses: Mapping[str, str]
) -> list[Pair]:
    """A pair per field of the payload, without what is lost; and one for null.

    Args:
        check: one of `COMPARED`.
        left: a frame.
        right: another one.
        columns: of the payload in each.
        losses: dotted paths that do not count.
    """
    one, other = columns
    pairs = [Pair(check, "null values", digest_payload(one, None), digest_payload(other, None))]
    fields = getattr(left.schema[one].dataType, "names", None)
    if fields is None:
        if "value" not in losses:
            pairs.append(Pair(check, "values", digest_payload(one, ()), digest_payload(other, ())))
        return pairs
    theirs = getattr(right.schema[other].dataType, "names", [])
    for name in fields:
        if name in losses:
            continue
        lost = tuple(each.partition(".")[2] for each in losses if each.startswith(f"{name}."))
        after = digest_payload(other, (name,), lost) if name in theirs else digest_payload(other, None)
        pairs.append(Pair(check, name, digest_payload(one, (name,), lost), after))
    return pairs


def run_comparison(state: str, comparison: Comparison) -> list[GroupResult]:
    """Digest both sides; only what the digests of a key group are reaches the driver."""
    left, right = (identify(each, comparison.identity) for each in (comparison.left, comparison.right))
    before = {f"before_{index}": pair.before for index, pair in enumerate(comparison.pairs)}
    after = {f"after_{index}": pair.after for index, pair in enumerate(comparison.pairs)}
    by_group = hidden("key_group") in left.columns and hidden("key_group") in right.columns
    joined: dict[int, dict[str, Any]] = {}
    extra: dict[str, Column] = {}
    if comparison.hashed:
        hashed = F.col(hidden("hashed_key_group"))
        extra = {
            "misplaced": F.count_if(hashed != F.col(hidden("key_group"))),
            "unhashed": F.count_if(hashed.isNull()),
        }
    for row in (*profile(left, before, {}, by_group=by_group), *profile(right, after, extra, by_group=by_group)):
        joined.setdefault(row["bucket"], {}).update(row.asDict())
    return [_make_result(state, group, values, comparison) for group, values in sorted(joined.items())]


def _make_result(state: str, group: int, values: dict[str, Any], comparison: Comparison) -> GroupResult:
    compared: dict[str, list[tuple[str, str, str]]] = {}
    for index, pair in enumerate(comparison.pairs):
        before, after = (to_text(values.get(f"{side}_{index}")) for side in ("before", "after"))
        compared.setdefault(pair.check, []).append((pair.what, before, after))
    records = values.get("after_0", 0) if comparison.hashed else None
    return GroupResult(state, group, compared, records, values.get("misplaced", 0), values.get("unhashed", 0))


def to_text(value: Any) -> str:
    """A count, or a digest in hexadecimal; both its sums are below 2⁶³."""
    if value is None:
        return "none"
    return f"{value['high']:016x}{value['low']:016x}" if isinstance(value, Row) else str(value)


def judge_results(results: Sequence[GroupResult], suite: str) -> dict[str, Judgement]:
    """What Great Expectations says of a table with a row per state and key group, by check: `COMPARED`, `KEY_HASHES`.

    Great Expectations takes seconds to import, so not before.
    """
    gxe = import_expectations()
    columns: dict[str, list[Any]] = {
        "state": [each.state for each in results],
        "key_group": [each.key_group for each in results],
        "misplaced": [each.misplaced for each in results],
    }
    for check in COMPARED:
        for side, index in (("before", 1), ("after", 2)):
            columns[f"{side}_{check}"] = [
                ", ".join(f"{each[0]} {each[index]}" for each in result.values.get(check, ())) for result in results
            ]
    expectations: dict[str, Expectation] = {
        check: gxe.ExpectColumnPairValuesToBeEqual(column_A=f"before_{check}", column_B=f"after_{check}")
        for check in COMPARED
    }
    expectations[KEY_HASHES] = gxe.ExpectColumnValuesToBeInSet(column="misplaced", value_set=[0])
    judgements = judge_table(columns, suite, [*expectations.values()])
    return dict(zip(expectations, judgements, strict=True))


def make_expectation(wanted: RowExpectation) -> Expectation:
    """An expectation of a migration file.

    Raises:
        MigrationError: Great Expectations has none of that name, or refuses the arguments.
    """
    gxe = import_expectations()
    name = "".join(part.capitalize() for part in wanted.type.split("_"))
    kind = getattr(gxe, name, None)
    if kind is None:
        raise MigrationError(f"Great Expectations has no {wanted.type}")
    arguments = {
        key: value.replace(".", "_") if key.lower().startswith("column") and isinstance(value, str) else value
        for key, value in wanted.arguments
    }
    try:
        made: Expectation = kind(**arguments)
    except ValueError as error:
        raise MigrationError(f"{wanted.type} cannot be made of {arguments}: {error}") from None
    return made
