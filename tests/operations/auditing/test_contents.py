"""Audits that read files: damage inside files of the right size."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UnsupportedError, Where
from state_pipelines.metadata.streams import StreamRole
from state_pipelines.operations.auditing import Depth, Property, Severity, audit_snapshot
from state_pipelines.operations.auditing.report import Findings, from_error
from tests.operations.auditing.damage import Copy, copy_case
from tests.operations.auditing.test_files import change_keyed, errors
from tests.snapshots import CASES, MADE, OWN, UNKNOWN, Case

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.metadata.streams import StreamReference

SOUND = [case for case in OWN if case.version.startswith("2.2")] + [each for each in MADE if "2.2.1-main" in str(each)]


def flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 0xFF
    file.write_bytes(data)


def is_table(reference: StreamReference) -> bool:
    return str(reference.local_path).endswith(".sst")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "depth"), [*((case, "whole") for case in SOUND), *((case, "sample") for case in SOUND[::3])], ids=str
)
def test_sound_snapshots_have_no_errors(case: Case, depth: str) -> None:
    report = audit_snapshot(case.open_told(), depth)
    assert [str(each) for each in report.findings if each.severity is not Severity.NOTE] == []


@pytest.mark.slow
def test_the_whole_of_a_snapshot_is_read() -> None:
    (case,) = (each for each in CASES if str(each) == "types-2.2-rocksdb-native")
    sample, whole = (audit_snapshot(case.open(), depth) for depth in ("sample", "whole"))
    assert whole.totals.tables == sample.totals.tables > 0
    assert whole.totals.records > sample.totals.records > 0
    assert whole.totals.records >= sum(each["kind"] in ("keyed", "timer") for each in case.entries())


@pytest.mark.parametrize("case", UNKNOWN, ids=str)
def test_values_without_a_reader_are_noted_and_not_damage(case: Case) -> None:
    report = audit_snapshot(case.open(), "whole")
    assert report.restorable
    assert {each.severity for each in report.findings} <= {Severity.NOTE, Severity.UNDETERMINED}
    assert {each.operator for each in report.findings} == {"purses"}


@pytest.fixture
def database(tmp_path: Path) -> Copy:
    return copy_case("types-2.2-rocksdb-native", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("depth", ["sample", "whole"])
def test_a_flipped_byte_in_a_table_is_found(database: Copy, depth: str) -> None:
    file = database.files(is_table)[0]
    flip(file, 10)
    report = database.audit(depth)
    (error,) = (each for each in errors(report) if each.property is Property.TABLES)
    assert (error.file, error.offset, report.verdict) == (str(file), 0, "damaged")


@pytest.mark.slow
def test_every_byte_of_the_blocks_of_a_table_matters(database: Copy) -> None:
    """One byte in each 192 of a table, the properties and padding of the footer excepted."""
    file = database.files(is_table)[-1]
    plain = file.read_bytes()
    missed = []
    for offset in range(0, len(plain), 192):
        flip(file, offset)
        if database.audit("whole").restorable:
            missed.append(offset)
        file.write_bytes(plain)
    assert missed == []


@pytest.mark.slow
def test_tables_of_one_size_that_changed_names_are_found(database: Copy) -> None:
    by_size: dict[int, list[Path]] = {}
    for file in database.files(is_table):
        by_size.setdefault(file.stat().st_size, []).append(file)
    one, other = next(
        (one, other)
        for files in by_size.values()
        for one in files
        for other in files
        if one < other and one.read_bytes() != other.read_bytes()
    )
    aside = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(aside)
    assert {str(one), str(other)} & {each.file for each in errors(database.audit("whole"))}


def test_a_damaged_manifest_is_found(database: Copy) -> None:
    file = database.files(lambda each: str(each.local_path).startswith("MANIFEST"))[0]
    flip(file, 20)
    assert [each.file for each in errors(database.audit("sample"))] == [str(file)]


@pytest.fixture
def heap(tmp_path: Path) -> Copy:
    return copy_case("types-2.2-heap-native", tmp_path)


@pytest.fixture
def canonical(tmp_path: Path) -> Copy:
    return copy_case("types-2.2-heap", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["types-2.2-heap", "types-2.2-heap-native"])
@pytest.mark.parametrize("depth", ["sample", "whole"])
def test_a_wrong_offset_of_a_key_group_is_found(tmp_path: Path, name: str, depth: str) -> None:
    copy = copy_case(name, tmp_path)

    def shift(handle: object) -> object:
        offsets = list(handle.offsets)  # type: ignore[attr-defined]
        present = [index for index, offset in enumerate(offsets) if offset > 0]
        offsets[present[1]] += 3
        return replace(handle, offsets=tuple(offsets))  # type: ignore[type-var]

    copy.edit(change_keyed(shift))
    found = errors(copy.audit(depth))
    assert found
    assert len({(each.file, each.operator) for each in found}) == 1
    assert all(each.offset is not None for each in found)


@pytest.mark.slow
def test_damage_in_one_file_does_not_hide_damage_in_another(canonical: Copy) -> None:
    files = canonical.files(lambda each: each.category.name == "MANAGED_KEYED")[:3]
    for file in files:
        flip(file, file.stat().st_size - 1)
    found = {each.file for each in errors(canonical.audit("whole"))}
    assert found == {str(file) for file in files}


def test_a_damaged_file_of_changes_is_found(tmp_path: Path) -> None:
    copy = copy_case("types-2.2-changelog-heap-files", tmp_path)
    file = copy.files(lambda each: each.role is StreamRole.CHANGES)[0]
    data = bytearray(file.read_bytes())
    data[1:5] = b"\x7f" * 4
    file.write_bytes(data)
    for depth in ("sample", "whole"):
        assert str(file) in {each.file for each in errors(copy.audit(depth))}


@pytest.mark.slow
def test_missing_files_are_reported_once_at_every_depth(database: Copy) -> None:
    file = database.files(is_table)[0]
    file.unlink()
    for depth in Depth:
        named = [each for each in errors(database.audit(depth)) if each.file == str(file)]
        assert [each.property for each in named] == [Property.FILES]


@pytest.mark.slow
def test_a_truncated_table_is_found_at_every_depth(database: Copy) -> None:
    file = database.files(is_table)[0]
    file.write_bytes(file.read_bytes()[:-1])
    for depth in Depth:
        assert str(file) in {each.file for each in errors(database.audit(depth))}


def test_what_cannot_be_judged_is_one_finding_per_cause() -> None:
    findings = Findings()
    for number in range(3):
        error = UnsupportedError("class Vip is unknown", where=Where(file=f"f{number}", offset=number, path="a[0]"))
        for state in ("one", "other"):
            findings.add(from_error(error, Property.RECORDS, operator="op", subtask=number, state=state))
    assert [(each.state, each.count, each.file, each.path) for each in findings] == [
        ("one", 3, "f0", "a[0]"),
        ("other", 3, "f0", "a[0]"),
    ]
    assert findings.counts == {(Severity.UNDETERMINED, Property.RECORDS): 2}
    assert "(3 times; the first one follows)" in str(next(iter(findings)))
