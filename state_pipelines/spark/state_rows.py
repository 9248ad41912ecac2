"""Rows of a state as expectations see them: the key, and the payload under the name that tables give it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from state_pipelines.codecs.serializer_layouts import OpaqueValues
from state_pipelines.keyed.state_table import TTL_COLUMN
from state_pipelines.operations.migration.shapes import find_shapes
from state_pipelines.spark.flow_columns import KEYS, PAYLOAD, hidden
from state_pipelines.spark.flows import StateReader
from state_pipelines.spark.operator_state import OperatorStateReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.snapshot import Operator

_COLUMNS = (*KEYS, "subtask", "list_index", TTL_COLUMN)


def read_rows(spark: SparkSession, operator: Operator, state: str) -> DataFrame:
    """The rows of a keyed, list or broadcast state, whose snapshot need not be published.

    Columns: those of the key (`state_key`, `state_namespace`, `map_key`, `list_index`; of operator state `subtask`),
    `ttl_last_access`, and the payload: `value`, `list_value` or `map_value`.

    Raises:
        StateError: the state cannot be read.
    """
    shape = find_shapes(operator)[state]
    if shape.is_keyed:
        frame = StateReader(spark, operator, opaque_values=OpaqueValues.UNDECODABLE).read(state, KEYS)
    else:
        frame = OperatorStateReader(spark, operator, opaque_values=OpaqueValues.UNDECODABLE).read(state, ())
    shown = [F.col(hidden(each)).alias(each) for each in _COLUMNS if hidden(each) in frame.columns]
    payload = [F.col(PAYLOAD).alias(shape.column)] if PAYLOAD in frame.columns else []
    return frame.select(*shown, *payload)
