"""Layout of the records of one keyed state, independent of the format of their file.

Keys of every format that Flink writes record by record (canonical, RocksDB) have the same bytes after the key-group
prefix: key, namespace, and the user key of a map. Source: `SerializedCompositeKeyBuilder`, `ListDelimitedSerializer`,
`CompositeKeySerializationUtils`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.serializer_layouts import LayoutContext, OpaqueValues, derive_layout, fixed_length
from state_pipelines.errors import FormatError, UnsupportedError, Where
from state_pipelines.keyed.key_group_prefix import key_group_prefix_size
from state_pipelines.serializers import tree
from state_pipelines.serializers.python_types import PythonValue
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import BackendStateType, StateMetaInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

VOID = lay.Constant(b"\0")


@dataclass(frozen=True)
class KeyedLayout:
    """Layouts of the records of one state.

    Attributes:
        key: struct of `state_key`, `state_namespace` and, of a map, `map_key`; of timers `timestamp` first.
        value: of the value; timers have none (`Constant`).
        state_type: VALUE, REDUCING, AGGREGATING, LIST, MAP or TIMER.
        ttl: values (elements, map values) carry the time of their last access.
        key_serializer: of the keys.
        max_parallelism: number of key groups.
        is_declared: the types of the values are declared, not stored (state of Python functions).
    """

    key: lay.Struct
    value: lay.Layout
    state_type: StateKind
    ttl: bool
    key_serializer: tree.Serializer
    max_parallelism: int
    is_declared: bool = False

    @property
    def prefix(self) -> int:
        """Bytes of the key-group prefix, 1 or 2."""
        return key_group_prefix_size(self.max_parallelism)


@contextmanager
def blame_declared(layout: KeyedLayout | None) -> Iterator[None]:
    """Say of bytes that do not fit a declared type that the type may be wrong."""
    try:
        yield
    except FormatError as error:
        if layout is not None and layout.is_declared and not error.hint:
            error.hint = "The declared type may not be that of the state (--python-types, option pythonTypes)"
        raise


@dataclass(frozen=True)
class KeyedRecords:
    """Bytes of some records of one state, in the order of the file.

    Attributes:
        key_groups: i32[n].
        data: u8, holds keys and values.
        key_starts: i64[n] first byte after the key-group prefix.
        key_ends: i64[n].
        value_starts: i64[n].
        value_ends: i64[n].
        offset: position of `data` in its file (of a compressed file: in the section), for errors.
        file: its name, for errors.
    """

    key_groups: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    key_starts: npt.NDArray[np.int64]
    key_ends: npt.NDArray[np.int64]
    value_starts: npt.NDArray[np.int64]
    value_ends: npt.NDArray[np.int64]
    offset: int
    file: str

    def __len__(self) -> int:
        """Number of records."""
        return len(self.key_groups)

    def cut(self, start: int, stop: int) -> KeyedRecords:
        """The records from `start` up to `stop`, nothing copied."""
        return self._at(slice(start, stop))

    def select(self, rows: npt.NDArray[np.integer]) -> KeyedRecords:
        """Some of the records."""
        return self._at(rows)

    def _at(self, rows: slice | npt.NDArray[np.integer]) -> KeyedRecords:
        return KeyedRecords(
            self.key_groups[rows],
            self.data,
            self.key_starts[rows],
            self.key_ends[rows],
            self.value_starts[rows],
            self.value_ends[rows],
            self.offset,
            self.file,
        )


def concat_records(batches: Sequence[KeyedRecords]) -> KeyedRecords:
    """Records of one state from several batches as one.

    Records in one buffer stay there. Records of several buffers are copied, and their file offsets are lost.
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    buffers = {id(each.data): each.data for each in batches}
    sizes = np.cumsum([0, *(len(data) for data in buffers.values())])
    shifts = dict(zip(buffers, sizes.tolist(), strict=False))
    together = len(buffers) == 1

    def shifted(name: str) -> npt.NDArray[np.int64]:
        return np.concatenate([getattr(each, name) + shifts[id(each.data)] for each in batches])

    return KeyedRecords(
        np.concatenate([each.key_groups for each in batches]),
        first.data if together else np.concatenate([*buffers.values()]),
        shifted("key_starts"),
        shifted("key_ends"),
        shifted("value_starts"),
        shifted("value_ends"),
        first.offset if together else 0,
        first.file,
    )


def cut_nulls(records: KeyedRecords) -> npt.NDArray[np.int64]:
    """Ends of the values of a map state, i64[n]: a null ends after its flag.

    RocksDB writes nothing else for a null; a canonical savepoint of the heap backend may have bytes after the flag,
    which mean nothing.

    Raises:
        FormatError: a value has no flag.
    """
    empty = np.flatnonzero(records.value_ends <= records.value_starts)
    if len(empty):
        where = Where(file=records.file, offset=records.offset + int(records.value_starts[empty[0]]))
        raise FormatError("an entry of a map has no byte that says whether its value is null", where=where)
    null = records.data[records.value_starts] != 0
    return np.where(null, records.value_starts + 1, records.value_ends)


def derive_keyed_layout(
    info: StateMetaInfo, key_serializer: tree.Serializer, max_parallelism: int, context: LayoutContext
) -> KeyedLayout:
    """Layouts of the records of the state that `info` describes; of keys nothing is carried.

    Raises:
        UnsupportedError: the kind of state has no records of its own here, or a serializer was lost at write time.
    """
    values, context = context, replace(context, opaque_values=OpaqueValues.NONE)
    if info.backend_type is BackendStateType.PRIORITY_QUEUE:
        return _timer_layout(info, max_parallelism, context)
    if info.backend_type is not BackendStateType.KEY_VALUE:
        raise UnsupportedError(f"{info.backend_type} state is not read yet", where=Where(state=info.name))
    key = derive_layout(key_serializer, context)
    namespace = derive_layout(info.namespace_serializer, context)
    lengths = [fixed_length(each, context) for each in (key_serializer, info.namespace_serializer)]
    if lengths == [None, None]:
        key, namespace = lay.MeasuredKey(key), lay.MeasuredKey(namespace)
    fields = [("state_key", key), ("state_namespace", namespace)]
    state_type = info.state_type or StateKind.VALUE
    value: tree.Serializer = info.value_serializer
    layout: lay.Layout | None = None
    if state_type == StateKind.LIST:
        value = info.element
        typed = _python_value(value)
        if typed is None:
            layout = lay.Delimited(derive_layout(value, values))
        else:
            # A single array has the bytes of a value.
            state_type = typed.kind
            if state_type == StateKind.LIST:
                layout = lay.Runs(derive_layout(typed.type, context), _has_ttl(value))
    elif state_type == StateKind.MAP and isinstance(value, tree.MapOf):
        fields.append(("map_key", derive_layout(value.key, context)))
        value = value.value
        layout = lay.Optional(derive_layout(value, values), rest_is_null=True)
    layout = layout or derive_layout(value, values)
    declared = _python_value(value) is not None
    key_layout = lay.Struct(tuple(fields))
    return KeyedLayout(key_layout, layout, state_type, _has_ttl(value), key_serializer, max_parallelism, declared)


def _timer_layout(info: StateMetaInfo, max_parallelism: int, context: LayoutContext) -> KeyedLayout:
    element = info.element
    if not isinstance(element, tree.Timer):
        raise UnsupportedError("a priority queue that does not hold timers is not read", where=Where(state=info.name))
    fields = (
        ("timestamp", lay.Logical(lay.LogicalKind.ORDERED_I64)),
        ("state_key", derive_layout(element.key, context)),
        ("state_namespace", derive_layout(element.namespace, context)),
    )
    return KeyedLayout(lay.Struct(fields), lay.Constant(b""), StateKind.TIMER, False, element.key, max_parallelism)


def _python_value(serializer: tree.Serializer) -> PythonValue | None:
    """The declared type of state of a Python function (see `snapshot.python_states`)."""
    if isinstance(serializer, tree.Ttl | tree.TtlAware):
        return _python_value(serializer.inner)
    return serializer if isinstance(serializer, PythonValue) else None


def _has_ttl(serializer: tree.Serializer) -> bool:
    if isinstance(serializer, tree.TtlAware):
        return serializer.ttl_enabled
    return isinstance(serializer, tree.Ttl)
