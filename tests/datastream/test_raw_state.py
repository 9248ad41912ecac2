"""Raw state that functions write and read, at any parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import state_pipelines as sp
from state_pipelines.datastream import (
    BroadcastProcessFunction,
    BroadcastProcessOperator,
    CheckpointedFunction,
    KeyedProcessFunction,
    KeyedProcessOperator,
    RestoredState,
    TaskInfo,
    Types,
    write_savepoint,
)
from state_pipelines.errors import UsageError
from state_pipelines.operations.auditing import Severity, audit_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.datastream import FunctionInitializationContext, FunctionSnapshotContext
    from state_pipelines.snapshot import Snapshot

MAX_PARALLELISM = 8


class KeepBytes(KeyedProcessFunction, CheckpointedFunction):
    """Keeps text by key group, and a list of texts, in raw state of its own."""

    def __init__(self) -> None:
        self.by_group: dict[int, bytes] = {}
        self.texts: list[bytes] = []

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.by_group = dict(context.get_raw_keyed_state_inputs())
        self.texts = list(context.get_raw_operator_state_inputs())

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None: ...

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        keyed = context.get_raw_keyed_operator_state_output()
        for key_group, text in self.by_group.items():
            keyed.start_new_key_group(key_group)
            keyed.write(text[:2])
            keyed.write(text[2:])
        partitions = context.get_raw_operator_state_output()
        for text in self.texts:
            partitions.start_new_partition()
            partitions.write(text)


class KeepNothing(KeyedProcessFunction):
    """Knows nothing of raw state."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None: ...


def run(
    path: Path,
    parallelism: int,
    change: Callable[[int, Any], None],
    base: Snapshot | None = None,
    kind: Any = KeepBytes,
) -> Snapshot:
    """Run all subtasks, change their functions, and take a savepoint."""
    restored = None if base is None else RestoredState.of(base.operator("raw"))
    operators = []
    for index in range(parallelism):
        info = TaskInfo(index=index, parallelism=parallelism, max_parallelism=MAX_PARALLELISM)
        operator = KeyedProcessOperator(kind(), lambda value: value, Types.LONG(), task=info)
        operator.open(restored)
        change(index, operator.function)
        operators.append(operator)
    write_savepoint(str(path), {"raw": operators})
    return sp.open_snapshot(str(path), uids=["raw"])


def fill(index: int, function: KeepBytes) -> None:
    """Fill the even key groups of two subtasks, and some partitions, one of which is empty."""
    function.by_group = {group: f"group {group}".encode() for group in range(index * 4, index * 4 + 4, 2)}
    function.texts = [*(f"{index} {number}".encode() for number in range(2)), b""]


@pytest.fixture
def savepoint(tmp_path: Path) -> Snapshot:
    return run(tmp_path / "first", 2, fill)


def read_raw(snapshot: Snapshot) -> tuple[dict[int, bytes], list[bytes]]:
    states = {state.name: state.to_arrow().to_pylist() for state in snapshot.operator("raw").states}
    keyed = {row["key_group"]: row["value_bytes"] for row in states["_raw_keyed_state"]}
    return keyed, sorted(row["value_bytes"] for row in states["_raw_operator_state"])


EXPECTED = (
    {group: f"group {group}".encode() for group in range(0, 8, 2)},
    sorted([b"0 0", b"0 1", b"", b"1 0", b"1 1", b""]),
)


def test_a_function_writes_raw_state_that_every_tool_reads(savepoint: Snapshot) -> None:
    assert read_raw(savepoint) == EXPECTED
    # Only the function knows what the bytes mean.
    assert {each.severity for each in audit_snapshot(savepoint, depth="whole").findings} == {Severity.NOTE}


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_it_reads_its_key_groups_and_its_share_of_the_partitions(
    savepoint: Snapshot, tmp_path: Path, parallelism: int
) -> None:
    found: list[KeepBytes] = []
    again = run(tmp_path / "again", parallelism, lambda _, function: found.append(function), savepoint)
    groups = [set(each.by_group) for each in found]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 4
    assert sum(len(each.texts) for each in found) == 6
    assert read_raw(again) == EXPECTED


def test_what_a_function_does_not_read_is_kept(savepoint: Snapshot, tmp_path: Path) -> None:
    again = run(tmp_path / "again", 1, lambda *_: None, savepoint, KeepNothing)
    assert read_raw(again) == EXPECTED


def test_what_was_read_and_is_not_written_is_gone(savepoint: Snapshot, tmp_path: Path) -> None:
    def forget(_: int, function: KeepBytes) -> None:
        function.by_group, function.texts = {}, []

    again = run(tmp_path / "again", 2, forget, savepoint)
    assert not [state.name for state in again.operator("raw").states if state.name.startswith("_raw")]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda keyed, _: keyed.write(b"1"), "raw keyed state has no key group"),
        (lambda _, partitions: partitions.write(b"1"), "raw operator state has no partition"),
        (lambda keyed, _: keyed.start_new_key_group(8), "Key group 8 does not belong to the key groups of the subtask"),
        (lambda keyed, _: [keyed.start_new_key_group(1), keyed.start_new_key_group(1)], "has already been registered"),
    ],
)
def test_bytes_that_belong_nowhere_are_refused(tmp_path: Path, write: Callable[..., Any], message: str) -> None:
    class Wrong(KeepBytes):
        def snapshot_state(self, context: FunctionSnapshotContext) -> None:
            write(context.get_raw_keyed_operator_state_output(), context.get_raw_operator_state_output())

    with pytest.raises(UsageError, match=message):
        run(tmp_path / "wrong", 1, lambda *_: None, None, Wrong)


def test_an_operator_without_keys_has_no_raw_keyed_state(tmp_path: Path) -> None:
    class Unkeyed(BroadcastProcessFunction, CheckpointedFunction):
        def initialize_state(self, context: FunctionInitializationContext) -> None:
            assert list(context.get_raw_keyed_state_inputs()) == []

        def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> None: ...

        def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> None: ...

        def snapshot_state(self, context: FunctionSnapshotContext) -> None:
            context.get_raw_keyed_operator_state_output()

    with BroadcastProcessOperator(Unkeyed(), []) as operator, pytest.raises(UsageError, match="has no raw keyed state"):
        write_savepoint(str(tmp_path / "wrong"), {"unkeyed": [operator]})
