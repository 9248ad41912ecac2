"""Plans as Flink compiles them, with what the tests look at."""

from __future__ import annotations

import itertools
import json
from typing import Any

SOURCE = "ROW<`id` BIGINT, `amount` BIGINT, `qty` INT, `name` VARCHAR(20) NOT NULL>"
COLUMNS = ("id", "amount", "qty", "name")


def ref(index: int, of: str = "BIGINT") -> dict[str, Any]:
    return {"kind": "INPUT_REF", "inputIndex": index, "type": of}


def scan(number: int, table: str = "src", row: str = SOURCE) -> dict[str, Any]:
    identifier = f"`default_catalog`.`default_database`.`{table}`"
    return {
        "id": number,
        "type": "stream-exec-table-source-scan_1",
        "scanTableSource": {"table": {"identifier": identifier}},
        "outputType": row,
        "description": f"TableSourceScan({table})",
    }


def exchange(number: int, row: str = SOURCE) -> dict[str, Any]:
    return {"id": number, "type": "stream-exec-exchange_1", "outputType": row, "description": "Exchange"}


def call(function: str, *arguments: int, of: str = "BIGINT", **others: Any) -> dict[str, Any]:
    return {"internalName": f"${function}$1", "argList": [*arguments], "filterArg": -1, "type": of, **others}


def aggregate(number: int, grouping: list[int], *calls: dict[str, Any], **others: Any) -> dict[str, Any]:
    types = [f"`k{each}` BIGINT" for each in grouping] + [f"`c{n}` {each['type']}" for n, each in enumerate(calls)]
    return {
        "id": number,
        "type": "stream-exec-group-aggregate_1",
        "grouping": grouping,
        "aggCalls": [*calls],
        "aggCallNeedRetractions": [bool(others.get("needRetraction"))] * len(calls),
        "needRetraction": False,
        "state": [{"index": 0, "ttl": "0 ms", "name": "groupAggregateState"}],
        "outputType": f"ROW<{', '.join(types)}>",
        "description": "GroupAggregate",
        **others,
    }


def join(number: int, left: str, right: str, **others: Any) -> dict[str, Any]:
    return {
        "id": number,
        "type": "stream-exec-join_1",
        "joinSpec": {"joinType": others.pop("kind", "INNER"), "leftKeys": [0], "rightKeys": [0]},
        "state": [{"index": 0, "ttl": "0 ms"}, {"index": 1, "ttl": "1 d"}],
        "outputType": f"{left[:-1]}, {right.removeprefix('ROW<')}",
        "description": "Join",
        **others,
    }


def make_plan(*nodes: dict[str, Any], edges: list[tuple[int, int]] | None = None) -> str:
    """The JSON of a plan; without edges every node reads the one before it."""
    numbers = [node["id"] for node in nodes]
    pairs = list(itertools.pairwise(numbers)) if edges is None else edges
    return json.dumps(
        {
            "flinkVersion": "2.2",
            "nodes": [*nodes],
            "edges": [{"source": source, "target": target} for source, target in pairs],
        }
    )
