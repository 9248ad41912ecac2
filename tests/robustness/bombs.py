"""Small input that stands for far more than it is: unpacked, nested, shared many times, or told to be long.

    python -m tests.robustness.bombs

Each is read within the seconds and the memory of the contract, or refused.
"""

from __future__ import annotations

import io
import pickle
import resource
import sys
import time
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cramjam
import numpy as np

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.java_stream import JavaArray, JavaClassData, JavaClassDesc, JavaObject, write_stream
from state_pipelines.binary.snappy_frames import STREAM_ID
from state_pipelines.codecs.binary_rows import write_array
from state_pipelines.codecs.json import dumps, to_json, value_json
from state_pipelines.codecs.kryo import read_kryo_span
from state_pipelines.codecs.pickles import Pickled
from state_pipelines.codecs.programs import compile_layout, decode_spans
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import StateError
from state_pipelines.metadata import read_metadata
from state_pipelines.serializers.build import array_list_of, avro, basic, list_of
from state_pipelines.serializers.text import parse
from state_pipelines.serializers.tree import ArrayData, Decimal, Kryo, LogicalType
from tests.codecs import kryo_graphs
from tests.javaclasses.test_classfile import GENERIC
from tests.robustness.__main__ import write
from tests.robustness.guarded_runs import MOST_BYTES, MOST_SECONDS
from tests.robustness.readers import make_reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.serializers.tree import Serializer

LEVELS = 20_000
DOUBLINGS = 40
"""Each level holds the one below twice: more than 10^12 values in all."""

ENTRIES = 100_000
BIG = 100_000


def double_yaml(anchor: str = "a") -> bytes:
    """Aliases of which each stands for two of the one before."""
    lines = [f"{anchor}0: &{anchor}0 [x, x]"]
    lines += [f"{anchor}{n}: &{anchor}{n} [*{anchor}{n - 1}, *{anchor}{n - 1}]" for n in range(1, DOUBLINGS)]
    return "\n".join(lines).encode()


def double_pickle() -> bytes:
    """A list of two times the list of two times …"""
    value: list[object] = []
    for _ in range(DOUBLINGS):
        value = [value, value]
    return pickle.dumps(value, 4)


def double_java() -> bytes:
    """An array of two times the array of two times …; the second one is a reference to the first."""
    description = b"\x72" + b"\x00\x13[Ljava.lang.Object;" + bytes(8) + b"\x02\x00\x00\x78\x70"
    content = b"\x70\x70"
    for level in range(DOUBLINGS, 0, -1):
        head = b"\x75" + (description if level == 1 else b"\x71\x00\x7e\x00\x00") + b"\x00\x00\x00\x02"
        inner = b"" if level == DOUBLINGS else b"\x71" + (0x7E0000 + level + 1).to_bytes(4, "big")
        content = head + content + inner
    return b"\xac\xed\x00\x05" + content


def cycle_pickle() -> bytes:
    """A list that holds itself."""
    value: list[object] = []
    value.append(value)
    return pickle.dumps(value, 4)


def cycle_java() -> bytes:
    """An array that holds itself."""
    description = b"\x72" + b"\x00\x13[Ljava.lang.Object;" + bytes(8) + b"\x02\x00\x00\x78\x70"
    return b"\xac\xed\x00\x05" + b"\x75" + description + b"\x00\x00\x00\x01" + b"\x71\x00\x7e\x00\x01"


def jar(fill: Callable[[zipfile.ZipFile], None]) -> bytes:
    """A deflated jar."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as opened:
        fill(opened)
    return target.getvalue()


def jar_of_zeros() -> bytes:
    """A jar of one class of 512 MiB, which is 0.5 MB when it is packed."""

    def fill(opened: zipfile.ZipFile) -> None:
        with opened.open("A.class", "w", force_zip64=True) as file:
            for _ in range(512):
                file.write(bytes(1 << 20))

    return jar(fill)


def jar_of_many() -> bytes:
    """A jar of very many classes."""

    def fill(opened: zipfile.ZipFile) -> None:
        for number in range(ENTRIES):
            opened.writestr(f"C{number}.class", b"")

    return jar(fill)


def lie_in_jar() -> bytes:
    """A jar whose directory says that a class has 4 GiB."""
    data = bytearray(jar(lambda opened: opened.writestr("A.class", GENERIC)))
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = b"\xff\xff\xff\xfe"
    return bytes(data)


def lie_in_snappy(length: bytes) -> bytes:
    """A frame whose block says that it unpacks to a length."""
    block = length + bytes(cramjam.snappy.compress_raw(bytes(100)))[1:]
    return STREAM_ID + b"\x00" + (len(block) + 4).to_bytes(3, "little") + bytes(4) + block


def nest_thrift() -> bytes:
    """A list of lists of lists …"""
    return b"struct A { 1: " + b"list<" * LEVELS + b"i32" + b">" * LEVELS + b" a }"


def count_metadata() -> bytes:
    """Counts at the end of their type after the head of `_metadata`."""
    return bytes.fromhex("4960672d 00000006") + b"\x7f\xff\xff\xff" * 64


def share_in_pickle(value: object) -> bytes:
    """A list that holds a value many times."""
    return pickle.dumps([value] * LEVELS, 5)


def share_in_java() -> bytes:
    """An array that holds a byte[] many times."""
    array = JavaArray(JavaClassDesc("[B", 1, 2), bytes(BIG))
    return write_stream(JavaArray(JavaClassDesc("[Ljava.lang.Object;", 1, 2), (array,) * LEVELS))


def chain_java() -> bytes:
    """An array of arrays, of which each refers to the one before."""
    objects, last = JavaClassDesc("[Ljava.lang.Object;", 1, 2), None
    chained = tuple(last := JavaArray(objects, (last,)) for _ in range(LEVELS))
    return write_stream(JavaArray(objects, chained))


def name_java() -> bytes:
    """Objects whose class has a long name."""
    desc = JavaClassDesc("a" * 60_000, 1, 2)
    many = tuple(JavaObject(desc, (JavaClassData(),)) for _ in range(LEVELS))
    return write_stream(JavaArray(JavaClassDesc("[Ljava.lang.Object;", 1, 2), many))


def equal_hashes() -> bytes:
    """A pickled dict whose keys have the same hash."""
    keys = (number * (2**61 - 1) for number in range(1, 2 * LEVELS))
    raw = (key.to_bytes((key.bit_length() + 8) // 8, "little") for key in keys)
    return b"\x80\x04}(" + b"".join(b"\x8a" + bytes((len(each),)) + each + b"N" for each in raw) + b"u."


def overlap(size: int, inner: bytes) -> bytes:
    """A binary array whose elements are all the same bytes."""
    head = size.to_bytes(4, "little") + bytes((size + 31) // 32 * 4)
    slot = len(inner).to_bytes(4, "little") + (len(head) + 8 * size).to_bytes(4, "little")
    return head + slot * size + inner


def sized(data: bytes) -> bytes:
    """Bytes after their length."""
    return len(data).to_bytes(4, "big") + data


def repeat_records(number: int, read: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """A reader of a record that occurs so often."""
    return lambda data: [read(data) for _ in range(number)] and None


def show(value: object) -> int:
    """The length of the line that `dump` prints of a value."""
    return len(dumps({"value": value_json(value)}))


def show_kryo(data: bytes) -> int:
    """Read a graph of Kryo 5 and show it."""
    return show(read_kryo_span(Reader(data), Kryo(type_class="java.lang.Object"), 5))


def show_pickle(data: bytes) -> int:
    """Read a pickle and show it."""
    return show(Pickled(data))


def read_both(serializer: Serializer, sound: bytes, number: int = 1) -> Callable[[bytes], object]:
    """A reader of values of a serializer, which reads columns as well."""
    layout = derive_layout(serializer, LayoutContext())
    program = compile_layout(layout)

    def read(data: bytes) -> None:
        ends = len(data) * np.arange(1, number + 1, dtype=np.int64)
        try:
            decode_spans(program, np.frombuffer(data * number, np.uint8), ends - len(data), ends)
        finally:
            for _ in range(number):
                dumps({"value": to_json(serializer, read_value(layout, Reader(data)))})

    read(sound)
    return read


def array_of(*roots: str) -> ArrayData:
    """The serializer of nested arrays."""
    of = LogicalType(root=roots[-1], length=100)
    for root in reversed(roots[:-1]):
        of = LogicalType(root=root, children=(of,))
    return ArrayData(snapshot_class="A", snapshot_version=3, element_type=of)


def avro_of(items: str) -> Serializer:
    """The serializer of a record with an array."""
    fields = f'[{{"name":"a","type":{{"type":"array","items":{items}}}}}]'
    return avro("org.apache.avro.generic.GenericRecord", f'{{"type":"record","name":"R","fields":{fields}}}')


NUMBER = (4 + 4_096).to_bytes(4, "big") + b"\x7f" * 4_096
VALUES: dict[str, Callable[[], Callable[[bytes], object]]] = {
    "kryo-objects": lambda: show_kryo,
    "kryo-records": lambda: repeat_records(2_000, show_kryo),
    "pickled-values": lambda: show_pickle,
    "pickled-records": lambda: repeat_records(500, show_pickle),
    "sql-texts": lambda: read_both(
        array_of("VARCHAR"), sized(write_array(["a longer text"], LogicalType(root="VARCHAR")))
    ),
    "sql-arrays": lambda: read_both(array_of("ARRAY", "ARRAY", "BIGINT"), sized(bytes(8))),
    "avro-arrays": lambda: read_both(avro_of('{"type":"array","items":"null"}'), b"\x00"),
    "lists-of-nothing": lambda: read_both(list_of(array_list_of(basic("NullValue"))), bytes(4)),
    "numbers": lambda: read_both(basic("BigInt"), bytes(4)),
    "many-numbers": lambda: read_both(basic("BigInt"), NUMBER, 500),
    "decimals": lambda: read_both(Decimal(snapshot_class="D", snapshot_version=3, precision=38, scale=3), sized(b"\1")),
}
"""Readers of values, with what makes their lines and columns, by name."""

VALUE_BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "Kryo: shared lists, 2,000 records": ("kryo-records", lambda: kryo_graphs.double(18)),
    "Kryo: nulls, 2,000 records": ("kryo-records", lambda: kryo_graphs.nulls(900_000)),
    "Kryo: shared bytes": ("kryo-objects", lambda: kryo_graphs.repeat(kryo_graphs.byte_array(bytes(BIG)), LEVELS)),
    "Kryo: shared bits": ("kryo-objects", lambda: kryo_graphs.repeat(kryo_graphs.bit_set(b"\xff" * BIG), LEVELS)),
    "Kryo: references to references": ("kryo-objects", lambda: kryo_graphs.chain(LEVELS)),
    "Java serialization: shared bytes": ("java-serialization", share_in_java),
    "Java serialization: references to references": ("java-serialization", chain_java),
    "Java serialization: a long name": ("java-serialization", name_java),
    "pickle: shared bytes": ("pickled-values", lambda: share_in_pickle(bytes(BIG))),
    "pickle: shared text": ("pickled-values", lambda: share_in_pickle("a" * BIG)),
    "pickle: keys of equal hash": ("pickled-values", equal_hashes),
    "pickle: shared tuples, 500 records": ("pickled-records", double_pickle),
    "SQL: texts that overlap": ("sql-texts", lambda: sized(overlap(LEVELS, b"x" * 2 * BIG))),
    "SQL: arrays that overlap": ("sql-arrays", lambda: sized(overlap(500, overlap(500, overlap(500, bytes(4)))))),
    "Avro: arrays of empty items": ("avro-arrays", lambda: b"\xb8\x17" + b"\xe8\xfb\x03\x00" * 3_000 + b"\x00"),
    "lists of lists of nothing": ("lists-of-nothing", lambda: b"\0\0\x10\0" + b"\0\0\x10\0" * 4_096),
    "BigInteger: 1 MB": ("numbers", lambda: sized(bytes((0x7F,)) * 1_000_000)),
    "BigInteger: 500 of 4 KiB": ("many-numbers", lambda: NUMBER),
    "DECIMAL: 1 MB": ("decimals", lambda: sized(bytes((0x7F,)) * 1_000_000)),
}
"""Bombs of `VALUES`, and further ones of values."""

TEXTS = {"YAML of field lists": "field-lists", "YAML of migrations": "migration-files", "YAML of jobs": "job-files"}
TEXTS |= {"requests": "requests", "bootstraps": "bootstrap-files", "configuration of Flink": "flink-configs"}

BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    **{f"{each}: aliases": (name, double_yaml) for each, name in TEXTS.items()},
    **{f"{each}: nested": (name, lambda: b"a: " + b"[" * LEVELS + b"]" * LEVELS) for each, name in TEXTS.items()},
    **{f"{each}: an alias of itself": (name, lambda: b"a: &a [*a]\nb: *a\n") for each, name in TEXTS.items()},
    "type of a serializer: nested": ("serializer-texts", lambda: b"List<" * LEVELS + b"Int" + b">" * LEVELS),
    "type of PyFlink: nested": ("python-types", lambda: b"ARRAY<" * LEVELS + b"INT" + b">" * LEVELS),
    "schema of Avro: nested": (
        "avro-schemas",
        lambda: b'{"type":"array","items":' * LEVELS + b'"int"' + b"}" * LEVELS,
    ),
    "Thrift file: nested": (
        "thrift-files",
        lambda: b"struct A { 1: " + b"list<" * LEVELS + b"i32" + b">" * LEVELS + b" a }",
    ),
    "Thrift: nested": ("thrift", lambda: b"\x0c\x00\x63" * LEVELS),
    "Protobuf: groups nested": ("protobuf", lambda: b"\x9b\x06" * LEVELS),
    "pickle: nested": ("pickles", lambda: b"\x80\x04" + b"]" * LEVELS + b"a" * (LEVELS - 1) + b"."),
    "pickle: shared": ("pickles", double_pickle),
    "pickle: itself": ("pickles", cycle_pickle),
    "pickle: a number of a gigabyte": ("pickles", lambda: b"\x80\x04\x8b\xff\xff\xff\x3f\x01."),
    "Java serialization: shared": ("java-serialization", double_java),
    "Java serialization: itself": ("java-serialization", cycle_java),
    "jar: a class of 512 MiB": ("jars", jar_of_zeros),
    "jar: 100,000 classes": ("jars", jar_of_many),
    "jar: a size that is not true": ("jars", lie_in_jar),
    "snappy: a block of 4 GiB": ("snappy-frames", lambda: lie_in_snappy(b"\xff\xff\xff\xff\x0f")),
    "snappy: a length without end": ("snappy-frames", lambda: lie_in_snappy(b"\xff" * 40)),
    "snappy: many empty frames": ("snappy-frames", lambda: STREAM_ID * ENTRIES),
    "_metadata: counts": ("metadata", count_metadata),
    "MANIFEST: a length of 4 GiB": ("rocksdb-manifest", lambda: b"\x64\x00\x00\x00\x06\xff\xff\xff\xff\x0f"),
    "Kryo: a text of 2 GiB": ("kryo", lambda: b"\x00" + b"\xff\xff\xff\xff\x0f" * 4),
    **VALUE_BOMBS,
}
"""By name: the reader (of `READERS` or `VALUES`), and what makes the bomb."""


@cache
def _make_value_reader(name: str) -> Callable[[bytes], object]:
    return VALUES[name]()


def find_reader(name: str) -> Callable[[bytes], object]:
    """The reader of a name; for two of them without the sound input, which takes longer than all bombs."""
    if name == "metadata":
        return lambda data: read_metadata(data, "_metadata")
    if name == "serializer-texts":
        return lambda data: parse(data.decode())
    if name in VALUES:
        return _make_value_reader(name)
    reader: Any = make_reader(name)
    read: Callable[[bytes], object] = reader.read
    return read


def light(name: str) -> tuple[str, float]:
    """Read a bomb; returns how it ended, and how many seconds of this process it took."""
    reader, make = BOMBS[name]
    data, read = make(), find_reader(reader)
    started = time.process_time()
    try:
        read(data)
        ended = "read"
    except StateError as error:
        ended = f"refused: {str(error)[:100]}"
    except Exception as error:  # noqa: BLE001 - any other error is what is looked for
        ended = f"{type(error).__name__}: {str(error)[:100]}"
    return ended, time.process_time() - started


def main() -> int:
    """Read all bombs, and print how they ended; returns 1 where one was not read or refused in time and memory."""
    for reader in sorted({reader for reader, _ in BOMBS.values()}):
        find_reader(reader)
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES, size + MOST_BYTES))
    found = False
    for name in BOMBS:
        ended, seconds = light(name)
        wrong = not ended.startswith(("read", "refused")) or seconds > MOST_SECONDS
        found |= wrong
        write(f"{name:45} {'FOUND ' if wrong else ''}{ended}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
