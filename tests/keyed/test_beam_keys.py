"""The coder of Beam's keys, which states beside the keys name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.keyed.hashing.value_hashes import hash_codes
from state_pipelines.keyed.header import KeyedHeader, read_keyed_header, write_keyed_header
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.serializers import build
from state_pipelines.serializers.beam import BYTE_BUFFER_CODER
from state_pipelines.serializers.compatibility import Outcome, resolve
from state_pipelines.serializers.registry import read_nested
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BackendStateType, StateMetaInfo
from state_pipelines.snapshot import open_snapshot
from tests.serializers.javacoders import CODERS, WINDOWED, WINDOWS, coder, legacy_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.binary.java_stream import JavaObject
    from state_pipelines.serializers.tree import Serializer

TEXT, LONG = coder("StringUtf8Coder"), coder("VarLongCoder")
BYTES = coder(BYTE_BUFFER_CODER)


def node(of: JavaObject) -> Serializer:
    return read_nested(Reader(legacy_snapshot(of)))


def windowed(value: JavaObject) -> JavaObject:
    window = coder(f"{WINDOWS}GlobalWindow$Coder")
    return coder(f"{WINDOWED}FullWindowedValueCoder", valueCoder=value, windowCoder=window)


def pair(key: JavaObject) -> JavaObject:
    return windowed(coder("KvCoder", keyCoder=key, valueCoder=LONG))


def listed(name: str, of: JavaObject) -> StateMetaInfo:
    serializers = (("NAMESPACE_SERIALIZER", build.VOID_NAMESPACE), ("VALUE_SERIALIZER", build.list_of(node(of))))
    options = (("KEYED_STATE_TYPE", "LIST"),)
    return StateMetaInfo(name=name, backend_type=BackendStateType.KEY_VALUE, options=options, serializers=serializers)


def timers() -> StateMetaInfo:
    timer = build.timer(node(BYTES), build.VOID_NAMESPACE)
    serializers = (("VALUE_SERIALIZER", timer),)
    return StateMetaInfo(
        name="_timer", backend_type=BackendStateType.PRIORITY_QUEUE, options=(), serializers=serializers
    )


def reread(*states: StateMetaInfo, key: JavaObject = BYTES) -> tuple[bytes, KeyedHeader]:
    """The bytes of a header, and the header that is read from them."""
    writer = Writer()
    write_keyed_header(writer, KeyedHeader(key_serializer=node(key), states=states))
    return writer.getvalue(), read_keyed_header(Reader(writer.getvalue()))


ITEMS = coder("org.apache.beam.runners.core.KeyedWorkItemCoder", keyCoder=TEXT, elemCoder=LONG)


@pytest.mark.parametrize(
    "states",
    [
        (listed("pushed-back-elements", pair(TEXT)),),
        (listed("sortBuffer", pair(TEXT)), listed("pushed-back-elements", pair(TEXT))),
        (listed("pushed-back-elements", windowed(ITEMS)),),
        (listed("pushed-back-elements", pair(TEXT)), listed("buf", pair(LONG))),
    ],
)
def test_elements_that_wait_name_the_coder(states: tuple[StateMetaInfo, ...]) -> None:
    raw, header = reread(*states, timers())
    assert describe(header.key_serializer) == "Beam<ByteBuffer<StringUtf8>>"
    assert describe(header.states[-1].value_serializer) == "Timer<Beam<ByteBuffer<StringUtf8>>, VoidNamespace>"
    writer = Writer()
    write_keyed_header(writer, header)
    assert writer.getvalue() == raw


@pytest.mark.parametrize(
    "states",
    [
        (),
        (listed("counts", pair(TEXT)),),
        (listed("sortBuffer", pair(TEXT)), listed("pushed-back-elements", pair(LONG))),
        (listed("pushed-back-elements", windowed(TEXT)),),
        (listed("pushed-back-elements", pair(coder("com.acme.OwnCoder"))),),
        (listed("pushed-back-elements", pair(coder("VoidCoder"))),),
        (listed("pushed-back-elements", pair(coder("NullableCoder", valueCoder=TEXT))),),
    ],
)
def test_keys_stay_bytes_where_no_coder_is_certain(states: tuple[StateMetaInfo, ...]) -> None:
    assert describe(reread(*states)[1].key_serializer) == "Beam<ByteBuffer>"


def test_other_keys_are_not_touched() -> None:
    header = reread(listed("pushed-back-elements", pair(TEXT)), key=LONG)[1]
    assert describe(header.key_serializer) == "Beam<VarLong>"


def test_keys_are_values_and_hash_as_their_bytes() -> None:
    key = reread(listed("sortBuffer", pair(TEXT)))[1].key_serializer
    columns = plan_columns(derive_layout(key, LayoutContext()))
    raw = bytes.fromhex("0b 0a 656c656d656e742d3830")
    array = columns.decode(np.frombuffer(raw, np.uint8), np.array([0]), np.array([len(raw)])).array
    assert array.to_pylist() == ["element-80"]
    encoded = columns.encode(array)
    assert bytes(encoded.data[: encoded.stops[0]]) == raw
    codes = hash_codes(key, array)
    assert codes.tolist() == hash_codes(node(BYTES), pa.array([raw[1:]])).tolist()
    # The key group in which Beam stored the key.
    assert assign_key_groups(codes, 128).tolist() == [0]


def test_a_coder_that_one_side_does_not_name_is_no_difference() -> None:
    text = reread(listed("sortBuffer", pair(TEXT)))[1].key_serializer
    number = reread(listed("sortBuffer", pair(LONG)))[1].key_serializer
    assert resolve(text, node(BYTES)).outcome is Outcome.AS_IS
    assert resolve(text, number).outcome is Outcome.INCOMPATIBLE
    assert f"{CODERS}StringUtf8Coder" not in describe(text)


def test_keys_that_beam_wrote(wild2: Path) -> None:
    (metadata,) = wild2.glob("dmvk+beam-flink-state-processor/*/*/_metadata")
    operator = open_snapshot(str(metadata.parent)).operator("349053b5f6a2bf3d3e14b2ecf8c6d104")
    rows = operator.state("word_counts").to_arrow()
    keys = rows["state_key"].to_pylist()
    assert sorted(keys) == sorted(f"element-{number}" for number in range(100))
    ((_, file),) = operator.keyed_files
    codes = hash_codes(file.header.key_serializer, rows["state_key"].combine_chunks())
    assert assign_key_groups(codes, 128).tolist() == rows["key_group"].to_pylist()
