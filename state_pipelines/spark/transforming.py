"""The steps of a migration as Spark SQL over the values of a state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from state_pipelines.codecs.columns import column_type
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.operations.migration import quote_name
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.types import spark_schema

if TYPE_CHECKING:
    from state_pipelines.operations.migration import ValuePlan

KEPT = "__state_"
"""Prefix under which the other columns pass through, so that no field can hide them."""

VISIBLE = ("state_key", "state_namespace", "map_key")
"""Columns that expressions may name beside the fields."""


def transform_payload(frame: DataFrame, payload: str, plan: ValuePlan, context: LayoutContext) -> DataFrame:
    """`frame` with the values in column `payload` as the steps of `plan` make them; null stays null.

    Raises:
        MigrationError: Spark refuses an expression.
    """
    others = [name for name in frame.columns if name != payload]
    fields = [each.name for each in plan.old.fields]
    visible = [name for name in VISIBLE if name in others and name not in fields]
    kept: list[Column] = [F.col(name).alias(KEPT + name) for name in others]
    kept.append(F.col(payload).isNull().alias(KEPT))
    passing = [F.col(KEPT + name) for name in others] + [F.col(KEPT)]
    with translate_failures("the migration cannot be applied"):
        current = frame.select(
            *kept, *(F.col(name) for name in visible), *(F.col(payload).getField(name).alias(name) for name in fields)
        )
        for projection in plan.projections:
            named = {name for name, _ in projection.columns}
            current = current.select(
                *passing,
                *(F.col(name) for name in visible if name not in named),
                *(F.expr(sql).alias(name) for name, sql in projection.columns),
            )
        target = payload_type(plan, context)
        struct = F.struct(*(F.col(quote_name(each.name)).cast(each.dataType).alias(each.name) for each in target))
        value = F.when(~F.col(KEPT), struct)
        columns = {name: F.col(KEPT + name).alias(name) for name in others}
        columns[payload] = value.alias(payload)
        return current.select(*(columns[name] for name in frame.columns))


def payload_type(plan: ValuePlan, context: LayoutContext) -> StructType:
    """Spark type of the new values."""
    schema = spark_schema(pa.schema([("value", column_type(derive_layout(plan.new, context)))]))
    data_type = schema["value"].dataType
    assert isinstance(data_type, StructType)
    return data_type
