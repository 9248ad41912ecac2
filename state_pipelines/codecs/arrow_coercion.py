"""Bringing an Arrow array into the exact type that a layout wants, before it is encoded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs.logical_values import bitmap
from state_pipelines.errors import ValueRangeError, Where


def conform(array: pa.Array, target: pa.DataType, path: str = "value") -> pa.Array:
    """`array` as `target`; fields of structs are matched by name, numbers and times are cast when nothing is lost.

    Raises:
        ValueRangeError: a field is missing or too much, or a value does not fit; names the path.
    """
    if array.type == target:
        return array
    array = to_plain(array, path)
    source = array.type
    if source == target:
        return array
    if pa.types.is_null(target):
        if array.null_count < len(array):
            raise ValueRangeError("the serializer writes no value here, but there is one", where=Where(path=path))
        return pa.nulls(len(array))
    if pa.types.is_null(source):
        return pa.nulls(len(array), target)
    if pa.types.is_struct(target) and pa.types.is_struct(source):
        return _conform_struct(array, target, path)
    if pa.types.is_map(target) and (pa.types.is_map(source) or pa.types.is_list(source)):
        keys, items = _flatten_map(array, path)
        keys = conform(keys, target.key_type, f"{path}{{key}}")
        items = conform(items, target.item_type, f"{path}{{value}}")
        fields = [pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
        return _rebuild(array, target, pa.StructArray.from_arrays([keys, items], fields=fields))
    if pa.types.is_list(target) and (pa.types.is_list(source) or pa.types.is_map(source)):
        return _rebuild(array, target, conform(flatten_entries(array), target.value_type, f"{path}[]"))
    if pa.types.is_temporal(source) and pa.types.is_integer(target):
        raise ValueRangeError(f"{source} does not fit {target}", where=Where(path=path))
    try:
        cast = pc.cast(array, target, safe=True)
        if pa.types.is_floating(target) and not cast.cast(source).equals(array) and _loses(array, cast):
            raise ValueRangeError(f"a value of {source} is not exact as {target}", where=Where(path=path))
        if pa.types.is_timestamp(source) and (pa.types.is_date(target) or pa.types.is_time(target)):
            _require_all_of_time(array, cast, path)
        return cast
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        # Invalid: a value does not fit. Not implemented: Arrow has no cast between the two types (struct to number),
        # and no function tells beforehand which it has.
        raise ValueRangeError(f"{source} does not fit {target}: {error}", where=Where(path=path)) from None


def to_plain(array: pa.Array, path: str = "value") -> pa.Array:
    """`array` without large types, lists of fixed size, views of text and dictionaries, at any depth.

    A cast to the final type does not do it: from a large list of structs to a list of structs it fills fields of
    other names with null.

    Raises:
        ValueRangeError: text, bytes or elements exceed 2 GiB in one array, or it has views of lists; names the path.
    """
    try:
        plain = _find_plain(array.type)
        return array if plain == array.type else array.cast(plain)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueRangeError(f"{array.type} cannot be used: {error}", where=Where(path=path)) from None


def _find_plain(of: pa.DataType) -> pa.DataType:
    is_type = pa.types
    if is_type.is_dictionary(of):
        return _find_plain(of.value_type)
    if is_type.is_large_string(of) or is_type.is_string_view(of):
        return pa.string()
    if is_type.is_large_binary(of) or is_type.is_binary_view(of):
        return pa.binary()
    if is_type.is_struct(of):
        return pa.struct([each.with_type(_find_plain(each.type)) for each in of])
    if is_type.is_map(of):
        key, item = (each.with_type(_find_plain(each.type)) for each in (of.key_field, of.item_field))
        return pa.map_(key, item, of.keys_sorted)
    if is_type.is_list_view(of) or is_type.is_large_list_view(of):
        # Arrow 26 makes invalid arrays of them when it casts.
        raise pa.ArrowNotImplementedError("a view of lists; cast it to a list")
    if is_type.is_list(of) or is_type.is_large_list(of) or is_type.is_fixed_size_list(of):
        return pa.list_(of.value_field.with_type(_find_plain(of.value_type)))
    return of


def _conform_struct(array: pa.Array, target: pa.StructType, path: str) -> pa.Array:
    source = array.type
    have = {source.field(i).name for i in range(source.num_fields)}
    want = {target.field(i).name for i in range(target.num_fields)}
    if have != want:
        missing, extra = sorted(want - have), sorted(have - want)
        wrong = [f"missing {', '.join(missing)}" if missing else "", f"unexpected {', '.join(extra)}" if extra else ""]
        raise ValueRangeError(
            f"the fields do not match: {'; '.join(each for each in wrong if each)}", where=Where(path=path)
        )
    children = [
        conform(
            array.field(source.get_field_index(target.field(i).name)),
            target.field(i).type,
            f"{path}.{target.field(i).name}",
        )
        for i in range(target.num_fields)
    ]
    nulls = pc.is_null(array) if array.null_count else None
    if not children:
        return pa.array([{}] * len(array), target, mask=None if nulls is None else nulls.to_numpy(False))
    return pa.StructArray.from_arrays(children, fields=list(target), mask=nulls)


def _rebuild(array: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    """Return a list or map of `child`, which holds the flattened values of `array`."""
    offsets = dense_offsets(array)
    nulls = bitmap(np.asarray(array.is_valid())) if array.null_count else None
    return pa.Array.from_buffers(target, len(array), [nulls, offsets.buffers()[1]], children=[child])


def _flatten_map(array: pa.Array, path: str) -> tuple[pa.Array, pa.Array]:
    """Keys and values of all maps; each may be a list of its entries, which are structs of `key` and `value`."""
    entries = flatten_entries(array)
    if not pa.types.is_struct(entries.type) or sorted(each.name for each in entries.type) != ["key", "value"]:
        raise ValueRangeError(
            f"{array.type} is not a map, whose entries are structs of the fields key and value", where=Where(path=path)
        )
    if entries.null_count:
        raise ValueRangeError("an entry of a map is null", where=Where(path=path))
    keys, items = entries.field("key"), entries.field("value")
    if keys.null_count:
        raise ValueRangeError("a key of a map is null, which Arrow does not hold", where=Where(path=f"{path}{{key}}"))
    return keys, items


def flatten_entries(array: pa.Array) -> pa.Array:
    """Return the elements of a list, or the entries of a map as structs, without those under null."""
    if not pa.types.is_map(array.type):
        return array.flatten()
    entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
    as_list = pa.Array.from_buffers(
        pa.list_(entries.type), len(array), array.buffers()[:2], -1, array.offset, children=[entries]
    )
    return as_list.flatten()


def dense_offsets(array: pa.Array) -> pa.Array:
    """Return the offsets of a list or map in its flattened values (see `flatten_entries`); null counts as empty."""
    buffer = array.buffers()[1]
    raw = np.zeros(len(array) + 1, np.int32) if buffer is None else np.frombuffer(buffer, np.int32)
    lengths = np.diff(raw[array.offset : array.offset + len(array) + 1])
    if array.null_count:
        lengths = np.where(np.asarray(array.is_valid()), lengths, 0)
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.array(offsets)


def _require_all_of_time(array: pa.Array, cast: pa.Array, path: str) -> None:
    """Refuse timestamps of which Arrow took the date and left the time of day; a time of day has no way back."""
    if not cast.cast(array.type).equals(array):
        raise ValueRangeError(f"a value of {array.type} is more than {cast.type}", where=Where(path=path))


def _loses(array: pa.Array, cast: pa.Array) -> bool:
    """Return whether a cast to floating point changed a value (NaN counts as unchanged)."""
    same = pc.equal(cast.cast(array.type), array)
    if pa.types.is_floating(array.type):
        same = pc.or_(same, pc.is_nan(array))
    return not pc.all(same.fill_null(True)).as_py()
