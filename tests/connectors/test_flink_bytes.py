"""What Flink's own serializers wrote is read, and written again byte for byte."""

from __future__ import annotations

import pytest

from state_pipelines.connectors import ConnectorState, detect, encode_elements, read_coordinator, write_coordinator
from state_pipelines.connectors.base_sources import (
    FileSplit,
    FlinkPath,
    HybridSplit,
    NumberSequenceSplit,
    PendingFileSplits,
)
from state_pipelines.connectors.registry import Versioned, read_versioned_array
from state_pipelines.connectors.sinks import (
    CheckpointCommittables,
    Committables,
    FileBucket,
    InProgressFile,
    PendingFile,
    StreamRecoverable,
    read_file_committable,
    write_file_committable,
)
from tests.connectors.vectors import BYTES, RELEASES, flink_bytes, wrap
from tests.serializers.literals import i32

SPACED = FileSplit("2", FlinkPath(path="/data/b ä.csv"), 0, 5, 0, 5)
NUMBERS = NumberSequenceSplit("1", 17, 100)
ELEMENTS = {
    "file-split": (
        "SourceReaderState",
        "file",
        FileSplit(
            "0000000001",
            FlinkPath("s3", None, "bucket", -1, "/in/a.csv"),
            10,
            90,
            1_700_000_000_000,
            100,
            ("h1", "h2"),
            (42, 3),
        ),
    ),
    "file-split-plain": ("SourceReaderState", "file", SPACED),
    "seq-split": ("SourceReaderState", "number-sequence", NUMBERS),
    "hybrid-split": (
        "SourceReaderState",
        "hybrid",
        HybridSplit(0, 1, "1", Versioned(1, bytes.fromhex("0001 31 0000000000000011 0000000000000064"))),
    ),
    "bucket-empty": ("bucket-states", "file", FileBucket(3, "b", "/lake/o", (1 << 63) - 1)),
}
ENUMERATORS = {
    "file-enum": ("file", PendingFileSplits((SPACED,), ("/data/done.csv",))),
    "seq-enum": ("number-sequence", (NUMBERS,)),
}
pytestmark = pytest.mark.parametrize("release", RELEASES)


def detected(state_name: str, element: bytes) -> ConnectorState:
    state = detect(state_name, BYTES, [element])
    assert isinstance(state, ConnectorState)
    return state


@pytest.mark.parametrize("name", ELEMENTS)
def test_an_element_is_detected(release: str, name: str) -> None:
    state_name, connector, value = ELEMENTS[name]
    state = detected(state_name, wrap(flink_bytes(release, name)))
    assert (state.connector, state.values) == (connector, (value,))


@pytest.mark.parametrize("name", [*ELEMENTS, "bucket"])
def test_an_element_is_written_as_it_was(release: str, name: str) -> None:
    element = wrap(flink_bytes(release, name))
    state = detected(ELEMENTS.get(name, ("writer_raw_states",))[0], element)
    assert encode_elements(state, BYTES) == (element,)


@pytest.mark.parametrize("name", ENUMERATORS)
def test_a_coordinator_is_detected(release: str, name: str) -> None:
    state = read_coordinator(i32(1) + flink_bytes(release, name)).state
    assert isinstance(state, ConnectorState)
    assert (state.connector, state.values) == (ENUMERATORS[name][0], (ENUMERATORS[name][1],))


@pytest.mark.parametrize("name", ENUMERATORS)
def test_a_coordinator_is_written_as_it_was(release: str, name: str) -> None:
    data = i32(1) + flink_bytes(release, name)
    assert write_coordinator(read_coordinator(data)) == data


def test_a_bucket_names_its_open_file(release: str) -> None:
    (bucket,) = detected("writer_raw_states", wrap(flink_bytes(release, "bucket"))).values
    assert isinstance(bucket, FileBucket)
    assert isinstance(bucket.open_file, InProgressFile)
    assert isinstance(bucket.open_file.recoverable, StreamRecoverable)
    assert (bucket.open_file.path, bucket.open_file.recoverable.offset) == ("/lake/o/part-0", 6)


def test_a_committable_names_its_pending_file(release: str) -> None:
    committable = read_file_committable(read_versioned_array(flink_bytes(release, "commit-pending")))
    assert isinstance(committable.pending, PendingFile)
    assert (committable.bucket, committable.pending.path, committable.pending.size) == ("b", "/lake/o/part-0", 11)


def test_a_committable_names_a_file_to_clean_up(release: str) -> None:
    committable = read_file_committable(read_versioned_array(flink_bytes(release, "commit-clean")))
    assert committable.clean_up is not None
    assert committable.clean_up.path == "/lake/o/part-0"


def test_a_committable_names_a_compacted_file(release: str) -> None:
    assert read_file_committable(read_versioned_array(flink_bytes(release, "commit-delete"))).compacted == "/lake/o/old"


@pytest.mark.parametrize("name", ["commit-pending", "commit-clean", "commit-delete"])
def test_a_committable_is_written_as_it_was(release: str, name: str) -> None:
    versioned = read_versioned_array(flink_bytes(release, name))
    assert write_file_committable(read_file_committable(versioned)) == versioned


def test_a_committer_knows_checkpoint_and_subtask(release: str) -> None:
    state = detected("streaming_committer_raw_states", wrap(flink_bytes(release, "committer")))
    (committables,) = state.values
    assert isinstance(committables, Committables)
    (checkpoint,) = committables.checkpoints
    assert isinstance(checkpoint, CheckpointCommittables)
    assert (checkpoint.checkpoint_id, checkpoint.number_of_subtasks) == (7, 4)
    assert [(each.subtask, each.expected, each.failed) for each in checkpoint.subtasks] == [(3, 1, 0)]


def test_the_rows_of_a_committer_name_the_files(release: str) -> None:
    state = detected("streaming_committer_raw_states", wrap(flink_bytes(release, "committer")))
    (row,) = state.to_batch().to_pylist()
    assert (row["connector"], row["checkpoint_id"], row["commit_state"]) == ("file", 7, "RECEIVED")
    assert (row["action"], row["file"], row["size"]) == ("commit", "/lake/o/part-0", 11)


def test_a_committer_is_written_as_it_was(release: str) -> None:
    element = wrap(flink_bytes(release, "committer"))
    assert encode_elements(detected("streaming_committer_raw_states", element), BYTES) == (element,)
