"""Growing column buffers that kernels append to, and views of Arrow buffers that kernels take from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_pipelines.codecs.kernels import opcodes as op
from state_pipelines.errors import ValueRangeError

_NOTHING = np.empty(0, np.uint8)


@dataclass(frozen=True)
class ColumnKind:
    """Kind of values in one kernel column (a buffer that the compiled functions fill or read).

    Attributes:
        width: bytes of a fixed value; 0 for i32 offsets (bytes or list); -1 for a struct, which holds nothing.
        data: offsets point into bytes (else into child columns).
        nullable: one validity byte per value.
        nested: inside a list, so that its length is not the number of records.
    """

    width: int
    data: bool = False
    nullable: bool = False
    nested: bool = False


class OutputColumns:
    """Columns that the decoding kernel appends to.

    Args:
        kinds: the columns.
        rows: expected records.
        size: bytes that the records span; first guess for variable data.
    """

    def __init__(self, kinds: tuple[ColumnKind, ...], rows: int, size: int) -> None:
        self.kinds = kinds
        self.table = np.zeros((op.COLUMN_ROWS, max(1, len(kinds))), np.int64)
        self._values = [_NOTHING] * len(kinds)
        self._validity = [_NOTHING] * len(kinds)
        self._data = [_NOTHING] * len(kinds)
        for index, kind in enumerate(kinds):
            capacity = rows * 2 + 64 if kind.nested else rows
            self.table[op.WIDTH, index] = kind.width
            self._allocate(index, capacity, 2 * size + 64 if kind.data else 0)

    def _allocate(self, index: int, capacity: int, data: int) -> None:
        kind = self.kinds[index]
        capacity = max(1, capacity)
        size = capacity * kind.width if kind.width > 0 else 4 * (capacity + 1) if kind.width == 0 else 0
        # Allocate only the arrays in use: small batches are frequent, and most columns have neither nulls nor data.
        if size:
            self._values[index] = np.empty(size, np.uint8)
            self.table[op.VALUES, index] = self._values[index].ctypes.data
        if kind.width == 0:
            self._values[index][:4] = 0
        if kind.nullable:
            self._validity[index] = np.empty(capacity, np.uint8)
            self.table[op.VALIDITY, index] = self._validity[index].ctypes.data
        data = min(data, op.MAX_OFFSET)
        if data:
            self._data[index] = np.empty(data, np.uint8)
            self.table[op.DATA, index] = self._data[index].ctypes.data
        self.table[op.CAPACITY, index] = capacity
        self.table[op.DATA_CAPACITY, index] = data

    def enlarge(self, index: int) -> None:
        """Double the capacity of a full column and empty all columns, because the kernel starts again.

        Raises:
            ValueRangeError: the bytes of the column exceed 2 GiB, the limit of Arrow's i32 offsets.
        """
        capacity, data = int(self.table[op.CAPACITY, index]), int(self.table[op.DATA_CAPACITY, index])
        if self.table[op.COUNT, index] >= capacity:
            capacity *= 2
        else:
            if data >= op.MAX_OFFSET:
                raise ValueRangeError(
                    "the texts and bytes of one column take more than 2 GiB", hint="decode fewer records at a time"
                )
            data = 2 * data + 4096
        self._allocate(index, capacity, data)
        self.table[op.COUNT] = 0
        self.table[op.DATA_SIZE] = 0

    def count(self, index: int) -> int:
        """Return the number of values in a column."""
        return int(self.table[op.COUNT, index])

    def fixed(self, index: int, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
        """Return the values of a fixed-width column."""
        width = self.kinds[index].width
        values: npt.NDArray[np.generic] = self._values[index][: self.count(index) * width].view(dtype)
        return values

    def offsets(self, index: int) -> npt.NDArray[np.int32]:
        """Return the offsets of a variable column or a list."""
        return self._values[index][: 4 * (self.count(index) + 1)].view(np.int32)

    def data(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a variable column."""
        return self._data[index][: int(self.table[op.DATA_SIZE, index])]

    def valid(self, index: int) -> npt.NDArray[np.bool_] | None:
        """Return one flag per value, or None for a column without nulls."""
        if not self.kinds[index].nullable:
            return None
        return self._validity[index][: self.count(index)].view(np.bool_)


class InputColumns:
    """Columns whose values the encoding kernel writes; the object keeps their buffers alive."""

    def __init__(self, kinds: tuple[ColumnKind, ...]) -> None:
        self.kinds = kinds
        self.table = np.zeros((op.COLUMN_ROWS, max(1, len(kinds))), np.int64)
        self._kept: list[object] = []

    def _keep(self, array: npt.NDArray[np.generic]) -> int:
        array = np.ascontiguousarray(array)
        self._kept.append(array)
        return int(array.ctypes.data)

    def set_length(self, index: int, length: int) -> None:
        """Set the length of a column whose values have no content."""
        self.table[op.CAPACITY, index] = length

    def set_validity(self, index: int, array: pa.Array) -> None:
        """Set the nulls and the length of a column to those of `array`."""
        self.table[op.CAPACITY, index] = len(array)
        if array.null_count:
            self.table[op.VALIDITY, index] = self._keep(np.asarray(array.is_valid()).view(np.uint8))

    def set_fixed(self, index: int, values: npt.NDArray[np.generic], array: pa.Array) -> None:
        """Set the values of a fixed-width column, with the nulls of `array`."""
        self.table[op.VALUES, index] = self._keep(values)
        self.table[op.WIDTH, index] = values.dtype.itemsize
        self.set_validity(index, array)

    def set_variable(self, index: int, array: pa.Array) -> None:
        """Set a column to a string, binary or list array with i32 offsets."""
        _, offsets, *rest = array.buffers()
        self._kept.append(array)
        if offsets is None:
            self.table[op.VALUES, index] = self._keep(np.zeros(len(array) + 1, np.int32))
        else:
            self.table[op.VALUES, index] = offsets.address + 4 * array.offset
        if rest and rest[0] is not None and not pa.types.is_nested(array.type):
            self.table[op.DATA, index] = rest[0].address
        self.set_validity(index, array)

    def set_bytes(
        self, index: int, offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8], array: pa.Array
    ) -> None:
        """Set a column of variable-length values: `offsets` into the bytes of `data`, with the nulls of `array`."""
        self.table[op.VALUES, index] = self._keep(offsets)
        self.table[op.DATA, index] = self._keep(data)
        self.set_validity(index, array)

    def rewind(self) -> None:
        """Reset the cursor of every column to its first value, because the kernel starts again."""
        self.table[op.COUNT] = 0
