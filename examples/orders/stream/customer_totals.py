"""The stream of orders on Spark: what each customer has bought, as state that Flink restores.

`assets/defs/customers/defs.yaml` runs it in Dagster.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from state_pipelines.datastream import KeyedProcessFunction, MapStateDescriptor, Types, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from state_pipelines.datastream import RuntimeContext

LAKE = Path(__file__).resolve().parents[1] / "bootstrap"
SCHEMA = "split int, position int, order_id string, customer string, article string, quantity int, cents long"


class SumOrders(KeyedProcessFunction):
    """Sums cents per customer, and quantities per customer and article."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the state."""
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self.articles = runtime_context.get_map_state(MapStateDescriptor("articles", Types.STRING(), Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        """Add an order."""
        self.total.update((self.total.value() or 0) + value.cents)
        self.articles.put(value.article, (self.articles.get(value.article) or 0) + value.quantity)


def sum_orders(spark: SparkSession, keyed_batches: Callable[..., Any]) -> DataStreamWriter:
    """Read new files of events; each file is a batch."""
    events = (
        spark.readStream.schema(SCHEMA)
        .option("pathGlobFilter", "events*.parquet")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(LAKE))
    )
    return events.writeStream.foreachBatch(
        keyed_batches(key="customer", function=SumOrders(), uid="customers", parallelism=2)
    )
