"""Bounds of the fields of records, for formats that store no lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.programs.array_builders import ArrayBuilder, SpanBuilder
from state_pipelines.codecs.programs.execution import decode_spans, fill_columns, fill_sequences, measure_sequence
from state_pipelines.codecs.programs.nested_array_builders import ListBuilder, StructBuilder
from state_pipelines.codecs.programs.program import Program, compile_layout
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from state_pipelines.codecs.kernels.buffers import OutputColumns

    Bytes = npt.NDArray[np.uint8]
    Positions = npt.NDArray[np.int64]
    Spans = npt.NDArray[np.int64]
    """i64[2, n]: starts and ends (exclusive)."""

SPAN = pa.struct([pa.field("start", pa.int64(), False), pa.field("stop", pa.int64(), False)])


class Bounds(Protocol):
    """Bounds of the parts of measured values; nested as the layout is."""

    def field(self, name: str) -> Bounds:
        """Return a field of a struct."""

    @property
    def spans(self) -> Spans:
        """Starts and ends of spans."""

    @property
    def offsets(self) -> Positions:
        """i64[n + 1], first element of each list."""

    @property
    def elements(self) -> Bounds:
        """The elements of all lists."""


@dataclass(frozen=True)
class KernelBounds:
    """Bounds in the columns that the kernel filled.

    Attributes:
        builder: names the columns of the values.
        columns: the columns.
    """

    builder: ArrayBuilder
    columns: OutputColumns

    def field(self, name: str) -> KernelBounds:
        """See `Bounds`."""
        assert isinstance(self.builder, StructBuilder), f"no struct has the field {name} here"
        return KernelBounds(dict(self.builder.fields)[name], self.columns)

    @property
    def spans(self) -> Spans:
        """See `Bounds`."""
        assert isinstance(self.builder, SpanBuilder), "there are no spans here"
        found: Spans = np.stack([self.columns.fixed(each, np.int64) for each in (self.builder.main, self.builder.stop)])
        return found

    @property
    def offsets(self) -> Positions:
        """See `Bounds`."""
        return self.columns.offsets(self.builder.main).astype(np.int64)

    @property
    def elements(self) -> KernelBounds:
        """See `Bounds`."""
        assert isinstance(self.builder, ListBuilder), "there is no list here"
        return KernelBounds(self.builder.element, self.columns)


@dataclass(frozen=True)
class ArrowBounds:
    """Bounds in an Arrow array, made from values that the scalar codec measured.

    Attributes:
        array: array of spans, in structs and lists.
    """

    array: pa.Array

    def field(self, name: str) -> ArrowBounds:
        """See `Bounds`."""
        return ArrowBounds(self.array.field(name))

    @property
    def spans(self) -> Spans:
        """See `Bounds`."""
        found: Spans = np.stack([np.asarray(self.array.field(0)), np.asarray(self.array.field(1))])
        return found

    @property
    def offsets(self) -> Positions:
        """See `Bounds`."""
        return np.asarray(self.array.offsets).astype(np.int64)

    @property
    def elements(self) -> ArrowBounds:
        """See `Bounds`."""
        return ArrowBounds(self.array.values)


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

    def sequences(
        self, data: Bytes, starts: Positions, ends: Positions, counts: Positions, *, offsets: Positions, name: str
    ) -> tuple[Bounds, Positions]:
        """Measure sequences of consecutive values.

        Args:
            data: u8.
            starts: i64[m], first byte of the first value of each sequence.
            ends: i64[m], no value reaches beyond it.
            counts: i64[m], values of each sequence.
            offsets: i64[m], position of `data` in the file of the sequence, for errors.
            name: of the file, for errors.

        Returns:
            (bounds of the values of all sequences, i64[m] end of the last value of each sequence).

        Raises:
            FormatError: the bytes do not fit the serializers.
            UnsupportedError: a value cannot be read, so that later values cannot be found.
        """
        if self._program is not None:
            columns, stops = fill_sequences(self._program, data, starts, ends, counts, offsets)
            lasts, filled = starts.copy(), counts > 0
            lasts[filled] = stops[np.cumsum(counts)[filled] - 1]
            return KernelBounds(self._program.builder, columns), lasts
        values, found = [], []
        raw = _raw(data)
        for start, end, count in zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True):
            reader = Reader(raw, name, start, end)
            values += [read_value(self._layout, reader, tail=False) for _ in range(count)]
            found.append(reader.position)
        return ArrowBounds(pa.array(values, self._type)), np.array(found, np.int64)

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

    def bounds(self, data: Bytes, starts: Positions, ends: Positions, *, offset: int, name: str) -> Bounds:
        """Measure values that fill `data[starts[i]:ends[i]]`.

        Returns:
            Positions in `data`.

        Raises:
            FormatError: the bytes do not fit the serializers.
            UnsupportedError: a value cannot be read.
        """
        if self._program is not None:
            columns, _ = fill_columns(self._program, data, starts, ends, offset=offset)
            return KernelBounds(self._program.builder, columns)
        return ArrowBounds(self.spans(data, starts, ends, offset=offset, name=name))

    def spans(self, data: Bytes, starts: Positions, ends: Positions, *, offset: int, name: str) -> pa.Array:
        """Measure values as `bounds`; return an array of spans, nested as the layout is."""
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
