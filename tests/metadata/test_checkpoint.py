from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from state_pipelines.errors import FormatError, StateError, UnsupportedError, ValueRangeError
from state_pipelines.metadata.checkpoint import (
    CheckpointMetadata,
    CheckpointProperties,
    MasterState,
    OperatorState,
    SavepointFormatType,
    SubtaskState,
    make_savepoint_properties,
    read_metadata,
    with_version,
    write_metadata,
    write_properties,
)
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    OperatorStateMetaInfo,
    OperatorStateMode,
    OperatorStreamStateHandle,
    RelativeFileStateHandle,
)

FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
PATHS = sorted(Path(FIXTURES).rglob("_metadata")) if FIXTURES else []

PROPERTIES = make_savepoint_properties(SavepointFormatType.CANONICAL)
OPERATOR_ID = bytes.fromhex("1f2b5df5a66154aca61fcb26193792be")
UNION = OperatorStreamStateHandle(
    (OperatorStateMetaInfo("source-state", OperatorStateMode.UNION, (0xBC, 0xCD, 0xE3, 0xFD)),),
    RelativeFileStateHandle("a5294c44-13d7-40ea-883a-58e9fd971ad2", 282),
)
OPERATOR = OperatorState(OPERATOR_ID, 1, 4, (SubtaskState(0, managed_operator_state=UNION),))
# A savepoint of Flink 1.20 with one operator: a source with a union list state of four elements.
OPERATOR_BYTES = (
    bytes.fromhex("1f2b5df5a66154aca61fcb26193792be 00000001 00000004 00 00000001 0000000000000001 04 00000001 000c")
    + b"source-state"
    + bytes.fromhex("01 00000004 00000000000000bc 00000000000000cd 00000000000000e3 00000000000000fd 06 0024")
    + b"a5294c44-13d7-40ea-883a-58e9fd971ad2"
    + bytes.fromhex("000000000000011a 00000000 00 00 00000000 00000000")
)
SAVEPOINT = (
    bytes.fromhex("4960672d 00000004 0000000000000001 00000000 00000001")
    + OPERATOR_BYTES
    + write_properties(PROPERTIES)
)
VALUE = CheckpointMetadata(4, 1, (), (OPERATOR,), PROPERTIES)


def test_savepoint_is_read() -> None:
    assert read_metadata(SAVEPOINT) == VALUE


def test_savepoint_is_written() -> None:
    assert write_metadata(VALUE) == SAVEPOINT


def test_names_and_uids_come_back_in_version_5() -> None:
    value = replace(VALUE, version=5, operator_states=(replace(OPERATOR, name="Source: events", uid="src"),))
    assert read_metadata(write_metadata(value)) == value


def test_absent_name_is_an_empty_string() -> None:
    data = write_metadata(replace(VALUE, version=5))
    assert data[24:28] == bytes(4)
    assert read_metadata(data).operator_states == (OPERATOR,)


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_comes_back(version: int) -> None:
    value = with_version(VALUE, version)
    assert read_metadata(write_metadata(value)) == value


def test_version_2_has_legacy_fields() -> None:
    data = write_metadata(with_version(VALUE, 2))
    assert data[40:68].hex(" ", 4) == "00000001 00000004 00000001 00000001 00000000 ffffffff ffffffff"


def test_operators_and_subtasks_keep_their_order() -> None:
    subtasks = tuple(SubtaskState(index) for index in (2, 0, 3))
    operators = (OperatorState(b"b" * 16, 4, 128, subtasks), OperatorState(b"a" * 16, 4, 128, subtasks))
    value = CheckpointMetadata(3, 1, (), operators)
    assert read_metadata(write_metadata(value)) == value


def test_subtasks_are_mapped_with_their_operators() -> None:
    operators = tuple(
        OperatorState(bytes([number]) * 16, 2, 4, (SubtaskState(0), SubtaskState(1))) for number in (1, 2)
    )
    metadata = CheckpointMetadata(3, 7, (), operators)

    def finish(operator: OperatorState, subtask: SubtaskState) -> SubtaskState:
        is_wanted = operator.operator_id[0] == 2 and subtask.index == 1
        return replace(subtask, finished=True) if is_wanted else subtask

    found = metadata.map_subtasks(finish)
    assert found.operator_states[0] == operators[0]
    assert [each.finished for each in found.operator_states[1].subtasks] == [False, True]
    assert replace(found, operator_states=operators) == metadata


def test_finished_subtask_comes_back() -> None:
    operator = OperatorState(OPERATOR_ID, 2, 128, (SubtaskState(1, finished=True), SubtaskState(0)))
    value = CheckpointMetadata(3, 1, (), (operator,))
    assert read_metadata(write_metadata(value)) == value


def test_fully_finished_operator_comes_back() -> None:
    value = CheckpointMetadata(3, 1, (), (OperatorState(OPERATOR_ID, 2, 128, fully_finished=True),))
    assert write_metadata(value).endswith(bytes.fromhex("00000002 00000080 00 ffffffff"))
    assert read_metadata(write_metadata(value)) == value


def test_coordinator_and_master_state_come_back() -> None:
    operator = replace(OPERATOR, coordinator_state=ByteStreamStateHandle("id", b"coordinator"))
    value = CheckpointMetadata(3, 1, (MasterState("hook", 2, b"payload"),), (operator,))
    assert read_metadata(write_metadata(value)) == value


def test_reference_checkpoint_id_comes_back_in_version_7() -> None:
    operator = replace(OPERATOR, subtasks=(SubtaskState(0, reference_checkpoint_id=5), SubtaskState(1)))
    value = replace(VALUE, version=7, operator_states=(operator,))
    assert read_metadata(write_metadata(value)) == value


def test_unknown_properties_are_kept_as_bytes() -> None:
    unknown = bytes.fromhex("aced0005 74 0007") + b"unknown"
    value = replace(VALUE, properties=unknown)
    assert read_metadata(write_metadata(value)) == value


@pytest.mark.parametrize(
    ("value", "missing"),
    [
        (replace(VALUE, version=3), "checkpoint properties"),
        (replace(VALUE, operator_states=(replace(OPERATOR, uid="u"),)), "an operator name or uid"),
        (CheckpointMetadata(2, 1, (), (OperatorState(OPERATOR_ID, 1, 1, fully_finished=True),)), "finished operators"),
        (
            CheckpointMetadata(2, 1, (), (replace(OPERATOR, coordinator_state=ByteStreamStateHandle("", b"")),)),
            "coordinator state",
        ),
        (
            replace(
                VALUE,
                version=6,
                operator_states=(replace(OPERATOR, subtasks=(SubtaskState(0, reference_checkpoint_id=1),)),),
            ),
            "a reference checkpoint id",
        ),
    ],
)
def test_what_a_version_has_no_place_for_is_refused(value: CheckpointMetadata, missing: str) -> None:
    with pytest.raises(ValueRangeError, match=f"version {value.version} cannot store {missing}"):
        write_metadata(value)


def test_other_version_drops_what_only_informs() -> None:
    named = replace(VALUE, version=6, operator_states=(replace(OPERATOR, name="n", uid="u"),))
    assert with_version(named, 4) == VALUE
    assert with_version(named, 3) == CheckpointMetadata(3, 1, (), (OPERATOR,))


def test_other_version_takes_properties_that_were_missing() -> None:
    old = CheckpointMetadata(3, 1, (), (OPERATOR,))
    assert with_version(old, 4, PROPERTIES) == VALUE


def test_wrong_magic_is_an_error() -> None:
    with pytest.raises(FormatError, match=r"not a _metadata file.*\[file f, offset 0\]"):
        read_metadata(b"PAR1" + bytes(20), "f")


def test_empty_file_is_an_error() -> None:
    with pytest.raises(FormatError, match="not a _metadata file"):
        read_metadata(b"")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (0, r"metadata of version 0: written by a Flink older than 1\.8.*Flink 1\.1 and 1\.2 wrote it"),
        (1, r"metadata of version 1: written by a Flink older than 1\.8.*Flink 1\.1 and 1\.2 wrote it"),
        (99, "metadata version 99 cannot be read.*canonical savepoint"),
    ],
)
def test_version_that_is_not_read_names_a_way_out(version: int, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read_metadata(SAVEPOINT[:4] + version.to_bytes(4, "big") + SAVEPOINT[8:])


@pytest.mark.slow
def test_every_truncation_is_an_error() -> None:
    for size in range(len(SAVEPOINT)):
        with pytest.raises(FormatError):
            read_metadata(SAVEPOINT[:size])


def test_bytes_left_over_are_an_error() -> None:
    with pytest.raises(FormatError, match="1 bytes are left over after the metadata"):
        read_metadata(SAVEPOINT + b"\0")


@pytest.mark.slow
def test_every_changed_byte_gives_a_value_or_one_of_our_errors() -> None:
    for position in range(len(SAVEPOINT)):
        data = bytearray(SAVEPOINT)
        data[position] ^= 0xFF
        try:
            value = read_metadata(bytes(data))
        except StateError:
            continue
        assert isinstance(value, CheckpointMetadata)


def test_error_names_the_operator() -> None:
    at_mode = SAVEPOINT.index(b"source-state") + 12
    with pytest.raises(FormatError, match=f"offset {at_mode}, operator 1f2b5df5a66154aca61fcb26193792be"):
        read_metadata(SAVEPOINT[:at_mode] + b"\x09" + SAVEPOINT[at_mode + 1 :], "f")


def test_legacy_state_of_version_2_is_refused() -> None:
    data = bytearray(write_metadata(with_version(VALUE, 2)))
    data[71] = 1
    with pytest.raises(UnsupportedError, match=r"legacy state of Flink 1\.1"):
        read_metadata(bytes(data))


@pytest.mark.skipif(not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink")
class TestFilesOfFlink:
    """Files that real Flink wrote."""

    def test_there_are_files(self) -> None:
        assert len(PATHS) > 100

    @pytest.mark.parametrize("path", PATHS, ids=["/".join(path.parts[-4:-1]) for path in PATHS])
    def test_metadata_is_written_byte_for_byte(self, path: Path) -> None:
        data = path.read_bytes()
        assert write_metadata(read_metadata(data, str(path))) == data

    @pytest.mark.parametrize("path", PATHS, ids=["/".join(path.parts[-4:-1]) for path in PATHS])
    def test_properties_are_known(self, path: Path) -> None:
        metadata = read_metadata(path.read_bytes(), str(path))
        assert isinstance(metadata.properties, CheckpointProperties) is (metadata.version >= 4)


def test_a_file_that_a_conversion_of_text_destroyed_is_called_so() -> None:
    destroyed = bytes.fromhex("4960672d 00000003") + bytes(8) + "\N{REPLACEMENT CHARACTER}".encode() * 8
    with pytest.raises(FormatError, match="destroyed by a conversion of text") as caught:
        read_metadata(destroyed, "f")
    assert caught.value.where.file == "f"
