"""Kernels: Numba functions that are compiled at their first call, kept in files, and access memory by address.

Importing Numba takes about a second, and many operations read no records: modules with kernels import `njit` from here,
so that importing them is cheap.

Numba numbers the files of a function in an index. Two processes that compile it for different types at the same time
may give one number to both, and from then on the machine code of one type runs on data of the other: wrong numbers,
without an error. Here a file is named by what it was compiled for, and says so inside, and there is no index.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import pickle
import sys
import threading
import time
import uuid
from functools import cache, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FunctionType

_FORMAT = "kernel 2"
"""Version of the format of the cache files; files of another format are ignored."""

_PATIENCE = 60.0
"""Seconds to wait for another process that compiles the same function; no function takes so long."""

_PAUSE = 0.02
"""Seconds between two attempts to get the lock."""


class KernelFiles:
    """The cache files of one compiled function: one file for each combination of argument types and machine.

    The class has those methods of `numba.core.caching.IndexDataCacheFile` that Numba's `Cache` calls.

    Args:
        folder: directory of the files.
        base: beginning of the names of the files.
        stamp: hash of the sources that are compiled into them.
    """

    def __init__(self, folder: str, base: str, stamp: str) -> None:
        self._folder = Path(folder)
        self._base = base
        import numba  # takes a second

        # The identity has a fixed length, so that it is compared with the beginning of a file before anything is
        # unpickled.
        self._identity = hashlib.sha256(f"{_FORMAT} {numba.__version__} {stamp}".encode()).digest()
        self._locks: dict[Path, int] = {}

    def flush(self) -> None:
        """Do nothing. Numba would discard its index here; these files need none, since `load` ignores outdated ones."""

    def save(self, key: Any, data: Any) -> None:
        """Save the machine code for `key` (argument types and machine); the file appears whole or not at all."""
        from numba.core.serialize import dumps  # takes a second

        target = self.locate(key)
        pending = target.with_name(f"{target.name}.tmp.{uuid.uuid4().hex[:16]}")
        try:
            pending.write_bytes(self._identity + dumps((key, data)))  # type: ignore[no-untyped-call]
            pending.replace(target)
        except BaseException:
            pending.unlink(missing_ok=True)
            raise
        finally:
            self._unlock(target)

    def load(self, key: Any) -> Any:
        """Return the machine code for `key` from the same sources and the same Numba; None if there is none.

        If the result is None, the caller compiles and calls `save`. Processes that start together need the same
        functions, so only one of them compiles a function, and the others wait here for its file.
        """
        found = self._read(key)
        if found is None and self._lock(self.locate(key)):
            found = self._read(key)
            if found is not None:
                self._unlock(self.locate(key))
        return found

    def _read(self, key: Any) -> Any:
        try:
            content = self.locate(key).read_bytes()
        except OSError:
            return None
        if not content.startswith(self._identity):
            return None
        try:
            found, data = pickle.loads(memoryview(content)[len(self._identity) :])
        except (EOFError, ValueError, pickle.UnpicklingError):
            return None
        return data if found == key else None

    def _lock(self, target: Path) -> bool:
        """Take the lock for compiling `target`, waiting while another process has it; return whether it was taken.

        It is not taken if files cannot be locked, or if the wait takes too long. POSIX locks belong to a process, so a
        child that is forked meanwhile does not keep the lock.
        """
        if target in self._locks:
            return True
        try:
            descriptor = os.open(target.with_name(f"{target.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return False
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                time.sleep(_PAUSE)
            except OSError:
                break
            else:
                self._locks[target] = descriptor
                return True
        os.close(descriptor)
        return False

    def _unlock(self, target: Path) -> None:
        descriptor = self._locks.pop(target, None)
        if descriptor is not None:
            target.with_name(f"{target.name}.lock").unlink(missing_ok=True)
            os.close(descriptor)

    def locate(self, key: Any) -> Path:
        """Return the path of the file for `key`."""
        return self._folder / f"{self._base}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"


def keep_compiled(kernel: Any, sources: Iterable[str]) -> None:
    """Cache the machine code of `kernel` on disk until one of its sources changes.

    Args:
        kernel: the result of `numba.njit(cache=True)`.
        sources: modules of the kernel and of all functions that are compiled into it.
    """
    numbered = kernel._cache._cache_file
    stamp = hashlib.sha256(b"".join(map(_hash_source, sorted(sources)))).hexdigest()
    kernel._cache._cache_file = KernelFiles(numbered._cache_path, numbered._index_name.removesuffix(".nbi"), stamp)


@cache
def _hash_source(module: str) -> bytes:
    return hashlib.sha256(inspect.getsource(sys.modules[module]).encode()).digest()


_LOCK = threading.RLock()

_SOURCES: dict[int, set[str]] = {}
"""By the id of a compiled function: its module, and the modules of all functions that it calls."""


class Deferred:
    """A function that is compiled at its first call, or together with the first compiled function that calls it.

    Args:
        function: the Python function.
        make: compiles a function, given the function and the modules of it and of all functions that it calls.
    """

    def __init__(self, function: FunctionType, make: Callable[[FunctionType, set[str]], Any]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._make = make
        self._made: Any = None
        self._sources = {function.__module__}

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function."""
        return (self._made or self.resolve())(*arguments)

    def resolve(self) -> Any:
        """Return the compiled function.

        Numba resolves the globals of a function when it compiles it, so deferred functions among them are compiled and
        replaced first.
        """
        with _LOCK:
            if self._made is None:
                namespace = self._function.__globals__
                for name in self._function.__code__.co_names:
                    called = namespace.get(name)
                    if isinstance(called, Deferred) and called is not self:
                        namespace[name] = called.resolve()
                        self._sources |= called._sources
                    elif id(called) in _SOURCES:
                        self._sources |= _SOURCES[id(called)]
                made = self._make(self._function, self._sources)
                _SOURCES[id(made)] = self._sources
                if namespace.get(self._function.__name__) is self:
                    namespace[self._function.__name__] = made
                self._made = made
        return self._made


def njit(**options: Any) -> Callable[[Any], Callable[..., Any]]:
    """Decorate a module-level function like `numba.njit` with these options, but compile it only when it is called.

    With the option `cache`, its machine code is cached as in `keep_compiled`.
    """

    def make(function: FunctionType, sources: set[str]) -> Any:
        import numba  # takes a second

        made = numba.njit(**options)(function)
        if options.get("cache"):
            keep_compiled(made, sources)
        return made

    return lambda function: Deferred(function, make)


def intrinsic(function: Any) -> Any:
    """Decorate a function like `numba.extending.intrinsic`."""

    def make(function: FunctionType, _: set[str]) -> Any:
        from numba.extending import intrinsic  # takes a second

        return intrinsic(function)

    return Deferred(function, make)


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
load_i32 = _make_load(32, swap=False, signed=True)
load_u32 = _make_load(32, swap=False, signed=False)
load_i64 = _make_load(64, swap=False, signed=True)
load_u16_big = _make_load(16, swap=True, signed=False)
load_i32_big = _make_load(32, swap=True, signed=True)
load_i64_big = _make_load(64, swap=True, signed=True)
store_8 = _make_store(8, swap=False)
store_32 = _make_store(32, swap=False)
store_64 = _make_store(64, swap=False)
store_16_big = _make_store(16, swap=True)
store_32_big = _make_store(32, swap=True)
store_64_big = _make_store(64, swap=True)
copy: Any = intrinsic(_copy)
