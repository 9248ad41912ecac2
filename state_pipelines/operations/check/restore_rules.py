"""Rules of a restore by role: keys, namespaces, timers and map keys cannot be migrated, values can."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from state_pipelines.codecs.columns import column_type
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import StateError
from state_pipelines.javaclasses import ClassFieldLists
from state_pipelines.keyed.hashing import hash_codes
from state_pipelines.operations.check.check_report import StateCheck
from state_pipelines.operations.check.class_checks import find_unknown_classes, judge_nulls, look_up_fields
from state_pipelines.operations.jobs.flink_config import StateBackend
from state_pipelines.operations.jobs.job_state import JobOperator, JobState, StateGroup, Subject
from state_pipelines.operations.jobs.type_extraction import TypeExtraction, UnresolvedType
from state_pipelines.serializers.compatibility import Compatibility, Outcome, combine, resolve, wrap_ttl_aware
from state_pipelines.serializers.compatibility.objects import find_kryo, know_fields, refuse_other_kryo
from state_pipelines.serializers.compatibility.rules import (
    find_exchangeable_columns,
    find_named_rows,
    find_renamed_fields,
    list_paths,
    single,
)
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import Kryo, ListOf, MapOf, Pojo, Serializer, StateKind, TtlAware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.codecs.kryo.classes import FieldLists
    from state_pipelines.operations.check.class_checks import DataClasses, WrittenClasses

_FLINK_2 = (2, 0)
# The first release that can read serializer snapshots of SQL rows with names of fields (FLINK-40120).
_NAMED_ROWS = (2, 4)
_FIXED_SUBJECTS = {
    Subject.KEY: "keys cannot be migrated",
    Subject.NAMESPACE: "namespaces cannot be migrated",
    Subject.TIMER: "timers cannot be migrated, they consist of a key and a namespace",
}
_WITHIN_VALUE = frozenset({Subject.VALUE, Subject.ELEMENT, Subject.MAP_KEY, Subject.MAP_VALUE})
"""Subjects that Flink's messages name by the serializer of the whole value."""
_MAP_KEY_ERROR = (
    "The new serializer for a MapState requires state migration in order for the job to proceed, since the key schema "
    "has changed. However, migration for MapState currently only allows value schema evolutions."
)


@dataclass(frozen=True)
class Restore:
    """The circumstances of a restore.

    Attributes:
        release: release of Flink that restores the state, (major, minor).
        backend: the state backend; None if the stricter one decides.
        old_kryo_version: major version of Kryo that wrote the state; None if the release has the same version.
        classes: the known classes of both jobs; None if only serializers are compared.
        find_data: function that returns the classes in the data of a state, given operator id and state name; None if
            the data were not read.
        row_names: whether fields of SQL rows must keep their names, which Flink does not compare.
        other_queries: whether the queries of a SQL job may differ from those of the old job.
        new_classes: the classes of the new job, if they may differ from those of the old job; else None.
        observed: whether the classes of the new serializers are known to load in the release, because a job on the
            same release line wrote them.
    """

    release: tuple[int, int]
    backend: StateBackend | None
    old_kryo_version: int | None
    classes: WrittenClasses | None = None
    find_data: Callable[[str, str], DataClasses | None] = lambda operator, state: None
    row_names: bool = False
    other_queries: bool = False
    new_classes: FieldLists | None = None
    observed: bool = True

    def __str__(self) -> str:
        """Return the release as text, such as `2.2`."""
        return f"{self.release[0]}.{self.release[1]}"

    @property
    def kryo_version(self) -> int:
        """Major version of Kryo of the release."""
        return 5 if self.release >= _FLINK_2 else 2

    @property
    def crosses(self) -> bool:
        """Whether another major release of Flink wrote the state than the one that restores it."""
        return self.old_kryo_version not in (None, self.kryo_version)

    @property
    def wraps_ttl(self) -> bool:
        """Whether state can be restored after TTL was switched on or off: Flink 2 wraps serializers to allow that."""
        return self.release >= _FLINK_2

    @property
    def is_heap(self) -> bool:
        """Whether the state is restored by the HashMap backend only."""
        return self.backend is StateBackend.HASHMAP


@dataclass(frozen=True)
class _Pair:
    """The old and the new serializer of a subject, with the result of their comparison."""

    subject: Subject
    old: Serializer
    new: Serializer
    compatibility: Compatibility


def judge_subjects(
    operator: str, old: JobState, new: JobState, restore: Restore, owner: JobOperator | None = None
) -> Iterator[StateCheck]:
    """Judge each serializer of a state. Both states must have the same kind, and serializers for the same subjects.

    Args:
        operator: label of the operator.
        old: the state in the snapshot.
        new: the state of the new job.
        restore: circumstances of the restore.
        owner: the operator in the snapshot; without it, classes of objects are not judged.
    """
    pairs = [_compare(*each, restore) for each in _split(old, new, restore)]
    if owner is not None and restore.classes is not None:
        pairs = [_add_classes(each, old, owner, restore, restore.classes) for each in pairs]
    if old.kind == StateKind.MAP and not restore.is_heap:
        pairs = _fix_map_keys(pairs)
    if restore.other_queries and old.group is StateGroup.KEYED:
        pairs = [_warn_of_columns(each, restore) for each in pairs]
    whole = old.serializers.get(Subject.VALUE), new.serializers.get(Subject.VALUE)
    for pair in pairs:
        yield _judge(operator, old, pair, whole, restore)


def _split(old: JobState, new: JobState, restore: Restore) -> Iterator[tuple[Subject, Serializer, Serializer]]:
    """Yield (subject, old serializer, new serializer); list and map state is split into element, key and value."""
    for subject, before in old.serializers.items():
        after = new.serializers[subject]
        if subject is Subject.VALUE and restore.wraps_ttl:
            wrapped = wrap_ttl_aware(before), wrap_ttl_aware(after)
            if type(wrapped[0]) is type(wrapped[1]):
                before, after = wrapped
        match subject, old.kind, before, after:
            case Subject.VALUE, StateKind.LIST, ListOf(), ListOf() if before.snapshot_class == after.snapshot_class:
                yield Subject.ELEMENT, before.element, after.element
            case Subject.VALUE, StateKind.MAP, MapOf(), MapOf() if before.snapshot_class == after.snapshot_class:
                yield Subject.MAP_KEY, before.key, after.key
                yield Subject.MAP_VALUE, before.value, after.value
            case _:
                yield subject, before, after


def _compare(subject: Subject, old: Serializer, new: Serializer, restore: Restore) -> _Pair:
    path = subject.replace(" ", "_")
    with know_fields(look_up_fields(restore.new_classes)) if restore.new_classes is not None else nullcontext():
        compatibility = _explain_lost_pojos(_explain_unresolved(resolve(old, new, path), new), old, new, path, restore)
    written_by = restore.old_kryo_version
    if written_by is not None and restore.crosses:
        known = {finding.path for finding in compatibility.findings if finding.outcome is Outcome.INCOMPATIBLE}
        refused = (
            single(refuse_other_kryo(at, node, written_by, restore.kryo_version))
            for at, node in find_kryo(old, path)
            if at not in known
        )
        compatibility = combine([compatibility, *refused])
    rows = find_named_rows(old, path) if restore.release < _NAMED_ROWS else ()
    renamed = find_renamed_fields(old, new, path) if restore.row_names else ()
    # `_split` may have added the TTL wrapper with which Flink 2 compares serializers. The snapshot does not have it, so
    # look at the serializer inside.
    stored = old.inner if isinstance(old, TtlAware) else old
    unknown = () if restore.observed else find_unknown_classes(stored, path, restore.release, crosses=restore.crosses)
    compatibility = combine([compatibility, *map(single, (*rows, *renamed, *unknown))])
    return _Pair(subject, old, new, _fit_remedies(compatibility, subject, new))


_REMEDIES = {
    Subject.KEY: "Give the operator the new key in a migration: a change without `state`, with the step "
    "`key: {type: TYPE, expression: SQL}`",
    Subject.TIMER: "Timers follow their keys, which the step `key: {type: TYPE, expression: SQL}` changes",
    Subject.NAMESPACE: "Keep the old namespace: no step of a migration changes it",
}
"""Remedies for serializers of keys, timers and namespaces, by subject."""


_UNKNOWN_HASH = (
    "Keep the old keys, or key by text, numbers or tuples, which the step `key: {type: TYPE, expression: SQL}` of a "
    "migration makes of them: key groups follow from hashCode(), which is not known for this class"
)


def _choose_remedy(subject: Subject, new: Serializer) -> str:
    """Return the remedy for a serializer of keys, timers or namespaces; empty for a serializer of values."""
    return _UNKNOWN_HASH if subject is Subject.KEY and not _has_known_hash(new) else _REMEDIES.get(subject, "")


def _has_known_hash(key: Serializer) -> bool:
    """Return whether the hash of keys is known, so that a migration can compute their key groups."""
    try:
        hash_codes(key, pa.array([], column_type(derive_layout(key, LayoutContext()))))
    except StateError:
        return False
    return True


def _fit_remedies(compatibility: Compatibility, subject: Subject, new: Serializer) -> Compatibility:
    """Replace remedies that advise to migrate values, if the serializer is that of keys, timers or namespaces."""
    remedy = _choose_remedy(subject, new)
    if not remedy:
        return compatibility
    findings = (
        replace(each, remedy=remedy) if "in a migration" in each.remedy else each for each in compatibility.findings
    )
    return Compatibility(compatibility.outcome, tuple(findings))


def _add_classes(pair: _Pair, state: JobState, owner: JobOperator, restore: Restore, classes: WrittenClasses) -> _Pair:
    """Add to a pair the findings about classes that no serializer snapshot describes."""
    if pair.subject in (Subject.NAMESPACE, Subject.TIMER):
        return pair
    found = pair.compatibility
    path = pair.subject.replace(" ", "_")
    data = restore.find_data(owner.id, state.name) if _may_hold_classes(pair.old) else None
    refused = {finding.path for finding in found.findings if finding.outcome is Outcome.INCOMPATIBLE}
    written = classes.judge(
        path,
        pair.old,
        data,
        lists_subclasses=owner.lists_subclasses and state.group is StateGroup.KEYED,
        changed=found.outcome is not Outcome.AS_IS,
    )
    nulls = () if restore.new_classes is None else judge_nulls(path, pair.old, classes.old, restore.new_classes, data)
    # Leave out findings for paths that other findings already refuse.
    added = [single(finding) for finding in (*written, *nulls) if finding.path not in refused]
    return replace(pair, compatibility=combine([found, *added])) if added else pair


def _warn_of_columns(pair: _Pair, restore: Restore) -> _Pair:
    """Add to a pair findings on SQL columns that may be in another order in the new query, if nothing else differs."""
    found = pair.compatibility
    if pair.subject in (Subject.NAMESPACE, Subject.TIMER) or found.outcome is not Outcome.AS_IS:
        return pair
    stored = pair.old.inner if isinstance(pair.old, TtlAware) else pair.old
    rows = find_exchangeable_columns(stored, pair.subject.replace(" ", "_"), compares_names=restore.row_names)
    return replace(pair, compatibility=combine([found, *map(single, rows)]))


def _may_hold_classes(node: Serializer) -> bool:
    return isinstance(node, Kryo | Pojo) or any(map(_may_hold_classes, node.nested))


def _explain_unresolved(compatibility: Compatibility, new: Serializer) -> Compatibility:
    """Complete findings on serializers that the description of the new job leaves open: why it does, what to do."""
    unknown = {describe(node): node for node in _list_unresolved(new)}
    findings = (
        replace(finding, reason=node.reason, remedy=node.remedy)
        if finding.outcome is Outcome.UNDETERMINED and (node := unknown.get(finding.new or ""))
        else finding
        for finding in compatibility.findings
    )
    return Compatibility(compatibility.outcome, tuple(findings)) if unknown else compatibility


def _explain_lost_pojos(
    compatibility: Compatibility, old: Serializer, new: Serializer, path: str, restore: Restore
) -> Compatibility:
    """In findings on classes that are no POJOs any more, name the rule of Flink that the new class breaks."""
    if not isinstance(restore.new_classes, ClassFieldLists):
        return compatibility
    pojos = {where: node for where, node in list_paths(old, path) if isinstance(node, Pojo)}
    kryo = {where: node for where, node in list_paths(new, path) if isinstance(node, Kryo)}
    extraction = TypeExtraction(restore.new_classes.class_path, restore.release)
    findings = []
    for finding in compatibility.findings:
        before, after = pojos.get(finding.path), kryo.get(finding.path)
        if before is not None and after is not None and before.pojo_class == after.type_class:
            problem = extraction.find_pojo_problem(after.type_class)
            if problem is not None:
                reason = f"{finding.reason}: {problem.reason}"
                remedy = f"{problem.remedy}, so that {after.type_class} stays a POJO"
                finding = replace(finding, reason=reason, remedy=remedy)
        findings.append(finding)
    return replace(compatibility, findings=tuple(findings))


def _list_unresolved(node: Serializer) -> Iterator[UnresolvedType]:
    if isinstance(node, UnresolvedType):
        yield node
    for each in node.nested:
        yield from _list_unresolved(each)


def _fix_map_keys(pairs: list[_Pair]) -> list[_Pair]:
    """Mark the key serializer of map state as incompatible if it changes and the state is migrated.

    RocksDB migrates values only; it does not rewrite the keys of maps.
    """
    outcomes = {pair.subject: pair.compatibility.outcome for pair in pairs}
    migrates = Outcome.AFTER_MIGRATION in (outcomes.get(Subject.MAP_KEY), outcomes.get(Subject.MAP_VALUE))
    if not migrates or outcomes[Subject.MAP_KEY] not in (
        Outcome.AFTER_MIGRATION,
        Outcome.RECONFIGURED,
    ):
        return pairs
    return [
        replace(pair, compatibility=replace(pair.compatibility, outcome=Outcome.INCOMPATIBLE))
        if pair.subject is Subject.MAP_KEY
        else pair
        for pair in pairs
    ]


def _judge(
    operator: str,
    state: JobState,
    pair: _Pair,
    whole: tuple[Serializer | None, Serializer | None],
    restore: Restore,
) -> StateCheck:
    outcome, findings = pair.compatibility.outcome, pair.compatibility.findings
    refused = [finding for finding in findings if finding.outcome is Outcome.INCOMPATIBLE]
    before, after = pair.old, pair.new
    if pair.subject in _WITHIN_VALUE and whole[0] is not None and whole[1] is not None:
        before, after = whole[0], whole[1]
    reason, error = "", ""
    if outcome is Outcome.AFTER_MIGRATION and pair.subject in _FIXED_SUBJECTS:
        outcome, reason = Outcome.INCOMPATIBLE, _FIXED_SUBJECTS[pair.subject]
        error = _quote_error(state, pair.subject, before, after, restore)
    elif outcome is Outcome.AFTER_MIGRATION:
        reason = _explain_migration(state, restore)
    elif outcome is Outcome.INCOMPATIBLE and not refused:
        reason, error = "on RocksDB the keys of map state cannot be migrated", _MAP_KEY_ERROR
        reason += "" if restore.backend else ", on HashMap they can"
    elif not all(finding.unnoticed for finding in refused):
        own_errors = (finding.error for finding in refused if finding.error)
        error = next(own_errors, _quote_error(state, pair.subject, before, after, restore))
    return StateCheck(
        operator=operator,
        state=state.name or None,
        kind=str(state.kind),
        subject=pair.subject,
        outcome=outcome,
        reason=reason,
        findings=findings,
        remedy=_find_remedy(outcome, pair),
        error=error,
        partial=outcome is not Outcome.INCOMPATIBLE and any(finding.loss for finding in findings),
        old=_describe_inside(pair.old),
        new=_describe_inside(pair.new),
    )


def _describe_inside(node: Serializer) -> str:
    """Describe a serializer without the TTL wrapper that Flink 2 adds for comparisons."""
    return describe(node.inner if isinstance(node, TtlAware) else node)


def _explain_migration(state: JobState, restore: Restore) -> str:
    if state.group is not StateGroup.KEYED or restore.is_heap:
        return "Flink reads the values with the old serializer during the restore and writes them with the new one"
    return "on RocksDB Flink rewrites all values when the job first asks for the state"


def _find_remedy(outcome: Outcome, pair: _Pair) -> str:
    findings = pair.compatibility.findings
    match outcome:
        case Outcome.AS_IS:
            remedies = [finding.remedy for finding in findings]
        case Outcome.RECONFIGURED:
            remedies = ["Nothing to do: Flink reconfigures the new serializer"]
        case Outcome.AFTER_MIGRATION:
            remedies = [finding.remedy for finding in findings if finding.remedy]
            remedies = remedies or ["Nothing to do: Flink migrates the values itself"]
        case _:
            worst = (each for each in findings if each.remedy and (each.outcome is outcome or each.loss))
            remedies = [f"{each.path}: {each.remedy}" for each in worst]
            change = f"Change the {pair.subject} serializer in a migration, or keep the old one"
            remedies = remedies or [_choose_remedy(pair.subject, pair.new) or change]
    return "; ".join(dict.fromkeys(filter(None, remedies))) or "Nothing to do"


def _quote_error(state: JobState, subject: Subject, old: Serializer, new: Serializer, restore: Restore) -> str:
    before, after = describe(old), describe(new)
    the = "For heap backends, the" if restore.is_heap else "The"
    match state.group, subject:
        case StateGroup.LIST, _:
            return "The new state typeSerializer for operator state must not be incompatible."
        case StateGroup.BROADCAST, _:
            side = "key" if subject is Subject.MAP_KEY else "value"
            return f"The new {side} typeSerializer for broadcast state must not be incompatible."
        case _, Subject.KEY:
            return f"The new key serializer ({after}) must be compatible with the previous key serializer ({before})."
        case _, Subject.NAMESPACE:
            return (
                f"{the} new namespace serializer ({after}) must be compatible with the old namespace serializer "
                f"({before})."
            )
        case _, Subject.TIMER:
            return "" if restore.is_heap else "The new priority queue serializer must not be incompatible."
        case _:
            return (
                f"{the} new state serializer ({after}) must not be incompatible with the old state serializer "
                f"({before})."
            )
