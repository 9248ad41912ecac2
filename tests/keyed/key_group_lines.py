"""Keys of every type with their hashes and key groups, as `harness.RecordKeyGroups` writes them."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.data_views import Reader
from state_pipelines.keyed.hashing import HashExpression, parse_hash_expression
from state_pipelines.keyed.hashing.value_hashes import class_name
from state_pipelines.keyed.record_layout import KeyedRecords
from state_pipelines.serializers.build import avro, basic
from state_pipelines.serializers.registry import read_snapshot
from state_pipelines.serializers.tree import Serializer, Tuple, walk

FILE = Path(__file__).parents[1] / "data" / "key_groups" / "keys.tsv.gz"
_SCALA = "org.apache.flink.api.scala.typeutils.ScalaCaseClassSerializerSnapshot"


@dataclass(frozen=True)
class TypedKeys:
    """Keys of one type.

    Attributes:
        serializer: of the keys.
        records: one record per key, in the key group that Flink gave; there are no values.
        codes: i32[n], what `hashCode` gave.
        limits: i32[n], max parallelism of each.
    """

    serializer: Serializer
    records: KeyedRecords
    codes: npt.NDArray[np.int32]
    limits: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Recorded:
    """All that was recorded.

    Attributes:
        keys: by name of the type.
        ranges: (parallelism, max parallelism, subtask, first and last key group).
        defaults: (parallelism, default max parallelism).
    """

    keys: dict[str, TypedKeys]
    ranges: list[tuple[int, ...]]
    defaults: list[tuple[int, ...]]


def read_recorded() -> Recorded:
    """The recorded file."""
    return parse_recorded(gzip.decompress(FILE.read_bytes()).decode())


def write_recorded(text: str) -> None:
    """Mirror of `read_recorded`; equal texts give equal bytes."""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))


def parse_recorded(text: str) -> Recorded:
    """The lines of `harness.RecordKeyGroups`."""
    long, integer, string, double = (basic(kind) for kind in ("Long", "Int", "String", "Double"))
    fields = (integer, long, string, double)
    serializers: dict[str, Serializer] = {
        "Scala 2.12 Tuple4": Tuple(snapshot_class=_SCALA, outer_version=2, tuple_class="scala.Tuple4", fields=fields),
        "Scala 2.13 Tuple4": Tuple(snapshot_class=_SCALA, outer_version=2, tuple_class="scala.Tuple4", fields=fields),
        "Scala Float": basic("Float"),
    }
    keys: dict[str, list[list[str]]] = {}
    ranges, defaults = [], []
    for line in text.splitlines():
        kind, *words = line.split("\t")
        match kind:
            case "S":
                serializers[words[0]] = read_snapshot(Reader(bytes.fromhex(words[1])))
            case "A":
                serializers[words[0]] = avro("org.apache.avro.generic.GenericRecord", words[1])
            case "K":
                keys.setdefault(words[0], []).append(words[1:])
            case "R":
                ranges.append(tuple(map(int, words)))
            case "D":
                defaults.append(tuple(map(int, words)))
    return Recorded({name: _gather(serializers[name], rows) for name, rows in keys.items()}, ranges, defaults)


def _gather(serializer: Serializer, rows: list[list[str]]) -> TypedKeys:
    raw = [bytes.fromhex(row[0]) for row in rows]
    codes, limits, groups = (np.array([int(row[place]) for row in rows], np.int32) for place in (1, 2, 3))
    return TypedKeys(serializer, make_records(raw, groups), codes, limits)


def make_records(keys: list[bytes], key_groups: npt.NDArray[np.int32], behind: bytes = b"\0") -> KeyedRecords:
    """Records of keys without values; `behind` follows each key, as a namespace does."""
    ends = np.cumsum([len(key) + len(behind) for key in keys], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    data = np.frombuffer(b"".join(key + behind for key in keys), np.uint8)
    return KeyedRecords(key_groups, data, starts, ends, ends, ends, 0, "keys")


_KEYS = "keygroups.Keys$"
GENERIC = "org.apache.avro.generic.GenericRecord"
EXPRESSIONS = {
    f"{_KEYS}{name}": text
    for name, text in {
        "RecordKey": "record(region, number, flag, id)",
        "WideKey": "record(g, c, a, f, b, e, d)",
        "ObjectsKey": "objects(region, number)",
        "ObjectsAllKey": "objects(region, number, id, flag, ratio, weight)",
        "EclipseKey": "objects(flag, id, number, ratio, region, weight)",
        "IntellijKey": "ide(region, number, id, flag, ratio, weight)",
        "LombokKey": "lombok(number, id, flag, ratio, weight, region)",
        "LombokBoxedKey": "lombok(flag, boxed(sure), region, parts)",
        "KotlinKey": "kotlin(region, number, flag, id)",
        "CommonsKey": "commons(17, 37, region, number, id, flag, ratio, weight)",
        "CommonsOddKey": "commons(11, 47, number, region)",
        "AutoValueKey": "autovalue(region, number, id, flag)",
        "ImmutablesKey": "immutables(region, number, id, flag)",
        "NetbeansKey": "idechain(7, 53, region, number, id, flag)",
        "BlochKey": "chain(17, 31, region, number)",
        "OneFieldKey": "hash(region)",
        "CastKey": "int(id)",
        "SumKey": "hash(region) + hash(number)",
        "XorKey": "hash(region) ^ hash(id) ^ hash(number)",
        "EnumKey": "objects(name(color), number, region)",
        "OuterKey": "lombok(shard, place)",
        "OddKey": "7919 * hash(number) - 31 * ushr(hash(region), 3)",
    }.items()
}
"""What the classes of `keygroups.Keys` compute."""


def expressions_of(name: str, serializer: Serializer) -> dict[str, HashExpression]:
    """The hashes of the user classes in recorded keys of one type."""
    texts = EXPRESSIONS | {
        GENERIC: "avro_classic()" if "classic" in name else "avro()",
        "scala.Tuple4": f"scala{'213' if '2.13' in name else '212'}(f0, f1, f2, f3)",
    }
    names = (class_name(node) for node in walk(serializer))
    return {each: parse_hash_expression(texts[each]) for each in names if each in texts}
