"""Names of Dagster that it does not export from a public module; no other module imports such names.

`LoadContextScope` is what `{{ context.… }}` is in the YAML of components; without it, templates could not use it.
`PostProcessingError` is what a type of configurations raises for a wrong one; any other error would be a crash.
`SourcePositionTree` has file and line of each attribute, for error messages; its type is not exported.
`UnresolvedAssetJobDefinition` is the type of what `dg.define_asset_job` returns.
"""

from __future__ import annotations

from dagster._config.errors import PostProcessingError
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster.components.resolved.scopes import LoadContextScope
from dagster_shared.yaml_utils.source_position import SourcePositionTree

__all__ = ["LoadContextScope", "PostProcessingError", "SourcePositionTree", "UnresolvedAssetJobDefinition"]
