"""Great Expectations: a frame or a small table and expectations in, one plain judgement per expectation out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark import StorageLevel
from pyspark.sql import Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from great_expectations.core.expectation_validation_result import ExpectationValidationResult
    from great_expectations.data_context import EphemeralDataContext
    from great_expectations.datasource.fluent.interfaces import Batch
    from great_expectations.expectations.expectation import Expectation
    from pyspark.sql import DataFrame

SAMPLE_SIZE = 20
"""Offending rows that a judgement keeps at most."""

# The name under which Great Expectations shows the frame to queries; it never takes it away again.
_VIEW = "tmp_view"


@dataclass(frozen=True)
class Judgement:
    """What became of one expectation.

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
    """The module `great_expectations.expectations`; it takes seconds to load, so only those who need it should.

    Use this for the first import. Great Expectations tries to import Spark Connect, and where that is not installed and
    the main module has no file (`python -c`, a spawned process, as the runs of Dagster are), PySpark takes the process
    for a run of its own doctests and ends it with exit code 0.
    """
    main = sys.modules["__main__"]
    named = hasattr(main, "__file__")
    if not named:
        main.__file__ = "<main>"
    try:
        return import_module("great_expectations.expectations")
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
        return tuple(_judge(batch, expectation) for expectation in expectations)
    finally:
        frame.sparkSession.catalog.dropTempView(_VIEW)
        if cached:
            frame.unpersist()


def judge_table(
    columns: Mapping[str, Sequence[Any]], name: str, expectations: Sequence[Expectation]
) -> tuple[Judgement, ...]:
    """Judge a small table in this process, which costs no work of Spark.

    Args:
        columns: the table, by name.
        name: of the suite of expectations; Great Expectations mentions it in its logs.
        expectations: at least one.

    Returns:
        One judgement per expectation, in their order.
    """
    import pandas as pd

    asset = _make_context().data_sources.add_pandas(name).add_dataframe_asset(name)
    definition = asset.add_batch_definition_whole_dataframe(name)
    batch = definition.get_batch(batch_parameters={"dataframe": pd.DataFrame(dict(columns))})
    return tuple(_judge(batch, expectation) for expectation in expectations)


def _make_context() -> EphemeralDataContext:
    """A place for sources that lives in memory and shows nothing."""
    import_expectations()
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return context


def _judge(batch: Batch, expectation: Expectation) -> Judgement:
    result = batch.validate(expectation, result_format=_result_format(expectation))
    details: Mapping[str, Any] = result.result
    config = result.expectation_config
    return Judgement(
        expectation=expectation.expectation_type,
        success=bool(result.success),
        expected={} if config is None else {k: _plain(v) for k, v in config.kwargs.items() if k != "batch_id"},
        observed=_plain(details.get("observed_value", details.get("unexpected_count"))),
        sample=_sample(expectation, details),
        error=_error(result),
    )


def _result_format(expectation: Expectation) -> dict[str, Any]:
    # Complete results of other expectations hold every offending value; those of this one stop at 200 rows, and it
    # gives none otherwise.
    complete = expectation.expectation_type == "unexpected_rows_expectation"
    return {"result_format": "COMPLETE" if complete else "SUMMARY", "partial_unexpected_count": SAMPLE_SIZE}


def _sample(expectation: Expectation, details: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = (details.get("details") or {}).get("unexpected_rows")
    if rows is None:
        rows = [_name_values(expectation, value) for value in details.get("partial_unexpected_list") or ()]
    return [_plain(row) for row in rows[:SAMPLE_SIZE]]


def _name_values(expectation: Expectation, value: Any) -> dict[str, Any]:
    """The columns of an offending value, which comes alone, as a tuple, or already with names."""
    if isinstance(value, dict):
        return value
    pair = [getattr(expectation, name, None) for name in ("column_A", "column_B")]
    names = pair if None not in pair else getattr(expectation, "column_list", None)
    if names and isinstance(value, (tuple, list)):
        return dict(zip(names, value, strict=True))
    return {getattr(expectation, "column", None) or "value": value}


def _error(result: ExpectationValidationResult) -> str:
    """The messages of the exceptions; there is one, or one per metric that failed."""
    info = result.exception_info or {}
    failures = [info] if "raised_exception" in info else list(info.values())
    messages = (str(failure["exception_message"]) for failure in failures if failure["raised_exception"])
    return "; ".join(dict.fromkeys(messages))


def _plain(value: Any) -> Any:
    """A value of Spark as one that JSON knows: bytes in hexadecimal, dates in ISO 8601, exact numbers as text."""
    match value:
        case Row():
            return {name: _plain(each) for name, each in value.asDict().items()}
        case dict():
            return {_plain_key(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case bytes() | bytearray():
            return value.hex()
        case date() | datetime() | time():
            return value.isoformat()
        case Decimal() | timedelta():
            return str(value)
        case np.generic():
            return _plain(value.item())
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case _:
            return value


def _plain_key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else str(plain)
