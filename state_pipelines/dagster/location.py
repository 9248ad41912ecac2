"""The code location of a project that consists of YAML files: everything in its `defs` directory.

Named in `pyproject.toml`, as `code_location_target_module = "state_pipelines.dagster.location"` of `[tool.dg.project]`,
it replaces a `definitions.py`. The project is that of the working directory, as in all commands of `dg`.
"""

from __future__ import annotations

from pathlib import Path

import dagster as dg

defs = dg.load_from_defs_folder(path_within_project=Path.cwd())
