"""Bytes of connectors: written the way the formats read, and those that Flink's own serializers wrote.

`data/flink-<release>.txt` holds what Flink 1.20.5 and 2.2.1 gave for known values, one `name hex` per line, each the
result of `SimpleVersionedSerialization.writeVersionAndSerialize`.
"""

from __future__ import annotations

from pathlib import Path

from state_pipelines.serializers.build import basic
from tests.serializers.literals import i32

BYTES = basic("BytePrimitiveArray")
RELEASES = ("1.20.5", "2.2.1")
DATA = Path(__file__).parent / "data"


def i64(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def versioned(version: int, data: bytes) -> bytes:
    return i32(version) + i32(len(data)) + data


def element(version: int, data: bytes) -> bytes:
    """An element of a list state of byte arrays."""
    return wrap(versioned(version, data))


def wrap(array: bytes) -> bytes:
    return i32(len(array)) + array


def flink_bytes(release: str, name: str) -> bytes:
    lines = (DATA / f"flink-{release}.txt").read_text().splitlines()
    return bytes.fromhex(dict(line.split() for line in lines)[name])
