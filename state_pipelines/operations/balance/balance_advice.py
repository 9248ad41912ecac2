"""Advice: anomalies in the balance of an operator, and remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.operations.balance.balance_report import MaxParallelismConflict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.operations.balance.balance_report import Distribution, HotKeyLoad
    from state_pipelines.snapshot import Snapshot

UNEVEN = 1.1
"""A subtask with so many times the mean of key groups is spoken of."""

HOT = 1.2
"""A key group with so many times the even share of a subtask is spoken of."""

DOMINANT = 0.5
"""A key with such a share of its key group is what makes the key group hot."""

_SHOWN_KEY = 60


def refuse(parallelism: int, max_parallelism: int) -> str:
    """Why Flink would not run with these numbers; empty when it would."""
    if parallelism <= max_parallelism:
        return ""
    return (
        f"parallelism {parallelism} exceeds max parallelism {max_parallelism}: every subtask needs a key group, and "
        f"Flink refuses to start; choose a parallelism up to {max_parallelism}, or a larger max parallelism"
    )


def advise(distribution: Distribution, keys: Sequence[HotKeyLoad]) -> list[str]:
    """Lines of advice.

    Args:
        distribution: that is judged.
        keys: hottest keys of the operator, by bytes.
    """
    return [*_advise_ranges(distribution), *_advise_idle(distribution), *_advise_hottest(distribution, keys)]


def _advise_ranges(distribution: Distribution) -> Iterator[str]:
    p, m = distribution.parallelism, distribution.max_parallelism
    small, large = m // p, -(-m // p)
    if small != large and large * p / m >= UNEVEN:
        divisors = [each for each in range(1, m + 1) if m % each == 0]
        near = [*[each for each in divisors if each < p][-1:], *[each for each in divisors if each > p][:1]]
        yield (
            f"parallelism {p} with max parallelism {m} gives subtasks of {small} and {large} key groups: the largest "
            f"has {large * p / m:.2g} times the mean; choose a divisor of {m} "
            f"({' or '.join(map(str, near))}) or a larger max parallelism"
        )


def _advise_idle(distribution: Distribution) -> Iterator[str]:
    p, idle = distribution.parallelism, len(distribution.idle)
    if not idle or not distribution.bytes:
        return
    noun = "subtask has" if idle == 1 else "subtasks have"
    text = f"{idle} of {p} {noun} no state, because no key falls into the key groups"
    if distribution.loads.keys is not None and sum(distribution.loads.keys) < 2 * p:
        text += f": there are only {sum(distribution.loads.keys)} keys"
    yield text


def _advise_hottest(distribution: Distribution, keys: Sequence[HotKeyLoad]) -> Iterator[str]:
    loads, total, p = distribution.loads, distribution.bytes, distribution.parallelism
    if p == 1 or not total:
        return
    hottest = max(range(len(loads.bytes)), key=loads.bytes.__getitem__)
    share = loads.bytes[hottest] / total
    if share * p < HOT:
        return
    text = (
        f"key group {hottest} alone holds {share:.0%} of the bytes, {share * p:.2g} times the even share of a subtask: "
        f"no more than {max(1, int(1 / share))} subtasks can be even"
    )
    largest = keys[0] if keys else None
    if largest is not None and largest.bytes >= DOMINANT * loads.bytes[hottest]:
        shown = largest.key if len(largest.key) <= _SHOWN_KEY else f"{largest.key[: _SHOWN_KEY - 1]}…"
        yield f"{text}. Most of it is the one key {shown}, and no rescaling splits a key: give it a finer key"
    elif loads.keys is None or loads.keys[hottest] > 1:
        yield f"{text}; a larger max parallelism spreads its keys"
    else:
        yield f"{text}. It has one key, and no rescaling splits a key: give it a finer key"


def find_max_parallelism_conflicts(snapshot: Snapshot) -> list[MaxParallelismConflict]:
    """Operators with keyed state whose max parallelism does not go together, or not with their parallelism.

    Operators of one chain run in one job vertex with one max parallelism. On restore Flink sets that of the vertex to
    what the state of an operator says (`StateAssignmentOperation.checkParallelismPreconditions`), once per operator, so
    that the last one wins; the others then read other key groups than were written. `_metadata` does not tell which
    operators are chained, but only those of the same parallelism can be.
    """
    found: dict[int, dict[str, int]] = {}
    for operator in snapshot.operators:
        if any(each.managed_keyed_state or each.raw_keyed_state for each in operator.metadata.subtasks):
            found.setdefault(operator.parallelism, {})[operator.label] = operator.max_parallelism
    conflicts = []
    for parallelism, numbers in sorted(found.items()):
        if len(set(numbers.values())) > 1:
            conflicts.append(MaxParallelismConflict(parallelism, numbers))
        exceeded = {label: number for label, number in numbers.items() if number < parallelism}
        conflicts += [MaxParallelismConflict(parallelism, {label: number}) for label, number in exceeded.items()]
    return conflicts
