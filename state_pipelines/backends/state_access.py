"""One registered keyed state, seen from the current key of its backend.

Values are those of the scalar codec (`codecs.scalar.codec`). With TTL in the serializer they are structs of
`last_access` and `value`; what expires is decided elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.backends.entry_store import DELIMITER, EntryKind, find_entry_kind
from state_pipelines.backends.value_codecs import Value, make_codec, make_head_measure, make_list_functions
from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.errors import UnsupportedError, UsageError, Where, at
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from state_pipelines.backends.current_key import CurrentKey
    from state_pipelines.backends.entry_store import Entries, EntryStore, MapEntries
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.serializers.state_meta_info import StateMetaInfo


_VALUES = (StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING)


class StateTable:
    """Values of one state under the current key; a namespace of None is the void namespace.

    Args:
        info: the registered state, of kind KEY_VALUE.
        layout: of its records; of state in PyFlink's layout that of the values in its byte arrays.
        current: the current key of the backend.
        store: holds the entries.
    """

    def __init__(self, info: StateMetaInfo, layout: KeyedLayout, current: CurrentKey, store: EntryStore) -> None:
        self.info = info
        # Values of Python functions are lists of one array.
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
        """The value; None when there is none.

        List state gives the list of its elements, map state a list of (map key, value).

        Raises:
            UsageError: no key is set.
            FormatError: the stored bytes are not those of the serializer.
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
            UsageError: no list state, no key is set, or an element is null.
            UnsupportedError: an element has no bytes.
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
            UsageError: no map state, or no key is set.
        """
        data = self._get_map().get(self._find_head(namespace), self._encode_map_key(map_key))
        return None if data is None else self._decode(data)

    def has_entry(self, map_key: Value, namespace: Value = None) -> bool:
        """Whether a map key is there.

        Raises:
            UsageError: no map state, or no key is set.
        """
        return self._get_map().get(self._find_head(namespace), self._encode_map_key(map_key)) is not None

    def put_entry(self, map_key: Value, value: Value, namespace: Value = None) -> None:
        """Set the value of a map key; null is a value.

        Raises:
            UsageError: no map state, or no key is set.
            ValueRangeError: map key or value do not fit their serializers.
        """
        self._get_map().put(self._find_head(namespace), self._encode_map_key(map_key), self._encode(value))

    def remove_entry(self, map_key: Value, namespace: Value = None) -> None:
        """Remove a map key, if it is there.

        Raises:
            UsageError: no map state, or no key is set.
        """
        self._get_map().delete(self._find_head(namespace), self._encode_map_key(map_key))

    def entries(self, namespace: Value = None) -> Iterator[tuple[Value, Value]]:
        """Map keys and values at the time of the call; changes during the iteration are allowed.

        Raises:
            UsageError: no map state, or no key is set.
        """
        found = self._get_map().scan(self._find_head(namespace))
        return ((self._decode_map_key(map_key), self._decode(value)) for map_key, value in found)

    def keys(self, namespace: Value = None) -> Iterator[Value]:
        """All keys of the subtask with a value in this namespace; the current key does not count.

        Changes during the iteration are allowed (`AbstractKeyedStateBackend.applyToAllKeys`).
        """
        return (key for key, each in self.keys_and_namespaces() if each == namespace)

    def keys_and_namespaces(self) -> Iterator[tuple[Value, Value]]:
        """All keys of the subtask and their namespaces, in no order that means anything."""
        heads = self._map.keys() if self.kind is EntryKind.MAP else self._entries.keys()
        prefix = self._layout.prefix
        for head in heads:
            fields = read_value(self._head_layout, Reader(head, None, prefix))
            yield fields["state_key"], fields["state_namespace"]

    def _find_head(self, namespace: Value) -> bytes:
        """The record key of the current key, without map key."""
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
            what = "the elements have no bytes, so that they could not be counted when they are read"
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
