"""Picture of a running job: durations of its checkpoints, and the growth of its state."""

from __future__ import annotations

import io
from datetime import UTC
from typing import TYPE_CHECKING

from state_pipelines.flink.cluster import CheckpointStatus
from state_pipelines.flink.health import STATE_HAS_ROOM, select_alike
from state_pipelines.snapshot.representation import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from state_pipelines.flink.cluster import Checkpoint
    from state_pipelines.flink.status import JobReport

_DAY = 86_400
_WIDTH, _HEIGHT = 9.0, 5.0
_DONE, _FAILED, _STATE, _LIMIT = "#3b6ea5", "#c0392b", "#d9822b", "#444444"


def draw_health(report: JobReport) -> bytes:
    """Draw the checkpoints that Flink still has as a PNG; empty without two that are decided."""
    decided = [each for each in report.history if each.status is not CheckpointStatus.IN_PROGRESS]
    if len(decided) < 2:
        return b""
    from matplotlib import rc_context  # imported on use: it takes half a second
    from matplotlib.figure import Figure

    # Names of jobs are no formulas.
    with rc_context({"text.parse_math": False, "font.size": 9}):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        figure.suptitle(f"Checkpoints of {report.job.name}", fontsize=11)
        durations, sizes = figure.subplots(2, 1, sharex=True)
        _draw_durations(durations, report)
        _draw_sizes(sizes, report)
        sizes.xaxis_date(UTC)
        sizes.set_xlabel("UTC")
        output = io.BytesIO()
        figure.savefig(output, format="png", dpi=100)
    return output.getvalue()


def _list_times(checkpoints: Sequence[Checkpoint]) -> list[float]:
    # Days since 1970, as matplotlib counts them (`matplotlib.dates`).
    return [each.triggered.timestamp() / _DAY for each in checkpoints]


def _draw_durations(axes: Axes, report: JobReport) -> None:
    for status, color, label in (
        (CheckpointStatus.COMPLETED, _DONE, "completed"),
        (CheckpointStatus.FAILED, _FAILED, "failed"),
    ):
        found = [each for each in report.history if each.status is status and each.duration_ms is not None]
        if found:
            seconds = [(each.duration_ms or 0) / 1000 for each in found]
            axes.plot(_list_times(found), seconds, "o", color=color, label=label, markersize=4)
    interval = report.settings.interval_ms if report.settings is not None else None
    if interval is not None:
        axes.axhline(interval / 1000, color=_LIMIT, linestyle="--", linewidth=0.8, label="interval")
    axes.set_ylabel("duration, s")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", fontsize=8)


def _draw_sizes(axes: Axes, report: JobReport) -> None:
    done = [each for each in report.history if each.status is CheckpointStatus.COMPLETED]
    sized = [each for each in select_alike(done) if each.state_size is not None]
    if sized:
        sizes = [each.state_size or 0 for each in sized]
        axes.plot(_list_times(sized), sizes, "o-", color=_STATE, markersize=4)
    limit = next((each.expected for each in report.checks if each.name == STATE_HAS_ROOM), None)
    if limit is not None:
        axes.axhline(limit, color=_LIMIT, linestyle="--", linewidth=0.8, label="max_state_size")
        axes.legend(loc="upper left", fontsize=8)
    axes.set_ylabel("state")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, position: format_bytes(round(value)))
