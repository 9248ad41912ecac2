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


class Deferred:
    """A function that is compiled at its first call, or with the first function that calls it.

    Args:
        function: the Python function.
        make: compiles it.
    """

    def __init__(self, function: FunctionType, make: Callable[[FunctionType], Any]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._make = make
        self._made: Any = None

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
                places = self._function.__globals__
                for name in self._function.__code__.co_names:
                    if isinstance(called := places.get(name), Deferred) and called is not self:
                        places[name] = called.resolve()
                made = self._make(self._function)
                if places.get(self._function.__name__) is self:
                    places[self._function.__name__] = made
                self._made = made
        return self._made


def njit(**options: Any) -> Callable[[Any], Callable[..., Any]]:
    """Decorate a module-level function like `numba.njit` with these options."""

    def make(function: FunctionType) -> Any:
        import numba  # takes a second

        return numba.njit(**options)(function)

    return lambda function: Deferred(function, make)


def intrinsic(function: Any) -> Any:
    """Decorate a function like `numba.extending.intrinsic`."""

    def make(function: FunctionType) -> Any:
        from numba.extending import intrinsic  # takes a second

        return intrinsic(function)

    return Deferred(function, make)
