from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import NotFoundError, UnsupportedError, UsageError
from state_pipelines.metadata.checkpoint import compute_operator_id
from state_pipelines.operations.rescale.rescale_request import (
    EditedSnapshot,
    MergeRequest,
    OperatorRequest,
    RescaleRequest,
    TakeRequest,
    edit_operators,
)
from state_pipelines.snapshot import Snapshot, open_snapshot
from tests.snapshots import DATA

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = "examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091"


@pytest.fixture
def orders(request: pytest.FixtureRequest) -> Snapshot:
    return open_snapshot(str(request.config.rootpath / ORDERS))


@pytest.fixture
def orders_1(request: pytest.FixtureRequest) -> Snapshot:
    root = request.config.rootpath
    (path,) = (root / "examples/orders/savepoints/flink-1.20").glob("savepoint-*/_metadata")
    return open_snapshot(str(path), uids=["orders", "order-counter"])


def edit(snapshot: Snapshot, *requests: tuple[str, OperatorRequest]) -> EditedSnapshot:
    return edit_operators(snapshot, RescaleRequest(operators=dict(requests)), {})


def test_nothing_asked_for_is_nothing_changed(orders: Snapshot) -> None:
    edited = edit_operators(orders, RescaleRequest(), {})
    assert edited.snapshot.metadata == orders.metadata
    assert [each.operator.label for each in edited.operators] == [each.label for each in orders.operators]


def test_a_new_uid_is_a_new_id_and_the_state_is_found_there(orders: Snapshot) -> None:
    edited = edit(orders, ("orders", OperatorRequest(uid="orders-v2")))
    renamed = edited.snapshot.operator("orders-v2")
    assert renamed.metadata.operator_id == compute_operator_id("orders-v2")
    assert renamed.metadata.uid == "orders-v2"
    assert renamed.state("order").to_arrow() == orders.operator("orders").state("order").to_arrow()
    assert edited.operators[-1].former == "orders"
    assert "orders" not in [each.label for each in edited.snapshot.operators]


def test_before_flink_2_the_uid_has_no_place_but_is_known(orders_1: Snapshot) -> None:
    edited = edit(orders_1, ("orders", OperatorRequest(uid="orders-v2")))
    renamed = edited.snapshot.operator("orders-v2")
    assert renamed.metadata.uid is None
    assert "orders-v2" in [each.operator.label for each in edited.operators]


def test_a_generated_hash_gets_a_uid_and_a_uid_a_hash(orders: Snapshot) -> None:
    identity = orders.operator("orders").id
    edited = edit(orders, (identity, OperatorRequest(uid="named")))
    assert edited.snapshot.operator("named").states
    edited = edit(orders, ("orders", OperatorRequest(operator_id="ab" * 16)))
    assert edited.snapshot.operator("ab" * 16).metadata.uid is None


def test_a_dropped_operator_is_gone(orders: Snapshot) -> None:
    edited = edit(orders, ("pricing", OperatorRequest(drop=True)))
    assert edited.dropped == ("pricing",)
    assert "pricing" not in [each.label for each in edited.snapshot.operators]


def test_two_operators_cannot_have_one_id(orders: Snapshot) -> None:
    with pytest.raises(UsageError, match="two operators would have the id"):
        edit(orders, ("pricing", OperatorRequest(uid="orders")))


def test_uids_can_be_swapped(orders: Snapshot) -> None:
    edited = edit(orders, ("pricing", OperatorRequest(uid="orders")), ("orders", OperatorRequest(uid="pricing")))
    assert edited.snapshot.operator("pricing").state("order")
    assert edited.snapshot.operator("orders").state("prices")


def test_an_operator_that_is_not_there_is_named(orders: Snapshot) -> None:
    with pytest.raises(NotFoundError, match="has no operator order"):
        edit(orders, ("order", OperatorRequest(uid="x")))


def test_an_operator_is_named_once(orders: Snapshot) -> None:
    identity = orders.operator("orders").id
    with pytest.raises(UsageError, match="twice"):
        edit(orders, ("orders", OperatorRequest(uid="x")), (identity, OperatorRequest(uid="y")))


def test_an_operator_is_taken_from_another_snapshot(orders: Snapshot) -> None:
    (found,) = (DATA / "types/flink-2.2/heap").glob("savepoint-*")
    path = str(found)
    other = open_snapshot(path)
    request = RescaleRequest(take={"kinds": TakeRequest(snapshot=path, operator="state-kinds")})
    edited = edit_operators(orders, request, {path: other})
    taken = edited.snapshot.operator("kinds")
    for state in other.operator("state-kinds").states:
        assert taken.state(state.name).to_arrow() == state.to_arrow()
    assert edited.notes == (f"operator kinds comes from {path}",)
    assert edited.snapshot.operator("orders").state("order").to_arrow().num_rows


def test_generic_types_of_flink_1_do_not_come_into_state_of_flink_2(request: pytest.FixtureRequest) -> None:
    (found,) = (request.config.rootpath / "examples/upgrade/savepoint").glob("savepoint-*")
    orders = open_snapshot(str(request.config.rootpath / ORDERS))
    shop = open_snapshot(str(found), uids=["views", "customers"])
    for wanted in (
        RescaleRequest(merge=MergeRequest(snapshots=("shop",))),
        RescaleRequest(take={"customers": TakeRequest(snapshot="shop", operator="customers")}),
    ):
        with pytest.raises(UnsupportedError, match=r"is of Flink 1.x, .* of Flink 2.x; generic types") as caught:
            edit_operators(orders, wanted, {"shop": shop})
        assert caught.value.where.operator == "customers"
    # Nor does state of Flink 2 come into a snapshot with them.
    taken = RescaleRequest(take={"orders": TakeRequest(snapshot="orders", operator="orders")})
    with pytest.raises(UnsupportedError, match="generic types"):
        edit_operators(shop, taken, {"orders": orders})


def test_other_state_of_flink_1_comes_into_state_of_flink_2(orders: Snapshot, orders_1: Snapshot) -> None:
    wanted = RescaleRequest(
        operators={"orders": OperatorRequest(drop=True)},
        take={"orders": TakeRequest(snapshot="old", operator="orders")},
    )
    edited = edit_operators(orders, wanted, {"old": orders_1})
    assert edited.snapshot.metadata.version == orders.metadata.version
    old, new = (each.operator("orders").state("quantities").to_arrow() for each in (orders_1, edited.snapshot))
    assert new == old
    assert old.num_rows


def retake(snapshot: Snapshot) -> Snapshot:
    """The same state in another snapshot."""
    return Snapshot(snapshot.location, replace(snapshot.metadata, checkpoint_id=99), snapshot.path_mapping)


def test_a_snapshot_is_not_merged_with_itself(orders: Snapshot) -> None:
    with pytest.raises(UsageError, match="is the same snapshot as"):
        edit_operators(orders, RescaleRequest(merge=MergeRequest(snapshots=("again",))), {"again": orders})


def test_what_only_a_merged_snapshot_has_comes_in(orders: Snapshot, tmp_path: Path) -> None:
    less = replace(
        orders.metadata,
        operator_states=tuple(each for each in orders.metadata.operator_states if each.uid not in ("orders", "gone")),
    )
    fewer = Snapshot(orders.location, less, orders.path_mapping)
    edited = edit_operators(fewer, RescaleRequest(merge=MergeRequest(snapshots=("whole",))), {"whole": retake(orders)})
    assert edited.notes == ("operator orders is only in whole; it is taken as it is",)
    by_label = {each.operator.label: each for each in edited.operators}
    assert not by_label["orders"].merged
    assert [each.snapshot.checkpoint_id for each in by_label["pricing"].merged] == [99]
    state = by_label["orders"].operator.state("order")
    assert state.to_arrow() == orders.operator("orders").state("order").to_arrow()


def test_a_dropped_operator_does_not_come_back_by_a_merge(orders: Snapshot) -> None:
    request = RescaleRequest(operators={"orders": OperatorRequest(drop=True)}, merge=MergeRequest(snapshots=("again",)))
    edited = edit_operators(orders, request, {"again": retake(orders)})
    assert "orders" not in [each.operator.label for each in edited.operators]


def test_state_that_is_left_out_because_another_operator_gets_the_id_is_noted(orders: Snapshot) -> None:
    drop = {"orders": OperatorRequest(drop=True)}
    take = {"orders": TakeRequest(snapshot="other", operator="pricing")}
    others = {
        path: Snapshot(orders.location, replace(orders.metadata, checkpoint_id=number), orders.path_mapping)
        for number, path in enumerate(("other", "again"), start=98)
    }
    edited = edit_operators(
        orders, RescaleRequest(operators=drop, take=take, merge=MergeRequest(snapshots=("again",))), others
    )
    noted = f"operator orders of again is left out: orders of {orders.path} is dropped, and pricing of other gets"
    assert f"{noted} its id" in edited.notes
    (taken,) = [each for each in edited.operators if each.operator.label == "orders"]
    assert not taken.merged
    edited = edit_operators(orders, RescaleRequest(operators=drop, merge=MergeRequest(snapshots=("again",))), others)
    assert not edited.notes


def test_a_renamed_operator_is_merged_by_its_old_id(orders: Snapshot) -> None:
    request = RescaleRequest(operators={"orders": OperatorRequest(uid="new")}, merge=MergeRequest(snapshots=("again",)))
    edited = edit_operators(orders, request, {"again": retake(orders)})
    (renamed,) = (each for each in edited.operators if each.former == "orders")
    assert [each.label for each in renamed.merged] == ["orders"]


@pytest.mark.parametrize("turned", [False, True])
def test_the_id_of_a_dropped_operator_can_be_that_of_another_one(orders: Snapshot, turned: bool) -> None:
    # In either order of the operators.
    if turned:
        metadata = replace(orders.metadata, operator_states=orders.metadata.operator_states[::-1])
        orders = Snapshot(orders.location, metadata, orders.path_mapping, orders.declarations)
    requests = {"pricing": OperatorRequest(drop=True), "orders": OperatorRequest(uid="pricing")}
    edited = edit_operators(
        orders, RescaleRequest(operators=requests, merge=MergeRequest(snapshots=("again",))), {"again": retake(orders)}
    )
    (renamed,) = [each for each in edited.operators if each.operator.label == "pricing"]
    assert [each.label for each in renamed.merged] == ["orders"]
    assert "orders" not in [each.operator.label for each in edited.operators]


@pytest.mark.parametrize("uid", ["x" * 65_536, "\N{EURO SIGN}" * 30_000])
def test_a_uid_that_cannot_be_stored_is_refused(orders: Snapshot, uid: str) -> None:
    with pytest.raises(UsageError, match="cannot be stored: a string of") as error:
        edit(orders, ("orders", OperatorRequest(uid=uid)))
    assert len(str(error.value)) < 300


def test_a_uid_with_half_a_character_has_an_id_as_in_java() -> None:
    assert compute_operator_id("a\udcff") == compute_operator_id("a?")


def test_an_operator_that_stays_is_not_taken_again(orders: Snapshot) -> None:
    request = RescaleRequest(take={"other": TakeRequest(snapshot="again", operator="orders")})
    with pytest.raises(UsageError, match="operator orders stays, and its state would be in other, too"):
        edit_operators(orders, request, {"again": orders})
