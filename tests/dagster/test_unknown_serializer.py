"""Assets over a snapshot of five operators, one of which has a serializer that nothing reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.snapshots import UNKNOWN

if TYPE_CHECKING:
    from tests.dagster.conftest import Deployment

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def metadata(deployment: Deployment) -> dict[str, dict[str, Any]]:
    (case,) = [each for each in UNKNOWN if each.case == "canonical"]
    key = deployment.add_copy(case.path, "unknown")
    result = deployment.materialize(["snapshot_profile", "state_tables"], key)
    assert result.success
    found = {}
    for name in ("snapshot_profile", "state_tables"):
        (event,) = result.asset_materializations_for_node(f"shop__{name}")
        found[name] = {label: value.value for label, value in event.metadata.items()}
    return found


def test_the_profile_lists_every_state(metadata: dict[str, dict[str, Any]]) -> None:
    rows = [each.data for each in metadata["snapshot_profile"]["states"].records]
    names = {(each["operator"], each["state"]) for each in rows}
    assert names >= {("purses", "purse"), ("purses", "visits"), ("tallies", "tally"), ("log", "numbers")}
    assert [each["state"] for each in rows if each["not decoded"]] == ["purse"]
    assert metadata["snapshot_profile"]["unreadable"] == 0


def test_every_state_has_a_table_and_one_holds_bytes(metadata: dict[str, dict[str, Any]]) -> None:
    rows = {
        (each.data["operator"], each.data["state"]): each.data for each in metadata["state_tables"]["tables"].records
    }
    assert [place for place, row in rows.items() if row["undecoded"]] == [("purses", "purse")]
    assert {place: rows[place]["rows"] for place in (("purses", "purse"), ("rates", "rates"))} == {
        ("purses", "purse"): 12,
        ("rates", "rates"): 6,
    }
    assert metadata["state_tables"]["unread"] == []
