"""Key groups that are held whole are refused where they certainly do not fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import state_pipelines as sp
from benchmarks.generate import generate
from benchmarks.shapes import Shape
from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed import key_group_memory
from state_pipelines.operations.write import keyed_rewrite

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
    monkeypatch.setattr(key_group_memory, "CHECKED_FROM", 1 << 16)
    monkeypatch.setattr(key_group_memory, "measure_free_memory", lambda: 1 << 20)
    with pytest.raises(UnsupportedError, match=r"key group [01] has .* must be held whole .* GiB are free"):
        sp.convert(savepoint, str(tmp_path / "target"), to, processes=1)
    assert not (tmp_path / "target").exists()
    monkeypatch.setattr(key_group_memory, "measure_free_memory", lambda: 1 << 30)
    sp.convert(savepoint, str(tmp_path / "target"), to, processes=1)


def test_a_canonical_savepoint_becomes_another_one_without_holding_key_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(str(tmp_path / "savepoint"), 20_000, Shape(max_parallelism=2))
    monkeypatch.setattr(keyed_rewrite, "LARGE", 1 << 16)
    monkeypatch.setattr(key_group_memory, "CHECKED_FROM", 1 << 16)
    monkeypatch.setattr(key_group_memory, "measure_free_memory", lambda: 1 << 20)
    sp.convert(str(tmp_path / "savepoint"), str(tmp_path / "compressed"), compress=True, processes=1)
    sp.rescale(str(tmp_path / "savepoint"), str(tmp_path / "rescaled"), max_parallelism=4, processes=1)


def test_small_key_groups_do_not_ask_for_the_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_group_memory, "measure_free_memory", lambda: 0)
    key_group_memory.require_memory(key_group_memory.CHECKED_FROM, 0, "file")
    with pytest.raises(UnsupportedError):
        key_group_memory.require_memory(key_group_memory.CHECKED_FROM + 1, 0, "file")


class TestFreeMemory:
    """Memory that a process may still take."""

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(key_group_memory, "_MEMINFO", tmp_path / "meminfo")
        monkeypatch.setattr(key_group_memory, "_CGROUP", tmp_path)

    def test_nobody_says(self) -> None:
        assert key_group_memory.measure_free_memory() is None
        key_group_memory.require_memory(1 << 50, 0, "file")

    def test_the_machine(self, tmp_path: Path) -> None:
        (tmp_path / "meminfo").write_text("MemTotal:  9 kB\nMemAvailable:   5 kB\nSwapFree:   2 kB\n")
        assert key_group_memory.measure_free_memory() == 7 << 10

    def test_a_control_group(self, tmp_path: Path) -> None:
        (tmp_path / "meminfo").write_text("MemAvailable:   500 kB\n")
        (tmp_path / "memory.max").write_text("10000\n")
        (tmp_path / "memory.current").write_text("8000\n")
        (tmp_path / "memory.stat").write_text("anon 3000\ninactive_file 4500\n")
        assert key_group_memory.measure_free_memory() == 6500

    def test_a_control_group_without_a_limit(self, tmp_path: Path) -> None:
        (tmp_path / "meminfo").write_text("MemAvailable:   500 kB\n")
        (tmp_path / "memory.max").write_text("max\n")
        assert key_group_memory.measure_free_memory() == 500 << 10
