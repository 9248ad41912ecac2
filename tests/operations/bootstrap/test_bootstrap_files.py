"""Descriptions of a bootstrap: their YAML, and where the rows are that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from state_pipelines.errors import UsageError
from state_pipelines.operations.bootstrap.parquet_rows import ParquetFiles, load_bootstrap

if TYPE_CHECKING:
    from pathlib import Path

DESCRIPTION = "operators: [{{uid: a, states: [{{name: s, rows: '{}'}}]}}]"


def find_rows(path: str) -> str:
    ((state,),) = (each.states for each in load_bootstrap(path).operators)
    assert isinstance(state.rows, ParquetFiles)
    return state.rows.path


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ("data/*.parquet", "{}/data/*.parquet"),
        ("/data", "/data"),
        ("file:/data", "file:/data"),
        ("file:///data", "file:///data"),
        ("s3a://bucket/data", "s3a://bucket/data"),
    ],
)
def test_relative_rows_are_beside_the_description(tmp_path: Path, rows: str, found: str) -> None:
    (tmp_path / "new.yaml").write_text(DESCRIPTION.format(rows))
    assert find_rows(str(tmp_path / "new.yaml")) == found.format(tmp_path)
    assert find_rows(f"file:{tmp_path}/new.yaml") == found.format(tmp_path)


def test_relative_rows_are_beside_a_description_at_a_url() -> None:
    MemoryFileSystem().pipe("/descriptions/new.yaml", DESCRIPTION.format("data/rows.parquet").encode())
    assert find_rows("memory://descriptions/new.yaml") == "memory:///descriptions/data/rows.parquet"


@pytest.mark.slow
@pytest.mark.parametrize("text", ["operators: !!bool x", "operators: &a [*a]", "[" * 5000, "a: [", "\x00"])
def test_what_is_no_yaml_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "new.yaml").write_text(text)
    with pytest.raises(UsageError, match="the file is no YAML"):
        load_bootstrap(str(tmp_path / "new.yaml"))
