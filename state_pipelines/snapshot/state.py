"""A state: what every kind of state can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.errors import StateError
from state_pipelines.snapshot.python_states import python_name
from state_pipelines.snapshot.representation import format_count, make_html_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.state_table import TableOptions
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.registered_states import StateKind
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot.operator_files import OperatorFiles
    from state_pipelines.snapshot.subtask_states import StateStatistics, SubtaskState


class State(ABC):
    """One state of an operator.

    Attributes:
        operator: the operator.
        subtask_states: the state of each subtask that has it.
    """

    subtask_states: Sequence[SubtaskState]

    def __init__(self, operator: OperatorFiles) -> None:
        self.operator = operator

    def __repr__(self) -> str:
        return f"<State {self._describe()}>"

    def _repr_html_(self) -> str:
        """Show the columns, or why there are none, in notebooks."""
        caption = f"{self._describe()}, {self.kind}"
        try:
            rows = [(field.name, str(field.type)) for field in self.schema]
        except StateError as error:
            return make_html_table(caption, ("error",), [(str(error),)], 1)
        return make_html_table(caption, ("column", "type"), rows, len(rows))

    def _describe(self) -> str:
        """One line; only headers of files are read, which is done when there is a state."""
        return f"{self.name} of {self.operator.label}, {format_count(len(self.subtask_states), 'subtask')}"

    @property
    @abstractmethod
    def info(self) -> StateMetaInfo:
        """Name, kind and serializers, as the first subtask wrote them."""

    @property
    @abstractmethod
    def kind(self) -> StateKind:
        """Kind of the state.

        VALUE, LIST, MAP, REDUCING, AGGREGATING or TIMER of keyed state; SPLIT_DISTRIBUTE, UNION or BROADCAST of
        operator state; RAW of state that only its operator knows; IN_FLIGHT of network buffers.
        """

    @property
    def name(self) -> str:
        """State name."""
        return self.info.name

    @property
    def python_name(self) -> str:
        """Name in Python of a state of a Python function, else empty."""
        return python_name(self.info)

    @property
    def label(self) -> str:
        """The name under which the state is shown: that in Python, if any."""
        return self.python_name or self.name

    @property
    def serializer(self) -> Serializer:
        """Serializer of the value; of list and map state that of the whole list or map."""
        return self.info.value_serializer

    @property
    @abstractmethod
    def is_keyed(self) -> bool:
        """Whether the state belongs to keys."""

    @abstractmethod
    def make_schema(self, options: TableOptions | None = None) -> pa.Schema:
        """Schema of the batches under `options`."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the table of all columns."""
        return self.make_schema()

    @property
    @abstractmethod
    def undecoded(self) -> str:
        """Why tables of this state hold raw bytes; empty when they do not."""

    @abstractmethod
    def batches(
        self, options: TableOptions | None = None, key_groups: KeyGroupRange | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The state, a batch at a time.

        Args:
            options: what is wanted; default everything, decoded.
            key_groups: only these; keyed state only.

        Raises:
            StateError: the state cannot be read; names file, offset, operator and state.
        """

    def to_arrow(self, options: TableOptions | None = None, key_groups: KeyGroupRange | None = None) -> pa.Table:
        """The state as one table, see `batches`."""
        return pa.Table.from_batches(self.batches(options, key_groups), self.make_schema(options))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the state as a stream of the Arrow PyCapsule interface, one batch at a time.

        So `pyarrow.table(state)`, `pyarrow.RecordBatchReader.from_stream(state)`, polars, DuckDB and pandas 3 take a
        state directly; those that read streams do not hold all of it in memory.

        Args:
            requested_schema: capsule of the schema that the consumer wants: the same columns with types to which Arrow
                can cast, such as `large_string`.

        Raises:
            StateError: the state has no table. Errors while it is read are those of the consumer, with the same text.
            pyarrow.ArrowException: the state cannot be cast to the requested schema.
        """
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    @abstractmethod
    def count(self) -> StateStatistics:
        """Walk over the state and count; nothing is decoded."""
