from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from state_pipelines.serializers.build import basic
from tests.operations.comparing.test_diff import write, write_totals
from tests.operations.one_state import OneState
from tests.snapshot.savepoints import orders
from tests.snapshots import select

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

UIDS = [text for uid in orders().uids for text in ("--uid", uid)]


@pytest.fixture
def totals(tmp_path: Path) -> tuple[str, str]:
    """Two snapshots with a changed, a missing and a new key."""
    one = write_totals(tmp_path / "one", {"a": 1, "b": 2, "gone": 3})
    return one.path, write_totals(tmp_path / "other", {"a": 1, "b": 7, "new": 4}).path


@pytest.mark.slow
def test_the_same_in_another_format(call: Callable[..., Called], tmp_path: Path) -> None:
    call("convert", orders().path, "--out", tmp_path / "new", "--format", "heap")
    called = call("diff", orders().path, tmp_path / "new")
    assert called.code == 0
    assert called.out.startswith(f"the same\n  one:   {orders().path}\n  other: {tmp_path / 'new'}\n")


def test_what_is_different(call: Callable[..., Called], totals: tuple[str, str]) -> None:
    called = call("diff", *totals, "--uid", "totals")
    assert called.code == 1
    lines = [" ".join(line.split()) for line in called.out.splitlines()]
    assert lines[0] == "different: 1 of 1 operators, 1 of 1 states"
    assert "state kind records in other only in one only in other changed" in lines
    assert "total VALUE 3 3 1 1 1" in lines
    start = next(index for index, line in enumerate(lines) if line.startswith("changed key_group"))
    assert lines[start].endswith("state_key: b")
    assert lines[start + 1 : start + 3] == ["one: 2", "other: 7"]
    assert any(line.startswith("only in one key_group") and line.endswith("state_key: gone") for line in lines)
    assert any(line.startswith("only in other key_group") and line.endswith("state_key: new") for line in lines)


def test_what_is_different_as_json(call: Callable[..., Called], totals: tuple[str, str]) -> None:
    called = call("diff", *totals, "--json", "--limit", 1)
    assert called.code == 1
    assert (called.json["one"], called.json["other"]) == totals
    ((state,),) = (operator["states"] for operator in called.json["operators"])
    contents = state["contents"]
    assert (contents["same"], contents["only_in_one"], contents["only_in_other"], contents["changed"]) == (
        False,
        1,
        1,
        1,
    )
    assert (contents["one"]["records"], len(contents["one"]["digest"])) == (3, 16)
    (example,) = contents["examples"]
    assert (example["kind"], example["key"]["state_key"], example["other"]) == ("changed", "b", {"value": 7})


def test_metadata_only(call: Callable[..., Called], totals: tuple[str, str]) -> None:
    called = call("diff", *totals, "--metadata-only")
    assert called.code == 0
    assert called.out.startswith("the same, contents not compared\n")
    assert called.out.endswith("records were not compared (--metadata-only)\n")


def test_another_serializer(call: Callable[..., Called], totals: tuple[str, str], tmp_path: Path) -> None:
    text = OneState("totals", "total", "VALUE", key=basic("String"), value=basic("String"), parallelism=2)
    write(tmp_path / "text", pa.table({"state_key": ["a"], "value": ["x"]}), text)
    called = call("diff", totals[0], tmp_path / "text")
    assert called.code == 1
    assert "\n  total: not compared: the value serializer differs\n    value: Long -> String\n" in called.out


@pytest.mark.slow
def test_one_operator_and_one_state(call: Callable[..., Called], tmp_path: Path) -> None:
    call("rescale", orders().path, "--out", tmp_path / "new", "--parallelism", 3)
    called = call("diff", orders().path, tmp_path / "new", "--operator", "pricing", *UIDS)
    assert called.code == 1
    assert called.out.endswith("\npricing\n  parallelism: 2 -> 3\n  1 state the same\n")
    assert call("diff", orders().path, tmp_path / "new", "--state", "prices").code == 0


@pytest.mark.slow
def test_states_that_are_gone(call: Callable[..., Called], tmp_path: Path) -> None:
    wishes = ("--drop-state", "orders=history", "--drop-operator", "pricing")
    call("rescale", orders().path, "--out", tmp_path / "new", *wishes, *UIDS)
    called = call("diff", orders().path, tmp_path / "new", *UIDS)
    assert called.code == 1
    assert "\npricing: only in one\n" in called.out
    assert "\n  history: only in one\n" in called.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--operator", "nobody"), "no operator nobody"),
        (("--state", "nothing"), "neither snapshot has a state nothing"),
    ],
)
def test_wrong_use(call: Callable[..., Called], arguments: tuple[str, ...], message: str) -> None:
    called = call("diff", orders().path, orders().path, *arguments)
    assert (called.code, called.out) == (2, "")
    assert message in called.err


def test_unreadable_input(call: Callable[..., Called], broken: Path, tmp_path: Path) -> None:
    assert call("diff", broken, tmp_path / "nothing").code == 2
    for file in broken.iterdir():
        if file.name != "_metadata":
            file.unlink()
    assert call("diff", orders().path, broken).code == 2
    assert call("diff", orders().path, orders().path, "--limit", "-1").code == 2


@pytest.mark.slow
def test_spark_is_not_imported() -> None:
    code = "import sys, state_pipelines.cli.diff; print({'pyspark', 'dagster'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.slow
def test_what_could_not_be_compared_is_no_difference(call: Callable[..., Called]) -> None:
    path = select("2.2", "heap-native")[0].path
    arguments = ("diff", path, path, "--operator", "composite-types", "--uid", "composite-types")
    called = call(*arguments)
    assert called.code == 3
    assert called.out.startswith(
        "the same as far as compared: 1 of 1 operators, 1 of 16 states, 1 of them not compared"
    )
    assert "person-or-guest: not compared: " in called.out
    report = call(*arguments, "--json").json
    assert (report["same"], report["differs"]) == (False, False)
