"""Compiled plans are read, and what is none is refused with a reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import FormatError, MissingFileError, UnsupportedError
from state_pipelines.serializers.text import describe_type
from state_pipelines.sql import load_plan, read_plan
from state_pipelines.sql.compiled_plans import read_type
from tests.sql.small_plans import aggregate, call, exchange, make_plan, scan

if TYPE_CHECKING:
    from pathlib import Path

PLAN = make_plan(scan(1), exchange(2), aggregate(3, [0], call("COUNT", of="BIGINT NOT NULL")))


def test_nodes_and_edges() -> None:
    plan = read_plan(PLAN)
    assert plan.flink_version == "2.2"
    assert [(each.id, each.kind, each.version, each.inputs) for each in plan.nodes] == [
        (1, "table-source-scan", 1, ()),
        (2, "exchange", 1, (1,)),
        (3, "group-aggregate", 1, (2,)),
    ]
    assert plan.nodes[0].columns == ("id", "amount", "qty", "name")
    assert plan.inputs_of(plan.nodes[2]) == (plan.nodes[1],)


def test_a_type_without_a_text_is_an_object() -> None:
    time = {"type": "TIMESTAMP_WITHOUT_TIME_ZONE", "nullable": False, "precision": 3, "kind": "ROWTIME"}
    row = {"type": "ROW", "fields": [{"name": "t", "fieldType": time}, {"name": "n", "fieldType": "INT"}]}
    assert describe_type(read_type(row)) == "ROW<t TIMESTAMP(3) NOT NULL, n INT>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{", "the plan is not JSON"),
        ("[]", "no compiled plan"),
        ('{"nodes": []}', "no flinkVersion"),
        (PLAN.replace('"stream-exec-exchange_1"', '"exchange"'), "node 2 of the plan has the type 'exchange'"),
        (PLAN.replace('"id": 2,', '"id": 1,'), "several nodes of the plan have one id"),
        (PLAN.replace('"source": 1', '"source": 9'), "node 2 of the plan reads node 9, which is not in the plan"),
        (PLAN.replace('"source": 1', '"source": 3'), "node 2 of the plan comes before node 3"),
        (PLAN.replace("BIGINT, `amount`", "BIGIN, `amount`"), "output type of node 1 .* 'BIGIN' is not a SQL type"),
    ],
)
def test_what_is_no_plan(change: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_plan(change)


def test_a_plan_of_a_batch_job_keeps_no_state() -> None:
    with pytest.raises(UnsupportedError, match="batch job, which keeps no state"):
        read_plan(PLAN.replace("stream-exec-exchange", "batch-exec-exchange"))


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        load_plan(str(tmp_path / "plan.json"))
    (tmp_path / "plan.json").write_bytes(b"\xff")
    with pytest.raises(FormatError, match="not text") as error:
        load_plan(str(tmp_path / "plan.json"))
    assert error.value.where.file == str(tmp_path / "plan.json")


def test_the_plans_of_flink_are_read(fixtures: Path) -> None:
    paths = sorted((fixtures / "flink/sql").glob("*/plan/*.json"))
    assert len(paths) > 50
    for path in paths:
        plan = load_plan(str(path))
        assert [each.id for each in plan.nodes] == [each["id"] for each in json.loads(path.read_text())["nodes"]]
        assert all(each.row is not None for each in plan.nodes)
