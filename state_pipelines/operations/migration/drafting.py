"""Drafts of revisions: the changes that make the state of a snapshot restorable by a new job, with their downgrade.

Every draft has been applied on shapes before it is returned: it leads to exactly the serializers of the new job. What
only the author can know is marked as `TODO`, which no migration runs, or as a remark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import yaml

from state_pipelines.errors import MigrationError, StateError, UnsupportedError, Where
from state_pipelines.operations.check.check_report import Action
from state_pipelines.operations.jobs.job_state import JobDescription, JobOperator, JobState, StateGroup, Subject
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.migration_files import (
    Change,
    Loss,
    Migration,
    dump_migration,
    parse_migration,
)
from state_pipelines.operations.migration.migration_planner import Chain, make_context, plan_migrations, plan_operator
from state_pipelines.operations.migration.payload_differences import Differences, has_todo, propose
from state_pipelines.operations.migration.shapes import StateShape, find_shapes, number_columns
from state_pipelines.operations.migration.steps import TODO, Direction
from state_pipelines.operations.migration.structs import sign_shape, strip_serializer
from state_pipelines.serializers import tree
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.compatibility.objects import find_kryo
from state_pipelines.serializers.state_meta_info import broadcast_state, keyed_state, operator_list
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import KEYED_KINDS, StateKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from state_pipelines.operations.check.check_report import CheckReport, StateCheck
    from state_pipelines.operations.migration.structs import PlanContext
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.snapshot import Snapshot


def refuse_drafts(chain: Chain) -> None:
    """Refuse revisions with placeholders (`TODO`) that are still to be filled in.

    Raises:
        MigrationError: a step still says `TODO`; names the file.
    """
    for migration, direction in chain:
        for change in migration.changes:
            if _says_todo((change.operator, change.state, change.steps(direction))):
                raise MigrationError(
                    f"the {direction} of {change.operator} / {change.state or 'all states'} still says {TODO}",
                    where=Where(file=migration.path),
                    hint="Replace it; the remarks in the file name each open point that only the author can decide",
                )


def _says_todo(value: object) -> bool:
    if isinstance(value, str):
        return re.search(rf"\b{TODO}\b", value) is not None
    if isinstance(value, tuple | list):
        return any(map(_says_todo, value))
    if is_dataclass(value) and not isinstance(value, tree.Serializer):
        return any(_says_todo(getattr(value, each.name)) for each in fields(value))
    return False


def explain_missing(
    report: CheckReport, new: JobDescription, drafted: Migration, remarks: Iterable[str]
) -> Iterator[str]:
    """Make remarks on the findings of a check that a draft does not resolve, each with reason and remedy.

    Args:
        report: result of the check.
        new: the new job.
        drafted: the draft.
        remarks: remarks that the draft has already.
    """
    changed = {(each.operator, each.state) for each in drafted.changes}
    said = tuple(remarks)
    kept = {
        (operator.label, state.name, path)
        for operator in new.operators
        for state in operator.states
        for subject, node in _list_judged(state)
        for path, _ in find_kryo(node, subject)
    }
    for check in report.checks:
        label = " / ".join(filter(None, (check.operator, check.state)))
        if check.outcome not in (Outcome.INCOMPATIBLE, Outcome.UNDETERMINED):
            continue
        if (check.operator, check.state) not in changed:
            if not any(each.startswith(f"{label}:") for each in said):
                yield f"{label or report.old}: not drafted: {_sum_up(check)}"
            continue
        for finding in check.findings:
            if finding.unnoticed and (check.operator, check.state, finding.path) in kept:
                yield f"{label}: {finding.path} is left as it is: {finding.reason}. {finding.remedy}"


def _list_judged(state: JobState) -> Iterator[tuple[str, tree.Serializer]]:
    """Yield (name, serializer) for each serializer of a state, named as in reports of `check`, such as `map_key`."""
    for subject, node in state.serializers.items():
        match state.kind, node:
            case StateKind.LIST, tree.ListOf():
                yield "element", node.element
            case StateKind.MAP, tree.MapOf():
                yield from (("map_key", node.key), ("map_value", node.value))
            case _:
                yield subject.replace(" ", "_"), node


def _sum_up(check: StateCheck) -> str:
    reasons = [check.reason] if check.reason else [each.reason for each in check.findings]
    remedies = [each.remedy for each in check.findings if each.remedy] or [check.remedy]
    return ". ".join(dict.fromkeys(filter(None, (*reasons, *remedies))))


@dataclass(frozen=True)
class Draft:
    """A drafted revision.

    Attributes:
        migration: the draft; without changes when nothing can be derived.
        remarks: what a person has to check or to decide, and why changes are missing in the draft.
        undecided: whether the draft has a `TODO` in place of an expression.
    """

    migration: Migration
    remarks: tuple[str, ...]
    undecided: bool


def draft_revision(
    snapshot: Snapshot,
    new: JobDescription,
    revision: str,
    *,
    before: Chain = (),
    revises: str | None = None,
    description: str = "",
    now: datetime | None = None,
    only: Collection[tuple[str, str]] | None = None,
) -> Draft:
    """Draft a revision that makes a snapshot restorable by a new job.

    Args:
        snapshot: the old state.
        new: the new job, as `describe_job`, `load_job` or `replace_classes` give it.
        revision: its name.
        before: revisions that are applied to the snapshot before the draft.
        revises: name of the revision that the draft follows.
        description: purpose of the revision.
        now: time of last access for the entries of states that get TTL.
        only: (operator, state) of the states to draft changes for; None for all.

    Raises:
        MigrationError: a revision of `before` does not fit.
        StateError: the snapshot cannot be read. Formats that are not covered become remarks.
    """
    snapshot = number_columns(snapshot)
    changes: list[Change] = []
    remarks: list[str] = []
    successors = {each.id: each for each in new.operators}
    moment = now or datetime.now(UTC)
    for operator in snapshot.operators:
        try:
            shapes: Mapping[str, StateShape] = find_shapes(operator)
        except UnsupportedError as error:
            remarks.append(f"{operator.label}: its state cannot be read: {error.what}")
            continue
        if before:
            shapes = plan_operator(operator, shapes, before).new_shapes
        successor = successors.get(operator.id)
        if successor is None or successor.unread:
            why = "the new job has no such operator" if successor is None else successor.unread
            if shapes:
                remarks.append(f"{operator.label}: {why}")
            continue
        context = make_context(snapshot, shapes)
        names = None if only is None else {state for label, state in only if label == operator.label}
        found, said = draft_operator(operator.label, shapes, successor, context, moment, names)
        changes += found
        remarks += (f"{operator.label}{each}" for each in said)
    migration = Migration(revision, revises, description, tuple(changes))
    return Draft(migration, tuple(remarks), any(has_todo((*each.upgrade, *each.downgrade)) for each in changes))


def draft_from_report(snapshot: Snapshot, new: JobDescription, report: CheckReport, revision: str) -> Draft:
    """Draft a revision for the states that a check reports as refused, lost or dropped; Flink restores the others.

    For changes that cannot be drafted, the draft has remarks with the reason and the remedy of the check.

    Args:
        snapshot: the old state.
        new: the new job.
        report: result of `check_jobs` for the job of the snapshot and the new job.
        revision: its name.

    Raises:
        StateError: as `draft_revision`.
    """
    wanted = [each for each in report.checks if _wants_migration(each)]
    only = {(each.operator, each.state) for each in wanted if each.operator is not None and each.state is not None}
    draft = draft_revision(snapshot, new, revision, description="Drafted by check.", only=only)
    return replace(draft, remarks=(*draft.remarks, *explain_missing(report, new, draft.migration, draft.remarks)))


def _wants_migration(check: StateCheck) -> bool:
    """Return whether the new job cannot restore a state, loses some of its data, or lacks it though it has entries."""
    return (
        check.outcome is Outcome.INCOMPATIBLE
        or check.action is Action.LOOK
        or any(finding.loss for finding in check.findings)
    )


def format_revision(draft: Draft) -> str:
    """Return the text of a revision file: the remarks as comments, then the migration.

    Raises:
        MigrationError: there are no changes; says why.
    """
    if not draft.migration.changes:
        raise MigrationError(
            "no revision can be drafted" if draft.remarks else "the new job has no change that needs a migration",
            hint="; ".join(draft.remarks),
        )
    heads = ["A draft: check the renamed fields, the defaults and the casts.", *draft.remarks]
    if draft.undecided:
        heads.append(f"Replace every {TODO} by an expression in Spark SQL; until then it does not run.")
    comments = "".join(f"# {line}\n" for head in heads for line in head.splitlines())
    return comments + format_migration(draft.migration)


def format_migration(migration: Migration) -> str:
    """Return a migration as YAML, which `load_migration` reads back."""
    return yaml.safe_dump(dump_migration(migration), sort_keys=False, width=120, allow_unicode=True)


def describe_shapes(operator: JobOperator) -> dict[str, StateShape]:
    """Return the shapes (serializers for planning) of the states of an operator by name, without timers.

    If a keyed state and an operator state have the same name, the keyed one is returned.
    """
    shapes: dict[str, StateShape] = {}
    for each in sorted(operator.states, key=lambda state: state.group is not StateGroup.KEYED):
        info = _describe_state(each)
        key = operator.key if each.group is StateGroup.KEYED else None
        if info is not None and (key is not None or each.group is not StateGroup.KEYED):
            shapes.setdefault(each.name, StateShape(info, key))
    return shapes


def _describe_state(state: JobState) -> StateMetaInfo | None:
    """Make the meta info that a snapshot of the state would hold; None for timers and incomplete descriptions."""
    of = state.serializers
    match state.group:
        case StateGroup.LIST if Subject.ELEMENT in of:
            return operator_list(state.name, of[Subject.ELEMENT], state.kind)
        case StateGroup.BROADCAST if {Subject.MAP_KEY, Subject.MAP_VALUE} <= of.keys():
            return broadcast_state(state.name, of[Subject.MAP_KEY], of[Subject.MAP_VALUE])
        case StateGroup.KEYED if state.kind in KEYED_KINDS and Subject.NAMESPACE in of:
            return keyed_state(state.name, state.kind, of[Subject.VALUE], of[Subject.NAMESPACE])
    return None


def draft_operator(
    label: str,
    olds: Mapping[str, StateShape],
    new: JobOperator,
    context: PlanContext,
    now: datetime,
    only: Collection[str] | None = None,
) -> tuple[list[Change], list[str]]:
    """Draft the changes of an operator; return them with remarks, in front of which the caller writes the operator.

    Args:
        label: name of the operator in the changes.
        olds: shapes of its states in the snapshot.
        new: the operator of the new job.
        context: planning context of the snapshot.
        now: time of last access for the entries of states that get TTL.
        only: names of the states to draft changes for; None for all.
    """
    news = describe_shapes(new)
    olds = {name: shape for name, shape in olds.items() if shape.kind != StateKind.TIMER}
    changes: list[Change] = []
    remarks: list[str] = []
    keys = {shape.key for shape in olds.values() if shape.key is not None}
    if new.key is not None and any(strip_serializer(key) != strip_serializer(new.key) for key in keys):
        was = ", ".join(sorted(describe(key) for key in keys))
        remarks.append(
            f": the keys were {was} and are {describe(new.key)}: add a change without `state` and with a step "
            "`key: {type, expression}`"
        )
    for name, old in olds.items():
        if only is not None and name not in only:
            continue
        if name not in news:
            remarks += (f" / {each}" for each in _remark_on_gone(old, olds, news))
            continue
        wanted = news[name].with_key(old.key)
        try:
            found, said = _draft_state(label, old, wanted, context, now)
        except StateError as error:
            remarks.append(f" / {name}: no step is known: {error.what}")
            continue
        changes += found
        remarks += (f" / {name}: {each}" for each in said)
    return changes, remarks


def _remark_on_gone(old: StateShape, olds: Mapping[str, StateShape], news: Mapping[str, StateShape]) -> Iterator[str]:
    alike = [
        name
        for name, each in news.items()
        if name not in olds and sign_shape(each.with_key(old.key)) == sign_shape(old)
    ]
    if alike:
        steps = " or ".join(f"`rename_state: {name}`" for name in alike)
        yield f"{old.name}: the new job does not have it, but new states of its type; if it is one of them: {steps}"
    else:
        yield f"{old.name}: the new job does not have it; Flink carries it along unread unless `drop_state` drops it"


def _draft_state(
    label: str, old: StateShape, new: StateShape, context: PlanContext, now: datetime
) -> tuple[list[Change], list[str]]:
    if sign_shape(old) == sign_shape(new):
        return [], []
    if sign_shape(old).namespace != sign_shape(new).namespace:
        raise MigrationError(f"the namespace was {describe(old.namespace)} and is {describe(new.namespace)}")
    if old.map_key is not None and new.map_key is not None and sign_shape(old).map_key != sign_shape(new).map_key:
        raise MigrationError(f"the user keys were {describe(old.map_key)} and are {describe(new.map_key)}")
    draft = _Attempt(label, context, now)
    up, differences = draft.find_steps(old, new, None)
    back, impossible = draft.find_way_back(old, new, up, differences.renames)
    remarks = list(draft.remarks)
    remarks += (
        f"field {other} is taken to be `{one}` under another name; if it is another field, write `add` and `drop` in "
        "place of `rename`"
        for one, other in differences.renames.items()
    )
    remarks += differences.doubts
    losses = [Loss(name, "the upgrade drops it") for name in differences.removed]
    if not impossible:
        losses += [Loss(name, "the downgrade drops it") for name in differences.added]
    change = Change(label, old.name, tuple(up), tuple(back), tuple(losses), impossible=impossible)
    draft.require(old, change, new)
    return [change], remarks


class _Attempt:
    """Search for the steps of one state: candidates are written as text, parsed like a revision file, and planned."""

    def __init__(self, label: str, context: PlanContext, now: datetime) -> None:
        self._label = label
        self._context = context
        self._now = now
        self.remarks: list[str] = []

    def find_steps(
        self, old: StateShape, new: StateShape, renames: Mapping[str, str] | None
    ) -> tuple[list[st.Step], Differences]:
        """Find steps that turn the serializers of the old state (its shape) into those of the new one.

        Raises:
            MigrationError: no candidate steps give the new shape.
        """
        steps: list[st.Step] = []
        shape = old
        if old.kind != new.kind:
            steps.append(_change_kind(old, new, back=renames is not None))
            shape = self.apply(old, steps)
        if old.ttl != new.ttl:
            steps.append(self._change_ttl(new, quiet=renames is not None))
            shape = self.apply(old, steps)
        if _is_same(shape, new):
            return steps, Differences()
        reason = "no steps are known"
        for differences in propose(shape.payload, new.payload, self._context, renames):
            found = [*steps, *differences.steps]
            try:
                reached = self.apply(old, found)
            except StateError as error:
                reason = error.what
                continue
            if _is_same(reached, new):
                return found, differences
        raise MigrationError(f"{describe(old.payload)} cannot be turned into {describe(new.payload)}: {reason}")

    def find_way_back(
        self, old: StateShape, new: StateShape, up: list[st.Step], renames: Mapping[str, str]
    ) -> tuple[list[st.Step], str]:
        """Find the steps of the downgrade, or the reason why there are none."""
        try:
            reached = self.apply(old, up)
            steps, _ = self.find_steps(reached, old, {after: before for before, after in renames.items()})
        except StateError as error:
            return [], f"no step takes it back: {error.what}"
        if has_todo(steps):
            return [], f"no conversion from {describe(new.payload)} to {describe(old.payload)} is known"
        return steps, ""

    def apply(self, shape: StateShape, steps: list[st.Step]) -> StateShape:
        """Return the shape after steps, which are first written as in a file and parsed again.

        Raises:
            MigrationError: the steps do not fit the shape.
        """
        change = Change(self._label, shape.name, tuple(steps), (), impossible="not asked")
        (changed,) = self._plan(shape, change).values()
        return changed

    def require(self, old: StateShape, change: Change, new: StateShape) -> None:
        """Check that a change leads to the new shape when it is planned as a whole, with losses and downgrade.

        Raises:
            MigrationError: the change does not lead to the new shape.
        """
        (changed,) = self._plan(old, change).values()
        if not _is_same(changed, new):
            raise MigrationError(f"the drafted steps give {describe(changed.payload)}, not {describe(new.payload)}")

    def _plan(self, shape: StateShape, change: Change) -> dict[str, StateShape]:
        content = yaml.safe_load(format_migration(Migration("draft", None, "", (change,))))
        migration = parse_migration(content)
        return plan_migrations({shape.name: shape}, [(migration, Direction.UPGRADE)], context=self._context).new_shapes

    def _change_ttl(self, new: StateShape, *, quiet: bool) -> st.TtlStep:
        if not new.ttl:
            return st.TtlStep(disable="the code has no TTL there")
        moment = self._now.astimezone(UTC).isoformat(" ", "seconds")
        if not quiet:
            self.remarks.append(f"TTL is new: every entry counts as last accessed at {moment}")
        return st.TtlStep(enable=f"TIMESTAMP '{moment}'")


def _change_kind(old: StateShape, new: StateShape, *, back: bool) -> st.Kind:
    before = old.kind if old.kind in (StateKind.LIST, StateKind.MAP) else StateKind.VALUE
    if new.kind not in (StateKind.VALUE, StateKind.LIST, StateKind.MAP):
        raise MigrationError(f"no step makes {new.kind} state")
    if new.kind == StateKind.MAP:
        assert new.map_key is not None
        return st.Kind(StateKind.MAP, map_key=st.MapKey(new.map_key, TODO))
    if new.kind == StateKind.VALUE and before == StateKind.LIST:
        # In a downgrade every list has exactly one element, because the upgrade has made each list from one value.
        return st.Kind(StateKind.VALUE, expression="`values`[0]" if back else TODO)
    return st.Kind(new.kind, expression=TODO if before == StateKind.MAP else None)


def _is_same(one: StateShape, other: StateShape) -> bool:
    return replace(sign_shape(one), key=sign_shape(other).key) == sign_shape(other)
