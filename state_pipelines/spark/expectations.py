"""Great Expectations: a frame and expectations in, one plain judgement per expectation out.

Great Expectations is needed only where a migration has `expect` or a job has suites; it is an extra of the package.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from state_pipelines.errors import MigrationError, UsageError, at
from state_pipelines.operations.proofs import (
    AFTER,
    DESCRIPTIONS,
    EXAMPLES,
    EXPECTED,
    OWN,
    DifferingRecord,
    ProofCheck,
    RecordCounts,
    to_plain,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from great_expectations.core.expectation_validation_result import ExpectationValidationResult
    from great_expectations.data_context import EphemeralDataContext
    from great_expectations.datasource.fluent.interfaces import Batch
    from great_expectations.expectations.expectation import Expectation
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from state_pipelines.operations.migration.flows import OperatorPlan
    from state_pipelines.operations.migration.migration_files import RowExpectation
    from state_pipelines.snapshot import Operator

SAMPLE_SIZE = EXAMPLES
"""Offending rows that a judgement keeps at most."""

KEY_COLUMNS = ("state_key", "state_namespace", "map_key", "list_index", "subtask")
"""Columns that identify a row of a state; those that a frame has are shown beside offending values."""

# The name under which Great Expectations shows the frame to queries; it never takes it away again.
_SQL_ARGUMENTS = ("query", "row_condition", "condition_parser")
"""Ends of the names of arguments that hold SQL."""

VIEW = "tmp_view"

_ABOUT_COLUMNS = (
    "expect_column_to_exist",
    "expect_table_columns_to_match_ordered_list",
    "expect_table_columns_to_match_set",
)
"""Expectations for which a missing column is an answer, not a mistake."""

_CONDITION, _PARSER, _OTHER_PARSER = "row_condition", "condition_parser", "great_expectations"
_DEEPEST = 4


@dataclass(frozen=True)
class Judgement:
    """Outcome of one expectation.

    Attributes:
        expectation: its type, such as `expect_column_values_to_not_be_null`.
        success: whether the frame meets it; False too when it could not be evaluated.
        expected: the arguments of the expectation.
        observed: the observed value; of expectations on rows the number of rows that do not meet it.
        sample: at most `SAMPLE_SIZE` rows that do not meet it, as values that JSON knows.
        error: why the expectation could not be evaluated, else empty.
    """

    expectation: str
    success: bool
    expected: dict[str, Any]
    observed: Any
    sample: list[dict[str, Any]]
    error: str = ""


def import_expectations() -> ModuleType:
    """Import `great_expectations.expectations`, which takes seconds.

    Use this for the first import. Great Expectations tries to import Spark Connect, and where that is not installed and
    the main module has no file (`python -c`, a spawned process, as the runs of Dagster are), PySpark takes the process
    for a run of its own doctests and ends it with exit code 0.

    Raises:
        UsageError: it is not installed.
    """
    main = sys.modules["__main__"]
    named = hasattr(main, "__file__")
    if not named:
        main.__file__ = "<main>"
    try:
        return import_module("great_expectations.expectations")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "great_expectations":
            raise
        raise UsageError(
            "Great Expectations is not installed, and the migration or the job has expectations",
            hint="Install state-pipelines[expectations], or leave `expect` and suites out",
        ) from None
    finally:
        if not named:
            del main.__file__


def judge(
    frame: DataFrame, name: str, expectations: Sequence[Expectation], *, cache: bool = True
) -> tuple[Judgement, ...]:
    """Judge a frame; nothing is written or sent anywhere, and nothing is left in the session.

    At most a few hundred rows reach this process, however many do not meet an expectation. Only one thread per session
    may judge at a time, because all queries see the frame under one name.

    Args:
        frame: the frame; of the session that is active.
        name: of the suite of expectations; Great Expectations mentions it in its logs.
        expectations: at least one, for instance `UnexpectedRowsExpectation`, whose query names the frame `{batch}`.
        cache: keep the frame in memory or on local disk meanwhile. Every expectation reads it once or twice.

    Returns:
        One judgement per expectation, in their order.
    """
    context = _make_context()
    # Without `persist`, which caches the frame for as long as the session lives.
    asset = context.data_sources.add_spark(name, persist=False).add_dataframe_asset(name)
    definition = asset.add_batch_definition_whole_dataframe(name)
    cached = cache and not frame.is_cached
    if cached:
        frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        batch = definition.get_batch(batch_parameters={"dataframe": frame})
        keys = [name for name in KEY_COLUMNS if name in frame.columns]
        return tuple(_judge(batch, expectation, keys) for expectation in expectations)
    finally:
        frame.sparkSession.catalog.dropTempView(VIEW)
        if cached:
            frame.unpersist()


def _make_context() -> EphemeralDataContext:
    """A store for sources that lives in memory and shows nothing."""
    import_expectations()
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return context


def _judge(batch: Batch, expectation: Expectation, keys: Sequence[str]) -> Judgement:
    result = batch.validate(expectation, result_format=_result_format(expectation, keys))
    details: Mapping[str, Any] = result.result
    config = result.expectation_config
    return Judgement(
        expectation=expectation.expectation_type,
        success=bool(result.success),
        expected={} if config is None else {k: to_plain(v) for k, v in config.kwargs.items() if k != "batch_id"},
        observed=to_plain(details.get("observed_value", details.get("unexpected_count"))),
        sample=sample_rows({} if config is None else config.kwargs, details),
        error=find_error(result),
    )


def _result_format(expectation: Expectation, keys: Sequence[str]) -> dict[str, Any]:
    # Complete results of other expectations hold every offending value; those of this one stop at 200 rows, and it
    # gives none otherwise.
    complete = expectation.expectation_type == "unexpected_rows_expectation"
    chosen: dict[str, Any] = {"partial_unexpected_count": SAMPLE_SIZE}
    return chosen | ({"result_format": "COMPLETE"} if complete else find_summary_format(keys))


def find_summary_format(keys: Sequence[str]) -> dict[str, Any]:
    """Result format that shows the keys of offending rows."""
    named = {"unexpected_index_column_names": list(keys)} if keys else {}
    return {"result_format": "SUMMARY", "partial_unexpected_count": SAMPLE_SIZE, **named}


def sample_rows(expectation_arguments: Mapping[str, Any], details: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Offending rows of a result of Great Expectations, as values that JSON has."""
    rows = (details.get("details") or {}).get("unexpected_rows")
    if rows is None:
        rows = details.get("partial_unexpected_index_list")
    if rows is None:
        values = details.get("partial_unexpected_list") or ()
        rows = [_name_values(expectation_arguments, value) for value in values]
    return [to_plain(row) for row in rows[:SAMPLE_SIZE]]


def _name_values(arguments: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """The columns of an offending value, which comes alone, as a tuple, or already with names."""
    if isinstance(value, dict):
        return value
    pair = [arguments.get(name) for name in ("column_A", "column_B")]
    names = pair if None not in pair else arguments.get("column_list")
    if names and isinstance(value, (tuple, list)):
        return dict(zip(names, value, strict=True))
    return {arguments.get("column") or "value": value}


def find_error(result: ExpectationValidationResult) -> str:
    """The messages of the exceptions; there is one, or one per metric that failed."""
    info = result.exception_info or {}
    failures = [info] if "raised_exception" in info else list(info.values())
    messages = (str(failure["exception_message"]) for failure in failures if failure["raised_exception"])
    return "; ".join(dict.fromkeys(messages))


def make_expectation(wanted: RowExpectation) -> Expectation:
    """An expectation of a migration file.

    Raises:
        MigrationError: Great Expectations has none of that name, or refuses the arguments.
        UsageError: Great Expectations is not installed.
    """
    gxe = import_expectations()
    name = "".join(word.capitalize() for word in wanted.type.split("_"))
    kind = getattr(gxe, name, None)
    if kind is None:
        raise MigrationError(f"Great Expectations has no {wanted.type}")
    arguments = {
        key: _name_flat(value) if key.lower().startswith("column") else value for key, value in wanted.arguments
    }
    if (condition := _find_sql(wanted)) is not None:
        # What Great Expectations makes of a text, with a warning that texts are deprecated.
        from great_expectations.expectations.row_conditions import PassThroughCondition

        arguments[_CONDITION] = PassThroughCondition(pass_through_filter=condition)
        arguments.pop(_PARSER, None)
    try:
        made: Expectation = kind(**arguments)
    except ValueError as error:
        raise MigrationError(f"{wanted.type} cannot be made of {arguments}: {error}") from None
    return made


def check_expectations(plans: Iterable[tuple[Operator, OperatorPlan]], *, allow_sql: bool = False) -> None:
    """Make all expectations of plans, so that a mistake is reported before anything is written.

    Args:
        plans: the plans.
        allow_sql: allow queries and conditions in SQL, which may read any table and file.

    Raises:
        MigrationError: see `make_expectation`, or one has SQL that is not allowed; names operator and state.
        UsageError: Great Expectations is not installed.
    """
    for operator, plan in plans:
        for name, wanted in plan.expectations.items():
            with at(operator=operator.label, state=name):
                for each in wanted:
                    if not allow_sql and any(name.endswith(_SQL_ARGUMENTS) for name, _ in each.arguments):
                        raise MigrationError(
                            f"the expectation {each.type} has SQL, which a migration file may not have by itself",
                            hint="If you trust the file, allow it with --allow-sql",
                        )
                    make_expectation(each)


def judge_rows(frame: DataFrame, operator: str, state: str, wanted: Sequence[RowExpectation]) -> ProofCheck:
    """Judge the rows of a state by the expectations of its migration.

    Args:
        frame: the rows, with the columns that expectations may name; fields of structs are named by dotted paths.
        operator: label of the operator, for errors.
        state: name of the state.
        wanted: one or more.

    Raises:
        MigrationError: see `make_expectation`.
    """
    with at(operator=operator, state=state):
        expectations = [make_expectation(each) for each in wanted]
        judgements = judge(flatten_paths(frame, wanted), state, expectations)
    failed = [(each, found) for each, found in zip(wanted, judgements, strict=True) if not found.success]
    words = [f"{each.type}: {found.error or _show_observed(found)}" for each, found in failed]
    unexpected = max((found.observed for _, found in failed if isinstance(found.observed, int)), default=0)
    rows = [
        make_record(state, row, describe_wanted(each), frame.columns) for each, found in failed for row in found.sample
    ]
    return ProofCheck(
        name=OWN,
        ok=not failed,
        description=DESCRIPTIONS[OWN],
        expected="; ".join(map(describe_wanted, wanted)),
        observed="; ".join(words) or f"{len(wanted)} expectation{'s hold' if len(wanted) > 1 else ' holds'}",
        counts=RecordCounts(unexpected=unexpected),
        rows=tuple(rows[:EXAMPLES]),
    )


def _show_observed(found: Judgement) -> str:
    return f"{found.observed} rows do not meet it" if found.sample else f"observed {found.observed}"


def describe_wanted(wanted: RowExpectation) -> str:
    """An expectation with its arguments, on one line."""
    return f"{wanted.type}({', '.join(f'{name}={value!r}' for name, value in wanted.arguments)})"


def make_record(state: str, row: Mapping[str, Any], expected: str, columns: Sequence[str]) -> DifferingRecord:
    """An offending row, as proofs show records."""
    key = {name: row[name] for name in KEY_COLUMNS if row.get(name) is not None and name in columns}
    values = {name: value for name, value in row.items() if name not in KEY_COLUMNS or name not in columns}
    value = next(iter(values.values())) if len(values) == 1 else values
    return DifferingRecord(state, key, {AFTER: value, EXPECTED: expected})


def _name_flat(value: Any) -> Any:
    """Return names of columns as the flattened frame has them; other values as they are."""
    if isinstance(value, list | tuple):
        return [_name_flat(each) for each in value]
    return value.replace(".", "_") if isinstance(value, str) else value


def flatten_paths(frame: DataFrame, wanted: Sequence[RowExpectation]) -> DataFrame:
    """Add a column for every dotted path that expectations name; Great Expectations gets it with underscores.

    Raises:
        MigrationError: see `find_paths`; or a condition in Spark's SQL does not fit the columns.
    """
    nested = dict.fromkeys(path for each in wanted for path in find_paths(frame, each))
    flat = frame.select("*", *(F.col(path).alias(path.replace(".", "_")) for path in nested))
    for each in wanted:
        check_condition(flat, each)
    return flat


def find_paths(frame: DataFrame, wanted: RowExpectation) -> list[str]:
    """Return the dotted paths among the columns that an expectation names, such as `value.quantity`.

    Raises:
        MigrationError: the frame lacks a column.
    """
    paths = []
    for name in _list_columns(wanted):
        if name in frame.columns:
            continue
        if "." in name and _resolves(frame, name):
            paths.append(name)
        elif wanted.type not in _ABOUT_COLUMNS:
            known = [*frame.columns, *_list_paths(frame.schema, "", _DEEPEST)]
            close = get_close_matches(name, known, 3) or list(frame.columns)
            raise MigrationError(
                f"{wanted.type} names the column {name}, which the state does not have",
                hint=f"Is it {' or '.join(close)}?",
            )
    return paths


def check_condition(frame: DataFrame, wanted: RowExpectation) -> None:
    """Resolve the condition of an expectation in Spark's SQL, which Great Expectations does when it reads the rows.

    Raises:
        MigrationError: it is not SQL, or names columns that the frame does not have.
    """
    if (condition := _find_sql(wanted)) is None:
        return
    try:
        _ = frame.filter(condition).schema
    except AnalysisException as error:
        reason = str(error).strip().partition("\n")[0]
        raise MigrationError(
            f"{wanted.type} has the condition {condition!r}, which does not fit the columns of the state: {reason}",
            hint="Write fields as value.quantity: in backticks that is a column with a dot in its name",
        ) from None


def _find_sql(wanted: RowExpectation) -> str | None:
    """Return the condition of an expectation if it is Spark's SQL, not the language of Great Expectations."""
    arguments = dict(wanted.arguments)
    condition = arguments.get(_CONDITION)
    is_sql = isinstance(condition, str) and not str(arguments.get(_PARSER)).startswith(_OTHER_PARSER)
    return condition if is_sql else None


def _list_columns(wanted: RowExpectation) -> Iterator[str]:
    for key, value in wanted.arguments:
        if key.lower().startswith("column"):
            for each in value if isinstance(value, list | tuple) else (value,):
                if isinstance(each, str):
                    yield each


def _resolves(frame: DataFrame, path: str) -> bool:
    try:
        return bool(frame.select(F.col(path)).columns)
    except AnalysisException:
        return False


def _list_paths(kind: DataType, above: str, depth: int) -> Iterator[str]:
    """Yield the dotted paths of fields inside structs."""
    while isinstance(kind, ArrayType):
        kind = kind.elementType
    if isinstance(kind, StructType) and depth:
        for field in kind.fields:
            path = f"{above}{field.name}"
            if above:
                yield path
            yield from _list_paths(field.dataType, f"{path}.", depth - 1)
