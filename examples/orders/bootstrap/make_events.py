"""Makes the lake of the example: `python examples/orders/bootstrap/make_events.py`.

`events.parquet` has the events that the source of the job emits (`OrderEvents.java`), `prices.parquet` its price list.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
ORDERS, SPLITS, ARTICLES, SEED = 200, 2, 12, 2026
START = int(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp())
CUSTOMERS = ("ada", "Zoë", "李雷", "smile 😀", "o'neil, jr.", "", "Ωmega")
CITIES = ("Berlin", "Århus", "東京", "", "San José")
NOTES = (None, "", "leave at the door", "Bitte klingeln: Müller", "🎁 gift")
STATUSES = ("NEW", "PAID", "SHIPPED", "CANCELLED")

_ADDRESS = pa.struct([("street", pa.string()), ("city", pa.string()), ("zip", pa.string())])
SCHEMA = pa.schema(
    [
        ("split", pa.int32()),
        ("position", pa.int32()),
        ("order_id", pa.string()),
        ("customer", pa.string()),
        ("article", pa.string()),
        ("quantity", pa.int32()),
        ("cents", pa.int64()),
        ("note", pa.string()),
        ("at", pa.struct([("epoch_second", pa.int64()), ("nano", pa.int32())])),
        ("address", _ADDRESS),
        ("status", pa.string()),
    ]
)


class Random:
    """`java.util.Random`."""

    def __init__(self, seed: int) -> None:
        self._seed = (seed ^ 0x5DEECE66D) & ((1 << 48) - 1)

    def next_int(self, bound: int) -> int:
        """`nextInt(bound)`."""
        drawn = self._next()
        if bound & (bound - 1) == 0:
            return (bound * drawn) >> 31
        while drawn - drawn % bound + bound - 1 >= 1 << 31:
            drawn = self._next()
        return drawn % bound

    def _next(self) -> int:
        self._seed = (self._seed * 0x5DEECE66D + 0xB) & ((1 << 48) - 1)
        return self._seed >> 17


def make_events() -> list[dict[str, Any]]:
    """All events, those of a split in their order."""
    random, positions, events = Random(SEED), [0] * SPLITS, []
    for number in range(ORDERS):
        split = number % SPLITS
        for change in range(1 + random.next_int(3)):
            events.append({"split": split, "position": positions[split], **make_event(number, change, random)})
            positions[split] += 1
    return events


def make_event(number: int, change: int, random: Random) -> dict[str, Any]:
    """`OrderEvents.event`."""
    article = name_article(random.next_int(ARTICLES))
    quantity = random.next_int(25) - 2
    cents = 9_007_199_254_740_991 if number == 0 else quantity * (99 + random.next_int(10_000))
    note = NOTES[random.next_int(len(NOTES))]
    nano = random.next_int(1_000_000_000)
    address = None if random.next_int(5) == 0 else make_address(number, random)
    return {
        "order_id": f"Bestellung-Ü{number:04d}" if number % 10 == 7 else f"order-{number:04d}",
        "customer": CUSTOMERS[number % len(CUSTOMERS)],
        "article": article,
        "quantity": quantity,
        "cents": cents,
        "note": note,
        "at": {"epoch_second": START + number * 2 + change, "nano": nano},
        "address": address,
        "status": STATUSES[min(change + random.next_int(2), len(STATUSES) - 1)],
    }


def name_article(number: int) -> str:
    """`Prices.article`."""
    return f"café-{number}" if number == 5 else f"article-{number}"


def make_address(number: int, random: Random) -> dict[str, Any]:
    """`OrderEvents.address`."""
    code = None if random.next_int(4) == 0 else f"{random.next_int(100_000):05d}"
    return {"street": f"Main Street {number}", "city": CITIES[random.next_int(len(CITIES))], "zip": code}


def main() -> None:
    """Make both files."""
    pq.write_table(pa.Table.from_pylist(make_events(), SCHEMA), HERE / "events.parquet")
    prices = [{"article": name_article(number), "price": number * 12.5 - 1} for number in range(ARTICLES)]
    pq.write_table(pa.Table.from_pylist(prices), HERE / "prices.parquet")


if __name__ == "__main__":
    main()
