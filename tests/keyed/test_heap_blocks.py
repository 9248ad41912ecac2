"""Ends of blocks of the heap backend whose entries have no known length, as far as they can be proven."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.keyed import heap_entries
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.heap_entries import EntryCodec, HeapEntries, find_block_end, make_entry_codecs
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.serializers.build import VOID_NAMESPACE, basic
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.serializers.tree import Opaque

UNKNOWN = Opaque(snapshot_class="a.B", snapshot_version=1, unknown_class="a.B", raw=b"")
HEADER = KeyedHeader(
    key_serializer=basic("Int"),
    states=tuple(
        keyed_state(name, "VALUE", value, VOID_NAMESPACE)
        for name, value in (("unknown", UNKNOWN), ("ints", basic("Int")), ("longs", basic("Long")))
    ),
)
FORMS = make_entry_codecs(HEADER, RecordContext(128, LayoutContext()))
INTS = bytes.fromhex("0001 00000001 00 00000007 00000063")
LONGS = bytes.fromhex("0002 00000001 00 00000007 0000000000000063")
NO_LONGS = bytes.fromhex("0002 00000000")


def find(data: bytes, left: set[int]) -> int | None:
    return find_block_end(np.frombuffer(data, np.uint8), 0, len(data), frozenset(left), FORMS)


@pytest.mark.parametrize("entries", [b"\x09" * 5, b"", bytes(30), INTS[:6] + b"x"])
@pytest.mark.parametrize("after", [INTS + LONGS, LONGS + INTS, INTS + NO_LONGS])
def test_the_blocks_after_it_prove_the_end(entries: bytes, after: bytes) -> None:
    assert find(entries + after, {1, 2}) == len(entries)


def test_the_last_block_ends_with_the_section() -> None:
    assert find(b"abc", set()) == 3


def test_an_end_that_is_not_the_only_one_is_none() -> None:
    """A block of one entry, whose value ends with what is a block without entries."""
    ambiguous = bytes.fromhex("0002 00000001 00 00000007") + bytes(2) + NO_LONGS
    assert find(b"x" + ambiguous, {2}) is None


def test_without_the_other_blocks_there_is_no_end() -> None:
    assert find(b"x" * 20 + INTS, {1, 2}) is None


@pytest.mark.slow
def test_a_search_is_given_up_after_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each nine bytes are the head of a block of 65,536 entries, and an entry of the blocks before."""
    tried = 0
    read = EntryCodec.read

    def count(self: EntryCodec, *arguments: Any) -> tuple[HeapEntries, int]:
        nonlocal tried
        tried += 1
        return read(self, *arguments)

    monkeypatch.setattr(EntryCodec, "read", count)
    monkeypatch.setattr(heap_entries, "MAX_WORK", 32 << 20)
    assert find(bytes.fromhex("0001 00010000 00 0000") * 100_000, {1, 2}) is None
    assert 50 < tried < 60
