"""Outcomes of a comparison and the findings that explain them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from state_pipelines.serializers.text import describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.serializers.tree import Serializer


class Outcome(StrEnum):
    """The result of reading old bytes with a new serializer, named as in `TypeSerializerSchemaCompatibility`.

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
        outcome: the outcome of this difference alone.
        reason: why.
        remedy: what to do; empty if nothing is needed.
        loss: the restore drops values although it succeeds.
        unnoticed: Flink does not see the difference, restores, and then reads wrong values or fails while reading.
        error: the error of Flink, if it is not the usual one for an incompatible serializer.
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
    """The outcome for one pair of serializers, and its findings; without findings it is as-is."""

    outcome: Outcome
    findings: tuple[Finding, ...] = ()

    def within(self, step: str) -> Compatibility:
        """Return the findings with `step` prepended to their paths."""
        if not step:
            return self
        return Compatibility(self.outcome, tuple(replace(each, path=step + each.path) for each in self.findings))


SAME = Compatibility(Outcome.AS_IS)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome that takes precedence; as-is if there are none (`CompositeTypeSerializerUtil`)."""
    return max(outcomes, key=_PRECEDENCE.__getitem__, default=Outcome.AS_IS)


def combine(compatibilities: Iterable[Compatibility]) -> Compatibility:
    """Return one comparison made of several."""
    compatibilities = tuple(compatibilities)
    return Compatibility(
        worst(each.outcome for each in compatibilities),
        tuple(finding for each in compatibilities for finding in each.findings),
    )


def single(finding: Finding) -> Compatibility:
    """Return a comparison with one finding."""
    return Compatibility(finding.outcome, (finding,))


def differ(
    old: Serializer,
    new: Serializer,
    *,
    outcome: Outcome,
    reason: str,
    remedy: str = "",
    unnoticed: bool = False,
    error: str = "",
) -> Compatibility:
    """Return a comparison with one finding about two serializers as a whole; arguments as of `Finding`."""
    return single(
        Finding(
            path="",
            old=describe(old),
            new=describe(new),
            outcome=outcome,
            reason=reason,
            remedy=remedy,
            unnoticed=unnoticed,
            error=error,
        )
    )
