"""Reports of connector state: splits of sources, committables of sinks, enumerators."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.connectors import AmbiguousState, ConnectorState, read_coordinator
from state_pipelines.connectors.registry import LIST_INDEX, ConnectorStateKind
from state_pipelines.operations.json_rows import to_rows
from state_pipelines.snapshot.operator_state import narrow_enumerator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.snapshot.operator_state import Detected

ROW_LIMIT = 1000
"""Rows of a connector that a report holds; tables of the state have all."""


@dataclass(frozen=True)
class ConnectorReport:
    """State of a connector.

    Attributes:
        connector: such as `kafka`; None when several could have written the state.
        kind: kind of the state; None likewise.
        summary: in words, such as `2 splits` or `3 committables pending for checkpoint 7`.
        candidates: the connectors that could have written it, when there are several.
        rows: how many splits or committables there are.
        columns: names of the columns of a row.
        first_rows: the first `ROW_LIMIT` of them, ready for JSON.
    """

    connector: str | None
    kind: ConnectorStateKind | None
    summary: str
    candidates: list[str] = field(default_factory=list)
    rows: int = 0
    columns: list[str] = field(default_factory=list)
    first_rows: list[dict[str, object]] = field(default_factory=list)


@dataclass(frozen=True)
class CoordinatorReport:
    """State of an operator coordinator.

    Attributes:
        bytes: its size.
        version: of the source coordinator; None when the bytes are not those of one.
        enumerator_version: of the serializer of the split enumerator, likewise.
        enumerator_bytes: size of the state of the enumerator, likewise.
        connector: the enumerator, when it is that of a known connector or of one of several.
    """

    bytes: int
    version: int | None = None
    enumerator_version: int | None = None
    enumerator_bytes: int | None = None
    connector: ConnectorReport | None = None


def report_connector(detected: Detected) -> ConnectorReport | None:
    """The report on a list state; None when it is that of no known connector."""
    if detected.state is not None:
        return _report_state(detected.state)
    if detected.candidates:
        return ConnectorReport(None, None, detected.ambiguity, list(detected.candidates))
    return None


def report_coordinator(data: bytes, chosen: str | None = None, splits: Iterable[Detected] = ()) -> CoordinatorReport:
    """The report on coordinator state.

    Args:
        data: the state.
        chosen: the connector that the caller names, where several fit.
        splits: what the list states of the operator are, which settle it otherwise.
    """
    state = read_coordinator(data)
    if state.enumerator is None:
        return CoordinatorReport(state.size)
    connector = None
    match state.state:
        case ConnectorState() as known:
            connector = _report_state(known)
        case AmbiguousState() as open_question:
            names = list(narrow_enumerator(open_question.connectors, splits))
            names = [chosen] if chosen in open_question.connectors else names
            named = [each for each in open_question.candidates if each.connector in names]
            if len(named) == 1:
                connector = _report_state(named[0])
            elif named:
                connector = ConnectorReport(
                    None, ConnectorStateKind.ENUMERATOR, f"could be that of {' or '.join(names)}", names
                )
    return CoordinatorReport(state.size, state.version, state.enumerator.version, len(state.enumerator.data), connector)


def _report_state(state: ConnectorState) -> ConnectorReport:
    first: list[dict[str, object]] = []
    for element in state.rows:
        first += [dict(row) for row in element[: ROW_LIMIT - len(first)]]
        if len(first) >= ROW_LIMIT:
            break
    number = sum(map(len, state.rows))
    columns = pa.schema([each for each in state.columns if each.name != LIST_INDEX.name])
    shown = list(to_rows(pa.RecordBatch.from_pylist(first, schema=columns)))
    return ConnectorReport(state.connector, state.kind, _summarise(state, number), [], number, columns.names, shown)


def _summarise(state: ConnectorState, number: int) -> str:
    if state.kind is ConnectorStateKind.COMMITTER:
        waiting = Counter(row.get("checkpoint_id") for element in state.rows for row in element)
        positions = [
            f"{count:,} for checkpoint {checkpoint}" if checkpoint is not None else f"{count:,} of no known checkpoint"
            for checkpoint, count in sorted(waiting.items(), key=lambda each: (each[0] is None, each[0] or 0))
        ]
        text = f"{number:,} committable{'' if number == 1 else 's'} pending"
        return f"{text}: {', '.join(positions)}" if positions else text
    plural = "" if number == 1 else "s"
    if state.kind is ConnectorStateKind.WRITER:
        text = f"{number:,} {'entry' if number == 1 else 'entries'} of writers"
    elif state.kind is ConnectorStateKind.TRANSACTIONAL_IDS:
        text = f"{number:,} hint{plural} of transactional ids"
    else:
        text = f"{number:,} split{plural}{' known' if state.kind is ConnectorStateKind.ENUMERATOR else ''}"
    topics = sorted({str(row["topic"]) for element in state.rows for row in element if row.get("topic") is not None})
    if not topics:
        return text
    return f"{text} of {topics[0] if len(topics) == 1 else f'{len(topics):,} topics'}"
