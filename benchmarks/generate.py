"""A large canonical savepoint: String keys with a `ValueState<Long>` and a `ValueState<POJO of 5 fields>`.

python -m benchmarks.generate --keys 5000000 --out .cache/large [--compressed]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.keyed.assignment import compute_key_group_range
from state_pipelines.keyed.encoding import RecordEncoder
from state_pipelines.keyed.files import RecordContext
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.records import derive_keyed_layout
from state_pipelines.metadata import CheckpointMetadata, OperatorState, compute_operator_id, write_metadata
from state_pipelines.operations.publishing import NewFile, make_file_name, place_rewrites
from state_pipelines.operations.rewriting import FileRewrite, PartFile, write_part
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.metainfo import keyed_state
from state_pipelines.serializers.text import parse
from state_pipelines.storage import SnapshotWriter, join, resolve
from state_pipelines.storage.files import remove_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATOR = "bench"
KEY = parse("String")
STATES = {
    "total": "Long",
    "profile": "Pojo<bench.Profile>(active: Boolean, age: Int, id: Long, name: String, score: Double)",
}
MAX_PARALLELISM = 128
PARALLELISM = 2
BATCH = 1 << 17


def make_batches(state: str, keys: int) -> Iterator[pa.RecordBatch]:
    """Rows of one state; the same at every call."""
    for start in range(0, keys, BATCH):
        numbers = np.arange(start, min(start + BATCH, keys), dtype=np.int64)
        text = pc.cast(pa.array(numbers), pa.string())
        value: pa.Array = pa.array(numbers * 3)
        if state == "profile":
            children = [
                pa.array(numbers % 2 == 0),
                pa.array((numbers % 90).astype(np.int32)),
                pa.array(numbers),
                pc.binary_join_element_wise("name of user", text, " "),
                pa.array(numbers * 0.25),
            ]
            value = pa.StructArray.from_arrays(children, names=["active", "age", "id", "name", "score"])
        yield pa.RecordBatch.from_pydict({"state_key": pc.binary_join_element_wise("user", text, "-"), "value": value})


def generate(target: str, keys: int, *, compressed: bool = False) -> None:
    """Write the savepoint."""
    infos = [keyed_state(name, "VALUE", parse(value), VOID_NAMESPACE) for name, value in STATES.items()]
    header = KeyedHeader(key_serializer=KEY, states=tuple(infos), compressed=compressed)
    with SnapshotWriter(resolve(target)) as writer:
        directory = join(writer.target, "_parts")
        parts: list[tuple[int, tuple[PartFile, ...]]] = []
        for state_id, info in enumerate(infos):
            layout = derive_keyed_layout(info, KEY, MAX_PARALLELISM, LayoutContext())
            part = write_part(
                RecordEncoder(layout, info.name), make_batches(info.name, keys), join(directory, make_file_name())
            )
            parts.append((state_id, (part,)))
        files = []
        context = RecordContext(MAX_PARALLELISM, LayoutContext())
        for subtask in range(PARALLELISM):
            key_groups = compute_key_group_range(subtask, PARALLELISM, MAX_PARALLELISM)
            place = join(writer.target, make_file_name())
            rewrite = FileRewrite(subtask, None, header, (), tuple(parts), key_groups, context, place)
            files.append(NewFile(rewrite, rewrite.run()))
        operator = OperatorState(compute_operator_id(OPERATOR), PARALLELISM, MAX_PARALLELISM)
        metadata = replace(CheckpointMetadata(3, 1), operator_states=(operator,))
        remove_directory(directory)
        writer.publish(write_metadata(place_rewrites(metadata, operator.operator_id, files)))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compressed", action="store_true")
    arguments = parser.parse_args()
    generate(str(arguments.out), arguments.keys, compressed=arguments.compressed)


if __name__ == "__main__":
    main()
