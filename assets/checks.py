"""Specifications of checks that block what comes after them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from collections.abc import Mapping


def specify_checks(
    asset: dg.AssetKey, descriptions: Mapping[str, str], partitions: dg.PartitionsDefinition[str]
) -> list[dg.AssetCheckSpec]:
    """Blocking checks by name, each with a status per partition."""
    with warnings.catch_warnings():
        # Partitions of checks are a preview in this release of Dagster, which the dependencies pin.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(name, asset=asset, description=text, blocking=True, partitions_def=partitions)
            for name, text in descriptions.items()
        ]
