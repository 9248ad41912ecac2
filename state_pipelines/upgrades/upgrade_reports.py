"""Reports of upgrades: what runs, why, and the commands that start either program."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from state_pipelines.upgrades.upgrade_plan import measure_down_time
from state_pipelines.upgrades.upgrade_records import Step, UpgradeOutcome
from state_pipelines.upgrades.upgrade_request import Need

if TYPE_CHECKING:
    from state_pipelines.upgrades.upgrade_plan import UpgradePlan
    from state_pipelines.upgrades.upgrade_records import UpgradeRecord
    from state_pipelines.upgrades.upgrade_request import UpgradeRequest


class Result(StrEnum):
    """Result of `upgrade`."""

    PLANNED = "planned"
    UPGRADED = "upgraded"
    WENT_BACK = "went back"
    NOT_STOPPED = "not stopped"
    NOTHING_RUNS = "nothing runs"
    REFUSED = "refused"
    WAITS = "waits for approval"
    UNDECIDED = "not decided"


@dataclass(frozen=True)
class UpgradeReport:
    """Report of an upgrade.

    Attributes:
        result: the result in a word.
        headline: first line of the report, which says what program runs.
        lines: further lines: reasons, and what to do.
        commands: (`old` or `new`, command that starts this program by hand); empty where none is needed.
        plan: the plan; None where an upgrade was continued.
        record: the record; None where nothing was begun.
    """

    result: Result
    headline: str
    lines: tuple[str, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()
    plan: UpgradePlan | None = None
    record: UpgradeRecord | None = None

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if upgraded or planned, 3 if undecided or waiting for an approval, 1 for other results."""
        if self.result in (Result.PLANNED, Result.UPGRADED):
            return 0
        return 3 if self.result in (Result.WAITS, Result.UNDECIDED) else 1

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "result": str(self.result),
            "headline": self.headline,
            "lines": list(self.lines),
            "commands": dict(self.commands),
            "plan": None if self.plan is None else self.plan.to_json(),
            "record": None if self.record is None else self.record.to_json(),
        }

    def list_lines(self) -> list[str]:
        """Return the report as lines of text."""
        commands = [f"to start the {name} program: {command}" for name, command in self.commands]
        return [self.headline, *self.lines, *commands]


def report_plan(request: UpgradeRequest, plan: UpgradePlan, *, is_wanted: bool) -> UpgradeReport:
    """Make the report of an upgrade that was only planned, and has stopped nothing.

    Args:
        request: the job.
        plan: its plan.
        is_wanted: the user asked for the plan only, so that its result is `PLANNED` even if an approval is missing.
    """
    runs = f"{request.name} runs the old program, job {plan.old_job} at {plan.endpoints[0]}; nothing was stopped"
    lines = list(describe_plan(plan))
    if plan.refusals:
        return UpgradeReport(Result.REFUSED, runs, tuple(lines), plan=plan)
    if plan.to_approve:
        result = Result.PLANNED if is_wanted else Result.WAITS
        lines.append(
            f"an approval is needed ({', '.join(plan.to_approve)}): "
            f"state-pipelines upgrade {request.file} --approve {plan.fingerprint}"
        )
        return UpgradeReport(result, runs, tuple(lines), plan=plan)
    return UpgradeReport(Result.PLANNED, runs, tuple(lines), plan=plan)


def describe_plan(plan: UpgradePlan) -> list[str]:
    """Return a plan as lines of text."""
    lines = [f"refused: {each}" for each in plan.refusals]
    if plan.checked is not None:
        lines.append(f"checked: {plan.checked.description}, {plan.checked.path}")
    if plan.change is not None:
        lines.append(f"verdict: {plan.change.verdict}; {', '.join(plan.change.needs)}")
        if not plan.refusals:
            lines += plan.change.reasons
        lines += [f"revision: {each}" for each in plan.change.revisions]
    lines += [f"{number}. {each}" for number, each in enumerate(plan.steps, start=1)]
    if plan.down_time is not None:
        time = plan.down_time
        lines.append(
            f"predicted down time: {time.seconds:.1f} s = savepoint {time.savepoint:.1f} ({time.sources['savepoint']}) "
            f"+ change {time.change:.1f} ({time.sources['change']}) + start {time.start:.1f} ({time.sources['start']})"
        )
    lines += [f"note: {each}" for each in plan.notes]
    lines.append(f"fingerprint: {plan.fingerprint}")
    return lines


def report_record(request: UpgradeRequest, record: UpgradeRecord, plan: UpgradePlan | None) -> UpgradeReport:
    """Make the report of an upgrade whose outcome is decided."""
    savepoint, changed = describe_savepoints(record)
    endpoint = (record.plan.get("endpoints") or ["its cluster", "its cluster"])[0]
    commands = list_commands(request, record)
    name, reason = record.job, record.reason
    match record.outcome:
        case UpgradeOutcome.UPGRADED:
            watch = record.get(Step.WATCH)
            lines = [f"restored from {changed}", f"savepoint of the old program: {savepoint}"]
            if down := measure_down_time(record):
                predicted = (record.plan.get("down_time") or {}).get("seconds")
                lines.append(f"down time: {down:.1f} s, predicted {predicted} s")
            if "checkpoints" in watch:
                lines.append(f"checkpoints completed: {watch['checkpoints']}")
            if "ended" in watch:
                lines.append(str(watch["ended"]))
            job = record.make_id("new")
            return UpgradeReport(
                Result.UPGRADED, f"{name} runs the new program, job {job}", tuple(lines), (), plan, record
            )
        case UpgradeOutcome.WENT_BACK:
            job = record.make_id("old")
            headline = f"{name} runs the old program again, job {job} at {endpoint}, from its savepoint {savepoint}"
            failed = record.get(Step.BACK).get("failed", "upgrade")
            return UpgradeReport(
                Result.WENT_BACK, headline, (f"the {failed} step failed: {reason}",), commands, plan, record
            )
        case UpgradeOutcome.NOT_STOPPED:
            headline = f"{name} runs the old program, job {record.old_job} at {endpoint}; it was not stopped"
            return UpgradeReport(Result.NOT_STOPPED, headline, (reason,), (), plan, record)
        case _:
            lines = [reason]
            if savepoint:
                lines.append(f"savepoint of the old program: {savepoint}; for the new program: {changed or 'none'}")
                lines.append("both savepoints are pinned, nothing was deleted")
            elif seen := find_checked(record):
                lines.append(f"the newest snapshot that the plan has seen: {seen}; look for a newer checkpoint first")
            return UpgradeReport(Result.NOTHING_RUNS, f"NOTHING RUNS of {name}", tuple(lines), commands, plan, record)


def report_undecided(
    request: UpgradeRequest, record: UpgradeRecord, error: Exception, plan: UpgradePlan | None
) -> UpgradeReport:
    """Make the report of an upgrade after which it is unknown which program runs."""
    return UpgradeReport(
        Result.UNDECIDED,
        f"it is not known what runs of {request.name}",
        (
            str(error),
            f"to continue the upgrade: state-pipelines upgrade {request.file}",
            "look at the cluster before you start a program by hand",
        ),
        list_commands(request, record),
        plan,
        record,
    )


def list_commands(request: UpgradeRequest, record: UpgradeRecord) -> tuple[tuple[str, str], ...]:
    """List the commands that start the old and the new program by hand, if there are snapshots for them."""
    savepoint, changed = describe_savepoints(record)
    old, new = request.settings.old, request.settings.new
    found = []
    if not savepoint and record.outcome is UpgradeOutcome.NOTHING_RUNS and (seen := find_checked(record)):
        # The job has ended without a savepoint of the upgrade: use the snapshot that the plan was made with.
        savepoint = seen
        changed = "" if (record.plan.get("change") or {}).get("needs") != [Need.COMPATIBLE] else seen
    if savepoint:
        found.append(("old", old.describe_command(savepoint, str(record.get(Step.STOP).get("old_plan", "")))))
    if changed:
        found.append(("new", new.describe_command(changed, str(record.get(Step.CHANGE).get("plan", "")))))
    return tuple(found)


def find_checked(record: UpgradeRecord) -> str:
    """Return the path of the snapshot that the plan was made with; empty without one."""
    return str((record.plan.get("checked") or {}).get("path", ""))


def describe_savepoints(record: UpgradeRecord) -> tuple[str, str]:
    """Return the paths of the old program's savepoint and of the savepoint for the new one; empty if there is none."""
    return str(record.get(Step.STOP).get("savepoint", "")), str(record.get(Step.CHANGE).get("path", ""))
