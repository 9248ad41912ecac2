"""The migration of this deployment."""

from __future__ import annotations

import dagster as dg
from pydantic import Field

from resources.environment import read_variable
from state_pipelines.operations.migration import Migration, load_migration


class MigrationResource(dg.ConfigurableResource["MigrationResource"]):
    """What is to be done to each snapshot, and for which Flink."""

    file: str = Field(description="The migration file.")
    flink: str = Field(default="2.2", description="Release of Flink that is to restore the result.")

    @classmethod
    def from_environment(cls) -> MigrationResource:
        """The resource as the environment variables describe it."""
        return cls(file=read_variable("STATE_PIPELINES_MIGRATION"), flink=read_variable("STATE_PIPELINES_FLINK"))

    def load(self) -> Migration:
        """Read the file.

        Raises:
            MigrationError: it is not a migration.
        """
        return load_migration(self.file)
