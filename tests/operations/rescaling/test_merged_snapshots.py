"""Merges and takes: state stored in different forms, files, metadata versions, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from state_pipelines.codecs.programs import Encoded
from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.metadata import CheckpointProperties, KeyGroupRange, SubtaskState
from state_pipelines.metadata.checkpoint import MasterState, SavepointType
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    KeyGroupsSavepointStateHandle,
    OperatorStreamStateHandle,
)
from state_pipelines.operations.dump import dump
from state_pipelines.operations.rescale import RescaleRequest, parse_request, plan_rescale, rescale
from state_pipelines.operations.rescale.records import Way
from state_pipelines.operations.rescale.rescale_request import MergeRequest, OperatorRequest, TakeRequest
from state_pipelines.operations.rescale.snapshot_merge import MergeRule
from state_pipelines.operatorstate import OperatorHeader, write_operator_file
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.state_meta_info import (
    BackendStateType,
    StateMetaInfo,
    broadcast_state,
    keyed_state,
    operator_list,
)
from state_pipelines.serializers.tree import Opaque
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.storage import resolve
from tests.keyed.canonical_files import make_file
from tests.operations.rescaling.keyed_files import STRING, text
from tests.serializers.literals import utf
from tests.snapshot.built import build_snapshot, list_operator, operator

if TYPE_CHECKING:
    from state_pipelines.metadata import OperatorState
    from state_pipelines.operations.rescale.records import RescalePlan

ORDERS = "examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091"


@pytest.fixture
def orders(request: pytest.FixtureRequest) -> Snapshot:
    return open_snapshot(str(request.config.rootpath / ORDERS))


def retake(snapshot: Snapshot) -> Snapshot:
    """The same state in another snapshot."""
    return Snapshot(snapshot.location, replace(snapshot.metadata, checkpoint_id=99), snapshot.path_mapping)


def plan(first: Snapshot, other: Snapshot, tmp_path: Path, **wishes: Any) -> RescalePlan:
    request = RescaleRequest(**{"merge": MergeRequest(snapshots=("other",)), **wishes})
    return plan_rescale(first, resolve(str(tmp_path / "new")), request, open_other=lambda _: other)


def build(place: Path, *operators: OperatorState, masters: tuple[MasterState, ...] = ()) -> Snapshot:
    return build_snapshot(place, *operators, uids=["op"], masters=masters)


def write_longs(info: StateMetaInfo, *numbers: int) -> OperatorState:
    """An operator of one subtask with a list state of eight bytes for each element."""
    data = np.frombuffer(b"".join(each.to_bytes(8, "big") for each in numbers), np.uint8)
    encoded = Encoded(data, np.arange(8, len(data) + 8, 8))
    content, states = write_operator_file(OperatorHeader(lists=(info,)), {info.name: encoded}, {})
    handle = OperatorStreamStateHandle(states, ByteStreamStateHandle(f"longs {numbers}", content))
    return operator("op", SubtaskState(0, managed_operator_state=handle))


def write_rules(value: str) -> OperatorState:
    """An operator of one subtask with a broadcast state of one entry."""
    header = OperatorHeader(broadcasts=(broadcast_state("rules", basic("Byte"), basic(value)),))
    content, states = write_operator_file(header, {}, {"rules": (1, b"\1" + (7).to_bytes(8, "big"))})
    handle = OperatorStreamStateHandle(states, ByteStreamStateHandle(f"rules {value}", content))
    return operator("op", SubtaskState(0, managed_operator_state=handle))


OTHER_FORMS = {
    "serializer": (
        operator_list("a", basic("Double")),
        r"serializers \(value serializer\) of the snapshots differ: Long and Double",
    ),
    "mode": (
        operator_list("a", basic("Long"), "UNION"),
        "kinds of state of the snapshots differ: OPERATOR SPLIT_DISTRIBUTE and OPERATOR UNION",
    ),
}


# With two elements and two subtasks each file is reused, so that no headers would have to be joined.
@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize(("info", "message"), OTHER_FORMS.values(), ids=OTHER_FORMS.keys())
def test_list_state_of_another_form_is_refused_at_any_parallelism(
    info: StateMetaInfo, message: str, parallelism: int, tmp_path: Path
) -> None:
    first = build(tmp_path / "first", write_longs(operator_list("a", basic("Long")), 1))
    second = build(tmp_path / "second", write_longs(info, 2))
    with pytest.raises(UnsupportedError, match=message) as caught:
        plan(first, second, tmp_path, parallelism=parallelism)
    assert (caught.value.where.operator, caught.value.where.state) == ("op", "a")
    assert caught.value.where.file == "longs (2,)"
    assert "--drop-state" in caught.value.hint
    dropped = {"op": OperatorRequest(drop_states=("a",))}
    assert plan(first, second, tmp_path, parallelism=parallelism, operators=dropped)


def test_list_state_of_the_same_form_is_merged(tmp_path: Path) -> None:
    info = operator_list("a", basic("Long"))
    first, second = (build(tmp_path / str(each), write_longs(info, each)) for each in (1, 2))
    result = rescale(
        first, str(tmp_path / "new"), RescaleRequest(merge=MergeRequest(snapshots=(str(second.path),)), parallelism=2)
    )
    assert sorted(str(line["value"]) for line in dump(open_snapshot(result.path))) == ["1", "2"]


def test_broadcast_state_of_another_serializer_is_refused_though_its_bytes_are_equal(tmp_path: Path) -> None:
    first, second = (build(tmp_path / each, write_rules(each)) for each in ("Long", "Double"))
    with pytest.raises(UnsupportedError, match=r"serializers .* of the snapshots differ: Long and Double") as caught:
        plan(first, second, tmp_path)
    assert (caught.value.where.operator, caught.value.where.state) == ("op", "rules")


def write_unread(name: str) -> OperatorState:
    """An operator with keyed state of which only the name of the first state can be read; the second one is `name`.

    The unknown body holds the begin of another state, one of whose options could take all bytes up to the end.
    """
    last = StateMetaInfo(name=name, backend_type=BackendStateType.KEY_VALUE, options=(), serializers=())
    size = len(utf(name)) + 8
    body = utf("fake") + bytes(4) + bytes.fromhex("00000001") + utf("option") + size.to_bytes(2, "big")
    unknown = Opaque(snapshot_class="com.acme.P", snapshot_version=4, unknown_class="com.acme.P", raw=body)
    header = KeyedHeader(key_serializer=STRING, states=(keyed_state("visits", "VALUE", basic("Long"), unknown), last))
    key_groups = KeyGroupRange(0, 128)
    data, offsets = make_file(header, key_groups, 1, [(3, 0, [(text(name) + b"\0", bytes(8))])])
    handle = KeyGroupsSavepointStateHandle(key_groups, offsets, ByteStreamStateHandle(f"keyed {name}", data))
    return operator("op", SubtaskState(0, managed_keyed_state=handle))


def test_a_header_that_is_read_in_part_is_not_joined_with_another_one(tmp_path: Path) -> None:
    first, second = (build(tmp_path / each, write_unread(each)) for each in ("purse", "coins"))
    names = [[state.name for state in each.operator("op").states] for each in (first, second)]
    assert names == 2 * [["visits", "_unread_state_1"]]
    with pytest.raises(UnsupportedError, match=r"read only up to the snapshot of com.acme.P, whose end") as caught:
        plan(first, second, tmp_path)
    assert (caught.value.where.operator, caught.value.where.state) == ("op", "visits")
    assert caught.value.where.file == "keyed purse"
    assert caught.value.hint == "Declare the class (`--serializer 'com.acme.P=LAYOUT'`)"


def test_no_state_is_dropped_from_a_header_that_is_read_in_part(tmp_path: Path) -> None:
    first = build(tmp_path / "first", write_unread("purse"))
    dropped = {"op": OperatorRequest(drop_states=("visits",))}
    with pytest.raises(UnsupportedError, match="no state can be dropped from it"):
        plan(first, first, tmp_path, merge=MergeRequest(), operators=dropped)


def test_files_with_the_same_header_that_is_read_in_part_are_merged(tmp_path: Path) -> None:
    first = build(tmp_path / "first", write_unread("purse"))
    request = RescaleRequest(merge=MergeRequest(snapshots=("other",), on_equal=MergeRule.FIRST))
    result = rescale(first, str(tmp_path / "new"), request, open_other=lambda _: retake(first))
    assert result.proof is not None
    assert result.proof.ok


def split(orders: Snapshot, tmp_path: Path) -> tuple[Snapshot, str]:
    """All operators but one, and that one."""
    others = [each.label for each in orders.operators if each.label != "orders"]
    first = rescale(orders, str(tmp_path / "first"), parse_request({"operators": {"orders": {"drop": True}}}))
    drop = {"operators": {each: {"drop": True} for each in others}}
    return open_snapshot(first.path), rescale(orders, str(tmp_path / "second"), parse_request(drop)).path


@pytest.mark.slow
@pytest.mark.parametrize("way", ["merge", "take"])
def test_files_of_other_snapshots_are_linked(orders: Snapshot, way: str, tmp_path: Path) -> None:
    first, second = split(orders, tmp_path)
    took = {"take": {"orders": {"from": second}}}
    request = parse_request({"merge": {"with": [second]}} if way == "merge" else took)
    result = rescale(first, str(tmp_path / "new"), request, files="link")
    assert {each.stat().st_nlink for each in Path(second).iterdir() if not each.name.startswith("_")} == {2}
    assert sorted(map(str, dump(open_snapshot(result.path)))) == sorted(map(str, dump(orders)))


def test_metadata_of_a_version_without_properties_get_them_with_newer_state(orders: Snapshot, tmp_path: Path) -> None:
    first = build(tmp_path / "first", list_operator("op", "a", [b"1"]))
    assert (first.metadata.version, first.metadata.properties) == (3, None)
    result = rescale(first, str(tmp_path / "new"), RescaleRequest(merge=MergeRequest(snapshots=(orders.path,))))
    metadata = open_snapshot(result.path).metadata
    assert metadata.version == orders.metadata.version
    assert isinstance(metadata.properties, CheckpointProperties)
    assert isinstance(metadata.properties.checkpoint_type, SavepointType)


def without_keyed_state(snapshot: Snapshot, uid: str) -> Snapshot:
    operators = tuple(
        replace(each, subtasks=tuple(replace(subtask, managed_keyed_state=None) for subtask in each.subtasks))
        if each.uid == uid
        else each
        for each in snapshot.metadata.operator_states
    )
    return Snapshot(snapshot.location, replace(snapshot.metadata, operator_states=operators), snapshot.path_mapping)


def test_keyed_state_of_a_merged_snapshot_alone_is_reported(orders: Snapshot, tmp_path: Path) -> None:
    asked = {"orders": OperatorRequest(max_parallelism=256)}
    found = plan(without_keyed_state(orders, "orders"), orders, tmp_path, operators=asked)
    (change,) = [each for each in found.changes if each.label == "orders"]
    assert (change.keyed, change.reason) == (Way.RECORDS, "other key groups")
    assert any("the job must set the same max parallelism, 256 for orders" in each for each in found.notes)
    assert any("different max parallelism" in each and "256 has orders" in each for each in found.notes)


def test_operator_state_of_a_merged_snapshot_alone_is_reported(tmp_path: Path) -> None:
    first = build(tmp_path / "first", operator("op", SubtaskState(0)))
    second = build(tmp_path / "second", list_operator("op", "a", [b"1"]))
    (change,) = plan(first, second, tmp_path).changes
    assert (change.keyed, change.operator_state) == (Way.NONE, Way.RANGES)


@pytest.mark.slow
def test_another_max_parallelism_of_a_merged_snapshot_is_noted(orders: Snapshot, tmp_path: Path) -> None:
    other = open_snapshot(rescale(orders, str(tmp_path / "other"), max_parallelism=256).path)
    noted = "the job must set the same max parallelism, 128 for"
    assert any(noted in each for each in plan(orders, other, tmp_path).notes)
    assert not any(noted in each for each in plan(orders, retake(orders), tmp_path).notes)


def test_state_of_master_hooks_that_is_left_out_is_noted(tmp_path: Path) -> None:
    hook, other = MasterState("hook", 1, b"one"), MasterState("other-hook", 1, b"two")
    first = build(tmp_path / "first", list_operator("op", "a", [b"1"]), masters=(hook,))
    second = build(tmp_path / "second", list_operator("op", "a", [b"2"]), masters=(hook, other))
    found = plan(first, second, tmp_path)
    assert f"the state of master hooks of {second.path} is left out: other-hook" in found.notes
    assert not any("master hooks" in each for each in plan(second, first, tmp_path).notes)


@pytest.mark.parametrize("turned", [False, True])
def test_an_operator_that_has_finished_in_one_of_the_snapshots_is_refused(turned: bool, tmp_path: Path) -> None:
    running = list_operator("op", "a", [b"1"])
    finished = replace(running, fully_finished=True, subtasks=())
    states = (finished, running) if turned else (running, finished)
    first, second = (build(tmp_path / str(number), each) for number, each in enumerate(states))
    with pytest.raises(
        UnsupportedError, match=r"the operator had finished in .* and not in the other merged snapshots"
    ) as caught:
        plan(first, second, tmp_path)
    assert str(tmp_path / str(int(not turned))) in caught.value.what
    # The way out that the hint names.
    take = {"op": TakeRequest(snapshot="other", operator=second.operators[0].id)}
    drop = {"op": OperatorRequest(drop=True)}
    (change,) = plan(first, second, tmp_path, operators=drop, take=take).changes
    assert change.operator_state is (Way.COPIED if turned else Way.FINISHED)


TAKE = TakeRequest(snapshot="again", operator="orders")


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"take": {"other": TAKE, "third": TAKE}}, "of again is taken as other, and its state would be in third"),
        (
            {"take": {"other": TAKE}, "merge": MergeRequest(snapshots=("again",))},
            "of again is merged, and its state would be in other, too",
        ),
    ],
    ids=["twice", "merged"],
)
def test_an_operator_is_taken_once(orders: Snapshot, wishes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"operator orders {message}"):
        plan(orders, retake(orders), tmp_path, **{"merge": MergeRequest(), **wishes})


def test_a_renamed_operator_is_not_taken_again(orders: Snapshot, tmp_path: Path) -> None:
    renamed = {"orders": OperatorRequest(uid="renamed")}
    with pytest.raises(UsageError, match="operator orders stays, and its state would be in other, too"):
        plan(orders, orders, tmp_path, merge=MergeRequest(), operators=renamed, take={"other": TAKE})
