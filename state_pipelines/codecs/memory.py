"""The loads, stores and copies of `state_pipelines.binary.memory`, by the name that the codecs know them by."""

from __future__ import annotations

from state_pipelines.binary.memory import (
    copy,
    load_i16,
    load_i32,
    load_i32_big,
    load_i64,
    load_i64_big,
    load_u8,
    load_u16_big,
    load_u32,
    store_8,
    store_16,
    store_16_big,
    store_32,
    store_32_big,
    store_64,
    store_64_big,
)

__all__ = [
    "copy",
    "load_i16",
    "load_i32",
    "load_i32_big",
    "load_i64",
    "load_i64_big",
    "load_u8",
    "load_u16_big",
    "load_u32",
    "store_8",
    "store_16",
    "store_16_big",
    "store_32",
    "store_32_big",
    "store_64",
    "store_64_big",
]
