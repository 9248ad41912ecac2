"""Results as tables in Markdown.

python -m benchmarks.tables [RESULTS]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import peer
from benchmarks.bars import BARS, MIB, speed_up
from benchmarks.processes import ROLES
from benchmarks.results import COLD, RESULTS, Results, load
from benchmarks.works import WORKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.results import Spread

_TITLES = {work.name: work.title for work in WORKS}


def tabulate(results: Results) -> str:
    """All tables."""
    parts = [
        ("What was measured", _tabulate_works(results)),
        ("Shares of CPU", _tabulate_shares(results)),
        ("Bars", _tabulate_bars(results)),
    ]
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts) + "\n"


def _tabulate_works(results: Results) -> str:
    rows = []
    for work, snapshot, mode, keys in results.list_places():
        cpu = results.cpu(work, snapshot, mode=mode, keys=keys)
        wall = results.wall(work, snapshot, mode=mode, keys=keys)
        cold = mode == COLD
        memory = results.memory(work, snapshot, keys=keys) if cold else None
        figure = peer.find_figure(work, snapshot, keys)
        ratio = speed_up(results, work, snapshot) if cold else None
        rows.append(
            [
                _TITLES.get(work, work) + ("" if cold else ", warm"),
                snapshot,
                f"{keys:,}",
                _show_spread(cpu),
                _show(results.net_cpu(work, snapshot, keys=keys) if cold else None),
                _show_spread(wall),
                _show(None if memory is None else memory.median / MIB, 0),
                _show(None if figure is None else figure.cpu),
                _show(None if figure is None else ratio),
            ]
        )
    heads = [
        "work",
        "snapshot",
        "keys",
        "CPU s",
        "net",
        "wall s",
        "MiB, largest Python",
        "peer CPU s",
        "net, times peer",
    ]
    return _tabulate(heads, rows)


def _tabulate_shares(results: Results) -> str:
    rows = []
    places = dict.fromkeys((work, snapshot) for work, snapshot, mode, _ in results.list_places() if mode == COLD)
    for work, snapshot in places:
        shares = results.shares(work, snapshot)
        total = sum(cpu.total for cpu in shares.values())
        library = results.net_cpu("library-decode", snapshot)
        if not total:
            continue
        system = sum(cpu.system for cpu in shares.values())
        rows.append(
            [
                _TITLES.get(work, work),
                snapshot,
                *(_percent(shares[role].total / total) if role in shares else "" for role in ROLES),
                _percent(system / total),
                "" if library is None or not work.startswith("spark") else _percent(library / total),
            ]
        )
    return _tabulate(["work", "snapshot", *ROLES, "system", "the library's decoding alone"], rows)


def _tabulate_bars(results: Results) -> str:
    rows = []
    for bar in BARS:
        value = bar.measure(results)
        sign = "≥" if bar.at_least else "≤"
        verdict = "not measured" if value is None else "reached" if bar.is_met(value) else "MISSED"
        rows.append([bar.title, f"{sign} {bar.limit:g} {bar.unit}", _show(value), verdict])
    return _tabulate(["bar", "to reach", "reached", ""], rows)


def _tabulate(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _show(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _show_spread(spread: Spread | None) -> str:
    if spread is None:
        return ""
    if spread.low == spread.high:
        return _show(spread.median)
    return f"{_show(spread.median)} ({_show(spread.low)} to {_show(spread.high)})"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    sys.stdout.write(tabulate(load(parser.parse_args().results)))


if __name__ == "__main__":
    main()
