"""Functions that Numba compiles, made when the first of them is called.

Importing Numba takes about a second, and much that is done with a snapshot reads no record at all: modules with kernels
import `njit` from here, so that they can be imported for nothing.
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
    """A function that is made when it is first called, or when another one that calls it is made.

    Args:
        function: what it is made of.
        make: makes it.
    """

    def __init__(self, function: FunctionType, make: Callable[[FunctionType], Any]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._make = make
        self._made: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Call what is made, which happens now if it has not."""
        return (self._made or self.resolve())(*arguments)

    def resolve(self) -> Any:
        """What was made.

        Numba sees the globals of a function when it compiles it, and what it finds there must be its own: those that
        are still deferred are made too, and take their places.
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
    """As `numba.njit` with these options, which takes a function at the top of a module."""

    def make(function: FunctionType) -> Any:
        import numba  # takes a second

        return numba.njit(**options)(function)

    return lambda function: Deferred(function, make)


def intrinsic(function: Any) -> Any:
    """As `numba.extending.intrinsic`."""

    def make(function: FunctionType) -> Any:
        from numba.extending import intrinsic  # takes a second

        return intrinsic(function)

    return Deferred(function, make)
