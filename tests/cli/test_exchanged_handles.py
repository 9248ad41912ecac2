"""`_metadata` with handles exchanged, repeated, emptied or listed twice: `verify` finds it, the others refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import FormatError
from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.metadata.checkpoint import MasterState
from state_pipelines.metadata.handles import (
    ChangelogStateBackendHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyGroupRange,
    MergedChannelStateHandle,
    OperatorStateMode,
    SegmentFileStateHandle,
)
from state_pipelines.snapshot.snapshot_files import check_owner, find_shared_files
from tests.operations.auditing.damage import BY_NAME, copy_case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.metadata import CheckpointMetadata, OperatorState
    from tests.cli.conftest import Called
    from tests.operations.auditing.damage import Copy

Subtasks = tuple[Any, ...]


def edit_operators(copy: Copy, change: Callable[[Subtasks], Subtasks | None]) -> str:
    """Change the subtasks of the first operator for which `change` gives any; returns its id in hexadecimal digits."""
    changed: list[OperatorState] = []

    def edit(metadata: CheckpointMetadata) -> CheckpointMetadata:
        operators = []
        for operator in metadata.operator_states:
            subtasks = None if changed else change(operator.subtasks)
            operators.append(operator if subtasks is None else replace(operator, subtasks=subtasks))
            if subtasks is not None:
                changed.append(operator)
        return replace(metadata, operator_states=tuple(operators))

    copy.edit(edit)
    (operator,) = changed
    return operator.operator_id.hex()


def require_refused(call: Callable[..., Called], copy: Copy, target: Path, message: str) -> None:
    mapping = f"--map=file:{copy.case.written}={copy.folder}"
    verified = call("verify", copy.path, mapping)
    assert verified.code == 1, verified.out + verified.err
    for command in (("convert",), ("convert", "--format", "heap"), ("rescale", "--parallelism", "3")):
        called = call(*command, copy.path, "--out", target, mapping)
        assert called.code == 2, command
        assert message in called.err, (command, called.err)
        assert not target.exists()


def find_databases(subtasks: Subtasks) -> list[IncrementalRemoteKeyedStateHandle] | None:
    handles = [each.managed_keyed_state for each in subtasks]
    if len(handles) < 2 or not all(isinstance(each, IncrementalRemoteKeyedStateHandle) for each in handles):
        return None
    # Of a database without records nothing shows whose it is.
    return handles if all(len(each.shared_state) + len(each.private_state) > 3 for each in handles) else None


def put(subtasks: Subtasks, handles: list[Any]) -> Subtasks:
    return tuple(replace(each, managed_keyed_state=handle) for each, handle in zip(subtasks, handles, strict=True))


def exchange_key_groups(subtasks: Subtasks) -> Subtasks | None:
    if (handles := find_databases(subtasks)) is None:
        return None
    one, other = handles[0].key_groups, handles[1].key_groups
    return put(subtasks, [replace(handles[0], key_groups=other), replace(handles[1], key_groups=one), *handles[2:]])


def move_border(subtasks: Subtasks) -> Subtasks | None:
    if (handles := find_databases(subtasks)) is None:
        return None
    end = handles[1].key_groups.end
    first = KeyGroupRange(0, 1)
    second = KeyGroupRange(1, end)
    return put(subtasks, [replace(handles[0], key_groups=first), replace(handles[1], key_groups=second), *handles[2:]])


def exchange_files(subtasks: Subtasks) -> Subtasks | None:
    if (handles := find_databases(subtasks)) is None:
        return None
    files = [(each.shared_state, each.private_state) for each in handles]
    files[0], files[1] = files[1], files[0]
    return put(
        subtasks,
        [
            replace(each, shared_state=shared, private_state=private)
            for each, (shared, private) in zip(handles, files, strict=True)
        ],
    )


def repeat_files(subtasks: Subtasks) -> Subtasks | None:
    if (handles := find_databases(subtasks)) is None:
        return None
    first = replace(handles[0], shared_state=handles[1].shared_state, private_state=handles[1].private_state)
    return put(subtasks, [first, *handles[1:]])


def empty_range(subtasks: Subtasks) -> Subtasks | None:
    if (handles := find_databases(subtasks)) is None:
        return None
    return put(subtasks, [replace(handles[0], key_groups=KeyGroupRange(0, 0)), *handles[1:]])


def take_private_files(subtasks: Subtasks) -> Subtasks | None:
    """Let a subtask have the private files of another one, also where no record shows whose they are."""
    handles = [each.managed_keyed_state for each in subtasks]
    if len(handles) < 2 or not all(isinstance(each, IncrementalRemoteKeyedStateHandle) for each in handles):
        return None
    return put(subtasks, [replace(handles[0], private_state=handles[1].private_state), *handles[1:]])


DATABASES: dict[str, tuple[Callable[[Subtasks], Subtasks | None], str]] = {
    "key groups exchanged": (exchange_key_groups, "the database holds records of key group"),
    "the border between two subtasks moved": (move_border, "the database holds records of key group"),
    "files exchanged": (exchange_files, "the database holds records of key group"),
    "files of another subtask": (repeat_files, "error: "),
    "private files of another subtask": (take_private_files, "error: "),
    "no key groups": (empty_range, "no key group in the handle of subtask 0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["types-2.2-rocksdb-incremental", "types-1.20-rocksdb-native", "types-2.2-forst"])
@pytest.mark.parametrize("edit", DATABASES)
def test_databases_with_other_key_groups(call: Callable[..., Called], tmp_path: Path, name: str, edit: str) -> None:
    copy = copy_case(name, tmp_path)
    change, message = DATABASES[edit]
    edit_operators(copy, change)
    require_refused(call, copy, tmp_path / "out", message)


@pytest.mark.slow
def test_a_database_of_another_operator(call: Callable[..., Called], tmp_path: Path) -> None:
    copy = copy_case("types-2.2-rocksdb-incremental", tmp_path)
    found: list[list[IncrementalRemoteKeyedStateHandle]] = []

    def change(subtasks: Subtasks) -> Subtasks | None:
        handles = [each.managed_keyed_state for each in subtasks]
        if all(isinstance(each, IncrementalRemoteKeyedStateHandle) for each in handles):
            found.append(handles)
        return put(subtasks, [found[0][0], *found[1][1:]]) if len(found) == 2 else None

    edit_operators(copy, change)
    require_refused(call, copy, tmp_path / "out", "the file also belongs to the state of operator")


def test_an_operator_that_is_listed_twice(call: Callable[..., Called], tmp_path: Path) -> None:
    copy = copy_case("types-2.2-heap", tmp_path)
    metadata = read_metadata(copy.metadata.read_bytes())
    twice = replace(metadata, operator_states=(*metadata.operator_states, metadata.operator_states[0]))
    with pytest.raises(FormatError, match=r"the operator [0-9a-f]{32} is listed twice"):
        read_metadata(write_metadata(twice))
    copy.metadata.write_bytes(write_metadata(twice))
    require_refused(call, copy, tmp_path / "out", "is listed twice")


@pytest.mark.slow
def test_files_of_two_operators_exchanged_so_that_kinds_differ(call: Callable[..., Called], tmp_path: Path) -> None:
    copy = copy_case("types-2.2-heap", tmp_path)

    def edit(metadata: CheckpointMetadata) -> CheckpointMetadata:
        operators = list(metadata.operator_states)
        keyed = [each.subtasks[0].managed_keyed_state for each in operators]
        for index, other in ((6, 9), (9, 6)):
            first, *others = operators[index].subtasks
            subtasks = (replace(first, managed_keyed_state=keyed[other]), *others)
            operators[index] = replace(operators[index], subtasks=subtasks)
        return replace(metadata, operator_states=tuple(operators))

    copy.edit(edit)
    called = call("dump", copy.path, f"--map=file:{copy.case.written}={copy.folder}")
    assert "subtasks have this state as" in called.out + called.err


def test_a_handle_without_elements_over_the_file_of_another_one(call: Callable[..., Called], tmp_path: Path) -> None:
    copy = copy_case("types-2.2-finished", tmp_path)

    def change(subtasks: Subtasks) -> Subtasks | None:
        handles = [each.managed_operator_state for each in subtasks]
        if len(handles) < 2 or handles[0] is None or handles[1] is None:
            return None
        if not handles[0].states[0].offsets or handles[1].states[0].offsets:
            return None
        first, second, *others = subtasks
        return (
            first,
            replace(second, managed_operator_state=replace(handles[1], delegate=handles[0].delegate)),
            *others,
        )

    edit_operators(copy, change)
    require_refused(call, copy, tmp_path / "out", "two handles name this file, which has no broadcast state")


@pytest.mark.slow
def test_a_broadcast_state_that_one_handle_leaves_out(call: Callable[..., Called], tmp_path: Path) -> None:
    copy = copy_case("types-2.2-heap", tmp_path)

    def change(subtasks: Subtasks) -> Subtasks | None:
        first, *others = subtasks
        handle = first.managed_operator_state
        if handle is None or all(each.mode is not OperatorStateMode.BROADCAST for each in handle.states):
            return None
        last = next(each for each in reversed(handle.states) if each.mode is OperatorStateMode.BROADCAST)
        states = tuple(each for each in handle.states if each is not last)
        return (replace(first, managed_operator_state=replace(handle, states=states)), *others)

    edit_operators(copy, change)
    require_refused(call, copy, tmp_path / "out", "the file has a broadcast state that its handle does not name")


def test_channels_without_buffers_in_a_merged_handle(call: Callable[..., Called], tmp_path: Path) -> None:
    copy = copy_case("types-2.2-unaligned", tmp_path)

    def empty(channel: object) -> object:
        return replace(channel, states=()) if isinstance(channel, MergedChannelStateHandle) else channel

    def change(subtasks: Subtasks) -> Subtasks | None:
        changed = tuple(
            replace(
                each,
                input_channel_state=tuple(map(empty, each.input_channel_state)),
                result_subpartition_state=tuple(map(empty, each.result_subpartition_state)),
            )
            for each in subtasks
        )
        return None if changed == subtasks else changed

    edit_operators(copy, change)
    assert call("verify", copy.path, f"--map=file:{copy.case.written}={copy.folder}").code in (0, 1, 3)


def list_twice(handles: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*handles, handles[0])


def name_twice(handles: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        replace(each, states=(*each.states, *each.states)) if isinstance(each, MergedChannelStateHandle) else each
        for each in handles
    )


def name_another_subtask(handles: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(replace(each, subtask_index=each.subtask_index + 1) for each in handles)


IN_FLIGHT = {"handles": list_twice, "channels": name_twice, "subtasks": name_another_subtask}


@pytest.mark.parametrize("field", ["input_channel_state", "result_subpartition_state"])
@pytest.mark.parametrize("edit", IN_FLIGHT)
def test_in_flight_data_that_is_listed_twice(
    call: Callable[..., Called], tmp_path: Path, edit: str, field: str
) -> None:
    copy = copy_case("types-2.2-unaligned", tmp_path)

    def change(subtasks: Subtasks) -> Subtasks | None:
        changed = tuple(
            replace(each, **{field: IN_FLIGHT[edit](getattr(each, field))}) if getattr(each, field) else each
            for each in subtasks
        )
        return None if changed == subtasks else changed

    edit_operators(copy, change)
    mapping = f"--map=file:{copy.case.written}={copy.folder}"
    verified = call("verify", copy.path, mapping)
    assert verified.code == 1
    assert "in-flight" in verified.out
    keep = ("convert", copy.path, "--format", "keep", "--in-flight", "keep", "--out", tmp_path / "out", mapping)
    called = call(*keep)
    assert called.code == 2
    assert "in-flight" in called.err


@pytest.mark.slow
def test_a_master_state_that_is_listed_twice(call: Callable[..., Called], tmp_path: Path) -> None:
    copy = copy_case("types-2.2-heap", tmp_path)
    copy.edit(lambda metadata: replace(metadata, master_states=2 * (MasterState("hook", 1, b"1"),)))
    verified = call("verify", copy.path, f"--map=file:{copy.case.written}={copy.folder}")
    assert verified.code == 1
    assert "the state of the master hook hook is listed twice" in verified.out


CHANGELOGS: dict[str, tuple[str, Callable[[Any, Any], Any], str]] = {
    "a set left out": (
        "types-2.2-changelog-heap-files",
        lambda own, _: replace(own, streams=own.streams[:-1]),
        "a change set is missing",
    ),
    "a set of the same file before it": (
        "types-2.2-changelog-heap-files",
        lambda own, _: replace(own, streams=(*own.streams, replace(own.streams[0], offset=0))),
        "in another order than that of their file",
    ),
    "key groups left out": (
        "types-2.2-changelog-heap-files",
        lambda own, _: replace(own, key_groups=replace(own.key_groups, number=1)),
        "are in a log of key groups",
    ),
    "a change of another key group": (
        "types-2.2-changelog-heap-memory",
        lambda own, _: replace(own, changes=(*own.changes[:-1], replace(own.changes[-1], key_group=2147483647))),
        "is in a log of key groups",
    ),
    "changes left out": (
        "types-2.2-changelog-heap-memory",
        lambda own, _: replace(own, changes=own.changes[:-5]),
        "of its sequence numbers",
    ),
}


@pytest.mark.parametrize("edit", CHANGELOGS)
def test_changes_that_are_left_out(call: Callable[..., Called], tmp_path: Path, edit: str) -> None:
    name, change_log, message = CHANGELOGS[edit]
    copy = copy_case(name, tmp_path)

    def change(subtasks: Subtasks) -> Subtasks | None:
        handle = subtasks[0].managed_keyed_state
        if not isinstance(handle, ChangelogStateBackendHandle):
            return None
        first, *others = handle.non_materialized
        edited = replace(handle, non_materialized=(change_log(first, others), *others))
        return (replace(subtasks[0], managed_keyed_state=edited), *subtasks[1:])

    edit_operators(copy, change)
    require_refused(call, copy, tmp_path / "out", message)


def test_the_materialized_state_of_another_subtask(call: Callable[..., Called], tmp_path: Path) -> None:
    copy = copy_case("types-2.2-changelog-rocksdb-materialized", tmp_path)

    def change(subtasks: Subtasks) -> Subtasks | None:
        handles = [each.managed_keyed_state for each in subtasks]
        if not all(isinstance(each, ChangelogStateBackendHandle) and each.materialized for each in handles):
            return None
        return put(subtasks, [replace(handles[0], materialized=handles[1].materialized), *handles[1:]])

    edit_operators(copy, change)
    require_refused(call, copy, tmp_path / "out", "is in a changelog handle of key groups")


def test_operator_state_that_is_no_operator_state(call: Callable[..., Called], tmp_path: Path) -> None:
    copy = copy_case("types-2.2-rocksdb-file-merging", tmp_path)

    def change(subtasks: Subtasks) -> Subtasks | None:
        handle = subtasks[0].managed_operator_state
        if handle is None or not isinstance(handle.delegate, SegmentFileStateHandle):
            return None
        moved = replace(handle, delegate=replace(handle.delegate, start=handle.delegate.start + 1))
        return (replace(subtasks[0], managed_operator_state=moved), *subtasks[1:])

    edit_operators(copy, change)
    require_refused(call, copy, tmp_path / "out", ", which no release writes; 5 and 6 expected")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["types-2.2-changelog-heap-files", "types-2.2-changelog-heap-memory"])
def test_changes_of_another_operator(call: Callable[..., Called], tmp_path: Path, name: str) -> None:
    copy = copy_case(name, tmp_path)

    def edit(metadata: CheckpointMetadata) -> CheckpointMetadata:
        operators = list(metadata.operator_states)
        keyed = next(each for each in operators if each.subtasks[0].managed_keyed_state is not None)
        other = next(index for index, each in enumerate(operators) if each is not keyed)
        operators[other] = replace(operators[other], subtasks=keyed.subtasks)
        return replace(metadata, operator_states=tuple(operators))

    copy.edit(edit)
    require_refused(call, copy, tmp_path / "out", "also belongs to the state of operator")


def test_private_files_of_two_databases() -> None:
    metadata = BY_NAME["types-1.20-rocksdb-native"].open().metadata
    assert find_shared_files(metadata) == {}
    found = 0
    for index, operator in enumerate(metadata.operator_states):
        subtasks = take_private_files(operator.subtasks)
        if subtasks is not None:
            states = list(metadata.operator_states)
            states[index] = replace(operator, subtasks=subtasks)
            owners = find_shared_files(replace(metadata, operator_states=tuple(states)))
            with pytest.raises(FormatError, match="two RocksDB databases of the operator name the same private file"):
                check_owner(owners, operator.operator_id)
            found += 1
    assert found > 1


def test_timers_behind_a_wrong_offset(call: Callable[..., Called], tmp_path: Path) -> None:
    copy = copy_case("types-2.2-rocksdb-heap-timers", tmp_path)

    def change(subtasks: Subtasks) -> Subtasks | None:
        handle = subtasks[0].raw_keyed_state
        if handle is None or not any(offset > 0 for offset in handle.offsets):
            return None
        moved = replace(handle, offsets=(handle.offsets[0] + 128, *handle.offsets[1:]))
        return (replace(subtasks[0], raw_keyed_state=moved), *subtasks[1:])

    edit_operators(copy, change)
    verified = call("verify", copy.path, f"--map=file:{copy.case.written}={copy.folder}")
    assert verified.code == 1
    assert "the raw keyed state of subtask 1 is timers, and that of subtask 0 is not" in verified.out
