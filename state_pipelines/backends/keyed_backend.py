"""Keyed state backend of one subtask (`AbstractKeyedStateBackend`): its states, its timers, and rewritten values.

* `KeyedStateBackend`: registers states and timers, restores and snapshots them.
* `StateTable`: one registered keyed state, seen from the current key of its backend. Values are those of the scalar
  codec (`codecs.scalar`). With TTL in the serializer they are structs of `last_access` and `value`; their expiry is
  decided elsewhere.
* `TimerQueue`: timers of one timer service and time domain (`InternalTimerServiceImpl`,
  `KeyGroupedInternalPriorityQueue`). Timers are stored as records of a priority queue, so that snapshots and restores
  move them like other state. An index in memory gives their order.
* `rewrite_values`: the values of a restored state with a new serializer, before the first access. Source:
  `RocksDBKeyedStateBackend.migrateStateValues`, `AbstractRocksDBState.migrateSerializedValue`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from state_pipelines.backends.entry_store import (
    DELIMITER,
    NAME,
    CurrentKey,
    EntryKind,
    KeyContext,
    StateSettings,
    Value,
    ValueChange,
    check_keys,
    find_entry_kind,
    make_codec,
    make_head_measure,
    make_list_functions,
    make_records,
    read_clock,
    resolve_keyed,
    split_records,
)
from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.layout import Struct
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.value_conversion import ValueConversion
from state_pipelines.errors import UnsupportedError, UsageError, ValueRangeError, Where, at
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.keyed_file import FileFormat, KeyedFormat, RecordContext, gather_key_groups
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.serializers.build import timer
from state_pipelines.serializers.state_meta_info import (
    TIMER_STATE,
    BackendStateType,
    as_key_value,
    join_infos,
    priority_queue,
)
from state_pipelines.serializers.tree import MapOf, StateKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from state_pipelines.backends.entry_store import Entries, EntryStore, MapEntries
    from state_pipelines.codecs.layout import Convert, LayoutContext
    from state_pipelines.keyed.hashing.class_hashes import HashExpression
    from state_pipelines.keyed.keyed_file import KeyedFile, Runs
    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer


@dataclass(frozen=True)
class LiveFile(KeyedFormat):
    """The records of a live store, read as a file; a scan may or may not see changes that are made meanwhile.

    Attributes:
        store: holds the entries; it cannot be sent to other processes, and neither can this file.
        header: key serializer and states.
        key_groups: range of the subtask, or a range inside of it.
        context: properties of the operator that are needed to read its records.
    """

    store: EntryStore
    header: KeyedHeader
    key_groups: KeyGroupRange
    context: RecordContext

    format: ClassVar[FileFormat] = FileFormat.LIVE
    needs_layouts: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the file in errors."""
        return NAME

    def scan(
        self, state_ids: Sequence[int], key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """Records of some states, state after state (see `KeyedFile.scan`)."""
        groups = self._cut(key_groups)
        for state_id in state_ids:
            for records in self.store.records(self.header.states[state_id].name, groups):
                yield state_id, records

    def scan_key_groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """All records, one key group after the other (see `KeyedFile.scan_key_groups`)."""
        groups = self._cut(key_groups)
        return gather_key_groups(
            {state_id: self.store.records(info.name, groups) for state_id, info in enumerate(self.header.states)}
        )

    def split(self, size: int, key_groups: KeyGroupRange | None = None) -> Iterator[Self]:
        """Yield a file per key group, because the size of a key group is unknown before it is read."""
        for key_group in self._cut(key_groups):
            yield replace(self, key_groups=KeyGroupRange(key_group, 1))

    def narrow(self, key_groups: KeyGroupRange) -> Self:
        """Return the file limited to some key groups."""
        return replace(self, key_groups=self._cut(key_groups))

    def _cut(self, key_groups: KeyGroupRange | None) -> KeyGroupRange:
        return self.key_groups if key_groups is None else self.key_groups.intersect(key_groups)


def rewrite_values(
    store: EntryStore,
    old: tuple[StateMetaInfo, KeyedLayout],
    new: tuple[StateMetaInfo, KeyedLayout],
    layouts: LayoutContext,
    key_groups: KeyGroupRange,
    now: Callable[[], int],
) -> None:
    """Decode all values of a loaded state with its old serializer and encode them with the new one.

    Args:
        store: holds the entries of the state, which is not open.
        old: the restored state, and its layout.
        new: the registered state, and its layout.
        layouts: context of data layouts, such as the version of Kryo.
        key_groups: range of the subtask.
        now: returns epoch milliseconds: the last access of values that get TTL.

    Raises:
        UnsupportedError: no conversion is known.
        FormatError: the bytes of a value do not fit the old serializer.
        ValueRangeError: a value does not fit the new serializer, or two map keys become equal.
    """
    name, prefix = new[0].name, new[1].prefix
    conversion = ValueConversion(layouts, now)
    rewrite, rewrite_key = _make_rewrite(old, new, conversion), _make_key_rewrite(old, new, conversion)
    if rewrite_key is None:
        for records in store.records(name, key_groups):
            entries = [(key, rewrite(value)) for key, value in split_records(records, prefix)]
            store.load(name, make_records(entries, prefix))
        return
    changed: dict[bytes, bytes] = {}
    for records in store.records(name, key_groups):
        for key, value in split_records(records, prefix):
            after = rewrite_key(key)
            if after in changed:
                raise ValueRangeError("two map keys of one key become the same map key", where=Where(state=name))
            changed[after] = rewrite(value)
    store.drop(name)
    store.load(name, make_records([*changed.items()], prefix))


def _make_key_rewrite(
    old: tuple[StateMetaInfo, KeyedLayout], new: tuple[StateMetaInfo, KeyedLayout], conversion: ValueConversion
) -> Callable[[bytes], bytes] | None:
    """Return a function that rewrites the map key in a record key; None if map keys stay as they are.

    Only the heap backend migrates map keys: `HeapKeyedStateBackend.tryRegisterStateTable` compares map serializers as
    a whole.
    """
    before, after = old[0].value_serializer, new[0].value_serializer
    if find_entry_kind(new[0]) is not EntryKind.MAP or not isinstance(before, MapOf) or not isinstance(after, MapOf):
        return None
    if before.key == after.key:
        return None
    convert = conversion.find(before.key, after.key)
    fields, new_fields = dict(old[1].key.fields), dict(new[1].key.fields)
    decode, encode = make_codec(fields["map_key"]).decode, make_codec(new_fields["map_key"]).encode
    measure = make_head_measure(Struct(old[1].key.fields[:2]), old[1].prefix)

    def rewrite(key: bytes) -> bytes:
        size = measure(key)
        return key[:size] + encode(convert(decode(key[size:])))

    return rewrite


def _make_rewrite(
    old: tuple[StateMetaInfo, KeyedLayout], new: tuple[StateMetaInfo, KeyedLayout], conversion: ValueConversion
) -> Callable[[bytes], bytes]:
    before, after = old[0].value_serializer, new[0].value_serializer
    kind = find_entry_kind(new[0])
    if old[1].is_declared or new[1].is_declared:
        raise UnsupportedError(
            "the type of a state of a Python function cannot change in a restore",
            hint="Register it with the type in the snapshot, or migrate the snapshot",
        )
    if kind is EntryKind.LIST:
        convert = conversion.find(old[0].element, new[0].element)
        _, decode = make_list_functions(old[1].value)
        encode, _ = make_list_functions(new[1].value)
        return lambda data: DELIMITER.join([encode(convert(each)) for each in decode(data)])
    if kind is EntryKind.MAP and isinstance(before, MapOf) and isinstance(after, MapOf):
        before, after = before.value, after.value
    convert = conversion.find(before, after)
    decode_value, encode_value = make_codec(old[1].value).decode, make_codec(new[1].value).encode
    if kind is EntryKind.MAP:
        convert = _keep_null(convert)
    return lambda data: encode_value(convert(decode_value(data)))


def _keep_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


_VALUES = (StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING)


class StateTable:
    """Values of one state under the current key; a namespace of None is the void namespace.

    Args:
        info: the registered state, of kind KEY_VALUE.
        layout: layout of its records; for state of PyFlink, the layout with the types of the values in its byte arrays.
        current: the current key of the backend.
        store: holds the entries.
    """

    def __init__(self, info: StateMetaInfo, layout: KeyedLayout, current: CurrentKey, store: EntryStore) -> None:
        self.info = info
        # PyFlink stores a value as a list of one byte array, so only a declared type shows that the state holds single
        # values.
        self.kind = EntryKind.VALUE if layout.is_declared and layout.state_type in _VALUES else find_entry_kind(info)
        self._layout = layout
        self._current = current
        fields = dict(layout.key.fields)
        self._is_measured = isinstance(fields["state_key"], lay.MeasuredKey)
        self._head_layout = lay.Struct(layout.key.fields[:2])
        namespace = make_codec(fields["state_namespace"])
        self._encode_namespace = namespace.encode
        void = fields["state_namespace"]
        self._void = void.raw if isinstance(void, lay.Constant) and not void.empty else None
        self._entries: Entries
        self._map: MapEntries
        if self.kind is EntryKind.MAP:
            map_key, map_value = make_codec(fields["map_key"]), make_codec(layout.value)
            self._encode_map_key, self._decode_map_key = map_key.encode, map_key.decode
            self._encode, self._decode = map_value.encode, map_value.decode
            self._map = store.open_map(info.name, make_head_measure(self._head_layout, layout.prefix))
            return
        if self.kind is EntryKind.LIST:
            self._encode, self._decode = make_list_functions(layout.value)
        else:
            value = make_codec(layout.value)
            self._encode, self._decode = value.encode, value.decode
        self._entries = store.open_entries(info.name, self.kind)

    @property
    def name(self) -> str:
        """State name."""
        return self.info.name

    def get(self, namespace: Value = None) -> Value:
        """The value under the current key; None when there is none.

        List state gives the list of its elements, map state a list of (map key, value).

        Raises:
            UsageError: no key is set.
            FormatError: the stored bytes do not fit the serializer.
        """
        if self.kind is EntryKind.MAP:
            return list(self.entries(namespace)) or None
        data = self._entries.get(self._find_head(namespace))
        return None if data is None else self._decode(data)

    def put(self, value: Value, namespace: Value = None) -> None:
        """Replace the value; None, an empty list and an empty map remove it (`InternalValueState`, `ListState.update`).

        Raises:
            UsageError: no key is set, or an element of a list is null.
            ValueRangeError: the value does not fit the serializer.
        """
        if self.kind is EntryKind.MAP:
            pairs = [] if value is None else self._encode_pairs(value)
            head = self._find_head(namespace)
            self._map.delete_all(head)
            for map_key, each in pairs:
                self._map.put(head, map_key, each)
            return
        if value is None:
            self._entries.delete(self._find_head(namespace))
        elif self.kind is EntryKind.LIST:
            joined = self._join(value)
            if joined:
                self._entries.put(self._find_head(namespace), joined)
            else:
                self._entries.delete(self._find_head(namespace))
        else:
            self._entries.put(self._find_head(namespace), self._encode(value))

    def remove(self, namespace: Value = None) -> None:
        """Remove the value, all elements or all map entries.

        Raises:
            UsageError: no key is set.
        """
        if self.kind is EntryKind.MAP:
            self._map.delete_all(self._find_head(namespace))
        else:
            self._entries.delete(self._find_head(namespace))

    def append(self, values: Iterable[Value], namespace: Value = None) -> None:
        """Append elements to a list state; nothing happens without elements.

        Raises:
            UsageError: the state is no list state, no key is set, or an element is null.
            UnsupportedError: an element is encoded as zero bytes.
            ValueRangeError: an element does not fit the serializer.
        """
        if self.kind is not EntryKind.LIST:
            raise self._wrong_kind("append elements", StateKind.LIST)
        joined = self._join(values)
        if joined:
            self._entries.append(self._find_head(namespace), joined)

    def get_entry(self, map_key: Value, namespace: Value = None) -> Value:
        """The value of a map key; None when it is not there, or null (see `has_entry`).

        Raises:
            UsageError: the state is no map state, or no key is set.
        """
        data = self._get_map().get(self._find_head(namespace), self._encode_map_key(map_key))
        return None if data is None else self._decode(data)

    def has_entry(self, map_key: Value, namespace: Value = None) -> bool:
        """Return whether a map key is there.

        Raises:
            UsageError: the state is no map state, or no key is set.
        """
        return self._get_map().get(self._find_head(namespace), self._encode_map_key(map_key)) is not None

    def put_entry(self, map_key: Value, value: Value, namespace: Value = None) -> None:
        """Set the value of a map key; null is a value.

        Raises:
            UsageError: the state is no map state, or no key is set.
            ValueRangeError: map key or value do not fit their serializers.
        """
        self._get_map().put(self._find_head(namespace), self._encode_map_key(map_key), self._encode(value))

    def remove_entry(self, map_key: Value, namespace: Value = None) -> None:
        """Remove a map key, if it is there.

        Raises:
            UsageError: the state is no map state, or no key is set.
        """
        self._get_map().delete(self._find_head(namespace), self._encode_map_key(map_key))

    def entries(self, namespace: Value = None) -> Iterator[tuple[Value, Value]]:
        """Map keys and values at the time of the call; changes during the iteration are allowed.

        Raises:
            UsageError: the state is no map state, or no key is set.
        """
        found = self._get_map().scan(self._find_head(namespace))
        return ((self._decode_map_key(map_key), self._decode(value)) for map_key, value in found)

    def keys(self, namespace: Value = None) -> Iterator[Value]:
        """All keys of the subtask with a value in this namespace; no current key is needed.

        Changes during the iteration are allowed (`AbstractKeyedStateBackend.applyToAllKeys`).
        """
        return (key for key, each in self.keys_and_namespaces() if each == namespace)

    def keys_and_namespaces(self) -> Iterator[tuple[Value, Value]]:
        """All keys of the subtask and their namespaces, in an undefined order."""
        heads = self._map.keys() if self.kind is EntryKind.MAP else self._entries.keys()
        prefix = self._layout.prefix
        for head in heads:
            fields = read_value(self._head_layout, Reader(head, None, prefix))
            yield fields["state_key"], fields["state_namespace"]

    def _find_head(self, namespace: Value) -> bytes:
        """The record key of the current key and a namespace, without map key."""
        head = self._current.measured if self._is_measured else self._current.plain
        if head is None:
            raise UsageError(
                "No key set. This method should not be called outside of a keyed context.",
                where=Where(state=self.name),
            )
        if namespace is None and self._void is not None:
            return head + self._void
        if namespace is None:
            raise UsageError("Provided namespace is null.", where=Where(state=self.name))
        with at(state=self.name):
            return head + self._encode_namespace(namespace)

    def _join(self, values: Iterable[Value]) -> bytes:
        if values is None:
            raise UsageError("List of values to add cannot be null.", where=Where(state=self.name))
        encoded = []
        for value in values:
            if value is None:
                raise UsageError("You cannot add null to a ListState.", where=Where(state=self.name))
            encoded.append(self._encode(value))
        if not all(encoded):
            what = "the serializer writes no bytes for an element, so that readers could not count the elements"
            raise UnsupportedError(what, where=Where(state=self.name))
        return DELIMITER.join(encoded)

    def _encode_pairs(self, pairs: Iterable[tuple[Value, Value]]) -> list[tuple[bytes, bytes]]:
        return [(self._encode_map_key(map_key), self._encode(value)) for map_key, value in pairs]

    def _get_map(self) -> MapEntries:
        if self.kind is not EntryKind.MAP:
            raise self._wrong_kind("use map keys", StateKind.MAP)
        return self._map

    def _wrong_kind(self, what: str, wanted: str) -> UsageError:
        return UsageError(
            f"cannot {what} of a state of type {self.info.state_type}",
            where=Where(state=self.name),
            hint=f"Register it as {wanted} state",
        )


_TIMESTAMP = 8
_SLACK = 64
"""Minimum number of removed timers in the index for which it is rebuilt."""


class TimeDomain(Enum):
    """The time by which a timer fires."""

    EVENT_TIME = 0
    """The watermark."""
    PROCESSING_TIME = 1
    """The clock of the subtask."""


def timer_state_name(service: str, domain: TimeDomain) -> str:
    """Name of the state that holds the timers of a service (`InternalTimeServiceManagerImpl.TIMER_STATE_PREFIX`)."""
    return f"{TIMER_STATE}{domain.name.removesuffix('_TIME').lower()}_{service}"


class InternalTimer(NamedTuple):
    """A timer.

    Attributes:
        timestamp: epoch milliseconds.
        key: the key, as a value of the scalar codec.
        namespace: the namespace, as a value of the scalar codec; None for the void namespace.
    """

    timestamp: int
    key: Value
    namespace: Value


class TimerQueue:
    """Timers in the order of their timestamps; at equal timestamps, of the bytes of their records.

    Args:
        backend: holds the timers, restored ones included.
        name: name of the state, see `timer_state_name`.
        namespace: serializer of the namespaces.

    Raises:
        StateMigrationError: restored timers have other serializers.
    """

    def __init__(self, backend: KeyedStateBackend, name: str, namespace: Serializer) -> None:
        registered = backend.register_timers(priority_queue(name, timer(backend.key_serializer, namespace)))
        self._entries = registered.entries
        self._current = backend.current
        self._other = CurrentKey(backend.key_context, backend.key_groups)
        self._prefix = backend.context.prefix
        fields = dict(registered.layout.key.fields)
        timestamp = make_codec(fields["timestamp"])
        self._encode_timestamp, self._decode_timestamp = timestamp.encode, timestamp.decode
        self._encode_namespace = make_codec(fields["state_namespace"]).encode
        self._rest = lay.Struct((("key", fields["state_key"]), ("namespace", fields["state_namespace"])))
        self._index: list[tuple[int, bytes]] = []
        self._count = 0
        self._fill()

    def __len__(self) -> int:
        """Number of timers."""
        return self._count

    def add(self, timestamp: int, key: Value, namespace: Value = None) -> bool:
        """Register a timer; False if it is registered already.

        Raises:
            UsageError: the key group of the key is not in the range of the subtask.
            ValueRangeError: timestamp, key or namespace do not fit their serializers.
        """
        record_key = self._make_key(timestamp, key, namespace)
        if self._entries.get(record_key) is not None:
            return False
        self._entries.put(record_key, b"")
        heappush(self._index, (timestamp, record_key))
        self._count += 1
        return True

    def remove(self, timestamp: int, key: Value, namespace: Value = None) -> bool:
        """Remove a timer; False if there is none. Errors as for `add`."""
        record_key = self._make_key(timestamp, key, namespace)
        if self._entries.get(record_key) is None:
            return False
        self._entries.delete(record_key)
        self._count -= 1
        if len(self._index) > 2 * self._count + _SLACK:
            self._fill()
        return True

    def peek(self) -> InternalTimer | None:
        """The first timer; None when there is none."""
        self._drop_removed()
        return self._decode(*self._index[0]) if self._index else None

    def poll(self, up_to: int) -> Iterator[InternalTimer]:
        """Remove and yield timers up to a timestamp (inclusive), in order; also those that are added meanwhile."""
        while True:
            self._drop_removed()
            if not self._index or self._index[0][0] > up_to:
                return
            timestamp, record_key = heappop(self._index)
            self._entries.delete(record_key)
            self._count -= 1
            yield self._decode(timestamp, record_key)

    def timers(self) -> Iterator[InternalTimer]:
        """All timers, in an undefined order (`InternalTimerService.forEachEventTimeTimer`)."""
        for record_key in self._entries.keys():  # noqa: SIM118
            yield self._decode(self._read_timestamp(record_key), record_key)

    def _make_key(self, timestamp: int, key: Value, namespace: Value) -> bytes:
        current = self._current
        if current.value is None or key is not current.value:
            current = self._other
            current.set(key)
        head = current.plain or b""
        prefix = self._prefix
        return head[:prefix] + self._encode_timestamp(timestamp) + head[prefix:] + self._encode_namespace(namespace)

    def _drop_removed(self) -> None:
        while self._index and self._entries.get(self._index[0][1]) is None:
            heappop(self._index)

    def _fill(self) -> None:
        self._index = [(self._read_timestamp(record_key), record_key) for record_key in self._entries.keys()]  # noqa: SIM118
        heapify(self._index)
        self._count = len(self._index)

    def _read_timestamp(self, record_key: bytes) -> int:
        timestamp: int = self._decode_timestamp(record_key[self._prefix : self._prefix + _TIMESTAMP])
        return timestamp

    def _decode(self, timestamp: int, record_key: bytes) -> InternalTimer:
        fields = read_value(self._rest, Reader(record_key, None, self._prefix + _TIMESTAMP))
        return InternalTimer(timestamp, fields["key"], fields["namespace"])


MOST_STATES = 32767
"""Ids of states are Java shorts (`FullSnapshotUtil`, `HeapSnapshotStrategy`)."""


@dataclass(frozen=True)
class TimerEntries:
    """Entries of a priority queue of timers.

    Attributes:
        info: the registered state.
        layout: layout of its records.
        entries: record keys; the values are empty.
    """

    info: StateMetaInfo
    layout: KeyedLayout
    entries: Entries


class KeyedStateBackend:
    """Keyed states of one subtask.

    Args:
        store: store of the entries; the backend closes it.
        key_serializer: serializer of the keys of the operator.
        key_groups: range of the subtask.
        max_parallelism: number of key groups of the operator.
        layouts: context of data layouts, such as the version of Kryo.
        hashes: `hashCode` of user classes among the keys, by class name.
        now: returns epoch milliseconds: the last access of restored values that get TTL.

    Attributes:
        current: the current key, for all states.

    Raises:
        UsageError: values of the key type cannot be keys.
    """

    def __init__(
        self,
        store: EntryStore,
        key_serializer: Serializer,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        layouts: LayoutContext,
        hashes: Mapping[str, HashExpression] | None = None,
        now: Callable[[], int] = read_clock,
    ) -> None:
        self.store = store
        self.key_serializer = key_serializer
        self.key_groups = key_groups
        self.context = RecordContext(max_parallelism, layouts)
        self.key_context = KeyContext(key_serializer, max_parallelism, layouts, hashes)
        self.current = CurrentKey(self.key_context, key_groups)
        self._now = now
        self._states: dict[str, StateMetaInfo] = {}
        self._registered: dict[str, StateTable | TimerEntries] = {}

    @property
    def max_parallelism(self) -> int:
        """Number of key groups of the operator."""
        return self.context.max_parallelism

    @property
    def states(self) -> tuple[StateMetaInfo, ...]:
        """States that are registered or restored, in the order of their ids."""
        return tuple(self._states.values())

    @property
    def current_key(self) -> Value:
        """The current key; None outside of a keyed context."""
        return self.current.value

    def set_current_key(self, key: Value) -> None:
        """Make a key the current one, for all states.

        Raises:
            UsageError: the key is null, or its key group is not in the range of the subtask.
            UnsupportedError: the key is of a class whose hash is not known.
            ValueRangeError: the key does not fit its serializer.
        """
        self.current.set(key)

    def clear_current_key(self) -> None:
        """Leave the keyed context: no key is set any more, for all states."""
        self.current.clear()

    def register(
        self,
        info: StateMetaInfo,
        typed: StateMetaInfo | None = None,
        *,
        ttl_config: bytes | None = None,
        default_value: Value = None,
    ) -> StateTable:
        """Register a keyed state, new or restored; the same registration again returns the same table.

        Args:
            info: the state.
            typed: for state of PyFlink, the state with the types of the values in its byte arrays.
            ttl_config: `StateTtlConfig` as a Java serialization stream, for logs of changes; None without TTL.
            default_value: value of a key that has none, for logs of changes; None if there is none.

        Raises:
            UsageError: the state is no keyed state, or a state of another type has its name.
            StateMigrationError: the restored state does not fit the new serializers.
            UnsupportedError: a serializer has no layout.
            ValueRangeError: the default value does not fit the serializer.
        """
        info = as_key_value(info)
        if info.backend_type is not BackendStateType.KEY_VALUE:
            raise UsageError(
                f"{info.backend_type} state cannot be registered as keyed state", where=Where(state=info.name)
            )
        known = self._registered.get(info.name)
        if isinstance(known, StateTable) and known.info == info:
            return known
        with at(state=info.name):
            layout = self._accept(info)
            default = None if default_value is None else make_codec(layout.value).encode(default_value)
            self.store.register(info, layout, StateSettings(ttl_config, default))
            table = StateTable(info, layout if typed is None else self._find_layout(typed), self.current, self.store)
        self._registered[info.name] = table
        return table

    def register_timers(self, info: StateMetaInfo) -> TimerEntries:
        """Register a priority queue of timers, new or restored; as `register`."""
        if info.backend_type is not BackendStateType.PRIORITY_QUEUE:
            raise UsageError(
                f"{info.backend_type} state cannot be registered as a queue of timers", where=Where(state=info.name)
            )
        known = self._registered.get(info.name)
        if isinstance(known, TimerEntries) and known.info == info:
            return known
        with at(state=info.name):
            layout = self._accept(info)
            self.store.register(info, layout)
        timers = TimerEntries(info, layout, self.store.open_entries(info.name, EntryKind.VALUE))
        self._registered[info.name] = timers
        return timers

    def restore(self, files: Sequence[KeyedFile]) -> None:
        """Load the records of this subtask's key groups; to be called before any state is registered.

        States that are never registered are kept, and are part of the next snapshot.

        Args:
            files: keyed state of any format, of any subtasks of the old operator.

        Raises:
            UsageError: a state is registered already, or the number of key groups differs.
            StateMigrationError: the new key serializer is not compatible with the one of the old keys.
            StateError: a file cannot be read.
        """
        for number in {file.context.max_parallelism for file in files} - {self.max_parallelism}:
            raise UsageError(
                f"the restored state has {number} key groups, and the subtask has {self.max_parallelism}",
                hint="Rescale the snapshot to the new max parallelism first",
            )
        for file in files:
            self.take_states(file)
            names = [info.name for info in file.header.states]
            for state_id, records in file.scan(range(len(names)), self.key_groups):
                self.store.load(names[state_id], records)

    def take_states(self, file: KeyedFile) -> None:
        """Take over the states of a file without its records, which the store loads otherwise, such as by whole tables.

        Raises:
            UsageError: a state is registered already.
            StateMigrationError: the new key serializer is not compatible with the one of the old keys.
            UnsupportedError: a state has another serializer than in an earlier file.
        """
        if self._registered:
            raise UsageError("state must be restored before any state is registered")
        with at(file=file.name):
            check_keys(file.header.key_serializer, self.key_serializer)
        for info in file.header.states:
            self._note(info, file.name)

    def as_file(self, *, compressed: bool = False) -> LiveFile:
        """All records as a keyed file; `compressed` is the flag in its header, for formats that compress."""
        header = KeyedHeader(compressed=compressed, key_serializer=self.key_serializer, states=self.states)
        return LiveFile(self.store, header, self.key_groups, self.context)

    def close(self) -> None:
        """Close the store of the entries."""
        self.store.close()

    def _accept(self, info: StateMetaInfo) -> KeyedLayout:
        """Add a state, or replace the restored one of its name: check that it fits, and rewrite values if needed."""
        known = self._states.get(info.name)
        layout = self._find_layout(info)
        if known is not None and resolve_keyed(known, info, is_heap=self.store.is_heap) is ValueChange.REWRITE:
            if info.name in self._registered:
                raise UsageError("the state is registered with another serializer already")
            old = known, self._find_layout(known)
            layouts = self.context.layouts
            rewrite_values(self.store, old, (info, layout), layouts, self.key_groups, self._now)
        if known is None and len(self._states) >= MOST_STATES:
            raise UsageError(
                f"Too many KV-States: {len(self._states) + 1}. Currently at most {MOST_STATES} states are supported"
            )
        self._states[info.name] = info
        return layout

    def _find_layout(self, info: StateMetaInfo) -> KeyedLayout:
        return derive_keyed_layout(info, self.key_serializer, self.max_parallelism, self.context.layouts)

    def _note(self, info: StateMetaInfo, name: str) -> None:
        joined = join_infos(self._states.get(info.name, info), info)
        if joined is None:
            raise UnsupportedError(
                "subtasks of the snapshot have different serializers for the state",
                where=Where(file=name, state=info.name),
                hint="Let every subtask write the state once with the new job and take a savepoint then",
            )
        self._states[info.name] = joined
