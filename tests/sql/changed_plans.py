"""Plans of changed queries that Flink has compiled (`tests/data/sql/changes/queries.sql`)."""

from __future__ import annotations

import gzip
import json
from functools import cache
from typing import TYPE_CHECKING, Any

from state_pipelines.sql import Plan, read_plan
from state_pipelines.sql.comparison import compare_plans
from tests.snapshots import DATA

if TYPE_CHECKING:
    from state_pipelines.sql.verdict import OperatorVerdict, PlanComparison

CHANGES = DATA / "sql/changes"


@cache
def read_changed() -> dict[str, Any]:
    """The JSON of the plans by name of the query."""
    content: dict[str, Any] = json.loads(gzip.decompress((CHANGES / "plans.json.gz").read_bytes()))
    return content


@cache
def read_pairs() -> dict[str, list[Any]]:
    """The JSON of the plans of old and new query by name of the pair (`pairs.sql`)."""
    content: dict[str, list[Any]] = json.loads(gzip.decompress((CHANGES / "pairs.json.gz").read_bytes()))
    return content


def compare_pair(name: str) -> PlanComparison:
    """The comparison of the plans of a pair."""
    old, new = (read_plan(json.dumps(each)) for each in read_pairs()[name])
    return compare_plans(old, new)


@cache
def changed_plan(name: str) -> Plan:
    """The plan of a query."""
    return read_plan(json.dumps(read_changed()[name]))


def shift(name: str, offset: int) -> Plan:
    """The plan of a query as a process that has compiled others gives it: with other numbers of nodes."""
    content = json.loads(json.dumps(read_changed()[name]))
    for node in content["nodes"]:
        node["id"] += offset
    for edge in content["edges"]:
        edge["source"] += offset
        edge["target"] += offset
    return read_plan(json.dumps(content))


def compare(old: str, new: str) -> PlanComparison:
    """The comparison of the plans of two queries."""
    return compare_plans(changed_plan(old), changed_plan(new))


def find_operator(comparison: PlanComparison, kind: str) -> OperatorVerdict:
    """The only operator of a kind of node in a comparison."""
    (found,) = (each for each in comparison.operators if kind in (each.new or each.old).kind)  # type: ignore[union-attr]
    return found
