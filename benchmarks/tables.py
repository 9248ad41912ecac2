"""Results as tables in Markdown.

python -m benchmarks.tables [RESULTS]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import peer
from benchmarks.bars import BARS, KEYS, MIB, speed_up
from benchmarks.processes import ROLES
from benchmarks.results import COLD, NOISE, RESULTS, Results, load
from benchmarks.works import WORKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from benchmarks.processes import Cpu
    from benchmarks.results import Spread

MB = 1_000_000
PARQUET = "spark-from-parquet"
_LEAST = {"snappy": "roofline-decompress"}
"""The work that no reader of a snapshot can be faster than, where reading the bytes is not all of it."""

_TITLES = {work.name: work.title for work in WORKS}


def tabulate(results: Results) -> str:
    """All tables."""
    parts = [
        ("What was measured", _tabulate_works(results)),
        ("Shares of net CPU", _tabulate_shares(results)),
        ("Roofline", _tabulate_roofline(results)),
        ("Bars", _tabulate_bars(results)),
    ]
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts) + "\n"


def _tabulate_works(results: Results) -> str:
    rows = []
    for work, snapshot, mode, keys in results.list_places():
        cpu = results.cpu(work, snapshot, mode=mode, keys=keys)
        wall = results.wall(work, snapshot, mode=mode, keys=keys)
        cold = mode == COLD
        python = results.memory(work, snapshot, keys=keys) if cold else None
        jvm = results.jvm_memory(work, snapshot, keys=keys) if cold else None
        together = results.whole_memory(work, snapshot, keys=keys) if cold else None
        figure = peer.find_figure(work, snapshot, keys)
        speed = results.throughput(work, snapshot, keys=keys) if cold else None
        ratio = speed_up(results, work, snapshot) if cold else None
        rows.append(
            [
                _TITLES.get(work, work) + ("" if cold else ", warm"),
                snapshot,
                f"{keys:,}",
                _show_spread(cpu),
                _show(results.net_cpu(work, snapshot, keys=keys) if cold else None),
                _show_spread(wall),
                _show(None if speed is None else speed / MB, 0),
                _show(None if python is None else python.median / MIB, 0),
                _show(None if jvm is None or not jvm.median else jvm.median / MIB, 0),
                _show(None if together is None else together.median / MIB, 0),
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
        "MB per net s",
        "MiB, largest Python",
        "MiB, JVM",
        "MiB, all at once",
        "peer CPU s",
        "net, times peer",
    ]
    return _tabulate(heads, rows)


def _tabulate_shares(results: Results) -> str:
    rows = []
    places = dict.fromkeys((work, snapshot) for work, snapshot, mode, _ in results.list_places() if mode == COLD)
    for work, snapshot in places:
        shares = results.net_shares(work, snapshot)
        total = sum(cpu.total for cpu in shares.values())
        if total < NOISE:
            continue
        system = sum(cpu.system for cpu in shares.values())
        read, written = results.disk(work, snapshot)
        rows.append(
            [
                _TITLES.get(work, work),
                snapshot,
                *(_percent(shares[role].total / total) if role in shares else "" for role in ROLES),
                *(_percent(share) for share in _split_workers(results, work, snapshot, shares, total)),
                _percent(system / total),
                _show(read / MB, 0),
                _show(written / MB, 0),
            ]
        )
    heads = ["work", "snapshot", *ROLES, "decode", "transfer", "system, I/O", "MB from disk", "MB to disk"]
    return _tabulate(heads, rows)


def _split_workers(
    results: Results, work: str, snapshot: str, shares: Mapping[str, Cpu], total: float
) -> tuple[float | None, float | None]:
    """Shares of what workers take that the library takes for decoding alone, and of the rest: handing over to the JVM.

    Only of works that do nothing else in workers.
    """
    decoding = results.net_cpu("library-decode", snapshot) if work == "spark-aggregate" else None
    if decoding is None or "workers" not in shares:
        return None, None
    decode = min(decoding, shares["workers"].total)
    return decode / total, (shares["workers"].total - decode) / total


def _tabulate_roofline(results: Results) -> str:
    rows = []
    for work, snapshot, mode, keys in results.list_places():
        net = results.net_cpu(work, snapshot, keys=keys) if mode == COLD and keys == KEYS else None
        if net is None or net < NOISE or work.startswith("cli"):
            continue
        bases = (results.net_cpu(base, snapshot) for base in (_LEAST.get(snapshot, "roofline-read"), PARQUET))
        ratios = ["" if base is None else f"{net / max(base, NOISE):.1f}" for base in bases]
        if any(ratios):
            rows.append([_TITLES.get(work, work), snapshot, _show(net), *ratios])
    heads = ["work", "snapshot", "net CPU s", "times reading and decompressing", "times Spark from Parquet"]
    return _tabulate(heads, rows)


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


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    sys.stdout.write(tabulate(load(parser.parse_args().results)))


if __name__ == "__main__":
    main()
