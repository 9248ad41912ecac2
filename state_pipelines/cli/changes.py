"""Readable lists of the changes that migrations make to states and fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.cli.display import plural, print_table, shorten_classes
from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import Add, Cast, Drop, Rename, Set, Step
from state_pipelines.operations.migration.flows import Read, find_reads
from state_pipelines.operations.migration.migration_planner import find_subject
from state_pipelines.operations.migration.structs import AvroType, PlanContext, SqlColumn, open_struct
from state_pipelines.serializers.text import describe, describe_type
from state_pipelines.snapshot.state import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from state_pipelines.operations.migration import Change, Direction
    from state_pipelines.operations.migration.flows import OperatorPlan
    from state_pipelines.operations.migration.migration_planner import Chain
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.operations.migration.structs import SlotType
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Snapshot


@dataclass(frozen=True)
class FieldChange:
    """One field.

    Attributes:
        before: `name: type` in the old value; empty when the field is new.
        after: the same in the new value; empty when the field is gone.
        change: what happened to it; empty when nothing did.
    """

    before: str
    after: str
    change: str


@dataclass(frozen=True)
class StateChange:
    """One state that is rewritten, under another name, or dropped.

    Attributes:
        operator: label.
        state: its name now; empty when it is dropped.
        origins: states of the old snapshot that it comes from.
        fields: what happened to its fields, or of the state as a whole.
    """

    operator: str
    state: str
    origins: tuple[str, ...]
    fields: tuple[FieldChange, ...]


def list_changes(plans: Mapping[str, OperatorPlan], chain: Chain, snapshot: Snapshot) -> list[StateChange]:
    """Changes of a chain of migrations.

    Args:
        plans: by label of the operator.
        chain: what was planned.
        snapshot: the old snapshot.
    """
    changes = []
    for operator, plan in plans.items():
        own = [
            (change, direction)
            for migration, direction in chain
            for change in migration.changes
            if snapshot.operator(change.operator).id == snapshot.operator(operator).id
        ]
        for name, flow in plan.states.items():
            origins = find_reads(flow)
            before = [plan.shapes[each] for each in origins]
            if isinstance(flow, Read) and origins == (name,) and flow.shape == before[0]:
                continue
            steps = _find_steps(name, own) if origins == (name,) else None
            fields = _trace_state(before, flow.shape, steps, plan.context)
            changes.append(StateChange(operator, name, origins, tuple(fields)))
        changes += (
            StateChange(operator, "", (name,), (FieldChange(_describe(plan.shapes[name]), "", f"dropped: {reason}"),))
            for name, reason in plan.dropped.items()
            if name in plan.shapes
        )
    return changes


def trace_fields(
    old: Serializer, new: Serializer, steps: Iterable[Step], context: PlanContext | None = None
) -> list[FieldChange]:
    """List the change of every field of `old` by `steps`, then the fields that they added.

    Raises:
        MigrationError: one of the payloads has no fields.
    """
    before, after = _list_fields(old, context), _list_fields(new, context)
    # By present name: the name in the old value (None when it was added) and what happened on the way.
    fields: dict[str, tuple[str | None, list[str]]] = {name: (name, []) for name in before}
    for step in steps:
        _note_step(step, fields)
    by_origin = {origin: (name, notes) for name, (origin, notes) in fields.items() if origin is not None}
    changes = []
    for name, kind in before.items():
        now, notes = by_origin.get(name, ("", ["dropped"]))
        text = f"{now}: {after[now]}" if now in after else ""
        changes.append(FieldChange(f"{name}: {kind}", text, "; ".join(notes)))
    added = [(name, notes) for name, (origin, notes) in fields.items() if origin is None and name in after]
    return [*changes, *(FieldChange("", f"{name}: {after[name]}", "; ".join(notes)) for name, notes in added)]


def show_states(changes: Sequence[StateChange], console: Console) -> None:
    """Print what happened to every state; a title for each when there are several."""
    for each in changes:
        if len(changes) > 1:
            name = each.state or each.origins[0]
            console.print()
            console.print(f"{each.operator} / {name}", style="bold")
        show_changes(list(each.fields), console)


def show_changes(changes: list[FieldChange], console: Console) -> None:
    """Print a table of the fields that changed, and how many did not."""
    rows = [(shorten_classes(each.before), shorten_classes(each.after), each.change) for each in changes if each.change]
    print_table(console, ("before", "after", "change"), rows)
    same = sum(not each.change for each in changes)
    if same:
        console.print(f"  {plural(same, 'field')} as before")


def _find_steps(state: str, changes: Sequence[tuple[Change, Direction]]) -> list[Step]:
    names = (state, state.removeprefix(PREFIX))
    mine = [(change, direction) for change, direction in changes if find_subject(change, direction) in names]
    return [step for change, direction in mine for step in change.steps(direction)]


def _trace_state(
    before: Sequence[StateShape], after: StateShape, steps: list[Step] | None, context: PlanContext
) -> list[FieldChange]:
    """By fields where all steps are on fields, else the state as a whole."""
    if steps is not None and all(isinstance(step, Rename | Add | Cast | Drop | Set) for step in steps):
        try:
            return trace_fields(before[0].payload, after.payload, steps, context)
        except MigrationError:
            pass  # reported as a whole
    words = list(dict.fromkeys(_name_step(step) for step in steps or ()))
    if tuple(each.name for each in before) != (after.name,):
        words.insert(0, f"from {', '.join(each.name for each in before)}")
    if any(each.key != after.key for each in before):
        words.append("another key")
    return [FieldChange("; ".join(map(_describe, before)), _describe(after), ", ".join(words) or "renamed")]


def _describe(shape: StateShape) -> str:
    ttl = " with TTL" if shape.ttl else ""
    return f"{shape.kind} of {describe(shape.payload)}{ttl}"


def _name_step(step: Step) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in type(step).__name__).strip("_")


def _note_step(step: Step, fields: dict[str, tuple[str | None, list[str]]]) -> None:
    match step:
        case Rename(names=names):
            for before, after in names:
                if "." in before:
                    fields[before.partition(".")[0].rstrip("[]")][1].append(f"{before} renamed to {after}")
            # All at once: two fields may change names with each other.
            taken = {after: fields.pop(before) for before, after in names if "." not in before}
            for name, each in taken.items():
                each[1].append("renamed")
                fields[name] = each
        case Add(field=name, expression=expression):
            _note(fields, name, f"added: {expression}")
        case Cast(field=name, expression=expression):
            _note(fields, name, f"cast: {expression}" if expression else "cast")
        case Set(field=name, expression=expression):
            _note(fields, name, f"set: {expression}")
        case Drop(field=name) if "." in name:
            _note(fields, name, "dropped")
        case Drop(field=name):
            del fields[name]


def _note(fields: dict[str, tuple[str | None, list[str]]], path: str, text: str) -> None:
    head, dot, rest = path.partition(".")
    fields.setdefault(head.rstrip("[]"), (None, []))[1].append(f"{rest} {text}" if dot else text)


def _list_fields(payload: Serializer, context: PlanContext | None) -> dict[str, str]:
    struct = open_struct(payload, "", context or PlanContext())
    return {slot.name: _describe_slot(slot.type) for slot in struct.slots}


def _describe_slot(of: SlotType) -> str:
    match of:
        case AvroType(node=node):
            rest = [each for each in node if each != "null"] if isinstance(node, list) else [node]
            words = [each if isinstance(each, str) else str(each.get("name") or each.get("type")) for each in rest]
            return " or ".join(words) + ("?" if isinstance(node, list) and "null" in node else "")
        case SqlColumn(type=kind):
            return describe_type(kind)
        case _:
            return describe(of)
