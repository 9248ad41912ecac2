"""Names and orders that Flink stores and does not read: they show what was exchanged in `_metadata`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import FormatError
from state_pipelines.metadata import (
    CheckpointMetadata,
    OperatorState,
    compute_operator_id,
    read_metadata,
    write_metadata,
)
from state_pipelines.metadata.checkpoint import SubtaskState
from state_pipelines.metadata.handles import (
    ChannelDirection,
    ChannelInfo,
    ChannelStateHandle,
    EmptySegmentFileStateHandle,
    FileStateHandle,
)
from state_pipelines.metadata.streams import ChannelData
from state_pipelines.operations.auditing import Property, Severity
from state_pipelines.operations.rescale import parse_request, rescale
from state_pipelines.snapshot import open_snapshot
from state_pipelines.snapshot.checks import find_wrong_streams
from tests.metadata.channel_data import write_channel_data
from tests.operations.auditing.damage import copy_case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.metadata.handles import ChannelState
    from tests.operations.auditing.damage import Copy


def exchange(copy: Copy, field: str) -> None:
    """Exchange a field of the first two operators that have it."""

    def edit(metadata: CheckpointMetadata) -> CheckpointMetadata:
        operators = list(metadata.operator_states)
        one, other = [index for index, each in enumerate(operators) if getattr(each, field) is not None][:2]
        values = [getattr(operators[index], field) for index in (one, other)]
        operators[one] = replace(operators[one], **{field: values[1]})
        operators[other] = replace(operators[other], **{field: values[0]})
        return replace(metadata, operator_states=tuple(operators))

    copy.edit(edit)


@pytest.mark.parametrize(
    ("field", "message"),
    [("uid", "which is not that of its uid"), ("coordinator_state", "its coordinator state was written for")],
)
def test_what_two_operators_have_exchanged_is_a_warning(field: str, message: str, tmp_path: Path) -> None:
    copy = copy_case("types-2.2-heap", tmp_path)
    assert message not in str(copy.audit("files").findings)
    exchange(copy, field)
    found = [each for each in copy.audit("files").findings if message in each.what]
    assert [(each.severity, each.property) for each in found] == [(Severity.WARNING, Property.METADATA)] * 2


def test_a_renamed_operator_has_its_coordinator_state(tmp_path: Path) -> None:
    copy = copy_case("types-2.2-heap", tmp_path)
    snapshot = copy.open()
    label = next(each.label for each in snapshot.operators if each.metadata.coordinator_state is not None)
    target = str(tmp_path / "renamed")
    rescale(snapshot, target, parse_request({"operators": {label: {"uid": "renamed"}}}))
    renamed = open_snapshot(target).operator("renamed")
    assert renamed.metadata.coordinator_state is not None
    assert renamed.metadata.coordinator_state.handle_name == compute_operator_id("renamed").hex()


def edit_raw_state(change: Callable[[Any], Any]) -> Callable[[CheckpointMetadata], CheckpointMetadata]:
    """Change the raw keyed state of the last subtask of each operator that has any."""

    def edit(operator: OperatorState) -> OperatorState:
        if any(each.raw_keyed_state is None for each in operator.subtasks):
            return operator
        *others, last = operator.subtasks
        changed = replace(last, raw_keyed_state=change(last.raw_keyed_state))
        return replace(operator, subtasks=(*others, changed))

    return lambda metadata: replace(metadata, operator_states=tuple(map(edit, metadata.operator_states)))


def test_timers_that_a_subtask_lacks_are_a_warning(tmp_path: Path) -> None:
    copy = copy_case("types-2.2-rocksdb-heap-timers", tmp_path)
    copy.edit(edit_raw_state(lambda _: None))
    report = copy.audit("files")
    found = [each for each in report.findings if "in no handle of raw keyed state: subtask 1 without it" in each.what]
    assert [each.severity for each in found] == [Severity.WARNING]
    assert report.restorable


@pytest.mark.parametrize("name", ["types-2.2-rocksdb-heap-timers", "types-2.3-forst-async"])
def test_timers_of_key_groups_that_are_exchanged(name: str, tmp_path: Path) -> None:
    copy = copy_case(name, tmp_path)
    copy.edit(edit_raw_state(lambda handle: replace(handle, offsets=handle.offsets[::-1])))
    errors = [each.what for each in copy.audit("sample").findings if each.severity is Severity.ERROR]
    assert any("come after those of key group" in each for each in errors), errors


OUT = ChannelDirection.OUTPUT


def make_in_flight(change: Callable[[list[ChannelState]], list[ChannelState]]) -> CheckpointMetadata:
    """Two subtasks of two operators whose in-flight data are in one file, after a change of what handles name."""
    channels = [ChannelData(OUT, index // 2, ChannelInfo(0, index), (bytes(index), b"x")) for index in range(4)]
    data, states = write_channel_data(channels)
    delegate = FileStateHandle("file:/checkpoints/chk-1/in-flight", len(data))
    named = change(list(states))
    operators = []
    for uid in ("first", "second"):
        handles = tuple(ChannelStateHandle(0, each, delegate) for each in named[:2])
        named = named[2:]
        subtask = SubtaskState(0, result_subpartition_state=handles)
        operators.append(OperatorState(compute_operator_id(uid), 1, 128, (subtask,)))
    return CheckpointMetadata(3, 1, (), tuple(operators))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda states: states, None),
        (lambda states: states[1:], "handles name 33 of the 42 bytes of in-flight data"),
        (lambda states: [*states[:3], states[0]], "a buffer of in-flight data is in two handles"),
        (lambda states: [*states[:3], replace(states[3], offsets=states[2].offsets)], "is in two handles"),
    ],
    ids=["as it was", "left out", "twice", "buffers of another channel"],
)
def test_in_flight_data_is_named_once(
    change: Callable[[list[ChannelState]], list[ChannelState]], message: str | None
) -> None:
    found = [error for _, error in find_wrong_streams(make_in_flight(change))]
    if message is None:
        assert found == []
    else:
        assert [message in error.what for error in found] == [True]
        assert found[0].where.file == "file:/checkpoints/chk-1/in-flight"


def test_a_handle_that_names_elements_and_no_file(tmp_path: Path) -> None:
    copy = copy_case("types-2.2-rocksdb-file-merging", tmp_path)

    def empty(metadata: CheckpointMetadata) -> CheckpointMetadata:
        first, *others = metadata.operator_states
        subtask, *rest = first.subtasks
        handle: Any = subtask.managed_operator_state
        emptied = replace(subtask, managed_operator_state=replace(handle, delegate=EmptySegmentFileStateHandle()))
        return replace(metadata, operator_states=(replace(first, subtasks=(emptied, *rest)), *others))

    copy.edit(empty)
    errors = [each.what for each in copy.audit("sample").findings if each.severity is Severity.ERROR]
    assert errors == ["a handle names the operator state SourceReaderState and no file"]


def test_a_uid_of_two_operators_is_refused(tmp_path: Path) -> None:
    copy = copy_case("types-2.2-heap", tmp_path)
    first, second, *others = copy.open().metadata.operator_states
    metadata = replace(copy.open().metadata, operator_states=(first, replace(second, uid=first.uid), *others))
    with pytest.raises(FormatError, match=f"two operators have the uid {first.uid}"):
        read_metadata(write_metadata(metadata))
