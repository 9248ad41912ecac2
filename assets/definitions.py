"""The code location: everything below `assets/defs`, loaded by Dagster, with the resources of `resources/`."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from resources import EXECUTOR, RESOURCES

defs = dg.Definitions.merge(
    dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
    dg.Definitions(
        resources=RESOURCES,
        executor=EXECUTOR,
    ),
)
