"""`diff`: what is different between two snapshots, whatever their formats and backends.

First what `_metadata` and headers say: facts of the snapshots, operators by id, states by name, serializers. Then the
records, as the bytes of keys and values in the form that all formats share (`KeyedRecords`): digests per key group, and
of the key groups that differ the records one by one. Bytes are compared only where they mean the same (`forms`);
what is not compared is told, and never counts as the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from state_pipelines.errors import NotFoundError, UnsupportedError, UsageError, Where, at
from state_pipelines.operations.comparing.facts import compare_operators, compare_snapshots, compare_states
from state_pipelines.operations.comparing.forms import find_obstacle
from state_pipelines.operations.comparing.hashes import sum_differences
from state_pipelines.operations.comparing.keyed import (
    CompareGroups,
    DigestFile,
    FileSums,
    ShowRecords,
    add_up,
    make_side,
    plan_comparison,
    plan_digests,
    total_of,
)
from state_pipelines.operations.comparing.report import (
    ContentsDiff,
    OperatorDiff,
    Presence,
    SnapshotDiff,
    StateDiff,
)
from state_pipelines.operations.comparing.unkeyed import CompareUnkeyed, make_example
from state_pipelines.operations.processes import run_pieces
from state_pipelines.snapshot.keyed_state import KeyedState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from state_pipelines.operations.processes import Work
    from state_pipelines.snapshot import Operator, Snapshot, State

LIMIT = 10
"""Examples per state, unless the caller decides."""

OTHER_KEY_GROUPS = "not compared one by one, but by digests without key groups: the max parallelism differs"

Result = TypeVar("Result")


class Runner(Protocol):
    """Runs pieces of work and gives their results in order; the text says what failed."""

    def __call__(self, pieces: Sequence[Work[Result]], what: str, /) -> list[Result]:
        """Run them."""


@dataclass
class _Pair:
    """A state on both sides, and what is known of it so far.

    Attributes:
        one: the state in the one; None when it has none.
        other: the state in the other.
        obstacle: why the records cannot be compared; empty when they can.
        contents: what was found.
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
    """An operator on both sides, with its states."""

    one: Operator | None
    other: Operator | None
    pairs: list[_Pair] = field(default_factory=list)
    error: str = ""

    @property
    def some(self) -> Operator:
        operator = self.one or self.other
        assert operator is not None
        return operator

    @property
    def label(self) -> str:
        """The uid when any side knows it."""
        known = (each.uid for each in (self.one, self.other) if each is not None and each.uid)
        return next(known, self.some.id)


def diff(
    one: Snapshot,
    other: Snapshot,
    *,
    operator: str | None = None,
    state: str | None = None,
    metadata_only: bool = False,
    limit: int = LIMIT,
    run: Runner = run_pieces,
) -> SnapshotDiff:
    """Compare two snapshots.

    Args:
        one: the one.
        other: the other.
        operator: uid, id or name; only this operator. Facts of the snapshots do not count then.
        state: name; only states of this name. Facts of snapshots and operators do not count then.
        metadata_only: read headers only, no records.
        limit: examples per state.
        run: runs the pieces of work; default one after the other in this process.

    Raises:
        NotFoundError: neither snapshot has such an operator or state.
        UsageError: the limit is negative.
        StateError: a snapshot cannot be read. What is merely not covered is told as not compared.
    """
    if limit < 0:
        raise UsageError(f"{limit} examples cannot be shown", hint="The limit is 0 or more")
    operators = _pair_operators(one, other, operator)
    for each in operators:
        _pair_states(each, state)
    if state is not None:
        operators = [each for each in operators if each.pairs]
        if not operators:
            raise NotFoundError(
                f"neither snapshot has a state {state}",
                where=Where(operator=operator),
                hint="`inspect` shows what there is",
            )
    if not metadata_only:
        _compare_keyed(operators, limit, run)
        _compare_unkeyed(operators, limit, run)
    return SnapshotDiff(
        one=one.path,
        other=other.path,
        metadata_only=metadata_only,
        facts=compare_snapshots(one, other, counts=operator is None and state is None),
        operators=tuple(_report_operator(each, counts=state is None) for each in operators),
    )


def _pair_operators(one: Snapshot, other: Snapshot, name: str | None) -> list[_OperatorPair]:
    """The operators by id: those of the one, then those that only the other has.

    Raises:
        NotFoundError: neither snapshot has the operator that is asked for.
    """
    if name is None:
        sides = [{each.id: each for each in snapshot.operators} for snapshot in (one, other)]
    else:
        sides = [_find_operator(snapshot, name) for snapshot in (one, other)]
        ids = {each for side in sides for each in side}
        if not ids:
            one.operator(name)
        # A name of one may be stored there alone; the other has the operator all the same.
        for side, snapshot in zip(sides, (one, other), strict=True):
            side.update({each.id: each for each in snapshot.operators if each.id in ids and each.id not in side})
    return [_OperatorPair(sides[0].get(each), sides[1].get(each)) for each in dict.fromkeys((*sides[0], *sides[1]))]


def _find_operator(snapshot: Snapshot, name: str) -> dict[str, Operator]:
    try:
        found = snapshot.operator(name)
    except NotFoundError:
        return {}
    return {found.id: found}


def _pair_states(pair: _OperatorPair, name: str | None) -> None:
    """Find the states of an operator on both sides; where one side cannot be read, the other has nothing to meet."""
    errors: list[str] = []
    reads: tuple[Callable[[Operator], Sequence[State]], ...] = (
        lambda operator: operator.keyed_states,
        lambda operator: operator.operator_states,
        lambda operator: operator.raw_states,
        lambda operator: () if operator.in_flight is None else (operator.in_flight,),
    )
    for read in reads:
        try:
            with at(operator=pair.label):
                one, other = (
                    {(type(each), each.name): each for each in read(side) if name in (None, each.name)} if side else {}
                    for side in (pair.one, pair.other)
                )
        except UnsupportedError as error:
            errors.append(str(error))
            continue
        for key in dict.fromkeys((*one, *other)):
            found = _Pair(one.get(key), other.get(key))
            if found.one is not None and found.other is not None:
                found.obstacle = find_obstacle(found.one, found.other)
                if found.obstacle:
                    # Told although no records are asked for: not all that keeps them apart is a fact of its own.
                    found.contents = ContentsDiff(None, None, None, note=found.obstacle)
            pair.pairs.append(found)
    pair.error = "; ".join(dict.fromkeys(errors))


def _report_operator(pair: _OperatorPair, *, counts: bool) -> OperatorDiff:
    return OperatorDiff(
        id=pair.some.id,
        label=pair.label,
        presence=_find_presence(pair.one, pair.other),
        facts=compare_operators(pair.one, pair.other, counts=counts),
        states=tuple(
            StateDiff(
                each.some.name,
                _find_presence(*each.sides),
                compare_states(*each.sides),
                each.contents,
            )
            for each in pair.pairs
        ),
        error=pair.error,
    )


def _find_presence(one: object, other: object) -> Presence:
    return Presence.BOTH if None not in (one, other) else Presence.OTHER if one is None else Presence.ONE


def _compare_unkeyed(operators: list[_OperatorPair], limit: int, run: Runner) -> None:
    pairs = [
        (operator, pair) for operator in operators for pair in operator.pairs if not isinstance(pair.some, KeyedState)
    ]
    pieces = [CompareUnkeyed(operator.label, *pair.sides, pair.obstacle, limit) for operator, pair in pairs]
    for (_, pair), contents in zip(pairs, run(pieces, "operator state cannot be compared"), strict=True):
        pair.contents = contents


Sums = tuple["npt.NDArray[np.uint64] | None", "npt.NDArray[np.uint64] | None"]
"""Digests by key group of both sides; None of a side that does not have the state."""


def _compare_keyed(operators: list[_OperatorPair], limit: int, run: Runner) -> None:
    pairs = [pair for operator in operators for pair in operator.pairs if isinstance(pair.some, KeyedState)]
    sums = _digest(operators, run)
    differing: list[tuple[_Pair, list[CompareGroups]]] = []
    for pair in pairs:
        found = sums[id(pair)]
        if isinstance(found, str):
            pair.contents = ContentsDiff(None, None, None, note=f"not compared: {found}")
            continue
        pair.contents, is_open = _judge(pair, found)
        if is_open:
            one, other = pair.sides
            assert isinstance(one, KeyedState)
            assert isinstance(other, KeyedState)
            assert found[0] is not None
            assert found[1] is not None
            pieces = plan_comparison(make_side(one), make_side(other), (found[0], found[1]), limit)
            differing.append((pair, pieces))
    results = iter(run([piece for _, pieces in differing for piece in pieces], "records cannot be compared"))
    shows: list[tuple[_Pair, ShowRecords]] = []
    for pair, pieces in differing:
        total = sum_differences([next(results) for _ in pieces], limit)
        assert pair.contents is not None
        pair.contents = replace(
            pair.contents,
            only_in_one=total.only_in_one,
            only_in_other=total.only_in_other,
            changed=total.changed,
        )
        if total.candidates:
            shows.append((pair, ShowRecords(pieces[0].one, pieces[0].other, total.candidates)))
    shown = run([show for _, show in shows], "examples cannot be read")
    for (pair, show), rows in zip(shows, shown, strict=True):
        assert pair.contents is not None
        examples = (make_example(each, *sides) for each, sides in zip(show.candidates, rows, strict=True))
        pair.contents = replace(pair.contents, examples=tuple(examples))


def _digest(operators: list[_OperatorPair], run: Runner) -> dict[int, Sums | str]:
    """Digests by key group of every keyed state (by identity of its pair), or why they cannot be had."""
    pieces: list[DigestFile] = []
    owners: list[tuple[_OperatorPair, int]] = []
    for operator in operators:
        for side in (0, 1):
            states = [each for pair in operator.pairs if isinstance(each := pair.sides[side], KeyedState)]
            planned = plan_digests(states)
            pieces += planned
            owners += [(operator, side)] * len(planned)
    held: dict[tuple[int, int], list[FileSums]] = {}
    for (owner, side), result in zip(owners, run(pieces, "keyed state cannot be digested"), strict=True):
        held.setdefault((id(owner), side), []).append(result)
    found: dict[int, Sums | str] = {}
    for operator in operators:
        for pair in operator.pairs:
            if not isinstance(pair.some, KeyedState):
                continue
            sides: list[npt.NDArray[np.uint64] | None] = []
            failures: list[str] = []
            for side, state in enumerate(pair.sides):
                mine = held.get((id(operator), side), [])
                if state is None:
                    sides.append(None)
                    continue
                failures += [each.failures[state.name] for each in mine if state.name in each.failures]
                sums = [each.states[state.name] for each in mine if state.name in each.states]
                sides.append(add_up(sums, state.operator.max_parallelism))
            found[id(pair)] = failures[0] if failures else (sides[0], sides[1])
    return found


def _judge(pair: _Pair, sums: Sums) -> tuple[ContentsDiff, bool]:
    """What the digests tell, and whether the records are to be compared one by one."""
    one, other = (None if each is None else total_of(each) for each in sums)
    if sums[0] is None or sums[1] is None or one is None or other is None:
        return ContentsDiff(one, other, False), False
    if pair.obstacle:
        return ContentsDiff(one, other, None, note=pair.obstacle), False
    if len(sums[0]) != len(sums[1]):
        one, other = one.without_key_groups, other.without_key_groups
        return ContentsDiff(one, other, one == other, note=OTHER_KEY_GROUPS), False
    groups = int((sums[0] != sums[1]).any(axis=1).sum())
    if groups:
        return ContentsDiff(one, other, False, key_groups=groups), True
    return ContentsDiff(one, other, True, key_groups=0, only_in_one=0, only_in_other=0, changed=0), False
