"""What a migration makes of the fields of a value, for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.cli.display import indent, make_table, plural, shorten_classes
from state_pipelines.operations.migration import Add, Cast, Drop, Rename, Step
from state_pipelines.serializers.text import describe

if TYPE_CHECKING:
    from rich.console import Console

    from state_pipelines.serializers.tree import Pojo


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


def trace_fields(old: Pojo, new: Pojo, steps: tuple[Step, ...]) -> list[FieldChange]:
    """What `steps` did to every field of `old`, then the fields that they added."""
    # By present name: the name in the old value (None when it was added) and what happened on the way.
    fields: dict[str, tuple[str | None, list[str]]] = {each.name: (each.name, []) for each in old.fields}
    for step in steps:
        match step:
            case Rename(names=names):
                # All at once: two fields may change names with each other.
                taken = {after: fields.pop(before) for before, after in names}
                for after, each in taken.items():
                    each[1].append("renamed")
                    fields[after] = each
            case Add(field=name, expression=expression):
                fields[name] = (None, [f"added: {expression}"])
            case Cast(field=name, expression=expression):
                fields[name][1].append(f"cast: {expression}" if expression else "cast")
            case Drop(field=name):
                del fields[name]
    types = {each.name: "?" if each.serializer is None else describe(each.serializer) for each in new.fields}
    old_types = {each.name: "?" if each.serializer is None else describe(each.serializer) for each in old.fields}
    by_origin = {origin: (name, notes) for name, (origin, notes) in fields.items() if origin is not None}
    changes = []
    for name, kind in old_types.items():
        now, notes = by_origin.get(name, ("", ["dropped"]))
        changes.append(FieldChange(f"{name}: {kind}", f"{now}: {types[now]}" if now else "", "; ".join(notes)))
    added = [(name, notes) for name, (origin, notes) in fields.items() if origin is None]
    return [*changes, *(FieldChange("", f"{name}: {types[name]}", "; ".join(notes)) for name, notes in added)]


def show_changes(changes: list[FieldChange], console: Console) -> None:
    """Print a table of the fields that changed, and how many did not."""
    table = make_table("before", "after", "change")
    for each in changes:
        if each.change:
            table.add_row(shorten_classes(each.before), shorten_classes(each.after), each.change)
    console.print(indent(table))
    same = sum(not each.change for each in changes)
    if same:
        console.print(f"  {plural(same, 'field')} as before")
