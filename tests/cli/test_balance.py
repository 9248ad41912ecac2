from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.cli.profile import draw_bar, draw_borders, draw_key_groups
from state_pipelines.operations.balance import KeyGroupLoads, distribute

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called


def test_json_holds_the_report_and_the_balance(call: Callable[..., Called], savepoint: Path) -> None:
    plain = call("inspect", savepoint, "--json").json
    found = call("inspect", savepoint, "--json", "--to-parallelism", "3").json
    balance = found.pop("balance")
    assert found == plain
    assert (balance["parallelism"], balance["max_parallelism"], balance["conflicts"]) == (3, None, [])
    (orders,) = [each for each in balance["operators"] if each["uid"] == "orders"]
    assert [each["key_groups"] for each in orders["predicted"]["subtasks"]] == [[0, 42], [43, 85], [86, 127]]
    assert sum(each["keys"] for each in orders["now"]["subtasks"]) == 200
    assert orders["measured"] == "records"


def test_the_tables_fit_into_80_columns(
    call: Callable[..., Called], savepoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state_pipelines.cli.display.WIDTH_OF_FILES", 80)
    lines = call("inspect", savepoint, "--balance").out.splitlines()
    start = lines.index("key groups and subtasks")
    assert max(map(len, lines[start:])) <= 80
    assert "  subtask  key groups     bytes                        records  keys" in lines[start:]


@pytest.mark.slow
def test_people_see_advice_and_the_hottest_keys(call: Callable[..., Called], savepoint: Path) -> None:
    out = call("inspect", savepoint, "--to-parallelism", "96").out
    assert "gives subtasks of 1 and 2 key groups" in out
    assert "and 80 smaller subtasks" in out
    assert "key with most records" in out
    assert "Bestellung-Ü0167" in out


def test_without_count_only_offsets_are_read(call: Callable[..., Called], savepoint: Path) -> None:
    balance = call("inspect", savepoint, "--json", "--no-count", "--balance").json["balance"]
    assert {each["measured"] for each in balance["operators"]} == {"offsets"}
    assert {each["now"]["loads"]["keys"] for each in balance["operators"]} == {None}


@pytest.mark.slow
def test_a_picture_is_drawn(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    assert call("inspect", savepoint, "--plot", tmp_path / "a.png", "--to-max-parallelism", "1024").code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_another_kind_of_picture_is_wrong_use(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    called = call("inspect", savepoint, "--plot", tmp_path / "a.pdf")
    assert (called.code, called.out) == (2, "")
    assert "neither an SVG nor a PNG" in called.err


def test_key_groups_are_as_high_as_they_hold_much() -> None:
    assert draw_key_groups([0, 1, 50, 100]) == "·▁▄█"
    assert draw_key_groups([0, 1, 0, 100], 2) == "▁█"


def test_subtasks_begin_below_their_key_groups() -> None:
    assert draw_borders(distribute(KeyGroupLoads([1] * 128), 2, 128), 8) == "╵   ╵"


@pytest.mark.parametrize(("value", "bar"), [(0, ""), (1, "▏"), (500, "█████"), (1000, "██████████")])
def test_a_bar_is_as_long_as_the_value(value: int, bar: str) -> None:
    assert draw_bar(value, 1000, 10) == bar
