from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

KEY = ("--key", "order-0064")


def test_without_a_target_it_is_a_dry_run(call: Callable[..., Called], savepoint: Path) -> None:
    called = call("erase", savepoint, *KEY)
    assert (called.code, called.err) == (0, "")
    assert "nothing was written; --out TARGET writes a snapshot without them" in called.out


@pytest.mark.slow
def test_the_new_snapshot_has_no_such_key(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    called = call("erase", savepoint, *KEY, "--out", tmp_path / "new")
    assert called.code == 0
    assert "6 entries and timers erased" in called.out
    assert "proven: the keys are in no keyed state" in called.out
    assert "order-0064" not in call("dump", tmp_path / "new", "--operator", "orders", "--state", "order").out
    assert call("erase", tmp_path / "new", *KEY).code == 1


def test_a_key_that_is_nowhere_is_exit_code_1(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    called = call("erase", savepoint, "--key", "nobody", "--out", tmp_path / "new")
    assert called.code == 1
    assert "nothing was written" in called.out
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_json_says_all(call: Callable[..., Called], savepoint: Path, tmp_path: Path) -> None:
    out = call("erase", savepoint, *KEY, "--out", tmp_path / "new", "--root", savepoint.parent, "--json").json
    assert out["keys"] == ["order-0064"]
    assert out["snapshot"]["found"][0] == {
        "operator": "orders",
        "state": "quantities",
        "kind": "MAP",
        "key": "order-0064",
        "entries": 1,
    }
    assert (out["written"]["path"], out["written"]["proven"]) == (str(tmp_path / "new"), True)
    assert [(each["path"], len(each["found"])) for each in out["root"]] == [(str(savepoint), 6)]
    assert out["also"] is None


def test_a_root_alone_is_searched(call: Callable[..., Called], savepoint: Path) -> None:
    called = call("erase", "--root", savepoint.parent, *KEY)
    assert called.code == 0
    assert "1 of 1 snapshots hold the keys" in called.out


def test_what_cannot_be_searched_is_exit_code_3(call: Callable[..., Called], broken: Path) -> None:
    (broken / "_metadata").write_bytes(b"nothing")
    called = call("erase", "--root", broken.parent, *KEY)
    assert called.code == 3
    assert "not searched: not a _metadata file" in called.out


def test_strict_wants_every_snapshot_searched(call: Callable[..., Called], broken: Path, savepoint: Path) -> None:
    (broken / "_metadata").write_bytes(b"nothing")
    arguments = ("erase", savepoint, "--root", broken.parent, *KEY)
    assert (call(*arguments).code, call(*arguments, "--strict").code) == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("SNAPSHOT",), "no key is given (--key)"),
        (KEY, "neither a snapshot nor a directory is named"),
        ((*KEY, "--root", "x", "--out", "y"), "--out has no effect without SNAPSHOT"),
        (("nowhere", *KEY), "nothing is there"),
    ],
)
def test_wrong_use(call: Callable[..., Called], savepoint: Path, arguments: tuple[str, ...], message: str) -> None:
    called = call("erase", *(savepoint if each == "SNAPSHOT" else each for each in arguments))
    assert called.code == 2
    assert message in called.err
