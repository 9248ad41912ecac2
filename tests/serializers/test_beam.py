"""Snapshots of Beam's serializers: the coder out of its Java stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.serializers.beam import LEGACY, BeamSerializer, Coder, read_coder
from state_pipelines.serializers.compatibility import Outcome, resolve
from state_pipelines.serializers.registry import read_nested, write_nested
from state_pipelines.serializers.text import describe
from tests.serializers.javacoders import (
    CODERS,
    WINDOWED,
    WINDOWS,
    class_literal,
    coder,
    coder_map,
    java_object,
    legacy_snapshot,
    stream,
    unversioned_snapshot,
)
from tests.serializers.literals import i32, versioned

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.binary.java_stream import JavaObject

TEXT, LONG = coder("StringUtf8Coder"), coder("VarLongCoder")
KV = coder("KvCoder", keyCoder=TEXT, valueCoder=coder("NullableCoder", valueCoder=LONG))
GLOBAL = coder(f"{WINDOWS}GlobalWindow$Coder")
FULL = coder(
    f"{WINDOWED}FullWindowedValueCoder",
    valueCoder=KV,
    windowCoder=GLOBAL,
    windowsCoder=coder("CollectionCoder", elementCoder=GLOBAL),
)
TAGGED = coder(
    "org.apache.beam.runners.flink.translation.wrappers.streaming.DoFnOperator$TaggedKvCoder",
    idsToCoders=coder_map({0: FULL, 1: TEXT}),
)


def read(snapshot: bytes) -> BeamSerializer:
    node = read_nested(Reader(snapshot))
    assert isinstance(node, BeamSerializer)
    return node


@pytest.mark.parametrize("make", [legacy_snapshot, unversioned_snapshot])
def test_snapshots_are_read_and_written_byte_for_byte(make: Callable[[JavaObject], bytes]) -> None:
    snapshot = make(FULL)
    node, writer = read(snapshot), Writer()
    assert describe(node) == "Beam<FullWindowedValue<Kv<StringUtf8, Nullable<VarLong>>, GlobalWindow>>"
    write_nested(writer, node)
    assert writer.getvalue() == snapshot


def test_coders_of_a_map_go_by_their_key() -> None:
    node = read(legacy_snapshot(TAGGED))
    assert [name for name, _ in node.coder.components] == ["0", "1"]
    assert node.coder.component("1") == Coder(f"{CODERS}StringUtf8Coder")


def test_the_class_of_a_serializable_coder_is_kept() -> None:
    of = coder("SerializableCoder", type=class_literal("com.acme.Order"))
    assert read(legacy_snapshot(of)).coder.detail == "com.acme.Order"


def test_a_stream_of_something_else_is_refused() -> None:
    other = java_object("com.acme.Order")
    body = stream(other)
    with pytest.raises(FormatError, match="the CoderTypeSerializer in the Java stream has no coder"):
        read_nested(Reader(versioned(LEGACY, 0x7A53C4F0, i32(1) + i32(len(body)) + body + i32(1))))


def test_another_version_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="version 2 of"):
        read_nested(Reader(versioned(LEGACY, 2, b"")))


def test_a_coder_that_unfolds_to_a_giant_tree_is_refused() -> None:
    shared: JavaObject = TEXT
    for _ in range(20):
        shared = coder("KvCoder", keyCoder=shared, valueCoder=shared)
    with pytest.raises(FormatError, match="contains more than 10000 coders"):
        read_coder(stream(shared))


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        (legacy_snapshot(KV), legacy_snapshot(KV), Outcome.AS_IS),
        (legacy_snapshot(KV), unversioned_snapshot(KV), Outcome.AS_IS),
        (legacy_snapshot(KV), legacy_snapshot(TEXT), Outcome.INCOMPATIBLE),
    ],
)
def test_what_becomes_of_old_bytes_follows_from_the_coders(old: bytes, new: bytes, outcome: Outcome) -> None:
    assert resolve(read(old), read(new)).outcome is outcome


def test_flink_does_not_notice_another_coder() -> None:
    (finding,) = resolve(read(legacy_snapshot(KV)), read(legacy_snapshot(TEXT))).findings
    assert finding.unnoticed
