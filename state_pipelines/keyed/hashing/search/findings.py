"""Findings of a search for the `hashCode` of user classes, with their evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_pipelines.keyed.hashing.hash_expressions import HashExpression

CHANCE = 1e-9
"""A candidate is proven when chance would give one like it more rarely than this."""


@dataclass(frozen=True)
class ClassFinding:
    """The `hashCode` found for one class.

    Attributes:
        class_name: the class.
        expression: its `hashCode`; None when it is not proven.
        codes: distinct hash codes of its objects that lie where the expression says.
    """

    class_name: str
    expression: HashExpression | None
    codes: int = 0


@dataclass(frozen=True)
class HashFinding:
    """Findings of a search.

    Attributes:
        key: the type of the keys, for people.
        classes: user classes in the key whose hash had to be found; none when the hash of the key is known.
        keys: distinct keys that were tried.
        matched: how many of them lie where the hash says; 0 when there is none.
        max_parallelism: number of key groups.
        candidates: how many hashes were tried.
        alternatives: others that give the same code for every key tried.
        near: those that came nearest when none fits, and their share of keys.
        complete: whether all orders of the fields were tried.
        reason: why nothing is proven; empty when it is.
    """

    key: str
    classes: tuple[ClassFinding, ...]
    keys: int
    matched: int
    max_parallelism: int
    candidates: int
    alternatives: tuple[str, ...] = ()
    near: tuple[tuple[str, float], ...] = ()
    complete: bool = True
    reason: str = ""

    @property
    def proven(self) -> bool:
        """Whether the hash of every key can be computed."""
        return not self.reason

    @property
    def expressions(self) -> dict[str, HashExpression]:
        """The proven hashes by class name, as `make_key_hasher` takes them."""
        return {each.class_name: each.expression for each in self.classes if each.expression is not None}

    def explain(self) -> str:
        """The findings and their evidence, in sentences."""
        lines = []
        if not self.classes and self.proven:
            lines.append(f"the hash of {self.key} is known; it gives the key groups of all {self.keys} keys tried")
        lines += [
            f"hashCode of {each.class_name} is {each.expression}: it gives the key groups of all {self.matched} "
            f"distinct keys tried ({each.codes} distinct codes of the class, {self.max_parallelism} key groups), "
            f"found among {self.candidates} candidates"
            for each in self.classes
            if each.expression is not None
        ]
        if self.proven and self.alternatives:
            lines.append(f"the same for every key tried: {', '.join(self.alternatives)}")
        if self.reason:
            names = ", ".join(each.class_name for each in self.classes) or self.key
            lines.append(f"the hashCode of {names} is not proven: {self.reason}")
        if self.near:
            shares = ", ".join(f"{text} ({share:.0%} of keys)" for text, share in self.near)
            lines.append(f"nearest: {shares}")
        if not self.complete and self.reason:
            lines.append("not every order of the fields was tried, because there are too many fields")
        return "; ".join(lines)


def count_needed_keys(candidates: int, max_parallelism: int) -> int:
    """Number of distinct keys that prove a hash among so many candidates; 0 when no number does (one key group)."""
    if max_parallelism < 2:
        return 0
    return math.floor((math.log(max(candidates, 1)) - math.log(CHANCE)) / math.log(max_parallelism)) + 1


def is_proven(candidates: int, distinct: int, max_parallelism: int) -> bool:
    """Whether chance is out of the question: `candidates * max_parallelism ** -distinct < CHANCE`."""
    return math.log(max(candidates, 1)) - distinct * math.log(max_parallelism) < math.log(CHANCE)
