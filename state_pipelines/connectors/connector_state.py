"""Decoded state of a connector, from operator state or a source coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.connectors.element_frames import Versioned

Row = dict[str, Any]
"""A row of the table of a state, by column."""

CONNECTOR = pa.field("connector", pa.string(), False)
LIST_INDEX = pa.field("list_index", pa.int32(), False)


class ConnectorStateKind(StrEnum):
    """Kind of state that a connector keeps."""

    SPLIT = "split"
    WRITER = "writer"
    COMMITTER = "committer"
    TRANSACTIONAL_IDS = "transactional-ids"
    ENUMERATOR = "enumerator"


@dataclass(frozen=True)
class ConnectorState:
    """Decoded state of a connector.

    Attributes:
        connector: such as `kafka`.
        kind: kind of the state.
        values: the content of each element, as defined by the module of the connector.
        rows: rows of each element; a committer has many per element.
        columns: schema of the rows.
    """

    connector: str
    kind: ConnectorStateKind
    values: tuple[object, ...]
    rows: tuple[tuple[Mapping[str, Any], ...], ...] = field(repr=False)
    columns: pa.Schema = field(repr=False)

    @property
    def schema(self) -> pa.Schema:
        """`connector`, `list_index` (position of the element), then the columns of the connector."""
        return pa.schema([CONNECTOR, LIST_INDEX, *self.columns])

    def to_batch(self) -> pa.RecordBatch:
        """Return all rows, in the order of the elements."""
        head = {"connector": self.connector}
        rows = [{**head, "list_index": index, **row} for index, rows in enumerate(self.rows) for row in rows]
        return pa.RecordBatch.from_pylist(rows, schema=self.schema)


@dataclass(frozen=True)
class AmbiguousState:
    """State that fits several connectors, which the bytes do not distinguish.

    Attributes:
        candidates: how each of them reads it.
    """

    candidates: tuple[ConnectorState, ...]

    @property
    def connectors(self) -> tuple[str, ...]:
        """Names of the connectors."""
        return tuple(candidate.connector for candidate in self.candidates)


@dataclass(frozen=True)
class CoordinatorState:
    """State of an operator coordinator.

    Attributes:
        size: total bytes.
        version: of the source coordinator; None when the bytes are not those of one.
        enumerator: the checkpoint of the split enumerator; None if the bytes are not those of a source coordinator.
        rest: bytes after it: in version 0 the split assignments, later none.
        state: the decoded enumerator; None when no known connector wrote it.
    """

    size: int
    version: int | None = None
    enumerator: Versioned | None = None
    rest: bytes = field(default=b"", repr=False)
    state: ConnectorState | AmbiguousState | None = None
