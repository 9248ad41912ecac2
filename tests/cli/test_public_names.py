from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import state_pipelines as sp
from state_pipelines.operations.check import check
from state_pipelines.snapshot import open_snapshot
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, state_pipelines; print(sorted(each for each in sys.modules if each.startswith('state_pip')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['state_pipelines']\n"


def test_names_are_those_of_the_modules() -> None:
    assert sp.open_snapshot is open_snapshot
    assert sp.check is check


def test_a_snapshot_is_converted(tmp_path: Path) -> None:
    result = sp.convert(str(orders().path), str(tmp_path / "new"), format="rocksdb")
    rows = sp.open_snapshot(result.path).operator("orders").state("order").to_arrow().num_rows
    assert (result.path, rows) == (str(tmp_path / "new"), 200)


def test_every_public_name_is_there() -> None:
    assert [name for name in sp.__all__ if not hasattr(sp, name)] == []


def test_dir_lists_the_public_names() -> None:
    names = [name for name in dir(sp) if not name.startswith("_")]
    assert names == sorted(name for name in sp.__all__ if not name.startswith("_"))


def test_a_snapshot_is_opened() -> None:
    snapshot = sp.open_snapshot(str(orders().path))
    assert snapshot.operator("orders").state("order").to_arrow().num_rows == 200


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="no attribute 'restore'"):
        _ = sp.restore
