"""Functions that combine values: `ReduceFunction` and `AggregateFunction` (`pyflink.datastream.functions`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.datastream.runtime_context import RuntimeContext


class Function:
    """Base class of all functions."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Prepare the function, for example register states; called once, before anything else.

        Args:
            runtime_context: of the subtask.
        """

    def close(self) -> None:
        """Release what `open` has taken; called once, after everything else."""


class ReduceFunction(Function, ABC):
    """Combines two values of a type to one of the same type."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Combine two values.

        Args:
            value1: the value so far.
            value2: the new value.
        """


class ReduceFunctionWrapper(ReduceFunction):
    """A plain function as a `ReduceFunction`."""

    def __init__(self, func: Callable[[Any, Any], Any]) -> None:
        self._func = func

    def reduce(self, value1: Any, value2: Any) -> Any:
        """Call the function."""
        return self._func(value1, value2)


class AggregateFunction(Function, ABC):
    """Adds values to an accumulator, which has another type than values and result may have."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Return the accumulator of no values."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Return the accumulator with one value more; the given one may be changed and returned."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Return the result of an accumulator."""

    @abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Return the accumulator of the values of both; session windows need it."""
