"""`diff`: the differences between two snapshots of any format and backend.

First what `_metadata` and headers say: properties of the snapshots, operators by id, states by name, serializers. Then
the records, as the bytes of keys and values in the form that all formats share (`KeyedRecords`): digests per key group,
and of the key groups that differ the records one by one. Bytes are compared only where they mean the same
(`compared_states`); what cannot be compared is reported and never counts as equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from state_pipelines.errors import NotFoundError, UsageError, Where
from state_pipelines.operations.diff.compared_states import (
    CompareGroups,
    CompareUnkeyed,
    DigestFile,
    FileSums,
    ShowRecords,
    Unread,
    add_up,
    compare_operators,
    compare_snapshots,
    compare_states,
    find_obstacle,
    make_example,
    make_side,
    plan_comparison,
    plan_digests,
    sum_differences,
    total_of,
)
from state_pipelines.operations.diff.diff_report import ContentsDiff, OperatorDiff, Presence, SnapshotDiff, StateDiff
from state_pipelines.operations.local_processes import choose_runner
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.snapshot import (
    Failure,
    is_unreadable,
    open_together,
    survey_keyed,
    survey_operator,
    survey_raw,
)
from state_pipelines.snapshot.snapshot_files import find_held_key_groups
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import do_together

if TYPE_CHECKING:
    import numpy.typing as npt

    from state_pipelines.operations.local_processes import Work
    from state_pipelines.snapshot import Operator, Snapshot, State

LIMIT = 10
"""Default number of examples for each state."""

_UNKEYED = 16
"""Number of non-keyed states that are compared concurrently if the storage is remote."""

OTHER_KEY_GROUPS = "not compared one by one, but by digests without key groups: the max parallelism differs"

Result = TypeVar("Result")


class Runner(Protocol):
    """Function that runs tasks and returns their results in order; `what` begins the message if a worker fails."""

    def __call__(self, tasks: Sequence[Work[Result]], what: str, /) -> list[Result]:
        """Run the tasks."""


@dataclass
class _Pair:
    """A state in both snapshots, with intermediate results of the comparison.

    Attributes:
        one: the state in one snapshot; None if that does not have it.
        other: the state in the other snapshot; None if that does not have it.
        obstacle: why the records cannot be compared; empty if they can.
        contents: result of the comparison so far.
    """

    one: State | None
    other: State | None
    obstacle: str = ""
    contents: ContentsDiff | None = None

    @property
    def sides(self) -> tuple[State | None, State | None]:
        return self.one, self.other

    @property
    def some(self) -> State:
        state = self.one or self.other
        assert state is not None
        return state


@dataclass
class _OperatorPair:
    """An operator in both snapshots, without the files that cannot be read (`Operator.readable`).

    Attributes:
        one: the operator in one snapshot; None if that does not have it.
        other: the operator in the other snapshot; None if that does not have it.
        pairs: its states.
        failures: files of both snapshots that cannot be read.
    """

    one: Operator | None
    other: Operator | None
    pairs: list[_Pair] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def some(self) -> Operator:
        operator = self.one or self.other
        assert operator is not None
        return operator

    @property
    def label(self) -> str:
        """The uid if one of the snapshots has it, else the id."""
        known = (each.uid for each in (self.one, self.other) if each is not None and each.uid)
        return next(known, self.some.id)


def diff(
    one: Snapshot | str,
    other: Snapshot | str,
    *,
    operator: str | None = None,
    state: str | None = None,
    metadata_only: bool = False,
    limit: int = LIMIT,
    processes: int = 1,
    run: Runner | None = None,
) -> SnapshotDiff:
    """Compare two snapshots of any formats: operators, states, serializers and records.

    Args:
        one: a snapshot, or its path.
        other: the snapshot to compare it with, or its path.
        operator: uid, id or name; only this operator. Properties of the snapshots do not count then.
        state: name; only states of this name. Properties of snapshots and operators do not count then.
        metadata_only: read headers only, no records.
        limit: examples of differing records per state.
        processes: number of processes that share the work; with more than one, the main module of a script must be
            guarded by `if __name__ == "__main__":`.
        run: function that runs the tasks in place of processes, such as `spark.tasks.run_tasks` with a session.

    Raises:
        NotFoundError: neither snapshot has such an operator or state.
        UsageError: the limit is negative.
        StateError: a snapshot cannot be opened, or a worker process died. State that cannot be read is reported as not
            compared.
    """
    if limit < 0:
        raise UsageError(f"{limit} examples cannot be shown", hint="The limit is 0 or more")
    one, other = open_together(one, other)
    operators = _pair_operators(one, other, operator)
    directories = (one.location.directory, other.location.directory)
    remote = next((each for each in directories if not is_local(each)), None)
    do_together([partial(_pair_states, each, state) for each in operators], remote)
    if state is not None:
        operators = [each for each in operators if each.pairs]
        if not operators:
            raise NotFoundError(
                f"neither snapshot has a state {state}",
                where=Where(operator=operator),
                hint="`inspect` shows what there is",
            )
    if not metadata_only:
        with choose_runner(run, processes) as runner:
            _compare_keyed(operators, limit, runner)
            _compare_unkeyed(operators, limit, runner)
    return SnapshotDiff(
        one=one.path,
        other=other.path,
        metadata_only=metadata_only,
        properties=compare_snapshots(one, other, counts=operator is None and state is None),
        operators=tuple(
            do_together([partial(_report_operator, each, counts=state is None) for each in operators], remote)
        ),
    )


def _pair_operators(one: Snapshot, other: Snapshot, name: str | None) -> list[_OperatorPair]:
    """Pair the operators of two snapshots by id: those of `one` first, then those that only `other` has.

    With `name`, pair only this operator.

    Raises:
        NotFoundError: neither snapshot has an operator of that name.
    """
    if name is None:
        sides = [{each.id: each for each in snapshot.operators} for snapshot in (one, other)]
    else:
        sides = [_find_operator(snapshot, name) for snapshot in (one, other)]
        ids = {each for side in sides for each in side}
        if not ids:
            one.operator(name)
        # Perhaps only one of the snapshots stores the name: find the operator of the other snapshot by its id.
        for side, snapshot in zip(sides, (one, other), strict=True):
            side.update({each.id: each for each in snapshot.operators if each.id in ids and each.id not in side})
    readable = [{each: operator.readable for each, operator in side.items()} for side in sides]
    ordered = dict.fromkeys((*sides[0], *sides[1]))
    return [_OperatorPair(readable[0].get(each), readable[1].get(each)) for each in ordered]


def _find_operator(snapshot: Snapshot, name: str) -> dict[str, Operator]:
    try:
        found = snapshot.operator(name)
    except NotFoundError:
        return {}
    return {found.id: found}


_Read = Callable[["Operator"], tuple[Sequence["State"], Sequence["Failure"]]]

_KINDS: tuple[_Read, ...] = (
    survey_keyed,
    survey_operator,
    survey_raw,
    lambda operator: (() if operator.in_flight is None else (operator.in_flight,), ()),
)
"""Functions that return the states of one kind of an operator, and the files of that kind that cannot be read."""


def _pair_states(pair: _OperatorPair, name: str | None) -> None:
    """Pair the states of an operator in both snapshots, and add the pairs to `pair`.

    If a file of a snapshot cannot be read, a state that seems to be missing there may be in that file. Such states are
    left out, if they are of the kind of the file.
    """
    for read in _KINDS:
        surveyed = [((), ()) if side is None else read(side) for side in (pair.one, pair.other)]
        failures = [each for _, failed in surveyed for each in failed]
        pair.failures += failures
        one, other = (
            {(type(each), each.name): each for each in states if name in (None, each.name)} for states, _ in surveyed
        )
        hidden = {side for side, (_, failed) in enumerate(surveyed) if failed}
        for key in dict.fromkeys((*one, *other)):
            found = _Pair(one.get(key), other.get(key))
            if any(found.sides[side] is None for side in hidden):
                continue
            if found.one is not None and found.other is not None:
                found.obstacle = find_obstacle(found.one, found.other)
            if failures and not isinstance(found.some, KeyedState):
                found.obstacle = found.obstacle or f"not compared: {failures[0].error}"
            if found.obstacle:
                # An obstacle is reported even with metadata_only, since some differences show in no property.
                found.contents = ContentsDiff(None, None, None, note=found.obstacle)
            pair.pairs.append(found)


def _report_operator(pair: _OperatorPair, *, counts: bool) -> OperatorDiff:
    return OperatorDiff(
        id=pair.some.id,
        label=pair.label,
        presence=_find_presence(pair.one, pair.other),
        properties=compare_operators(pair.one, pair.other, counts=counts),
        states=tuple(
            StateDiff(
                each.some.name,
                _find_presence(*each.sides),
                compare_states(*each.sides),
                each.contents,
            )
            for each in pair.pairs
        ),
        error="; ".join(dict.fromkeys(str(each.error) for each in pair.failures)),
        damage=tuple(dict.fromkeys(str(each.error) for each in pair.failures if is_unreadable(each.error))),
    )


def _find_presence(one: object, other: object) -> Presence:
    return Presence.BOTH if None not in (one, other) else Presence.OTHER if one is None else Presence.ONE


def _compare_unkeyed(operators: list[_OperatorPair], limit: int, run: Runner) -> None:
    pairs = [
        (operator, pair) for operator in operators for pair in operator.pairs if not isinstance(pair.some, KeyedState)
    ]
    tasks = [
        CompareUnkeyed(operator.label, *pair.sides, pair.obstacle, limit, _count_in_flight(operator))
        for operator, pair in pairs
    ]
    for (_, pair), contents in zip(pairs, run(tasks, "operator state cannot be compared"), strict=True):
        pair.contents = contents


def _count_in_flight(pair: _OperatorPair) -> int:
    """Return the number of non-keyed states to compare concurrently: more than one if they wait for remote storage."""
    sides = (each for each in (pair.one, pair.other) if each is not None)
    return 1 if all(is_local(each.snapshot.location.directory) for each in sides) else _UNKEYED


Sums = tuple["npt.NDArray[np.uint64] | None", "npt.NDArray[np.uint64] | None"]
"""Digests by key group in both snapshots; None for a snapshot that does not have the state."""


def _compare_keyed(operators: list[_OperatorPair], limit: int, run: Runner) -> None:
    pairs = [pair for operator in operators for pair in operator.pairs if isinstance(pair.some, KeyedState)]
    digests = _digest(operators, run)
    differing: list[tuple[_Pair, list[CompareGroups]]] = []
    for pair in pairs:
        found, unread = digests[id(pair)]
        pair.contents, compared = _judge(pair, found, unread)
        if compared is not None:
            one, other = pair.sides
            assert isinstance(one, KeyedState)
            assert isinstance(other, KeyedState)
            tasks = plan_comparison(make_side(one, unread), make_side(other, unread), compared, limit)
            differing.append((pair, tasks))
    results = iter(run([task for _, tasks in differing for task in tasks], "records cannot be compared"))
    shows: list[tuple[_Pair, ShowRecords]] = []
    for pair, tasks in differing:
        total = sum_differences([next(results) for _ in tasks], limit)
        assert pair.contents is not None
        pair.contents = replace(
            pair.contents,
            only_in_one=total.only_in_one,
            only_in_other=total.only_in_other,
            changed=total.changed,
        )
        if total.candidates:
            shows.append((pair, ShowRecords(tasks[0].one, tasks[0].other, total.candidates)))
    shown = run([show for _, show in shows], "examples cannot be read")
    for (pair, show), rows in zip(shows, shown, strict=True):
        assert pair.contents is not None
        examples = (make_example(each, *sides) for each, sides in zip(show.candidates, rows, strict=True))
        pair.contents = replace(pair.contents, examples=tuple(examples))


def _digest(operators: list[_OperatorPair], run: Runner) -> dict[int, tuple[Sums, list[Unread]]]:
    """Compute digests of all keyed states by key group.

    Returns for each pair of states, by its `id()`, the digests in both snapshots, and the records that cannot be read.
    """
    tasks: list[DigestFile] = []
    owners: list[tuple[_OperatorPair, int]] = []
    for operator in operators:
        for side in (0, 1):
            states = [each for pair in operator.pairs if isinstance(each := pair.sides[side], KeyedState)]
            planned = plan_digests(states)
            tasks += planned
            owners += [(operator, side)] * len(planned)
    held: dict[tuple[int, int], list[FileSums]] = {}
    for (owner, side), result in zip(owners, run(tasks, "keyed state cannot be digested"), strict=True):
        held.setdefault((id(owner), side), []).append(result)
    found: dict[int, tuple[Sums, list[Unread]]] = {}
    for operator in operators:
        unopened = _find_unopened(operator)
        for pair in operator.pairs:
            if not isinstance(pair.some, KeyedState):
                continue
            sides: list[npt.NDArray[np.uint64] | None] = []
            unread = [*unopened]
            for side, state in enumerate(pair.sides):
                mine = held.get((id(operator), side), [])
                if state is None:
                    sides.append(None)
                    continue
                unread += [each.failures[state.name] for each in mine if state.name in each.failures]
                sums = [each.states[state.name] for each in mine if state.name in each.states]
                sides.append(add_up(sums, state.operator.max_parallelism))
            found[id(pair)] = (sides[0], sides[1]), unread
    return found


def _find_unopened(pair: _OperatorPair) -> list[Unread]:
    """List the keyed state of both snapshots whose files cannot be opened, with its key groups."""
    found = []
    for side in (pair.one, pair.other):
        if side is None:
            continue
        held = find_held_key_groups(side.metadata)
        for failure in survey_keyed(side)[1]:
            key_groups = None if failure.subtask is None else held.get(failure.subtask)
            found.append(Unread(str(failure.error), key_groups, is_unreadable(failure.error)))
    return found


Compared = tuple["npt.NDArray[np.uint64]", "npt.NDArray[np.uint64]"]
"""Digests by key group in both snapshots; zeros in the key groups that are not compared."""


def _judge(pair: _Pair, sums: Sums, unread: list[Unread]) -> tuple[ContentsDiff, Compared | None]:
    """Compare a state by its digests; also return the digests if the records have to be compared one by one."""
    one, other = (None if each is None else total_of(each) for each in sums)
    damaged = any(each.is_damage for each in unread)
    if sums[0] is None or sums[1] is None or one is None or other is None:
        note = f"not whole: {unread[0].reason}" if unread else ""
        return ContentsDiff(one, other, False, note=note, damaged=damaged), None
    if pair.obstacle:
        return ContentsDiff(one, other, None, note=pair.obstacle, damaged=damaged), None
    left_out, note = _leave_out(unread, len(sums[0]), same_groups=len(sums[0]) == len(sums[1]))
    if left_out.all():
        return ContentsDiff(None, None, None, note=note, damaged=damaged), None
    if len(sums[0]) != len(sums[1]):
        one, other = one.without_key_groups, other.without_key_groups
        return ContentsDiff(one, other, one == other, note=OTHER_KEY_GROUPS), None
    compared = np.where(left_out[:, None], 0, sums[0]), np.where(left_out[:, None], 0, sums[1])
    groups = int((compared[0] != compared[1]).any(axis=1).sum())
    if groups:
        found = ContentsDiff(one, other, False, note=note, key_groups=groups, damaged=damaged)
        return found, compared
    if unread:
        return ContentsDiff(one, other, None, note=note, key_groups=0, damaged=damaged), None
    return ContentsDiff(one, other, True, key_groups=0, only_in_one=0, only_in_other=0, changed=0), None


def _leave_out(unread: list[Unread], number: int, *, same_groups: bool) -> tuple[npt.NDArray[np.bool_], str]:
    """Return a mask over `number` key groups, True for those that cannot be compared, and the reason as text.

    If records are unread, and the snapshots have different numbers of key groups (not `same_groups`), no key group can
    be compared.
    """
    left_out = np.zeros(number, np.bool_)
    for each in unread:
        if each.key_groups is None or not same_groups:
            left_out[:] = True
        else:
            left_out[each.key_groups.start : each.key_groups.end + 1] = True
    if not unread:
        return left_out, ""
    if left_out.all():
        return left_out, f"not compared: {unread[0].reason}"
    ranges = dict.fromkeys(f"{each.key_groups.start}-{each.key_groups.end}" for each in unread if each.key_groups)
    return left_out, f"key groups {', '.join(ranges)} are not compared: {unread[0].reason}"
