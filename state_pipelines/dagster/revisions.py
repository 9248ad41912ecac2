"""Migrations of a Flink job: its directory of revisions, and the target revision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration.history import RevisionDirectory

if TYPE_CHECKING:
    from state_pipelines.operations.migration import Direction, Migration
    from state_pipelines.snapshot import Snapshot

NONE = "none"
"""Placeholder for the version and target of a job without migrations."""


@dataclass(frozen=True)
class Revisions:
    """The revisions of a Flink job.

    Attributes:
        directory: path or URL of the directory of revisions; None without migrations.
        to: target revision: head, base or a name.
    """

    directory: str | None
    to: str

    def load(self) -> RevisionDirectory | None:
        """Read the directory.

        Raises:
            MigrationError: a file is not a valid revision, or the revisions do not form one line.
            NotFoundError: the revision `to` does not exist.
        """
        if self.directory is None:
            return None
        directory = RevisionDirectory(self.directory, allow_python=True)
        directory.locate(self.to)
        return directory

    @property
    def version(self) -> str:
        """A text that changes with each revision and with the target: 16 hexadecimal digits, then the target."""
        directory = self.load()
        return NONE if directory is None else f"{directory.fingerprint}-{self.to}"

    def plan(
        self, snapshot: Snapshot, start: str | None = None, to: str | None = None
    ) -> list[tuple[Migration, Direction]]:
        """Return the pending revisions of a snapshot in order, each with its direction.

        Args:
            snapshot: the snapshot.
            start: the revision of the snapshot; None to derive it from its serializers.
            to: target revision, if it differs from that of the job.

        Raises:
            MigrationError: the revision cannot be derived from the serializers.
            NotFoundError: the revision `start` or `to` does not exist.
        """
        directory = self.load()
        if directory is None:
            return []
        if start is None:
            position = directory.current(snapshot)
            if position.revision is None:
                changed = {each.operator for each in directory.revisions}
                if not changed & {operator.label for operator in snapshot.operators}:
                    names = ", ".join(sorted(changed))
                    raise MigrationError(
                        f"not a snapshot of this job: it has none of the operators that the revisions change: {names}"
                    )
                hint = "Give its revision as `from_revision` in the run configuration"
                raise MigrationError(position.explain(), hint=hint)
            start = position.revision
        return directory.between(start, to or self.to)

    def name_target(self, to: str | None = None) -> str:
        """Return the name of the target revision, or of the revision `to`."""
        directory = self.load()
        return NONE if directory is None else directory.name(directory.locate(to or self.to))
