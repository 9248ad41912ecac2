"""New metadata are compared with those that were planned, whatever the writer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import ProofError
from state_pipelines.metadata import CheckpointMetadata, MasterState, OperatorState, SubtaskState, write_metadata
from state_pipelines.metadata.handles import KeyGroupsSavepointStateHandle, OperatorStateMetaInfo, OperatorStateMode
from state_pipelines.operations.convert import convert
from state_pipelines.operations.rescale import parse_request, rescale
from state_pipelines.operations.write import transaction
from state_pipelines.operations.write.publication import FileCopy, FileMode, plan_copies, replace_operator_state
from state_pipelines.operations.write.savepoint_plan import EncodedStates, plan_savepoint
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = "examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091"

Change = Callable[[CheckpointMetadata], CheckpointMetadata]
SPLIT, UNION, BROADCAST = OperatorStateMode.SPLIT_DISTRIBUTE, OperatorStateMode.UNION, OperatorStateMode.BROADCAST


def change_operator(uid: str, change: Callable[[OperatorState], OperatorState]) -> Change:
    def changed(metadata: CheckpointMetadata) -> CheckpointMetadata:
        operators = (change(each) if each.uid == uid else each for each in metadata.operator_states)
        return replace(metadata, operator_states=tuple(operators))

    return changed


def change_first(uid: str, change: Callable[[SubtaskState], SubtaskState]) -> Change:
    return change_operator(uid, lambda each: replace(each, subtasks=(change(each.subtasks[0]), *each.subtasks[1:])))


def change_state(
    uid: str, mode: OperatorStateMode, change: Callable[[OperatorStateMetaInfo], OperatorStateMetaInfo]
) -> Change:
    def changed(subtask: SubtaskState) -> SubtaskState:
        handle = subtask.managed_operator_state
        assert handle is not None
        states = tuple(change(each) if each.mode is mode else each for each in handle.states)
        return replace(subtask, managed_operator_state=replace(handle, states=states))

    return change_first(uid, changed)


def change_offsets(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Change:
    def changed(subtask: SubtaskState) -> SubtaskState:
        handle = subtask.managed_keyed_state
        assert isinstance(handle, KeyGroupsSavepointStateHandle)
        return replace(subtask, managed_keyed_state=replace(handle, offsets=change(handle.offsets)))

    return change_first("orders", changed)


def drop_offset(offsets: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(0 if each == max(offsets) else each for each in offsets)


def exchange_offsets(offsets: tuple[int, ...]) -> tuple[int, ...]:
    one, other = sorted(set(offsets))[-2:]
    return tuple({one: other, other: one}.get(each, each) for each in offsets)


def exchange_subtasks(field: str) -> Callable[[OperatorState], OperatorState]:
    def changed(operator: OperatorState) -> OperatorState:
        one, other, *rest = operator.subtasks
        fields = [{field: getattr(each, field)} for each in (one, other)]
        return replace(operator, subtasks=(replace(one, **fields[1]), replace(other, **fields[0]), *rest))

    return changed


def exchange_operators(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Keyed state of one operator under the id of another, and the other way round."""
    found = {each.uid: each.subtasks for each in metadata.operator_states}
    found["orders"], found["revenue-per-minute"] = found["revenue-per-minute"], found["orders"]
    return replace(
        metadata, operator_states=tuple(replace(each, subtasks=found[each.uid]) for each in metadata.operator_states)
    )


def drop_operator(uid: str) -> Change:
    return lambda metadata: replace(
        metadata, operator_states=tuple(each for each in metadata.operator_states if each.uid != uid)
    )


def drop_field(field: str) -> Callable[[Any], Any]:
    return lambda each: replace(each, **{field: None})


BROADCAST_OFFSET = change_state("pricing", BROADCAST, lambda each: replace(each, offsets=()))
LIST_MODE = change_state("order-counter", SPLIT, lambda each: replace(each, mode=UNION))
KEYED, ELEMENTS = "managed_keyed_state", "managed_operator_state"

CHANGES: dict[str, tuple[Change, str]] = {
    "a keyed operator is missing": (drop_operator("orders"), "operator orders is missing"),
    "an operator is missing": (drop_operator("pricing"), "operator pricing is missing"),
    "a keyed handle is missing": (change_first("orders", drop_field(KEYED)), "orders, subtask 0: managed keyed state"),
    "all keyed handles are missing": (
        change_operator("orders", lambda each: replace(each, subtasks=tuple(map(drop_field(KEYED), each.subtasks)))),
        "orders, subtask 1: managed keyed state",
    ),
    "operators are exchanged": (exchange_operators, "orders, subtask 0: managed keyed state"),
    "keyed subtasks are exchanged": (change_operator("orders", exchange_subtasks(KEYED)), "orders, subtask 1"),
    "operator state is missing": (change_first("order-counter", drop_field(ELEMENTS)), "managed operator state"),
    "operator state is exchanged": (change_operator("order-source", exchange_subtasks(ELEMENTS)), "order-source"),
    "a subtask is missing": (
        change_operator("pricing", lambda each: replace(each, subtasks=each.subtasks[:-1])),
        "subtask 1: missing",
    ),
    "an element is missing": (
        change_state("order-counter", SPLIT, lambda each: replace(each, offsets=each.offsets[:-1])),
        "order-counter, subtask 0: managed operator state",
    ),
    "an element is doubled": (
        change_state("order-counter", SPLIT, lambda each: replace(each, offsets=each.offsets + each.offsets[-1:])),
        "order-counter, subtask 0: managed operator state",
    ),
    "a broadcast copy is missing": (BROADCAST_OFFSET, "pricing, subtask 0: managed operator state"),
    "a list is union state": (LIST_MODE, "order-counter, subtask 0: managed operator state"),
    "a key group is missing": (change_offsets(drop_offset), "orders, subtask 0: managed keyed state"),
    "key groups are exchanged": (change_offsets(exchange_offsets), "orders, subtask 0: managed keyed state"),
    "a coordinator is missing": (change_operator("order-source", drop_field("coordinator_state")), "coordinator state"),
    "a master state is missing": (lambda metadata: replace(metadata, master_states=()), "master states"),
    "another checkpoint id": (lambda metadata: replace(metadata, checkpoint_id=99), "checkpoint id is 99"),
    "another max parallelism": (
        change_operator("orders", lambda each: replace(each, max_parallelism=512)),
        "orders: max parallelism is 512, not ",
    ),
    "another parallelism": (
        change_operator("pricing", lambda each: replace(each, parallelism=1)),
        "pricing: parallelism is 1, not 2",
    ),
    "another uid": (change_operator("orders", lambda each: replace(each, uid="other")), "uid is other, not orders"),
    "another name": (change_operator("orders", lambda each: replace(each, name="other")), "name is other, not orders"),
    "another operator id": (
        change_operator("orders", lambda each: replace(each, operator_id=bytes(16))),
        "operator orders is missing",
    ),
}


@pytest.fixture
def orders() -> Snapshot:
    opened = open_snapshot(ORDERS)
    metadata = replace(opened.metadata, master_states=(MasterState("hook", 1, b"state"),))
    return Snapshot(opened.location, metadata, opened.path_mapping, opened.declarations)


@pytest.fixture
def change_staged(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], None]:
    """Function that lets a change happen while files of the old snapshot are taken over."""

    def install(change: Change) -> None:
        def changed(*args: Any, **options: Any) -> tuple[CheckpointMetadata, list[FileCopy]]:
            metadata, copies = plan_copies(*args, **options)
            assert change(metadata) != metadata
            return change(metadata), copies

        monkeypatch.setattr(transaction, "plan_copies", changed)

    return install


def write(snapshot: Snapshot, target: str) -> None:
    """Copy a snapshot as a base to which nothing is added."""
    with transaction.SnapshotTransaction(resolve(target)) as written:
        plan_savepoint(snapshot, []).write(written, EncodedStates({}, {}))
        written.commit()


OPERATIONS: dict[str, Callable[[Snapshot, str], object]] = {
    "convert": lambda snapshot, target: convert(snapshot, target, compress=True),
    "copy": lambda snapshot, target: convert(snapshot, target, "keep"),
    "rescale": lambda snapshot, target: rescale(snapshot, target, max_parallelism=256),
    "write": write,
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", CHANGES)
def test_changed_metadata_are_not_published(
    operation: str, name: str, orders: Snapshot, change_staged: Callable[[Change], None], tmp_path: Path
) -> None:
    change, message = CHANGES[name]
    change_staged(change)
    with pytest.raises(ProofError, match="metadata_as_expected") as caught:
        OPERATIONS[operation](orders, str(tmp_path / "new"))
    assert message in caught.value.what
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_unchanged_metadata_are_published(operation: str, orders: Snapshot, tmp_path: Path) -> None:
    OPERATIONS[operation](orders, str(tmp_path / "new"))
    (master,) = open_snapshot(str(tmp_path / "new")).metadata.master_states
    assert master.name == "hook"


@pytest.mark.parametrize("mode", list(FileMode))
def test_files_that_stay_are_those_of_the_old_snapshot(
    mode: FileMode, change_staged: Callable[[Change], None], tmp_path: Path
) -> None:
    convert(open_snapshot(ORDERS), str(tmp_path / "old"), "keep")
    old = open_snapshot(str(tmp_path / "old"))
    convert(old, str(tmp_path / "one"), "keep", files=mode)
    rescale(old, str(tmp_path / "two"), parallelism=3, files=mode)
    change_staged(change_operator("order-source", exchange_subtasks(ELEMENTS)))
    with pytest.raises(ProofError, match="metadata_as_expected"):
        convert(old, str(tmp_path / "three"), "keep", files=mode)
    assert not (tmp_path / "three").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (BROADCAST_OFFSET, "1 subtasks without it"),
        (LIST_MODE, "another kind or other serializers"),
        (drop_operator("pricing"), "operator is not in the new snapshot"),
    ],
    ids=["broadcast copy", "mode", "operator"],
)
def test_the_proof_of_a_rescaling_does_not_need_the_plan(
    change: Change,
    message: str,
    orders: Snapshot,
    change_staged: Callable[[Change], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Changes that reading both sides finds as well, even where a plan asks for them."""
    monkeypatch.setattr(transaction, "require_staged", lambda *_: None)
    change_staged(change)
    with pytest.raises(ProofError) as caught:
        rescale(orders, str(tmp_path / "new"), parse_request({"max_parallelism": 256}))
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_operators_that_a_writer_does_not_change_are_those_of_the_old_snapshot(
    orders: Snapshot, tmp_path: Path
) -> None:
    own, other = (each.metadata.operator_id for each in orders.operators if each.label in ("pricing", "order-counter"))
    with transaction.SnapshotTransaction(resolve(str(tmp_path / "new"))) as written:
        metadata = replace_operator_state(orders.metadata, own, {0: None})
        with pytest.raises(ProofError, match="operator state is not the expected one"):
            written.stage(metadata, orders, changed={other})
        written.stage(metadata, orders, changed={own})


def test_a_snapshot_of_new_files_alone_is_compared_too(
    orders: Snapshot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the checkpoints of a job, whose `_metadata` are written without an old snapshot."""
    written = orders.metadata
    monkeypatch.setattr(
        transaction, "write_metadata", lambda metadata: write_metadata(drop_operator("orders")(metadata))
    )
    with (
        transaction.SnapshotTransaction(resolve(str(tmp_path / "new"))) as new,
        pytest.raises(ProofError, match="operator orders is missing"),
    ):
        new.stage(written, None)
