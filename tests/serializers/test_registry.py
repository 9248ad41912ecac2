from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError, UnknownSerializerError, UsageError
from state_pipelines.serializers.build import basic, list_of
from state_pipelines.serializers.registry import (
    MAX_DEPTH,
    read_nested,
    read_snapshot,
    register,
    write_nested,
    write_snapshot,
)
from state_pipelines.serializers.snapshot_classes import write_head
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import Basic, BasicKind, Serializer
from tests.serializers.literals import BASE, LONG, LONG_CLASS, STRING, UNKNOWN_CLASS, composite, outer, versioned

if TYPE_CHECKING:
    from state_pipelines.serializers.snapshot_classes import Head


@dataclass(frozen=True, kw_only=True)
class Temperature(Serializer):
    unit: str


def write_temperature(writer: Writer, node: Temperature) -> None:
    writer.utf(node.unit)


@register("com.acme.TemperatureSerializerSnapshot", write=write_temperature)
def read_temperature(reader: Reader, head: Head) -> Temperature:
    head.expect(1)
    return Temperature(**head.marks, unit=reader.utf())


CUSTOM = outer("com.acme.TemperatureSerializerSnapshot", 1, b"\0\1C")


def test_outer_form_is_read() -> None:
    snapshot = outer(LONG_CLASS, 3)
    assert snapshot[:6].hex() == "000000020050"
    assert read_snapshot(Reader(snapshot)) == basic("Long")


def test_outer_form_is_written() -> None:
    writer = Writer()
    write_snapshot(writer, basic("Long"))
    assert writer.getvalue() == outer(LONG_CLASS, 3)


def test_nested_form_round_trip() -> None:
    writer = Writer()
    write_nested(writer, read_nested(Reader(STRING)))
    assert writer.getvalue() == STRING


def test_a_registered_family_is_read() -> None:
    assert read_snapshot(Reader(CUSTOM)) == Temperature(
        snapshot_class="com.acme.TemperatureSerializerSnapshot", snapshot_version=1, unit="C"
    )


def test_a_registered_family_is_written() -> None:
    writer = Writer()
    write_snapshot(writer, read_snapshot(Reader(CUSTOM)))
    assert writer.getvalue() == CUSTOM


def test_a_registered_family_nests() -> None:
    snapshot = outer(f"{BASE}ListSerializerSnapshot", 3, composite(1, b"", CUSTOM[4:]))
    assert describe(read_snapshot(Reader(snapshot))) == "List<Temperature>"


def test_a_class_has_one_family() -> None:
    with pytest.raises(UsageError, match="registered already"):
        register(LONG_CLASS, write=write_temperature)(read_temperature)


def test_an_unknown_class_is_named_with_its_place_and_a_way_out() -> None:
    with pytest.raises(UnknownSerializerError) as caught:
        read_snapshot(Reader(outer(UNKNOWN_CLASS, 1), "s3://bucket/file"))
    text = str(caught.value)
    assert UNKNOWN_CLASS in text
    assert "file s3://bucket/file, offset 4" in text
    assert "registry.register" in text


def test_a_class_unknown_to_the_writer_is_named() -> None:
    with pytest.raises(UnknownSerializerError, match=r"com\.acme\.Nowhere"):
        write_snapshot(Writer(), Basic(snapshot_class="com.acme.Nowhere", kind=BasicKind.LONG))


def test_nesting_is_bounded() -> None:
    snapshot = LONG
    for _ in range(MAX_DEPTH):
        snapshot = versioned(f"{BASE}ListSerializerSnapshot", 3, composite(1, b"", snapshot))
    with pytest.raises(FormatError, match=f"deeper than {MAX_DEPTH}"):
        read_nested(Reader(snapshot))


def test_the_bound_counts_depth_not_breadth() -> None:
    for _ in range(MAX_DEPTH + 1):
        assert read_nested(Reader(LONG)) == basic("Long")


def test_another_number_of_nested_serializers_is_refused() -> None:
    snapshot = versioned(f"{BASE}ListSerializerSnapshot", 3, composite(1, b"", LONG, LONG))
    with pytest.raises(FormatError, match="1 nested serializers expected, 2 found"):
        read_nested(Reader(snapshot))


def test_a_truncated_snapshot_is_a_format_error() -> None:
    writer = Writer()
    write_snapshot(writer, list_of(basic("Long")))
    whole = writer.getvalue()
    for size in range(len(whole)):
        with pytest.raises(FormatError):
            read_snapshot(Reader(whole[:size]))


def install_plugin(directory: Path, entry_point: str, module: str) -> str:
    """Lay an installed package with an entry point into a directory; returns the PYTHONPATH that sees it."""
    info = directory / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[state_pipelines.serializers]\n{entry_point}\n")
    (directory / "acme_serializers.py").write_text(module)
    return os.pathsep.join([str(directory), str(Path(__file__).parents[2])])


def read_in_new_process(path: str) -> subprocess.CompletedProcess[str]:
    program = (
        "from state_pipelines.binary.data_views import Reader\n"
        "from state_pipelines.serializers.registry import read_snapshot\n"
        "from state_pipelines.serializers.text import describe\n"
        f"print(describe(read_snapshot(Reader({outer(UNKNOWN_CLASS, 3)!r}))))\n"
    )
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


PLUGIN = f"""
from state_pipelines.serializers.registry import register
from state_pipelines.serializers.tree import Basic

@register({UNKNOWN_CLASS!r}, write=lambda writer, node: None)
def read_money(reader, head):
    return Basic(**head.marks, kind="Money")
"""


@pytest.mark.slow
def test_entry_points_are_loaded_when_a_class_is_unknown(tmp_path: Path) -> None:
    done = read_in_new_process(install_plugin(tmp_path, "acme = acme_serializers", PLUGIN))
    assert (done.stdout, done.returncode) == ("Money\n", 0), done.stderr


@pytest.mark.slow
def test_a_broken_entry_point_is_named(tmp_path: Path) -> None:
    done = read_in_new_process(install_plugin(tmp_path, "acme = acme_missing", PLUGIN))
    assert "UsageError: the serializer plug-in acme (acme_missing) cannot be loaded" in done.stderr


@pytest.mark.parametrize("wrong", [None, "text", 5])
def test_a_reader_that_returns_no_node_is_named(wrong: Any) -> None:
    name = f"com.acme.Wrong{type(wrong).__name__}"
    register(name, write=lambda writer, node: None)(lambda reader, head: wrong)
    writer = Writer()
    write_head(writer, name, 2)
    with pytest.raises(UsageError, match=rf"the reader of version 2 of {name} returned \w+, which is no node"):
        read_nested(Reader(writer.getvalue()))
