"""`--python-types` on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.test_pyflink import SAVEPOINT, TYPES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called


def test_read_shows_declared_types(call: Callable[..., Called]) -> None:
    done = call(
        *("read", str(SAVEPOINT), "--operator", "states", "--state", "typed", "--json"),
        *("--python-types", "states.typed=ROW<n BIGINT, s STRING>"),
    )

    assert done.code == 0
    assert '"value":{"row_kind":"+I","n":27,"s":"s27"}' in done.out


def test_a_file_declares_several(call: Callable[..., Called]) -> None:
    done = call("dump", str(SAVEPOINT), "--operator", "states", "--state", "sum", "--python-types", TYPES)

    assert done.code == 0
    assert '"state":"sum","java_state":"python-state-sum","type":"REDUCING"' in done.out


def test_inspect_says_how_to_declare(call: Callable[..., Called]) -> None:
    out = call("inspect", str(SAVEPOINT)).out

    assert "python-state-typed" in out
    assert "VALUE?" in out
    assert "--python-types" in out


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("typed=BIGINT", "does not have the form OPERATOR.STATE=TYPE"),
        ("states.typed=", "does not have the form OPERATOR.STATE=TYPE"),
        ("states.typed=NONSENSE", "is not a type of PyFlink"),
        ("states.map=BIGINT", "map state"),
    ],
)
def test_wrong_declarations_are_wrong_use(call: Callable[..., Called], text: str, what: str) -> None:
    done = call("read", str(SAVEPOINT), "--operator", "states", "--state", "map", "--python-types", text)

    assert done.code == 2
    assert what in " ".join(done.err.split())


def test_a_file_of_another_form_is_wrong_use(call: Callable[..., Called], tmp_path: Path) -> None:
    file = tmp_path / "types.yaml"
    file.write_text("- states\n")
    done = call("inspect", str(SAVEPOINT), "--python-types", str(file))

    assert done.code == 2
    assert "types by operator and state" in " ".join(done.err.split())
