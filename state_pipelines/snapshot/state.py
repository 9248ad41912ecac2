"""States of a snapshot: the queries that every kind of state answers, and values of Python functions in its tables.

* `declare_types`, `guess_type`, `carry_types`: state of Python functions: byte arrays in Java, values of declared types
  in tables. PyFlink keeps every state as Java list or map state of `byte[]` under the name `python-state-NAME`. Value,
  reducing and aggregating state are lists of one array (the accumulator of the last two); list state is arrays of
  several elements. Source: `BeamKeyedStateStore`, `BeamOperatorStateStore`, `pyflink.fn_execution.state_impl`.
* `State`: the base class of states.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.pickles import is_pickle
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.serializers import tree
from state_pipelines.serializers.python_types import PICKLED, PythonDeclaration, PythonType, PythonValue, carry_pickles
from state_pipelines.serializers.state_meta_info import (
    KEY_SERIALIZER,
    VALUE_SERIALIZER,
    BackendStateType,
    StateMetaInfo,
)
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BasicKind, StateKind
from state_pipelines.snapshot.representation import format_count, make_html_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from state_pipelines.keyed.state_table import TableOptions
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot.handle_readers import StateOfSubtask, StateStatistics
    from state_pipelines.snapshot.snapshot_files import OperatorFiles

PREFIX = "python-state-"
"""Prefix of the Java name of every state of a Python function (`BeamStateStore.PYTHON_STATE_PREFIX`)."""

SAMPLE_SIZE = 200
"""Number of records of each subtask from which the kind of a state is found and its type guessed."""

Arrays = Sequence[bytes]
"""The arrays of one record of list state, without their lengths."""

_LARGE = 1 << 53


@dataclass(frozen=True)
class PythonGuess:
    """Guess of the type of an undeclared state from its bytes; it may be wrong.

    Attributes:
        kind: VALUE (also for reducing and aggregating state, whose bytes look the same), LIST or MAP.
        type: type in the format of declarations, such as `ListState<STRING>`; empty if no type fits.
        records: number of records from which the type was guessed.
    """

    kind: StateKind
    type: str
    records: int


def python_name(info: StateMetaInfo) -> str:
    """Return the name of a state in Python; empty if it is not a state of a Python function."""
    return info.name.removeprefix(PREFIX) if info.name.startswith(PREFIX) and _arrays_of(info) else ""


def find_declaration(info: StateMetaInfo, declared: Mapping[str, PythonDeclaration] | None) -> PythonDeclaration | None:
    """Find the declared type of a state of a Python function; None when there is none.

    Args:
        info: meta info of the state.
        declared: the declared types of its operator, by name of the state in Python or in Java.
    """
    name = python_name(info)
    return declared.get(name, declared.get(info.name)) if name and declared else None


def declare_types(info: StateMetaInfo, declared: PythonDeclaration, kind: StateKind) -> StateMetaInfo:
    """Replace the byte arrays in a meta info by the declared types.

    Args:
        info: meta info of a state of a Python function.
        declared: declared type of the state.
        kind: kind of the state in Python; see `find_kind`.

    Raises:
        UsageError: a state of this kind cannot have the declared type.
    """
    is_map = info.backend_type is BackendStateType.BROADCAST or isinstance(info.value_serializer, tree.MapOf)
    if is_map != (kind == StateKind.MAP) or (is_map and declared.type.word != "MAP"):
        stored = "map state, whose type is MAP<K, V>" if is_map else "value, list, reducing or aggregating state"
        raise UsageError(
            f"{python_name(info)} is {stored}, not {kind.lower()} state of {describe(declared.type)}",
            where=Where(state=info.name),
            hint="Declare it as the job does (--python-types, option pythonTypes)",
        )
    types = declared.type.children if is_map else (declared.type,)
    if info.backend_type is BackendStateType.BROADCAST:
        serializers = {KEY_SERIALIZER: types[0], VALUE_SERIALIZER: types[1]}
        changed = tuple(
            (name, _type_arrays(each, [serializers[name]], kind) if name in serializers else each)
            for name, each in info.serializers
        )
    else:
        changed = tuple(
            (name, _type_arrays(each, list(types), kind) if name == VALUE_SERIALIZER else each)
            for name, each in info.serializers
        )
    return replace(info, serializers=changed)


def find_kind(info: StateMetaInfo, declared: PythonDeclaration, sample: Iterable[Arrays]) -> PythonDeclaration:
    """Return the declaration with a kind: the declared kind, or the kind that fits the records of a sample.

    A list of one element and a value have the same bytes. If all records are like that, the kind is VALUE.
    """
    if declared.kind is not None:
        return declared
    if isinstance(info.value_serializer, tree.MapOf) or info.backend_type is BackendStateType.BROADCAST:
        return replace(declared, kind=StateKind.MAP)
    records = list(sample)
    if _fit(records, declared.type, single=True):
        return replace(declared, kind=StateKind.VALUE)
    if declared.type.word == "ARRAY" and not _fit(records, declared.type, single=False):
        # The declared type is the type of the whole list, as in PyFlink's list state descriptor: take its element type.
        return PythonDeclaration(declared.type.children[0], StateKind.LIST)
    return replace(declared, kind=StateKind.LIST if any(len(arrays) != 1 for arrays in records) else StateKind.VALUE)


def guess_type(info: StateMetaInfo, sample: Sequence[Arrays]) -> PythonGuess:
    """Guess the type of a state from a sample of its records; a record of map state is one key and one value."""
    if isinstance(info.value_serializer, tree.MapOf):
        sides = [[[arrays[index]] for arrays in sample if len(arrays) > index] for index in (0, 1)]
        found = [_guess_content(side, single=True) for side in sides]
        text = f"MapState<{found[0]}, {found[1]}>" if all(found) and sample else ""
        return PythonGuess(StateKind.MAP, text, len(sample))
    single = all(len(arrays) == 1 for arrays in sample)
    if single and (content := _guess_content(sample, single=True)):
        return PythonGuess(StateKind.VALUE, f"ValueState<{content}>" if sample else "", len(sample))
    content = _guess_content(sample, single=False)
    if content:
        return PythonGuess(StateKind.LIST, f"ListState<{content}>", len(sample))
    return PythonGuess(StateKind.VALUE if single else StateKind.LIST, "", len(sample))


def read_arrays(info: StateMetaInfo, key: bytes, value: bytes) -> Arrays:
    """Return the byte arrays of one record of a state of a Python function.

    Args:
        info: meta info of the state as stored, without declared types.
        key: user key of map state, else empty.
        value: value of the record.
    """
    if isinstance(info.value_serializer, tree.MapOf):
        array, has_ttl = lay.Sized(), _has_ttl(info.value_serializer.value)
        values = () if value[:1] != b"\0" else (value[1 + (8 if has_ttl else 0) + 4 :],)
        return (read_value(array, Reader(key)), *values)
    has_ttl = _has_ttl(info.element)
    found = read_value(lay.Runs(lay.Rest(), ttl=has_ttl), Reader(value))
    return [each["value"] if has_ttl else each for each in found]


def carry_types(declared: PythonDeclaration) -> PythonDeclaration:
    """Return the declaration with BYTES instead of pickles (see `carry_pickles`)."""
    return replace(declared, type=carry_pickles(declared.type))


def _arrays_of(info: StateMetaInfo) -> bool:
    """Return whether the serializers of a state are those that PyFlink gives to all of its states."""
    match info.backend_type, info.state_type:
        case BackendStateType.BROADCAST, _:
            return _is_array(info.key_serializer, BasicKind.BYTE_ARRAY_WRAPPER) and _is_array(info.value_serializer)
        case BackendStateType.KEY_VALUE, StateKind.LIST:
            return _is_array(_unwrap(info.element))
        case BackendStateType.KEY_VALUE, StateKind.MAP:
            value = info.value_serializer
            return (
                isinstance(value, tree.MapOf)
                and _is_array(value.key, BasicKind.BYTE_ARRAY_WRAPPER)
                and _is_array(_unwrap(value.value))
            )
    return False


def _is_array(serializer: tree.Serializer, kind: BasicKind = BasicKind.BYTE_PRIMITIVE_ARRAY) -> bool:
    stored = serializer.stored if isinstance(serializer, PythonValue) else serializer
    return isinstance(stored, tree.Basic) and stored.kind == kind


def _unwrap(serializer: tree.Serializer) -> tree.Serializer:
    return _unwrap(serializer.inner) if isinstance(serializer, tree.Ttl | tree.TtlAware) else serializer


def _has_ttl(serializer: tree.Serializer) -> bool:
    if isinstance(serializer, tree.TtlAware):
        return _has_ttl(serializer.inner)
    return isinstance(serializer, tree.Ttl)


def _type_arrays(node: tree.Serializer, types: list[PythonType], kind: StateKind) -> tree.Serializer:
    """Return a serializer whose byte arrays have types.

    Args:
        node: the serializer.
        types: types of the byte arrays in the order of the tree; they are removed from the list.
        kind: kind of the state.
    """
    match node:
        case tree.Basic():
            return PythonValue(
                snapshot_class=node.snapshot_class,
                snapshot_version=node.snapshot_version,
                stored=node,
                type=types.pop(0),
                kind=kind,
            )
        case tree.ListOf(element=element):
            return replace(node, element=_type_arrays(element, types, kind))
        case tree.MapOf(key=key, value=value):
            typed = _type_arrays(key, types, kind)
            return replace(node, key=typed, value=_type_arrays(value, types, kind))
        case tree.Ttl(inner=inner) | tree.TtlAware(inner=inner):
            return replace(node, inner=_type_arrays(inner, types, kind))
    return node


def _fit(records: Sequence[Arrays], of: PythonType, *, single: bool) -> bool:
    """Return whether every array consists of values of a type: exactly one if `single`, else any number."""
    element = derive_layout(of, LayoutContext())
    layout = element if single else lay.Delimited(element, delimiter=None)
    for arrays in records:
        if single and len(arrays) != 1:
            return False
        for array in arrays:
            reader = Reader(array)
            try:
                read_value(layout, reader)
                reader.expect_end("the value")
            except StateError:
                return False
    return True


def _guess_content(records: Sequence[Arrays], *, single: bool) -> str:
    """Find a type that fits all arrays and return its word; empty if no type fits."""
    if not records:
        return ""
    # Almost any bytes can be read as a sequence of numbers, so types of numbers are tried only for single values.
    for word, holds in _GUESSES if single else _GUESSES[:_MARKED]:
        of = PythonType(word=word)
        if _fit(records, of, single=single) and holds(_values(records, of)):
            return (
                "BOOLEAN" if word == "TINYINT" and all(a in (b"\0", b"\1") for each in records for a in each) else word
            )
    return ""


def _values(records: Sequence[Arrays], of: PythonType) -> list[object]:
    layout = lay.Delimited(derive_layout(of, LayoutContext()), delimiter=None)
    return [value for arrays in records for array in arrays for value in read_value(layout, Reader(array))]


def _are_pickles(values: list[object]) -> bool:
    return all(is_pickle(value.raw) for value in values)  # type: ignore[attr-defined]


def _are_texts(values: list[object]) -> bool:
    return all(isinstance(value, str) and (value.isprintable() or value.isspace()) for value in values)


def _are_longs(values: list[object]) -> bool:
    """Return whether at least one value is small, because doubles that are read as longs are all far from zero."""
    return not all(isinstance(value, int) and abs(value) >= _LARGE for value in values)


def _are_doubles(values: list[object]) -> bool:
    return all(isinstance(value, float) and (value == 0 or 1e-30 < abs(value) < 1e30) for value in values)


def _are_ints(values: list[object]) -> bool:
    numbers = [value for value in values if isinstance(value, int)]
    floats = [struct.unpack(">f", struct.pack(">i", value))[0] for value in numbers]
    return not all(math.isfinite(each) and 1e-9 < abs(each) < 1e12 for each in floats)


_GUESSES: tuple[tuple[str, Callable[[list[object]], bool]], ...] = (
    (PICKLED, _are_pickles),
    ("STRING", _are_texts),
    ("BIGINT", _are_longs),
    ("DOUBLE", _are_doubles),
    ("INT", _are_ints),
    ("FLOAT", _are_doubles),
    ("SMALLINT", bool),
    ("TINYINT", bool),
)
"""Words in the order in which they are tried, each with a test of the decoded values."""
_MARKED = 2
"""Number of words at the beginning of `_GUESSES` whose values store their length."""


class State(ABC):
    """A state of an operator.

    Attributes:
        operator: the operator.
        subtask_states: the state of each subtask that has it.
    """

    subtask_states: Sequence[StateOfSubtask]

    def __init__(self, operator: OperatorFiles) -> None:
        self.operator = operator

    def __repr__(self) -> str:
        return f"<State {self._describe()}>"

    def _repr_html_(self) -> str:
        """Show the columns, or why there are none, in notebooks."""
        caption = f"{self._describe()}, {self.kind}"
        try:
            rows = [(field.name, str(field.type)) for field in self.schema]
        except StateError as error:
            return make_html_table(caption, ("error",), [(str(error),)], 1)
        return make_html_table(caption, ("column", "type"), rows, len(rows))

    def _describe(self) -> str:
        """Describe the state in one line; nothing more is read, as the headers of files were read before."""
        return f"{self.name} of {self.operator.label}, {format_count(len(self.subtask_states), 'subtask')}"

    @property
    @abstractmethod
    def info(self) -> StateMetaInfo:
        """Name, kind and serializers, as the first subtask wrote them."""

    @property
    @abstractmethod
    def kind(self) -> StateKind:
        """Kind of the state.

        VALUE, LIST, MAP, REDUCING, AGGREGATING or TIMER of keyed state; SPLIT_DISTRIBUTE, UNION or BROADCAST of
        operator state; RAW of state that only its operator knows; IN_FLIGHT of network buffers.
        """

    @property
    def name(self) -> str:
        """State name."""
        return self.info.name

    @property
    def python_name(self) -> str:
        """Name in Python of a state of a Python function, else empty."""
        return python_name(self.info)

    @property
    def label(self) -> str:
        """The name under which the state is shown: that in Python, if any."""
        return self.python_name or self.name

    @property
    def serializer(self) -> Serializer:
        """Serializer of the value; of list and map state, the serializer of the whole list or map."""
        return self.info.value_serializer

    @property
    @abstractmethod
    def is_keyed(self) -> bool:
        """Whether the state belongs to keys."""

    @abstractmethod
    def make_schema(self, options: TableOptions | None = None) -> pa.Schema:
        """Schema of the batches under `options`."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the table of all columns."""
        return self.make_schema()

    @property
    @abstractmethod
    def undecoded(self) -> str:
        """Reason why tables of this state hold raw bytes; empty when they hold decoded values."""

    @abstractmethod
    def batches(
        self, options: TableOptions | None = None, key_groups: KeyGroupRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the state, one record batch at a time.

        Args:
            options: selection of columns; by default all, decoded.
            key_groups: key groups to read, for keyed state only; by default all.

        Raises:
            StateError: the state cannot be read; names file, offset, operator and state.
        """

    def to_arrow(self, options: TableOptions | None = None, key_groups: KeyGroupRange | None = None) -> pa.Table:
        """The state as one table, see `batches`."""
        return pa.Table.from_batches(self.batches(options, key_groups), self.make_schema(options))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the state as a stream of the Arrow PyCapsule interface, one batch at a time.

        So `pyarrow.table(state)`, `pyarrow.RecordBatchReader.from_stream(state)`, polars, DuckDB and pandas 3 take a
        state directly; those that read streams do not hold all of it in memory.

        Args:
            requested_schema: capsule of the schema that the consumer wants: the same columns with types to which Arrow
                can cast, such as `large_string`.

        Raises:
            StateError: the state has no table. Later errors of reading reach the consumer as errors of its own, with
                the same text.
            pyarrow.ArrowException: the state cannot be cast to the requested schema.
        """
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    @abstractmethod
    def count(self) -> StateStatistics:
        """Count the entries and bytes of the state by reading it, without decoding values."""
