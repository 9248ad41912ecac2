"""Lazy Numba functions, compiled at their first call.

Importing Numba takes about a second, and many operations read no records: modules with kernels import `njit` from here,
so that importing them is cheap.
"""

from __future__ import annotations

import threading
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FunctionType

_LOCK = threading.RLock()

_SOURCES: dict[int, set[str]] = {}
"""Modules of compiled functions and of those that they call, by the id of what their `Deferred` holds."""


class Deferred:
    """A function that is compiled at its first call, or with the first function that calls it.

    Args:
        function: the Python function.
        make: compiles it; its second argument are the modules of the function and of those that it calls.
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
    """Decorate a module-level function like `numba.njit` with these options; `cache` as in `kernel_cache`."""

    def make(function: FunctionType, sources: set[str]) -> Any:
        import numba  # takes a second

        from state_pipelines.binary.kernel_cache import keep_compiled

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
