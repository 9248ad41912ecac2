"""The answer of `check`: one entry per operator, state and serializer, and a verdict for the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from state_pipelines.operations.jobs.job_state import ClassStatus, JobOperator, JobState, StateClasses, Subject
from state_pipelines.serializers.compatibility import Outcome, SerializerDifference
from state_pipelines.snapshot.representation import escape_html, escape_markdown, quote_markdown


class CheckVerdict(StrEnum):
    """Verdict on a state as a whole."""

    FULLY_COMPATIBLE = "fully compatible"
    PARTIALLY_COMPATIBLE = "partially compatible (state will be dropped or starts empty)"
    TO_BE_DETERMINED = "to be determined"
    INCOMPATIBLE = "incompatible"


class Action(StrEnum):
    """The person who has to act before the state restores as intended."""

    NOTHING = "nothing to do"
    RECONFIGURED = "nothing to do, Flink reconfigures the serializer"
    FLINK_MIGRATES = "nothing to do, Flink migrates on access"
    ADVICE = "follow the advice"
    LOOK = "look whether the state may go"
    MIGRATE = "needs our migration"
    CHANGE_JOB = "change the job"
    IMPOSSIBLE = "impossible"
    UNKNOWN = "nobody can tell"


_REFUSED = {
    **dict.fromkeys((Subject.KEY, Subject.NAMESPACE, Subject.TIMER, Subject.MAP_KEY), Action.IMPOSSIBLE),
    **dict.fromkeys((Subject.STATE, Subject.OPERATOR, Subject.SNAPSHOT, Subject.SNAPSHOT_CLASS), Action.CHANGE_JOB),
}


@dataclass(frozen=True, kw_only=True)
class StateCheck:
    """Verdict on one serializer in one state.

    Attributes:
        operator: uid, or 32-digit id; None if the verdict is on the snapshot as a whole.
        state: state name; None if the verdict is on the operator as a whole.
        kind: kind of the state, see `JobState`; empty where there is no state.
        subject: the serializer that is judged; `STATE`, `OPERATOR` and `SNAPSHOT` are about the structure,
            `SNAPSHOT_CLASS` is about a class that several states may have.
        outcome: how Flink restores it.
        reason: why, one sentence; empty when the findings say it all.
        findings: the differences of the serializers.
        remedy: what to do.
        error: the error that Flink raises; empty when it raises none or the error is not known. Serializers are in
            readable form, while Flink prints Java objects.
        partial: state is dropped or starts empty although the restore succeeds.
        old: the serializer of the snapshot at this position, in readable form; empty where there is none.
        new: the serializer of the new job, likewise.
    """

    operator: str | None
    state: str | None
    kind: str
    subject: Subject
    outcome: Outcome
    reason: str = ""
    findings: tuple[SerializerDifference, ...] = ()
    remedy: str = ""
    error: str = ""
    partial: bool = False
    old: str = ""
    new: str = ""

    @property
    def title(self) -> str:
        """Labels of the operator, the state and the judged serializer, such as `orders / order / value`."""
        return " / ".join(filter(None, (self.operator, self.state, str(self.subject))))

    @property
    def is_remarkable(self) -> bool:
        """Whether there is more to say than that Flink restores it as it is."""
        return self.outcome is not Outcome.AS_IS or self.partial or bool(self.findings or self.reason)

    @property
    def has_advice(self) -> bool:
        """Whether Flink restores the state as it is, but there is something to do."""
        unnoticed = any(finding.unnoticed for finding in self.findings)
        return self.outcome is Outcome.AS_IS and (unnoticed or self.subject is Subject.SNAPSHOT_CLASS)

    @property
    def action(self) -> Action:
        """The action to take; `remedy` describes how."""
        match self.outcome:
            case Outcome.UNDETERMINED:
                return Action.UNKNOWN
            case Outcome.INCOMPATIBLE:
                return _REFUSED.get(self.subject, Action.MIGRATE)
            case _ if self.partial:
                return Action.LOOK
            case Outcome.AFTER_MIGRATION:
                return Action.FLINK_MIGRATES
            case Outcome.RECONFIGURED:
                return Action.RECONFIGURED
            case _ if self.has_advice:
                return Action.ADVICE
            case _:
                return Action.NOTHING


def make_check(
    operator: JobOperator | None,
    state: JobState | None,
    subject: Subject,
    outcome: Outcome,
    *,
    reason: str = "",
    findings: tuple[SerializerDifference, ...] = (),
    remedy: str = "",
    error: str = "",
    partial: bool = False,
) -> StateCheck:
    """Make the entry about an operator or a state, or neither (None); a state without a name stands for the keys."""
    named = state if state is not None and state.name else None
    return StateCheck(
        operator=None if operator is None else operator.label,
        state=None if named is None else named.name,
        kind="" if named is None else str(named.kind),
        subject=subject,
        outcome=outcome,
        reason=reason,
        findings=findings,
        remedy=remedy,
        error=error,
        partial=partial,
    )


@dataclass(frozen=True)
class CheckGroup:
    """Entries that say the same of several states or operators.

    Attributes:
        checks: the entries.
        findings: the findings of the entries that no earlier group has.
        repeated: the findings that an earlier group has, each with the title of that group.
        remedies: the remedies that no earlier group has.
    """

    checks: tuple[StateCheck, ...]
    findings: tuple[SerializerDifference, ...]
    repeated: tuple[tuple[SerializerDifference, str], ...]
    remedies: tuple[str, ...]

    @property
    def title(self) -> str:
        """The states or operators, such as `orders / order / value`."""
        return ", ".join(each.title for each in self.checks)


def group_checks(checks: Iterable[StateCheck]) -> list[CheckGroup]:
    """The entries in order, with findings that several share, or that concern one class, merged."""
    together: dict[object, list[StateCheck]] = {}
    for check in checks:
        same = (check.subject, check.outcome, check.reason, tuple(map(_identify, check.findings)))
        together.setdefault(same, []).append(check)
    known: dict[object, str] = {}
    advised: set[str] = set()
    groups = []
    for each in together.values():
        first = each[0]
        findings = [finding for finding in first.findings if _identify(finding) not in known]
        repeated = [(finding, known[_identify(finding)]) for finding in first.findings if _identify(finding) in known]
        findings = list({_identify(finding): finding for finding in reversed(findings)}.values())[::-1]
        remedies = dict.fromkeys(finding.remedy for finding in first.findings if finding.remedy) or {first.remedy: None}
        fresh = tuple(remedy for remedy in remedies if remedy and remedy not in advised)
        groups.append(CheckGroup(tuple(each), tuple(findings), tuple(repeated), fresh))
        advised.update(fresh)
        for finding in findings:
            known[_identify(finding)] = first.title
    return groups


def _identify(finding: SerializerDifference) -> object:
    """Return the contents of a finding without its path; equal findings of several states are printed once."""
    return finding.old, finding.new, finding.outcome, finding.reason


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The answer.

    Attributes:
        old: the snapshot that is to be restored.
        new: the job that is to restore it.
        target: release of Flink that runs the new job.
        backend: hashmap, rocksdb, or None when the stricter one counts.
        checks: in the order of the snapshot.
        notes: assumptions of the answer.
        classes: what class files say about each state, where they alone describe the new job.
    """

    old: str
    new: str
    target: str
    backend: str | None
    checks: tuple[StateCheck, ...]
    notes: tuple[str, ...] = field(default=())
    classes: tuple[StateClasses, ...] = field(default=())

    @property
    def verdict(self) -> CheckVerdict:
        """The verdict for the whole: the worst entry decides."""
        outcomes = {check.outcome for check in self.checks}
        if Outcome.INCOMPATIBLE in outcomes:
            return CheckVerdict.INCOMPATIBLE
        if Outcome.UNDETERMINED in outcomes:
            return CheckVerdict.TO_BE_DETERMINED
        if any(check.partial for check in self.checks):
            return CheckVerdict.PARTIALLY_COMPATIBLE
        return CheckVerdict.FULLY_COMPATIBLE

    @property
    def ok(self) -> bool:
        """Whether the restore succeeds; state may be dropped or start empty."""
        return self.verdict in (CheckVerdict.FULLY_COMPATIBLE, CheckVerdict.PARTIALLY_COMPATIBLE)

    def to_json(self) -> dict[str, object]:
        """The report as an object for `json.dumps`."""
        report = {
            "verdict": str(self.verdict),
            "ok": self.ok,
            "old": self.old,
            "new": self.new,
            "target": self.target,
            "backend": self.backend,
            "notes": list(self.notes),
            "checks": [
                {_KEYS.get(name, name): value for name, value in asdict(check).items()} | {"action": check.action}
                for check in self.checks
            ],
        }
        if self.classes:
            report["classes"] = [each.to_json() for each in self.classes]
        return {name: _plain(value) if name == "checks" else value for name, value in report.items()}

    def list_classes(self) -> Iterator[str]:
        """Yield a line for each status of the classes of states, with the states."""
        for status in ClassStatus:
            titles = [each.title for each in self.classes if each.status is status]
            if titles:
                yield f"{status}: {', '.join(titles)}"

    def to_markdown(self) -> str:
        """The report for a pull request: the verdict, a table of the states that need attention, details."""
        remarkable = [check for check in self.checks if check.is_remarkable]
        lines = [
            f"## State compatibility: {self.verdict}",
            "",
            f"- old: `{self.old}`",
            f"- new: `{self.new}`",
            f"- Flink {self.target}, {self.backend or 'any backend (the stricter one counts)'}",
            *(f"- {note}" for note in self.notes),
            *(f"- {escape_markdown(line)}" for line in self.list_classes()),
        ]
        if remarkable:
            lines += ["", *_HEAD, *map(_row, remarkable)]
        for group in group_checks(remarkable):
            lines += ["", *_details(group)]
        same = [check for check in self.checks if not check.is_remarkable]
        if same:
            summary = f"restored as {'they are' if len(same) > 1 else 'it is'}: {len(same)}"
            lines += ["", *_fold(summary, [*_HEAD, *map(_row, same)])]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class MigrationCheckReport:
    """Flink's outcomes for the state as it is and after the migration.

    Attributes:
        unmigrated: the old state against the new job.
        migrated: the migrated state against the new job.
    """

    unmigrated: CheckReport
    migrated: CheckReport

    @property
    def verdict(self) -> CheckVerdict:
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


_KEYS = {"subject": "place"}
"""Keys of the JSON form that are not the names of attributes."""

_HEAD = ("| operator | state | kind | subject | outcome | to do |", "| --- | --- | --- | --- | --- | --- |")


def _row(check: StateCheck) -> str:
    outcome = f"**{check.outcome}**" if check.outcome is not Outcome.AS_IS else str(check.outcome)
    if check.partial:
        outcome += " (partial)"
    names = (check.operator or "", check.state or "", check.kind, check.subject)
    return f"| {' | '.join((*map(escape_markdown, names), outcome, escape_markdown(check.action)))} |"


def _details(group: CheckGroup) -> list[str]:
    check = group.checks[0]
    lines: list[str] = []
    if check.reason:
        lines += [f"{escape_markdown(check.reason)}.", ""]
    lines += [_bullet(finding) for finding in group.findings]
    lines += [f"- {quote_markdown(finding.path)}: as in {escape_markdown(title)}" for finding, title in group.repeated]
    if check.findings:
        lines.append("")
    lines += [line for remedy in group.remedies for line in (f"What to do: {escape_markdown(remedy)}.", "")]
    if check.error:
        lines += [f"Flink: {quote_markdown(check.error)}", ""]
    return _fold(f"{group.title}: {check.outcome}", lines)


def _fold(summary: str, lines: list[str]) -> list[str]:
    """Lines that a reader unfolds."""
    while lines and not lines[-1]:
        lines = lines[:-1]
    return ["<details>", f"<summary>{escape_html(summary)}</summary>", "", *lines, "", "</details>"]


def _bullet(finding: SerializerDifference) -> str:
    sides = " → ".join(quote_markdown(side) for side in (finding.old, finding.new) if side is not None)
    if finding.old is finding.new is None:
        sides = ""
    elif finding.old is None:
        sides = f"(nothing) → {sides}"
    elif finding.new is None:
        sides = f"{sides} → (nothing)"
    warnings = [
        *(["**values are lost**"] if finding.loss else []),
        *(["**Flink does not notice**"] if finding.unnoticed else []),
    ]
    text = f"- {quote_markdown(finding.path)}{sides and ' '}{sides}: {escape_markdown(finding.reason)}"
    return "; ".join([text, *warnings])


def _plain(value: object) -> object:
    """Enum members as their text, tuples as lists."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, str):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, Iterable) else value
