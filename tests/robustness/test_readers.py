"""Damaged input is read or refused with a `StateError`; `python -m tests.robustness` does the same much longer."""

from __future__ import annotations

from random import Random

import pytest

from tests.robustness.every_byte import EVERY_BYTE
from tests.robustness.mutations import mutate
from tests.robustness.readers import METADATA_EDITS, READERS, Finding, Result, attempt
from tests.robustness.snapshot_readers import SNAPSHOT_READERS

SEED = 1
FEW, MANY = 25, 200
"""Attempts of a reader of snapshots, and of a reader of bytes."""


@pytest.mark.parametrize("name", READERS)
def test_damaged_input_is_read_or_refused(name: str) -> None:
    reads_snapshots = name in SNAPSHOT_READERS or name in EVERY_BYTE or name == METADATA_EDITS
    numbers = range(FEW if reads_snapshots else MANY)
    results = [attempt(name, SEED, number) for number in numbers]
    assert [each for each in results if isinstance(each, Finding)] == []
    assert Result.REFUSED in results
    if name.startswith("cuts"):
        # Handles give the sizes of files: one that is shorter is noticed unless nothing is read of it.
        assert Result.CHANGED not in results
    else:
        # Both happen, so that the damage reaches what is read and does not only break the beginning.
        assert {Result.READ, Result.CHANGED} & set(results)


def test_the_same_seed_gives_the_same_damage() -> None:
    first, again = ([mutate(bytes(256), Random(each), bytes(100)) for each in range(50)] for _ in range(2))
    assert first == again
    assert len(set(first)) > 40
