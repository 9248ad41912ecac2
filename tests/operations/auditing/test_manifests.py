"""Manifests: written with every snapshot, compared by `verify`, removed with the snapshot."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from state_pipelines.cli import main
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.operations.auditing import Depth, Property, Severity, audit_snapshot
from state_pipelines.operations.auditing.manifest_checks import audit_manifest
from state_pipelines.operations.auditing.report import Findings
from state_pipelines.operations.convert.conversion import convert
from state_pipelines.storage import resolve_snapshot
from state_pipelines.storage.manifest import Manifest, read_manifest, write_manifest
from state_pipelines.storage.written_files import WrittenFile, compute_checksum
from state_pipelines.storage.written_names import MANIFEST_FILE
from tests.operations.auditing.damage import copy_case
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

FLIPS = 24
"""Bytes of each file that are flipped, one at a time, equally far from each other."""

SMALL = Manifest(
    WrittenFile("_metadata", 3, compute_checksum([b"abc"])), (WrittenFile("a", 1),), (WrittenFile("/b", 2),)
)


def convert_case(tmp_path: Path, name: str, to: str, **options: str) -> Path:
    target = tmp_path / "new"
    convert(copy_case(name, tmp_path).open(), str(target), to, **options)  # type: ignore[arg-type]
    return target


def test_literal_checksum() -> None:
    assert compute_checksum([b"ab", b"c"]) == "06b05ab6733a618578af5f94892f3950"


def test_round_trip() -> None:
    assert read_manifest(write_manifest(SMALL), "m") == SMALL


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b"1", b'{"checksum": 1, "version": 1}', b"\xff", b"[" * 100_000])
def test_damaged_manifests(damage: bytes) -> None:
    with pytest.raises(FormatError, match="manifest is damaged"):
        read_manifest(damage, "m")


def test_every_flip_of_a_manifest_is_refused_or_changes_nothing() -> None:
    data = write_manifest(SMALL)
    for index in range(len(data)):
        changed = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
        try:
            assert read_manifest(changed, "m") == SMALL
        except FormatError:
            continue


@pytest.mark.parametrize("name", ["../other", "/etc/hostname", "a/b", "..", ".", "", "s3:x", "a?b"])
def test_names_that_lead_out_of_the_directory_are_refused(name: str) -> None:
    manifest = Manifest(SMALL.metadata, (WrittenFile(name, 1, compute_checksum([b"a"])),))
    with pytest.raises(FormatError, match="does not have the fields"):
        read_manifest(write_manifest(manifest), "m")


def test_later_version() -> None:
    content = json.loads(write_manifest(SMALL))
    del content["checksum"]
    content["version"] = 2
    content["checksum"] = compute_checksum([json.dumps(content, sort_keys=True, separators=(",", ":")).encode()])
    with pytest.raises(UnsupportedError, match="version 2"):
        read_manifest(json.dumps(content).encode(), "m")


@pytest.mark.parametrize("to", ["canonical", "heap"])
def test_flipped_bytes_of_files_that_we_wrote(tmp_path: Path, to: str) -> None:
    target = tmp_path / "new"
    convert(orders().open(), str(target), to)
    run = CliRunner()
    result = run.invoke(main, ["verify", str(target)])
    assert result.exit_code == 0, result.output
    files = [each for each in target.iterdir() if not each.name.startswith("_")]
    assert files
    for file in files:
        data = file.read_bytes()
        for index in range(0, len(data), max(1, len(data) // FLIPS)):
            file.write_bytes(data[:index] + bytes([data[index] ^ 0x40]) + data[index + 1 :])
            findings = Findings()
            audit_manifest(resolve_snapshot(str(target)), Depth.SAMPLE, findings)
            assert [(each.severity, each.file) for each in findings] == [(Severity.ERROR, str(file))]
        result = run.invoke(main, ["verify", str(target)])
        assert result.exit_code == 1
        assert f"has changed since it was written: its checksum differs from the one in the manifest [file {file}" in (
            result.output
        )
        file.write_bytes(data)


def test_changed_metadata_are_seen_without_reading_files(tmp_path: Path) -> None:
    target = convert_case(tmp_path, "types-1.20-heap", "canonical")
    other = tmp_path / "other"
    convert(str(target), str(other), "keep")
    shutil.copy(other / "_metadata", target / "_metadata")
    errors = [each for each in audit_snapshot(str(target), "files").findings if each.property is Property.CHECKSUMS]
    assert [(each.severity, each.file) for each in errors] == [(Severity.ERROR, str(target / "_metadata"))]


def test_every_own_file_has_size_and_checksum(tmp_path: Path) -> None:
    target = convert_case(tmp_path, "types-1.20-heap", "canonical")
    manifest = json.loads((target / MANIFEST_FILE).read_bytes())
    for file in target.iterdir():
        if file.name != MANIFEST_FILE:
            data = file.read_bytes()
            expected = {"size": len(data), "checksum": compute_checksum([data])}
            assert (manifest["metadata"] if file.name == "_metadata" else manifest["files"][file.name]) == expected


def test_linked_files_have_no_checksum(tmp_path: Path) -> None:
    target = convert_case(tmp_path, "types-1.20-heap", "keep", files="link")
    manifest = json.loads((target / MANIFEST_FILE).read_bytes())
    assert all(list(each) == ["size"] for each in manifest["files"].values())
    assert audit_snapshot(str(target)).totals.unchecked == len(manifest["files"]) > 0


def test_referenced_files_are_named_with_their_size(tmp_path: Path) -> None:
    target = convert_case(tmp_path, "types-1.20-heap", "keep", files="reference")
    manifest = json.loads((target / MANIFEST_FILE).read_bytes())
    assert manifest["files"] == {}
    assert [list(each) for each in manifest["referenced"].values()] == [["size"]] * len(manifest["referenced"])
    assert manifest["referenced"]


def test_snapshots_of_flink_have_no_manifest(tmp_path: Path) -> None:
    copy = copy_case("types-1.20-heap", tmp_path)
    assert not audit_snapshot(str(copy.path)).has_manifest
    assert "no manifest" in CliRunner().invoke(main, ["verify", str(copy.path)]).output


def test_a_moved_snapshot_leaves_no_manifest(tmp_path: Path) -> None:
    first = convert_case(tmp_path, "types-1.20-heap", "canonical")
    convert(str(first), str(tmp_path / "second"), "keep", move=True)
    assert not first.exists()
