"""Records of upgrades: the outcome of each step, on the storage beside the results.

A record is one JSON file, which is replaced as a whole. It is written before a step begins something that cannot be
repeated, and after the step has ended, so that another process can go on where one was killed. The ids of the jobs that
an upgrade starts, and of the savepoints that it triggers, follow from the id of the upgrade: whatever was submitted
before a process was killed is found under the same id.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import FormatError, MissingFileError, UsageError, Where
from state_pipelines.redaction import redact
from state_pipelines.storage import Location, join, list_directory, read_file, replace_file, resolve
from state_pipelines.storage.files import is_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

DIRECTORY = "_upgrades"
"""Directory of the records of all jobs, below the results of a job."""

_VERSION = 1
_MOST_BYTES = 16 << 20
_UPGRADE, _APPROVAL, _REHEARSAL = "upgrade-", "approved-", "rehearsal.json"
_SUFFIX = ".json"


class Step(StrEnum):
    """Steps of an upgrade, in order."""

    STOP = "stop"
    CHECK = "check"
    CHANGE = "change"
    START = "start"
    WATCH = "watch"
    BACK = "back"


class UpgradeOutcome(StrEnum):
    """Outcome of an upgrade: what runs after it."""

    UPGRADED = "upgraded"
    WENT_BACK = "went back"
    NOT_STOPPED = "not stopped"
    NOTHING_RUNS = "nothing runs"


@dataclass(frozen=True)
class UpgradeRecord:
    """An upgrade, as far as it is.

    Attributes:
        id: of the upgrade, 12 hexadecimal digits.
        job: name of the job.
        created: ISO time.
        old_job: id of the running job at its cluster.
        fingerprint: of the plan that is carried out.
        plan: the plan as JSON.
        steps: outcomes of the steps that have begun.
        outcome: of the upgrade; None until it is decided.
        reason: why it went back, or why nothing runs.
    """

    id: str
    job: str
    created: str
    old_job: str
    fingerprint: str
    plan: Mapping[str, Any]
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    outcome: UpgradeOutcome | None = None
    reason: str = ""

    def get(self, step: Step) -> Mapping[str, Any]:
        """The outcome of a step; empty before it has begun."""
        return self.steps.get(step, {})

    def note(self, step: Step, **outcome: Any) -> UpgradeRecord:
        """Return the record with more about a step."""
        return replace(self, steps={**self.steps, step: {**self.get(step), **outcome}})

    def is_done(self, step: Step) -> bool:
        """Return whether a step has ended."""
        return bool(self.get(step).get("done"))

    def make_id(self, *words: object) -> str:
        """Return 32 hexadecimal digits, the same for the same words in every process: ids of jobs and triggers."""
        return hashlib.sha256(" ".join((self.id, *map(str, words))).encode()).hexdigest()[:32]

    @property
    def name(self) -> str:
        """Beginning of the names of directories that belong to the upgrade."""
        return f"{_UPGRADE}{self.id}"

    def to_json(self) -> dict[str, Any]:
        """The record for machines."""
        return {
            "version": _VERSION,
            "id": self.id,
            "job": self.job,
            "created": self.created,
            "old_job": self.old_job,
            "fingerprint": self.fingerprint,
            "plan": dict(self.plan),
            "steps": {name: dict(outcome) for name, outcome in self.steps.items()},
            "outcome": self.outcome,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class RecordDirectory:
    """The records, leases, approvals and rehearsals of one job.

    Attributes:
        location: the directory; it need not exist.
    """

    location: Location

    def read(self, upgrade: str) -> UpgradeRecord | None:
        """The record of an upgrade; None without one.

        Raises:
            FormatError: the file is no record.
            StorageError: the storage fails.
        """
        location = self._locate(upgrade)
        try:
            data = read_file(location, most=_MOST_BYTES)
        except MissingFileError:
            return None
        try:
            content = json.loads(data)
            if content.pop("version") != _VERSION:
                raise ValueError("another version")
            outcome = content.pop("outcome")
            return UpgradeRecord(**content, outcome=None if outcome is None else UpgradeOutcome(outcome))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(
                f"this is no record of an upgrade: {redact(str(error))}",
                where=Where(file=str(location)),
                hint="Look which job runs at the cluster, then move the file away",
            ) from None

    def list_records(self) -> list[UpgradeRecord]:
        """The records, the oldest first.

        Raises:
            FormatError: a file is no record.
            StorageError: the storage fails.
        """
        if not is_directory(self.location):
            return []
        names = [each.location.name for each in list_directory(self.location) if not each.is_directory]
        ids = [
            name.removeprefix(_UPGRADE).removesuffix(_SUFFIX)
            for name in names
            if name.startswith(_UPGRADE) and name.endswith(_SUFFIX)
        ]
        found = [record for each in ids if (record := self.read(each)) is not None]
        return sorted(found, key=lambda record: record.created)

    def find_last(self) -> UpgradeRecord | None:
        """The newest upgrade; None before the first.

        Raises:
            StateError: as `list_records`.
        """
        records = self.list_records()
        return records[-1] if records else None

    def find_unfinished(self) -> UpgradeRecord | None:
        """The upgrade that is not decided; None if there is none.

        Raises:
            UsageError: there are several, which no process leaves.
            StateError: as `list_records`.
        """
        found = [each for each in self.list_records() if each.outcome is None]
        if len(found) > 1:
            names = ", ".join(each.id for each in found)
            raise UsageError(f"several upgrades are not decided: {names}", where=Where(file=str(self.location)))
        return found[0] if found else None

    def write(self, record: UpgradeRecord) -> None:
        """Write a record in the place of its earlier state.

        Raises:
            StorageError: the storage refuses.
        """
        replace_file(self._locate(record.id), json.dumps(record.to_json(), indent=2, default=str).encode())

    def approve(self, fingerprint: str, by: str) -> None:
        """Write the approval of a plan.

        Raises:
            UsageError: this is no fingerprint.
            StorageError: the storage refuses.
        """
        if len(fingerprint) != 16 or not set(fingerprint) <= set("0123456789abcdef"):
            raise UsageError(f"{fingerprint!r} is no fingerprint of a plan", hint="`upgrade --plan` prints it")
        replace_file(self._locate_approval(fingerprint), json.dumps({"by": by}).encode())

    def is_approved(self, fingerprint: str) -> bool:
        """Return whether there is an approval of a plan.

        Raises:
            StorageError: the storage fails.
        """
        try:
            read_file(self._locate_approval(fingerprint), most=_MOST_BYTES)
        except MissingFileError:
            return False
        return True

    def write_rehearsal(self, content: Mapping[str, Any]) -> None:
        """Keep the result of the last rehearsal.

        Raises:
            StorageError: the storage refuses.
        """
        replace_file(join(self.location, _REHEARSAL), json.dumps(content, indent=2, default=str).encode())

    def read_rehearsal(self) -> Mapping[str, Any]:
        """The result of the last rehearsal; empty without one.

        Raises:
            StorageError: the storage fails.
        """
        try:
            content = json.loads(read_file(join(self.location, _REHEARSAL), most=_MOST_BYTES))
        except (MissingFileError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def locate_record(self, record: UpgradeRecord) -> Location:
        """The file of a record."""
        return self._locate(record.id)

    def _locate(self, upgrade: str) -> Location:
        return join(self.location, f"{_UPGRADE}{upgrade}{_SUFFIX}")

    def _locate_approval(self, fingerprint: str) -> Location:
        return join(self.location, f"{_APPROVAL}{fingerprint}{_SUFFIX}")


def find_records(results: str, job: str) -> RecordDirectory:
    """The records of a job below its results."""
    return RecordDirectory(join(resolve(results), DIRECTORY, job))
