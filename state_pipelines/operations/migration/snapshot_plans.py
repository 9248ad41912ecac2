"""Plans of migrations for the operators of a snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import keep_undecodable, walk
from state_pipelines.errors import StateError
from state_pipelines.operations.migration.connector_columns import find_connectors
from state_pipelines.operations.migration.migration_planner import Chain, plan_migrations
from state_pipelines.operations.migration.shapes import explain_unread
from state_pipelines.operations.migration.structs import PlanContext, known_sql_types
from state_pipelines.serializers import tree
from state_pipelines.serializers.registered_states import KEYED_KINDS, OPERATOR_KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.operations.migration.flows import Read
    from state_pipelines.operations.migration.migration_files import Change, Migration
    from state_pipelines.operations.migration.migration_plan import OperatorPlan
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.snapshot import Operator
    from state_pipelines.snapshot.snapshot_files import SnapshotFiles

_MIGRATED = (*KEYED_KINDS, *OPERATOR_KINDS)
_ALL = ""


def describe_copied(flow: Read, own: StateMetaInfo, before: StateShape) -> StateMetaInfo:
    """The meta info of a state whose bytes are copied.

    Args:
        flow: of the state.
        own: the description in the file; kept, except for changed names in the serializers.
        before: the shape that was planned with.
    """
    if flow.shape.info == replace(before.info, name=flow.shape.name):
        return replace(own, name=flow.shape.name)
    return flow.shape.info


def make_context(snapshot: SnapshotFiles, shapes: Mapping[str, StateShape]) -> PlanContext:
    """Planning context of a snapshot."""
    serializers = [*snapshot.keyed_files.serializers()]
    serializers += [serializer for shape in shapes.values() for _, serializer in shape.info.serializers]
    nodes = [node for serializer in serializers for node in walk(serializer)]
    kryos = tuple(dict.fromkeys(node for node in nodes if isinstance(node, tree.Kryo)))
    declared = tuple(dict.fromkeys(node for node in nodes if isinstance(node, tree.Declared)))
    layouts = keep_undecodable(snapshot.layout_context)
    return PlanContext(layouts, tuple(known_sql_types(nodes).items()), kryos, declared)


def find_changes(migration: Migration, operator: Operator) -> tuple[Change, ...]:
    """The changes of a migration that name an operator."""
    snapshot, own = operator.snapshot, operator.metadata.operator_id
    return tuple(each for each in migration.changes if snapshot.find_operator(each.operator).operator_id == own)


def plan_operator(operator: Operator, shapes: Mapping[str, StateShape], chain: Chain) -> OperatorPlan:
    """`plan_migrations` for an operator of a snapshot.

    Raises:
        MigrationError: as `plan_migrations`.
    """
    changes = [change for migration, _ in chain for change in find_changes(migration, operator)]
    called = {change.operator for change in changes}
    try:
        context = make_context(operator.snapshot, shapes)
        context = replace(context, connectors=tuple(find_connectors(operator, changes)))
        return plan_migrations(shapes, chain, operators=called, context=context)
    except StateError as error:
        error.where = replace(error.where, operator=operator.label)
        if unread := explain_unread(operator):
            error.hint = f"{error.hint}; its operator state cannot be read ({unread})".removeprefix("; ")
        raise
