"""The keys of generated snapshots: by number, and chosen by their hash where a key group is to be hot."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.shapes import HOT
from state_pipelines.keyed.hashing import hash_codes, parse_hash_expression
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.serializers.text import parse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from benchmarks.shapes import Shape

SERIALIZERS = {
    "string": parse("String"),
    "long": parse("Long"),
    "pojo": parse("Pojo<bench.Key>(number: Long, region: String)"),
}
HASHES = {"bench.Key": parse_hash_expression("objects(number, region)")}
"""The `hashCode` of the class of POJO keys."""

REGIONS = 16
CANDIDATES = 1 << 17
"""Keys that are hashed at once when they are chosen by their key group."""


def make_keys(key: str, numbers: npt.NDArray[np.int64]) -> pa.Array:
    """The keys with these numbers, in the Arrow form of their serializer."""
    if key == "long":
        return pa.array(numbers)
    text = pc.cast(pa.array(numbers), pa.string())
    if key == "string":
        return pc.binary_join_element_wise("user", text, "-")
    regions = pc.binary_join_element_wise("region", pc.cast(pa.array(numbers % REGIONS), pa.string()), "-")
    return pa.StructArray.from_arrays([pa.array(numbers), regions], names=["number", "region"])


def find_key_groups(key: str, numbers: npt.NDArray[np.int64], max_parallelism: int) -> npt.NDArray[np.int32]:
    """The key groups in which the keys with these numbers lie by their hash."""
    codes = hash_codes(SERIALIZERS[key], make_keys(key, numbers), expressions=HASHES)
    return assign_key_groups(codes, max_parallelism)


@dataclass(frozen=True)
class KeyNumbers:
    """The numbers of all keys; the same at every pass.

    Attributes:
        count: how many.
        file: i64 each, where they were chosen; None when they are 0 to `count`.
    """

    count: int
    file: IO[bytes] | None = None

    def batches(self, size: int) -> Iterator[npt.NDArray[np.int64]]:
        """Up to `size` at a time."""
        if self.file is not None:
            self.file.seek(0)
        for start in range(0, self.count, size):
            stop = min(start + size, self.count)
            if self.file is None:
                yield np.arange(start, stop, dtype=np.int64)
            else:
                yield np.frombuffer(self.file.read(8 * (stop - start)), np.int64)


@contextmanager
def choose_numbers(count: int, shape: Shape, directory: Path) -> Iterator[KeyNumbers]:
    """The numbers of `count` keys; of a skewed shape exactly its share lies in the hot key group.

    They are tried in order and put into a nameless file. For one hot key as many are hashed as there are key groups.

    Args:
        count: how many keys.
        shape: of the snapshot.
        directory: of the file.
    """
    if not shape.skew:
        yield KeyNumbers(count)
        return
    wanted = {True: round(count * shape.skew)}
    wanted[False] = count - wanted[True]
    start = 0
    with TemporaryFile(dir=directory) as file:
        while any(wanted.values()):
            numbers = np.arange(start, start + CANDIDATES, dtype=np.int64)
            hot = find_key_groups(shape.key, numbers, shape.max_parallelism) == HOT
            taken = np.zeros(len(numbers), np.bool_)
            for side in (True, False):
                rows = np.flatnonzero(hot == side)[: wanted[side]]
                wanted[side] -= len(rows)
                taken[rows] = True
            file.write(numbers[taken].tobytes())
            start += CANDIDATES
        yield KeyNumbers(count, file)
