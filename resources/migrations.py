"""The migrations of this deployment: a directory of revisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from resources.environment import read_variable
from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration.history import HEAD, RevisionDirectory

if TYPE_CHECKING:
    from state_pipelines.operations.migration import Migration
    from state_pipelines.snapshot import Snapshot


class MigrationResource(dg.ConfigurableResource["MigrationResource"]):
    """Which revision snapshots are taken to, and for which Flink."""

    migrations: str = Field(description="The directory of revisions, a path or URL.")
    to: str = Field(default=HEAD, description="Where snapshots are taken: head, base or a revision.")
    flink: str = Field(default="2.2", description="Release of Flink that is to restore the result.")

    @classmethod
    def from_environment(cls) -> MigrationResource:
        """The resource as the environment variables describe it."""
        return cls(
            migrations=read_variable("STATE_PIPELINES_MIGRATIONS"),
            to=read_variable("STATE_PIPELINES_MIGRATE_TO"),
            flink=read_variable("STATE_PIPELINES_FLINK"),
        )

    def load(self) -> RevisionDirectory:
        """Read the directory.

        Raises:
            MigrationError: a file is no revision, or the revisions are not one line.
            NotFoundError: there is no revision `to`.
        """
        directory = RevisionDirectory(self.migrations)
        directory.locate(self.to)
        return directory

    @property
    def version(self) -> str:
        """Changes with every revision and with the target (16 hexadecimal digits, then the target)."""
        return f"{self.load().fingerprint}-{self.to}"

    def plan(self, snapshot: Snapshot, start: str | None = None) -> list[tuple[Migration, str]]:
        """What is to be applied to a snapshot, each with its direction, in order; empty when nothing is.

        Args:
            snapshot: the snapshot.
            start: where it is; None asks its serializers.

        Raises:
            MigrationError: its serializers do not tell which revision it is at.
            NotFoundError: there is no revision `start`.
        """
        directory = self.load()
        if start is None:
            position = directory.current(snapshot)
            if position.revision is None:
                raise MigrationError(position.explain(), hint="Say where it is with the configuration `from_revision`")
            start = position.revision
        return directory.between(start, self.to)

    def name_target(self) -> str:
        """The revision that snapshots are taken to."""
        directory = self.load()
        return directory.name(directory.locate(self.to))
