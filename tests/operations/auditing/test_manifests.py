"""Manifests: written with every snapshot, compared by `verify`, removed with the snapshot."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from state_pipelines.cli import main
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.operations.auditing import Depth, Property, Severity, audit_snapshot
from state_pipelines.operations.auditing.file_checks import Listings, audit_manifest
from state_pipelines.operations.auditing.report import Findings
from state_pipelines.operations.convert import convert
from state_pipelines.operations.rescale import parse_request, rescale
from state_pipelines.storage import PathMapping, resolve, resolve_snapshot
from state_pipelines.storage.files import RecordedFile, compute_checksum
from state_pipelines.storage.resolution import MANIFEST_FILE
from state_pipelines.storage.snapshot_writer import Manifest, find_manifest, read_manifest, write_manifest
from tests.operations.auditing.damage import copy_case
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

FLIPS = 24
"""Bytes of each file that are flipped, one at a time, equally far from each other."""

SMALL = Manifest(
    RecordedFile("_metadata", 3, compute_checksum([b"abc"])), (RecordedFile("a", 1),), (RecordedFile("/b", 2),)
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
    manifest = Manifest(SMALL.metadata, (RecordedFile(name, 1, compute_checksum([b"a"])),))
    with pytest.raises(FormatError, match="does not have the fields"):
        read_manifest(write_manifest(manifest), "m")


@pytest.mark.parametrize("size", [float("inf"), -1, 1.5, True, "1", None])
def test_sizes_that_are_none_are_refused(size: object) -> None:
    content = json.loads(write_manifest(SMALL))
    del content["checksum"]
    content["files"]["a"]["size"] = size
    content["checksum"] = compute_checksum([json.dumps(content, sort_keys=True, separators=(",", ":")).encode()])
    with pytest.raises(FormatError, match="does not have the fields"):
        read_manifest(json.dumps(content).encode(), "m")


def test_metadata_without_a_checksum_are_refused() -> None:
    with pytest.raises(FormatError, match="does not have the fields"):
        read_manifest(write_manifest(Manifest(RecordedFile("_metadata", 3), ())), "m")


@pytest.mark.slow
def test_links_out_of_the_snapshot_are_not_followed(tmp_path: Path) -> None:
    target = convert_case(tmp_path, "types-1.20-heap", "canonical")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (target / "probe").symlink_to(secret)
    manifest = find_manifest(resolve(str(target)), PathMapping())
    assert manifest is not None
    probe = RecordedFile("probe", 6, compute_checksum([b"secret"]))
    (target / MANIFEST_FILE).write_bytes(write_manifest(replace(manifest, files=(*manifest.files, probe))))
    errors = [each for each in audit_snapshot(str(target)).findings if each.property is Property.CHECKSUMS]
    assert ["outside the directories" in each.what for each in errors] == [True]

    (target / MANIFEST_FILE).unlink()
    (target / MANIFEST_FILE).symlink_to("/dev/zero")
    errors = [each for each in audit_snapshot(str(target)).findings if each.property is Property.CHECKSUMS]
    assert len(errors) == 1


@pytest.mark.slow
def test_a_manifest_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    target = convert_case(tmp_path, "types-1.20-heap", "canonical")
    os.truncate(target / MANIFEST_FILE, 1 << 40)
    errors = [each for each in audit_snapshot(str(target)).findings if each.property is Property.CHECKSUMS]
    assert ["more than one can have" in each.what for each in errors] == [True]


@pytest.mark.parametrize("wishes", [{"parallelism": 3}, {"max_parallelism": 1024}], ids=str)
@pytest.mark.parametrize("case", ["types-1.20-heap", "types-1.20-rocksdb"])
def test_files_of_rescaled_snapshots_have_checksums(tmp_path: Path, case: str, wishes: dict[str, int]) -> None:
    rescale(copy_case(case, tmp_path).open(), str(tmp_path / "new"), parse_request(wishes))
    manifest = find_manifest(resolve(str(tmp_path / "new")), PathMapping())
    assert manifest is not None
    assert manifest.files
    assert all(each.checksum for each in manifest.files)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["canonical", "rocksdb", "keep"])
def test_files_of_converted_snapshots_have_checksums(tmp_path: Path, to: str) -> None:
    manifest = find_manifest(resolve(str(convert_case(tmp_path, "types-1.20-heap", to))), PathMapping())
    assert manifest is not None
    assert manifest.files
    assert all(each.checksum for each in manifest.files)


def test_later_version() -> None:
    content = json.loads(write_manifest(SMALL))
    del content["checksum"]
    content["version"] = 2
    content["checksum"] = compute_checksum([json.dumps(content, sort_keys=True, separators=(",", ":")).encode()])
    with pytest.raises(UnsupportedError, match="version 2"):
        read_manifest(json.dumps(content).encode(), "m")


@pytest.mark.slow
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
            audit_manifest(resolve_snapshot(str(target)), PathMapping(), Depth.SAMPLE, findings, Listings())
            assert [(each.severity, each.file) for each in findings] == [(Severity.ERROR, str(file))]
        result = run.invoke(main, ["verify", str(target)])
        assert result.exit_code == 1
        assert f"has changed since it was written: its checksum differs from the one in the manifest [file {file}" in (
            result.output
        )
        file.write_bytes(data)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_snapshots_of_flink_have_no_manifest(tmp_path: Path) -> None:
    copy = copy_case("types-1.20-heap", tmp_path)
    assert not audit_snapshot(str(copy.path)).has_manifest
    assert "no manifest" in CliRunner().invoke(main, ["verify", str(copy.path)]).output


def test_a_moved_snapshot_leaves_no_manifest(tmp_path: Path) -> None:
    first = convert_case(tmp_path, "types-1.20-heap", "canonical")
    convert(str(first), str(tmp_path / "second"), "keep", move=True)
    assert not first.exists()
