from __future__ import annotations

import datetime
import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import state_pipelines as sp
from state_pipelines.cli.profile import parse_ttl
from state_pipelines.errors import UsageError
from tests.snapshots import OWN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

(TYPES,) = (case for case in OWN if case.version.startswith("2.2") and case.case == "heap")


@pytest.mark.slow
def test_json_holds_the_profile(call: Callable[..., Called]) -> None:
    profile = call("inspect", TYPES.path, "--no-count", "--profile", "--json").json["profile"]
    states = {state["name"]: state for each in profile["operators"] for state in each["states"]}
    assert states["sum"]["entries"] == 12
    assert {column["column"]: column["null_ratio"] for column in states["sum"]["columns"]}["value"] == 0
    assert profile["errors"] == []


def test_without_the_option_there_is_no_profile(call: Callable[..., Called]) -> None:
    assert "profile" not in call("inspect", TYPES.path, "--no-count", "--json").json


@pytest.mark.slow
def test_a_ttl_shows_what_has_expired(call: Callable[..., Called]) -> None:
    report = call("inspect", TYPES.path, "--no-count", "--ttl", "sum=1s", "--json").json
    states = {state["name"]: state for each in report["profile"]["operators"] for state in each["states"]}
    assert states["sum"]["ttl"]["expired"] == 12
    assert states["average"]["ttl"]["expired"] is None


@pytest.mark.slow
def test_people_see_columns_keys_and_ages(call: Callable[..., Called]) -> None:
    shown = call("inspect", TYPES.path, "--no-count", "--profile", "--ttl", "1 s").out
    for text in ("largest key", "value.born.epoch_second", "last access: 20", "expired: 12 (100.0%)", "entries by age"):
        assert text in shown


@pytest.fixture
def bootstrapped(call: Callable[..., Called], tmp_path: Path) -> Callable[..., Path]:
    """Write a savepoint with one state, whose values are given."""

    def write(values: pa.Array, **state: object) -> Path:
        pq.write_table(
            pa.table({"state_key": [str(each) for each in range(len(values))], **state, "value": values}),
            tmp_path / "rows.parquet",
        )
        ttl = "true" if state else "false"
        rows = f"{{name: born, rows: rows.parquet, ttl: {ttl}}}"
        (tmp_path / "new.yaml").write_text(f"operators: [{{uid: o, parallelism: 1, states: [{rows}]}}]")
        assert call("bootstrap", tmp_path / "new.yaml", "--out", tmp_path / "out").code == 0
        return tmp_path / "out"

    return write


def test_damaged_values_are_exit_code_2(call: Callable[..., Called], bootstrapped: Callable[..., Path]) -> None:
    path = bootstrapped(pa.array([datetime.date(2024, 2, 29)]))
    (file,) = (each for each in path.iterdir() if b"\0\0\x07\xe8\x02\x1d" in each.read_bytes())
    file.write_bytes(file.read_bytes().replace(b"\x07\xe8\x02\x1d", b"\x07\xe8\x02\x1e"))
    assert call("inspect", path, "--strict").code == 0
    for options in ([], ["--strict"], ["--json"]):
        called = call("inspect", path, "--profile", *options)
        assert called.code == 2
        assert "cannot be read: " in called.err
    assert call("dump", path).code == 2


def test_damage_that_is_found_without_a_profile_is_one_error(
    call: Callable[..., Called], bootstrapped: Callable[..., Path]
) -> None:
    path = bootstrapped(pa.array([1]))
    (file,) = (each for each in path.iterdir() if b"born" in each.read_bytes())
    file.write_bytes(file.read_bytes()[:-3])
    alone, profiled = (call("inspect", path, *options) for options in ([], ["--profile"]))
    assert (alone.code, profiled.code) == (2, 2)
    assert "more)" not in profiled.err


@pytest.mark.slow
def test_entries_that_cannot_be_decoded_are_a_note(call: Callable[..., Called]) -> None:
    # Without the class, half of the values of the state cannot be decoded.
    called = call("inspect", TYPES.path, "--no-count", "--profile", "--json")
    assert called.code == 0
    assert any("6 entries that cannot be decoded" in note for note in called.json["notes"])
    assert "cannot be decoded" in called.err
    assert call("inspect", TYPES.path, "--no-count", "--profile", "--strict").code == 3


def test_a_last_access_that_is_no_date_is_shown(call: Callable[..., Called], bootstrapped: Callable[..., Path]) -> None:
    path = bootstrapped(pa.array([1, 2]), ttl_last_access=pa.array([-(1 << 63), (1 << 63) - 1]))
    called = call("inspect", path, "--ttl", "1d")
    assert called.code == 0
    assert "last access: -9223372036854775808 ms to 9223372036854775807 ms" in called.out


def test_numbers_are_json(call: Callable[..., Called], bootstrapped: Callable[..., Path]) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    path = bootstrapped(pa.array([float("nan"), float("-inf")]))
    json.loads(call("inspect", path, "--profile", "--json").out, parse_constant=refuse)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_snapshot_is_profiled_by_its_path() -> None:
    found = sp.profile(str(TYPES.path), ttl={"sum": timedelta(milliseconds=1)})
    assert found.expired == 12
