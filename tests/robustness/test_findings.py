"""Faults that damaged input has shown, one test for each."""

from __future__ import annotations

import re
import shutil
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import FormatError, UnsupportedError, UsageError
from state_pipelines.metadata.handles import ByteStreamStateHandle
from state_pipelines.metadata.streams import read_whole_stream, replace_stream_handles
from state_pipelines.operations.balance import measure_balance
from state_pipelines.operations.convert import convert
from state_pipelines.operations.diff.diff import diff
from state_pipelines.operations.dump import dump
from state_pipelines.operations.inspect import inspect
from state_pipelines.operations.jobs.flink_config import load_flink_config
from state_pipelines.operations.rescale import RescaleRequest, rescale
from state_pipelines.snapshot import open_snapshot
from state_pipelines.snapshot.snapshot import Snapshot
from tests.snapshots import OWN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from state_pipelines.metadata import StreamReference
    from state_pipelines.metadata.checkpoint import SubtaskState
    from state_pipelines.metadata.handles import StreamStateHandle


def test_timers_are_shown_where_one_subtask_has_a_namespace_that_nothing_reads(tmp_path: Path) -> None:
    (case,) = (each for each in OWN if each.name == "types-2.2-heap")
    target = tmp_path / "savepoint"
    shutil.copytree(case.path, target)
    void = b"VoidNamespaceSerializer$Void"
    files = [
        file for file in sorted(target.iterdir()) if b"_timer_state/" in (data := file.read_bytes()) and void in data
    ]
    files[0].write_bytes(files[0].read_bytes().replace(void, b"VoidNamespaceSerialiZer$Void"))
    timers = [line for line in dump(str(target)) if line["kind"] == "timer"]
    sound = [line for line in dump(str(case.path)) if line["kind"] == "timer"]
    assert len(timers) == len(sound)
    unread = [line for line in timers if line["ns"] is not None and "@reason" in str(line["ns"])]
    assert 0 < len(unread) < len(sound)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"max_parallelism": -1}, "the max parallelism -1 is not between 1 and 32,768"),
        # Such an array of counters would need 16 GiB.
        ({"max_parallelism": 2**31 - 1}, "the max parallelism 2147483647 is not between 1 and 32,768"),
        ({"parallelism": 0}, "the parallelism 0 is below 1"),
        ({"max_parallelism": 1}, "key groups 1-127 although there are 1"),
    ],
)
def test_a_parallelism_that_cannot_be_is_named(numbers: dict[str, Any], message: str) -> None:
    (case,) = (each for each in OWN if each.name == "types-2.2-heap-checkpoint")
    sound = case.open()
    operators = tuple(replace(each, **numbers) for each in sound.metadata.operator_states)
    metadata = replace(sound.metadata, operator_states=operators)
    damaged = Snapshot(sound.location, metadata, sound.path_mapping, sound.declarations)
    keyed = [each for each in damaged.operators if any(one.managed_keyed_state for one in each.metadata.subtasks)]
    assert keyed
    for operator in keyed:
        assert re.search(message, str([str(each.error) for each in operator.survey().failures]))
    assert message in str([each.error for each in measure_balance(damaged).operators])
    assert message in str(diff(damaged, damaged).to_json())


@pytest.mark.parametrize(
    "lines",
    [
        "\n" * 1_000_000,
        " " * 1_000_000,
        "db_log_dir=" + "op___1" * 100_000,
        "compression=k" + "Compression" * 100_000 + "!",
    ],
    ids=["empty lines", "blanks", "directories", "compressions"],
)
def test_options_of_a_database_take_time_in_proportion_to_their_size(lines: str) -> None:
    (case,) = (each for each in OWN if each.name == "types-2.2-rocksdb-incremental")
    sound = case.open()

    def enlarge(reference: StreamReference) -> StreamStateHandle:
        content = read_whole_stream(sound.handles.open_stream(reference.handle))
        is_options = content.startswith(b"# This is a RocksDB option file.")
        return ByteStreamStateHandle("options", lines.encode() + b"\n" + content) if is_options else reference.handle

    metadata = replace_stream_handles(sound.metadata, enlarge)
    assert metadata != sound.metadata
    damaged = Snapshot(sound.location, metadata, sound.path_mapping, sound.declarations)
    formats = {format.compression for each in inspect(damaged).operators for format in each.keyed_formats}
    assert "snappy" in formats


@pytest.mark.parametrize("digits", [20, 5000])
def test_a_duration_that_nothing_can_count_is_refused(tmp_path: Path, digits: int) -> None:
    (tmp_path / "config.yaml").write_text(f"execution.checkpointing.interval: {'9' * digits} d\n")
    with pytest.raises(UsageError, match=r"execution\.checkpointing\.interval is .*, which is too long"):
        load_flink_config(str(tmp_path / "config.yaml"))


def test_only_a_map_with_a_serializer_of_its_own_is_not_read_from_changes(tmp_path: Path) -> None:
    # Nothing is materialized, so that the serializer of the keys is found by the changes, those of the map among them.
    (case,) = (each for each in OWN if each.name == "types-2.2-changelog-heap-files")
    target = tmp_path / "folder"
    shutil.copytree(case.folder, target)
    for file in (each for each in target.rglob("*") if each.is_file()):
        data = file.read_bytes()
        file.write_bytes(data.replace(b"base.MapSerializerSnapshot", b"base.MapSeriali_erSnapshot"))
    sound = {each.name: each for each in case.open().operator("few-states").survey().states}
    mapping = (f"file:{case.written}={target}",)
    snapshot = open_snapshot(str(target / case.path.relative_to(case.folder)), path_mapping=mapping)
    survey = snapshot.operator("few-states").survey()
    assert not survey.failures
    assert {each.name for each in survey.states} == set(sound)
    for state in survey.states:
        if state.name == "map":
            with pytest.raises(UnsupportedError, match="MapSeriali_erSnapshot"):
                list(state.batches())
        else:
            rows = [row for batch in state.batches() for row in batch.to_pylist()]
            assert rows == [row for batch in sound[state.name].batches() for row in batch.to_pylist()]


@pytest.mark.parametrize("version", ["2.2", "2.3"])
def test_key_groups_of_forst_that_do_not_fit_into_its_keys_are_refused(tmp_path: Path, version: str) -> None:
    (case,) = (each for each in OWN if each.name == f"types-{version}-forst")
    target = tmp_path / "folder"
    shutil.copytree(case.folder, target)
    metadata = target / case.path.relative_to(case.folder) / "_metadata"
    sound = metadata.read_bytes()
    # One bit of a `_metadata`: the key groups of the second subtask begin at 320 and not at 64, of 128.
    damaged = sound.replace(struct.pack(">ii", 64, 64), struct.pack(">ii", 320, 64))
    assert damaged != sound
    metadata.write_bytes(damaged)
    snapshot = open_snapshot(str(metadata.parent), path_mapping=(f"file:{case.written}={target}",))
    with pytest.raises(FormatError, match="key groups 320-383 although there are 128"):
        list(dump(snapshot))
    # Whoever opens this one database reads it by bounds that are keys.
    operator = snapshot.operator("few-states")
    file = snapshot.handles.open_keyed(operator.metadata.subtasks[1].managed_keyed_state, operator.record_context)
    assert file is not None
    with pytest.raises(FormatError, match="key groups 320-383 do not fit into the 1 bytes that keys begin with"):
        list(file.scan([0]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda subtasks: subtasks * 2, "a subtask is listed twice"),
        (lambda subtasks: [replace(each, index=each.index + 1) for each in subtasks], r"subtask \d does not exist at"),
    ],
    ids=["twice", "outside"],
)
def test_subtasks_that_cannot_be_are_refused_before_anything_is_written(
    tmp_path: Path, damage: Callable[[Sequence[SubtaskState]], Sequence[SubtaskState]], message: str
) -> None:
    (case,) = (each for each in OWN if each.name == "types-2.2-heap")
    sound = case.open()
    operators = tuple(replace(each, subtasks=tuple(damage(each.subtasks))) for each in sound.metadata.operator_states)
    metadata = replace(sound.metadata, operator_states=operators)
    damaged = Snapshot(sound.location, metadata, sound.path_mapping, sound.declarations)
    for operator in damaged.operators:
        assert re.search(message, str([str(each.error) for each in operator.survey().failures]))
    with pytest.raises(FormatError, match=message):
        rescale(damaged, str(tmp_path / "new"), RescaleRequest(parallelism=3))
    with pytest.raises(FormatError, match=message):
        convert(damaged, str(tmp_path / "new"), "canonical")
    assert not (tmp_path / "new").exists()
