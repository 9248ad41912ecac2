"""Plans of real Flink say the states that the savepoint of the running plan had."""

from __future__ import annotations

import gzip
import json

import pytest

from state_pipelines.sql import read_plan
from tests.flink.planned_states import list_planned
from tests.snapshots import DATA

RECORDED = sorted((DATA / "sql/plans").glob("flink-*.json.gz"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_plan_says_the_states_of_its_job(path: object) -> None:
    content = json.loads(gzip.decompress(path.read_bytes()))  # type: ignore[attr-defined]
    assert len(content["states"]) == 85
    assert list_planned(read_plan(json.dumps(content["plan"]))) == content["states"]


def test_every_release_is_recorded() -> None:
    assert [each.name for each in RECORDED] == [f"flink-{line}.json.gz" for line in ("1.20", "2.2", "2.3")]
