"""Limit of the values that the bytes of one record expand to.

Object graphs (Kryo, Java serialization, pickles) name an object again by a reference of a few bytes, and columns and
JSON, which are trees, repeat the object. Nulls in a row and items without bytes take no bytes at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.errors import UnsupportedError, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SMALL_VALUES, SMALL_PER_BYTE = 4_096, 32
LARGE_VALUES, LARGE_PER_BYTE = 1_000_000, 8
"""A record of n bytes may expand to 4,096 + 32 n values, and to no more than 1,000,000 + 8 n."""

BYTES_PER_VALUE = 16
"""Bytes of text or binary data that are repeated count as one more value each so many bytes."""

HINT = "The bytes can be copied as they are: it refers to the same objects so often that it cannot be shown"


class ExpansionBudget:
    """Count of the values of one record, which ends with an error at the limit.

    Args:
        size: bytes of the record.
        name: file name for the error.
        offset: position of the record for the error.

    Attributes:
        count: values so far.
    """

    __slots__ = ("_limit", "_name", "_offset", "count")

    def __init__(self, size: int, name: str | None = None, offset: int | None = None) -> None:
        self.count = 0
        self._limit = min(SMALL_VALUES + SMALL_PER_BYTE * size, LARGE_VALUES + LARGE_PER_BYTE * size)
        self._name = name
        self._offset = offset

    @property
    def left(self) -> int:
        """Values that are still allowed."""
        return self._limit - self.count

    def spend(self, values: int) -> None:
        """Count more values.

        Raises:
            UnsupportedError: they are more than the bytes of the record may expand to.
        """
        self.count += values
        if self.count > self._limit:
            where = Where(file=self._name, offset=self._offset)
            raise UnsupportedError(f"the value unfolds to more than {self._limit:,} values", where=where, hint=HINT)


class TreeSizes:
    """Sizes of objects when each reference is a copy; every object is visited once.

    Args:
        inspect: returns the number of values of an object without those of the objects inside, and these objects.
        most_levels: maximum depth. Objects that contain themselves are deeper.
        what: the value, for the error.
    """

    def __init__(self, inspect: Callable[[Any], tuple[int, Iterable[Any]]], most_levels: int, what: str) -> None:
        self._inspect = inspect
        self._most_levels = most_levels
        self._what = what
        # Keeps the objects as well, so that no other one gets the id of one of them.
        self._known: dict[int, tuple[int, int, Any]] = {}

    def measure(self, value: Any, depth: int = 0) -> int:
        """Return the number of values.

        Raises:
            UnsupportedError: the value is too deep.
        """
        return self._measure(value, depth)[0]

    def _measure(self, value: Any, depth: int) -> tuple[int, int, Any]:
        found = self._known.get(id(value))
        if depth + (found[1] if found else 1) > self._most_levels:
            raise UnsupportedError(
                f"{self._what} is nested more than {self._most_levels} levels deep, or holds itself", hint=HINT
            )
        if found is None:
            count, inside = self._inspect(value)
            levels = 1
            for each in inside:
                inner_count, inner_levels, _ = self._measure(each, depth + 1)
                count += inner_count
                levels = max(levels, inner_levels + 1)
            found = self._known[id(value)] = count, levels, value
        return found


def count_repeated(data: str | bytes | bytearray) -> int:
    """Return the number of values that a text or bytes count as."""
    return 1 + len(data) // BYTES_PER_VALUE
