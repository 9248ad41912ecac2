"""Stores of entries by key: their interface, the store on the heap, codecs of values, and changes of serializers.

* `EntryStore`: maps record keys to record values, per state (`Entries`, `MapEntries`). Both have the bytes of the
  canonical format (see `keyed.record_layout`): the record key is the key-group prefix, the key, the namespace and, of
  map state, the map key. Restoring and snapshotting therefore move bytes and decode nothing.
* `HeapStore`: the store in memory.
* `ValueCodec`, `make_codec`: single keys and values to bytes and back, by functions that are chosen once per state. The
  scalar codec walks the layout for every value. Live state handles the same few layouts record by record, so that
  numbers, texts and structs of them have their own functions here; every other layout, and every value that is not
  plain, goes through the scalar codec, which also raises the errors.
* `ValueChange`, `resolve_keyed`, `resolve_operator`: the four outcomes of registering restored state with new
  serializers, with the errors in Flink's words. Source: `RocksDBKeyedStateBackend.updateRestoredStateMetaInfo`,
  `HeapKeyedStateBackend.tryRegisterStateTable`, `AbstractKeyedStateBackend`, `DefaultOperatorStateBackend`.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from itertools import chain
from operator import mul
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import numpy as np

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import StateError, StateMigrationError, UnsupportedError, UsageError, Where
from state_pipelines.keyed.hashing.value_hashes import make_key_hasher
from state_pipelines.keyed.key_groups import assign_key_group, decode_prefixes, encode_prefix, key_group_prefix_size
from state_pipelines.keyed.record_layout import KeyedRecords
from state_pipelines.serializers import tree
from state_pipelines.serializers.compatibility import Outcome, resolve, wrap_ttl_aware
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BackendStateType, BasicKind, MapOf, StateKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from state_pipelines.codecs.layout import LayoutContext
    from state_pipelines.keyed.hashing.class_hashes import HashExpression
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

MeasureHead: TypeAlias = "Callable[[bytes], int]"
"""Length of the head of a record key of map state: key-group prefix, key and namespace, without the map key."""

DELIMITER = b","
"""Byte between the elements of list state (`ListDelimitedSerializer`)."""


@dataclass(frozen=True)
class StateSettings:
    """Settings of a state that no snapshot stores, only a log of its changes.

    Attributes:
        ttl_config: `StateTtlConfig` as a Java serialization stream; None without TTL, or if it is not known.
        default_value: bytes of the default value; None if there is none.
    """

    ttl_config: bytes | None = None
    default_value: bytes | None = None


NO_SETTINGS = StateSettings()


class EntryKind(Enum):
    """Kinds of entries, by the operations that they support."""

    VALUE = "value"
    """One value: VALUE, REDUCING and AGGREGATING state; also timers, whose values are empty."""
    LIST = "list"
    """Elements that are appended."""
    MAP = "map"
    """An entry per map key, found by the head of their record keys."""


def find_entry_kind(info: StateMetaInfo) -> EntryKind:
    """Return the kind of the entries of a state."""
    if info.backend_type is BackendStateType.KEY_VALUE and info.state_type in (StateKind.LIST, StateKind.MAP):
        return EntryKind[info.state_type]
    return EntryKind.VALUE


class Entries(Protocol):
    """Entries of a state with one entry per key and namespace."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value of a record key; None when there is none."""

    def put(self, key: bytes, value: bytes, /) -> None:
        """Set the value of a record key."""

    def delete(self, key: bytes, /) -> None:
        """Remove an entry, if there is one."""

    def append(self, key: bytes, element: bytes, /) -> None:
        """Append one element to a list, or several that are joined by `DELIMITER`."""

    def keys(self) -> Iterator[bytes]:
        """Record keys at the time of the call; changes during the iteration are allowed."""


class MapEntries(Protocol):
    """Entries of map state; the head of their record keys is key-group prefix, key and namespace."""

    def get(self, head: bytes, map_key: bytes, /) -> bytes | None:
        """The value of a map key; None when there is none."""

    def put(self, head: bytes, map_key: bytes, value: bytes, /) -> None:
        """Set the value of a map key."""

    def delete(self, head: bytes, map_key: bytes, /) -> None:
        """Remove a map key, if it is there."""

    def scan(self, head: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Map keys and values at the time of the call; changes during the iteration are allowed."""

    def delete_all(self, head: bytes, /) -> None:
        """Remove all map keys."""

    def keys(self) -> Iterator[bytes]:
        """Heads with at least one map key at the time of the call, each once; changes are allowed meanwhile."""


class EntryStore(Protocol):
    """Entries of the states of one subtask."""

    @property
    def is_heap(self) -> bool:
        """Return whether Flink's heap backend has such a store; its rules and messages for new serializers differ."""

    def register(self, info: StateMetaInfo, layout: KeyedLayout, settings: StateSettings = NO_SETTINGS) -> None:
        """Note serializers, layout and settings of a state, before its entries are opened."""

    def open_entries(self, name: str, kind: EntryKind) -> Entries:
        """Open the entries of a state other than map state, with the records that were loaded before."""

    def open_map(self, name: str, measure_head: MeasureHead) -> MapEntries:
        """Open the entries of a map state, with the records that were loaded before."""

    def load(self, name: str, records: KeyedRecords) -> None:
        """Add records to a state that is not open; they replace records with the same keys."""

    def records(self, name: str, key_groups: KeyGroupRange) -> Iterator[KeyedRecords]:
        """Records of a state in batches, ascending by key group; no batches for an unknown state."""

    def drop(self, name: str) -> None:
        """Remove a state and its entries."""

    def close(self) -> None:
        """Release everything that the store holds; the entries are lost."""


BATCH = 1 << 16
"""Number of records from which on a batch ends with its current key group."""

NAME = "live state"
"""File name of records that come from no file, in errors."""


def make_records(entries: Sequence[tuple[bytes, bytes]], prefix: int) -> KeyedRecords:
    """Make records of (record key, value) pairs, in their order.

    Args:
        entries: record keys with the key-group prefix.
        prefix: bytes of the prefix, 1 or 2.
    """
    count = len(entries)
    data = np.frombuffer(b"".join(chain.from_iterable(entries)), np.uint8)
    lengths = np.fromiter((len(side) for entry in entries for side in entry), np.int64, 2 * count)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    key_starts = starts[::2]
    groups = decode_prefixes(data, key_starts, prefix)
    return KeyedRecords(groups, data, key_starts + prefix, ends[::2], starts[1::2], ends[1::2], 0, NAME)


def split_records(records: KeyedRecords, prefix: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield (record key, value) for each record; the inverse of `make_records`."""
    view = records.data.data
    heads = {group: encode_prefix(group, prefix) for group in np.unique(records.key_groups).tolist()}
    spans = (records.key_groups, records.key_starts, records.key_ends, records.value_starts, records.value_ends)
    for group, key, key_end, value, value_end in zip(*(span.tolist() for span in spans), strict=True):
        yield heads[group] + bytes(view[key:key_end]), bytes(view[value:value_end])


def batch_key_groups(groups: Iterable[Sequence[tuple[bytes, bytes]]], prefix: int) -> Iterator[KeyedRecords]:
    """Yield batches with the records of whole key groups; small key groups share a batch.

    Args:
        groups: entries of each key group, ascending.
        prefix: bytes of the key-group prefix.
    """
    held: list[tuple[bytes, bytes]] = []
    for entries in groups:
        held += entries
        if len(held) >= BATCH:
            yield make_records(held, prefix)
            held = []
    if held:
        yield make_records(held, prefix)


class HeapValues:
    """Entries of a state with one value per record key, in memory."""

    get: Callable[[bytes], bytes | None]
    put: Callable[[bytes, bytes], None]

    def __init__(self, content: dict[bytes, bytes]) -> None:
        self.content = content
        # Bind the methods of the dictionary itself, without a call in between.
        self.get = content.get
        self.put = content.__setitem__

    def delete(self, key: bytes, /) -> None:
        """Remove the entry of a record key, if there is one."""
        self.content.pop(key, None)

    def append(self, key: bytes, element: bytes, /) -> None:
        """Append one element to the list of a record key, or several that are joined by `DELIMITER`."""
        old = self.content.get(key)
        self.content[key] = element if old is None else old + DELIMITER + element

    def keys(self) -> Iterator[bytes]:
        """Yield the record keys at the time of the call; changes during the iteration are allowed."""
        return iter(list(self.content))

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (record key, value) for each entry."""
        return iter(self.content.items())


class HeapLists:
    """Entries of list state, in memory; an append does not copy the elements that the list has."""

    def __init__(self, content: dict[bytes, bytes]) -> None:
        self._lists: dict[bytes, list[bytes]] = {key: [value] for key, value in content.items()}

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value of a record key; None when there is none."""
        elements = self._lists.get(key)
        if elements is None:
            return None
        if len(elements) > 1:
            elements[:] = [DELIMITER.join(elements)]
        return elements[0]

    def put(self, key: bytes, value: bytes, /) -> None:
        """Set the value of a record key."""
        self._lists[key] = [value]

    def delete(self, key: bytes, /) -> None:
        """Remove the entry of a record key, if there is one."""
        self._lists.pop(key, None)

    def append(self, key: bytes, element: bytes, /) -> None:
        """Append one element to the list of a record key, or several that are joined by `DELIMITER`."""
        elements = self._lists.get(key)
        if elements is None:
            self._lists[key] = [element]
        else:
            elements.append(element)

    def keys(self) -> Iterator[bytes]:
        """Yield the record keys at the time of the call; changes during the iteration are allowed."""
        return iter(list(self._lists))

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (record key, value) for each entry."""
        return ((key, DELIMITER.join(elements)) for key, elements in self._lists.items())


class HeapMaps:
    """Entries of map state: a dictionary per head."""

    def __init__(self, content: dict[bytes, bytes], measure_head: MeasureHead) -> None:
        self._maps: dict[bytes, dict[bytes, bytes]] = {}
        for key, value in content.items():
            size = measure_head(key)
            self.put(key[:size], key[size:], value)

    def get(self, head: bytes, map_key: bytes, /) -> bytes | None:
        """Return the value of a map key; None when there is none."""
        entries = self._maps.get(head)
        return None if entries is None else entries.get(map_key)

    def put(self, head: bytes, map_key: bytes, value: bytes, /) -> None:
        """Set the value of a map key."""
        entries = self._maps.get(head)
        if entries is None:
            self._maps[head] = {map_key: value}
        else:
            entries[map_key] = value

    def delete(self, head: bytes, map_key: bytes, /) -> None:
        """Remove a map key, if it is there."""
        entries = self._maps.get(head)
        if entries is not None:
            entries.pop(map_key, None)
            if not entries:
                del self._maps[head]

    def scan(self, head: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Yield map keys and values at the time of the call; changes during the iteration are allowed."""
        return iter(list(self._maps.get(head, {}).items()))

    def delete_all(self, head: bytes, /) -> None:
        """Remove all map keys of a head."""
        self._maps.pop(head, None)

    def keys(self) -> Iterator[bytes]:
        """Yield the heads with at least one map key at the time of the call; changes are allowed meanwhile."""
        return iter(list(self._maps))

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (record key, value) for each entry."""
        return ((head + key, value) for head, entries in self._maps.items() for key, value in entries.items())


HeapEntries: TypeAlias = HeapValues | HeapLists | HeapMaps


class HeapStore:
    """Entries of all states in memory.

    Args:
        prefix: bytes of the key-group prefix, 1 or 2.
    """

    is_heap: ClassVar[bool] = True

    def __init__(self, prefix: int) -> None:
        self._prefix = prefix
        self._loaded: dict[str, dict[bytes, bytes]] = {}
        self._open: dict[str, HeapEntries] = {}

    def register(self, info: StateMetaInfo, layout: KeyedLayout, settings: StateSettings = NO_SETTINGS) -> None:
        """Do nothing: this store holds bytes, and needs no serializers."""

    def open_entries(self, name: str, kind: EntryKind) -> HeapValues | HeapLists:
        """Open the entries of a state other than map state, with the records that were loaded before."""
        opened = self._open.get(name)
        if opened is None:
            content = self._loaded.pop(name, {})
            opened = self._open[name] = HeapLists(content) if kind is EntryKind.LIST else HeapValues(content)
        if isinstance(opened, HeapMaps):
            raise UsageError(
                "the state is open as map state, and cannot be opened as another type", where=Where(state=name)
            )
        return opened

    def open_map(self, name: str, measure_head: MeasureHead) -> HeapMaps:
        """Open the entries of a map state, with the records that were loaded before."""
        opened = self._open.get(name)
        if opened is None:
            opened = self._open[name] = HeapMaps(self._loaded.pop(name, {}), measure_head)
        if not isinstance(opened, HeapMaps):
            raise UsageError(
                "the state is open as another type, and cannot be opened as map state", where=Where(state=name)
            )
        return opened

    def load(self, name: str, records: KeyedRecords) -> None:
        """Add records to a state that is not open; they replace records with the same keys."""
        if name in self._open:
            raise UsageError("records must be loaded before the state is opened", where=Where(state=name))
        self._loaded.setdefault(name, {}).update(split_records(records, self._prefix))

    def records(self, name: str, key_groups: KeyGroupRange) -> Iterator[KeyedRecords]:
        """Yield the records of a state in batches, ascending by key group; no batches for an unknown state."""
        groups: dict[int, list[tuple[bytes, bytes]]] = {key_group: [] for key_group in key_groups}
        for entry in self._items(name):
            group = int.from_bytes(entry[0][: self._prefix], "big")
            if group in groups:
                groups[group].append(entry)
        return batch_key_groups((groups.pop(key_group) for key_group in key_groups), self._prefix)

    def drop(self, name: str) -> None:
        """Remove a state and its entries."""
        self._open.pop(name, None)
        self._loaded.pop(name, None)

    def close(self) -> None:
        """Release everything that the store holds; the entries are lost."""
        self._open.clear()
        self._loaded.clear()

    def _items(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        if name in self._open:
            return self._open[name].items()
        return iter(self._loaded.get(name, {}).items())


def read_clock() -> int:
    """Return the time in epoch milliseconds, as Java's `System.currentTimeMillis`."""
    return time.time_ns() // 1_000_000


Value: TypeAlias = Any
Encode: TypeAlias = "Callable[[Value], bytes]"
Decode: TypeAlias = "Callable[[bytes], Value]"

_INTEGERS = {"i8": ">b", "i16": ">h", "i32": ">i", "i64": ">q"}
_SHORT = 127
"""Largest number (length of a text + 1) that is stored in one byte."""
_ORDERED = -(1 << 63)


@dataclass(frozen=True)
class ValueCodec:
    """Functions that encode and decode the values of one layout.

    Attributes:
        encode: value of the scalar codec -> bytes. Raises ValueRangeError for a value that does not fit the layout.
        decode: all bytes of a value -> value. Raises FormatError for bytes that do not fit the layout.
        width: number of bytes of every value; None if it varies.
    """

    encode: Encode
    decode: Decode
    width: int | None


def make_codec(layout: lay.Layout) -> ValueCodec:
    """Make the codec of a layout."""
    encode, decode = _generic(layout)
    match layout:
        case lay.Primitive(kind=kind) if kind in _INTEGERS:
            encode, decode = _integers(_INTEGERS[kind], encode, decode)
        case lay.Primitive(kind=lay.PrimitiveKind.F64):
            encode, decode = _doubles(encode, decode)
        case lay.Text(nullable=True):
            encode, decode = _texts(encode, decode)
        case lay.Constant(raw=raw, empty=False):
            encode, decode = _constants(raw, encode, decode)
        case lay.Logical(name=lay.LogicalKind.ORDERED_I64):
            encode, decode = _ordered(encode, decode)
        case lay.Struct(fields=fields) if fields:
            encode, decode = _structs([(name, make_codec(field)) for name, field in fields], encode, decode)
        case lay.Optional(inner=inner, padding=0):
            encode, decode = _optionals(layout.null_flag, make_codec(inner), encode, decode)
    return ValueCodec(encode, decode, lay.fixed_width(layout))


def make_list_functions(layout: lay.Layout) -> tuple[Encode, Decode]:
    """Return functions that encode one element, and decode all elements of a list (`Delimited`, `Runs`)."""
    whole = make_codec(layout)
    element = layout.written if isinstance(layout, lay.Runs) else layout
    assert isinstance(element, lay.Delimited)
    codec = make_codec(element.element)
    if isinstance(layout, lay.Runs):
        # Encode each element as an array of its own; decode arrays of several elements, as PyFlink writes them, too.
        return codec.encode, whole.decode
    width, decode_element = codec.width, codec.decode
    if not width:
        return codec.encode, whole.decode
    step = width + len(DELIMITER)

    def decode(data: bytes) -> Value:
        if (len(data) + len(DELIMITER)) % step or data[width::step].strip(DELIMITER):
            return whole.decode(data)
        return [decode_element(data[start : start + width]) for start in range(0, len(data), step)]

    return codec.encode, decode


def make_head_measure(head: lay.Struct, prefix: int) -> MeasureHead:
    """Return a function that finds the length of the head of a record key of map state.

    Args:
        head: layout of key and namespace.
        prefix: bytes of the key-group prefix.
    """
    (_, key), (_, namespace) = head.fields
    width, rest = lay.fixed_width(key), lay.fixed_width(namespace)

    def measure(record_key: bytes) -> int:
        reader = Reader(record_key, None, prefix)
        read_value(head, reader, tail=False)
        return reader.position

    def measure_text(record_key: bytes) -> int:
        # The first byte of a short text is its length + 1, and every ASCII character is one byte.
        end = prefix + record_key[prefix]
        if prefix < end and record_key[prefix] <= _SHORT and record_key[prefix:end].isascii():
            return end + (rest or 0)
        return measure(record_key)

    if rest is None:
        return measure
    if width is not None:
        fixed = prefix + width + rest
        return lambda record_key: fixed
    return measure_text if key == lay.Text() else measure


def _generic(layout: lay.Layout) -> tuple[Encode, Decode]:
    def encode(value: Value) -> bytes:
        writer = Writer()
        write_value(layout, writer, value)
        return writer.getvalue()

    def decode(data: bytes) -> Value:
        reader = Reader(data)
        value = read_value(layout, reader)
        reader.expect_end("the value")
        return value

    return encode, decode


def _integers(struct_format: str, encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    packing = struct.Struct(struct_format)
    pack, unpack, size = packing.pack, packing.unpack, packing.size

    def encode_integer(value: Value) -> bytes:
        if type(value) is int:
            try:
                return pack(value)
            except struct.error:
                pass
        return encode(value)

    def decode_integer(data: bytes) -> Value:
        return unpack(data)[0] if len(data) == size else decode(data)

    return encode_integer, decode_integer


def _doubles(encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    packing = struct.Struct(">d")
    pack, unpack = packing.pack, packing.unpack

    def encode_double(value: Value) -> bytes:
        return pack(value) if type(value) is float else encode(value)

    def decode_double(data: bytes) -> Value:
        return unpack(data)[0] if len(data) == packing.size else decode(data)

    return encode_double, decode_double


def _texts(encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    heads = [bytes([size]) for size in range(_SHORT + 1)]

    def encode_text(value: Value) -> bytes:
        if type(value) is str and value.isascii() and len(value) < _SHORT:
            return heads[len(value) + 1] + value.encode("ascii")
        return encode(value)

    def decode_text(data: bytes) -> Value:
        # The first byte is the length + 1, and every ASCII character one byte.
        if data and data[0] == len(data) and data[0] <= _SHORT and data.isascii():
            return data[1:].decode("ascii")
        return decode(data)

    return encode_text, decode_text


def _constants(raw: bytes, encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    def encode_constant(value: Value) -> bytes:
        return raw if value is None else encode(value)

    def decode_constant(data: bytes) -> Value:
        return None if data == raw else decode(data)

    return encode_constant, decode_constant


def _ordered(encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    packing = struct.Struct(">q")
    pack, unpack = packing.pack, packing.unpack

    def encode_ordered(value: Value) -> bytes:
        if type(value) is int:
            try:
                return pack(value ^ _ORDERED)
            except struct.error:
                pass
        return encode(value)

    def decode_ordered(data: bytes) -> Value:
        return unpack(data)[0] ^ _ORDERED if len(data) == packing.size else decode(data)

    return encode_ordered, decode_ordered


def _structs(fields: list[tuple[str, ValueCodec]], encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    """Return faster functions for structs of which at most the last field varies in width; else the given functions."""
    if any(codec.width is None for _, codec in fields[:-1]):
        return encode, decode
    count = len(fields)
    writers = [(name, codec.encode) for name, codec in fields]
    spans, start = [], 0
    for name, codec in fields[:-1]:
        spans.append((name, codec.decode, start, start + (codec.width or 0)))
        start += codec.width or 0
    last, decode_last = fields[-1][0], fields[-1][1].decode
    fixed = start

    def encode_struct(value: Value) -> bytes:
        if type(value) is dict and len(value) == count:
            try:
                return b"".join([write(value[name]) for name, write in writers])
            except (KeyError, StateError):
                pass  # The scalar codec names the field.
        return encode(value)

    def decode_struct(data: bytes) -> Value:
        if len(data) < fixed:
            return decode(data)
        try:
            values = {name: read(data[begin:end]) for name, read, begin, end in spans}
            values[last] = decode_last(data[fixed:])
        except StateError:
            return decode(data)
        return values

    return encode_struct, decode_struct


def _optionals(null: int, inner: ValueCodec, encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    absent, present = bytes([null]), bytes([1 - null])
    encode_inner, decode_inner = inner.encode, inner.decode

    def encode_optional(value: Value) -> bytes:
        return absent if value is None else present + encode_inner(value)

    def decode_optional(data: bytes) -> Value:
        return decode_inner(data[1:]) if data[:1] == present else decode(data)

    return encode_optional, decode_optional


MAP_KEY_WORDS = (
    "The new serializer for a MapState requires state migration in order for the job to proceed, since the key schema "
    "has changed. However, migration for MapState currently only allows value schema evolutions."
)


class ValueChange(Enum):
    """Effects of a new serializer on the stored values."""

    NONE = "the bytes stay"
    REWRITE = "values are decoded with the old serializer and encoded with the new one"


def check_keys(old: Serializer, new: Serializer) -> None:
    """Refuse a key serializer that does not read the bytes of the old one; keys never migrate.

    Raises:
        StateMigrationError: the serializers are not compatible.
        UnsupportedError: compatibility cannot be determined, or Flink would reconfigure the serializer.
    """
    outcome = _judge(old, new, "key")
    if outcome is not Outcome.AS_IS:
        words = (
            f"The new key serializer ({describe(new)}) must be compatible with the previous key serializer "
            f"({describe(old)})."
        )
        raise _refuse(outcome, words, "")


def resolve_keyed(old: StateMetaInfo, new: StateMetaInfo, *, is_heap: bool) -> ValueChange:
    """Find out what a new registration of a restored keyed state does to its values.

    Args:
        old: the restored state.
        new: the state as it is registered.
        is_heap: apply the rules of the heap backend: it migrates map keys too, and its messages differ a little.

    Raises:
        UsageError: the state is of another kind or type.
        StateMigrationError: the serializers are not compatible; the message is Flink's.
        UnsupportedError: compatibility cannot be determined, or Flink would reconfigure a key or namespace serializer.
    """
    if old == new:
        return ValueChange.NONE
    if old.backend_type is not new.backend_type:
        raise UsageError(
            f"the restored state is {old.backend_type} state, but it is registered as {new.backend_type} state"
        )
    if new.backend_type is BackendStateType.PRIORITY_QUEUE:
        outcome = _judge(old.element, new.element, "timer")
        if outcome is not Outcome.AS_IS:
            raise _refuse(outcome, "The new priority queue serializer must not be incompatible.", old.name)
        return ValueChange.NONE
    the = "For heap backends, the" if is_heap else "The"
    before, after = old.namespace_serializer, new.namespace_serializer
    outcome = _judge(before, after, "namespace")
    if outcome is not Outcome.AS_IS:
        words = (
            f"{the} new namespace serializer ({describe(after)}) must be compatible with the old namespace serializer "
            f"({describe(before)})."
        )
        raise _refuse(outcome, words, old.name)
    if old.state_type != new.state_type:
        raise UsageError(
            f"Incompatible key/value state types. Was [{old.state_type}], registered with [{new.state_type}].",
            where=Where(state=old.name),
        )
    before, after = wrap_ttl_aware(old.value_serializer), wrap_ttl_aware(new.value_serializer)
    outcome = _judge(before, after, "value")
    if outcome in (Outcome.INCOMPATIBLE, Outcome.UNDETERMINED):
        words = (
            f"{the} new state serializer ({describe(new.value_serializer)}) must not be incompatible with the old "
            f"state serializer ({describe(old.value_serializer)})."
        )
        raise _refuse(outcome, words, old.name)
    if outcome is Outcome.AS_IS:
        return ValueChange.NONE
    # Not checked for the heap backend: it holds map keys and values as objects, and writes both with the new
    # serializer.
    if isinstance(before, MapOf) and isinstance(after, MapOf) and not is_heap:
        keys = _judge(before.key, after.key, "map_key")
        if keys is not Outcome.AS_IS:
            raise _refuse(keys, MAP_KEY_WORDS, old.name)
    return ValueChange.REWRITE


def resolve_operator(old: StateMetaInfo, new: StateMetaInfo) -> ValueChange:
    """Find out what a new registration of a restored list or broadcast state does to its values.

    Raises:
        UsageError: the state is of another kind, or its distribution mode differs.
        StateMigrationError: the serializers are not compatible; the message is Flink's.
        UnsupportedError: compatibility cannot be determined.
    """
    if old == new:
        return ValueChange.NONE
    if old.backend_type is not new.backend_type:
        raise UsageError(
            f"the restored state is {old.backend_type} state, but it is registered as {new.backend_type} state"
        )
    if old.distribution_mode != new.distribution_mode:
        raise UsageError(
            f"Incompatible state assignment modes. Was [{old.distribution_mode}], registered with "
            f"[{new.distribution_mode}]",
            where=Where(state=old.name),
        )
    is_list = new.backend_type is BackendStateType.OPERATOR
    sides = [("state typeSerializer for operator", old.value_serializer, new.value_serializer)]
    if not is_list:
        sides = [
            ("key typeSerializer for broadcast", old.key_serializer, new.key_serializer),
            ("value typeSerializer for broadcast", old.value_serializer, new.value_serializer),
        ]
    outcomes = []
    for words, before, after in sides:
        outcome = _judge(before, after, "value")
        if outcome in (Outcome.INCOMPATIBLE, Outcome.UNDETERMINED):
            raise _refuse(outcome, f"The new {words} state must not be incompatible.", old.name)
        outcomes.append(outcome)
    return ValueChange.NONE if set(outcomes) == {Outcome.AS_IS} else ValueChange.REWRITE


def _judge(old: Serializer, new: Serializer, path: str) -> Outcome:
    return Outcome.AS_IS if old == new else resolve(old, new, path).outcome


def _refuse(outcome: Outcome, words: str, state: str) -> StateMigrationError | UnsupportedError:
    where = Where(state=state or None)
    if outcome in (Outcome.UNDETERMINED, Outcome.RECONFIGURED):
        return UnsupportedError(
            f"a new serializer with the outcome {outcome} is not supported here: {words}",
            where=where,
            hint="Keep the old serializer, or change it in a migration of the snapshot",
        )
    return StateMigrationError(
        words, where=where, hint="Keep the old serializer, or change it in a migration of the snapshot"
    )


class CurrentKey:
    """The current key; states build their record keys from it.

    Args:
        keys: encodes the keys of the operator.
        key_groups: range of the subtask.

    Attributes:
        value: the key; None when no key is set.
        key_group: its key group; -1 when no key is set.
        raw: bytes of the key.
        plain: key-group prefix and key; None when no key is set.
    """

    __slots__ = ("_measured", "_prefixes", "_range", "_start", "key_group", "keys", "plain", "raw", "value")

    def __init__(self, keys: KeyContext, key_groups: KeyGroupRange) -> None:
        self.keys = keys
        self._range = key_groups
        self._start = key_groups.start
        self._prefixes = [encode_prefix(key_group, keys.prefix) for key_group in key_groups]
        self.clear()

    def clear(self) -> None:
        """Leave the keyed context: no key is set any more."""
        self.value: Any = None
        self.key_group = -1
        self.raw = b""
        self.plain: bytes | None = None
        self._measured: bytes | None = None

    def set(self, value: Any) -> None:
        """Make a key the current one.

        Raises:
            UsageError: the key is null, or its key group is not in the range of the subtask.
            ValueRangeError: the key does not fit its serializer.
        """
        if value is None:
            raise UsageError("Assigned key must not be null!")
        raw = self.keys.encode(value)
        key_group = self.keys.find_key_group(value, raw)
        offset = key_group - self._start
        if not 0 <= offset < len(self._prefixes):
            # The message is that of `KeyGroupRangeOffsets.newIllegalKeyGroupException`.
            raise UsageError(
                f"Key group {key_group} is not in KeyGroupRange{{startKeyGroup={self._start}, "
                f"endKeyGroup={self._range.end}}}. Unless you're directly using low level state access APIs, this is "
                "most likely caused by non-deterministic shuffle key (hashCode and equals implementation)."
            )
        self.value, self.key_group, self.raw = value, key_group, raw
        self.plain = self._prefixes[offset] + raw
        self._measured = None

    @property
    def measured(self) -> bytes | None:
        """Key-group prefix, key and length of the key, for states whose namespace is of variable length like the key.

        None when no key is set. Source: `CompositeKeySerializationUtils.writeLengthFrom`.
        """
        if self._measured is None and self.plain is not None:
            size = len(self.raw)
            self._measured = self.plain + size.to_bytes(max(1, (size.bit_length() + 7) // 8), "little")
        return self._measured


HashKey: TypeAlias = "Callable[[Value, bytes], int]"
"""Java hash code of a key, given as value and as bytes; any number that is the same modulo 2**32."""

_MASK = 0xFFFFFFFF
_REMEMBERED = 1 << 16
_POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in range(256))


class KeyContext:
    """Encodes keys and finds their key groups.

    Args:
        serializer: serializer of the keys.
        max_parallelism: number of key groups.
        layouts: context of data layouts, such as the version of Kryo.
        hashes: `hashCode` of user classes, by class name (see `keyed.hashing.value_hashes`).

    Raises:
        UsageError: values of the type cannot be keys.
    """

    def __init__(
        self,
        serializer: Serializer,
        max_parallelism: int,
        layouts: LayoutContext,
        hashes: Mapping[str, HashExpression] | None = None,
    ) -> None:
        self.serializer = serializer
        self.max_parallelism = max_parallelism
        self.prefix = key_group_prefix_size(max_parallelism)
        codec = make_codec(derive_layout(serializer, layouts))
        self.encode = codec.encode
        self._hash = _make_hash(serializer, layouts, hashes)

    def find_key_group(self, value: Value, raw: bytes) -> int:
        """Return the key group of a key; `raw` has the bytes of `value`.

        Raises:
            UnsupportedError: the hash of a class is not known.
        """
        return assign_key_group(self._hash(value, raw), self.max_parallelism)


def _make_hash(serializer: Serializer, layouts: LayoutContext, hashes: Mapping[str, HashExpression] | None) -> HashKey:
    try:
        hasher = make_key_hasher(serializer, layouts, hashes)
    except UnsupportedError as error:
        # State with such keys can be restored and written, because records have key groups. Only setting a key fails.
        return partial(_refuse_key, error)
    match serializer:
        case tree.Basic(kind=BasicKind.STRING):
            return _hash_text
        case tree.Basic(kind=BasicKind.LONG):
            return _hash_long
        case tree.Basic(kind=BasicKind.INT | BasicKind.SHORT | BasicKind.BYTE):
            return _hash_int

    @lru_cache(maxsize=_REMEMBERED)
    def hash_bytes(raw: bytes) -> int:
        data = np.frombuffer(raw, np.uint8)
        return int(hasher.hash_spans(data, np.zeros(1, np.int64), np.full(1, len(raw), np.int64))[0])

    return lambda value, raw: hash_bytes(raw)


def _refuse_key(error: UnsupportedError, value: Value, raw: bytes) -> int:
    raise error


def _hash_text(value: str | None, raw: bytes) -> int:
    """Compute Java's `String.hashCode` of a key, a polynomial of the UTF-16 units; 0 for null."""
    if value is None:
        return 0
    units = (
        value.encode("ascii") if value.isascii() else memoryview(value.encode("utf-16-le", "surrogatepass")).cast("H")
    )
    code = 0
    for start in range(0, len(units), 256):
        block = units[start : start + 256]
        size = len(block)
        code = code * (_POWERS[size] if size < 256 else _POWERS[255] * 31)
        code = (code + sum(map(mul, block, _POWERS[size - 1 :: -1]))) & _MASK
    return code


def _hash_long(value: int, raw: bytes) -> int:
    """Compute Java's `Long.hashCode` of a key: the upper half exclusive-or the lower half."""
    return (value ^ (value >> 32)) & _MASK


def _hash_int(value: int, raw: bytes) -> int:
    """Compute Java's `Integer.hashCode` of a key: the number itself."""
    return value & _MASK
