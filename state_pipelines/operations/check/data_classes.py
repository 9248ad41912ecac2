"""Classes of the objects in the data of a state, found by decoding every value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from state_pipelines.errors import UnsupportedError, at
from state_pipelines.operations.dump import dump_state
from state_pipelines.snapshot.keyed_state import KeyedState, hold_states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.codecs.json import Json
    from state_pipelines.snapshot import Snapshot, State

SCAN_LIMIT = 1 << 20
"""Largest size in bytes of a snapshot whose data `check` reads without `--scan`."""


@dataclass(frozen=True)
class DataClasses:
    """Classes of the objects in the data of a state.

    Attributes:
        names: classes of objects.
        undecoded: why values could not be decoded; empty when all were.
        null_fields: classes and names of the fields that are null in some object.
    """

    names: frozenset[str]
    undecoded: tuple[str, ...] = ()
    null_fields: frozenset[tuple[str, str]] = frozenset()


def scan_snapshot(snapshot: Snapshot, *, scan: bool | None = None) -> Callable[[str, str], DataClasses | None]:
    """Make a function that finds the classes in the data of a state, by operator id and state name (empty: the keys).

    Args:
        snapshot: the snapshot.
        scan: read the data; False: never, the function gives None; None: of small snapshots only (`SCAN_LIMIT`).
    """
    if scan is None:
        scan = snapshot.file_size <= SCAN_LIMIT
    if not scan:
        return lambda operator, state: None

    @cache
    def open_states(operator: str) -> list[State]:
        states = snapshot.operator(operator).states
        keyed = hold_states([each for each in states if isinstance(each, KeyedState)])
        return [*keyed, *(each for each in states if not isinstance(each, KeyedState))]

    @cache
    def find(operator: str, state: str) -> DataClasses | None:
        states = open_states(operator)
        if state:
            found = [find_data_classes(each, "ukey", "value") for each in states if each.name == state]
        else:
            found = [find_data_classes(each, "key") for each in states if each.is_keyed]
        return DataClasses(
            frozenset().union(*(each.names for each in found)),
            tuple(dict.fromkeys(reason for each in found for reason in each.undecoded)),
            frozenset().union(*(each.null_fields for each in found)),
        )

    return find


def find_data_classes(state: State, *columns: str) -> DataClasses:
    """The classes of all objects in a state; reads all of it.

    Args:
        state: the state.
        columns: of `dump`: key, ukey, value.
    """
    names: set[str] = set()
    null_fields: set[tuple[str, str]] = set()
    undecoded: dict[str, None] = {}
    with at(operator=state.operator.label, state=state.name):
        try:
            for line in dump_state(state):
                for column in columns:
                    _collect(line.get(column), names, null_fields, undecoded)
        except UnsupportedError as error:
            undecoded[error.what] = None
    return DataClasses(frozenset(names), tuple(undecoded), frozenset(null_fields))


def _collect(value: Json, names: set[str], null_fields: set[tuple[str, str]], undecoded: dict[str, None]) -> None:
    for node in _walk(value):
        if isinstance(name := node.get("@class"), str):
            names.add(name)
            null_fields.update((name, field) for field, content in node.items() if content is None)
        if isinstance(reason := node.get("@reason"), str):
            undecoded[reason] = None


def _walk(value: Json) -> Iterator[dict[str, Json]]:
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending += node.values()
        elif isinstance(node, list):
            pending += node
