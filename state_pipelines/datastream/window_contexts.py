"""Context of the window at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.datastream.window_functions import ProcessWindowFunction
from state_pipelines.datastream.windows import TimeWindow
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from state_pipelines.datastream.function_operator import FunctionOperator
    from state_pipelines.datastream.keyed_states import BackendKeyedStates


class WindowContext(ProcessWindowFunction.Context):
    """The window at hand.

    Args:
        operator: whose watermark and clock count.
        window_states: registers states per key and window.
        global_states: registers states per key.
        is_merging: windows are merged, and so have no state of their own.
    """

    def __init__(
        self,
        operator: FunctionOperator,
        window_states: BackendKeyedStates,
        global_states: BackendKeyedStates,
        *,
        is_merging: bool,
    ) -> None:
        self._operator = operator
        self._window_states = window_states
        self._global_states = global_states
        self._is_merging = is_merging
        self._window = TimeWindow(0, 0)

    def set(self, window: TimeWindow) -> None:
        """Set the window."""
        self._window = window
        self._window_states.set_current_namespace({"start": window.start, "end": window.end})

    def window(self) -> TimeWindow:
        """Return the window."""
        return self._window

    def current_processing_time(self) -> int:
        """Return the processing time."""
        return self._operator.read_clock()

    def current_watermark(self) -> int:
        """Return the watermark."""
        return self._operator.watermark

    def window_state(self) -> BackendKeyedStates:
        """Return the registration of states per key and window.

        Raises:
            UsageError: windows are merged.
        """
        if self._is_merging:
            raise UsageError("Per-window state is not allowed when using merging windows.")
        return self._window_states

    def global_state(self) -> BackendKeyedStates:
        """Return the registration of states per key."""
        return self._global_states
