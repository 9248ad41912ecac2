"""The states of generated snapshots and their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.keys import SERIALIZERS, make_keys
from state_pipelines.serializers.build import VOID_NAMESPACE, list_of, map_of, timer
from state_pipelines.serializers.state_meta_info import keyed_state, priority_queue
from state_pipelines.serializers.text import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from benchmarks.keys import KeyNumbers
    from benchmarks.shapes import Shape
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

BATCH = 1 << 17
"""Rows at once."""

FIRST_TIMER = 1_700_000_000_000
"""Milliseconds; a day of timers follows."""

_DAY = 86_400_000
_LONG, _STRING = parse("Long"), parse("String")

NAMES = {
    "value": "total",
    "profile": "profile",
    "map": "visits",
    "list": "events",
    "timers": "_timer_state/event_bench-timers",
}
"""Names of the states."""


def make_infos(shape: Shape) -> list[StateMetaInfo]:
    """The states, in the order of the shape."""
    profile = "Pojo<bench.Profile>(active: Boolean, age: Int, id: Long, name: String, score: Double)"
    infos = {
        "value": keyed_state(NAMES["value"], "VALUE", _LONG, VOID_NAMESPACE),
        "profile": keyed_state(NAMES["profile"], "VALUE", parse(profile), VOID_NAMESPACE),
        "map": keyed_state(NAMES["map"], "MAP", map_of(_STRING, _LONG), VOID_NAMESPACE),
        "list": keyed_state(NAMES["list"], "LIST", list_of(_LONG), VOID_NAMESPACE),
        "timers": priority_queue(NAMES["timers"], timer(SERIALIZERS[shape.key], VOID_NAMESPACE)),
    }
    return [infos[state] for state in shape.states]


def count_entries(state: str, keys: int, shape: Shape) -> int:
    """Records of a state: of a map one per entry, of all others one per key."""
    return keys * shape.per_key if state == "map" else keys


def make_batches(state: str, numbers: KeyNumbers, shape: Shape) -> Iterator[pa.RecordBatch]:
    """Rows of one state; the same at every call."""
    size = BATCH if state != "map" else max(BATCH // shape.per_key, 1)
    for each in numbers.batches(size):
        if state == "map":
            yield _make_entries(each, shape)
            continue
        columns = {"state_key": make_keys(shape.key, each)}
        if state == "timers":
            columns["timestamp"] = pa.array(FIRST_TIMER + each % _DAY)
        else:
            columns["value"] = _make_values(state, each, shape.per_key)
        yield pa.RecordBatch.from_pydict(columns)


def _make_values(state: str, numbers: npt.NDArray[np.int64], per_key: int) -> pa.Array:
    if state == "value":
        return pa.array(numbers * 3)
    if state == "list":
        offsets = np.arange(0, (len(numbers) + 1) * per_key, per_key, dtype=np.int32)
        elements = np.repeat(numbers, per_key) + np.tile(np.arange(per_key), len(numbers))
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(elements))
    children = [
        pa.array(numbers % 2 == 0),
        pa.array((numbers % 90).astype(np.int32)),
        pa.array(numbers),
        pc.binary_join_element_wise("name of user", pc.cast(pa.array(numbers), pa.string()), " "),
        pa.array(numbers * 0.25),
    ]
    return pa.StructArray.from_arrays(children, names=["active", "age", "id", "name", "score"])


def _make_entries(numbers: npt.NDArray[np.int64], shape: Shape) -> pa.RecordBatch:
    """Entries of a map: `per_key` pages for each key."""
    repeated = np.repeat(numbers, shape.per_key)
    pages = np.tile(np.arange(shape.per_key, dtype=np.int64), len(numbers))
    names = pc.binary_join_element_wise("page", pc.cast(pa.array(pages), pa.string()), "-")
    return pa.RecordBatch.from_pydict(
        {"state_key": make_keys(shape.key, repeated), "map_key": names, "map_value": pa.array(repeated + pages)}
    )
