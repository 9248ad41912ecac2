from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import MissingFileError, UsageError
from state_pipelines.operations.jobs.flink_config import FlinkConfig, load_flink_config

if TYPE_CHECKING:
    from pathlib import Path

NESTED = """
execution:
  checkpointing:
    dir: s3://bucket/checkpoints
    savepoint-dir: s3://bucket/savepoints
    num-retained: 3
    interval: 30 s
table:
  exec:
    state:
      ttl: 7 d
"""
FLAT = """
state.checkpoints.dir: s3://bucket/checkpoints
state.savepoints.dir: s3://bucket/savepoints
state.checkpoints.num-retained: 3
execution.checkpointing.interval: 30000
table.exec.state.ttl: 168h
"""
EXPECTED = FlinkConfig("s3://bucket/checkpoints", "s3://bucket/savepoints", 3, timedelta(seconds=30), timedelta(days=7))


def load(directory: Path, text: str) -> FlinkConfig:
    file = directory / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return load_flink_config(str(file))


@pytest.mark.parametrize("text", [NESTED, FLAT], ids=["config.yaml", "flink-conf.yaml with old keys"])
def test_both_forms_of_the_file_say_the_same(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == EXPECTED


def test_the_key_of_today_wins_over_an_old_one(tmp_path: Path) -> None:
    text = "state.checkpoints.num-retained: 3\nexecution.checkpointing.num-retained: 5\n"
    assert load(tmp_path, text).num_retained == 5


def test_what_is_not_said_is_none(tmp_path: Path) -> None:
    assert load(tmp_path, "parallelism.default: 2\n") == FlinkConfig()
    assert load(tmp_path, "") == FlinkConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("execution.checkpointing.interval: soon", "execution.checkpointing.interval is 'soon'"),
        ("state.checkpoints.num-retained: many", "execution.checkpointing.num-retained is 'many'"),
        ("- a list", "not a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path, text)
    assert caught.value.where.file == str(tmp_path / "config.yaml")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        load_flink_config(str(tmp_path / "none.yaml"))


def test_a_key_that_is_there_twice(tmp_path: Path) -> None:
    # `GlobalConfiguration` takes the last one of the old file, and refuses the new one.
    text = "state.checkpoints.num-retained: 3\nstate.checkpoints.num-retained: 5\n"
    (tmp_path / "flink-conf.yaml").write_text(text)
    (tmp_path / "config.yaml").write_text(text)
    assert load_flink_config(str(tmp_path / "flink-conf.yaml")).num_retained == 5
    with pytest.raises(UsageError, match="is there twice, in lines 1 and 2"):
        load_flink_config(str(tmp_path / "config.yaml"))
