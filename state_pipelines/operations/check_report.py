"""The answer of `check`: one entry per operator, state and place, and a verdict for the whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from state_pipelines.serializers.compatibility import Finding, Outcome

if TYPE_CHECKING:
    from state_pipelines.operations.job import Place


class Verdict(StrEnum):
    """What becomes of the state as a whole."""

    FULLY_COMPATIBLE = "fully compatible"
    PARTIALLY_COMPATIBLE = "partially compatible"
    TO_BE_DETERMINED = "to be determined"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, kw_only=True)
class StateCheck:
    """What becomes of one place in one state.

    Attributes:
        operator: uid, or 32-digit id; None of the snapshot as a whole.
        state: state name; None of what all states of the operator share.
        kind: kind of the state, see `JobState`; empty where there is no state.
        place: which serializer it is about; `STATE`, `OPERATOR` and `SNAPSHOT` are about the structure.
        outcome: what Flink makes of it at this place.
        reason: why, one sentence; empty when the findings say it all.
        findings: the differences of the serializers.
        remedy: what to do.
        error: what Flink raises; empty when it raises nothing, or something that is not known. Serializers stand in
            it in readable form, where Flink prints Java objects.
        partial: state is dropped or starts empty although the restore succeeds.
    """

    operator: str | None
    state: str | None
    kind: str
    place: Place
    outcome: Outcome
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    remedy: str = ""
    error: str = ""
    partial: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The answer.

    Attributes:
        old: the snapshot that is to be restored.
        new: the job that is to restore it.
        target: release of Flink that runs the new job.
        backend: hashmap, rocksdb, or None when the stricter one counts.
        checks: in the order of the snapshot.
        notes: what the answer takes for granted.
    """

    old: str
    new: str
    target: str
    backend: str | None
    checks: tuple[StateCheck, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> Verdict:
        """The verdict for the whole: the worst entry decides."""
        outcomes = {check.outcome for check in self.checks}
        if Outcome.INCOMPATIBLE in outcomes:
            return Verdict.INCOMPATIBLE
        if Outcome.UNDETERMINED in outcomes:
            return Verdict.TO_BE_DETERMINED
        if any(check.partial for check in self.checks):
            return Verdict.PARTIALLY_COMPATIBLE
        return Verdict.FULLY_COMPATIBLE

    @property
    def ok(self) -> bool:
        """Whether the restore succeeds; state may be dropped or start empty."""
        return self.verdict in (Verdict.FULLY_COMPATIBLE, Verdict.PARTIALLY_COMPATIBLE)

    def to_json(self) -> dict[str, object]:
        """The report as an object for `json.dumps`."""
        return {
            "verdict": str(self.verdict),
            "ok": self.ok,
            "old": self.old,
            "new": self.new,
            "target": self.target,
            "backend": self.backend,
            "notes": list(self.notes),
            "checks": [_plain(asdict(check)) for check in self.checks],
        }

    def to_markdown(self) -> str:
        """The report for a pull request: the verdict, a table of all states, and what is to be said of each."""
        lines = [
            f"## State compatibility: {self.verdict}",
            "",
            f"- old: `{self.old}`",
            f"- new: `{self.new}`",
            f"- Flink {self.target}, {self.backend or 'any backend (the stricter one counts)'}",
            *(f"- {note}" for note in self.notes),
            "",
            "| operator | state | kind | place | outcome |",
            "| --- | --- | --- | --- | --- |",
            *map(_row, self.checks),
        ]
        for check in self.checks:
            if check.outcome is not Outcome.AS_IS or check.partial or check.findings:
                lines += ["", *_details(check)]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class MigrationCheckReport:
    """What Flink says to the state after a migration of the code: as it is, and migrated.

    Attributes:
        unmigrated: the old state against the new job.
        migrated: the migrated state against the new job.
    """

    unmigrated: CheckReport
    migrated: CheckReport

    @property
    def verdict(self) -> Verdict:
        """The verdict without the migration; see `migrated` for the other one."""
        return self.unmigrated.verdict

    @property
    def ok(self) -> bool:
        """Whether the migrated state restores."""
        return self.migrated.ok

    def to_json(self) -> dict[str, object]:
        """Both reports as an object for `json.dumps`."""
        return {
            "verdict": str(self.verdict),
            "ok": self.ok,
            "unmigrated": self.unmigrated.to_json(),
            "migrated": self.migrated.to_json(),
        }

    def to_markdown(self) -> str:
        """Both reports, one after the other."""
        return (
            f"# Without the migration\n\n{self.unmigrated.to_markdown()}\n"
            f"# With the migration\n\n{self.migrated.to_markdown()}"
        )


def _row(check: StateCheck) -> str:
    outcome = f"**{check.outcome}**" if check.outcome is not Outcome.AS_IS else str(check.outcome)
    if check.partial:
        outcome += " (partial)"
    cells = (check.operator or "", check.state or "", check.kind, check.place, outcome)
    return f"| {' | '.join(map(_escape, cells))} |"


def _details(check: StateCheck) -> list[str]:
    names = (check.operator, check.state, check.place)
    title = " / ".join(_escape(name) for name in names if name)
    lines = [f"### {title}: {check.outcome}", ""]
    if check.reason:
        lines += [f"{_escape(check.reason)}.", ""]
    lines += [_bullet(finding) for finding in check.findings]
    if check.findings:
        lines.append("")
    if check.remedy:
        lines.append(f"What to do: {_escape(check.remedy)}.")
    if check.error:
        lines += ["", f"Flink: `{check.error.replace('`', chr(39))}`"]
    return lines if lines[-1] else lines[:-1]


def _bullet(finding: Finding) -> str:
    sides = " → ".join(f"`{side.replace('`', chr(39))}`" for side in (finding.old, finding.new) if side is not None)
    if finding.old is None:
        sides = f"(nothing) → {sides}"
    elif finding.new is None:
        sides = f"{sides} → (nothing)"
    warnings = [
        *(["**values are lost**"] if finding.loss else []),
        *(["**Flink does not notice**"] if finding.unnoticed else []),
    ]
    text = f"- `{finding.path}` {sides}: {_escape(finding.reason)}"
    return "; ".join([text, *warnings])


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(value: object) -> object:
    """Enum members as their text, tuples as lists."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, str):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, Iterable) else value
