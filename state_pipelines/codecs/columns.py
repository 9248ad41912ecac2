"""Columns of any layout: records to Arrow arrays and back, by the kernels where they can, else one value at a time.

* `plan_columns`: the `ColumnCodec` of a layout; callers need not know which. It gives the type, and a batch of records
  goes through its `decode` and `encode`.
* `Decoded`: an array, and the values that could not be decoded, with the reason. Such a value (a class without field
  list, a POJO subclass that no serializer lists, a timestamp that Arrow cannot store) is an error unless the caller is
  lenient: then it is null in the array.
* `Surrogate`, `find_surrogate`: layouts that kernels run instead of layouts that only the scalar codec reads. Where the
  shape of a value does not follow from its serializer (Kryo, Java objects), a surrogate is used: that of the natural
  type where the class is known (see `kryo_columns`), else text, the JSON of the value as `dump` prints it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import beam
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.java import Undecoded
from state_pipelines.codecs.json import dumps, to_json
from state_pipelines.codecs.kryo.kryo_columns import find_kryo
from state_pipelines.codecs.logical_values import dense_offsets
from state_pipelines.codecs.programs import (
    Bytes,
    Encoded,
    LayoutProgram,
    Offsets,
    compile_layout,
    decode_sequence,
    decode_spans,
    encode_array,
    pojo_fields,
)
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.errors import FormatError, StateError, UnsupportedError, UsageError, ValueRangeError, Where
from state_pipelines.serializers import tree
from state_pipelines.serializers.python_types import PythonType
from state_pipelines.serializers.tree import Opaque

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.codecs.layout import Layout
    from state_pipelines.codecs.programs import Wanted

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Surrogate:
    """A layout that the kernels run in place of one that they cannot, and the conversions of values between the two.

    Attributes:
        layout: the layout that the kernels run.
        read: converts a value of the scalar codec (not null) to one of `layout`; UnsupportedError if it does not fit.
        write: the inverse of `read`; UnsupportedError if there is none.
    """

    layout: Layout
    read: Change
    write: Change


def find_surrogate(layout: Layout) -> Surrogate | None:
    """Return the surrogate of a layout; None if the kernels run the layout itself."""
    match layout:
        case lay.Dynamic():
            return None if runs(layout) else _wrap_unknown(_find_dynamic(layout))
        case beam.VarFramed(inner=inner):
            return find_surrogate(inner) or Surrogate(inner, _same, _same)
        case beam.Counted(element=element):
            return _or_itself(lay.Sequence(element))
        case beam.VarTagged(cases=cases):
            return _or_itself(lay.Tagged(cases, width=4))
        case _ if type(layout) in _BEAM_LEAVES:
            return Surrogate(_BEAM_LEAVES[type(layout)](layout), _same, _same)
        case lay.OpaqueBytes():
            return Surrogate(lay.Struct(((lay.OPAQUE_FIELD, lay.Sized()),)), _same, _same)
        case (
            lay.Optional(inner=inner) | lay.Marked(inner=inner) | lay.MeasuredKey(inner=inner) | lay.Framed(inner=inner)
        ):
            found = find_surrogate(inner)
            return found and Surrogate(replace(layout, inner=found.layout), found.read, found.write)
        case lay.Sequence(element=element) | lay.Delimited(element=element) | lay.NullMasked(element=element):
            found = find_surrogate(element)
            return found and Surrogate(replace(layout, element=found.layout), _each(found.read), _each(found.write))
        case lay.Struct(fields=fields) | lay.Masked(fields=fields):
            return _find_fields(layout, fields)
        case lay.Mapping(key=key, value=value):
            return _find_mapping(key, value)
        case lay.Choice(left=left, right=right):
            found = _find_fields(lay.Struct((("left", left), ("right", right))), (("left", left), ("right", right)))
            if found is None:
                return None
            sides = dict(found.layout.fields)  # type: ignore[attr-defined]
            return Surrogate(lay.Choice(sides["left"], sides["right"]), found.read, found.write)
        case lay.Tagged():
            return _find_cases(layout)
        case lay.PojoObject():
            return _find_pojo(layout)
        case _:
            return None


def _or_itself(layout: Layout) -> Surrogate:
    return find_surrogate(layout) or Surrogate(layout, _same, _same)


_I64 = lay.Primitive(lay.PrimitiveKind.I64)
_PANE = (
    ("first", lay.Primitive(lay.PrimitiveKind.BOOL)),
    ("last", lay.Primitive(lay.PrimitiveKind.BOOL)),
    ("timing", lay.Text()),
    ("index", _I64),
    ("on_time_index", _I64),
)
_BEAM_LEAVES: dict[type[Layout], Callable[[Any], Layout]] = {
    beam.VarNumber: lambda layout: lay.Primitive(lay.PrimitiveKind(f"i{layout.bits}")),
    beam.VarSized: lambda layout: lay.Text() if layout.text else lay.Sized(),
    beam.VarInteger: lambda layout: lay.BigInteger(),
    beam.VarDecimal: lambda layout: lay.BigDecimal(),
    beam.IntervalWindow: lambda layout: lay.Struct((("start", _I64), ("end", _I64))),
    beam.Pane: lambda layout: lay.Struct(_PANE),
    beam.AvroBinary: lambda layout: lay.Dynamic(tree.Avro(runtime_class="", schema_json=layout.schema_json)),
}


def runs(layout: Layout) -> bool:
    """Return whether the kernels can decode and encode a layout, without a surrogate."""
    try:
        compile_layout(layout)
    except UnsupportedError:
        return False
    return True


def _find_dynamic(layout: lay.Dynamic) -> Surrogate:
    if isinstance(layout.serializer, tree.Kryo):
        layout_in, read, write = find_kryo(layout)
        return Surrogate(layout_in, read, write)
    serializer = layout.serializer
    name = "pickles" if isinstance(serializer, PythonType) else f"values of {type(serializer).__name__}"

    def refuse(value: Any) -> Any:
        raise UnsupportedError(
            f"{name} are shown as JSON text in tables, from which they cannot be written",
            hint="Keep the bytes of these values as they are",
        )

    return Surrogate(lay.Text(), lambda value: dumps(to_json(serializer, value)), refuse)  # type: ignore[arg-type]


def _wrap_unknown(found: Surrogate) -> Surrogate:
    def read(value: Any) -> Any:
        if isinstance(value, Undecoded):
            raise UnsupportedError(value.reason)
        return found.read(value)

    # The surrogate gets a null flag of its own: values of Kryo, Java streams and the like may be null even where the
    # layout that contains them has no flag for null.
    return Surrogate(lay.Optional(found.layout), read, found.write)


def nullable(change: Change) -> Change:
    """Return `change`, extended to convert None to None."""
    return lambda value: None if value is None else change(value)


def _each(change: Change) -> Change:
    one = nullable(change)
    return lambda values: [one(value) for value in values]


def _find_fields(layout: Layout, fields: tuple[tuple[str, Layout], ...]) -> Surrogate | None:
    found = {name: surrogate for name, child in fields if (surrogate := find_surrogate(child)) is not None}
    if not found:
        return None
    changed = tuple((name, found[name].layout if name in found else child) for name, child in fields)
    reads = {name: nullable(each.read) for name, each in found.items()}
    writes = {name: nullable(each.write) for name, each in found.items()}
    new = lay.Struct(changed) if isinstance(layout, lay.Struct) else replace(layout, fields=changed)  # type: ignore[call-arg]
    return Surrogate(new, _change_fields(reads), _change_fields(writes))


def _change_fields(changes: dict[str, Change]) -> Change:
    def change(value: Any) -> Any:
        return {name: changes[name](item) if name in changes else item for name, item in value.items()}

    return change


def _find_mapping(key: Layout, value: Layout) -> Surrogate | None:
    found = (find_surrogate(key), find_surrogate(value))
    if found == (None, None):
        return None
    keys, values = (each or Surrogate(layout, _same, _same) for each, layout in zip(found, (key, value), strict=True))

    def along(first: Change, second: Change) -> Change:
        first, second = nullable(first), nullable(second)
        return lambda entries: [(first(name), second(item)) for name, item in entries]

    new = lay.Mapping(keys.layout, values.layout)
    return Surrogate(new, along(keys.read, values.read), along(keys.write, values.write))


def _same(value: Any) -> Any:
    return value


def _find_cases(layout: lay.Tagged) -> Surrogate | None:
    found = {name: each for _, name, child in layout.cases if (each := find_surrogate(child)) is not None}
    if not found:
        return None
    cases = tuple((tag, name, found[name].layout if name in found else child) for tag, name, child in layout.cases)

    def along(changes: dict[str, Change]) -> Change:
        return lambda value: {**value, "value": changes.get(value["case"], lambda item: item)(value["value"])}

    reads = {name: nullable(each.read) for name, each in found.items()}
    writes = {name: nullable(each.write) for name, each in found.items()}
    return Surrogate(replace(layout, cases=cases), along(reads), along(writes))


def _find_pojo(layout: lay.PojoObject) -> Surrogate | None:
    """Return the surrogate of a POJO, in which each class has its own conversion.

    A subclass whose data are not those of a POJO becomes a POJO with one field, named after the class.
    """
    own = _find_fields(lay.Struct(layout.fields), layout.fields)
    others = [find_surrogate(variant.layout) for variant in layout.variants]
    if own is None and not any(others):
        return None
    reads: dict[str, Change] = {}
    writes: dict[str, Change] = {}
    if own is not None:
        reads[layout.class_name], writes[layout.class_name] = own.read, own.write
    variants = []
    for variant, found in zip(layout.variants, others, strict=True):
        inner = found.layout if found else variant.layout
        if found is not None:
            reads[variant.class_name], writes[variant.class_name] = found.read, found.write
        if not isinstance(inner, lay.PojoObject):
            short = variant.class_name.replace("$", ".").rpartition(".")[2]
            inner = lay.PojoObject(variant.class_name, ((short, inner),))
            reads[variant.class_name] = _enclose(variant.class_name, short, found.read if found else None)
            writes[variant.class_name] = _disclose(short, found.write if found else None)
        variants.append(replace(variant, layout=inner))
    fields = own.layout.fields if own else layout.fields  # type: ignore[attr-defined]

    def read(value: Any) -> Any:
        name = value.get("class") if isinstance(value, dict) else getattr(value, "class_name", None)
        if name is None:
            raise UnsupportedError(f"the class of {value!r:.80} is not known")
        return reads.get(name, lambda item: item)(value)

    def write(value: Any) -> Any:
        return writes.get(value.get("class", layout.class_name), lambda item: item)(value)

    return Surrogate(lay.PojoObject(layout.class_name, fields, tuple(variants)), read, write)


def _enclose(class_name: str, short: str, change: Change | None) -> Change:
    return lambda value: {"class": class_name, short: change(value) if change else value}


def _disclose(short: str, change: Change | None) -> Change:
    return lambda value: change(value[short]) if change and value[short] is not None else value[short]


@dataclass(frozen=True)
class Decoded:
    """Result of decoding a batch of records: the values, and which records failed.

    Attributes:
        array: one value per record; null where the record could not be decoded.
        failures: row and reason of each record that could not be decoded, in order.
    """

    array: pa.Array
    failures: tuple[tuple[int, str], ...] = ()

    @property
    def failed(self) -> Offsets:
        """i64[k], rows that could not be decoded."""
        return np.array([row for row, _ in self.failures], np.int64)

    def reasons(self) -> pa.Array:
        """Return the reason why each row could not be decoded, null for decoded rows."""
        texts: list[str | None] = [None] * len(self.array)
        for row, reason in self.failures:
            texts[row] = reason
        return pa.array(texts, pa.string())


class ColumnCodec(ABC):
    """Conversion between records of one layout and Arrow arrays.

    Attributes:
        may_fail: some records may be of classes that cannot be decoded, so callers should set `lenient`.
    """

    may_fail: bool

    @property
    @abstractmethod
    def type(self) -> pa.DataType:
        """Arrow type of the values."""

    @abstractmethod
    def decode(
        self, data: Bytes, starts: Offsets, ends: Offsets, *, exact: bool = True, offset: int = 0, lenient: bool = False
    ) -> Decoded:
        """Decode the records in `data[starts[i]:ends[i]]`.

        Args:
            data: u8, holds the records.
            starts: i64[n], first byte of each record.
            ends: i64[n], end of each record (exclusive).
            exact: each record must use up its bytes.
            offset: position of `data` in its file, for errors.
            lenient: records that cannot be decoded become null, with an entry in `Decoded.failures`, instead of
                raising UnsupportedError or ValueRangeError.

        Raises:
            FormatError: the bytes do not fit the layout.
            UnsupportedError: a record cannot be decoded without its class.
            ValueRangeError: Arrow cannot represent a value.
        """

    @abstractmethod
    def decode_sequence(
        self, data: Bytes, start: int, end: int, count: int, *, offset: int = 0
    ) -> tuple[pa.Array, Offsets]:
        """Decode `count` consecutive records of unknown sizes in `data[start:end]`, as `programs.decode_sequence`.

        Raises:
            UnsupportedError: a record cannot be decoded, so that the next one cannot be found.
        """

    @abstractmethod
    def encode(self, array: pa.Array) -> Encoded:
        """Encode every value of `array`, as `programs.encode_array`.

        Raises:
            ValueRangeError: a value does not fit the layout.
            UnsupportedError: values of this kind cannot be written.
        """


@lru_cache(maxsize=512)
def plan_columns(layout: lay.Layout, wanted: Wanted = None) -> ColumnCodec:
    """Return the codec of a layout; with `wanted`, a codec that only decodes, and only these fields.

    Raises:
        UnsupportedError: a node of the layout is unknown.
        UsageError: `wanted` names a field that the layout does not have, or nothing at all.
    """
    for node in walk_layout(layout):
        if isinstance(node, lay.Dynamic):
            _require_known(node)
    if isinstance(layout, lay.Runs):
        # With TTL, all fields are decoded even if only `last_access` is wanted: each stored array has one `last_access`
        # for all its elements, and their number is known only once they are decoded.
        return RunColumns(plan_columns(layout.stored, None if layout.ttl else wanted), plan_columns(layout.written))
    _require_ends(layout, tail=True)
    surrogate = find_surrogate(layout)
    if surrogate is None:
        return KernelCodec(compile_layout(layout, wanted))
    return ScalarColumns(layout, surrogate, compile_layout(lay.Optional(surrogate.layout), wanted))


def column_type(layout: lay.Layout) -> pa.DataType:
    """Return the Arrow type of the values of a layout; errors as for `plan_columns`."""
    return plan_columns(layout).type


@dataclass(frozen=True, eq=False)
class KernelCodec(ColumnCodec):
    """Codec of layouts that the kernels run without a surrogate."""

    program: LayoutProgram
    may_fail: bool = field(default=False, init=False)

    @property
    @override
    def type(self) -> pa.DataType:
        return self.program.type

    @override
    def decode(
        self, data: Bytes, starts: Offsets, ends: Offsets, *, exact: bool = True, offset: int = 0, lenient: bool = False
    ) -> Decoded:
        try:
            return Decoded(decode_spans(self.program, data, starts, ends, exact=exact, offset=offset))
        except (UnsupportedError, ValueRangeError):
            if not lenient:
                raise
        arrays: list[pa.Array] = []
        failures: list[tuple[int, str]] = []

        def salvage(first: int, last: int) -> None:
            """Decode the records `first` to `last`; bisect on an error, until the records that fail are isolated."""
            try:
                array = decode_spans(
                    self.program, data, starts[first:last], ends[first:last], exact=exact, offset=offset
                )
            except (UnsupportedError, ValueRangeError) as error:
                if last - first > 1:
                    salvage(first, (first + last) // 2)
                    salvage((first + last) // 2, last)
                    return
                failures.append((first, explain(error)))
                array = pa.nulls(1, self.type)
            arrays.append(array)

        salvage(0, len(starts))
        return Decoded(pa.concat_arrays(arrays), tuple(failures))

    @override
    def decode_sequence(
        self, data: Bytes, start: int, end: int, count: int, *, offset: int = 0
    ) -> tuple[pa.Array, Offsets]:
        return decode_sequence(self.program, data, start, end, count, offset=offset)

    @override
    def encode(self, array: pa.Array) -> Encoded:
        return encode_array(self.program, array)


@dataclass(frozen=True, eq=False)
class ScalarColumns(ColumnCodec):
    """Codec that converts records with the scalar codec to a surrogate layout, which the kernels run.

    Attributes:
        layout: layout of the records.
        surrogate: the layout that the kernels run instead.
        program: the surrogate with a null flag; records that cannot be decoded are null.
    """

    layout: lay.Layout
    surrogate: Surrogate
    program: LayoutProgram
    may_fail: bool = field(default=True, init=False)

    @property
    @override
    def type(self) -> pa.DataType:
        return self.program.type

    @override
    def decode(
        self, data: Bytes, starts: Offsets, ends: Offsets, *, exact: bool = True, offset: int = 0, lenient: bool = False
    ) -> Decoded:
        if len(starts) and (starts.min() < 0 or ends.max() > len(data) or bool((starts > ends).any())):
            raise UsageError(f"a record is outside the {len(data)} bytes given")
        records: list[bytes] = []
        failures: dict[int, str] = {}
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            try:
                reader = Reader(data[start:end].tobytes())
                value = read_value(self.layout, reader)
                if exact:
                    reader.expect_end("the value")
                records.append(self._change(value))
            except (UnsupportedError, ValueRangeError) as error:
                if not lenient:
                    error.what = f"record {row}: {error.what}"
                    _move(error, offset + start)
                    raise
                failures[row] = explain(error)
                records.append(b"\1")
            except FormatError as error:
                _move(error, offset + start)
                raise
        decoded = self._finish(records, lenient=lenient)
        failures.update(decoded.failures)
        return Decoded(decoded.array, tuple(sorted(failures.items())))

    @override
    def decode_sequence(
        self, data: Bytes, start: int, end: int, count: int, *, offset: int = 0
    ) -> tuple[pa.Array, Offsets]:
        if not 0 <= start <= end <= len(data):
            raise UsageError(f"bytes {start} to {end} are outside the {len(data)} bytes given")
        records: list[bytes] = []
        stops = np.zeros(count, np.int64)
        reader = Reader(data[start:end].tobytes())
        for row in range(count):
            try:
                records.append(self._change(read_value(self.layout, reader, tail=False)))
            except StateError as error:
                _move(error, offset + start)
                raise
            stops[row] = start + reader.position
        return self._finish(records, lenient=False).array, stops

    def _change(self, value: object) -> bytes:
        changed = None if value is None else self.surrogate.read(value)
        writer = Writer()
        writer.u8(0)
        write_value(self.surrogate.layout, writer, changed)
        return writer.getvalue()

    def _finish(self, records: list[bytes], *, lenient: bool) -> Decoded:
        sizes = np.array([len(each) for each in records], np.int64)
        stops = np.cumsum(sizes, dtype=np.int64)
        data = np.frombuffer(b"".join(records), np.uint8)
        return KernelCodec(self.program).decode(data, stops - sizes, stops, lenient=lenient)

    @override
    def encode(self, array: pa.Array) -> Encoded:
        between = encode_array(self.program, array)
        writer = Writer()
        stops = np.zeros(len(array), np.int64)
        raw = between.data.tobytes()
        ends = between.stops.tolist()
        for row, (start, end) in enumerate(zip(between.starts.tolist(), ends, strict=True)):
            reader = Reader(raw, None, start, end)
            value = None if reader.u8() else read_value(self.surrogate.layout, reader)
            try:
                write_value(self.layout, writer, None if value is None else self.surrogate.write(value))
            except StateError as error:
                error.what = f"row {row}: {error.what}"
                raise
            stops[row] = len(writer)
        return Encoded(np.frombuffer(writer.getvalue(), np.uint8), stops)


@dataclass(frozen=True, eq=False)
class RunColumns(ColumnCodec):
    """Codec of lists, each of which is stored as several byte arrays (`layout.Runs`).

    Attributes:
        stored: codec for decoding; its values are lists of arrays, each of them a list of elements.
        written: codec for encoding; it writes one array per element.
    """

    stored: ColumnCodec
    written: ColumnCodec

    @property
    def may_fail(self) -> bool:  # type: ignore[override]
        """See `ColumnCodec`."""
        return self.stored.may_fail

    @property
    @override
    def type(self) -> pa.DataType:
        arrays = self.stored.type.value_type
        if pa.types.is_list(arrays):
            return pa.list_(arrays.value_type)
        value = arrays.field("value").type.value_type
        return pa.list_(pa.struct([arrays.field("last_access"), pa.field("value", value)]))

    @override
    def decode(
        self, data: Bytes, starts: Offsets, ends: Offsets, *, exact: bool = True, offset: int = 0, lenient: bool = False
    ) -> Decoded:
        decoded = self.stored.decode(data, starts, ends, exact=exact, offset=offset, lenient=lenient)
        return replace(decoded, array=self._join(decoded.array))

    @override
    def decode_sequence(
        self, data: Bytes, start: int, end: int, count: int, *, offset: int = 0
    ) -> tuple[pa.Array, Offsets]:
        array, stops = self.stored.decode_sequence(data, start, end, count, offset=offset)
        return self._join(array), stops

    @override
    def encode(self, array: pa.Array) -> Encoded:
        return self.written.encode(array)

    def _join(self, array: pa.Array) -> pa.Array:
        """Convert lists of arrays to lists of the elements of these arrays."""
        offsets, arrays = dense_offsets(array).to_numpy(), array.flatten()
        runs = arrays if pa.types.is_list(arrays.type) else arrays.field("value")
        stops = dense_offsets(runs).to_numpy()
        elements = runs.flatten()
        if runs is not arrays:
            rows = np.repeat(np.arange(len(runs)), np.diff(stops))
            accessed = arrays.field("last_access").take(pa.array(rows))
            elements = pa.StructArray.from_arrays([accessed, elements], fields=list(self.type.value_type))
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(pa.array(stops[offsets]), elements, type=self.type, mask=mask)


def explain(error: StateError) -> str:
    """Return the message and the hint of an error as one text: the reason why a row failed."""
    return f"{error.what}. {error.hint}" if error.hint else error.what


def walk_layout(layout: lay.Layout) -> Iterator[lay.Layout]:
    """Yield the layout and all layouts nested in it."""
    yield layout
    for child in _children(layout):
        yield from walk_layout(child)


def _children(layout: lay.Layout) -> list[lay.Layout]:
    match layout:
        case lay.Struct(fields=fields) | lay.Masked(fields=fields):
            return [child for _, child in fields]
        case lay.PojoObject(fields=fields, variants=variants):
            return [*(child for _, child in fields), *(variant.layout for variant in variants)]
        case lay.Optional(inner=inner) | lay.MeasuredKey(inner=inner) | lay.Framed(inner=inner) | lay.Span(inner=inner):
            return [inner]
        case lay.Marked(inner=inner) | beam.VarFramed(inner=inner) | beam.Counted(element=inner):
            return [inner]
        case lay.Sequence(element=element) | lay.Delimited(element=element) | lay.NullMasked(element=element):
            return [element]
        case lay.Runs(element=element):
            return [element]
        case lay.Mapping(key=key, value=value):
            return [key, value]
        case lay.Choice(left=left, right=right):
            return [left, right]
        case lay.Tagged(cases=cases) | beam.VarTagged(cases=cases):
            return [child for _, _, child in cases]
        case _:
            return []


def is_known(layout: lay.Dynamic) -> bool:
    """Return whether this package can decode the values of a layout, such as those that Kryo wrote."""
    try:
        _require_known(layout)
    except UnsupportedError:
        return False
    return True


def _require_known(layout: lay.Dynamic) -> None:
    """Raise UnsupportedError unless this package can decode the values.

    It decodes zero bytes: the decoder of a known format raises FormatError, because bytes are missing; for an unknown
    format, UnsupportedError comes first.
    """
    try:
        read_value(layout, Reader(b""), tail=False)
    except FormatError:
        pass
    except UnsupportedError as error:
        if isinstance(layout.serializer, Opaque):
            raise
        raise UnsupportedError(
            f"the values have no Arrow type: {error.what}",
            hint="Tables give the raw bytes, which can be copied as they are",
        ) from None


def _require_ends(layout: lay.Layout, *, tail: bool) -> None:
    """Raise UnsupportedError unless the scalar codec finds the end of every opaque value.

    Args:
        layout: layout of a value.
        tail: the value reaches to the end of its record, which then is also the end of an opaque value.
    """
    match layout:
        case lay.OpaqueBytes(inner=lay.Dynamic() as inner):
            if not tail:
                _require_known(inner)
        case lay.Struct(fields=fields) | lay.Masked(fields=fields) | lay.PojoObject(fields=fields):
            for index, (_, child) in enumerate(fields):
                # Only the last field always reaches to the end of the record. A field before it does so only in those
                # rows in which all later fields are null.
                _require_ends(child, tail=tail and index == len(fields) - 1)
            for variant in layout.variants if isinstance(layout, lay.PojoObject) else ():
                _require_ends(variant.layout, tail=tail)
        case lay.Framed(inner=inner):
            _require_ends(inner, tail=True)
        case lay.Optional() | lay.Marked() | lay.Choice() | lay.Tagged():
            for child in _children(layout):
                _require_ends(child, tail=tail)
        case _:
            for child in _children(layout):
                _require_ends(child, tail=False)


def _move(error: StateError, offset: int) -> None:
    where = error.where
    error.where = replace(where, offset=offset + (where.offset or 0)) if isinstance(where, Where) else where


def has_opaque(layout: lay.Layout) -> bool:
    """Return whether a layout keeps its values, or values nested in them, as bytes (`layout.OpaqueBytes`)."""
    return any(isinstance(each, lay.OpaqueBytes) for each in walk_layout(layout))


def find_fields(layout: lay.Layout) -> dict[str, lay.Layout]:
    """Return the layout of each field of a value, by column name; empty when it has no fields."""
    match layout:
        case lay.Optional(inner=inner) | lay.Marked(inner=inner):
            return find_fields(inner)
        case lay.PojoObject():
            return dict(pojo_fields(layout))
        case lay.Struct(fields=fields):
            return dict(fields)
        case lay.Masked(fields=fields):
            return {name: lay.Optional(child) for name, child in fields}
        case _:
            return {}


def reinterpret(array: pa.Array, source: lay.Layout, target: lay.Layout) -> pa.Array:
    """Convert values between two layouts of the same bytes.

    Args:
        array: the values, in the type of `source`; null stays null.
        source: layout of the values.
        target: a layout that differs from `source` only in which nested values are kept as bytes.

    Raises:
        UnsupportedError: a value cannot be decoded or written.
    """
    encoded = plan_columns(lay.Optional(source)).encode(array)
    columns = plan_columns(lay.Optional(target))
    return columns.decode(encoded.data, encoded.starts, encoded.stops).array
