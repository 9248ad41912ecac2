"""What a command takes: wall time, CPU, memory and bytes of its whole process tree (Linux only, from `/proc`).

`watch` runs a command in a session of its own and looks at its processes every tenth of a second. The totals of CPU are
exact: they come from the kernel when each process ends; orphans come to the watching process for that. Children that
nobody waits for, as Spark's Python workers are to their daemon, are known up to the last look only, and so is which
role used how much; the rest is the role `rest`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from state_pipelines.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

INTERVAL = 0.1
"""Seconds between two looks."""

PATIENCE = 30.0
"""Seconds that children may live on when the command has ended."""

ROLES = ("driver", "jvm", "workers", "rest")
"""The command itself, the JVM, all other Python processes, and what else there is or was not seen."""

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
# Of prctl, from <linux/prctl.h>.
_SET_SUBREAPER, _GET_SUBREAPER = 36, 37
_BLOCK = 512


@dataclass(frozen=True)
class Cpu:
    """Seconds of CPU."""

    user: float = 0.0
    system: float = 0.0

    @property
    def total(self) -> float:
        """User plus system."""
        return self.user + self.system

    def __add__(self, other: Cpu) -> Cpu:
        return Cpu(self.user + other.user, self.system + other.system)

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.user - other.user, self.system - other.system)


@dataclass(frozen=True)
class RoleUsage:
    """What the processes of one role took.

    Attributes:
        cpu: of all of them.
        peak: bytes of resident memory of all of them at once, the most seen; shared pages count for each.
        largest: bytes, the most that a single one ever had.
        processes: how many were seen.
    """

    cpu: Cpu
    peak: int
    largest: int
    processes: int


@dataclass(frozen=True)
class Usage:
    """What a command took.

    Attributes:
        code: with which it ended.
        wall: seconds until the command itself ended.
        cpu: of the whole tree.
        peak: bytes of resident memory of the whole tree at once, the most seen.
        read: bytes that came from disks, not from the page cache.
        written: bytes for disks.
        roles: by name, see `ROLES`.
    """

    code: int
    wall: float
    cpu: Cpu
    peak: int
    read: int
    written: int
    roles: dict[str, RoleUsage]


@dataclass(frozen=True)
class Look:
    """A process as it is now; `ended` is the CPU of its children that it has waited for."""

    pid: int
    parent: int
    session: int
    name: str
    cpu: Cpu
    ended: Cpu


def watch(
    command: Sequence[str],
    *,
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
    timeout: float | None = None,
) -> Usage:
    """Run a command and watch all of its processes until they have ended.

    Args:
        command: the program and its arguments.
        stdout: where its output goes.
        stderr: the same.
        timeout: seconds after which all of its processes are killed.

    Raises:
        UnsupportedError: this is no Linux.
        TimeoutError: it took longer.
    """
    _require_linux()
    with _adopting():
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
        tree = _Tree(process.pid)
        try:
            ended = os.pidfd_open(process.pid)
            try:
                while not select.select([ended], [], [], INTERVAL)[0]:
                    if timeout is not None and time.perf_counter() - started > timeout:
                        raise TimeoutError(f"{command[0]} took longer than {timeout:g} s")
                    tree.look()
                wall = time.perf_counter() - started
            finally:
                os.close(ended)
            tree.look()
            patience = time.perf_counter() + PATIENCE
            while tree.alive and time.perf_counter() < patience:
                time.sleep(INTERVAL)
                tree.look()
        finally:
            tree.kill()
            process.returncode = tree.code
    return tree.sum_up(wall)


class _Tree:
    """The processes of a command: its descendants, and orphans of its session."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.code = 0
        self.alive = {root}
        self.known = {root}
        self.total = Cpu()
        self.last: dict[int, Look] = {}
        self.reaped: set[int] = set()
        self.blocks = [0, 0]
        self.peak = 0
        self.seen: dict[int, tuple[str, Cpu]] = {}
        self.largest: dict[int, int] = {}
        self.peaks: dict[str, int] = {}

    def look(self) -> None:
        """Take in what there is now, and take leave of what has ended."""
        looks = list_processes()
        while True:
            found = {
                each.pid
                for each in looks
                if each.pid not in self.known and (each.parent in self.known or each.session == self.root)
            }
            if not found:
                break
            self.known |= found
        now = {each.pid: each for each in looks if each.pid in self.known}
        self.total += self._find_lost(now)
        self.last = now
        resident: dict[str, int] = {}
        self.alive = set()
        for each in now.values():
            self.alive.add(each.pid)
            role = self._find_role(each)
            self.seen[each.pid] = (role, each.cpu)
            size, most = _read_memory(each.pid)
            self.largest[each.pid] = max(self.largest.get(each.pid, 0), most)
            resident[role] = resident.get(role, 0) + size
            if each.parent == os.getpid():
                self._reap(each.pid)
        for role, size in resident.items():
            self.peaks[role] = max(self.peaks.get(role, 0), size)
        self.peak = max(self.peak, sum(resident.values()))

    def _find_lost(self, now: Mapping[int, Look]) -> Cpu:
        """What those took that have ended since the last look, as far as no one that waits for children got it."""
        gone: dict[int, Cpu] = {}
        for pid in self.last.keys() - now.keys() - self.reaped:
            waiter = self.last[pid].parent
            while waiter not in now and waiter in self.last:
                waiter = self.last[waiter].parent
            gone[waiter] = gone.get(waiter, Cpu()) + self.last[pid].cpu + self.last[pid].ended
        lost = Cpu()
        for waiter, cpu in gone.items():
            before = self.last[waiter].ended if waiter in self.last else Cpu()
            rest = cpu - (now[waiter].ended - before if waiter in now else Cpu())
            lost += Cpu(max(rest.user, 0.0), max(rest.system, 0.0))
        return lost

    def kill(self) -> None:
        """End what still lives."""
        while self.alive:
            for pid in self.alive:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue
            time.sleep(INTERVAL / 10)
            self.look()

    def sum_up(self, wall: float) -> Usage:
        """What all of them took."""
        roles: dict[str, RoleUsage] = {}
        rest = self.total
        for name in ROLES:
            pids = [pid for pid, (role, _) in self.seen.items() if role == name]
            cpu = sum((self.seen[pid][1] for pid in pids), Cpu())
            rest -= cpu
            largest = max((self.largest[pid] for pid in pids), default=0)
            roles[name] = RoleUsage(cpu, self.peaks.get(name, 0), largest, len(pids))
        unseen = Cpu(max(rest.user, 0.0), max(rest.system, 0.0))
        last = roles["rest"]
        roles["rest"] = RoleUsage(last.cpu + unseen, last.peak, last.largest, last.processes)
        read, written = (count * _BLOCK for count in self.blocks)
        return Usage(self.code, wall, self.total, self.peak, read, written, roles)

    def _find_role(self, each: Look) -> str:
        if each.pid == self.root:
            return "driver"
        if each.name == "java":
            return "jvm"
        return "workers" if each.name.startswith(("python", "pypy")) else "rest"

    def _reap(self, pid: int) -> None:
        """Take leave of a child, or an orphan that came to us, if it has ended; its own children count with it."""
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if not ended:
            return
        self.alive.discard(pid)
        self.reaped.add(pid)
        self.total += Cpu(usage.ru_utime, usage.ru_stime)
        self.blocks = [self.blocks[0] + usage.ru_inblock, self.blocks[1] + usage.ru_oublock]
        if pid == self.root:
            self.code = os.waitstatus_to_exitcode(status)


def list_processes() -> list[Look]:
    """All processes of this machine."""
    found = []
    for each in _PROC.iterdir():
        if each.name.isdigit():
            try:
                text = (each / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            # The name, in parentheses, may hold anything.
            head, _, tail = text.rpartition(")")
            values = tail.split()
            user, system, ended_user, ended_system = (int(value) / _TICKS for value in values[11:15])
            found.append(
                Look(
                    int(each.name),
                    int(values[1]),
                    int(values[3]),
                    head.partition("(")[2],
                    Cpu(user, system),
                    Cpu(ended_user, ended_system),
                )
            )
    return found


def measure_own_cpu() -> Cpu:
    """CPU of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Cpu(usage.ru_utime, usage.ru_stime)


def measure_descendants() -> Cpu:
    """CPU of all descendants of this process so far, those too that have ended.

    Of the living it is known in hundredths of a second, and on Linux only.
    """
    # A process that ends between two looks is missed once, and counted by its parent from then on.
    return max((_look_at_descendants() for _ in range(3)), key=lambda cpu: cpu.total)


def _look_at_descendants() -> Cpu:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = Cpu(usage.ru_utime, usage.ru_stime)
    if sys.platform != "linux":
        return total
    looks = {each.pid: each for each in list_processes()}
    for each in looks.values():
        parent = each.parent
        while parent in looks and parent != os.getpid():
            parent = looks[parent].parent
        if parent == os.getpid():
            total += each.cpu + each.ended
    return total


@dataclass
class Clock:
    """CPU and wall seconds of named tasks, of this process and its descendants."""

    seconds: dict[str, tuple[Cpu, float]] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add what the block takes to `name`."""
        # Looking at other processes takes CPU too, which stays outside.
        others = measure_descendants()
        own, wall = measure_own_cpu(), time.perf_counter()
        yield
        wall, own = time.perf_counter() - wall, measure_own_cpu() - own
        before = self.seconds.get(name, (Cpu(), 0.0))
        self.seconds[name] = (before[0] + own + (measure_descendants() - others), before[1] + wall)


def _read_memory(pid: int) -> tuple[int, int]:
    """Resident bytes now and at most; nothing of a process that has ended."""
    try:
        text = (_PROC / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    sizes = {"VmRSS:": 0, "VmHWM:": 0}
    for line in text.splitlines():
        word, _, value = line.partition("\t")
        if word in sizes:
            sizes[word] = int(value.split()[0]) * 1024
    return sizes["VmRSS:"], sizes["VmHWM:"]


@contextmanager
def _adopting() -> Iterator[None]:
    """For this time orphans among our descendants become our children, so that we learn what they took."""
    library = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    library.prctl(_GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    if library.prctl(_SET_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "orphans cannot be adopted")
    try:
        yield
    finally:
        library.prctl(_SET_SUBREAPER, before.value, 0, 0, 0)


def _require_linux() -> None:
    if sys.platform != "linux":
        raise UnsupportedError(
            f"processes are watched through /proc, which {sys.platform} does not have", hint="Use Linux"
        )
