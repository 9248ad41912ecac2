"""Columns of the frames of a data flow, and checks of expressions over them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructType,
)

from state_pipelines.codecs.columns import column_type
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import MigrationError
from state_pipelines.keyed.state_table import TTL_COLUMN
from state_pipelines.operations.migration.structs import find_bare, quote_name
from state_pipelines.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from state_pipelines.serializers.tree import Serializer

PREFIX = "__state_"
PAYLOAD = f"{PREFIX}payload"
STORED = f"{PREFIX}stored"
"""The payload as the state that was read had it; only where it is asked for."""

KEYS = ("state_key", "state_namespace", "map_key")
VISIBLE = (*KEYS, "list_index", TTL_COLUMN)
"""Columns that SQL may name beside the fields and `value`."""

NULL_KEY = "the key of some entries becomes null"
EQUAL_KEYS = "several values get the same"
"""Beginnings of the messages for new keys that do not fit; see `FlowRunner.find_unfit_keys`."""

_NOW = ("CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now")
"""Expressions of Spark that are the same in all rows, but not in the run of the proof."""

_NOW_WORDS = ("current_", "localtimestamp", "now(")
"""Words in the texts of `_NOW`."""


def hidden(name: str) -> str:
    """A column under the name that it has inside."""
    return PREFIX + name


def name_column(sql: str, name: str) -> Column:
    """SQL under a name; a column under its own or another name is one question to the JVM instead of two."""
    return F.expr(sql).alias(name) if find_bare(sql) is None else F.expr(f"{sql} AS {quote_name(name)}")


def is_orderable(kind: DataType) -> bool:
    """Return whether Spark can order values of a type: all but maps, and types that hold maps."""
    match kind:
        case MapType():
            return False
        case ArrayType(elementType=element):
            return is_orderable(element)
        case StructType():
            return all(is_orderable(each.dataType) for each in kind)
        case _:
            return True


def spark_type(serializer: Serializer, layouts: LayoutContext) -> DataType:
    """Spark type of the values of a serializer."""
    kind = column_type(derive_layout(serializer, layouts))
    return spark_schema(pa.schema([("value", kind)]))["value"].dataType


def require_deterministic(frame: DataFrame, *, allowed: bool) -> None:
    """Raise when a column of `frame` has other values each time.

    Raises:
        MigrationError: it has, and nothing allows it.
    """
    if allowed:
        return
    expressions = frame._jdf.queryExecution().analyzed().expressions()
    for each in map(expressions.apply, range(expressions.size())):
        if not each.deterministic() or _names_now(each.collectLeaves()):
            text = re.sub(r"#\d+L?", "", each.toString())
            raise MigrationError(
                f"the expression {text} gives other values each time, so that nothing could be proven",
                hint="Use literals, or say `nondeterministic: true` in the step",
            )


def _names_now(leaves: Any) -> bool:
    """Return whether one of the leaves of an expression is the time of the query.

    Every question to the JVM takes about a third of a millisecond: all leaves are looked at only where their text,
    which is one question, may be about the time.
    """
    text = leaves.mkString(" ")
    if not any(word in text for word in _NOW_WORDS):
        return False
    names = {leaves.apply(index).getClass().getSimpleName() for index in range(leaves.size())}
    return not names.isdisjoint(_NOW)


def fold_constants(frame: DataFrame) -> None:
    """Let Spark evaluate the constants in the expressions of a frame, as it does before it reads a row.

    Raises:
        PySparkException: one cannot be evaluated, such as a text that is no date.
    """
    frame._jdf.queryExecution().optimizedPlan()
