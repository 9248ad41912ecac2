"""Graphs of Kryo 5, written by hand: lists whose elements refer to objects before them."""

from __future__ import annotations

from state_pipelines.binary.data_views import Writer


def varint(number: int) -> bytes:
    """A number in groups of 7 bits."""
    writer = Writer()
    writer.varint(number)
    return writer.getvalue()


def flagged(flag: bool, number: int) -> bytes:
    """A number after a flag in its first byte."""
    if number < 64:
        return bytes((flag << 7 | number,))
    return bytes((flag << 7 | 0x40 | number & 0x3F,)) + varint(number >> 6)


def array_list(elements: list[bytes], *, first: bool = True) -> bytes:
    """A list; the first one has the name of the class, number 0."""
    name = b"java.util.ArrayLis\xf4" if first else b""
    return b"\x01\x00" + name + b"\x01" + flagged(False, len(elements) + 1) + b"".join(elements)


def nulls(size: int) -> bytes:
    """A list of nulls."""
    return b"\x01\x00java.util.ArrayLis\xf4\x01" + flagged(True, size + 1) + b"\x00"


def reference(index: int, class_number: int = 0) -> bytes:
    """An object that the graph has already, by its index."""
    return b"\x01" + varint(class_number) + varint(index + 2)


def byte_array(data: bytes) -> bytes:
    """A byte[], the second class of the graph."""
    return b"\x01\x01[\xc2\x01" + varint(len(data) + 1) + data


def bit_set(data: bytes) -> bytes:
    """A BitSet, the second class of the graph."""
    return b"\x01\x01java.util.BitSe\xf4\x01" + varint(len(data) // 8) + data


def repeat(content: bytes, mentions: int) -> bytes:
    """A list of an object of the second class, and references to it."""
    return array_list([content, *[reference(1, 1)] * mentions])


def double(levels: int) -> bytes:
    """A list of two times the list of two times …"""
    inner = array_list([], first=False)
    for level in range(levels, 0, -1):
        inner = array_list([inner, reference(level)], first=level == 1)
    return inner


def chain(length: int) -> bytes:
    """A list of lists, of which each refers to the one before."""
    return array_list([array_list([reference(number)] if number else [], first=False) for number in range(length)])
