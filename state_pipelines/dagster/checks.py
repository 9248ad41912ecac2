"""Specifications of asset checks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.dagster.job import FlinkJob


def specify_checks(
    job: FlinkJob, asset: str, descriptions: Mapping[str, str], *, partitioned: bool = True
) -> list[dg.AssetCheckSpec]:
    """Return specifications of blocking checks.

    Args:
        job: the Flink job.
        asset: name of the asset, without the job.
        descriptions: by name of the check.
        partitioned: whether they have one result per snapshot.
    """
    with warnings.catch_warnings():
        # Partitioned checks are a preview feature of Dagster 1.13, to which the dependencies are pinned.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return [
            dg.AssetCheckSpec(
                name,
                asset=job.key(asset),
                description=text,
                blocking=True,
                partitions_def=job.partitions if partitioned else None,
            )
            for name, text in descriptions.items()
        ]
