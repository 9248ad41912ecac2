"""Reading `_metadata` of a checkpoint of RocksDB with many files.

python -m benchmarks.metadata --files 100000
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.processes import Clock
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.metadata import (
    CheckpointMetadata,
    OperatorState,
    compute_operator_id,
    list_references,
    read_metadata,
    write_metadata,
)
from state_pipelines.metadata.checkpoint import SubtaskState
from state_pipelines.metadata.handles import FileStateHandle, HandleAndLocalPath, IncrementalRemoteKeyedStateHandle

SUBTASKS = 100
MAX_PARALLELISM = 1024
_ROOT = "s3://bucket/checkpoints/1f0c3ad0e6b74a0c9d5b5f4c4f3d2e1a"


def make_metadata(files: int) -> CheckpointMetadata:
    """One operator of `SUBTASKS` subtasks, which share the files."""
    share, more = divmod(files, SUBTASKS)
    states = []
    for subtask in range(SUBTASKS):
        shared = tuple(
            HandleAndLocalPath(
                f"{number:06d}.sst", FileStateHandle(f"{_ROOT}/shared/{subtask:08x}-{number:012x}", 1 << 26)
            )
            for number in range(share + (subtask < more))
        )
        handle = IncrementalRemoteKeyedStateHandle(
            1,
            f"{subtask:08x}-0000-0000-0000-000000000000",
            compute_key_group_range(subtask, SUBTASKS, MAX_PARALLELISM),
            FileStateHandle(f"{_ROOT}/chk-1/{subtask:08x}", 1 << 10),
            shared,
            (),
            0,
            f"{subtask:08x}-0000-0000-0000-000000000001",
        )
        states.append(SubtaskState(subtask, managed_keyed_state=handle))
    operator = OperatorState(compute_operator_id("bench"), SUBTASKS, MAX_PARALLELISM, tuple(states))
    return CheckpointMetadata(3, 1, (), (operator,))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    clock = Clock()
    with clock.measure("write"):
        data = write_metadata(make_metadata(parser.parse_args().files))
    with clock.measure("read"):
        metadata = read_metadata(data)
    with clock.measure("list the files"):
        number = len(list_references(metadata))
    sys.stdout.write(f"{number:,} files, {len(data) / 1e6:.1f} MB\n\n| work | CPU s | s |\n|---|---|---|\n")
    for name, (cpu, wall) in clock.seconds.items():
        sys.stdout.write(f"| {name} | {cpu.total:.2f} | {wall:.2f} |\n")


if __name__ == "__main__":
    main()
