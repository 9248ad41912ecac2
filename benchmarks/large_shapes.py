"""Commands on snapshots that are large in other ways than by keys: files, operators, states, a record, a key group.

    python -m benchmarks.large_shapes DIRECTORY [SHAPE...]

Makes each snapshot in the directory (a key group of 20 GiB needs that much disk, and as much for what is written of
it), and runs each command in a process of its own. Linux only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import sys
import tempfile
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from benchmarks.generate import generate, write_canonical
from benchmarks.processes import watch
from benchmarks.shapes import Shape
from state_pipelines.metadata import (
    OperatorState,
    compute_operator_id,
    list_references,
    read_metadata,
    replace_stream_handles,
    write_metadata,
)
from state_pipelines.metadata.handles import RelativeFileStateHandle
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.serializers.text import parse
from state_pipelines.storage.resolution import MANIFEST_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from state_pipelines.metadata import StreamReference
    from state_pipelines.metadata.handles import KeyGroupsSavepointStateHandle, StreamStateHandle

GIB = 1 << 30
COPY = 1 << 26
"""Bytes that are written at once."""

_TYPES = Path(__file__).resolve().parents[1] / "tests/data/types/flink-2.2"


def make_files(target: Path) -> str:
    """A native savepoint of RocksDB with 100,000 files."""
    return _multiply("rocksdb-native", target, 100_000, "files")


def make_operators(target: Path) -> str:
    """A canonical savepoint of 10,000 operators."""
    return _multiply("heap", target, 10_000, "operators")


def _multiply(case: str, target: Path, number: int, unit: str) -> str:
    """Copies of an operator of Flink's, whose files are further names of the same content."""
    (source,) = _TYPES.joinpath(case).glob("*/_metadata")
    metadata = read_metadata(source.read_bytes(), str(source))
    operator = next(each for each in metadata.operator_states if each.uid == "tumbling-windows")
    target.mkdir()
    operators: list[OperatorState] = []
    files = 0
    while (files if unit == "files" else len(operators)) < number:
        uid = f"windows-{len(operators):05}"

        def rename(reference: StreamReference, uid: str = uid) -> StreamStateHandle:
            handle = reference.handle
            if not isinstance(handle, RelativeFileStateHandle):
                return handle
            name = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{uid}/{handle.relative_path}"))
            if not (target / name).exists():
                _link(source.parent / handle.relative_path, target / name)
            return RelativeFileStateHandle(name, handle.size)

        own = replace(operator, operator_id=compute_operator_id(uid), uid=uid, name=uid)
        copied = replace_stream_handles(replace(metadata, operator_states=(own,)), rename)
        operators += copied.operator_states
        files += sum(isinstance(each.handle, RelativeFileStateHandle) for each in list_references(copied))
    whole = replace(metadata, operator_states=tuple(operators))
    (target / "_metadata").write_bytes(write_metadata(whole))
    size = (target / "_metadata").stat().st_size
    return f"{len(operators):,} operators, {files:,} files, `_metadata` of {size / 1e6:.1f} MB"


def _link(source: Path, target: Path) -> None:
    # A file system allows some ten thousand names of a file; and another one than that of the tree allows none.
    anchor = target.parent.with_suffix(".content") / source.name
    if not anchor.exists() or anchor.stat().st_nlink > 10_000:
        anchor.parent.mkdir(exist_ok=True)
        anchor.unlink(missing_ok=True)
        shutil.copy(source, anchor)
    os.link(anchor, target)


def make_states(target: Path) -> str:
    """A canonical savepoint of one operator with 1,000 states of 1,000 keys each."""
    states, keys = 1_000, 1_000
    names = pa.array([f"user-{number}" for number in range(keys)])
    batch = pa.RecordBatch.from_pydict({"state_key": names, "value": pa.array(np.arange(keys))})
    infos = [keyed_state(f"state-{number:04}", "VALUE", parse("Long"), VOID_NAMESPACE) for number in range(states)]
    write_canonical(str(target), parse("String"), [(info, [batch]) for info in infos], Shape())
    return f"{states:,} states, {states * keys:,} entries"


def make_record(target: Path) -> str:
    """A canonical savepoint with a record of 1 GiB among small ones."""
    values = [b"small"] * 1_000
    values[500] = bytes(GIB)
    rows = {"state_key": pa.array(f"user-{number}" for number in range(1_000)), "value": pa.array(values, pa.binary())}
    info = keyed_state("document", "VALUE", parse("BytePrimitiveArray"), VOID_NAMESPACE)
    write_canonical(str(target), parse("String"), [(info, [pa.RecordBatch.from_pydict(rows)])], Shape())
    return "1,000 entries, one of 1 GiB"


def make_key_group(target: Path) -> str:
    """A canonical savepoint with a key group of 20 GiB: the same records again and again."""
    generate(str(target), 1_000_000, Shape(states=("profile",), parallelism=1, max_parallelism=1))
    metadata = read_metadata((target / "_metadata").read_bytes(), str(target))
    (handle,) = (cast("RelativeFileStateHandle", each.handle) for each in list_references(metadata))
    (keyed,) = (each.managed_keyed_state for state in metadata.operator_states for each in state.subtasks)
    (start,) = cast("KeyGroupsSavepointStateHandle", keyed).offsets
    content = (target / handle.relative_path).read_bytes()
    # The number of the state comes first; the last record has a flag in its key, and the end mark follows it.
    first, last = start + 2, _find_last_record(content, start + 2)
    with (target / handle.relative_path).open("wb") as file:
        file.write(content[:first])
        for _ in range(20 * GIB // (last - first)):
            file.write(memoryview(content)[first:last])
        file.write(content[last:])
        size = file.tell()

    def resize(reference: StreamReference) -> StreamStateHandle:
        return replace(cast("RelativeFileStateHandle", reference.handle), size=size)

    (target / "_metadata").write_bytes(write_metadata(replace_stream_handles(metadata, resize)))
    (target / MANIFEST_FILE).unlink()
    return f"a file of {size / GIB:.1f} GiB"


def _find_last_record(content: bytes, at: int) -> int:
    while True:
        record = at
        for _ in ("key", "value"):
            (length,) = struct.unpack_from(">i", content, at)
            at += 4 + length
        if content[record + 4] & 0x80:
            return record


@dataclass(frozen=True)
class Case:
    """A large snapshot.

    Attributes:
        make: writes it, and says how large it is.
        commands: what runs on it: arguments, in which `SNAPSHOT` and `TARGET` stand for directories.
    """

    make: Callable[[Path], str]
    commands: tuple[str, ...]


CASES = {
    "files": Case(
        make_files,
        (
            "inspect SNAPSHOT",
            "verify SNAPSHOT",
            "convert SNAPSHOT --format keep --out TARGET",
            "rescale SNAPSHOT --parallelism 3 --out TARGET",
        ),
    ),
    "operators": Case(
        make_operators,
        (
            "inspect SNAPSHOT",
            "verify SNAPSHOT",
            "convert SNAPSHOT --format heap --out TARGET",
            "rescale SNAPSHOT --parallelism 3 --out TARGET",
        ),
    ),
    "states": Case(
        make_states,
        (
            "inspect SNAPSHOT",
            "dump SNAPSHOT",
            "convert SNAPSHOT --format heap --out TARGET",
            "convert SNAPSHOT --format rocksdb --out TARGET",
            "rescale SNAPSHOT --max-parallelism 64 --out TARGET",
        ),
    ),
    "record": Case(
        make_record,
        (
            "inspect SNAPSHOT",
            "dump SNAPSHOT",
            "convert SNAPSHOT --format heap --out TARGET",
            "convert SNAPSHOT --format rocksdb --out TARGET",
            "rescale SNAPSHOT --max-parallelism 64 --out TARGET",
        ),
    ),
    "key-group": Case(
        make_key_group,
        (
            "inspect SNAPSHOT",
            "read SNAPSHOT --operator bench --state profile --limit 5",
            "verify SNAPSHOT --depth whole",
            "convert SNAPSHOT --format keep --out TARGET",
            "convert SNAPSHOT --format heap --out TARGET",
            "rescale SNAPSHOT --max-parallelism 64 --out TARGET",
        ),
    ),
}


def measure(arguments: Sequence[str], snapshot: Path, target: Path) -> None:
    """Run a command, and print what it took; what it writes is removed."""
    places = {"SNAPSHOT": str(snapshot), "TARGET": str(target)}
    command = [str(Path(sys.executable).with_name("state-pipelines")), *(places.get(each, each) for each in arguments)]
    with tempfile.TemporaryFile() as output:
        usage = watch(command, stdout=output, stderr=output)
        output.seek(max(output.seek(0, os.SEEK_END) - 2000, 0))
        last = output.read().decode(errors="replace").strip().splitlines()[-1:]
    if target.exists():
        shutil.rmtree(target)
    text = " ".join(arguments).replace(" --out TARGET", "")
    result = "" if usage.code == 0 else f" exit code {usage.code}: {' '.join(last)}"
    write(f"| `{text}` | {usage.wall:.1f} | {usage.cpu.total:.1f} | {usage.peak / 1e6:,.0f} |{result}")


def write(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Measure the shapes that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=", ".join(CASES))
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    for name in arguments.shapes or CASES:
        case = CASES[name]
        snapshot = arguments.directory / name
        write(f"\n{name}: {case.make(snapshot)}\n\n| command | s | CPU s | MB |\n| --- | --- | --- | --- |")
        for command in case.commands:
            measure(command.split(), snapshot, arguments.directory / f"{name}-written")
        shutil.rmtree(snapshot)
        shutil.rmtree(snapshot.with_suffix(".content"), ignore_errors=True)


if __name__ == "__main__":
    main()
