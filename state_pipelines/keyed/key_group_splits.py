"""Spans of a key group, so that a large one can be read by several tasks.

Only a walk over a section finds where records begin. It notes a position every so many bytes, for each state where its
records lie: they are side by side in every format.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.keyed.canonical.sections import RecordSpan, Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.keyed.canonical.section_data import RecordPosition

_SHARES = 8
"""Positions per wanted span that a walk notes, so that spans can be even."""


@dataclass(frozen=True, slots=True)
class StateRun:
    """Span of the records of one state in a key group.

    Attributes:
        state_id: the state.
        positions: where some of its records begin, the first one too.
        end: after the last record.
        counts: how many records there are in front of each position, and all; none where records say how long they are.
    """

    state_id: int
    positions: tuple[RecordPosition, ...]
    end: RecordPosition
    counts: tuple[int, ...] = ()


class RunIndex:
    """Runs that were found, by section; a copy in another process starts empty.

    Each state is split on its own, but one walk finds the runs of all.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[Section, int], tuple[StateRun, ...]] = {}

    def find(
        self, section: Section, step: int, walk: Callable[[Section, int], tuple[StateRun, ...]]
    ) -> tuple[StateRun, ...]:
        """The runs of a section with positions about `step` bytes apart, by `walk` unless they are known."""
        if (section, step) not in self._runs:
            self._runs[section, step] = walk(section, step)
        return self._runs[section, step]

    def __reduce__(self) -> tuple[type[RunIndex], tuple[()]]:
        return RunIndex, ()


def choose_step(size: int) -> int:
    """Bytes of data between the positions that a walk notes, for spans of about `size` bytes."""
    return max(1, size // _SHARES)


def cut_run(section: Section, run: StateRun, size: int) -> Iterator[Section]:
    """The records of a state in even spans of at most about `size` bytes of file, in their order."""
    shares = np.array([position.share for position in run.positions], np.int64)
    total = run.end.share - int(shares[0])
    number = max(1, -(-total // size))
    wishes = int(shares[0]) + total * np.arange(1, number) // number
    chosen = np.unique(np.searchsorted(shares, wishes))
    inside = chosen[(chosen > 0) & (chosen < len(shares))].tolist()
    positions = (*run.positions, run.end)
    for first, last in pairwise([0, *inside, len(run.positions)]):
        start, end = positions[first], positions[last]
        count = run.counts[last] - run.counts[first] if run.counts else -1
        span = RecordSpan(run.state_id, start.position - start.base, end.position - start.base, count)
        yield Section(section.key_group, start.start, end.after, span=span)
