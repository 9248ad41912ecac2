"""Rewriting the values of a restored state with a new serializer, before the first access.

Source: `RocksDBKeyedStateBackend.migrateStateValues`, `AbstractRocksDBState.migrateSerializedValue`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.backends.entry_store import DELIMITER, EntryKind, find_entry_kind
from state_pipelines.backends.record_batches import make_records, split_records
from state_pipelines.backends.value_codecs import make_codec, make_head_measure, make_list_functions
from state_pipelines.codecs.layout import Struct
from state_pipelines.codecs.value_conversion import ValueConversion
from state_pipelines.errors import UnsupportedError, ValueRangeError, Where
from state_pipelines.serializers.tree import MapOf

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.backends.entry_store import EntryStore
    from state_pipelines.codecs.layout import Convert, LayoutContext
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo


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
        old: as restored.
        new: as registered.
        layouts: what layouts depend on.
        key_groups: range of the subtask.
        now: epoch milliseconds; the last access of values that get TTL.

    Raises:
        UnsupportedError: no conversion is known.
        FormatError: a value is not one of the old serializer.
        ValueRangeError: a value does not fit the new serializer, or two map keys become one.
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
    """The function that rewrites the map key of a record key; None if map keys stay as they are.

    Only heaps have other map keys (`HeapKeyedStateBackend.tryRegisterStateTable` compares whole map serializers).
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
        raise UnsupportedError("state of a Python function keeps its type", hint="Register it with the restored one")
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
