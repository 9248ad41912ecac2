"""Comparisons of the digests of two sides: a small table of what is the same where, which Great Expectations judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from state_pipelines.errors import MigrationError
from state_pipelines.keyed.column_digest import ROWS
from state_pipelines.spark.expectations import SAMPLE_SIZE, import_expectations, judge, judge_table
from state_pipelines.spark.reports import KEY_HASHES, KEY_SETS, OWN, READ_BACK, ROUND_TRIP, ROW_COUNTS, ProofCheck
from state_pipelines.spark.row_digests import NULLS, TIMES, VALUES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from great_expectations.expectations.expectation import Expectation
    from pyspark.sql import DataFrame

    from state_pipelines.operations.migration.files import RowExpectation
    from state_pipelines.spark.expectations import Judgement
    from state_pipelines.spark.row_digests import RowColumns

COMPARED = (ROW_COUNTS, KEY_SETS, ROUND_TRIP, READ_BACK)
"""The checks that hold when both sides are equal."""


@dataclass(frozen=True)
class GroupResult:
    """One comparison in one place.

    Attributes:
        state: its name.
        place: the key group, or a heap of keys where keys have changed their key group; of operator state the subtask.
        values: by check: what was compared, and what it is before and after.
        records: that were written; None where rows of the way back are compared.
        misplaced: records of them that lie in another key group than their hash gives.
        unhashed: records of them whose hash is not known.
    """

    state: str
    place: int
    values: dict[str, list[tuple[str, str, str]]]
    records: int | None
    misplaced: int
    unhashed: int


def name_values(columns: RowColumns) -> dict[str, str]:
    """Names of the digests of the values of rows, and what they are called for people."""
    told = {NULLS: "null values", VALUES: "values", TIMES: "times of the last access"}
    return {name: told.get(name, name) for name in columns.names}


def compare_sums(
    names: Mapping[str, str], before: Mapping[str, int] | None, after: Mapping[str, int] | None
) -> list[tuple[str, str, str]]:
    """What is compared, and what it is before and after.

    Args:
        names: of the digests, and what they are called for people.
        before: digests of the one side; None is a side without rows.
        after: of the other side.
    """
    return [(what, _to_text(name, before, "before"), _to_text(name, after, "after")) for name, what in names.items()]


def _to_text(name: str, side: Mapping[str, int] | None, word: str) -> str:
    if side is None:
        return "none"
    if name not in side:
        # Never the same as what the other side says.
        return f"not there {word}"
    return str(side[name]) if name == ROWS else f"{side[name]:016x}"


def judge_results(results: Sequence[GroupResult], suite: str) -> dict[str, Judgement]:
    """What Great Expectations says of a table with a row per state and place, by check: `COMPARED`, `KEY_HASHES`.

    Great Expectations takes seconds to import, so not before.
    """
    gxe = import_expectations()
    columns: dict[str, list[Any]] = {
        "state": [each.state for each in results],
        "place": [each.place for each in results],
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


def judge_rows(frame: DataFrame, name: str, wanted: Sequence[RowExpectation], description: str) -> ProofCheck:
    """What Great Expectations says of the rows of a state, by the expectations of its migration.

    Args:
        frame: the rows, with the columns that expectations may name; fields of structs are named by dotted paths.
        name: of the state.
        wanted: one or more.
        description: of the check.

    Raises:
        MigrationError: see `make_expectation`.
    """
    paths = [str(value) for each in wanted for key, value in each.arguments if key.lower().startswith("column")]
    nested = [F.col(path).alias(path.replace(".", "_")) for path in dict.fromkeys(paths) if "." in path]
    judgements = judge(frame.select("*", *nested), name, [make_expectation(each) for each in wanted])
    failed = [(each, found) for each, found in zip(wanted, judgements, strict=True) if not found.success]
    observed = "; ".join(f"{each.type}: {found.error or found.observed}" for each, found in failed)
    return ProofCheck(
        name=OWN,
        ok=not failed,
        description=description,
        expectation=", ".join(dict.fromkeys(each.type for each in wanted)),
        expected="; ".join(str({"type": each.type, **dict(each.arguments)}) for each in wanted),
        observed=observed or f"{len(wanted)} expectations hold",
        sample=[row for _, found in failed for row in found.sample][:SAMPLE_SIZE],
    )


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
