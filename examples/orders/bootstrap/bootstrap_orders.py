"""The state of the orders job out of the events in the lake: `python bootstrap_orders.py TARGET [FORMAT]`.

The events before `CUT` become state; the job, started from the savepoint, reads on from there.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import state_pipelines as sp
from state_pipelines.spark import NewOperator, NewState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent
CUT = 1_767_225_800
"""Seconds since 1970; events from here on are left to the job."""

ARCHIVE = 4_922_899_200_000
PAYMENT_TERM = 30 * 86_400_000

ORDER = """Pojo<com.acme.orders.Order>(
    address: Pojo<com.acme.orders.Address>(city: String, street: String, zip: String), amount: Long, customer: String,
    id: String, note: String, quantity: Int,
    status: Enum<com.acme.orders.OrderStatus>(NEW, PAID, SHIPPED, CANCELLED), updatedAt: Instant)"""

NO_UNASSIGNED_SPLITS = struct.pack(">iii", 1, 1, 0)
"""State of a source coordinator: its version, that of the enumerator's serializer, and no bytes: nothing to assign."""


def describe_operators(spark: SparkSession) -> list[NewOperator]:
    """Every operator of the job, with its states as queries."""
    events = spark.read.parquet(str(HERE / "events.parquet")).where(f"at.epoch_second < {CUT}")
    events = events.withColumn("millis", events.at.epoch_second * 1000 + (events.at.nano / 1_000_000).cast("int"))
    prices = spark.read.parquet(str(HERE / "prices.parquet"))

    orders = spark.sql(
        """
        SELECT order_id AS state_key, max_by(struct(address, cents AS amount, customer, order_id AS id, note, quantity,
            status, at AS updatedAt), position) AS value, max(millis) AS millis
        FROM {events} GROUP BY order_id""",
        events=events,
    )
    history = spark.sql(
        """
        SELECT order_id AS state_key, transform(array_sort(collect_list(struct(position,
            concat(status, ' ', article, ', ', customer) AS line))), each -> each.line) AS value
        FROM {events} GROUP BY order_id""",
        events=events,
    )
    quantities = spark.sql(
        """
        SELECT order_id AS state_key, article AS map_key, sum(quantity) AS map_value
        FROM {events} GROUP BY order_id, article""",
        events=events,
    )
    windows = spark.sql(
        """
        SELECT customer AS state_key, struct(minute AS start, minute + 60000 AS end) AS state_namespace,
            struct(sum(cents) AS f0, CAST(count(*) AS INT) AS f1) AS value, minute + 60000 - 1 AS timestamp
        FROM (SELECT *, millis - millis % 60000 AS minute FROM {events}) GROUP BY customer, minute""",
        events=events,
    )
    positions = spark.sql(
        """
        SELECT unhex(concat('0000000100000008', lpad(hex(split), 8, '0'), lpad(hex(count(*)), 8, '0'))) AS value
        FROM {events} GROUP BY split""",
        events=events,
    )
    price_position = spark.sql(
        """
        SELECT unhex(concat('000000010000000800000000', lpad(hex(count(*)), 8, '0'))) AS value FROM {prices}""",
        prices=prices,
    )

    unpaid = orders.where("value.status IN ('NEW', 'CANCELLED')")
    due = {"timestamp": f"millis + {PAYMENT_TERM}"}
    archive = {"timestamp": f"{ARCHIVE} + length(state_key) * 1000"}
    seen = {"value": "value.updatedAt", "ttl_last_access": "millis"}
    listed = {"map_key": "article", "map_value": "price"}
    return [
        NewOperator(
            "orders",
            [
                NewState("order", orders, type=ORDER),
                NewState("history", history, "LIST"),
                NewState("quantities", quantities, "MAP"),
                NewState("last-seen", orders, type="Instant", ttl=True, columns=seen),
                NewState("user-timers", unpaid, "EVENT_TIMERS", columns=due),
                NewState("user-timers", orders, "PROCESSING_TIMERS", columns=archive),
            ],
            key="String",
            parallelism=2,
        ),
        NewOperator(
            "revenue-per-minute",
            [
                NewState("window-contents", windows, "AGGREGATING", type="Tuple2<Long, Int>", namespace="TimeWindow"),
                NewState("window-timers", windows, "EVENT_TIMERS", namespace="TimeWindow"),
            ],
            parallelism=2,
        ),
        NewOperator(
            "order-counter",
            [
                NewState(
                    "returns",
                    spark.sql("SELECT order_id AS value FROM {events} WHERE quantity < 0", events=events),
                    "SPLIT",
                ),
                NewState(
                    "counts",
                    spark.sql(
                        "SELECT struct(status AS f0, count(*) AS f1) AS value FROM {events} GROUP BY status",
                        events=events,
                    ),
                    "UNION",
                    type="Tuple2<String, Long>",
                ),
            ],
            parallelism=2,
        ),
        NewOperator(
            "pricing",
            [NewState("prices", prices, "BROADCAST", columns=listed)],
            parallelism=2,
        ),
        NewOperator(
            "order-source",
            [NewState("SourceReaderState", positions, "SPLIT")],
            parallelism=2,
            coordinator=NO_UNASSIGNED_SPLITS,
        ),
        NewOperator(
            "price-source",
            [NewState("SourceReaderState", price_position, "SPLIT")],
            parallelism=1,
            max_parallelism=128,
            coordinator=NO_UNASSIGNED_SPLITS,
        ),
    ]


def main(target: str, format: str = "canonical") -> None:
    """Write the savepoint."""
    spark = sp.spark.create_session("bootstrap-orders")
    result = sp.bootstrap(target, describe_operators(spark), format=format)
    sys.stdout.write(f"{sum(result.entries.values())} entries of {len(result.entries)} states in {result.path}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
