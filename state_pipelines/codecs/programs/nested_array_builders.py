"""Array builders of structs, `Either`, tagged values, lists and maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from state_pipelines.codecs import logical_values
from state_pipelines.codecs.arrow_coercion import flatten_entries
from state_pipelines.codecs.layout import ROW_KINDS
from state_pipelines.codecs.programs.array_builders import ArrayBuilder, ConstantBuilder, take_names
from state_pipelines.errors import ValueRangeError

if TYPE_CHECKING:
    from state_pipelines.codecs.kernels.buffers import InputColumns, OutputColumns


@dataclass(frozen=True)
class StructBuilder(ArrayBuilder):
    """A tuple, row or POJO.

    Attributes:
        kind_column: column of the row kind; -1 when there is none or it is skipped.
        classes: the classes of the objects, the declared class first; empty without subclasses.
        class_column: column of the index into `classes`.
    """

    fields: tuple[tuple[str, ArrayBuilder], ...]
    kind_column: int = -1
    classes: tuple[str, ...] = ()
    class_column: int = -1

    @property
    @override
    def type(self) -> pa.DataType:
        extra = [(name, pa.string()) for name, column in self._named_columns() if column >= 0]
        return pa.struct([*extra, *((name, builder.type) for name, builder in self.fields if builder.main >= 0)])

    def _named_columns(self) -> tuple[tuple[str, int], ...]:
        return (("class", self.class_column), ("row_kind", self.kind_column))

    @override
    def level_columns(self) -> tuple[int, ...]:
        below = [column for _, builder in self.fields for column in builder.level_columns()]
        return (self.main, self.kind_column, self.class_column, *below)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        children = []
        for name, column in self._named_columns():
            if column >= 0:
                names, dtype = (self.classes, np.int32) if name == "class" else (ROW_KINDS, np.uint8)
                children.append(take_names(names, columns.fixed(column, dtype).astype(np.int32), None))
        children += [builder.finish(columns) for _, builder in self.fields if builder.main >= 0]
        nulls = logical_values.bitmap(columns.valid(self.main))
        return pa.Array.from_buffers(self.type, columns.count(self.main), [nulls], children=children)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_validity(self.main, array)
        children = _children(array)
        index = 0
        for name, column in self._named_columns():
            if column >= 0:
                names, dtype = (self.classes, np.int32) if name == "class" else (ROW_KINDS, np.uint8)
                numbers = _numbers_of(names, children[index], name)
                columns.set_fixed(column, numbers.astype(dtype), pa.array(numbers))
                index += 1
        for _, builder in self.fields:
            builder.prepare(children[index], columns)
            index += 1


@dataclass(frozen=True)
class ChoiceBuilder(ArrayBuilder):
    """An `Either`."""

    flag: int
    left: ArrayBuilder
    right: ArrayBuilder

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.struct([("is_left", pa.bool_()), ("left", self.left.type), ("right", self.right.type)])

    @override
    def level_columns(self) -> tuple[int, ...]:
        return (self.main, self.flag, *self.left.level_columns(), *self.right.level_columns())

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        flags = np.packbits(columns.fixed(self.flag, np.uint8) != 0, bitorder="little")
        count = columns.count(self.main)
        is_left = pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(flags)])
        children = [is_left, self.left.finish(columns), self.right.finish(columns)]
        nulls = logical_values.bitmap(columns.valid(self.main))
        return pa.Array.from_buffers(self.type, count, [nulls], children=children)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_validity(self.main, array)
        children = _children(array)
        if children[0].null_count > array.null_count:
            raise ValueRangeError("is_left is null where there is an Either")
        flags = children[0].fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
        columns.set_fixed(self.flag, flags, pa.array(flags))
        self.left.prepare(children[1], columns)
        self.right.prepare(children[2], columns)


@dataclass(frozen=True)
class CaseBuilder(ArrayBuilder):
    """A tagged value: a struct of `case` (its name) and one field for each case with content.

    Attributes:
        case: column of the index of the case.
        cases: name and builder of each case.
    """

    case: int
    cases: tuple[tuple[str, ArrayBuilder], ...]

    @property
    def _fields(self) -> list[tuple[str, ArrayBuilder]]:
        return [(name, builder) for name, builder in self.cases if not _is_void(builder)]

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.struct([("case", pa.string()), *((name, builder.type) for name, builder in self._fields)])

    @override
    def level_columns(self) -> tuple[int, ...]:
        below = [column for _, builder in self.cases for column in builder.level_columns()]
        return (self.main, self.case, *below)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        names = tuple(name for name, _ in self.cases)
        cases = take_names(names, columns.fixed(self.case, np.int32), None)
        children = [cases, *(builder.finish(columns) for _, builder in self._fields)]
        nulls = logical_values.bitmap(columns.valid(self.main))
        return pa.Array.from_buffers(self.type, columns.count(self.main), [nulls], children=children)

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_validity(self.main, array)
        children = _children(array)
        if children[0].null_count > array.null_count:
            raise ValueRangeError("`case` is null where there is a value")
        numbers = _numbers_of(tuple(name for name, _ in self.cases), children[0], "case")
        columns.set_fixed(self.case, numbers.astype(np.int32), pa.array(numbers))
        for index, (_, builder) in enumerate(self._fields, 1):
            builder.prepare(children[index], columns)
        for _, builder in self.cases:
            if _is_void(builder):
                builder.prepare(pa.nulls(len(array)), columns)


@dataclass(frozen=True)
class ListBuilder(ArrayBuilder):
    """A list."""

    element: ArrayBuilder

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.list_(self.element.type)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        child = self.element.finish(columns)
        buffers = [logical_values.bitmap(columns.valid(self.main)), pa.py_buffer(columns.offsets(self.main))]
        return pa.Array.from_buffers(self.type, columns.count(self.main), buffers, children=[child])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_variable(self.main, array)
        self.element.prepare(array.flatten(), columns)


@dataclass(frozen=True)
class MapBuilder(ArrayBuilder):
    """A map; the entries keep the order of the bytes."""

    key: ArrayBuilder
    value: ArrayBuilder

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.map_(self.key.type, self.value.type)

    @override
    def finish(self, columns: OutputColumns) -> pa.Array:
        keys = self.key.finish(columns)
        if keys.null_count:
            raise ValueRangeError("a map has a null key, which Arrow and Spark cannot represent")
        fields = [pa.field("key", keys.type, nullable=False), pa.field("value", self.value.type)]
        entries = pa.StructArray.from_arrays([keys, self.value.finish(columns)], fields=fields)
        buffers = [logical_values.bitmap(columns.valid(self.main)), pa.py_buffer(columns.offsets(self.main))]
        return pa.Array.from_buffers(self.type, columns.count(self.main), buffers, children=[entries])

    @override
    def prepare(self, array: pa.Array, columns: InputColumns) -> None:
        columns.set_variable(self.main, array)
        entries = flatten_entries(array)
        self.key.prepare(entries.field(0), columns)
        self.value.prepare(entries.field(1), columns)


def _is_void(builder: ArrayBuilder) -> bool:
    """Return whether the values are always null."""
    return isinstance(builder, ConstantBuilder) and not builder.empty


def _children(array: pa.StructArray) -> list[pa.Array]:
    """Return the children of a struct, null wherever the struct is null (values under a null are undefined)."""
    if array.null_count:
        children: list[pa.Array] = array.flatten()
        return children
    return [array.field(index) for index in range(array.type.num_fields)]


def _numbers_of(names: tuple[str, ...], array: pa.Array, what: str) -> np.ndarray:
    """Return the indices of strings in `names`, 0 for null."""
    indices = pc.index_in(array, pa.array(names, pa.string()))
    unknown = pc.and_(indices.is_null(), array.is_valid())
    if pc.any(unknown).as_py():
        raise ValueRangeError(f"{array.filter(unknown)[0].as_py()!r} is not a known {what} ({', '.join(names)})")
    numbers: np.ndarray = indices.fill_null(0).to_numpy()
    return numbers
