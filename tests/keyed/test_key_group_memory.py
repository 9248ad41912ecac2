"""Key groups that are held whole are refused where they certainly do not fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import state_pipelines as sp
from benchmarks.generate import generate
from benchmarks.shapes import Shape
from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed import key_groups
from state_pipelines.operations.write import keyed_rewrite
from state_pipelines.storage.files import CHECKED_FROM

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("source", "to"),
    [
        ("canonical", "heap"),
        ("canonical", "rocksdb"),
        ("heap-native", "rocksdb"),
        ("rocksdb-native", "heap"),
    ],
)
def test_a_key_group_without_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, to: str
) -> None:
    savepoint = str(tmp_path / "savepoint")
    generate(savepoint, 20_000, Shape(format=source, max_parallelism=2))
    monkeypatch.setattr(key_groups, "CHECKED_FROM", 1 << 16)
    monkeypatch.setattr(key_groups, "measure_free_memory", lambda: 1 << 20)
    with pytest.raises(UnsupportedError, match=r"key group [01] has .* must fit in memory, .* GiB are free"):
        sp.convert(savepoint, str(tmp_path / "target"), to, processes=1)
    assert not (tmp_path / "target").exists()
    monkeypatch.setattr(key_groups, "measure_free_memory", lambda: 1 << 30)
    sp.convert(savepoint, str(tmp_path / "target"), to, processes=1)


def test_a_canonical_savepoint_becomes_another_one_without_holding_key_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(str(tmp_path / "savepoint"), 20_000, Shape(max_parallelism=2))
    monkeypatch.setattr(keyed_rewrite, "LARGE", 1 << 16)
    monkeypatch.setattr(key_groups, "CHECKED_FROM", 1 << 16)
    monkeypatch.setattr(key_groups, "measure_free_memory", lambda: 1 << 20)
    sp.convert(str(tmp_path / "savepoint"), str(tmp_path / "compressed"), compress=True, processes=1)
    sp.rescale(str(tmp_path / "savepoint"), str(tmp_path / "rescaled"), max_parallelism=4, processes=1)


def test_small_key_groups_do_not_ask_for_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_groups, "measure_free_memory", lambda: 0)
    key_groups.require_memory(CHECKED_FROM, 0, "file")
    with pytest.raises(UnsupportedError):
        key_groups.require_memory(CHECKED_FROM + 1, 0, "file")
