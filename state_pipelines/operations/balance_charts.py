"""Pictures of a balance: key groups as cells coloured by bytes, and the bytes of the subtasks that they make."""

from __future__ import annotations

import io
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import UsageError
from state_pipelines.operations.balance import BalanceMethod
from state_pipelines.storage import create_file, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.ticker import MultipleLocator

    from state_pipelines.operations.balance import Balance, OperatorBalance, StateDistribution

MOST_OPERATORS = 8
"""Operators in one picture: those with the most bytes."""

MOST_CELLS = 1024
"""Cells in one row; with more key groups a cell is the largest of several adjacent ones."""

_NOW, _PREDICTED, _MEAN, _EMPTY = "#3b6ea5", "#d9822b", "#444444", "#f3f3f3"
_SHADES = {_NOW: ("#3b6ea5", "#a9c4e0"), _PREDICTED: ("#d9822b", "#f3cfa5")}
_MOST_BORDERS = 64
"""Subtasks whose borders are drawn through the cells; with more they would hide them."""

_WIDTH = 11.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def render_balance(balance: Balance, format: str = "svg") -> bytes:
    """Draw a balance.

    Args:
        balance: the balance.
        format: `svg` or `png`.

    Raises:
        UsageError: the format is another one, or no operator was measured.
    """
    if format not in ("svg", "png"):
        raise UsageError(f"pictures are SVG or PNG, not {format or 'without a format'}", hint="Name it .svg or .png")
    output = io.BytesIO()
    with _drawing():
        figure = draw_balance(balance)
        figure.savefig(output, format=format, dpi=110, metadata={"Date": None} if format == "svg" else None)
    return output.getvalue()


def save_balance(balance: Balance, path: str) -> None:
    """Draw a balance into a new file `.svg` or `.png`, which may be a URL.

    Raises:
        UsageError: the path names another format, or no operator was measured.
        TargetExistsError: the file exists.
    """
    picture = render_balance(balance, choose_format(path))
    with create_file(resolve(path)) as file:
        file.write(picture)


def choose_format(path: str) -> str:
    """The format that a path names: `svg` or `png`.

    Raises:
        UsageError: it names another one.
    """
    _, dot, suffix = path.rpartition(".")
    if not dot or suffix.lower() not in ("svg", "png"):
        raise UsageError(f"{path} names neither an SVG nor a PNG picture", hint="Let it end with .svg or .png")
    return suffix.lower()


def draw_balance(balance: Balance) -> Figure:
    """The figure of a balance; to be saved with a backend that needs no screen.

    Raises:
        UsageError: no operator was measured.
    """
    from matplotlib.figure import Figure  # imported on use: it takes half a second

    measured = [each for each in balance.operators if each.now is not None]
    if not measured:
        raise UsageError(f"{balance.path} has no keyed state that a picture could show")
    measured.sort(key=lambda each: -(each.now.bytes if each.now else 0))
    shown = measured[:MOST_OPERATORS]
    heights = [_find_heights(each) for each in shown]
    figure = Figure(figsize=(_WIDTH, 0.9 + sum(map(sum, heights)) + 0.8 * len(shown)), layout="constrained")
    title = f"Keyed state over key groups and subtasks\n{balance.path}"
    if len(measured) > len(shown):
        title += f" ({len(shown)} of {len(measured)} operators, those with the most bytes)"
    figure.suptitle(title, fontsize=11)
    _explain(figure, predicted=any(each.predicted is not None for each in shown))
    subfigures = figure.subfigures(len(shown), 1, height_ratios=[sum(each) + 0.8 for each in heights], squeeze=False)
    for subfigure, operator, rows in zip(subfigures[:, 0], shown, heights, strict=True):
        subfigure.suptitle(_name(operator), fontsize=10, fontweight="bold", x=0.01, ha="left")
        _draw_operator(operator, subfigure.subplots(len(rows), 1, height_ratios=rows, squeeze=False)[:, 0])
    return figure


def _explain(figure: Figure, *, predicted: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [Patch(color=_NOW, label="subtasks now (shades alternate)")]
    if predicted:
        handles.append(Patch(color=_PREDICTED, label="subtasks predicted"))
    handles.append(Patch(facecolor=_EMPTY, edgecolor="#cccccc", label="key group without state"))
    handles.append(Line2D([], [], color=_MEAN, linewidth=1, linestyle="--", label="mean of the subtasks"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)


def _find_heights(operator: OperatorBalance) -> list[float]:
    """Heights of the rows of an operator in inches: bars, cells, and both of the prediction."""
    if operator.predicted is None:
        return [1.3, 0.55]
    if operator.predicted.max_parallelism == operator.max_parallelism:
        return [1.3, 0.75, 1.3]
    return [1.3, 0.55, 0.55, 1.3]


def _name(operator: OperatorBalance) -> str:
    label = operator.label if len(operator.label) <= 80 else f"{operator.label[:79]}…"
    return label if operator.measured is BalanceMethod.RECORDS else f"{label} (bytes of files: {operator.measured})"


def _draw_operator(operator: OperatorBalance, rows: Sequence[Axes]) -> None:
    now, predicted = operator.now, operator.predicted
    assert now is not None
    _draw_bars(rows[0], now, "now", _NOW)
    if predicted is None:
        _draw_cells(rows[1], now, [(now, _NOW)])
        rows[1].set_xlabel("key group", fontsize=8)
        return
    if len(rows) == 3:
        _draw_cells(rows[1], now, [(now, _NOW), (predicted, _PREDICTED)])
    else:
        _draw_cells(rows[1], now, [(now, _NOW)])
        _draw_cells(rows[2], predicted, [(predicted, _PREDICTED)], below=True)
    _draw_bars(rows[-1], predicted, "predicted", _PREDICTED)
    rows[-2].set_xlabel("key group", fontsize=8)


def _draw_bars(axes: Axes, each: StateDistribution, name: str, colour: str) -> None:
    """Bytes per subtask, each bar over the key groups of its subtask."""
    sizes = np.array([subtask.bytes for subtask in each.subtasks], np.float64)
    largest, mean = int(sizes.argmax()), float(sizes.mean())
    _draw_subtasks(axes, each, np.zeros(len(sizes)), sizes, colour)
    axes.axhline(mean, color=_MEAN, linewidth=1, linestyle="--")
    axes.set_xlim(0, each.max_parallelism)
    axes.set_ylim(0, max(float(sizes.max()), 1.0) * 1.12)
    axes.yaxis.set_major_formatter(lambda value, _: _format_bytes(value))
    axes.yaxis.set_major_locator(_locate_bytes(float(sizes.max())))
    axes.tick_params(labelsize=8, labelbottom=False)
    axes.spines[["top", "right"]].set_visible(False)
    lines = [
        f"{name}: parallelism {each.parallelism} of {each.max_parallelism}",
        f"largest subtask {largest} with {_format_bytes(sizes[largest])}, {each.imbalance:.2f} times the mean (dashed)",
    ]
    if each.idle:
        lines.append(f"{len(each.idle)} without state")
    axes.set_title("; ".join(lines), fontsize=9, loc="left", color=_SHADES[colour][0])


def _draw_subtasks(
    axes: Axes, each: StateDistribution, low: npt.NDArray[np.float64], high: npt.NDArray[np.float64], colour: str
) -> None:
    """A rectangle per subtask over its key groups, in alternating shades."""
    from matplotlib.collections import PolyCollection

    starts = np.array([subtask.key_groups[0] for subtask in each.subtasks], np.float64)
    ends = np.array([subtask.key_groups[1] + 1 for subtask in each.subtasks], np.float64)
    corners = np.stack([starts, low, starts, high, ends, high, ends, low], 1).reshape(-1, 4, 2)
    shades = [_SHADES[colour][index % 2] for index in range(len(starts))]
    axes.add_collection(PolyCollection([*corners], facecolors=shades, linewidths=0))


def _draw_cells(
    axes: Axes, each: StateDistribution, edges: Sequence[tuple[StateDistribution, str]], *, below: bool = False
) -> None:
    """Key groups as cells, and the borders of subtasks: those of `edges` above the cells, then below them."""
    image, skewed = _draw_loads(axes, each)
    # Cells fill the middle; bands with alternating shades are the subtasks.
    axes.set_ylim(-0.45 if below or len(edges) > 1 else 0, 1.45 if not below else 1)
    bands = [(-0.4, -0.08)] if below else [(1.08, 1.4), (-0.4, -0.08)]
    for (distribution, colour), (low, high) in zip(edges, bands, strict=False):
        count = len(distribution.subtasks)
        _draw_subtasks(axes, distribution, np.full(count, low), np.full(count, high), colour)
        if count <= _MOST_BORDERS:
            borders = [subtask.key_groups[0] for subtask in distribution.subtasks[1:]]
            axes.vlines(borders, min(low, 0), max(high, 1), colors=colour, linewidths=0.8)
    axes.set_xlim(0, each.max_parallelism)
    axes.set_yticks([])
    axes.tick_params(labelsize=8)
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, fraction=0.04, aspect=5)
    bar.ax.yaxis.set_major_formatter(lambda value, _: _format_bytes(value))
    bar.ax.tick_params(labelsize=7, which="both")
    bar.ax.minorticks_off()
    low, high = image.get_clim()
    bar.set_ticks([low, high] if high > low else [high])
    bar.set_label("bytes, log" if skewed else "bytes", fontsize=7)


def _draw_loads(axes: Axes, each: StateDistribution) -> tuple[AxesImage, bool]:
    """The cells, and whether the scale of their colours is logarithmic."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize

    loads = np.array(each.loads.bytes, np.float64)
    # Cells of equal width; a hot key group must not vanish among its neighbours.
    width = -(-len(loads) // MOST_CELLS)
    cells = np.zeros(-(-len(loads) // width) * width)
    cells[: len(loads)] = loads
    cells = cells.reshape(-1, width).max(1)
    filled = cells[cells > 0]
    high = float(filled.max()) if len(filled) else 1.0
    low = float(filled.min()) if len(filled) else 0.0
    skewed = bool(len(filled)) and high > 8 * float(np.median(filled))
    norm = LogNorm(max(low, high / 1e6), high) if skewed else Normalize(0, high)
    image = axes.imshow(
        np.ma.masked_equal(cells, 0)[np.newaxis, :],
        aspect="auto",
        interpolation="nearest",
        cmap=colormaps["viridis_r"].with_extremes(bad=_EMPTY),
        norm=norm,
        extent=(0, float(len(cells) * width), 0, 1),
    )
    return image, skewed


def _locate_bytes(largest: float) -> MultipleLocator:
    """Ticks at round numbers of the unit that suits the largest value."""
    from matplotlib.ticker import MultipleLocator

    unit = 1024.0 ** _find_unit(largest)
    wanted = max(largest / unit, 1e-9) / 3
    power = 10.0 ** np.floor(np.log10(wanted))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted)
    return MultipleLocator(max(step * unit, 1.0))


def _find_unit(size: float) -> int:
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return unit


def _format_bytes(size: float) -> str:
    unit = _find_unit(size)
    return f"{size / 1024**unit:.{0 if unit == 0 or size >= 100 * 1024**unit else 1}f} {_UNITS[unit]}"


@contextmanager
def _drawing() -> Iterator[None]:
    """The style of all charts; characters that the font lacks are empty boxes, without a warning."""
    from matplotlib import rc_context

    # Text of the snapshot is no formula, and text stays text in SVG.
    with rc_context({"text.parse_math": False, "svg.fonttype": "none", "font.size": 9}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        yield
