"""Unaligned loads, stores and copies at raw addresses, for the compiled kernels.

Kernels work on addresses so that one compiled signature serves read-only and writable buffers alike. The kernels check
bounds; these functions do not.

Numba is imported where it calls these functions (see `compiled`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.binary.compiled import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable


def _pointer(builder: Any, address: Any, bits: int) -> Any:
    from llvmlite import ir

    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _make_load(bits: int, *, swap: bool, signed: bool) -> Any:
    def load(typingctx: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
        from llvmlite import ir
        from numba import types

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_pointer(builder, args[0], bits), align=1)
            if swap and bits > 8:
                value = builder.bswap(value)
            if bits == 64:
                return value
            widen = builder.sext if signed else builder.zext
            return widen(value, ir.IntType(64))

        return types.int64(types.int64), codegen

    return intrinsic(load)


def _make_store(bits: int, *, swap: bool) -> Any:
    def store(typingctx: Any, address: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
        from llvmlite import ir
        from numba import types

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = args[1] if bits == 64 else builder.trunc(args[1], ir.IntType(bits))
            if swap and bits > 8:
                word = builder.bswap(word)
            builder.store(word, _pointer(builder, args[0], bits), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return intrinsic(store)


def _copy(typingctx: Any, target: Any, source: Any, size: Any) -> tuple[Any, Callable[..., Any]]:
    """Copy `size` bytes between addresses that do not overlap."""
    from numba import types
    from numba.core import cgutils

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source_pointer = _pointer(builder, args[1], 8)
        cgutils.raw_memcpy(builder, _pointer(builder, args[0], 8), source_pointer, args[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


load_u8 = _make_load(8, swap=False, signed=False)
load_i16 = _make_load(16, swap=False, signed=True)
load_i32 = _make_load(32, swap=False, signed=True)
load_u32 = _make_load(32, swap=False, signed=False)
load_i64 = _make_load(64, swap=False, signed=True)
load_u16_big = _make_load(16, swap=True, signed=False)
load_i32_big = _make_load(32, swap=True, signed=True)
load_i64_big = _make_load(64, swap=True, signed=True)
store_8 = _make_store(8, swap=False)
store_16 = _make_store(16, swap=False)
store_32 = _make_store(32, swap=False)
store_64 = _make_store(64, swap=False)
store_16_big = _make_store(16, swap=True)
store_32_big = _make_store(32, swap=True)
store_64_big = _make_store(64, swap=True)
copy: Any = intrinsic(_copy)
