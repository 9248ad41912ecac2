"""Outcomes of a comparison and the findings that explain them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Outcome(StrEnum):
    """What comes of reading old bytes with a new serializer, in the words of `TypeSerializerSchemaCompatibility`.

    The order is that of precedence: of several outcomes the last one wins. `UNDETERMINED` is ours: Flink would know,
    because it runs the user's code.
    """

    AS_IS = "compatibleAsIs"
    RECONFIGURED = "compatibleWithReconfiguredSerializer"
    AFTER_MIGRATION = "compatibleAfterMigration"
    UNDETERMINED = "undetermined"
    INCOMPATIBLE = "incompatible"


_PRECEDENCE = {outcome: rank for rank, outcome in enumerate(Outcome)}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One difference.

    Attributes:
        path: to the field, such as `value.address.zip`, `value.tags[]`, `value.prices{key}`.
        old: the old side in readable form; None when there is nothing on that side.
        new: the new side.
        outcome: what comes of this difference alone.
        reason: why.
        remedy: what to do; empty when there is nothing to do.
        loss: the restore drops values although it succeeds.
        unnoticed: Flink does not see the difference, restores, and then reads wrong values or fails while reading.
        error: what Flink raises, when it is not what it always raises for an incompatible serializer.
    """

    path: str
    old: str | None
    new: str | None
    outcome: Outcome
    reason: str
    remedy: str = ""
    loss: bool = False
    unnoticed: bool = False
    error: str = ""


@dataclass(frozen=True)
class Compatibility:
    """The outcome for one pair of serializers, and what it rests on; without findings it is as-is."""

    outcome: Outcome
    findings: tuple[Finding, ...] = ()

    def within(self, step: str) -> Compatibility:
        """The same, seen from a place that is one step further out."""
        if not step:
            return self
        return Compatibility(self.outcome, tuple(replace(each, path=step + each.path) for each in self.findings))


SAME = Compatibility(Outcome.AS_IS)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome that takes precedence; as-is when there is none (`CompositeTypeSerializerUtil`)."""
    return max(outcomes, key=_PRECEDENCE.__getitem__, default=Outcome.AS_IS)


def combine(parts: Iterable[Compatibility]) -> Compatibility:
    """One comparison made of several."""
    parts = tuple(parts)
    return Compatibility(
        worst(each.outcome for each in parts), tuple(finding for each in parts for finding in each.findings)
    )


def single(finding: Finding) -> Compatibility:
    """A comparison with one finding."""
    return Compatibility(finding.outcome, (finding,))
