from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import state_pipelines
from state_pipelines.binary.compiled import Deferred, njit

SOURCES = Path(state_pipelines.__file__).parent
OWN = ("binary/compiled.py", "binary/compiled.py", "binary/compiled.py")
"""Where Numba is imported, inside functions."""


@njit(cache=False)
def _half(number):  # type: ignore[no-untyped-def]
    return number // 2


@njit(cache=False)
def _steps(number):  # type: ignore[no-untyped-def]
    count = 0
    while number > 1:
        number = _half(number)
        count += 1
    return count


@pytest.mark.slow
def test_what_a_kernel_calls_is_compiled_with_it() -> None:
    assert _steps(1024) == 10
    assert not isinstance(_half, Deferred)
    assert _half(9) == 4


def test_a_kernel_is_made_once() -> None:
    made: list[object] = []

    def name_twice(text: str) -> str:
        return text + text

    def make(function: object, _: set[str]) -> object:
        made.append(function)
        return function

    deferred = Deferred(name_twice, make)  # type: ignore[arg-type]
    assert (deferred("a"), deferred("b"), len(made)) == ("aa", "bb", 1)


IMPORT = """
import sys
from importlib import import_module

for module in sys.argv[1:]:
    import_module(f"state_pipelines.{module}")
    if "numba" in sys.modules:
        sys.exit(f"{module} imports it")
"""


@pytest.mark.slow
def test_modules_with_kernels_are_imported_without_numba() -> None:
    modules = ("codecs.programs", "keyed.canonical", "keyed.hashing", "rocksdb", "snapshot")
    done = subprocess.run([sys.executable, "-c", IMPORT, *modules], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_numba_is_imported_in_one_place() -> None:
    found = {
        str(file.relative_to(SOURCES))
        for file in SOURCES.rglob("*.py")
        if re.search(r"^\s*(from|import) (numba|llvmlite)\b", file.read_text(), re.MULTILINE)
    }
    assert found == set(OWN)
