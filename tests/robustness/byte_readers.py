"""Readers of bytes, with sound bytes of each format from which the damaged ones are made."""

from __future__ import annotations

import io
import json
import pickle
import re
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast
from unittest.mock import patch

from state_pipelines.binary import snappy_frames
from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.java_stream import read_stream
from state_pipelines.codecs.avro import avro_layout, parse_avro_schema, read_avro
from state_pipelines.codecs.java import java_value, read_java_object
from state_pipelines.codecs.json import value_json
from state_pipelines.codecs.kryo import load_classes, read_kryo
from state_pipelines.codecs.pickles import pickle_json, read_pickle
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import StateError
from state_pipelines.javaclasses import open_class_path, parse_class, read_super_classes
from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.metadata.streams import StateStream
from state_pipelines.operations.migration.migration_files import load_migration
from state_pipelines.rocksdb.manifest import read_database
from state_pipelines.serializers.registry import read_snapshot, write_snapshot
from state_pipelines.serializers.text import describe, parse
from state_pipelines.storage.files import RecordedFile
from state_pipelines.storage.resolution import MANIFEST_FILE
from state_pipelines.storage.snapshot_writer import Manifest, read_manifest, write_manifest
from tests.binary.test_javastream import STREAMS
from tests.codecs.test_avro import ORDER, ORDER_BYTES
from tests.codecs.test_kryo import CLASSES, VECTORS, serializer
from tests.javaclasses.test_classfile import ENUM, GENERIC, RECORD
from tests.robustness.mutations import mutate, mutate_text
from tests.rocksdb.databases import frame_log
from tests.rocksdb.test_manifest import ADD_FAMILY, COMPARATOR, NEW_FILE, TABLE
from tests.snapshots import OWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from state_pipelines.codecs.kryo import Version

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ByteReader:
    """A reader and sound input.

    Attributes:
        seeds: sound bytes.
        read: reads bytes; raises `StateError` where they are damaged.
        is_text: the bytes are a text, and most damage to them is to its words and signs.
    """

    seeds: tuple[bytes, ...]
    read: Callable[[bytes], object]
    is_text: bool = False

    def attempt(self, chance: Random) -> None:
        """Read one damaged input."""
        seed, donor = chance.choice(self.seeds), chance.choice(self.seeds)
        if self.is_text and chance.random() < 0.8:
            self.read(mutate_text(seed.decode(), chance, donor.decode()).encode())
        else:
            self.read(mutate(seed, chance, donor))

    def read_sound(self) -> None:
        """Read every seed as it is."""
        for each in self.seeds:
            self.read(each)


def make_metadata_reader() -> ByteReader:
    """`_metadata` of every format."""

    def read(data: bytes) -> None:
        write_metadata(read_metadata(data, "_metadata"))

    return ByteReader(tuple(sorted((case.path / "_metadata").read_bytes() for case in OWN)), read)


def make_serializer_reader() -> ByteReader:
    """Serializer snapshots, their texts and their layouts."""
    found: set[bytes] = set()
    for case in OWN:
        if case.case in ("heap", "rocksdb-heap-timers"):
            for each in case.open().list_keyed_serializers():
                writer = Writer()
                write_snapshot(writer, each)
                found.add(writer.getvalue())

    def read(data: bytes) -> None:
        snapshot = read_snapshot(Reader(data, "snapshot"))
        describe(snapshot)
        derive_layout(snapshot, LayoutContext(5))

    return ByteReader(tuple(sorted(found)), _tolerant(read, sorted(found)))


def make_serializer_text_reader() -> ByteReader:
    """Texts of types, as people write them."""
    seeds = {describe(read_snapshot(Reader(data))).encode() for data in make_serializer_reader().seeds}
    return ByteReader(tuple(sorted(seeds)), lambda data: describe(parse(data.decode(errors="replace"))), True)


def make_java_reader() -> ByteReader:
    """Streams of Java serialization."""
    lines = (ROOT / "tests/codecs/java_vectors.tsv").read_text(encoding="utf-8").splitlines()
    vectors = [bytes.fromhex(line.split("\t")[1]) for line in lines if not line.startswith("#")]
    seeds = (*(each for each in STREAMS if len(each) < 10_000), *vectors)

    def read(data: bytes) -> None:
        read_stream(Reader(data, "stream"))
        value_json(java_value(read_java_object(Reader(data, "stream"))))

    return ByteReader(seeds, _tolerant(read, seeds))


def make_kryo_reader() -> ByteReader:
    """Graphs of Kryo; the first byte says which version and which type."""
    types = sorted({(version, name) for _, version, name, *_ in VECTORS})
    seeds = tuple(bytes((types.index((version, name)),)) + bytes.fromhex(raw) for _, version, name, raw, _ in VECTORS)

    def read(data: bytes) -> None:
        version, name = types[data[0] % len(types) if data else 0]
        value_json(read_kryo(Reader(data[1:], "graph"), serializer(name), cast("Version", int(version)), CLASSES))

    return ByteReader(seeds, read)


def make_avro_reader() -> ByteReader:
    """Records of Avro."""
    schema = parse_avro_schema(json.dumps(ORDER))
    seed = bytes.fromhex(ORDER_BYTES)
    return ByteReader((seed,), lambda data: value_json(read_avro(Reader(data, "record"), schema)))


def make_avro_schema_reader() -> ByteReader:
    """Schemas of Avro."""

    def read(data: bytes) -> None:
        text = data.decode(errors="replace")
        parse_avro_schema(text)
        avro_layout(text)

    return ByteReader((json.dumps(ORDER).encode(), b'{"type":"array","items":["null","string","long"]}'), read, True)


def make_class_file_reader() -> ByteReader:
    """Class files."""

    def read(data: bytes) -> None:
        parse_class(data, "A.class")
        list(read_super_classes(data, "A.class"))

    return ByteReader((GENERIC, ENUM, RECORD), read)


def make_jar_reader() -> ByteReader:
    """Jars, stored and deflated."""
    seeds = []
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", kind) as jar:
            for name, data in (("A", GENERIC), ("E", ENUM), ("R", RECORD)):
                jar.writestr(zipfile.ZipInfo(f"{name}.class"), data, kind)
        seeds.append(target.getvalue())
    file = _make_file("classes.jar")

    def read(data: bytes) -> None:
        file.write_bytes(data)
        classes = open_class_path([str(file)])
        for name in "AER":
            classes.find(name)
        assert classes.direct_subclasses is not None

    return ByteReader(tuple(seeds), read)


def make_field_list_reader() -> ByteReader:
    """YAML files of field lists."""
    paths = ("tests/codecs/kryo_classes.yaml", "examples/upgrade/classes.yaml")
    # A few classes each: PyYAML takes more time for the whole file than for hundreds of attempts of other readers.
    classes = [each for path in paths for each in re.split(r"(?m)^(?=\w)", (ROOT / path).read_text("utf-8"))]
    seeds = tuple("".join(classes[first : first + 4]).encode() for first in range(0, len(classes), 4))
    return ByteReader(seeds, lambda data: load_classes(data.decode(errors="replace")), True)


def make_migration_reader() -> ByteReader:
    """YAML files of migrations."""
    file = _make_file("0001_migration.yaml")

    def read(data: bytes) -> None:
        file.write_bytes(data)
        load_migration(file)

    return ByteReader(
        tuple(path.read_bytes() for path in sorted(ROOT.glob("examples/*/migrations/*.yaml"))), read, True
    )


def make_pickle_reader() -> ByteReader:
    """Pickles of Python values."""
    values: tuple[object, ...] = (
        {"k": "key-21", "v": 1001421},
        [1, 70_000, -1, 2**40, -(2**70), None, True, 1.5],
        ("a", b"bytes", {"x": {1, 2}, "y": [("z",)]}),
    )
    # Before protocol 3 bytes and sets are objects of a class, which are not made.
    seeds = (*(pickle.dumps(value, 4) for value in values), *(pickle.dumps(value, 2) for value in values[:2]))
    return ByteReader(seeds, lambda data: pickle_json(read_pickle(data)))


def make_snappy_reader() -> ByteReader:
    """Framed snappy."""
    sound = (b"", b"abc" * 50, bytes(range(256)) * 300)
    seeds = tuple(snappy_frames.compress(each) for each in sound)
    return ByteReader(seeds, lambda data: snappy_frames.decompress(data, name="chunk"))


def make_manifest_reader() -> ByteReader:
    """Edits of a MANIFEST whose checksums are right."""
    edits = (COMPARATOR, ADD_FAMILY, NEW_FILE, COMPARATOR + NEW_FILE)

    def read(data: bytes) -> None:
        manifest = frame_log(COMPARATOR) + frame_log(data)
        current = StateStream("CURRENT", 16, data=b"MANIFEST-000004\n")
        files = {"CURRENT": current, "MANIFEST-000004": StateStream("MANIFEST", len(manifest), data=manifest)}
        read_database({**files, "000012.sst": TABLE})

    return ByteReader(edits, _tolerant(read, edits))


def make_own_manifest_reader() -> ByteReader:
    """Manifests of this package, with their checksum counted as right."""
    files = tuple(RecordedFile(name, size, "0f" * 16) for name, size in (("a-1", 70), ("b", 1 << 40)))
    seed = write_manifest(Manifest(RecordedFile("_metadata", 900, "1e" * 16), files, (RecordedFile("s3://a/b", 5),)))

    def read(data: bytes) -> None:
        with patch("state_pipelines.storage.snapshot_writer._sign", lambda content: json.loads(data)["checksum"]):
            read_manifest(data, MANIFEST_FILE)

    return ByteReader((seed,), read, True)


def _tolerant(read: Callable[[bytes], object], seeds: Iterable[bytes]) -> Callable[[bytes], object]:
    """The reader, after a check that it reads most of the sound input: some types have no layout or value here."""
    outcomes = [_is_read(read, each) for each in seeds]
    assert sum(outcomes) > len(outcomes) // 2
    return read


def _is_read(read: Callable[[bytes], object], data: bytes) -> bool:
    try:
        read(data)
    except StateError:
        return False
    return True


def _make_file(name: str) -> Path:
    """A file in a directory that goes with this process."""
    directory = tempfile.TemporaryDirectory(prefix="robustness-")
    _DIRECTORIES.append(directory)
    return Path(directory.name, name)


_DIRECTORIES: list[tempfile.TemporaryDirectory[str]] = []

BYTE_READERS: dict[str, Callable[[], ByteReader]] = {
    "metadata": make_metadata_reader,
    "serializer-snapshots": make_serializer_reader,
    "serializer-texts": make_serializer_text_reader,
    "java-serialization": make_java_reader,
    "kryo": make_kryo_reader,
    "avro-records": make_avro_reader,
    "avro-schemas": make_avro_schema_reader,
    "class-files": make_class_file_reader,
    "jars": make_jar_reader,
    "field-lists": make_field_list_reader,
    "migration-files": make_migration_reader,
    "pickles": make_pickle_reader,
    "snappy-frames": make_snappy_reader,
    "rocksdb-manifest": make_manifest_reader,
    "own-manifest": make_own_manifest_reader,
}
"""By name: makes the reader."""
