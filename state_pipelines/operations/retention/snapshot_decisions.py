"""Decisions about snapshots: which of them a policy keeps, and which stay whatever it says."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.retention.policy import FOREVER, PERIODS, KeepRule
from state_pipelines.operations.retention.references import SnapshotReferences, Unreadable
from state_pipelines.storage import METADATA_FILE
from state_pipelines.storage.resolution import CHECKPOINT_DIRECTORY, SAVEPOINT_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from state_pipelines.operations.retention.jobs import Job, JobIndex
    from state_pipelines.operations.retention.policy import PolicyRule, RetentionPolicy
    from state_pipelines.operations.retention.survey import FoundSnapshot, Survey

_BUCKETS = {"hourly": "%Y-%m-%d %Hh", "daily": "%Y-%m-%d", "weekly": "%G week %V", "monthly": "%Y-%m", "yearly": "%Y"}


NOT_IN_EARLIER_PLAN = "not in the earlier plan that this one confirms; a later plan may delete it"
"""Reason of what could go by now, but could not when the confirmed plan was made."""


YOUNG_SNAPSHOT = "younger than the minimal age"
"""Reason of a snapshot that stays."""


@dataclass(frozen=True)
class Decision:
    """The decision about one snapshot.

    Attributes:
        delete: it goes.
        reasons: why, the strongest first.
    """

    delete: bool
    reasons: tuple[str, ...]


def decide(
    found: Survey,
    index: JobIndex,
    policy: RetentionPolicy,
    stopped: Collection[str],
    candidates: Collection[str] | None = None,
) -> dict[str, Decision]:
    """Decide about every snapshot.

    Args:
        found: the survey.
        index: its jobs.
        policy: the policy.
        stopped: keys of the roots below which references are not known.
        candidates: paths that may be deleted; None for all.

    Returns:
        The decisions, by key of the snapshot.
    """
    restorable = {key: snapshot.restorable for key, snapshot in found.snapshots.items()}
    decisions: dict[str, Decision] = {}
    for job in index.jobs.values():
        protected = _protect(job, restorable, policy, found.time, stopped)
        kept = _apply_rules(job, restorable, policy, protected, found)
        for snapshot in job.snapshots:
            reasons = (*protected.get(snapshot.key, ()), *kept[snapshot.key].kept)
            if not reasons and candidates is not None and f"{snapshot.path}/{METADATA_FILE}" not in candidates:
                reasons = (NOT_IN_EARLIER_PLAN,)
            decisions[snapshot.key] = Decision(not reasons, tuple(reasons or kept[snapshot.key].dropped))
    return decisions


def kind_of(snapshot: FoundSnapshot) -> SnapshotKind:
    """`checkpoint`, `savepoint` or `unknown`; by the name of the directory where `_metadata` does not say."""
    reading = snapshot.reading
    if isinstance(reading, SnapshotReferences) and reading.kind is not SnapshotKind.UNKNOWN:
        return reading.kind
    name = snapshot.key.rpartition("/")[2]
    if CHECKPOINT_DIRECTORY.fullmatch(name):
        return SnapshotKind.CHECKPOINT
    return SnapshotKind.SAVEPOINT if SAVEPOINT_DIRECTORY.fullmatch(name) else SnapshotKind.UNKNOWN


def _protect(
    job: Job,
    restorable: Mapping[str, bool | None],
    policy: RetentionPolicy,
    now: datetime,
    stopped: Collection[str],
) -> dict[str, list[str]]:
    """Reasons that no policy overrules, by key of the snapshot."""
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for snapshot in job.snapshots:
        if isinstance(snapshot.reading, Unreadable):
            reasons[snapshot.key].append(f"its {METADATA_FILE} cannot be read: {snapshot.reading.reason}")
        if snapshot.pin is not None:
            reason = f": {snapshot.pin.reason}" if snapshot.pin.reason else ""
            reasons[snapshot.key].append(f"pinned{reason}")
    for newest in _newest_restorable(job, restorable):
        reasons[newest.key].append("newest restorable snapshot of its job")
    if job.may_run:
        for snapshot in job.checkpoints[-policy.num_retained :]:
            reasons[snapshot.key].append("among the newest completed checkpoints of a job that may be running")
    for snapshot in job.snapshots:
        times = [file.entry.modified for file in snapshot.files]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            reasons[snapshot.key].append("its age is not known")
        elif now - max(known) < policy.min_age:
            reasons[snapshot.key].append(YOUNG_SNAPSHOT)
        if snapshot.root.key in stopped:
            reasons[snapshot.key].append("other snapshots may reference its files (see stopped)")
    return reasons


def _newest_restorable(job: Job, restorable: Mapping[str, bool | None]) -> list[FoundSnapshot]:
    """The newest restorable snapshot, and a newer one for which this is not known.

    The same of the checkpoints alone, because a savepoint may have been taken by another job of the same first digits.
    """
    found: dict[str, FoundSnapshot] = {}
    for snapshots in (job.snapshots, job.checkpoints):
        for wanted in ((True,), (True, None)):
            newest = next((each for each in reversed(snapshots) if restorable[each.key] in wanted), None)
            if newest is not None:
                found[newest.key] = newest
    return list(found.values())


@dataclass(frozen=True)
class _Outcome:
    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def _apply_rules(
    job: Job,
    restorable: Mapping[str, bool | None],
    policy: RetentionPolicy,
    protected: Mapping[str, Collection[str]],
    found: Survey,
) -> dict[str, _Outcome]:
    groups: defaultdict[int, list[FoundSnapshot]] = defaultdict(list)
    outcomes: dict[str, _Outcome] = {}
    for snapshot in job.snapshots:
        number = _find_rule(snapshot, job, policy.rules)
        if number is None:
            text = "no rule of the policy is for it" if policy.rules else "no policy: only orphans are deleted"
            outcomes[snapshot.key] = _Outcome(kept=(text,))
        else:
            groups[number].append(snapshot)
    for number, snapshots in groups.items():
        rule = policy.rules[number]
        reasons = _keep(rule, snapshots, found.time)
        # A snapshot that misses files does not take the place of one that can be restored.
        whole = [snapshot for snapshot in snapshots if restorable[snapshot.key] is not False]
        for key, texts in _keep(rule, whole, found.time).items():
            reasons[key] = list(dict.fromkeys((*reasons.get(key, ()), *texts)))
        over_budget = _exceeds_budget(rule, snapshots, reasons, protected, found)
        words = ", ".join(f"{name} {value}" for name, value in rule.keep.to_json().items())
        for snapshot in snapshots:
            if snapshot.key in over_budget:
                text = f"{rule.name}: over max_size {rule.keep.max_size:,} bytes of job {job.name}"
                outcomes[snapshot.key] = _Outcome(dropped=(text,))
            elif snapshot.key in reasons:
                outcomes[snapshot.key] = _Outcome(kept=tuple(f"{rule.name}: {text}" for text in reasons[snapshot.key]))
            else:
                text = f"{rule.name} ({words}) keeps other snapshots of job {job.name}"
                outcomes[snapshot.key] = _Outcome(dropped=(text,))
    return outcomes


def _find_rule(snapshot: FoundSnapshot, job: Job, rules: Sequence[PolicyRule]) -> int | None:
    reading = snapshot.reading
    formats = reading.formats if isinstance(reading, SnapshotReferences) else frozenset()
    kind = kind_of(snapshot)
    for number, rule in enumerate(rules):
        if rule.matches(kind=kind, formats=formats, job=job.name, path=snapshot.path, tags=snapshot.tags):
            return number
    return None


def _keep(rule: PolicyRule, snapshots: Sequence[FoundSnapshot], now: datetime) -> dict[str, list[str]]:
    """Reasons by which a rule keeps snapshots of one job, oldest first given; by key."""
    keep = rule.keep
    newest_first = [snapshot for snapshot in reversed(snapshots) if snapshot.modified is not None]
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    if keep.keeps_by_budget_only:
        for snapshot in newest_first:
            reasons[snapshot.key].append("max_size")
    if keep.last is not None:
        for snapshot in newest_first if keep.last == FOREVER else newest_first[: keep.last]:
            reasons[snapshot.key].append("all" if keep.last == FOREVER else f"last {keep.last}")
    for snapshot in newest_first:
        if keep.within is not None and snapshot.modified is not None and now - snapshot.modified < keep.within:
            reasons[snapshot.key].append(f"within {keep.within}")
        reasons_by_tag = [f"tag {tag}" for tag in keep.tags if tag in snapshot.tags]
        if reasons_by_tag:
            reasons[snapshot.key] += reasons_by_tag
    for period in PERIODS:
        _keep_by_period(keep, period, newest_first, reasons)
    return dict(reasons)


def _keep_by_period(
    keep: KeepRule, period: str, newest_first: Sequence[FoundSnapshot], reasons: defaultdict[str, list[str]]
) -> None:
    number = getattr(keep, period)
    last = None
    for snapshot in newest_first if number else ():
        assert snapshot.modified is not None
        bucket = snapshot.modified.strftime(_BUCKETS[period])
        if bucket == last:
            continue
        last = bucket
        reasons[snapshot.key].append(f"{period} {bucket}")
        number -= 1
        if number == 0:
            break


def _exceeds_budget(
    rule: PolicyRule,
    snapshots: Sequence[FoundSnapshot],
    reasons: Mapping[str, Collection[str]],
    protected: Mapping[str, Collection[str]],
    found: Survey,
) -> set[str]:
    """Keys of the snapshots that the budget of a rule drops: the oldest, never protected ones."""
    budget = rule.keep.max_size
    if budget is None:
        return set()
    counted: set[str] = set()
    total = 0
    staying = [snapshot for snapshot in snapshots if protected.get(snapshot.key)]
    for snapshot in staying:
        total += _add_files(snapshot, counted, found)
    dropped: set[str] = set()
    for snapshot in reversed(snapshots):
        if protected.get(snapshot.key) or snapshot.key not in reasons:
            continue
        if not dropped:
            total += _add_files(snapshot, counted, found)
        if dropped or total > budget:
            dropped.add(snapshot.key)
    return dropped


def _add_files(snapshot: FoundSnapshot, counted: set[str], found: Survey) -> int:
    """Bytes of the files of a snapshot that are not counted yet."""
    keys = {file.key for file in snapshot.files}
    if isinstance(snapshot.reading, SnapshotReferences):
        keys |= snapshot.reading.files.keys()
    new = {key for key in keys - counted if key in found.files}
    counted |= new
    return sum(found.files[key].entry.size for key in new)
