from __future__ import annotations

import pytest

from state_pipelines.connectors.registry import Versioned
from state_pipelines.connectors.sinks import (
    FileBucket,
    FileCommittable,
    InProgressFile,
    PendingFile,
    S3Recoverable,
    StreamRecoverable,
    bucket_rows,
    read_file_bucket,
    read_file_committable,
    read_in_progress_file,
    read_pending_file,
    read_recoverable,
    target_path,
    write_file_bucket,
    write_file_committable,
    write_in_progress_file,
    write_pending_file,
    write_recoverable,
)
from state_pipelines.errors import FormatError
from tests.connectors.vectors import i64, versioned
from tests.serializers.literals import i32, utf

HADOOP = bytes.fromhex("5e6c43d7 0700000000000000 02000000 03000000 2f61 2f2e61")
S3 = bytes.fromhex(
    "32147698 03000000 6b6579 02000000 7570 01000000 01000000 02000000 6574"
    "0500000000000000 01000000 6c 0200000000000000"
)
ON_HADOOP = StreamRecoverable("hadoop", 7, "/a", "/.a")
ON_S3 = S3Recoverable("key", "up", ((1, "et"),), 5, "l", 2)
OTHER = Versioned(4, b"something else")


@pytest.mark.parametrize(("data", "value"), [(HADOOP, ON_HADOOP), (S3, ON_S3)])
def test_files_of_known_file_systems_are_read_and_written(
    data: bytes, value: StreamRecoverable | S3Recoverable
) -> None:
    assert read_recoverable(Versioned(1, data)) == value
    assert write_recoverable(value) == Versioned(1, data)


@pytest.mark.parametrize("value", [OTHER, Versioned(1, b"unknown magic"), Versioned(1, b"")])
def test_files_of_other_file_systems_keep_their_bytes(value: Versioned) -> None:
    assert read_recoverable(value) is value
    assert write_recoverable(value) is value


def test_an_upload_without_a_last_part_has_none() -> None:
    value = S3Recoverable("key", "up", (), 5, None, -1)
    assert read_recoverable(write_recoverable(value)) == value


@pytest.mark.parametrize("data", [HADOOP[:-1], HADOOP + b"\0", S3[:-1], S3 + b"\0"])
def test_a_file_of_another_length_is_an_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_recoverable(Versioned(1, data))


@pytest.mark.parametrize(
    ("file", "path"),
    [
        (InProgressFile(2, "/target", ON_S3), "/target"),
        (InProgressFile(1, None, ON_HADOOP), "/a"),
        (InProgressFile(1, None, ON_S3), "key"),
        (InProgressFile(1, None, OTHER), None),
    ],
)
def test_the_target_is_known_as_far_as_the_bytes_say(file: InProgressFile, path: str | None) -> None:
    assert target_path(file) == path


@pytest.mark.parametrize("file", [InProgressFile(1, None, ON_HADOOP), InProgressFile(2, None, OTHER)])
def test_in_progress_files_of_every_version_survive(file: InProgressFile) -> None:
    assert read_in_progress_file(write_in_progress_file(file)) == file


@pytest.mark.parametrize("file", [PendingFile(1, None, None, ON_HADOOP), PendingFile(2, "/a", 5, ON_S3)])
def test_pending_files_of_every_version_survive(file: PendingFile) -> None:
    assert read_pending_file(write_pending_file(file)) == file


HEAD = bytes.fromhex("1e764b79") + versioned(1, bytes.fromhex("02000000 6431")) + utf("/out/d1") + i64(99)


def test_a_bucket_of_version_1_has_plain_files() -> None:
    data = HEAD + b"\1" + versioned(1, HADOOP) + i32(1) + i32(1) + i64(4) + i32(1) + i32(len(S3)) + S3
    bucket = FileBucket(1, "d1", "/out/d1", 99, ON_HADOOP, 1, ((4, (ON_S3,)),))
    assert read_file_bucket(Versioned(1, data)) == bucket
    assert write_file_bucket(bucket) == Versioned(1, data)


def test_a_bucket_of_version_2_has_pending_files() -> None:
    pending = PendingFile(1, None, None, ON_S3)
    raw = write_pending_file(pending).data
    data = HEAD + b"\0" + i32(1) + i32(1) + i64(4) + i32(1) + i32(len(raw)) + raw
    bucket = FileBucket(2, "d1", "/out/d1", 99, None, 1, ((4, (pending,)),))
    assert read_file_bucket(Versioned(2, data)) == bucket
    assert write_file_bucket(bucket) == Versioned(2, data)


def test_the_rows_of_a_bucket_are_its_open_file_and_its_pending_ones() -> None:
    bucket = FileBucket(1, "d1", "/out/d1", 99, ON_HADOOP, 1, ((4, (ON_S3,)),))
    rows = [(row["state"], row["file"], row.get("checkpoint_id")) for row in bucket_rows(bucket)]
    assert rows == [("open", "/a", None), ("pending", "key", 4)]


def test_a_bucket_without_its_magic_is_refused() -> None:
    with pytest.raises(FormatError, match="begins with 0x1e764b79"):
        read_file_bucket(Versioned(3, bytes(40)))


def test_a_committable_of_version_1_has_no_bucket() -> None:
    data = bytes.fromhex("1e765c80 00 01") + versioned(1, bytes.fromhex("b3a4073d") + versioned(1, HADOOP))
    committable = FileCommittable(1, clean_up=InProgressFile(1, None, ON_HADOOP))
    assert read_file_committable(Versioned(1, data)) == committable
    assert write_file_committable(committable) == Versioned(1, data)
