"""Bytes of snapshots, written the way the format reads."""

from __future__ import annotations

BASE = "org.apache.flink.api.common.typeutils.base."
RUNTIME = "org.apache.flink.api.java.typeutils.runtime."
NESTED = bytes.fromhex("001457fd 00000001")
COMPOSITE = bytes.fromhex("000de704")
OPTIONAL_MAP = bytes.fromhex("000004f2c69a3d70")
LONG_CLASS = f"{BASE}LongSerializer$LongSerializerSnapshot"
STRING_CLASS = f"{BASE}StringSerializer$StringSerializerSnapshot"
POJO_CLASS = f"{RUNTIME}PojoSerializerSnapshot"
UNKNOWN_CLASS = "com.acme.MoneySerializerSnapshot"


def i32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def utf(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode("ascii")


def versioned(snapshot_class: str, version: int, body: bytes = b"") -> bytes:
    return utf(snapshot_class) + i32(version) + body


def outer(snapshot_class: str, version: int, body: bytes = b"") -> bytes:
    return i32(2) + versioned(snapshot_class, version, body)


def composite(outer_version: int, body: bytes, *nested: bytes) -> bytes:
    return COMPOSITE + i32(outer_version) + body + parts(*nested)


def parts(*nested: bytes) -> bytes:
    return NESTED + i32(len(nested)) + b"".join(nested)


def optional_map(*entries: bytes) -> bytes:
    return OPTIONAL_MAP + i32(len(entries)) + b"".join(entries)


def frame(data: bytes | None) -> bytes:
    return b"\0" if data is None else b"\1" + i32(len(data)) + data


LONG = versioned(LONG_CLASS, 3)
STRING = versioned(STRING_CLASS, 3)
