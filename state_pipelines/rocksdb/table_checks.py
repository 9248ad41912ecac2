"""Checks of a table against itself and the MANIFEST: what its properties, its index, its blocks and its bounds say.

A checksum shows that a block is as it was written. These show that no block and no entry was left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import FormatError, Where
from state_pipelines.rocksdb.checksums import TRAILER_SIZE
from state_pipelines.rocksdb.kernels import find_misplaced

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from state_pipelines.rocksdb.block_index import BlockIndex
    from state_pipelines.rocksdb.manifest import TableFile

_LARGEST_ALIGNMENT = 1 << 12
"""Multiple at which data blocks start at most where the option `block_align` is on (`kDefaultPageSize`)."""
_HINT = "The file was changed after RocksDB wrote it"
_OTHER_FILE = "The file is another one than the MANIFEST describes"


def check_column_family(name: bytes, file: TableFile) -> None:
    """Compare the column family that a table was written for with the one that the MANIFEST lists it in.

    Not by their ids: an import into another database (`createColumnFamilyWithImport`) keeps the name only. Tables of
    an `SstFileWriter` have no name.

    Raises:
        FormatError: the names differ.
    """
    if name and file.column_family and name != file.column_family.encode("utf-8", "surrogateescape"):
        written = name.decode("utf-8", "replace")
        what = f"a table was written for column family {written!r}, the MANIFEST lists it in {file.column_family!r}"
        raise FormatError(what, where=Where(file=file.stream.name), hint=_OTHER_FILE)


def check_blocks(index: BlockIndex, number: int | None, name: str, offset: int) -> None:
    """Check that an index names all data blocks: they are the first bytes of the file, with nothing between them.

    Args:
        index: the index, whose blocks neither overlap nor lie outside the file.
        number: data blocks by the properties of the table; None if they do not say it.
        name: of the file, for errors.
        offset: position of the index in the file.

    Raises:
        FormatError: the index leaves out blocks.
    """
    expected = np.append(0, index.offsets + index.sizes + TRAILER_SIZE)[:-1]
    if len(index):
        # With `block_align` zeros follow a block, up to a power of two; then all blocks start at multiples of it.
        common = int(np.bitwise_or.reduce(index.offsets))
        alignment = min(common & -common, _LARGEST_ALIGNMENT) if common else 1
        expected = -(-expected // alignment) * alignment
    gaps = np.flatnonzero(index.offsets != expected[: len(index)])
    if len(gaps):
        gap = int(gaps[0])
        size = int(index.offsets[gap] - expected[gap])
        what = f"the index of a table leaves out {size} bytes before its data block {gap}"
        raise FormatError(what, where=Where(file=name, offset=int(expected[gap])), hint=_HINT)
    if number is not None and number != len(index):
        what = f"the index of a table names {len(index)} data blocks, the properties of the table say {number}"
        raise FormatError(what, where=Where(file=name, offset=offset), hint=_HINT)


def check_range_deletions(found: int, number: int | None, name: str) -> None:
    """Compare the number of range tombstones with that of the properties; None if they do not say it.

    Raises:
        FormatError: the numbers differ.
    """
    if number is not None and number != found:
        what = f"a table holds {found} range tombstones, its properties say {number}"
        raise FormatError(what, where=Where(file=name), hint=_HINT)


def check_index_bounds(index: BlockIndex, file: TableFile) -> None:
    """Check that the bounds of the MANIFEST are in the first and in the last data block, by the index.

    Raises:
        FormatError: the bounds leave out a whole block.
    """
    number = len(index)
    if number and (index.separator(0) < file.smallest or (number > 1 and index.separator(number - 2) >= file.end)):
        block = 0 if index.separator(0) < file.smallest else number - 1
        raise _make_bounds_error(file, int(index.offsets[block]))


def check_keys(
    index: BlockIndex,
    file: TableFile,
    blocks: range,
    data: npt.NDArray[np.uint8],
    spans: Sequence[npt.NDArray[np.int64]],
    counts: npt.NDArray[np.int64],
) -> None:
    """Check that the keys of adjacent data blocks are where the index, and the bounds of the MANIFEST, say.

    A scan goes on after the separator of a block, or after the bounds, and would lose what is outside of them.

    Args:
        index: the index of the table.
        file: the table.
        blocks: the data blocks.
        data: u8, holds their keys.
        spans: i64[n] starts and i64[n] ends of the user keys in `data`.
        counts: i64[b] entries up to the end of each block.

    Raises:
        FormatError: a key is outside the bounds of the table, or on the wrong side of a separator.
    """
    starts, ends = spans[0], spans[1]
    if blocks.start == 0 and data[starts[0] : ends[0]].tobytes() < file.smallest:
        raise _make_bounds_error(file, int(index.offsets[0]))
    if blocks.stop == len(index) and data[starts[-1] : ends[-1]].tobytes() >= file.end:
        raise _make_bounds_error(file, int(index.offsets[-1]))
    separators = index.keys.ctypes.data, index.key_starts, index.key_ends
    wrong = find_misplaced(data.ctypes.data, starts, ends, counts, *separators, blocks.start)
    if wrong >= 0:
        what = "a table holds keys in other blocks than its index says"
        raise FormatError(
            what, where=Where(file=file.stream.name, offset=int(index.offsets[blocks[wrong]])), hint=_HINT
        )


def check_entries(file: TableFile, found: int, number: int) -> None:
    """Compare the entries that were read of a whole table with the number in its properties; -1 if they have none.

    Raises:
        FormatError: the numbers differ.
    """
    if number not in (-1, found):
        what = f"the data blocks of a table hold {found} entries, its properties say {number}"
        raise FormatError(what, where=Where(file=file.stream.name), hint=_HINT)


def _make_bounds_error(file: TableFile, offset: int) -> FormatError:
    what = "a table holds keys outside the bounds that the MANIFEST has of it, or out of order"
    return FormatError(what, where=Where(file=file.stream.name, offset=offset), hint=_OTHER_FILE)
