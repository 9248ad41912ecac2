"""Keys in other key groups than their hash says, which the job would never find, or twice in one."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from state_pipelines.binary.data_views import Writer
from state_pipelines.codecs.programs import Encoded
from state_pipelines.errors import FormatError
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.keyed.raw_timers import InternalTimersSnapshot
from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.metadata.checkpoint import SubtaskState
from state_pipelines.metadata.handles import ByteStreamStateHandle, KeyGroupRange, KeyGroupsSavepointStateHandle
from state_pipelines.operations.auditing import Depth, Severity, audit_snapshot
from state_pipelines.operations.auditing.content_checks import RepeatedKeys
from state_pipelines.operations.convert import convert
from state_pipelines.operations.dump import dump
from state_pipelines.operations.erase import erase
from state_pipelines.operations.rescale import parse_request, rescale
from state_pipelines.serializers.build import VOID_NAMESPACE, basic
from state_pipelines.serializers.state_meta_info import keyed_state
from tests.keyed.canonical_files import make_file
from tests.keyed.raw_sections import write_raw_timers
from tests.snapshot.built import build_snapshot, operator, write_raw_keyed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.snapshot import Snapshot

KEY = 7
GROUP = int(assign_key_groups(np.array([KEY], np.int32), 128)[0])


def encode(number: int) -> bytes:
    return struct.pack(">q", number)


def write_canonical(path: Path, groups: Mapping[int, Sequence[tuple[bytes, bytes]]]) -> Snapshot:
    """A savepoint with one value state of Longs by Longs; keys and values by key group."""
    header = KeyedHeader(
        key_serializer=basic("Long"), states=(keyed_state("state", "VALUE", basic("Long"), VOID_NAMESPACE),)
    )
    runs = [(group, 0, [(key + b"\0", value) for key, value in records]) for group, records in groups.items()]
    data, offsets = make_file(header, KeyGroupRange(0, 128), 1, runs)
    handle = KeyGroupsSavepointStateHandle(KeyGroupRange(0, 128), offsets, ByteStreamStateHandle("keyed state", data))
    return build_snapshot(path, operator("keys", SubtaskState(0, managed_keyed_state=handle)))


def write_timer() -> bytes:
    """A key group with one event-time timer of the key 7, a Long, whose hash is 7."""
    writer = Writer()
    # The timestamp with its sign flipped, as canonical files have it.
    writer.i64(1_000 - (1 << 63))
    writer.i64(KEY)
    writer.u8(0)
    data = writer.getvalue()
    event = Encoded(np.frombuffer(data, np.uint8), np.array([len(data)], np.int64))
    nothing = Encoded(np.empty(0, np.uint8), np.empty(0, np.int64))
    return write_raw_timers((InternalTimersSnapshot("timers", basic("Long"), VOID_NAMESPACE, event, nothing),))


@pytest.mark.parametrize("depth", [Depth.SAMPLE, Depth.WHOLE])
@pytest.mark.parametrize("moved", [0, 1])
def test_a_key_in_a_wrong_key_group_is_an_error(moved: int, depth: Depth, tmp_path: Path) -> None:
    raw = write_raw_keyed({GROUP + moved: write_timer()}, KeyGroupRange(0, 128))
    snapshot = build_snapshot(tmp_path / "savepoint", operator("timers", SubtaskState(0, raw_keyed_state=raw)))
    report = audit_snapshot(snapshot, depth)
    errors = [each for each in report.findings if each.severity is Severity.ERROR]
    if moved:
        (message,) = [each.what for each in errors]
        assert (
            f"1 of 1 keys are in key groups where the job does not find them: the first one is in key group {GROUP + 1}"
            in message
        )
        assert f"its hash gives {GROUP}" in message
        assert errors[0].offset is not None
    else:
        assert errors == []
        assert report.totals.records == 1


def test_a_key_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    entries = [(encode(key), encode(1)) for key in (KEY, KEY)]
    report = audit_snapshot(write_canonical(tmp_path / "savepoint", {GROUP: entries}), Depth.WHOLE)
    (error,) = [each for each in report.findings if each.severity is Severity.ERROR]
    assert error.what == f"key group {GROUP} holds one key twice"
    assert error.state == "state"


def test_a_key_that_stands_twice_is_found_in_the_next_window(tmp_path: Path) -> None:
    entries = [(encode(each), encode(1)) for each in (0, 1, 2, 3, 4, 2)]
    snapshot = write_canonical(tmp_path / "savepoint", {GROUP: entries})
    ((_, file),) = snapshot.operators[0].keyed_files
    ((state_id, records),) = file.scan([0])
    repeated = RepeatedKeys(file)
    for start, stop in ((0, 3), (3, 5)):
        repeated.check(state_id, records.cut(start, stop))
    with pytest.raises(FormatError, match="holds one key twice"):
        repeated.check(state_id, records.cut(5, 6))


def test_the_first_key_group_without_its_offset_is_an_error(tmp_path: Path) -> None:
    groups = {group: [(encode(group), encode(1))] for group in (3, 9)}
    path = tmp_path / "savepoint"
    write_canonical(path, groups)

    def leave_out(metadata: CheckpointMetadata) -> CheckpointMetadata:
        (operator,) = metadata.operator_states
        (subtask,) = operator.subtasks
        handle: Any = subtask.managed_keyed_state
        offsets = tuple(0 if group == 3 else offset for group, offset in enumerate(handle.offsets))
        changed = replace(subtask, managed_keyed_state=replace(handle, offsets=offsets))
        return replace(metadata, operator_states=(replace(operator, subtasks=(changed,)),))

    metadata = path / "_metadata"
    metadata.write_bytes(write_metadata(leave_out(read_metadata(metadata.read_bytes()))))
    report = audit_snapshot(str(path), Depth.SAMPLE)
    errors = [each.what for each in report.findings if each.severity is Severity.ERROR]
    assert errors == ["the handle has no offset for key group 3, whose records begin right after the header"]
    for refused in (
        lambda: convert(str(path), str(tmp_path / "new"), "canonical"),
        lambda: rescale(str(path), str(tmp_path / "new"), parse_request({"parallelism": 2})),
    ):
        with pytest.raises(FormatError, match="no offset for key group 3"):
            refused()


@pytest.mark.parametrize("keys", [[KEY], [KEY, 8]])
def test_a_key_outside_of_its_key_group_is_erased(keys: list[int], tmp_path: Path) -> None:
    groups = {GROUP + 1: [(encode(each), encode(1)) for each in (KEY, 8, 9)]}
    snapshot = write_canonical(tmp_path / "savepoint", groups)
    result = erase(snapshot, keys, str(tmp_path / "erased"))
    assert result is not None
    left = [each["key"] for each in dump(result.path)]
    assert left == [each for each in (KEY, 8, 9) if each not in keys]
