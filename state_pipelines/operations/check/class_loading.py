"""Serializer snapshot classes that the target has to load, by the classes of each release of Flink.

Flink loads the class of a serializer snapshot before it reads the snapshot, also of states that the job does not
register; a class that is gone fails the restore. Source: `TypeSerializerSnapshot.readVersionedSnapshot`,
`InstantiationUtil.resolveClassByName`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.operations.check.check_report import StateCheck
from state_pipelines.operations.jobs.job_state import Subject
from state_pipelines.operations.jobs.unresolved_types import UnresolvedType
from state_pipelines.serializers.compatibility import Finding, Outcome
from state_pipelines.serializers.compatibility.rules import list_paths
from state_pipelines.serializers.snapshot_classes import find_releases, list_releases
from state_pipelines.serializers.tree import Avro, Opaque

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.operations.jobs.job_state import JobOperator, JobState
    from state_pipelines.serializers.snapshot_classes import Release
    from state_pipelines.serializers.tree import Serializer

_NO_OLD_SNAPSHOTS = (1, 17)
_OLD_SNAPSHOTS = (
    "TypeSerializerConfigSnapshot and it's subclasses are not supported since Flink 1.17. If you are using built-in "
    "serializers, please first migrate to Flink 1.16. If you are using custom serializers, please migrate them to "
    "TypeSerializerSnapshot using Flink 1.16."
)


def judge_loading(operator: JobOperator, state: JobState, release: Release) -> StateCheck | None:
    """Judge a state one of whose serializer snapshot classes a release of Flink does not have; None for the others."""
    if not _is_known(release):
        return None
    checked = min(release, list_releases()[-1])
    for serializer in state.serializers.values():
        for _, node in list_paths(serializer, ""):
            for name in _list_classes(node):
                owners = find_releases(name)
                if owners and checked not in owners:
                    return _refuse(operator, state, name, release, owners)
    return None


def find_unknown_classes(old: Serializer, path: str, release: Release, *, crosses: bool) -> Iterator[Finding]:
    """Yield the serializers of which nothing says whether they load in a release and read their old data.

    Args:
        old: the serializer of the snapshot.
        path: its path.
        release: the target.
        crosses: the target is of another major release than the snapshot.
    """
    known = _is_known(release)
    for where, node in list_paths(old, path):
        if isinstance(node, UnresolvedType):
            continue
        if isinstance(node, Opaque):
            yield _leave_open(where, f"only Java can run {node.unknown_class}, which nothing here reads", release)
        elif not known:
            reason = f"the classes of Flink {_format(release)} are not known, {node.snapshot_class} among them"
            yield _leave_open(where, reason, release)
            return
        elif crosses and node.snapshot_class and not find_releases(node.snapshot_class) and not isinstance(node, Avro):
            reason = f"{node.snapshot_class} is not part of Flink: the new job needs it for Flink {release[0]}"
            yield _leave_open(where, reason, release)


def note_release(release: Release) -> Iterator[str]:
    """Yield an assumption about the classes of a release that is newer than those that are known."""
    newest = list_releases()[-1]
    if release > newest and _is_known(release):
        yield (
            f"The classes of Flink {_format(release)} are not known: serializer snapshot classes are taken to be "
            f"those of {_format(newest)}"
        )


def _is_known(release: Release) -> bool:
    """Return whether the table has the release, or an older one of its major release, within which none are removed."""
    newest = list_releases()[-1]
    return release in list_releases() or (release > newest and release[0] == newest[0])


def _list_classes(node: Serializer) -> Iterator[str]:
    yield node.snapshot_class
    if isinstance(node, Opaque):
        yield node.unknown_class


def _refuse(
    operator: JobOperator, state: JobState, name: str, release: Release, owners: tuple[Release, ...]
) -> StateCheck:
    last, first = owners[-1], owners[0]
    known = f"{_format(first)} to {_format(last)} have" if last > first else f"{_format(last)} has"
    remedy = f"Restore with Flink {_format(last)}, take a savepoint there, and check that"
    if first > release:
        remedy = f"Restore with Flink {_format(first)} or newer"
    return StateCheck(
        operator=operator.label,
        state=state.name or None,
        kind=str(state.kind) if state.name else "",
        subject=Subject.SNAPSHOT_CLASS,
        outcome=Outcome.INCOMPATIBLE,
        reason=f"Flink {_format(release)} has no class {name} (Flink {known} it), so that it cannot read the "
        "serializer snapshot",
        remedy=remedy,
        error=explain_missing_class(name, release),
    )


def explain_missing_class(name: str, release: Release) -> str:
    """The error of Flink for a serializer snapshot class that it does not find, word for word."""
    error = f"Could not find class '{name}' in classpath."
    return f"{error} {_OLD_SNAPSHOTS}" if "SerializerConfig" in name and release >= _NO_OLD_SNAPSHOTS else error


def _leave_open(path: str, reason: str, release: Release) -> Finding:
    return Finding(
        path=path,
        old=None,
        new=None,
        outcome=Outcome.UNDETERMINED,
        reason=reason,
        remedy=f"Take a savepoint of the new job in a test run on Flink {_format(release)}, and check against that",
    )


def _format(release: Release) -> str:
    return f"{release[0]}.{release[1]}"
