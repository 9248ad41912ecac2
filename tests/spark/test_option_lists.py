"""Options of the data source that are lists of directories."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from state_pipelines.dagster.resources import SparkResource
from state_pipelines.errors import UsageError
from state_pipelines.operations.convert.conversion import convert
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark.splits import open_with
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def referencing(tmp_path: Path) -> tuple[Path, Path]:
    """A snapshot whose files stay in another directory, and that directory, which has a comma in its name."""
    old, new = tmp_path / "one,two", tmp_path / "new"
    shutil.copytree(orders().path, old)
    convert(str(old), str(new), "keep", files="reference")
    return new, old


@pytest.mark.parametrize("texts", [["a,b", "c"], [], ["[x]"]])
def test_a_list_may_be_json(tmp_path: Path, texts: list[str]) -> None:
    found = open_with(str(orders().path), {"allowRoots": json.dumps(texts), "pathMapping": '["/a,b=/c"]'})
    assert found.path_mapping.roots == tuple(texts)
    assert found.path_mapping.rules == (("/a,b", "/c"),)


def test_a_list_may_have_commas_between(tmp_path: Path) -> None:
    assert open_with(str(orders().path), {"allowRoots": "/a,/b,"}).path_mapping.roots == ("/a", "/b")


@pytest.mark.parametrize("text", ["[", '["a", 1]', "[a]"])
def test_a_broken_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the option allowRoots is no JSON list of texts"):
        open_with(str(orders().path), {"allowRoots": text})


@pytest.mark.spark
def test_a_root_with_a_comma_reaches_the_tasks(spark: SparkSession, referencing: tuple[Path, Path]) -> None:
    new, old = referencing
    snapshot = open_snapshot(str(new), uids=orders().uids, allow_roots=[str(old)])
    frame = SparkResource().read_state(snapshot, snapshot.operator("orders").state("order"))
    assert frame.count() == orders().open().operator("orders").state("order").to_arrow().num_rows > 0
