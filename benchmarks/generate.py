"""Large snapshots, written by the library's own writers, without Flink.

    python -m benchmarks.generate --keys 5000000 --out .cache/large [--compressed]
    python -m benchmarks.generate --keys 1000000 --out .cache/rocks --states value,map,timers --format rocksdb-native

By default String keys with a `ValueState<Long>` and a `ValueState<POJO of 5 fields>`, canonical. Keys lie in the key
groups of their hashes. Memory does not grow with the number of keys, but a single key group must fit into it: with
--skew 0.5 that is half of the state. Native formats are made by writing canonical files beside the target, which
`convert` reads; the disk must hold both, and spills of the same size.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.keys import HASHES, SERIALIZERS, KeyNumbers, choose_numbers
from benchmarks.rows import make_batches, make_infos
from benchmarks.shapes import FORMATS, KEYS, STATES, Shape
from state_pipelines import open_snapshot
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.state_table import RecordEncoder
from state_pipelines.metadata import CheckpointMetadata, OperatorState, compute_operator_id
from state_pipelines.operations.convert import convert
from state_pipelines.operations.write.keyed_rewrite import FileRewrite, Format, make_file_name
from state_pipelines.operations.write.publication import NewFile, replace_rewritten
from state_pipelines.operations.write.spills import StateSpill, write_state_spill
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.storage import join, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

OPERATOR = "bench"
"""The uid of the operator; the snapshot stores its hash."""

_NATIVE = {"heap-native": Format.HEAP, "rocksdb-native": Format.ROCKSDB}


def generate(target: str, keys: int, shape: Shape | None = None) -> None:
    """Write a snapshot.

    Args:
        target: a local directory that does not exist yet.
        keys: how many.
        shape: what it is like; by default as the module says.

    Raises:
        TargetExistsError: there is something at the target.
        UsageError: parallelism and max parallelism do not go together.
    """
    shape = shape or Shape()
    directory = Path(target).absolute().parent
    directory.mkdir(parents=True, exist_ok=True)
    with choose_numbers(keys, shape, directory) as numbers:
        if shape.format == "canonical":
            _write_canonical(target, numbers, shape)
            return
        with TemporaryDirectory(dir=directory) as name:
            canonical = str(Path(name, "canonical"))
            _write_canonical(canonical, numbers, shape)
            convert(open_snapshot(canonical), target, _NATIVE[shape.format], verify=False)


def _write_canonical(target: str, numbers: KeyNumbers, shape: Shape) -> None:
    states = [
        (info, make_batches(state, numbers, shape)) for state, info in zip(shape.states, make_infos(shape), strict=True)
    ]
    write_canonical(target, SERIALIZERS[shape.key], states, shape)


def write_canonical(
    target: str, key: Serializer, states: Sequence[tuple[StateMetaInfo, Iterable[pa.RecordBatch]]], shape: Shape
) -> None:
    """Write a canonical savepoint of one operator.

    Args:
        target: a local directory that does not exist yet.
        key: serializer of the keys.
        states: the states, each with its rows.
        shape: parallelism, key groups and compression; its states and keys do not count.
    """
    header = KeyedHeader(key_serializer=key, states=tuple(info for info, _ in states), compressed=shape.compressed)
    ranges = [
        compute_key_group_range(subtask, shape.parallelism, shape.max_parallelism)
        for subtask in range(shape.parallelism)
    ]
    with SnapshotTransaction(resolve(target)) as transaction:
        spills: list[tuple[int, tuple[StateSpill, ...]]] = []
        for state_id, (info, batches) in enumerate(states):
            layout = derive_keyed_layout(info, key, shape.max_parallelism, LayoutContext())
            encoder = RecordEncoder(layout, info.name, tuple(HASHES.items()))
            spill = write_state_spill(encoder, batches, join(transaction.scratch, make_file_name()))
            spills.append((state_id, (spill,)))
        files = []
        context = RecordContext(shape.max_parallelism, LayoutContext())
        for subtask, key_groups in enumerate(ranges):
            place = join(transaction.target, make_file_name())
            rewrite = FileRewrite(subtask, None, header, (), tuple(spills), key_groups, context, place)
            files.append(NewFile(rewrite, rewrite.run()))
        operator = OperatorState(compute_operator_id(OPERATOR), shape.parallelism, shape.max_parallelism)
        metadata = replace(CheckpointMetadata(3, 1), operator_states=(operator,))
        transaction.stage(replace_rewritten(metadata, operator.operator_id, files), None)
        transaction.commit()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000, help="how many keys; each state has an entry for each")
    parser.add_argument("--out", type=Path, required=True, help="directory of the snapshot, which must not exist")
    parser.add_argument("--key", choices=KEYS, default="string", help="type of the keys")
    parser.add_argument("--states", default="value,profile", help=f"some of {','.join(STATES)}")
    parser.add_argument(
        "--per-key", type=int, default=5, help="entries of the map and elements of the list of each key"
    )
    parser.add_argument("--format", choices=FORMATS, default="canonical")
    parser.add_argument("--compressed", action="store_true", help="snappy (canonical and heap-native)")
    parser.add_argument(
        "--skew",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of all keys in one key group, 0 to 1; such keys are found by trying, max parallelism times as many",
    )
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--max-parallelism", type=int, default=128)
    arguments = parser.parse_args()
    shape = Shape(
        key=arguments.key,
        states=tuple(arguments.states.split(",")),
        format=arguments.format,
        compressed=arguments.compressed,
        skew=arguments.skew,
        parallelism=arguments.parallelism,
        max_parallelism=arguments.max_parallelism,
        per_key=arguments.per_key,
    )
    generate(str(arguments.out), arguments.keys, shape)


if __name__ == "__main__":
    main()
