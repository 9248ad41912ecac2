"""The clusters of an upgrade, from the settings in the description of a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.flink.connections import connect

if TYPE_CHECKING:
    from state_pipelines.flink.cluster import FlinkCluster
    from state_pipelines.upgrades.upgrade_request import UpgradeRequest


def connect_clusters(request: UpgradeRequest) -> tuple[FlinkCluster, FlinkCluster]:
    """Connect to the cluster of the old program and to that of the new one, which may be the same.

    Raises:
        UsageError: a setting is wrong.
    """
    directory = Path(request.directory)
    old = connect(request.cluster, directory)
    return old, connect(request.settings.cluster, directory) if request.settings.cluster else old


def connect_spare(request: UpgradeRequest) -> FlinkCluster | None:
    """Connect to the cluster of rehearsals; None without one.

    Raises:
        UsageError: a setting is wrong.
    """
    settings = request.settings.rehearsal_cluster
    return connect(settings, Path(request.directory)) if settings else None
