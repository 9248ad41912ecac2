"""Functions of windows (`pyflink.datastream.functions`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.aggregations import Function

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.datastream.states import KeyedStateStore
    from state_pipelines.datastream.windows import TimeWindow


class WindowFunction(Function, ABC):
    """Computes what a window emits from its elements, or from its only value if they are reduced or aggregated."""

    @abstractmethod
    def apply(self, key: Any, window: TimeWindow, inputs: Iterable[Any]) -> Iterable[Any]:
        """Return what the window emits.

        Args:
            key: of the window.
            window: the window.
            inputs: its elements.
        """


class PassThroughWindowFunction(WindowFunction):
    """Emits the elements, or the only value."""

    def apply(self, key: Any, window: TimeWindow, inputs: Iterable[Any]) -> Iterable[Any]:
        """Return the inputs."""
        return inputs


class ProcessWindowFunction(Function, ABC):
    """As `WindowFunction`, with times and state of the window."""

    class Context(ABC):
        """The window at hand; valid during the call only."""

        @abstractmethod
        def window(self) -> TimeWindow:
            """Return the window."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Return the processing time in epoch milliseconds."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Return the watermark in epoch milliseconds."""

        @abstractmethod
        def window_state(self) -> KeyedStateStore:
            """Return the registration of states per key and window; `clear` must clear them."""

        @abstractmethod
        def global_state(self) -> KeyedStateStore:
            """Return the registration of states per key."""

    @abstractmethod
    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterable[Any]:
        """Return what the window emits.

        Args:
            key: of the window.
            context: of the window.
            elements: of the window.
        """

    # Functions without state per window have nothing to clear.
    def clear(self, context: ProcessWindowFunction.Context) -> None:
        """Clear the states of a window that ends."""
