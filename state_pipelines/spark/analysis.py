"""Analysis of the SQL of a migration before any data are read: names, types, and what is constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from state_pipelines.errors import at
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.state_table import KeyedTable, TableOptions
from state_pipelines.operations.migration.flows import Merge, Read, walk_flow
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.spark.flows import FlowRunner, name_columns
from state_pipelines.spark.operator_state import make_encoder
from state_pipelines.spark.types import PAYLOAD, STORED, VISIBLE, find_layouts, hidden, layout_type, spark_schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.operations.migration.flows import OperatorPlan
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator


def analyse_plans(spark: SparkSession, plans: Iterable[tuple[Operator, OperatorPlan]]) -> None:
    """Let Spark analyse every expression of plans and their ways back, over frames without rows.

    Raises:
        MigrationError: Spark refuses an expression, or a constant cannot be evaluated; names operator, state and step.
    """
    for operator, plan in plans:
        for each in (plan, plan.back):
            for flow in () if each is None else each.changed.values():
                assert each is not None
                # The shapes of what is read list the subclasses that real readers know from the whole snapshot.
                shapes = {read.state: read.shape for read in walk_flow(flow, beside=True) if isinstance(read, Read)}
                reader = EmptyReader(spark, operator, shapes, each.row_layouts)
                with at(operator=operator.label):
                    FlowRunner(reader, each.row_layouts, folding=True).build(flow)


def differ_by_case(plans: Iterable[tuple[Operator, OperatorPlan]]) -> bool:
    """Return whether names that SQL may use differ in their case only, so that Spark must not take them for one."""
    for _, plan in plans:
        for each in (plan, plan.back):
            for flow in () if each is None else each.changed.values():
                assert each is not None
                for node in walk_flow(flow, beside=True):
                    if isinstance(node, Merge) and _collide([*VISIBLE, *(name for name, _ in node.inputs)]):
                        return True
                    if node.shape.kind == StateKind.TIMER:
                        continue
                    kind = layout_type(find_layouts(node.shape.payload, each.row_layouts)[1])
                    fields = kind.names if isinstance(kind, StructType) else []
                    if _collide({*fields, *VISIBLE, "value"}) or _has_collision(kind):
                        return True
    return False


def _collide(names: Collection[str]) -> bool:
    return len({name.lower() for name in names}) < len(names)


def _has_collision(kind: DataType) -> bool:
    match kind:
        case StructType():
            return _collide(kind.names) or any(_has_collision(each.dataType) for each in kind)
        case ArrayType(elementType=element):
            return _has_collision(element)
        case MapType(keyType=key, valueType=value):
            return _has_collision(key) or _has_collision(value)
        case _:
            return False


@dataclass(frozen=True)
class EmptyReader:
    """Frames without rows, with the columns that the readers of states give; see `flows.FrameReader`.

    Attributes:
        operator: the operator that has the states, or will have them.
        shapes: of the states.
        layouts: what layouts depend on.
    """

    spark: SparkSession
    operator: Operator
    shapes: Mapping[str, StateShape]
    layouts: LayoutContext

    def read(self, name: str, keys: tuple[str, ...], *, stored: bool = False) -> DataFrame:
        """See `flows.FrameReader.read`."""
        schema = spark_schema(self._make_schema(self.shapes[name], keys))
        # Spark simplifies plans over what it knows to be empty, so that it evaluates nothing there.
        frame = self.spark.range(0).mapInArrow(_pass, schema)
        return frame.withColumn(STORED, F.col(PAYLOAD)) if stored else frame

    def _make_schema(self, shape: StateShape, keys: tuple[str, ...]) -> pa.Schema:
        if not shape.is_keyed:
            *others, payload = make_encoder(self.operator, shape, self.layouts).types.items()
            extra = others[0] if shape.kind == StateKind.BROADCAST else ("list_index", pa.int64())
            return pa.schema([(hidden("subtask"), pa.int32()), (hidden(extra[0]), extra[1]), (PAYLOAD, payload[1])])
        assert shape.key is not None
        layout = derive_keyed_layout(shape.info, shape.key, self.operator.max_parallelism, self.layouts)
        names = name_columns(layout, keys)
        schema = KeyedTable(layout, TableOptions(columns=tuple(names), key_bytes=True), "").schema
        return pa.schema([each.with_name(names[each.name]) for each in schema])


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
