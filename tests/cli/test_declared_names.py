"""Declarations that match nothing: misspelt operators and states are refused, other ones are a note."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.test_pyflink import SAVEPOINT
from tests.operations.comparing.test_diff import write_totals
from tests.snapshots import UNKNOWN, UNKNOWN_SERIALIZER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called


@pytest.fixture
def totals(tmp_path: Path) -> str:
    return write_totals(tmp_path / "totals", {"a": 1}).path


@pytest.mark.parametrize(
    ("option", "text"),
    [("--key-serializer", "total=String"), ("--connector", "total=kafka"), ("--python-types", "total.sum=BIGINT")],
)
@pytest.mark.parametrize("command", ["inspect", "dump", "read"])
def test_a_misspelt_operator_is_refused(
    call: Callable[..., Called], totals: str, command: str, option: str, text: str
) -> None:
    called = call(command, totals, "--uid", "totals", option, text)
    assert (called.code, called.out) == (2, "")
    assert "declared for operator total, which is not in the snapshot" in called.err
    assert "It has totals" in called.err


def test_a_misspelt_state_of_a_python_function_is_refused(call: Callable[..., Called]) -> None:
    called = call("inspect", SAVEPOINT, "--python-types", "states.tiped=BIGINT")
    assert called.code == 2
    assert "a type is declared for state tiped" in called.err
    assert "typed" in called.err.partition("It has ")[2].split(", ")


def test_one_of_two_snapshots_may_have_the_operator(call: Callable[..., Called], totals: str) -> None:
    called = call(
        "diff", totals, SAVEPOINT, "--python-types", "states.typed=ROW<n BIGINT, s STRING>", "--metadata-only"
    )
    assert (called.code, called.err) == (1, "")


@pytest.mark.parametrize(
    ("option", "text", "note"),
    [
        ("--key-serializer", "totals=String", "declared for operator totals has no effect: it has no changelog state"),
        ("--connector", "totals=kafka", "declared for operator totals has no effect: it has no list state"),
        ("--serializer", "com.acme.Nowhere$Snap=utf", "com.acme.Nowhere$Snap is declared, and no serializer snapshot"),
    ],
)
def test_what_has_no_effect_is_a_note(
    call: Callable[..., Called], totals: str, option: str, text: str, note: str
) -> None:
    called = call("inspect", totals, option, text)
    assert called.code == 0
    assert called.err.startswith("note: ")
    assert note in called.err


def test_a_declared_class_that_occurs_is_no_note(call: Callable[..., Called]) -> None:
    (case,) = [each for each in UNKNOWN if each.case == "canonical"]
    assert call("inspect", case.path, "--serializer", UNKNOWN_SERIALIZER).err == ""
