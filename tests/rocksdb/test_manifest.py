from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rocksdict import Options, Rdict

from state_pipelines.errors import FormatError, MissingFileError, UnsupportedError
from state_pipelines.metadata.streams import StateStream
from state_pipelines.rocksdb import read_database
from state_pipelines.rocksdb.manifest import check_files_listed
from tests.rocksdb.databases import frame_log, list_streams, make_options
from tests.rocksdb.forged_tables import MANIFEST, Listed, write_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from state_pipelines.rocksdb import Database

COMPARATOR = b"\x01\x1aleveldb.BytewiseComparator"
# Column family 2 with a table: level 6, number 12, 900 bytes, keys "a" to "c", sequences 3 to 9, properties 6 and 7.
ADD_FAMILY = b"\xc8\x01\x02\xc9\x01\x05state"
BOUND = b"\x01\x05" + bytes(6)
NEW_FILE = b"\x67\x06\x0c\x84\x07\x09a" + BOUND + b"\x09c" + BOUND + b"\x03\x09\x06\x01\x55\x07\x01x\x01"
IN_FAMILY = b"\xc8\x01\x02"
TABLE = StateStream("shared/1", 900, data=bytes(900))


def frame(*edits: bytes) -> bytes:
    return b"".join(frame_log(edit) for edit in edits)


def read(*edits: bytes, **others: StateStream) -> Database:
    return read_raw(frame(*edits), **others)


def read_raw(manifest: bytes, **others: StateStream) -> Database:
    files = {
        "CURRENT": StateStream("CURRENT", 16, data=b"MANIFEST-000004\n"),
        "MANIFEST-000004": StateStream("private/2", len(manifest), data=manifest),
        "000012.sst": TABLE,
    }
    return read_database({**files, **others})


def test_reads_a_column_family_and_its_table() -> None:
    default, column_family = read(COMPARATOR, ADD_FAMILY, IN_FAMILY + NEW_FILE).column_families
    assert (default.id, default.name, default.files) == (0, "default", ())
    assert (column_family.id, column_family.name) == (2, "state")
    (table,) = column_family.files
    assert (table.number, table.level, table.size) == (12, 6, 900)
    assert (table.smallest, table.end) == (b"a", b"c\0")
    assert (table.smallest_sequence, table.largest_sequence) == (3, 9)
    assert table.stream is TABLE


def test_a_bound_of_a_range_tombstone_is_exclusive() -> None:
    edit = IN_FAMILY + NEW_FILE.replace(b"c" + BOUND, b"c\x0f" + b"\xff" * 7)
    assert read(ADD_FAMILY, edit).column_families[1].files[0].end == b"c"


def test_a_deleted_table_is_not_live() -> None:
    assert read(ADD_FAMILY, IN_FAMILY + NEW_FILE, IN_FAMILY + b"\x06\x06\x0c").column_families[1].files == ()


def test_a_table_moves_to_another_level() -> None:
    moved = NEW_FILE.replace(b"\x67\x06", b"\x67\x05", 1)
    (table,) = read(ADD_FAMILY, IN_FAMILY + moved, IN_FAMILY + b"\x06\x05\x0c" + NEW_FILE).column_families[1].files
    assert table.level == 6


def test_a_dropped_column_family_is_gone() -> None:
    edits = (ADD_FAMILY, IN_FAMILY + NEW_FILE, IN_FAMILY + b"\xca\x01")
    assert [column_family.name for column_family in read(*edits).column_families] == ["default"]


def test_parts_that_may_be_skipped_are() -> None:
    assert len(read(COMPARATOR + b"\x89\x40\x01\x01" + b"\x02\x05\x03\x0d\x04\x09\xcb\x01\x02").column_families) == 1


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="unknown tag 400"):
        read(b"\x90\x03\x00")


def test_an_unknown_property_of_a_table_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="unknown property 66"):
        read(ADD_FAMILY, IN_FAMILY + NEW_FILE.replace(b"\x06\x01\x55", b"\x42\x01\x55"))


def test_another_comparator_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"leveldb\.Reverse"):
        read(b"\x01\x0fleveldb.Reverse")


def test_a_wrong_checksum_is_noticed() -> None:
    manifest = bytearray(frame(COMPARATOR, ADD_FAMILY))
    manifest[-1] ^= 1
    with pytest.raises(FormatError, match="checksum"):
        read_raw(bytes(manifest))


def test_a_record_in_fragments_is_joined() -> None:
    name = b"n" * 40_000
    manifest = frame(b"\xc8\x01\x02\xc9\x01\xc0\xb8\x02" + name)
    assert len(manifest) > 1 << 15
    assert read_raw(manifest).column_families[1].name == name.decode()


def test_the_end_inside_a_record_is_noticed() -> None:
    manifest = frame(b"\xc8\x01\x02\xc9\x01\xc0\xb8\x02" + b"n" * 40_000)
    for end in (1 << 15, len(manifest) - 1):
        with pytest.raises(FormatError, match=r"ends inside a record|cut off"):
            read_raw(manifest[:end])


def test_zeros_behind_the_records_are_no_records() -> None:
    assert len(read_raw(frame(COMPARATOR) + bytes(4096)).column_families) == 1


def test_an_unfinished_atomic_group_is_noticed() -> None:
    with pytest.raises(FormatError, match="atomic group"):
        read(COMPARATOR + b"\xac\x02\x01")


def test_a_live_table_that_no_handle_names_is_missing() -> None:
    edits = (ADD_FAMILY, IN_FAMILY + NEW_FILE.replace(b"\x0c", b"\x0d", 1))
    with pytest.raises(MissingFileError, match=r"000013\.sst"):
        read(*edits)


def test_a_table_of_another_size_is_noticed() -> None:
    with pytest.raises(FormatError, match="899 bytes, the MANIFEST says 900"):
        read(ADD_FAMILY, IN_FAMILY + NEW_FILE, **{"000012.sst": StateStream("shared/1", 899, data=bytes(899))})


def test_a_write_ahead_log_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="write-ahead log"):
        read(COMPARATOR, **{"000010.log": StateStream("private/3", 5, data=bytes(5))})


def test_no_current_file_is_missing() -> None:
    with pytest.raises(MissingFileError, match="CURRENT"):
        read_database({})


def test_reads_what_rocksdb_wrote(tmp_path: Path) -> None:
    options = make_options()
    database = Rdict(str(tmp_path), options)
    for name in ("first", "ü", "dropped"):
        column_family = database.create_column_family(name, Options(raw_mode=True))
        column_family[b"key"] = name.encode()
        column_family.flush()
    database.drop_column_family("dropped")
    database.close()
    found = read_database(list_streams(tmp_path)).column_families
    assert [(each.name, len(each.files)) for each in found] == [("default", 0), ("first", 1), ("ü", 1)]


def read_listed(column_families: Mapping[str, Sequence[Listed]]) -> Database:
    manifest = write_manifest(column_families)
    files = {"CURRENT": StateStream("CURRENT", 16, data=MANIFEST.encode() + b"\n")}
    files[MANIFEST] = StateStream("private/2", len(manifest), data=manifest)
    for number in range(20):
        files[f"{number:06d}.sst"] = StateStream(f"shared/{number}", 9, data=bytes(9))
    return read_database(files)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ((b"a", b"c"), (b"b", b"d"), True),
        ((b"a", b"z"), (b"b", b"c"), True),
        ((b"a", b"c"), (b"c", b"d"), True),
        ((b"a", b"c"), (b"c\0", b"d"), False),
        ((b"e", b"f"), (b"a", b"d"), False),
    ],
)
def test_tables_may_only_overlap_on_level_0(
    one: tuple[bytes, bytes], other: tuple[bytes, bytes], overlap: bool
) -> None:
    for level in (1, 6):
        tables = [Listed(3, 9, *one, level), Listed(4, 9, *other, level)]
        if not overlap:
            assert len(read_listed({"default": tables}).column_families[0].files) == 2
            continue
        with pytest.raises(FormatError, match=f"overlap on level {level}"):
            read_listed({"default": tables})
    for levels in ((0, 0), (5, 6)):
        found = read_listed({"default": [Listed(3, 9, *one, levels[0]), Listed(4, 9, *other, levels[1])]})
        assert len(found.column_families[0].files) == 2


def test_versions_of_one_key_may_be_in_two_tables_the_newest_first() -> None:
    tables = [Listed(3, 9, b"a", b"c", sequence=5), Listed(4, 9, b"c", b"d", sequence=4)]
    assert len(read_listed({"default": tables}).column_families[0].files) == 2
    tables = [Listed(3, 9, b"a", b"c", sequence=4), Listed(4, 9, b"c", b"d", sequence=5)]
    with pytest.raises(FormatError, match="overlap on level 6"):
        read_listed({"default": tables})


def test_a_table_in_two_column_families_is_refused() -> None:
    with pytest.raises(FormatError, match="table 3 is in two column families, 'one' and 'two'"):
        read_listed({"default": [], "one": [Listed(3, 9, b"a", b"b")], "two": [Listed(3, 9, b"a", b"b")]})


def test_a_table_that_the_manifest_does_not_list_is_refused() -> None:
    database = read_listed({"default": [Listed(3, 9, b"a", b"b")], "one": [Listed(4, 9, b"a", b"b")]})
    files = {f"{number:06d}.sst": StateStream(f"shared/{number}", 9, data=bytes(9)) for number in (3, 4)}
    files["OPTIONS-000007"] = StateStream("private/7", 9, data=bytes(9))
    check_files_listed(files, database)
    with pytest.raises(FormatError, match=r"names 000005\.sst, which the MANIFEST does not list .*shared/5"):
        check_files_listed({**files, "000005.sst": StateStream("shared/5", 9, data=bytes(9))}, database)
