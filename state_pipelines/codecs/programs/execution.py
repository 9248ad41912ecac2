"""Execution of programs: batches of records to Arrow arrays and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.codecs.kernels import opcodes as op
from state_pipelines.codecs.kernels.buffers import InputColumns, OutputColumns
from state_pipelines.codecs.kernels.decoding import decode
from state_pipelines.codecs.kernels.encoding import encode
from state_pipelines.codecs.logical_values import conform
from state_pipelines.errors import FormatError, StateError, UnsupportedError, UsageError, ValueRangeError, Where

if TYPE_CHECKING:
    import pyarrow as pa

    from state_pipelines.codecs.programs.program import LayoutProgram

KEEPING = "Tables with the columns `reason` and `value_bytes` keep such rows as bytes"
Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """Consecutive encoded records.

    Attributes:
        data: u8, all bytes.
        stops: i64[n], end of each record in `data`.
    """

    data: Bytes
    stops: Offsets

    @property
    def starts(self) -> Offsets:
        """i64[n], start of each record in `data`."""
        return np.concatenate([np.zeros(1, np.int64), self.stops[:-1]]) if len(self.stops) else self.stops


def decode_spans(
    program: LayoutProgram, data: Bytes, starts: Offsets, ends: Offsets, *, exact: bool = True, offset: int = 0
) -> pa.Array:
    """Decode the records in `data[starts[i]:ends[i]]`.

    Args:
        program: the compiled layout.
        data: u8, holds the records.
        starts: i64[n].
        ends: i64[n]; no end may be outside `data`.
        exact: each record must use up its bytes.
        offset: position of `data` in its file, for errors.

    Returns:
        Array of `program.type`, one value per record.

    Raises:
        FormatError: the bytes do not fit the layout; names offset and field path.
        UsageError: a record is outside `data`.
    """
    columns, _ = fill_columns(program, data, starts, ends, exact=exact, offset=offset)
    return _finish(program, columns, starts, offset)


def decode_sequence(
    program: LayoutProgram, data: Bytes, start: int, end: int, count: int, *, offset: int = 0
) -> tuple[pa.Array, Offsets]:
    """Decode `count` consecutive records of unknown sizes in `data[start:end]`.

    Returns:
        (array of `program.type`, i64[count] end of each record in `data`).

    Raises:
        FormatError: as `decode_spans`.
        UsageError: the range is outside `data`.
    """
    _check_range(data, start, end)
    starts, ends, counts, offsets = (np.array([each], np.int64) for each in (start, end, count, offset))
    columns, stops = fill_sequences(program, data, starts, ends, counts, offsets)
    return _finish(program, columns, starts, offset), stops


def measure_sequence(program: LayoutProgram, data: Bytes, start: int, end: int, count: int) -> Offsets:
    """Find the ends of at most `count` consecutive records in `data[start:end]`.

    Returns:
        i64[n], end of each record up to the first one, if any, that is not whole or does not fit the layout.

    Raises:
        UsageError: the range is outside `data`.
    """
    _check_range(data, start, end)
    columns = OutputColumns(program.kinds, count, end - start)
    starts, ends = np.full(count, -1, np.int64), np.full(count, end, np.int64)
    starts[:1] = start
    stops = np.empty(count, np.int64)
    status, record, _, _ = _fill(program, columns, data, starts, ends, stops, exact=False)
    return stops if status == op.OK else stops[:record]


def fill_columns(
    program: LayoutProgram, data: Bytes, starts: Offsets, ends: Offsets, *, exact: bool = True, offset: int = 0
) -> tuple[OutputColumns, Offsets]:
    """Decode as `decode_spans`, without building the array.

    Returns:
        (kernel columns of `program`, i64[n] end of each record in `data`).
    """
    columns = OutputColumns(program.kinds, len(starts), _measure_spans(data, starts, ends))
    stops = np.empty(len(starts), np.int64)
    found = _fill(program, columns, data, starts, ends, stops, exact=exact)
    if found[0] != op.OK:
        raise _make_error(program, *found, offset=offset)
    return columns, stops


def fill_sequences(
    program: LayoutProgram, data: Bytes, starts: Offsets, ends: Offsets, counts: Offsets, offsets: Offsets
) -> tuple[OutputColumns, Offsets]:
    """Decode several sequences, each of consecutive records of unknown sizes, without building the array.

    Args:
        program: the compiled layout.
        data: u8, holds the records.
        starts: i64[m], first byte of each sequence.
        ends: i64[m], no record of the sequence reaches beyond it.
        counts: i64[m], records of the sequence.
        offsets: i64[m], position of `data` in the file of the sequence, for errors.

    Returns:
        (kernel columns of `program`, i64[n] end of each of the n records in `data`).

    Raises:
        FormatError: as `decode_spans`.
        UsageError: a range is outside `data`.
    """
    size = _measure_spans(data, starts, ends)
    totals = np.cumsum(counts)
    count = int(totals[-1]) if len(totals) else 0
    firsts, filled = totals - counts, counts > 0
    each_start = np.full(count, -1, np.int64)
    each_start[firsts[filled]] = starts[filled]
    columns = OutputColumns(program.kinds, count, size)
    stops = np.empty(count, np.int64)
    status, record, position, where = _fill(
        program, columns, data, each_start, np.repeat(ends, counts), stops, exact=False
    )
    if status != op.OK:
        number = int(np.searchsorted(totals, record, side="right"))
        raise _make_error(program, status, record - int(firsts[number]), position, where, offset=int(offsets[number]))
    return columns, stops


def _check_range(data: Bytes, start: int, end: int) -> None:
    if not 0 <= start <= end <= len(data):
        raise UsageError(f"bytes {start} to {end} are outside the {len(data)} bytes given")


def _measure_spans(data: Bytes, starts: Offsets, ends: Offsets) -> int:
    """Bytes of all spans together, which must be inside the data."""
    if not len(starts):
        return 0
    if starts.min() < 0 or ends.max() > len(data) or bool((starts > ends).any()):
        raise UsageError(f"a record is outside the {len(data)} bytes given")
    return int((ends - starts).sum())


def _make_error(
    program: LayoutProgram, status: int, record: int, position: int, where: int, *, offset: int
) -> StateError:
    """The error of a status of the kernel, with its offset in the file and the path of the field."""
    if status in (op.BAD_SUBCLASS, op.BAD_KIND, op.HALF_TEXT):
        return UnsupportedError(
            f"record {record}: {op.MESSAGES[status]}",
            where=Where(offset=offset + position, path=program.paths[where] or None),
            hint=f"Declare the class (`--classes`). {KEEPING}" if status == op.BAD_SUBCLASS else KEEPING,
        )
    found = Where(offset=offset + position, path=program.paths[where])
    return FormatError(f"record {record}: {op.MESSAGES[status]}", where=found)


def _finish(program: LayoutProgram, columns: OutputColumns, starts: Offsets, offset: int) -> pa.Array:
    try:
        return program.builder.finish(columns)
    except StateError as error:
        first = offset + int(starts[0]) if len(starts) else offset
        if error.where.offset is None:
            error.where = replace(error.where, offset=first)
        raise


def _fill(
    program: LayoutProgram,
    columns: OutputColumns,
    data: Bytes,
    starts: Offsets,
    ends: Offsets,
    stops: Offsets,
    *,
    exact: bool,
) -> tuple[int, int, int, int]:
    """Run the kernel until all columns have room; its status, and the record, position and field of an error."""
    while True:
        found: tuple[int, int, int, int] = decode(
            program.instructions,
            program.pool.ctypes.data,
            columns.table,
            data.ctypes.data,
            starts,
            ends,
            exact,
            stops,
        )
        if found[0] != op.FULL:
            return found
        columns.enlarge(found[3])


def encode_array(program: LayoutProgram, array: pa.Array) -> Encoded:
    """Encode every value of `array` (anything that `conform` brings into `program.type`).

    Raises:
        ValueRangeError: a value does not fit the layout; names the row and the field path.
    """
    columns = InputColumns(program.kinds)
    program.builder.prepare(conform(array, program.type), columns)
    stops = np.empty(len(array), np.int64)
    capacity = array.nbytes + 32 * len(array) + 1024
    while True:
        data = np.empty(capacity, np.uint8)
        status, record, size, where = encode(
            program.instructions,
            program.pool.ctypes.data,
            columns.table,
            len(array),
            data.ctypes.data,
            capacity,
            stops,
        )
        if status != op.FULL:
            break
        capacity *= 2
        columns.rewind()
    if status != op.OK:
        raise ValueRangeError(f"row {record}: {op.MESSAGES[status]}", where=Where(path=program.paths[where]))
    return Encoded(data[:size], stops)
