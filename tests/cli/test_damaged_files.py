"""A snapshot one file of which is damaged: what is in its other files is read and compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from state_pipelines.serializers.build import basic
from state_pipelines.snapshot import open_snapshot
from tests.operations.comparing.test_diff import write, write_totals
from tests.operations.one_state import OneState

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Called

TOTALS = {f"key-{number}": number for number in range(40)}


def cut_header(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def cut_data(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


SPOIL = pytest.mark.parametrize("spoil", [cut_header, cut_data, Path.unlink])


def find_keys(path: str) -> list[set[str]]:
    """The keys in each of the two files of `totals`."""
    state = open_snapshot(path, uids=["totals"]).operator("totals").state("total")
    rows = state.to_arrow().to_pylist()
    return [{row["state_key"] for row in rows if row["subtask"] == subtask} for subtask in (0, 1)]


@pytest.fixture
def whole(tmp_path: Path) -> str:
    return write_totals(tmp_path / "whole", TOTALS).path


@pytest.fixture
def damaged(tmp_path: Path, spoil: Callable[[Path], None]) -> str:
    """The same totals; the file of subtask 0 is damaged."""
    snapshot = write_totals(tmp_path / "damaged", TOTALS | {"key-39": 0})
    spoil(Path(snapshot.operators[0].keyed_files[0][1].name))
    return snapshot.path


@SPOIL
def test_read_shows_the_rows_of_the_other_file(call: Callable[..., Called], whole: str, damaged: str) -> None:
    called = call("read", damaged, "--uid", "totals", "--operator", "totals", "--state", "total", "--json")
    assert {row["state_key"] for row in called.lines if row["subtask"] == 1} == find_keys(whole)[1]
    assert called.code == 2
    assert called.err.startswith("error: ")
    assert called.err.count("\n") == 1


@SPOIL
def test_read_shows_all_states_of_the_other_file(call: Callable[..., Called], whole: str, damaged: str) -> None:
    called = call("read", damaged, "--uid", "totals", "--operator", "totals", "--json")
    assert {row["state_key"] for row in called.lines if row["subtask"] == 1} == find_keys(whole)[1]
    assert called.code == 2


@SPOIL
def test_key_groups_of_the_other_file_are_read_without_an_error(
    call: Callable[..., Called], whole: str, damaged: str
) -> None:
    options = ("--operator", "totals", "--state", "total", "--key-groups", "64-127", "--json")
    called = call("read", damaged, "--uid", "totals", *options)
    assert (called.code, called.err) == (0, "")
    assert {row["state_key"] for row in called.lines} == find_keys(whole)[1]


@SPOIL
def test_a_key_of_the_other_file_is_read_without_an_error(
    call: Callable[..., Called], whole: str, damaged: str
) -> None:
    key = min(find_keys(whole)[1])
    for more in (("--state", "total"), ()):
        called = call("read", damaged, "--uid", "totals", "--operator", "totals", *more, "--key", key, "--json")
        assert (called.code, called.err) == (0, "")
        assert [row["state_key"] for row in called.lines] == [key]


@SPOIL
def test_diff_compares_the_other_file(call: Callable[..., Called], whole: str, damaged: str) -> None:
    same = "key-39" in find_keys(whole)[0]
    called = call("diff", whole, damaged, "--uid", "totals", "--json")
    ((state,),) = (operator["states"] for operator in called.json["operators"])
    contents = state["contents"]
    assert contents["same"] is (None if same else False)
    assert contents["changed"] == (None if same else 1)
    assert contents["note"].startswith("key groups 0-63 are not compared: ")
    assert (called.code, called.err.startswith("error: ")) == (2, True)


def test_a_state_that_may_be_in_a_damaged_file_is_no_difference(
    call: Callable[..., Called], whole: str, tmp_path: Path
) -> None:
    other = write_totals(tmp_path / "other", TOTALS)
    for _, file in other.operators[0].keyed_files:
        Path(file.name).write_bytes(b"")
    called = call("diff", whole, other.path, "--json")
    assert (called.code, called.json["differs"], called.json["same"]) == (2, False, False)
    assert "offset" in called.json["operators"][0]["error"]


def test_diff_with_strict_is_3_where_something_was_not_compared(
    call: Callable[..., Called], whole: str, tmp_path: Path
) -> None:
    text = OneState("totals", "total", "VALUE", key=basic("String"), value=basic("String"), parallelism=2)
    other = write(tmp_path / "text", pa.table({"state_key": ["a"], "value": ["x"]}), text).path
    assert call("diff", whole, other).code == 1
    assert call("diff", whole, other, "--strict").code == 3
    assert call("diff", whole, whole, "--strict").code == 0
