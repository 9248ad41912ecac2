"""Calls by which a process uses the local disk: any of them fails, or is the last thing that the process does.

Python announces such a call to audit hooks before it is made (`sys.addaudithook`), by any caller. Calls that
compiled libraries make by themselves, such as those of RocksDB, are not announced.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS = (
    "open",
    "os.listdir",
    "os.scandir",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
)
# Arguments of an event: a path, and the descriptor of the directory in which it is, or -1.
_DESCRIPTORS = {
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.link": ((0, 2), (1, 3)),
}

GROWING = ("os.mkdir", "os.link", "os.symlink")
"""Events for which a full disk has no place; files are removed and renamed on it."""

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class LocalCalls:
    """Calls on paths below a directory, counted.

    Args:
        directory: the directory.
        rule: called before each call with its number, and whether it needs space; may raise, or end the process.
    """

    def __init__(self, directory: Path, rule: Callable[[int, bool], None]) -> None:
        self.count = 0
        self.names: list[str] = []
        """Name of the file or directory of every call, those before `count` was set to zero too."""
        self._prefix = f"{directory}/"
        self._rule = rule
        self._lock = threading.Lock()

    def watch(self) -> None:
        """Begin; a hook stays as long as the process."""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in EVENTS:
            return
        paths = _list_paths(event, arguments)
        if not any(path.startswith(self._prefix) for path in paths):
            return
        flags = arguments[2] if event == "open" else 0
        if isinstance(flags, int) and flags & os.O_DIRECTORY:
            # By their descriptors directories are only named; there are many of them.
            return
        with self._lock:
            number = self.count
            self.count += 1
            self.names.append(paths[0].rpartition("/")[2])
        self._rule(number, event in GROWING or (isinstance(flags, int) and bool(flags & WRITES)))


def _list_paths(event: str, arguments: tuple[object, ...]) -> list[str]:
    paths = []
    for position, descriptor in _DESCRIPTORS.get(event, ((0, None), (1, None))):
        path = arguments[position] if position < len(arguments) else None
        if isinstance(path, str | bytes | os.PathLike):
            name = os.fsdecode(path)
            directory = -1 if descriptor is None else arguments[descriptor]
            if isinstance(directory, int) and directory >= 0:
                name = str(Path(f"/proc/self/fd/{directory}").readlink() / name)
            paths.append(name)
    return paths


def _kill(number: int) -> Callable[[int, bool], None]:
    def rule(now: int, _: bool) -> None:
        if now == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return rule


def _interrupt(number: int) -> Callable[[int, bool], None]:
    def rule(now: int, _: bool) -> None:
        if now == number:
            os.kill(os.getpid(), signal.SIGINT)

    return rule


def _fail(
    error: int, *, onwards: bool = False, only_growing: bool = False
) -> Callable[[int], Callable[[int, bool], None]]:
    def make(number: int) -> Callable[[int, bool], None]:
        def rule(now: int, grows: bool) -> None:
            if (now == number or (onwards and now > number)) and (grows or not only_growing):
                raise OSError(error, os.strerror(error))

        return rule

    return make


WAYS: dict[str, Callable[[int], Callable[[int, bool], None]]] = {
    "kill -9": _kill,
    "interrupt": _interrupt,
    "full": _fail(errno.ENOSPC, only_growing=True),
    "full from then on": _fail(errno.ENOSPC, onwards=True, only_growing=True),
    "refused": _fail(errno.EACCES),
    "broken": _fail(errno.EIO),
}
"""By name: makes the rule by which the call of a number fails."""
