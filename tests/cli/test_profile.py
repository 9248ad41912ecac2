from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import state_pipelines as sp
from state_pipelines.cli.profile import parse_ttl
from state_pipelines.errors import UsageError
from tests.snapshots import OWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Called

(TYPES,) = (case for case in OWN if case.version.startswith("2.2") and case.case == "heap")


def test_json_holds_the_profile(call: Callable[..., Called]) -> None:
    profile = call("inspect", TYPES.path, "--no-count", "--profile", "--json").json["profile"]
    states = {state["name"]: state for each in profile["operators"] for state in each["states"]}
    assert states["sum"]["entries"] == 12
    assert {column["column"]: column["null_ratio"] for column in states["sum"]["columns"]}["value"] == 0
    assert profile["errors"] == []


def test_without_the_option_there_is_no_profile(call: Callable[..., Called]) -> None:
    assert "profile" not in call("inspect", TYPES.path, "--no-count", "--json").json


def test_a_ttl_shows_what_has_expired(call: Callable[..., Called]) -> None:
    report = call("inspect", TYPES.path, "--no-count", "--ttl", "sum=1s", "--json").json
    states = {state["name"]: state for each in report["profile"]["operators"] for state in each["states"]}
    assert states["sum"]["ttl"]["expired"] == 12
    assert states["average"]["ttl"]["expired"] is None


def test_people_see_columns_keys_and_ages(call: Callable[..., Called]) -> None:
    shown = call("inspect", TYPES.path, "--no-count", "--profile", "--ttl", "1 s").out
    for text in ("largest key", "value.born.epoch_second", "last access: 20", "expired: 12 (100.0%)", "entries by age"):
        assert text in shown


def test_a_ttl_of_no_state_is_wrong_use(call: Callable[..., Called]) -> None:
    called = call("inspect", TYPES.path, "--no-count", "--ttl", "absent=1d")
    assert called.code == 2
    assert "--ttl names absent" in called.err


def test_times_to_live_are_parsed() -> None:
    assert parse_ttl(["7d", "a=b=1 h"]) == {"": timedelta(days=7), "a=b": timedelta(hours=1)}


@pytest.mark.parametrize("texts", [["soon"], ["7d", "8d"], ["a="]])
def test_other_times_to_live_are_wrong_use(texts: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_ttl(texts)


def test_a_snapshot_is_profiled_by_its_path() -> None:
    found = sp.profile(str(TYPES.path), ttl={"sum": timedelta(milliseconds=1)})
    assert found.expired == 12
