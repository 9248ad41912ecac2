"""Names from compiled plans for the rows of SQL operators, whose snapshots hold types alone."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from state_pipelines.metadata import compute_operator_id
from state_pipelines.serializers.state_meta_info import VALUE_SERIALIZER, BackendStateType, StateMetaInfo
from state_pipelines.serializers.tree import LogicalType, RowData, Serializer
from state_pipelines.sql.accumulators import UNRESOLVED
from state_pipelines.sql.node_states import PlannedOperator, PlannedRow, list_operators

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.sql.compiled_plans import Plan


def find_planned(plans: Iterable[Plan]) -> dict[bytes, PlannedOperator]:
    """The operators of plans by operator id."""
    return {compute_operator_id(each.uid): each for plan in plans for each in list_operators(plan)}


def label_file(file: KeyedFile, planned: PlannedOperator | None) -> KeyedFile:
    """The file of an operator with the names that a plan gives the columns of its rows.

    Rows of other types than in the plan stay as they are.
    """
    if planned is None:
        return file
    key, states = file.described_states()
    keys = () if planned.key is None else (planned.key,)
    return file.with_described_states(
        None if key is None else label_rows(key, keys), tuple(_label_state(info, planned, keys) for info in states)
    )


def label_rows(serializer: Serializer, rows: Sequence[PlannedRow]) -> Serializer:
    """The serializer with the names of some rows, which are its rows from the first to the last.

    A serializer with other rows, or with another type in one of them, stays as it is.
    """
    if not has_rows(serializer, rows):
        return serializer
    left = iter(rows)
    labelled: Serializer = _replace_rows(serializer, left)
    return labelled


def has_rows(serializer: Serializer, rows: Sequence[PlannedRow]) -> bool:
    """Return whether the rows of a serializer have the types of planned ones."""
    found = [*_find_rows(serializer)]
    return len(found) == len(rows) and all(map(fits, found, rows))


def fits(row: RowData, planned: PlannedRow) -> bool:
    """Return whether a row has the types of a planned one; types that the plan does not say fit any."""
    types = [each.type for each in planned.columns]
    return len(types) == len(row.types) and all(map(_fits_type, row.types, types))


def _fits_type(of: LogicalType, planned: LogicalType) -> bool:
    return planned == UNRESOLVED or of == planned or replace(of, class_name=None) == replace(planned, class_name=None)


def _label_state(info: StateMetaInfo, planned: PlannedOperator, keys: Sequence[PlannedRow]) -> StateMetaInfo:
    if info.backend_type is BackendStateType.PRIORITY_QUEUE:
        rows: Sequence[PlannedRow] = keys
    else:
        state = planned.find_state(info.name)
        rows = () if state is None else state.rows
    if not rows:
        return info
    return replace(
        info,
        serializers=tuple(
            (name, label_rows(each, rows) if name == VALUE_SERIALIZER else each) for name, each in info.serializers
        ),
    )


def _find_rows(node: object) -> Iterator[RowData]:
    """Yield the rows of a serializer, but not those that are fields of rows."""
    if isinstance(node, RowData):
        yield node
    elif isinstance(node, tuple):
        for each in node:
            yield from _find_rows(each)
    elif isinstance(node, Serializer):
        for field in fields(node):
            yield from _find_rows(getattr(node, field.name))


def _replace_rows(node: Any, rows: Iterator[PlannedRow]) -> Any:
    if isinstance(node, RowData):
        return replace(node, labels=next(rows).names)
    if isinstance(node, tuple):
        return tuple(_replace_rows(each, rows) for each in node)
    if not isinstance(node, Serializer) or not is_dataclass(node):
        return node
    return replace(node, **{field.name: _replace_rows(getattr(node, field.name), rows) for field in fields(node)})


def find_misfits(planned: Mapping[bytes, PlannedOperator], files: Mapping[bytes, Sequence[KeyedFile]]) -> Iterator[str]:
    """Yield a note for each state whose rows are others than a plan says, so that they keep their numbers.

    Args:
        planned: operators of plans.
        files: keyed files of operators, by operator id.
    """
    for operator_id, operator in planned.items():
        seen: set[str] = set()
        for file in files.get(operator_id, ()):
            for info in file.described_states()[1]:
                state = operator.find_state(info.name)
                if state is None or info.name in seen or info.backend_type is BackendStateType.PRIORITY_QUEUE:
                    continue
                if not has_rows(info.value_serializer, state.rows):
                    seen.add(info.name)
                    yield (
                        f"the plan does not fit state {info.name} of operator {operator.uid}, which holds other types "
                        f"than {state.describe()}: its columns keep their numbers. Give the plan of the job that wrote "
                        "the snapshot"
                    )
