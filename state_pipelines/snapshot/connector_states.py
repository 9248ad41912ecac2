"""The connector that wrote an operator list state, and its splits or committables as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_pipelines.connectors import AmbiguousState, ConnectorState, detect, find_candidates
from state_pipelines.connectors.connector_state import ConnectorStateKind
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.serializers.tree import Serializer

CONNECTOR_COLUMN = "connector"
SPLIT_COLUMN = "split"


@dataclass(frozen=True)
class Detected:
    """The connector that wrote an operator list state, as far as it is known.

    Attributes:
        state: the decoded state; None when it is that of no known connector, or of one of several.
        candidates: the connectors that it could be that of, when there are several and nobody says which.
        is_foreign: it has elements, and no known connector wrote them.
    """

    state: ConnectorState | None = None
    candidates: tuple[str, ...] = ()
    is_foreign: bool = False

    @property
    def ambiguity(self) -> str:
        """Why the state has no columns of a connector although it could; empty when nothing is open."""
        if not self.candidates:
            return ""
        names = f"{', '.join(self.candidates[:-1])} and {self.candidates[-1]}"
        return f"could be the state of {names}; say which one (--connector OPERATOR=NAME, option connectors)"

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The fields `connector` and `split`; none when the connector is not known."""
        if self.state is None:
            return ()
        split = pa.struct([each.with_nullable(True) for each in self.state.columns])
        return pa.field(CONNECTOR_COLUMN, pa.string(), False), pa.field(SPLIT_COLUMN, split)

    def cut(self, first: int, number: int) -> Detected:
        """The connector's view of `number` elements, the first of which is element `first`."""
        if self.state is None:
            return self
        # Tables show rows; the values stay where they were decoded.
        return replace(self, state=replace(self.state, values=(), rows=self.state.rows[first : first + number]))

    def spread(self, first: int, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], pa.Array]:
        """Rows for some elements, one per split; an element that holds none has one row without a split.

        Args:
            first: position of the first element among those of all subtasks.
            number: of elements.

        Returns:
            (i64[n] position of the element, counted from `first`; whether the row is the first of its element; the
            splits).
        """
        assert self.state is not None
        rows = self.state.rows[first : first + number]
        counts = np.array([max(1, len(each)) for each in rows], np.int64)
        elements = np.repeat(np.arange(number, dtype=np.int64), counts)
        leading = np.ones(len(elements), np.bool_)
        leading[1:] = elements[1:] != elements[:-1]
        splits = [row for each in rows for row in (each or (None,))]
        return elements, leading, pa.array(splits, self.fields[1].type)


NOTHING_DETECTED = Detected()


def find_connector(
    state_name: str,
    serializers: Sequence[Serializer],
    elements: Sequence[bytes],
    context: LayoutContext,
    chosen: str | None = None,
) -> Detected:
    """Detect the state that all subtasks together have; see `detection.detect`.

    Args:
        state_name: name of the state.
        serializers: of the elements, one per subtask.
        elements: of all subtasks.
        context: what layouts depend on beyond serializers.
        chosen: the connector that the caller names, where several fit.

    Raises:
        UsageError: several fit, and the one that the caller names is not among them.
    """
    if len(set(serializers)) != 1:
        return Detected()
    match detect(state_name, serializers[0], elements, context):
        case ConnectorState() as state:
            return Detected(state)
        case AmbiguousState() as state:
            return _decide(state, chosen)
    return Detected(is_foreign=bool(elements))


def may_be_known(state_name: str, serializers: Sequence[Serializer]) -> bool:
    """Whether a connector has states of this name and serializer, so that looking at the elements can pay."""
    return len(set(serializers)) == 1 and bool(find_candidates(state_name, serializers[0]))


def _decide(state: AmbiguousState, chosen: str | None) -> Detected:
    if chosen is None:
        return Detected(candidates=state.connectors)
    for candidate in state.candidates:
        if candidate.connector == chosen:
            return Detected(candidate)
    raise UsageError(
        f"the state cannot be that of {chosen}", hint=f"It could be that of {' or '.join(state.connectors)}"
    )


def narrow_enumerator(candidates: Iterable[str], splits: Iterable[Detected]) -> tuple[str, ...]:
    """Return the connectors that an enumerator can still be that of, after the splits of the readers.

    Args:
        candidates: the connectors that fit the enumerator.
        splits: what the list states of the same operator are.
    """
    left = tuple(candidates)
    for detected in splits:
        names = detected.candidates
        if detected.state is not None and detected.state.kind is ConnectorStateKind.SPLIT:
            names = (detected.state.connector,)
        if names or detected.is_foreign:
            left = tuple(each for each in left if each in names)
    return left
