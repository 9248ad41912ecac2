"""Round trips: the old states that a proof compares with downgraded new states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.operations.migration.flows import (
    Flow,
    Read,
    find_filters,
    find_reads,
    is_aligned,
    keeps_rows,
    walk_flow,
)
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.operations.migration.migration_plan import OperatorPlan
    from state_pipelines.operations.migration.shapes import StateShape


@dataclass(frozen=True)
class Return:
    """An old state that the way back makes again.

    Attributes:
        old: its name.
        shape: of its rows, as the way there reads them.
        way: the flow that makes it of new states.
        lost: dotted paths of its payload that do not come back, each with the reason.
        kept: only those old rows count that were not left out on the way there.
    """

    old: str
    shape: StateShape
    way: Flow
    lost: Mapping[str, str]
    kept: bool = False


@dataclass(frozen=True)
class RoundTrip:
    """Round trip of one new state.

    Attributes:
        returns: the old states that are judged together with it.
        note: why none is, for people.
    """

    returns: tuple[Return, ...] = ()
    note: str = ""


def plan_round_trips(plan: OperatorPlan) -> dict[str, RoundTrip]:
    """Find the round trip of each state that changes, by new name; no old state is judged twice."""
    judged: set[str] = set()
    trips = {}
    for name, flow in plan.changed.items():
        trips[name] = trip = _plan(plan, name, flow, judged)
        judged.update(each.old for each in trip.returns)
    return trips


def find_losses(plan: OperatorPlan, name: str, flow: Flow) -> dict[str, str]:
    """Declared losses between a state and its origins: dotted paths and reasons."""
    names = [name, *find_reads(flow)]
    return {field: reason for each in names for field, reason in plan.losses.get(each, {}).items()}


def describe_losses(plan: OperatorPlan) -> str:
    """All that is declared to be lost of the states that change, for people; empty where nothing is."""
    lost = dict(each for name, flow in plan.changed.items() for each in find_losses(plan, name, flow).items())
    return "; ".join(f"{field}: {reason}" for field, reason in lost.items())


def describe_filters(plan: OperatorPlan) -> str:
    """Why rows of the states that change are left out, for people; empty where none are."""
    return "; ".join(dict.fromkeys(each.reason for flow in plan.changed.values() for each in find_filters(flow)))


def _plan(plan: OperatorPlan, name: str, flow: Flow, judged: set[str]) -> RoundTrip:
    sources = find_reads(flow)
    ends = [plan.impossible[old] for old in sources if old in plan.impossible]
    if ends or plan.back is None:
        return RoundTrip(note=f"there is no way back: {'; '.join(dict.fromkeys(ends)) or plan.reason}")
    losses = find_losses(plan, name, flow)
    ways = {old: way for old, way in plan.back.states.items() if name in find_reads(way) and old in sources}
    kept = bool(find_filters(flow))
    if kept and flow.shape.kind == StateKind.TIMER:
        return RoundTrip(note="the timers that are left have no values")
    if kept:
        # Dropped rows do not come back; the remaining ones are known only where each has a single origin.
        way = plan.back.states.get(sources[0])
        alone = way is not None and len(sources) == 1 and find_reads(way) == (name,)
        if way is None or not alone or not (is_aligned(flow) and is_aligned(way) and keeps_rows(way)):
            return RoundTrip(note="not judged, since rows were left out before other rows were made from them")
    shapes = {each.state: each.shape for each in walk_flow(flow) if isinstance(each, Read)}
    found = [
        Return(old, shapes[old], way, find_losses(plan, old, way) | losses, kept)
        for old, way in ways.items()
        if old not in judged
    ]
    return RoundTrip(tuple(found), "" if found else "judged with another state that the same rows became")
