"""The answer of `check`: one entry per operator, state and serializer, and a verdict for the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from state_pipelines.operations.jobs.job_state import ClassStatus, JobOperator, JobState, StateClasses, Subject
from state_pipelines.serializers.compatibility import Outcome, SerializerDifference
from state_pipelines.snapshot.representation import escape_html, escape_markdown, quote_markdown


class CheckVerdict(StrEnum):
    """Verdict on whether a new job can restore the state of a snapshot."""

    FULLY_COMPATIBLE = "fully compatible"
    PARTIALLY_COMPATIBLE = "partially compatible (state will be dropped or starts empty)"
    TO_BE_DETERMINED = "to be determined"
    INCOMPATIBLE = "incompatible"


class Action(StrEnum):
    """Action that is necessary before the state restores as intended."""

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
        kind: kind of the state, see `JobState`; empty if the verdict is not on a state.
        subject: the serializer that is judged. `STATE`, `OPERATOR` and `SNAPSHOT` are verdicts on the structure,
            `SNAPSHOT_CLASS` is one on a serializer snapshot class, which several states may use.
        outcome: outcome of a restore in Flink.
        reason: reason of the outcome, one sentence; empty if the findings explain it.
        findings: the differences of the serializers.
        remedy: what to do.
        error: the error that Flink raises; empty if it raises none, or if the error is not known. Serializers in it
            are readable text, while Flink prints Java objects.
        partial: whether state is dropped or starts empty although the restore succeeds.
        old: readable text of the serializer in the snapshot; empty if there is none.
        new: readable text of the serializer of the new job; empty if there is none.
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
        """Whether there is anything to report except that Flink restores the state as it is."""
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
    """Make the entry of a report on a state, an operator (`state` is None), or the snapshot (both are None).

    A state without a name stands for the keys of the operator.
    """
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
    """Entries with the same verdict on several states or operators, which a report prints together.

    Attributes:
        checks: the entries.
        findings: the findings of the entries, without those that an earlier group of the report has.
        repeated: the findings that an earlier group has, each with the title of the first entry of that group.
        remedies: the remedies for the entries, without those that an earlier group has.
    """

    checks: tuple[StateCheck, ...]
    findings: tuple[SerializerDifference, ...]
    repeated: tuple[tuple[SerializerDifference, str], ...]
    remedies: tuple[str, ...]

    @property
    def title(self) -> str:
        """Titles of the entries, such as `orders / order / value`, separated by commas."""
        return ", ".join(each.title for each in self.checks)


def group_checks(checks: Iterable[StateCheck]) -> list[CheckGroup]:
    """Group entries with the same subject, outcome, reason and findings; groups are in the order of first entries."""
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
    """Return the contents of a finding without its path: findings with equal contents are printed only once."""
    return finding.old, finding.new, finding.outcome, finding.reason


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Report of a check whether a new job can restore a snapshot.

    Attributes:
        old: the snapshot that is to be restored.
        new: the job that is to restore it.
        target: release of Flink that runs the new job.
        backend: hashmap, rocksdb, or None if the stricter one decides.
        checks: the entries, in the order of the snapshot.
        notes: assumptions that the verdict depends on.
        classes: for each state, its classes in the given class files, if only these describe the new job.
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
        """Verdict on the snapshot as a whole: that of the worst entry."""
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
        """Return the report as an object for `json.dumps`."""
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
        """Yield a line for each `ClassStatus`: the states whose classes have it in the given class files."""
        for status in ClassStatus:
            titles = [each.title for each in self.classes if each.status is status]
            if titles:
                yield f"{status}: {', '.join(titles)}"

    def to_markdown(self) -> str:
        """Return the report as Markdown for a pull request: verdict, table of states that need attention, details."""
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
    """Reports on whether the new job can restore the state without and with a migration.

    Attributes:
        unmigrated: check of the old state against the new job.
        migrated: check of the migrated state against the new job.
    """

    unmigrated: CheckReport
    migrated: CheckReport

    @property
    def verdict(self) -> CheckVerdict:
        """The verdict without the migration; `migrated` has the verdict with it."""
        return self.unmigrated.verdict

    @property
    def ok(self) -> bool:
        """Whether the migrated state restores."""
        return self.migrated.ok

    def to_json(self) -> dict[str, object]:
        """Return both reports as an object for `json.dumps`."""
        return {
            "verdict": str(self.verdict),
            "ok": self.ok,
            "unmigrated": self.unmigrated.to_json(),
            "migrated": self.migrated.to_json(),
        }

    def to_markdown(self) -> str:
        """Return both reports as Markdown, one after the other."""
        return (
            f"# Without the migration\n\n{self.unmigrated.to_markdown()}\n"
            f"# With the migration\n\n{self.migrated.to_markdown()}"
        )


_KEYS = {"subject": "place"}
"""Keys in JSON that differ from the names of attributes, by name of the attribute."""

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
    """Wrap Markdown lines in a section that a reader can unfold under its summary."""
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
    """Convert a value for `json.dumps`: enum members to text, tuples and other iterables to lists."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, str):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, Iterable) else value
