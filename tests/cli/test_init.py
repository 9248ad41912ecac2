from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called


def test_it_writes_a_file_with_the_roots(call: Callable[..., Called], tmp_path: Path) -> None:
    file = tmp_path / "shop" / "defs.yaml"
    called = call("init", "shop", "--root", "s3://b/a", "--root", "/mnt/b", "--results", "s3://b/r", "--out", file)
    assert called.code == 0
    attributes = yaml.safe_load(file.read_text())["attributes"]
    assert attributes == {
        "name": "shop",
        "roots": ["s3://b/a", "/mnt/b"],
        "results": "s3://b/r",
        "target_release": "2.2",
        "watch": {"kinds": ["savepoint"]},
    }


def test_a_file_that_exists_stays(call: Callable[..., Called], tmp_path: Path) -> None:
    file = tmp_path / "defs.yaml"
    file.write_text("mine")
    called = call("init", "shop", "--out", file)
    assert called.code == 2
    assert file.read_text() == "mine"


def test_a_name_that_dagster_refuses_is_refused(call: Callable[..., Called], tmp_path: Path) -> None:
    called = call("init", "my-shop", "--out", tmp_path / "defs.yaml")
    assert called.code == 2
    assert "'my-shop' is not a name" in called.err
