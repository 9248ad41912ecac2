from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.backends.entry_store import KeyContext
from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.keyed.hashing.value_hashes import make_key_hasher
from state_pipelines.keyed.key_groups import assign_key_group
from state_pipelines.serializers.build import basic, enum, generic_array, pojo, tuple_of
from tests.keyed.key_group_lines import Recorded, expressions_of, read_recorded

LAYOUTS = LayoutContext()
STRING, LONG = basic("String"), basic("Long")


@cache
def recorded() -> Recorded:
    return read_recorded()


@pytest.mark.parametrize("name", ["String", "Long", "Short", "Byte", "RowData", "Tuple2", "RecordKey"])
def test_keys_lie_in_the_key_groups_of_flink(name: str) -> None:
    keys = recorded().keys[name]
    layout = derive_layout(keys.serializer, LAYOUTS)
    expressions = expressions_of(name, keys.serializer)
    for row, limit in enumerate(keys.limits.tolist()):
        context = KeyContext(keys.serializer, limit, LAYOUTS, expressions)
        raw = keys.records.data[keys.records.key_starts[row] : keys.records.key_ends[row]].tobytes()
        # The namespace follows.
        reader = Reader(raw)
        value = read_value(layout, reader, tail=False)
        key = raw[: reader.position]
        assert context.encode(value) == key
        assert context.find_key_group(value, key) == keys.records.key_groups[row]
        if row == 200:
            break


@pytest.mark.slow
@given(st.text(max_size=600) | st.text("äbc", min_size=250, max_size=600))
def test_texts_hash_as_the_kernel_does(text: str) -> None:
    context = KeyContext(STRING, 32768, LAYOUTS)
    raw = context.encode(text)
    hasher = make_key_hasher(STRING, LAYOUTS)
    code = int(hasher.hash_spans(np.frombuffer(raw, np.uint8), np.zeros(1, np.int64), np.full(1, len(raw)))[0])
    assert context.find_key_group(text, raw) == assign_key_group(code, 32768)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_longs_hash_as_in_java(number: int) -> None:
    context = KeyContext(LONG, 32768, LAYOUTS)
    folded = (number ^ (number & (1 << 64) - 1) >> 32) & 0xFFFFFFFF
    assert context.find_key_group(number, context.encode(number)) == assign_key_group(folded, 32768)


def test_types_that_cannot_be_keys_are_refused() -> None:
    for serializer in (
        generic_array("java.lang.String", STRING),
        enum("com.acme.Color", "RED"),
        basic("LongPrimitiveArray"),
    ):
        with pytest.raises(UsageError):
            KeyContext(serializer, 128, LAYOUTS)


def test_a_key_of_a_class_whose_hash_is_not_known_is_refused() -> None:
    context = KeyContext(tuple_of(pojo("com.acme.Place", {"zip": STRING})), 128, LAYOUTS)
    key = {"f0": {"class": "com.acme.Place", "zip": "10115"}}
    with pytest.raises(UnsupportedError, match="hashCode"):
        context.find_key_group(key, context.encode(key))
