"""What is read at once is refused where it does not fit into memory."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import StorageError
from state_pipelines.storage import files, read_file, read_range, resolve

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(files.CHECKED_FROM + 1)
    monkeypatch.setattr(files, "measure_free_memory", lambda: files.CHECKED_FROM)
    location = resolve(str(tmp_path / "file"))
    with pytest.raises(StorageError, match=r"0\.3 GiB are to be read at once, and 0\.2 GiB of memory are free"):
        read_file(location)
    with pytest.raises(StorageError, match="are to be read at once"):
        read_range(location, 0, files.CHECKED_FROM + 1)
    assert read_range(location, 7, 9) == bytes(2)


class TestFreeMemory:
    """Memory that a process may still take."""

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "_MEMINFO", tmp_path / "meminfo")
        monkeypatch.setattr(files, "_CGROUP", tmp_path)

    def test_nobody_says(self) -> None:
        assert files.measure_free_memory() is None
        files.require_memory(1 << 50, "file")

    def test_the_machine(self, tmp_path: Path) -> None:
        (tmp_path / "meminfo").write_text("MemTotal:  9 kB\nMemAvailable:   5 kB\nSwapFree:   2 kB\n")
        assert files.measure_free_memory() == 7 << 10

    def test_a_control_group(self, tmp_path: Path) -> None:
        (tmp_path / "meminfo").write_text("MemAvailable:   500 kB\n")
        (tmp_path / "memory.max").write_text("10000\n")
        (tmp_path / "memory.current").write_text("8000\n")
        (tmp_path / "memory.stat").write_text("anon 3000\ninactive_file 4500\n")
        assert files.measure_free_memory() == 6500

    def test_a_control_group_without_a_limit(self, tmp_path: Path) -> None:
        (tmp_path / "meminfo").write_text("MemAvailable:   500 kB\n")
        (tmp_path / "memory.max").write_text("max\n")
        assert files.measure_free_memory() == 500 << 10

    def test_a_limit_of_the_process(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "statm").write_text("3 2 1 0 0 0 0\n")
        monkeypatch.setattr(files, "_OWN_SIZE", tmp_path / "statm")
        monkeypatch.setattr(resource, "getrlimit", lambda _: (5 * resource.getpagesize(), resource.RLIM_INFINITY))
        assert files.measure_free_memory() == 2 * resource.getpagesize()
