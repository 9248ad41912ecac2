"""The tables of `docs/formats.md` say what the tests prove, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conformance.test_flink_snapshots import BROADCAST, ROOT, UDF
from tests.conformance.test_snapshots import SUITES
from tests.flink.test_converted_savepoints import ALL, IN_FLIGHT_FORMATS, find_case, line_of
from tests.snapshots import CASES, FIXTURES, Case

ROOT_OF_TREE = Path(__file__).parents[2]
DOCS = (ROOT_OF_TREE / "docs/formats.md").read_text()
LINES = ("1.20", "2.2", "2.3")
WRITTEN = {
    "canonical savepoint": "canonical",
    "native savepoint, heap": "heap",
    "native savepoint, RocksDB": "rocksdb",
}
"""Format -> the word that makes a conversion write it."""


def rows_below(heading: str, first: str) -> dict[str, list[str]]:
    """Rows of the table below a heading whose first column is `first`, by their first cell."""
    section = DOCS.split(f"\n{heading}\n")[1].split("\n#")[0]
    table = section.split(f"\n| {first} |")[1].split("\n\n")[0]
    lines = [re.split(r" *\| *", line.strip("| ")) for line in table.splitlines()[2:]]
    return {cells[0]: cells[1:] for cells in lines}


FORMATS = rows_below("### Formats, release by release", "format")


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def name_in_docs(case: Case) -> str:
    return f"made/{case.case}" if case.name.startswith("made-") else case.case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_stands_in_the_table(case: Case) -> None:
    column = next(index for index, line in enumerate(LINES) if case.version.startswith(f"{line}."))
    assert name_in_docs(case) in names(FORMATS[case.format][column])


@pytest.mark.parametrize("column", range(len(LINES)), ids=LINES)
def test_the_table_names_no_other_cases(column: int) -> None:
    found = {name for cells in FORMATS.values() for name in names(cells[column])}
    known = {name_in_docs(case) for case in CASES if case.version.startswith(f"{LINES[column]}.")}
    # Whoever has no fixtures cannot tell about their cases.
    assert {name for name in found if FIXTURES or not name.startswith("made/")} == known


def test_every_format_names_its_suite() -> None:
    assert {format: names(cells[3]) for format, cells in FORMATS.items()} == {
        format: {suite.__name__} for format, suite in SUITES.items()
    }


def test_formats_are_written_that_conversions_make() -> None:
    assert {format for format, cells in FORMATS.items() if cells[4] == "yes"} == WRITTEN.keys()
    assert set(WRITTEN.values()) == {conversion.format for _, conversion in ALL}


def test_every_conversion_is_one_that_flink_restores() -> None:
    proven: dict[str, set[str]] = {"unaligned checkpoint": set(IN_FLIGHT_FORMATS)}
    for version, conversion in ALL:
        proven.setdefault(find_case(conversion.line or line_of(version), conversion.case).format, set()).add(
            conversion.format
        )
    assert {format: names(cells[5]) for format, cells in FORMATS.items()} == proven


@pytest.mark.skipif(not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink")
def test_releases_of_flinks_own_tests_stand_in_their_table() -> None:
    found: dict[str, list[set[str]]] = {}
    for folder in sorted((ROOT / "snapshots").iterdir()):
        match = re.fullmatch(rf"(?:{UDF}|{BROADCAST})flink([\d.]+)-(?:(hashmap|rocksdb)-)?(.*)", folder.name)
        if match:
            kinds = found.setdefault(match[1], [set(), set(), set()])
            column = ["savepoint", "savepoint-native", "checkpoint"].index(match[3])
            kinds[column].add("RocksDB" if match[2] == "rocksdb" else "heap")
    table = rows_below("### Formats, release by release", "Flink")
    assert {release: [set(re.findall(r"\w+", cell)) for cell in cells] for release, cells in table.items()} == found


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(tests/[\w./-]+)`", DOCS))))
def test_the_tests_that_prove_a_row_exist(path: str) -> None:
    assert (ROOT_OF_TREE / path).exists()
