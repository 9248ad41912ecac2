"""Bounds of the fields of records, for formats that store no lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.binary.reader import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.programs.execution import decode_sequence, decode_spans, measure_sequence
from state_pipelines.codecs.programs.program import Program, compile_layout
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Positions = npt.NDArray[np.int64]

SPAN = pa.struct([pa.field("start", pa.int64(), False), pa.field("stop", pa.int64(), False)])


class Measure:
    """Finds the parts of values.

    The kernels do it; for data that only the scalar codec can read (Kryo) values are walked one at a time.

    Args:
        layout: spans (`codecs.layout.Span`) in structs and lists.

    Raises:
        UnsupportedError: the layout is made of something else.
    """

    def __init__(self, layout: lay.Layout) -> None:
        self._layout = layout
        self._type = _arrow_type(layout)
        self._program: Program | None = None
        try:
            self._program = compile_layout(layout)
        except UnsupportedError:
            # There are no kernels for it.
            self._program = None

    def sequence(
        self, data: Bytes, start: int, end: int, count: int, *, offset: int, name: str
    ) -> tuple[pa.Array, int]:
        """Measure `count` consecutive values in `data[start:end]`.

        Args:
            data: u8.
            start: first byte of the first value.
            end: no value reaches beyond it.
            count: how many.
            offset: position of `data` in its file, for errors.
            name: of the file, for errors.

        Returns:
            (array of spans, nested as the layout is; end of the last value).

        Raises:
            FormatError: the bytes do not fit the serializers.
            UnsupportedError: a value cannot be read, so that later values cannot be found.
        """
        if self._program is not None:
            array, stops = decode_sequence(self._program, data, start, end, count, offset=offset)
            return array, int(stops[-1]) if count else start
        reader = Reader(_raw(data), name, start, end)
        values = [read_value(self._layout, reader, tail=False) for _ in range(count)]
        return pa.array(values, self._type), reader.position

    @property
    def is_compiled(self) -> bool:
        """The kernels do it."""
        return self._program is not None

    def stops(self, data: Bytes, count: int) -> Positions:
        """Ends of consecutive values in `data`, up to the first incomplete one (`is_compiled`).

        Args:
            data: u8.
            count: number of values, in `data` and after it.

        Returns:
            i64[n], n at most `count`.
        """
        assert self._program is not None, "only kernels measure values that may be cut off"
        return measure_sequence(self._program, data, 0, len(data), count)

    def spans(self, data: Bytes, starts: Positions, ends: Positions, *, offset: int, name: str) -> pa.Array:
        """Measure values that fill `data[starts[i]:ends[i]]`.

        Returns:
            Array of spans, nested as the layout is; positions count from the start of `data`.

        Raises:
            FormatError: the bytes do not fit the serializers.
            UnsupportedError: a value cannot be read.
        """
        if self._program is not None:
            return decode_spans(self._program, data, starts, ends, offset=offset)
        raw = _raw(data)
        values = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            reader = Reader(raw, name, start, end)
            values.append(read_value(self._layout, reader))
            reader.expect_end("the record")
        return pa.array(values, self._type)


def take_bytes(data: Bytes, starts: Positions, ends: Positions) -> pa.Array:
    """Spans of bytes as a binary array."""
    return decode_spans(compile_layout(lay.Rest()), data, starts, ends)


def _raw(data: Bytes) -> bytes:
    """The bytes of an array, not copied where it is a view of all of some bytes."""
    base = data.base
    return base if isinstance(base, bytes) and len(base) == len(data) else data.tobytes()


def _arrow_type(layout: lay.Layout) -> pa.DataType:
    match layout:
        case lay.Span():
            return SPAN
        case lay.Struct(fields=fields):
            return pa.struct([pa.field(name, _arrow_type(each), False) for name, each in fields])
        case lay.Sequence(element=element) | lay.Delimited(element=element):
            return pa.list_(_arrow_type(element))
        case lay.MeasuredKey(inner=inner):
            return _arrow_type(inner)
        case _:
            raise UnsupportedError(f"{type(layout).__name__} is not made of spans")
