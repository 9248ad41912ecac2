"""Programs that do one task in their process: their arguments, and the figures that they print.

The last line of their output is JSON: `rows`, how many rows they saw, and `stages`, what each repetition took, the
descendants of the process included. The first repetition is cold, the others are warm.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benchmarks.processes import Clock, Cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Task:
    """What a program is told.

    Attributes:
        snapshot: directory of the snapshot.
        target: a path at which nothing lies; each repetition appends its number.
    """

    snapshot: str
    target: str


@dataclass(frozen=True)
class Stage:
    """What one repetition took."""

    cpu: Cpu
    wall: float


def run_program(works: Mapping[str, Callable[[Task], int]]) -> None:
    """The command line of such a program.

    Args:
        works: by name, what does the work and gives the number of rows.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=works)
    parser.add_argument("--snapshot", required=True)
    parser.add_argument("--target", default="")
    parser.add_argument("--repeat", type=int, default=1)
    arguments = parser.parse_args()
    rows, clock = 0, Clock()
    for number in range(arguments.repeat):
        task = Task(arguments.snapshot, f"{arguments.target}-{number}")
        with clock.measure(str(number)):
            rows = works[arguments.work](task)
    stages = [asdict(Stage(cpu, wall)) for cpu, wall in clock.seconds.values()]
    sys.stdout.write(f"\n{json.dumps({'rows': rows, 'stages': stages})}\n")


def read_report(output: str) -> tuple[int | None, list[Stage]]:
    """Rows and stages from the output of such a program; nothing from that of others."""
    lines = output.strip().splitlines()
    try:
        report = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        report = None
    if not isinstance(report, dict) or "stages" not in report:
        return None, []
    return int(report["rows"]), [Stage(Cpu(**each["cpu"]), each["wall"]) for each in report["stages"]]
