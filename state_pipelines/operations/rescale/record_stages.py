"""Records of operators on their way into new files, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import NotFoundError, Where
from state_pipelines.keyed.digests import sum_digests
from state_pipelines.storage import join

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.operations.rescale.record_regrouping import Collect, Gather
    from state_pipelines.operations.rescale.rescale_plan import RescalePlan
    from state_pipelines.operations.write.keyed_rewrite import WrittenFile
    from state_pipelines.storage import Location


@dataclass
class MovedRecords:
    """Records of an operator that were written.

    Attributes:
        files: the tasks, each with the file that it wrote.
        dropped: what was left out, by state.
        found: all that was read to be sorted, by state; empty unless `digests` is set.
    """

    files: list[tuple[Gather | Collect, WrittenFile]]
    dropped: list[Mapping[str, RecordDigest]]
    found: Mapping[str, RecordDigest] = field(default_factory=dict)


def move_records(
    plan: RescalePlan, target: Location, scratch: Location, run: Runner, *, digests: bool = False
) -> list[MovedRecords]:
    """Sort the records into their new key groups and write them; returns the files of each operator of the plan.

    Args:
        plan: the plan.
        target: directory of the new files.
        scratch: directory of the spills, which every task reaches.
        run: runs the tasks.
        digests: digest what is sorted, for the proof.
    """
    shuffles = [
        (number, source, replace(task, target=join(scratch, task.target.name), digests=digests))
        for number, each in enumerate(plan.operators)
        if each.records is not None
        for source, tasks in enumerate(each.records.shuffles)
        for task in tasks
    ]
    spilled = run([task for *_, task in shuffles], "records cannot be sorted for their new key groups")
    spills: dict[int, dict[int, list[Any]]] = {}
    for (number, source, _), spill in zip(shuffles, spilled, strict=True):
        spills.setdefault(number, {}).setdefault(source, []).append(spill)
    writing: list[tuple[int, Gather | Collect]] = []
    for number, each in enumerate(plan.operators):
        if each.records is None:
            continue
        if each.records.collects:
            writing += [(number, task) for task in each.records.collects]
        else:
            found = [spills.get(number, {}).get(source, []) for source in range(len(each.records.shuffles))]
            writing += [(number, task) for task in each.gather(target, found, plan.request, verify=plan.verify)]
    results = run([task for _, task in writing], "keyed state cannot be written")
    moved = [
        MovedRecords(
            files=[],
            dropped=[each.dropped for found in spills.get(number, {}).values() for each in found],
            found=sum_digests(each.found for found in spills.get(number, {}).values() for each in found),
        )
        for number, _ in enumerate(plan.operators)
    ]
    for (number, task), file in zip(writing, results, strict=True):
        moved[number].files.append((task, file))
        moved[number].dropped += [file.dropped, file.duplicates]
    return moved


def check_chosen_keys(plan: RescalePlan, moved: Sequence[MovedRecords]) -> None:
    """Refuse a choice of keys of which none is there."""
    for each, own in zip(plan.operators, moved, strict=True):
        choice = each.edited.request.keys
        if choice is None:
            continue
        left = sum(number for _, file in own.files for _, number in file.records)
        gone = sum(digest.records for found in own.dropped for digest in found.values())
        if (gone and not left) if choice.keep else (left and not gone):
            raise NotFoundError(
                "none of the chosen keys is there",
                where=Where(operator=each.change.label),
                hint="Keys are written as `dump` and `read` show them",
            )
