"""What no reader can be faster than: reading the bytes, decompressing them, copying them once in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import cramjam
import numpy as np

from benchmarks.generate import OPERATOR
from benchmarks.stages import Task, run_program
from state_pipelines import open_snapshot
from state_pipelines.keyed.canonical import CanonicalFile

if TYPE_CHECKING:
    from collections.abc import Callable

PIECE = 8 << 20


def list_sizes(task: Task) -> dict[Path, int]:
    """The files of the snapshot and their sizes."""
    return {path: path.stat().st_size for path in sorted(Path(task.snapshot).iterdir()) if path.is_file()}


def read_bytes(task: Task) -> int:
    """Read all files, in pieces, into the same memory."""
    piece = bytearray(PIECE)
    count = 0
    for path in list_sizes(task):
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(piece):
                count += size
    return count


def copy_memory(task: Task) -> int:
    """Copy as many bytes as the files hold from one place in memory to another."""
    size = sum(list_sizes(task).values())
    source, target = np.ones(PIECE, np.uint8), np.zeros(PIECE, np.uint8)
    for start in range(0, size, PIECE):
        stop = min(PIECE, size - start)
        target[:stop] = source[:stop]
    return size


def decompress(task: Task) -> int:
    """Read and decompress all sections of a canonical snapshot, checksums included."""
    size = 0
    for _, file in open_snapshot(task.snapshot).operator(OPERATOR).keyed_files:
        if not isinstance(file, CanonicalFile) or not file.header.compressed:
            raise SystemExit(f"{file.name} is not compressed canonical state")
        location = file.stream.location
        if location is None:
            raise SystemExit(f"{file.name} is no file")
        with Path(location.path).open("rb", buffering=0) as source:
            for section in file.sections:
                source.seek(section.start)
                size += len(cramjam.snappy.decompress(source.read(section.end - section.start)))
    return size


WORKS: dict[str, Callable[[Task], int]] = {"read": read_bytes, "copy": copy_memory, "decompress": decompress}


if __name__ == "__main__":
    run_program(WORKS)
