"""Great Expectations: expectations of migrations, suites of a team on states, and proofs as suites.

Great Expectations is needed only where a migration has `expect` or a job has suites; it is an extra of the package.

* `judge`, `check_expectations`, `judge_rows`: expectations of a migration.
* `Suite`, `load_suites`, `run_suites`: suites that a team keeps in files, run on the states of a snapshot, and on
  proofs. A directory holds files of suites (YAML, JSON or Python) and may be, or hold, a project of Great Expectations.
  Each suite becomes a validation definition and a checkpoint of the name `OPERATOR.STATE`; actions that the team has
  added to the checkpoint run too.
* `judge_report`: proofs as suites: the numbers of a report, judged, kept and shown in data docs. The proof itself
  compares records without Great Expectations (`spark/proof.py`). Here each of its checks is a few expectations on the
  numbers of records that it compared, so that a team sees proofs where it sees its other suites.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from state_pipelines.errors import MigrationError, NotFoundError, UsageError, Where, at
from state_pipelines.operations.migration.migration_files import RowExpectation
from state_pipelines.operations.migration.shapes import find_shapes
from state_pipelines.operations.proofs import (
    AFTER,
    DESCRIPTIONS,
    EXAMPLES,
    EXPECTED,
    OWN,
    SUITES,
    DifferingRecord,
    ProofCheck,
    RecordCounts,
    choose_examples,
    to_plain,
)
from state_pipelines.spark.operator_state import read_rows
from state_pipelines.storage.documents import compose_yaml, parse_yaml, read_given_text, run_python_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from types import ModuleType

    from great_expectations.core.expectation_suite import ExpectationSuite
    from great_expectations.core.expectation_validation_result import ExpectationValidationResult
    from great_expectations.data_context import AbstractDataContext, EphemeralDataContext
    from great_expectations.datasource.fluent.interfaces import Batch
    from great_expectations.expectations.expectation import Expectation
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from state_pipelines.operations.migration.flows import OperatorPlan
    from state_pipelines.operations.proofs import ProofReport
    from state_pipelines.snapshot import Operator, Snapshot

SAMPLE_SIZE = EXAMPLES
"""Maximum number of offending rows that a `Judgement` keeps."""

KEY_COLUMNS = ("state_key", "state_namespace", "map_key", "list_index", "subtask")
"""Columns that identify a row of a state; if a frame has such columns, they are shown with offending values."""

_SQL_ARGUMENTS = ("query", "row_condition", "condition_parser")
"""Suffixes of the names of those arguments of expectations that hold SQL."""

# Name of the view that Great Expectations makes of the frame for queries. It never drops the view; this module does.
VIEW = "tmp_view"

_ABOUT_COLUMNS = (
    "expect_column_to_exist",
    "expect_table_columns_to_match_ordered_list",
    "expect_table_columns_to_match_set",
)
"""Expectations about the columns themselves: a missing column fails them, and is no mistake in the migration file."""

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
        UsageError: Great Expectations is not installed.
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
    """Evaluate expectations on a frame; nothing is written or sent anywhere, and nothing is left in the session.

    At most a few hundred rows reach this process, however many do not meet an expectation. Only one thread per session
    may judge at a time, because all queries see the frame under one name.

    Args:
        frame: the frame, which belongs to the active session.
        name: name of the suite of expectations, which Great Expectations mentions in its logs.
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
    """Make a context of Great Expectations that lives in memory and shows no progress bars."""
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
    # An `unexpected_rows_expectation` returns offending rows (at most 200) only with the format COMPLETE. The complete
    # results of other expectations would hold every offending value.
    complete = expectation.expectation_type == "unexpected_rows_expectation"
    chosen: dict[str, Any] = {"partial_unexpected_count": SAMPLE_SIZE}
    return chosen | ({"result_format": "COMPLETE"} if complete else find_summary_format(keys))


def find_summary_format(keys: Sequence[str]) -> dict[str, Any]:
    """Return the result format with which Great Expectations returns the keys of offending rows."""
    named = {"unexpected_index_column_names": list(keys)} if keys else {}
    return {"result_format": "SUMMARY", "partial_unexpected_count": SAMPLE_SIZE, **named}


def sample_rows(expectation_arguments: Mapping[str, Any], details: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return offending rows of a result of Great Expectations, at most `SAMPLE_SIZE`, as values that JSON has."""
    rows = (details.get("details") or {}).get("unexpected_rows")
    if rows is None:
        rows = details.get("partial_unexpected_index_list")
    if rows is None:
        values = details.get("partial_unexpected_list") or ()
        rows = [_name_values(expectation_arguments, value) for value in values]
    return [to_plain(row) for row in rows[:SAMPLE_SIZE]]


def _name_values(arguments: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Return an offending value as a row, by column; it may be a single value, a tuple by column, or a row already."""
    if isinstance(value, dict):
        return value
    pair = [arguments.get(name) for name in ("column_A", "column_B")]
    names = pair if None not in pair else arguments.get("column_list")
    if names and isinstance(value, (tuple, list)):
        return dict(zip(names, value, strict=True))
    return {arguments.get("column") or "value": value}


def find_error(result: ExpectationValidationResult) -> str:
    """Join the messages of the exceptions that an expectation raised; empty if it raised none.

    A result of Great Expectations has one exception, or one for each metric that it could not compute.
    """
    info = result.exception_info or {}
    failures = [info] if "raised_exception" in info else list(info.values())
    messages = (str(failure["exception_message"]) for failure in failures if failure["raised_exception"])
    return "; ".join(dict.fromkeys(messages))


def make_expectation(wanted: RowExpectation) -> Expectation:
    """Make the object of Great Expectations for an expectation of a migration file.

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
        # Great Expectations converts a text to this class, and warns that texts are deprecated.
        from great_expectations.expectations.row_conditions import PassThroughCondition

        arguments[_CONDITION] = PassThroughCondition(pass_through_filter=condition)
        arguments.pop(_PARSER, None)
    try:
        made: Expectation = kind(**arguments)
    except ValueError as error:
        raise MigrationError(f"Great Expectations refuses {wanted.type} with {arguments}: {error}") from None
    return made


def check_expectations(plans: Iterable[tuple[Operator, OperatorPlan]], *, allow_sql: bool = False) -> None:
    """Make the objects of Great Expectations for all expectations of plans, so that mistakes are found before writing.

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
    """Evaluate the expectations of a migration on the rows of a state.

    Args:
        frame: the rows, with the columns that expectations may name; fields of structs are named by dotted paths.
        operator: label of the operator, for errors.
        state: name of the state.
        wanted: the expectations of the migration, at least one.

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
    """Format an expectation with its arguments, on one line."""
    return f"{wanted.type}({', '.join(f'{name}={value!r}' for name, value in wanted.arguments)})"


def make_record(state: str, row: Mapping[str, Any], expected: str, columns: Sequence[str]) -> DifferingRecord:
    """Convert an offending row to the record that the report of a proof shows."""
    key = {name: row[name] for name in KEY_COLUMNS if row.get(name) is not None and name in columns}
    values = {name: value for name, value in row.items() if name not in KEY_COLUMNS or name not in columns}
    value = next(iter(values.values())) if len(values) == 1 else values
    return DifferingRecord(state, key, {AFTER: value, EXPECTED: expected})


def _name_flat(value: Any) -> Any:
    """Replace the dots in names of columns by underscores, as in the flattened frame; keep other values as they are."""
    if isinstance(value, list | tuple):
        return [_name_flat(each) for each in value]
    return value.replace(".", "_") if isinstance(value, str) else value


def flatten_paths(frame: DataFrame, wanted: Sequence[RowExpectation]) -> DataFrame:
    """Add a column for every dotted path that expectations name; its name has underscores instead of the dots.

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
    """Yield the dotted paths of fields inside structs, `depth` levels deep; `above` is their prefix."""
    while isinstance(kind, ArrayType):
        kind = kind.elementType
    if isinstance(kind, StructType) and depth:
        for field in kind.fields:
            path = f"{above}{field.name}"
            if above:
                yield path
            yield from _list_paths(field.dataType, f"{path}.", depth - 1)


_SOURCE = "flink-state"
_CRITICAL, _LEVELS = "critical", ("critical", "warning", "info")
_PROJECT = "great_expectations.yml"
_SHOWN = 5
_SLASH = re.compile(r"[/\\]")
_FIELDS = ("operator", "state", "expect", "name", "optional")
_LISTS = ("expect", "expectations")


@dataclass(frozen=True)
class Suite:
    """Expectations on the rows of one state.

    Attributes:
        operator: uid, id or name of the operator.
        state: name of the state.
        expectations: the expectations, each with its severity: `critical`, `warning` or `info`.
        file: where it is written.
        line: line of the suite in the file, from 1; 0 if it is not known, as in Python files.
        lines: lines of the expectations; empty if they are not known.
        optional: snapshots need not have the state.
    """

    operator: str
    state: str
    expectations: tuple[tuple[RowExpectation, str], ...]
    file: str
    line: int = 0
    lines: tuple[int, ...] = ()
    optional: bool = False

    @property
    def name(self) -> str:
        """Name of the suite, the validation definition and the checkpoint."""
        # Great Expectations turns a name with dots into nested directories, and refuses slashes.
        return _SLASH.sub("_", f"{self.operator}.{self.state}")

    def locate(self, number: int | None = None) -> Where:
        """Return the location of the suite, or of the expectation with a number (from 0), for errors."""
        line = self.line if number is None else next(iter(self.lines[number : number + 1]), 0)
        file = f"{self.file}:{line}" if line else self.file
        return Where(file=file, operator=self.operator, state=self.state)


@dataclass(frozen=True)
class SuiteResults:
    """Results of the suites of a snapshot.

    Attributes:
        checks: one, `expectations_hold`; none where no suite is about a state of the snapshot.
        data_docs: URL of the pages that Great Expectations has built; empty without them.
    """

    checks: tuple[ProofCheck, ...]
    data_docs: str = ""


def load_suites(directory: str | Path) -> tuple[Suite, ...]:
    """Read the suites of a directory: all files that end in `.yaml`, `.yml`, `.json` or `.py`.

    Files whose names begin with `_` or `.`, and `great_expectations.yml`, are skipped. Python files are run.

    Raises:
        UsageError: a file is not a suite; names it.
        NotFoundError: there is no such directory.
    """
    root = Path(directory)
    if not root.is_dir():
        raise NotFoundError("there is no such directory of expectations", where=Where(file=str(directory)))
    suites: dict[str, Suite] = {}
    for path in sorted(each for each in root.iterdir() if each.suffix in (".yaml", ".yml", ".json", ".py")):
        if path.name.startswith(("_", ".")) or path.name == _PROJECT:
            continue
        with at(file=str(path)):
            for suite in _read_file(path):
                if suite.name in suites:
                    known = suites[suite.name].file
                    raise UsageError(f"{suite.name} has a suite in {known} already", hint="Put both into one file")
                suites[suite.name] = suite
    return tuple(suites.values())


def _read_file(path: Path) -> Iterator[Suite]:
    lines: list[tuple[int, tuple[int, ...]]] = []
    if path.suffix == ".py":
        content: object = run_python_file(path, "SUITES", hint="SUITES = [{operator, state, expect}, …]")
    else:
        try:
            text = read_given_text(path, "the suite")
            content = json.loads(text) if path.suffix == ".json" else parse_yaml(text)
            lines = _find_lines(text)
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            raise UsageError(f"the file cannot be read: {error}") from None
    for number, each in enumerate(content if isinstance(content, list) else [content]):
        if not isinstance(each, dict):
            raise UsageError("a suite is a mapping with operator, state and expect")
        line, others = lines[number] if number < len(lines) else (0, ())
        yield replace(_parse_suite(each, path), line=line, lines=others)


def _find_lines(text: str) -> list[tuple[int, tuple[int, ...]]]:
    """Return the line of each suite of a file and those of its expectations; nothing if the file is not YAML."""
    try:
        root = compose_yaml(text)
    except yaml.YAMLError:
        # Some JSON is not YAML, such as that indented by tabs.
        return []
    found = []
    for suite in root.value if isinstance(root, yaml.SequenceNode) else filter(None, [root]):
        lists = [
            value
            for name, value in (suite.value if isinstance(suite, yaml.MappingNode) else ())
            if name.value in _LISTS and isinstance(value, yaml.SequenceNode)
        ]
        lines = tuple(each.start_mark.line + 1 for value in lists[:1] for each in value.value)
        found.append((suite.start_mark.line + 1, lines))
    return found


def _parse_suite(content: dict[str, Any], path: Path) -> Suite:
    if "expectations" in content:
        # A suite as Great Expectations writes it: operator and state are in its `meta`, or else in its name.
        meta = content.get("meta") or {}
        operator, _, state = str(content.get("name", "")).partition(".")
        names = {"operator": meta.get("operator", operator), "state": meta.get("state", state)}
        if "optional" in meta:
            names["optional"] = meta["optional"]
        wanted = [
            {"type": each["type"], "severity": each.get("severity", _CRITICAL), **each.get("kwargs", {})}
            for each in content["expectations"]
        ]
        content = {**names, "expect": wanted}
    unknown = sorted(str(name) for name in content if name not in _FIELDS)
    if unknown:
        raise UsageError(f"unknown entries {', '.join(unknown)}", hint=f"Known are {', '.join(_FIELDS)}")
    for name in ("operator", "state"):
        if not isinstance(content.get(name), str) or not content[name]:
            raise UsageError(f"`{name}` is missing", where=Where(path=name))
    optional = content.get("optional", False)
    if not isinstance(optional, bool):
        raise UsageError("`optional` is neither true nor false", where=Where(path="optional"))
    given = content.get("expect")
    if not isinstance(given, list) or not given:
        raise UsageError("`expect` is not a list of expectations", where=Where(path="expect"))
    return Suite(
        content["operator"],
        content["state"],
        tuple(_parse_expectation(each, number) for number, each in enumerate(given, 1)),
        str(path),
        optional=optional,
    )


def _parse_expectation(content: object, number: int) -> tuple[RowExpectation, str]:
    where = Where(path=f"expect {number}")
    if not isinstance(content, dict) or not isinstance(content.get("type"), str):
        raise UsageError("an expectation is a mapping with `type` and its arguments", where=where)
    severity = str(content.get("severity", _CRITICAL))
    if severity not in _LEVELS:
        raise UsageError(f"{severity!r} is no severity", where=where, hint=f"Choose from {', '.join(_LEVELS)}")
    arguments = {str(name): each for name, each in content.items() if name not in ("type", "severity")}
    return RowExpectation(content["type"], tuple(arguments.items())), severity


def check_suites(suites: Sequence[Suite]) -> None:
    """Make the objects of Great Expectations for all suites, so that mistakes are found before anything is written.

    Raises:
        UsageError: an expectation is wrong, with its file; or Great Expectations is not installed.
    """
    for suite in suites:
        _make_suite(suite)


def _make_suite(suite: Suite) -> ExpectationSuite:
    import_expectations()
    from great_expectations.core.expectation_suite import ExpectationSuite

    made = []
    for number, (wanted, severity) in enumerate(suite.expectations):
        with _locating(suite, number):
            made.append(make_expectation(RowExpectation(wanted.type, (*wanted.arguments, ("severity", severity)))))
    return ExpectationSuite(name=suite.name, expectations=made, meta={"operator": suite.operator, "state": suite.state})


@contextmanager
def _locating(suite: Suite, number: int) -> Iterator[None]:
    """Turn a mistake in an expectation into an error with its file and line."""
    try:
        yield
    except MigrationError as error:
        raise UsageError(error.what, where=suite.locate(number), hint=error.hint) from None


def find_states(snapshot: Snapshot, suites: Sequence[Suite]) -> list[tuple[Suite, Operator]]:
    """Pair the suites with the operators that they are about; leave out `optional` ones that no operator matches.

    Raises:
        UsageError: a suite is about an operator or a state that the snapshot does not have.
    """
    found = []
    for suite in suites:
        named = [each for each in snapshot.operators if suite.operator in (each.uid, each.id, each.label)]
        about = [each for each in named if suite.state in find_shapes(each)]
        found += [(suite, operator) for operator in about]
        if not about and not suite.optional:
            raise _miss(snapshot, suite, named)
    return found


def _miss(snapshot: Snapshot, suite: Suite, named: Sequence[Operator]) -> UsageError:
    kind, wanted, known = "operator", suite.operator, [each.label for each in snapshot.operators]
    if named:
        kind, wanted, known = "state", suite.state, [state for each in named for state in find_shapes(each)]
    close = " or ".join(get_close_matches(wanted, known, 3) or sorted(known)[:_SHOWN])
    return UsageError(
        f"the suite is about the {kind} {wanted}, which the snapshot does not have",
        where=suite.locate(),
        hint=f"It has {close or 'none'}. If only some snapshots have it, give the suite `optional: true`",
    )


def run_suites(
    spark: SparkSession,
    snapshot: Snapshot,
    suites: Sequence[Suite],
    *,
    project: str | Path | None = None,
    operators: Collection[str] | None = None,
    title: str = "",
) -> SuiteResults:
    """Run suites on the states of a snapshot, which need not be published.

    Args:
        spark: the active session.
        snapshot: the snapshot.
        suites: from `load_suites`; `optional` ones are left out if the snapshot lacks their operator or state.
        project: directory of a project of Great Expectations, which is made where there is none; it keeps results and
            data docs. None keeps nothing.
        operators: ids of the operators whose suites run; None is all.
        title: name of the run in data docs.

    Raises:
        UsageError: an expectation is wrong, cannot be evaluated, or is about a state that the snapshot does not have;
            or Great Expectations is not installed.
        StateError: a state cannot be read.
    """
    found = [
        (suite, operator)
        for suite, operator in find_states(snapshot, suites)
        if operators is None or operator.id in operators
    ]
    if not found:
        return SuiteResults(())
    context = open_context(project)
    checks, rows, failed, warned, words, compared = [], [], 0, 0, list[str](), 0
    for suite, operator in found:
        with at(operator=operator.label, state=suite.state):
            frame = _flatten(read_rows(spark, operator, suite.state), suite)
            results = _validate(context, suite, frame, title or snapshot.location.directory.name)
        compared += len(results)
        for number, ((wanted, severity), result) in enumerate(zip(suite.expectations, results, strict=True)):
            if result.success:
                continue
            if error := find_error(result):
                raise UsageError(
                    f"{describe_wanted(wanted)} cannot be evaluated: {error.strip()}", where=suite.locate(number)
                )
            failed, warned = failed + (severity == _CRITICAL), warned + (severity != _CRITICAL)
            observed = result.result.get("observed_value", result.result.get("unexpected_count"))
            words.append(f"{suite.name}: {describe_wanted(wanted)}: observed {to_plain(observed)}")
            offending = sample_rows(dict(wanted.arguments), result.result)
            rows.append([make_record(suite.state, row, describe_wanted(wanted), frame.columns) for row in offending])
    names = ", ".join(suite.name for suite, _ in found)
    checks.append(
        ProofCheck(
            SUITES,
            not (failed or warned),
            DESCRIPTIONS[SUITES],
            f"{compared} expectations of {names} hold",
            "; ".join(words) or f"{compared} expectations hold",
            None,
            choose_examples(rows),
            blocking=bool(failed),
        )
    )
    return SuiteResults(tuple(checks), _find_docs(context) if project is not None else "")


def _flatten(frame: DataFrame, suite: Suite) -> DataFrame:
    """Add a column for each dotted path; errors give the location of the expectation that names a wrong column."""
    for number, (wanted, _) in enumerate(suite.expectations):
        with _locating(suite, number):
            flatten_paths(frame, [wanted])
    return flatten_paths(frame, [each for each, _ in suite.expectations])


def _validate(context: AbstractDataContext, suite: Suite, frame: Any, title: str) -> list[Any]:
    """Run the checkpoint of a suite; results in the order of its expectations."""
    import great_expectations as gx
    from great_expectations.checkpoint import UpdateDataDocsAction
    from great_expectations.exceptions import DataContextError

    batch = define_batch(context.data_sources.add_or_update_spark(_SOURCE, persist=False), suite.name)
    made = context.suites.add_or_update(_make_suite(suite))
    definition = context.validation_definitions.add_or_update(
        gx.ValidationDefinition(name=suite.name, data=batch, suite=made)
    )
    try:
        known = context.checkpoints.get(suite.name)
        actions = known.actions
    except DataContextError:
        actions = [UpdateDataDocsAction(name="update data docs")]
    keys = [name for name in KEY_COLUMNS if name in frame.columns]
    checkpoint = context.checkpoints.add_or_update(
        gx.Checkpoint(
            name=suite.name,
            validation_definitions=[definition],
            actions=actions,
            result_format=find_summary_format(keys),
        )
    )
    cached = not frame.is_cached
    if cached:
        frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        result = checkpoint.run(
            batch_parameters={"dataframe": frame}, run_id=gx.RunIdentifier(run_name=_SLASH.sub("_", title))
        )
    finally:
        frame.sparkSession.catalog.dropTempView(VIEW)
        if cached:
            frame.unpersist()
    (validated,) = result.run_results.values()
    return _order_results(suite, list(validated.results))


def define_batch(source: Any, name: str) -> Any:
    """Return the batch definition for whole frames of a data asset; make what the data source does not have yet."""
    try:
        asset = source.get_asset(name)
    except LookupError:
        asset = source.add_dataframe_asset(name)
    try:
        return asset.get_batch_definition("whole")
    except LookupError:
        return asset.add_batch_definition_whole_dataframe("whole")


def _order_results(suite: Suite, results: list[Any]) -> list[Any]:
    """Results in the order of the expectations; Great Expectations sorts them by column."""
    ordered = []
    for wanted, severity in suite.expectations:
        arguments = RowExpectation(wanted.type, (*wanted.arguments, ("severity", severity)))
        expectation = make_expectation(arguments)
        found = next(each for each in results if _is_of(each, expectation))
        results.remove(found)
        ordered.append(found)
    return ordered


def _is_of(result: Any, expectation: Any) -> bool:
    config = result.expectation_config
    own = expectation.configuration
    kwargs = {name: value for name, value in config.kwargs.items() if name != "batch_id"}
    return bool(config.type == own.type and kwargs == own.kwargs)


def open_context(project: str | Path | None) -> AbstractDataContext:
    """Open the project of Great Expectations in a directory, or make one there; None makes one in memory."""
    import_expectations()
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context: AbstractDataContext
    if project is None:
        context = gx.get_context(mode="ephemeral")
    else:
        root = Path(project)
        if (root / _PROJECT).is_file():
            context = gx.get_context(mode="file", context_root_dir=root)
        else:
            root.mkdir(parents=True, exist_ok=True)
            context = gx.get_context(mode="file", project_root_dir=root)
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return context


def find_project(expectations: str | Path, data_docs: str | Path | None) -> Path | None:
    """The directory of the project of Great Expectations: the team's own project, else the one for the data docs.

    Args:
        expectations: directory of the suites.
        data_docs: directory for results and data docs where the team has no project.
    """
    root = Path(expectations)
    if any((root / each / _PROJECT).is_file() for each in (".", "gx")):
        return root
    return None if data_docs is None else Path(data_docs)


def _find_docs(context: AbstractDataContext) -> str:
    urls = [str(each["site_url"]) for each in context.get_docs_sites_urls() if each.get("site_url")]
    return urls[0] if urls else ""


_PROOF_SOURCE = "proofs"
_HOLDS = "holds"


def judge_report(
    report: ProofReport, name: str, *, project: str | Path | None = None, title: str = ""
) -> dict[str, tuple[str, ...]]:
    """Judge the numbers of a report by a suite of Great Expectations.

    Args:
        report: the report of a migration, rescaling or conversion.
        name: of the suite, validation definition and checkpoint, such as `orders.migrated_savepoint`.
        project: directory of a project of Great Expectations that keeps results and data docs; None keeps nothing.
        title: name of the run in data docs.

    Returns:
        For each check the expectations that its numbers do not meet; empty for a check that holds.

    Raises:
        UsageError: Great Expectations is not installed.
    """
    import_expectations()
    import great_expectations as gx
    import pandas as pd
    from great_expectations.checkpoint import UpdateDataDocsAction

    context = open_context(project)
    columns = {column: [value] for check in report.checks for column, value in _list_numbers(check)}
    suite = gx.ExpectationSuite(
        name=name, expectations=[each for check in report.checks for each in _list_expectations(check)]
    )
    batch = define_batch(context.data_sources.add_or_update_pandas(_PROOF_SOURCE), name)
    definition = context.validation_definitions.add_or_update(
        gx.ValidationDefinition(name=name, data=batch, suite=context.suites.add_or_update(suite))
    )
    checkpoint = context.checkpoints.add_or_update(
        gx.Checkpoint(
            name=name,
            validation_definitions=[definition],
            actions=[UpdateDataDocsAction(name="update data docs")] if project is not None else [],
        )
    )
    result = checkpoint.run(
        batch_parameters={"dataframe": pd.DataFrame(columns)}, run_id=gx.RunIdentifier(run_name=title or name)
    )
    (validated,) = result.run_results.values()
    unmet: dict[str, list[str]] = {check.name: [] for check in report.checks}
    for each in validated.results:
        config = each.expectation_config
        if config is not None and not each.success:
            unmet[config.kwargs["column"].partition(" ")[0]].append(f"{config.type} of {config.kwargs['column']!r}")
    return {check: tuple(texts) for check, texts in unmet.items()}


def _list_numbers(check: ProofCheck) -> Iterator[tuple[str, Any]]:
    """Yield the columns by which Great Expectations judges a check: whether it holds, and each of its counts."""
    yield f"{check.name} {_HOLDS}", check.ok
    if check.counts is not None:
        for number, value in check.counts.to_numbers().items():
            yield f"{check.name} {number}", value


def _list_expectations(check: ProofCheck) -> Iterator[Expectation]:
    import great_expectations.expectations as gxe
    from great_expectations.expectations.metadata_types import FailureSeverity

    severity = FailureSeverity.CRITICAL if check.blocking else FailureSeverity.WARNING
    yield gxe.ExpectColumnValuesToBeInSet(
        column=f"{check.name} {_HOLDS}", value_set=[True], severity=severity, notes=check.description
    )
    if check.counts is not None:
        for number in check.counts.to_numbers():
            if number != "rows compared":
                yield gxe.ExpectColumnValuesToBeBetween(
                    column=f"{check.name} {number}", min_value=0, max_value=0, severity=severity
                )
