"""A keyed function whose changes are logged: checkpoints upload changes, and go on from one another."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.datastream import KeyedProcessFunction, StateTtlConfig, Time, Types, ValueStateDescriptor
from state_pipelines.metadata.checkpoint import SavepointFormatType
from state_pipelines.metadata.handles import FileStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.streams import StreamRole, list_references
from tests.spark.test_keyed_process import CountClicks, assert_state, clicks, expect, read_state, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.datastream import RuntimeContext
    from state_pipelines.spark import KeyedProcessResult

CHANGELOG = {"state.changelog.enabled": True}


@pytest.fixture(scope="module")
def frames(spark: SparkSession) -> dict[str, DataFrame]:
    schema = "user string, page string, at long"
    return {
        "first": spark.createDataFrame(clicks(0, 120), schema).repartition(3),
        "second": spark.createDataFrame(clicks(120, 200), schema).repartition(3),
        "none": spark.createDataFrame([], schema),
    }


def list_shared_files(result: KeyedProcessResult) -> tuple[set[str], set[str]]:
    """Names of the files of bases and of logs that a checkpoint references."""
    assert result.snapshot is not None
    found: dict[bool, set[str]] = {False: set(), True: set()}
    for reference in list_references(result.snapshot.metadata):
        assert isinstance(reference.handle, FileStateHandle)
        found[reference.role is StreamRole.CHANGES].add(reference.handle.path.rpartition("/")[2])
    return found[False], found[True]


@pytest.mark.parametrize(("backend", "compressed"), [("hashmap", True), ("rocksdb", False)])
def test_a_checkpoint_of_a_changelog_uploads_the_changes(
    frames: dict[str, DataFrame], tmp_path: Path, backend: str, compressed: bool
) -> None:
    chosen: dict[str, Any] = CHANGELOG | {"state.backend.type": backend}
    if compressed:
        chosen |= {
            "state.changelog.dstl.dfs.compression.enabled": True,
            "execution.checkpointing.snapshot-compression": True,
        }
    options: dict[str, Any] = {"checkpoint": str(tmp_path), "parallelism": 2, "options": chosen}
    first = run(frames["first"], **options)
    bases, logs = list_shared_files(first)
    assert bases
    assert not logs
    assert first.persisted_size == first.state_size
    # Without rows nothing is uploaded.
    second = run(frames["none"], from_snapshot=first.snapshot, **options)
    assert list_shared_files(second) == (bases, set())
    assert second.persisted_size == 0
    third = run(frames["second"], from_snapshot=second.snapshot, **options)
    assert_state(third, 0, 200)
    found, logs = list_shared_files(third)
    assert found == bases
    assert len(logs) == 2
    assert 0 < third.persisted_size < third.state_size
    fourth = run(frames["second"], from_snapshot=third.snapshot, **options)
    found, more = list_shared_files(fourth)
    assert found == bases
    assert more > logs
    (job,) = tmp_path.iterdir()
    assert {path.name for path in (job / "shared").iterdir()} == bases | more
    # At another parallelism and without changelog the state is the same, and has a base of its own or none.
    states = [read_state(fourth, name) for name in ("count", "pages")]
    elsewhere = run(frames["none"], from_snapshot=fourth.snapshot, **(options | {"parallelism": 3}))
    assert not list_shared_files(elsewhere)[0] & bases
    assert [read_state(elsewhere, name) for name in ("count", "pages")] == states
    plain = options | {"options": {"state.backend.type": backend}}
    without = run(frames["none"], from_snapshot=elsewhere.snapshot, **plain)
    assert [read_state(without, name) for name in ("count", "pages")] == states


def test_the_base_of_a_changelog_is_replaced_when_it_is_old(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    interval = "state.changelog.periodic-materialize.interval"
    options: dict[str, Any] = {"checkpoint": str(tmp_path), "parallelism": 1}
    first = run(frames["first"], **options, options=CHANGELOG)
    old = time.time() - 3600
    for path in tmp_path.glob("*/shared/*"):
        os.utime(path, (old, old))
    never = CHANGELOG | {"state.changelog.periodic-materialize.enabled": False}
    second = run(frames["none"], **options, from_snapshot=first.snapshot, options=never)
    assert list_shared_files(second)[0] == list_shared_files(first)[0]
    third = run(frames["none"], **options, from_snapshot=second.snapshot, options=CHANGELOG | {interval: "2 h"})
    assert list_shared_files(third)[0] == list_shared_files(first)[0]
    fourth = run(frames["none"], **options, from_snapshot=third.snapshot, options=CHANGELOG)
    assert not list_shared_files(fourth)[0] & list_shared_files(first)[0]
    assert_state(fourth, 0, 120)
    # A savepoint has no part of the changelog, and another owner's files are not referenced.
    saved = run(
        frames["none"],
        from_snapshot=fourth.snapshot,
        savepoint=str(tmp_path / "savepoints"),
        savepoint_format=SavepointFormatType.NATIVE,
        options=CHANGELOG | {"execution.checkpointing.data-inline-threshold": 0},
    )
    assert saved.snapshot is not None
    kinds = {type(reference.handle) for reference in list_references(saved.snapshot.metadata)}
    assert kinds == {RelativeFileStateHandle}
    other = run(frames["none"], from_snapshot=fourth.snapshot, checkpoint=str(tmp_path / "other"), options=CHANGELOG)
    assert not list_shared_files(other)[0] & list_shared_files(fourth)[0]


class ShortLived(CountClicks):
    """Counts with TTL."""

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        recent = ValueStateDescriptor("recent", Types.LONG())
        recent.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())
        self.recent = runtime_context.get_state(recent)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        self.recent.update(1)
        yield from super().process_element(value, ctx)


def test_state_with_ttl_is_logged(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": str(tmp_path), "parallelism": 1, "options": CHANGELOG}
    first = run(frames["first"], ShortLived(), **options)
    second = run(frames["second"], ShortLived(), from_snapshot=first.snapshot, **options)
    bases, logs = list_shared_files(second)
    assert (bases, len(logs)) == (list_shared_files(first)[0], 1)
    assert_state(second, 0, 200)
    assert set(read_state(second, "recent")) == set(expect(0, 200)[0])
