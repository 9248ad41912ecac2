"""An operator of a snapshot and its states."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.errors import NotFoundError, StateError, Where, at
from state_pipelines.keyed.operator_table import WINDOW, OperatorTable, OperatorTableOptions, group_files
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot.file_scans import narrow_key_groups, scan_files
from state_pipelines.snapshot.keyed_state import KeyedState, read_states
from state_pipelines.snapshot.operator_files import OperatorFiles
from state_pipelines.snapshot.raw_state import IN_FLIGHT_NAME
from state_pipelines.snapshot.representation import make_html_table
from state_pipelines.snapshot.survey import (
    Survey,
    find_in_flight,
    raise_first,
    survey,
    survey_keyed,
    survey_operator,
    survey_raw,
)
from state_pipelines.snapshot.table_states import choose_states

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from state_pipelines.keyed.state_table import TableOptions
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.snapshot.raw_state import InFlightState
    from state_pipelines.snapshot.state import State


class Operator(OperatorFiles):
    """One operator of a snapshot."""

    def __repr__(self) -> str:
        return f"<Operator {self._describe()}>"

    def _repr_html_(self) -> str:
        """Show the states, in notebooks; reads headers of files. State that cannot be read is a row with its error."""
        found = self.survey()
        rows = [(state.label, str(state.kind), describe(state.serializer), "") for state in found.states]
        rows += [("", "", "", error) for error in dict.fromkeys(str(failure.error) for failure in found.failures)]
        head = ("state", "kind", "type", "error") if found.failures else ("state", "kind", "type")
        return make_html_table(self._describe(), head, (row[: len(head)] for row in rows), len(rows))

    def _describe(self) -> str:
        """One line; nothing is read."""
        name = f" ({self.name})" if self.name and self.name != self.label else ""
        return f"{self.label}{name}, parallelism {self.parallelism} of {self.max_parallelism}"

    @cached_property
    def readable(self) -> Operator:
        """The operator without the state in files that cannot be read; `find_failures` says what is left out."""
        return Operator(self.snapshot, self.metadata, self.uid, is_partial=True)

    @cached_property
    def states(self) -> tuple[State, ...]:
        """Keyed states and timers, then operator list states, then broadcast states, then raw states.

        Raises:
            StateError: a handle cannot be read, or is of a format that is not covered; see `survey`.
        """
        return tuple(self._iter_states())

    def survey(self, *, in_flight: bool = False) -> Survey:
        """The states as far as they can be read, and what cannot.

        Args:
            in_flight: the data in flight too.
        """
        return survey(self, in_flight=in_flight)

    def _iter_states(self) -> Iterator[State]:
        yield from self.keyed_states
        yield from self.operator_states
        yield from self.raw_states

    def state(self, name: str) -> State:
        """A state by name (of Python functions also that in Python), keyed first; `_in_flight_data` is `in_flight`.

        Raises:
            NotFoundError: there is none; the error lists what there is.
            StateError: a file that may hold the state cannot be read.
        """
        in_python = None
        failure: StateError | None = None
        kinds: tuple[Callable[[], tuple[State, ...]], ...] = (
            lambda: self.keyed_states,
            lambda: self.operator_states,
            lambda: self.raw_states,
        )
        for read in kinds:
            try:
                states = read()
            except StateError as error:
                # State of another kind is in other files.
                failure = failure or error
                continue
            for state in states:
                if state.name == name:
                    return state
                if state.python_name == name and in_python is None:
                    in_python = state
        if in_python is not None:
            return in_python
        if name == IN_FLIGHT_NAME and self.in_flight is not None:
            return self.in_flight
        if failure is not None:
            raise failure
        if self.is_partial:
            raise_first(self.survey().failures)
        known = ", ".join(state.label for state in self.states)
        raise NotFoundError(
            f"the operator has no state {name}",
            where=Where(file=str(self.snapshot.location.metadata), operator=self.label),
            hint=f"It has {known}" if known else "It has no states",
        )

    def make_table(self, options: OperatorTableOptions | None = None) -> OperatorTable:
        """The table of all keyed states, see `batches`."""
        options = options or OperatorTableOptions()
        with at(operator=self.label):
            return OperatorTable(choose_states(self, self.keyed_states, options), options)

    def make_schema(self, options: OperatorTableOptions | None = None) -> pa.Schema:
        """Schema of the batches under `options`."""
        return self.make_table(options).schema

    @property
    def schema(self) -> pa.Schema:
        """Schema of the table of all keyed states."""
        return self.make_schema()

    def batches(
        self, options: OperatorTableOptions | None = None, key_groups: KeyGroupRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All keyed states as one table, a row per key and namespace, a batch at a time.

        Args:
            options: what is wanted; default all keyed states, without timers.
            key_groups: only these.

        Raises:
            StateError: the state cannot be read, or has no such table; see `OperatorTable`.
        """
        table = self.make_table(options)
        key_groups = narrow_key_groups(self, table.needle, key_groups)
        context = self.record_context
        with at(operator=self.label):
            reads = (
                partial(table.read, split, subtask, context, groups)
                for subtask, files in group_files(self.keyed_files).items()
                if key_groups is None or any(each.key_groups.intersect(key_groups) for each in files)
                for split, groups in table.split(files, context, key_groups)
            )
            for _, batches in scan_files(self, reads, lambda read: read(), WINDOW):
                yield from batches

    def batches_by_state(
        self,
        names: Collection[str] | None = None,
        options: TableOptions | None = None,
        key_groups: KeyGroupRange | None = None,
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Rows of keyed states and timers, each file read once: the name of a state, and a batch of its rows.

        Reading the states one after the other reads files of the canonical and heap formats, which hold all of them,
        as often.

        Args:
            names: of states; default all.
            options: which columns; default all.
            key_groups: only these.

        Raises:
            NotFoundError: there is no such keyed state.
            StateError: a state cannot be read.
        """
        known = {state.label: state for state in self.keyed_states}
        known |= {state.name: state for state in self.keyed_states if names is not None}
        missing = [name for name in names or () if name not in known]
        if missing:
            raise NotFoundError(
                f"the operator has no keyed state {missing[0]}",
                where=Where(file=str(self.snapshot.location.metadata), operator=self.label),
                hint=f"It has {', '.join(known)}" if known else "It has none",
            )
        yield from read_states([known[name] for name in (known if names is None else names)], options, key_groups)

    def to_arrow(
        self, options: OperatorTableOptions | None = None, key_groups: KeyGroupRange | None = None
    ) -> pa.Table:
        """All keyed states as one table, see `batches`."""
        return pa.Table.from_batches(self.batches(options, key_groups), self.make_schema(options))

    @cached_property
    def keyed_states(self) -> tuple[KeyedState, ...]:
        """Keyed states and timers; errors as of `states`."""
        found, failures = survey_keyed(self)
        if not self.is_partial:
            raise_first(failures)
        return found

    @cached_property
    def operator_states(self) -> tuple[State, ...]:
        """List states, then broadcast states, of which only headers are read; errors as of `states`."""
        found, failures = survey_operator(self)
        if not self.is_partial:
            raise_first(failures)
        return found

    @cached_property
    def raw_states(self) -> tuple[State, ...]:
        """Raw keyed state that is not timers, keyed state without a header, raw operator state; errors as `states`."""
        found, failures = survey_raw(self)
        if not self.is_partial:
            self.snapshot.keyed_files.find_unread(self.metadata, self.snapshot.layout_context)
            raise_first(failures)
        return found

    @cached_property
    def in_flight(self) -> InFlightState | None:
        """In-flight data of an unaligned checkpoint; None when there is none. It is not among `states`."""
        return find_in_flight(self)
