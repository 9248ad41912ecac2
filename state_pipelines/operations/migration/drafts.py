"""Open points of a drafted revision: expressions that the user must fill in, and states that no draft covers."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError, Where
from state_pipelines.operations.migration.steps import TODO
from state_pipelines.serializers import tree
from state_pipelines.serializers.compatibility import Outcome
from state_pipelines.serializers.compatibility.objects import find_kryo
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from state_pipelines.operations.check.check_report import CheckReport, StateCheck
    from state_pipelines.operations.jobs.job_state import Job, JobState
    from state_pipelines.operations.migration.migration_files import Migration
    from state_pipelines.operations.migration.migration_planner import Chain


def refuse_drafts(chain: Chain) -> None:
    """Make sure that nothing is left to be filled in.

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


def explain_missing(report: CheckReport, new: Job, drafted: Migration, remarks: Iterable[str]) -> Iterator[str]:
    """Remarks on findings of a check that a draft does not resolve, each with reason and remedy.

    Args:
        report: the check.
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
    """Yield the serializers of a state under the names that `check` uses: element, map_key, map_value and others."""
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
