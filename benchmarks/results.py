"""Results: one measurement per line of JSON, and what several of them say together."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.processes import ROLES, Cpu, RoleUsage
from benchmarks.snapshots import TINY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RESULTS = Path(__file__).with_name("results") / "results.jsonl"
"""Where the runner puts them."""

COLD, WARM = "cold", "warm"

NOISE = 0.05
"""Net seconds that cannot be determined from none; a ratio takes it in place of anything less."""


@dataclass(frozen=True)
class Measurement:
    """What one process took, or the repetition of a work in a process that is warm.

    Attributes:
        work: its name.
        snapshot: name of the shape.
        keys: of the snapshot.
        mode: `cold` for a whole process, `warm` for a repetition.
        run: number from 0.
        wall: seconds.
        cpu: of the whole tree of processes.
        rows: how many the work saw; None when it does not tell.
        peak: bytes of memory of the tree; 0 when warm, as what follows.
        read: bytes from disks.
        written: bytes to disks.
        roles: shares of the processes, by role.
        size: bytes of the snapshot's files.
    """

    work: str
    snapshot: str
    keys: int
    mode: str
    run: int
    wall: float
    cpu: Cpu
    rows: int | None = None
    peak: int = 0
    read: int = 0
    written: int = 0
    roles: dict[str, RoleUsage] = field(default_factory=dict)
    size: int = 0

    @property
    def largest_worker(self) -> int:
        """Bytes of the largest Python process, the driver included, for it too works on state."""
        return max((self.roles[role].largest for role in ("driver", "workers") if role in self.roles), default=0)

    @property
    def largest_jvm(self) -> int:
        """Bytes of the largest JVM."""
        return self.roles["jvm"].largest if "jvm" in self.roles else 0


def write_measurement(measurement: Measurement) -> str:
    """One line; seconds with four digits."""
    fields = asdict(measurement)
    fields["roles"] = {
        name: role for name, role in fields["roles"].items() if role["processes"] or any(role["cpu"].values())
    }
    return json.dumps(_round(fields)) + "\n"


def _round(value: object) -> object:
    if isinstance(value, dict):
        return {name: _round(each) for name, each in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def read_measurement(line: str) -> Measurement:
    """Mirror of `write_measurement`."""
    fields = json.loads(line)
    fields["cpu"] = Cpu(**fields["cpu"])
    fields["roles"] = {name: RoleUsage(**{**role, "cpu": Cpu(**role["cpu"])}) for name, role in fields["roles"].items()}
    return Measurement(**fields)


def load(path: Path) -> Results:
    """All results of a file."""
    with path.open() as lines:
        return Results([read_measurement(line) for line in lines if line.strip()])


@dataclass(frozen=True)
class Spread:
    """The median of some runs and their bounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Results:
    """All measurements.

    Attributes:
        measurements: in any order.
    """

    measurements: list[Measurement]

    def select(self, work: str, snapshot: str, *, mode: str = COLD, keys: int | None = None) -> list[Measurement]:
        """The runs of a work on a snapshot; of the large one, unless its keys are told."""
        found = [
            each
            for each in self.measurements
            if (each.work, each.snapshot, each.mode) == (work, snapshot, mode)
            and (each.keys != TINY if keys is None else each.keys == keys)
        ]
        if keys is None:
            least = min((each.keys for each in found), default=0)
            # A huge snapshot is asked for by its keys only.
            found = [each for each in found if each.keys == least]
        return found

    def list_places(self) -> list[tuple[str, str, str, int]]:
        """(work, snapshot, mode, keys) of all that was measured on large snapshots, in order, once."""
        places = ((each.work, each.snapshot, each.mode, each.keys) for each in self.measurements if each.keys != TINY)
        return list(dict.fromkeys(places))

    def cpu(self, work: str, snapshot: str, *, mode: str = COLD, keys: int | None = None) -> Spread | None:
        """CPU seconds of the whole tree; None when it was not measured."""
        return _spread(self.select(work, snapshot, mode=mode, keys=keys), lambda each: each.cpu.total)

    def wall(self, work: str, snapshot: str, *, mode: str = COLD, keys: int | None = None) -> Spread | None:
        """Wall seconds."""
        return _spread(self.select(work, snapshot, mode=mode, keys=keys), lambda each: each.wall)

    def memory(self, work: str, snapshot: str, *, keys: int | None = None) -> Spread | None:
        """Bytes of the largest Python process."""
        return _spread(self.select(work, snapshot, keys=keys), lambda each: float(each.largest_worker))

    def jvm_memory(self, work: str, snapshot: str, *, keys: int | None = None) -> Spread | None:
        """Bytes of the largest JVM; 0 where there is none."""
        return _spread(self.select(work, snapshot, keys=keys), lambda each: float(each.largest_jvm))

    def whole_memory(self, work: str, snapshot: str, *, keys: int | None = None) -> Spread | None:
        """Bytes of all processes at once; pages that they share count for each."""
        return _spread(self.select(work, snapshot, keys=keys), lambda each: float(each.peak))

    def throughput(self, work: str, snapshot: str, *, keys: int | None = None) -> float | None:
        """Bytes of the snapshot per net second of wall time; None where that is not to be told from start-up."""
        runs, seconds = self.select(work, snapshot, keys=keys), self.net_wall(work, snapshot, keys=keys)
        if seconds is None or seconds < NOISE or not runs[0].size:
            return None
        return runs[0].size / seconds

    def net_cpu(self, work: str, snapshot: str, *, keys: int | None = None) -> float | None:
        """CPU seconds without start-up: the medians of the large and the tiny snapshot, subtracted.

        Not less than the second run in one session takes, where that was measured: a difference of two times that
        both waver can come out far too small.
        """
        return self._find_net(self.cpu, work, snapshot, keys)

    def net_wall(self, work: str, snapshot: str, *, keys: int | None = None) -> float | None:
        """The same of wall seconds."""
        return self._find_net(self.wall, work, snapshot, keys)

    def _find_net(
        self, measure: Callable[..., Spread | None], work: str, snapshot: str, keys: int | None
    ) -> float | None:
        large, tiny = measure(work, snapshot, keys=keys), measure(work, snapshot, keys=TINY)
        warm = measure(work, snapshot, mode=WARM, keys=keys)
        if large is None or tiny is None:
            return None
        net = large.median - tiny.median
        return net if warm is None else max(net, warm.median)

    def disk(self, work: str, snapshot: str, *, keys: int | None = None) -> tuple[float, float]:
        """Medians of the bytes that came from disks and of those for them; 0, 0 when it was not measured."""
        runs = self.select(work, snapshot, keys=keys)
        read, written = (_spread(runs, take) for take in (lambda each: each.read, lambda each: each.written))
        return (read.median if read else 0.0, written.median if written else 0.0)

    def shares(self, work: str, snapshot: str, *, keys: int | None = None) -> dict[str, Cpu]:
        """By role the median of user and system seconds, start-up included."""
        runs = self.select(work, snapshot, keys=keys)
        return {
            role: Cpu(*(statistics.median(take) for take in zip(*_role_seconds(runs, role), strict=True)))
            for role in ROLES
            if any(role in run.roles for run in runs)
        }

    def net_shares(self, work: str, snapshot: str) -> dict[str, Cpu]:
        """The same less what the tiny snapshot takes, not less than nothing."""
        start = self.shares(work, snapshot, keys=TINY)
        net = {role: cpu - start.get(role, Cpu()) for role, cpu in self.shares(work, snapshot).items()}
        return {role: Cpu(max(cpu.user, 0.0), max(cpu.system, 0.0)) for role, cpu in net.items()}


def _role_seconds(runs: Iterable[Measurement], role: str) -> list[tuple[float, float]]:
    cpus = [run.roles[role].cpu for run in runs if role in run.roles]
    return [(cpu.user, cpu.system) for cpu in cpus]


def _spread(runs: list[Measurement], value: Callable[[Measurement], float]) -> Spread | None:
    values = [value(run) for run in runs]
    return Spread(statistics.median(values), min(values), max(values)) if values else None
