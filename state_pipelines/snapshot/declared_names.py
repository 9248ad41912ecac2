"""Names in declarations that nothing in the declared snapshots has: mostly misspelt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import walk
from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.metadata import find_operator_id
from state_pipelines.metadata.handles import ChangelogStateBackendHandle
from state_pipelines.serializers.tree import Kryo
from state_pipelines.snapshot.python_states import python_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot.declarations import Declarations
    from state_pipelines.snapshot.operator import Operator
    from state_pipelines.snapshot.snapshot import Snapshot


def check_declared_names(*snapshots: Snapshot) -> list[str]:
    """Check that the names in declarations are names in the snapshots; one snapshot that has a name is enough.

    Args:
        snapshots: at least one, opened with the same declarations.

    Returns:
        Notes about declarations without effect.

    Raises:
        UsageError: no snapshot has a declared operator, or none a declared state of a Python function.
    """
    declared = snapshots[0].declarations
    kinds: Sequence[tuple[str, Mapping[str, object]]] = (
        ("key serializer", declared.key_serializers),
        ("connector", declared.connectors),
        ("type of Python states", declared.python_types),
    )
    found = {(what, name): _find_operators(what, name, snapshots) for what, names in kinds for name in names}
    for name, types in declared.python_types.items():
        _check_states(name, types, found["type of Python states", name])
    return [
        *(
            f"the key serializer declared for operator {name} has no effect: it has no changelog state"
            for name in declared.key_serializers
            if not any(map(_has_changelog, found["key serializer", name]))
        ),
        *(
            f"the connector declared for operator {name} has no effect: it has no list state"
            for name in declared.connectors
            if not any(map(_may_have_connector, found["connector", name]))
        ),
        *_find_unused_classes(declared, snapshots),
        *_find_unused_plans(snapshots),
    ]


def _find_operators(what: str, name: str, snapshots: Sequence[Snapshot]) -> list[Operator]:
    """Find an operator in some snapshots.

    Raises:
        UsageError: none has it.
    """
    wanted = find_operator_id(name)
    found = [each for snapshot in snapshots if (each := snapshot.get_operator(wanted)) is not None]
    if not found:
        raise UsageError(
            f"a {what} is declared for operator {name}, which is not in the snapshot",
            where=Where(file=snapshots[0].path),
            hint=_list_known(operator.label for snapshot in snapshots for operator in snapshot.operators),
        )
    return found


def _check_states(name: str, types: Iterable[str], operators: Sequence[Operator]) -> None:
    surveys = [operator.survey() for operator in operators]
    if any(each.failures for each in surveys):
        # The state may be in a file that cannot be read.
        return
    states = [state for each in surveys for state in each.states if python_name(state.info)]
    known = {each for state in states for each in (state.name, state.python_name)}
    for wanted in types:
        if wanted not in known:
            raise UsageError(
                f"a type is declared for state {wanted}, which is no state of a Python function of the operator",
                where=Where(file=operators[0].snapshot.path, operator=name),
                hint=_list_known(state.python_name for state in states),
            )


def _list_known(names: Iterable[str]) -> str:
    known = ", ".join(dict.fromkeys(names))
    return f"It has {known}" if known else "It has none at all"


def _has_changelog(operator: Operator) -> bool:
    handles = (subtask.managed_keyed_state for subtask in operator.metadata.subtasks)
    return any(isinstance(handle, ChangelogStateBackendHandle) for handle in handles)


def _may_have_connector(operator: Operator) -> bool:
    metadata = operator.metadata
    return metadata.coordinator_state is not None or any(each.managed_operator_state for each in metadata.subtasks)


def _find_unused_classes(declared: Declarations, snapshots: Sequence[Snapshot]) -> Iterator[str]:
    left = {each.snapshot_class for each in declared.serializers}
    if left:
        for snapshot in snapshots:
            left -= set(_list_classes(snapshot))
    for name in sorted(left):
        yield f"the serializer class {name} is declared, and no serializer snapshot of the snapshot names it"


def _find_unused_plans(snapshots: Sequence[Snapshot]) -> Iterator[str]:
    """Yield notes about plans that name no operator, and about states that a plan does not fit."""
    planned = snapshots[0].planned
    if planned and not any(each.operator_id in planned for one in snapshots for each in one.metadata.operator_states):
        yield (
            "the plan names no operator of the snapshot: its nodes have other numbers. Give the plan that the job was "
            "started from; a job that was started from SQL text has no such names (table.exec.uid.generation)"
        )
    for each in snapshots:
        yield from each.keyed_files.find_misfits()


def _list_classes(snapshot: Snapshot) -> Iterator[str]:
    for operator in snapshot.operators:
        try:
            states = operator.survey().states
        except StateError:
            continue
        for state in states:
            for _, serializer in state.info.serializers:
                yield from _list_named(serializer)
        for _, file in operator.readable.keyed_files:
            yield from _list_named(file.header.key_serializer)


def _list_named(serializer: Serializer) -> Iterator[str]:
    """Yield the snapshot classes of a serializer, and the classes that its Kryo serializers name."""
    for node in walk(serializer):
        yield node.snapshot_class
        if isinstance(node, Kryo):
            yield node.type_class
            yield from (each.class_name for each in (*node.registrations, *node.default_serializers))
            yield from (each.class_name for each in node.default_serializer_classes)
