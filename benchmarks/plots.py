"""Pictures of results: what each bar asks and what is reached, and who used the CPU.

python -m benchmarks.plots [RESULTS] [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bars import BARS
from benchmarks.processes import ROLES
from benchmarks.results import COLD, RESULTS, Results, load

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_REACHED, _MISSED, _LIMIT = "#3b6ea5", "#d9822b", "#444444"
_ROLES = dict(zip(ROLES, ("#3b6ea5", "#d9822b", "#5b9a58", "#aaaaaa"), strict=True))
_SYSTEM = 0.45
"""How light the share of the system is drawn."""

PICTURES = ("bars.svg", "shares.svg")


def draw_bars(results: Results) -> Figure:
    """Each bar that was measured, as a share of what it asks: to the right of the line is reached."""
    from matplotlib.figure import Figure

    measured = [(bar, value) for bar in BARS if (value := bar.measure(results)) is not None]
    figure = Figure(figsize=(10, 1.2 + 0.34 * max(len(measured), 1)), layout="constrained")
    axes = figure.subplots()
    for row, (bar, value) in enumerate(measured):
        ratio = value / bar.limit if bar.at_least else bar.limit / max(value, 1e-3)
        axes.barh(row, ratio, color=_REACHED if bar.is_met(value) else _MISSED)
        sign = "≥" if bar.at_least else "≤"
        text = f" {value:,.2f} {bar.unit} ({sign} {bar.limit:g})"
        axes.text(ratio, row, text, va="center", fontsize=8)
    axes.axvline(1, color=_LIMIT, linewidth=1, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    # Room for the text behind the longest.
    axes.margins(x=0.25)
    axes.set_xlabel("reached, as a share of what the bar asks (log)")
    _name_rows(axes, [bar.title for bar, _ in measured])
    return figure


def draw_shares(results: Results) -> Figure:
    """CPU seconds of each work on its large snapshot, by role, start-up included; light is the system's share."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    places = dict.fromkeys((work, snapshot) for work, snapshot, mode, _ in results.list_places() if mode == COLD)
    figure = Figure(figsize=(10, 1.4 + 0.3 * max(len(places), 1)), layout="constrained")
    axes = figure.subplots()
    for row, (work, snapshot) in enumerate(places):
        left = 0.0
        for role, cpu in results.shares(work, snapshot).items():
            axes.barh(row, cpu.user, left=left, color=_ROLES[role])
            axes.barh(row, cpu.system, left=left + cpu.user, color=_ROLES[role], alpha=_SYSTEM)
            left += cpu.total
    axes.set_xlabel("CPU seconds")
    _name_rows(axes, [f"{work}, {snapshot}" for work, snapshot in places])
    handles = [Patch(color=colour, label=role) for role, colour in _ROLES.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    return figure


def _name_rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.spines[["top", "right"]].set_visible(False)


def draw(results: Results, directory: Path) -> list[Path]:
    """Draw all pictures into a directory; those that are there are replaced."""
    from matplotlib import rc_context

    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / name for name in PICTURES]
    with rc_context({"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.size": 9}):
        for path, figure in zip(paths, (draw_bars(results), draw_shares(results)), strict=True):
            figure.savefig(path, metadata={"Date": None})
    return paths


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--out", type=Path, default=RESULTS.parent)
    arguments = parser.parse_args()
    draw(load(arguments.results), arguments.out)


if __name__ == "__main__":
    main()
