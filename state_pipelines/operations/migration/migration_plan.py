"""Migration plan of an operator: one data flow per new state, and the way back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import keep_all_opaque
from state_pipelines.operations.migration.flows import Flow, Read
from state_pipelines.operations.migration.structs import PlanContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.operations.migration.migration_files import RowExpectation
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.serializers import tree


@dataclass(frozen=True)
class OperatorPlan:
    """Migration plan of the states of one operator.

    Attributes:
        shapes: before.
        states: by new name, in the order of the old ones.
        dropped: states that go, and why.
        key: serializer of the keys afterwards.
        losses: by state (its name then or now) the fields that do not come back, and why.
        expectations: by new name.
        back: the way back to the old states, over the new shapes; None when there is none at all.
        reason: why there is no way back, or none for all states.
        impossible: the states that have none (old names), and why.
        context: what the plan was made with.
        notes: for the user, before anything is written.
    """

    shapes: Mapping[str, StateShape]
    states: Mapping[str, Flow]
    dropped: Mapping[str, str]
    key: tree.Serializer | None
    losses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    expectations: Mapping[str, tuple[RowExpectation, ...]] = field(default_factory=dict)
    back: OperatorPlan | None = None
    reason: str = ""
    impossible: Mapping[str, str] = field(default_factory=dict)
    context: PlanContext = field(default_factory=PlanContext)
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> dict[str, Flow]:
        """The states whose rows are rewritten; all others are copied as bytes."""
        return {name: flow for name, flow in self.states.items() if not isinstance(flow, Read)}

    @property
    def row_layouts(self) -> LayoutContext:
        """Context of the layouts of rows, in which opaque values are passed on as bytes."""
        return keep_all_opaque(self.context.layouts)

    @property
    def keyed(self) -> OperatorPlan:
        """The flows of keyed state and timers."""
        return _select(self, keyed=True)

    @property
    def unkeyed(self) -> OperatorPlan:
        """The flows of list and broadcast state."""
        return _select(self, keyed=False)

    @property
    def new_shapes(self) -> dict[str, StateShape]:
        """The shapes afterwards."""
        return {name: flow.shape for name, flow in self.states.items()}


def _select(plan: OperatorPlan, *, keyed: bool) -> OperatorPlan:
    names = {name for name, shape in plan.shapes.items() if shape.is_keyed == keyed}
    others = plan.shapes.keys() - names
    impossible = {name: reason for name, reason in plan.impossible.items() if name in names}
    back = None if plan.back is None or (impossible and names <= impossible.keys()) else _select(plan.back, keyed=keyed)
    return replace(
        plan,
        shapes={name: shape for name, shape in plan.shapes.items() if name in names},
        states={name: flow for name, flow in plan.states.items() if flow.shape.is_keyed == keyed},
        dropped={name: reason for name, reason in plan.dropped.items() if name not in others},
        back=back,
        reason=next(iter(impossible.values()), plan.reason if plan.back is None else ""),
        impossible=impossible,
    )
