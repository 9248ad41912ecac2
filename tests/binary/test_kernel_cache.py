"""Files of compiled kernels: processes that compile at the same time, and sources that change."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from state_pipelines.binary.compiled import KernelFiles

if TYPE_CHECKING:
    from pathlib import Path

KERNELS = """
from state_pipelines.binary.compiled import njit
from {helper} import twice

@njit(cache=True)
def total(numbers):
    found = 0
    for number in numbers:
        found += twice(number)
    return found
"""

HELPER = """
from state_pipelines.binary.compiled import njit

@njit(cache=True)
def twice(number):
    return {factor} * number
"""

RUN = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
from summing import total
print(total(np.arange(4)), total(np.arange(8)[::2]), sum(total.resolve().stats.cache_hits.values()))
"""


@pytest.fixture
def total(tmp_path: Path) -> object:
    """Runs the kernel for two types in a process of its own; returns the results, and how many were in a file."""

    def run(factor: int = 2) -> tuple[int, int, int]:
        (tmp_path / "helping.py").write_text(HELPER.format(factor=factor))
        (tmp_path / "summing.py").write_text(KERNELS.format(helper="helping"))
        code = RUN.format(folder=str(tmp_path))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        contiguous, strided, hits = map(int, done.stdout.split())
        return contiguous, strided, hits

    return run


@pytest.mark.slow
def test_a_kernel_is_compiled_once_for_each_type_until_one_that_it_calls_changes(total) -> None:  # type: ignore[no-untyped-def]
    assert total() == (12, 24, 0)
    assert total() == (12, 24, 2)
    assert total(factor=5) == (30, 60, 0)


def test_processes_that_compile_at_the_same_time_keep_what_belongs_to_each_type(tmp_path: Path) -> None:
    class Slow(KernelFiles):
        """Another process keeps its code while this one has a name and is about to write."""

        def locate(self, key: str) -> Path:
            found = super().locate(key)
            KernelFiles(str(tmp_path), "total", "stamp").save("strided", "code for strided")
            return found

    Slow(str(tmp_path), "total", "stamp").save("contiguous", "code for contiguous")
    files = KernelFiles(str(tmp_path), "total", "stamp")
    assert (files.load("contiguous"), files.load("strided")) == ("code for contiguous", "code for strided")


HOLDING = """
import sys
from state_pipelines.binary.compiled import KernelFiles
files = KernelFiles(sys.argv[1], "total", "stamp")
assert files.load("types") is None
print("compiles", flush=True)
if sys.stdin.readline() == "save":
    files.save("types", "code of the other")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "expected"), [("save", "code of the other"), ("", None)])
def test_one_process_compiles_and_others_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, expected: str | None
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "compiles\n"

        def finish(_: float) -> None:
            monkeypatch.undo()
            other.communicate(answer)

        monkeypatch.setattr("state_pipelines.binary.compiled.time.sleep", finish)
        files = KernelFiles(str(tmp_path), "total", "stamp")
        assert files.load("types") == expected
    assert other.returncode == 0
    files.save("types", "code")
    assert [each.suffix for each in tmp_path.iterdir()] == [".nbc"]


def test_where_nothing_can_be_written_each_compiles(tmp_path: Path) -> None:
    assert KernelFiles(str(tmp_path / "absent"), "total", "stamp").load("types") is None


def test_what_a_file_was_compiled_for_decides_not_its_name(tmp_path: Path) -> None:
    files = KernelFiles(str(tmp_path), "total", "stamp")
    files.save("contiguous", "code")
    files.locate("contiguous").rename(files.locate("strided"))
    assert files.load("strided") is None


@pytest.mark.parametrize("damage", [b"", b"\x80", b"no pickle"])
def test_a_damaged_file_is_compiled_again(tmp_path: Path, damage: bytes) -> None:
    files = KernelFiles(str(tmp_path), "total", "stamp")
    files.save("contiguous", "code")
    assert KernelFiles(str(tmp_path), "total", "other").load("contiguous") is None
    files.locate("contiguous").write_bytes(damage)
    assert files.load("contiguous") is None


def test_nothing_of_a_file_of_others_is_unpickled(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return type(tmp_path).touch, (tmp_path / "unpickled",)

    files = KernelFiles(str(tmp_path), "total", "stamp")
    KernelFiles(str(tmp_path), "total", "other").save("contiguous", Evil())
    assert files.load("contiguous") is None
    files.locate("contiguous").write_bytes(pickle.dumps(Evil()))
    assert files.load("contiguous") is None
    assert not (tmp_path / "unpickled").exists()
