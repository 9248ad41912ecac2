"""The fork for staging of `docs/erasing.md`."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import parse_migration
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import migrate
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "erasing.md"


def mask(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_keys_and_values_are_masked(spark: SparkSession, tmp_path: Path) -> None:
    _, staging = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    result = migrate(orders().open(), parse_migration(yaml.safe_load(staging)), str(tmp_path / "fork"))
    lines = [line for line in dump(open_snapshot(result.path)) if line["op"] == "orders"]
    old = [line for line in dump(orders().open()) if line["op"] == "orders"]
    assert {str(line["key"]) for line in lines} == {mask(str(line["key"])) for line in old}
    assert len(lines) == len(old)
    values = {line["key"]: line["value"] for line in lines if line.get("state") == "order"}
    for line in old:
        if line.get("state") == "order" and isinstance(line["value"], dict):
            value = values[mask(str(line["key"]))]
            assert isinstance(value, dict)
            assert value["id"] == mask(str(line["value"]["id"]))
            assert value["note"] is None
            assert value["amount"] == line["value"]["amount"]
