"""Self-contained snapshots: checkpoints with files elsewhere, copied into another directory or bucket."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fsspec.config import conf

import state_pipelines as sp
from state_pipelines.errors import OutOfReachError, ProofError
from state_pipelines.metadata import (
    CheckpointMetadata,
    OperatorState,
    SubtaskState,
    list_references,
    read_metadata,
)
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    KeyGroupRange,
    RelativeFileStateHandle,
    StreamStateHandle,
)
from state_pipelines.operations.convert import convert
from state_pipelines.operations.dump import dump
from state_pipelines.operations.write.publication import plan_copies, require_own_files
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.storage import Location, join, resolve
from tests.flink.harness import diff_entries
from tests.snapshots import LARGE, OWN, Case, select

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKPOINTS = [case for case in OWN if case.kind == "checkpoint" and not case.drained]
MADE_CHECKPOINTS = [case for case in LARGE if case.kind == "checkpoint"]
INCREMENTAL = select("2.2", "rocksdb-incremental")[0]


def refer(*shared: StreamStateHandle, meta: StreamStateHandle | None = None) -> CheckpointMetadata:
    """Metadata of a checkpoint with one incremental handle."""
    files = tuple(HandleAndLocalPath(f"{number:06}.sst", handle) for number, handle in enumerate(shared))
    keyed = IncrementalRemoteKeyedStateHandle(
        checkpoint_id=1,
        backend_identifier=str(uuid.UUID(int=0)),
        key_groups=KeyGroupRange(0, 128),
        meta_data_state=meta or ByteStreamStateHandle("meta", b""),
        shared_state=files,
        private_state=(),
    )
    operator = OperatorState(b"\x0a" * 16, 1, 128, (SubtaskState(0, managed_keyed_state=keyed),))
    return CheckpointMetadata(4, 1, operator_states=(operator,))


@pytest.mark.parametrize(
    ("handle", "message"),
    [
        (FileStateHandle("s3://old/shared/x", 1), "names s3://old/shared/x, which may lie elsewhere"),
        (RelativeFileStateHandle("../shared/x", 1), "names ../shared/x, which is not a file of the directory itself"),
        (RelativeFileStateHandle("missing", 1), "names missing, which is not there"),
        (RelativeFileStateHandle("present", 5), "names 5 bytes of present, which has 4"),
    ],
)
def test_a_handle_that_points_elsewhere_is_named(handle: StreamStateHandle, message: str, tmp_path: Path) -> None:
    (tmp_path / "present").write_bytes(b"1234")
    with pytest.raises(ProofError, match=r"managed keyed state of subtask 0 \(shared 000001.sst\) " + message) as error:
        require_own_files(refer(RelativeFileStateHandle("present", 4), handle), resolve(str(tmp_path)))
    assert error.value.where.operator == "0a" * 16


def test_own_and_inlined_state_is_fine(tmp_path: Path) -> None:
    (tmp_path / "present").write_bytes(b"1234")
    require_own_files(refer(RelativeFileStateHandle("present", 4)), resolve(str(tmp_path)))


def test_names_of_inlined_state_lose_their_directories_and_stay_different(tmp_path: Path) -> None:
    one, other = ByteStreamStateHandle("file:/old/a/x", b"1"), ByteStreamStateHandle("file:/old/b/x", b"2")
    metadata = refer(one, other, one, meta=ByteStreamStateHandle("m", b""))
    snapshot = replace_metadata(INCREMENTAL.open(), metadata)
    new, copies = plan_copies(snapshot, metadata, resolve(str(tmp_path)))
    names = [each.handle.handle_name for each in list_references(new) if isinstance(each.handle, ByteStreamStateHandle)]
    assert copies == []
    assert (names[0], names[1], names[3]) == ("m", "x", "x")
    assert names[2] not in ("m", "x", "file:/old/b/x")


def replace_metadata(snapshot: Snapshot, metadata: CheckpointMetadata) -> Snapshot:
    return Snapshot(snapshot.location, metadata, snapshot.path_mapping, snapshot.declarations)


def copy_case(case: Case, tmp_path: Path) -> Snapshot:
    """The snapshot copied, opened where its own files are out of reach."""
    old = tmp_path / "hidden"
    shutil.copytree(case.folder, old)
    hidden = replace(case, folder=old, path=old / case.path.relative_to(case.folder))
    convert(hidden.open(), str(tmp_path / "new"), "keep", in_flight="keep")
    shutil.rmtree(old)
    written = (tmp_path / "new" / "_metadata").read_bytes()
    assert case.written.encode() not in written
    new = open_snapshot(str(tmp_path / "new"), declarations=case.open_told().declarations)
    require_own_files(new.metadata, new.location.directory)
    return new


@pytest.mark.slow
@pytest.mark.parametrize("case", CHECKPOINTS, ids=str)
def test_a_checkpoint_is_read_from_its_copy_alone(case: Case, tmp_path: Path) -> None:
    assert not diff_entries(case.entries(), dump(copy_case(case, tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("case", MADE_CHECKPOINTS, ids=str)
def test_a_large_checkpoint_is_equal_to_its_copy(case: Case, tmp_path: Path) -> None:
    new = copy_case(case, tmp_path)
    assert sp.diff(case.open_told(), new).same_contents


def test_a_checkpoint_of_another_project_is_copied_whole(wild: Path, tmp_path: Path) -> None:
    root = wild / "gimral+flink-state-offset-translator" / "494ff033-chk-6"
    (old,) = root.glob("*/chk-6")
    mapping = [f"file:/state/checkpoint={root}"]
    convert(open_snapshot(str(old), path_mapping=mapping), str(tmp_path / "new"), "keep")
    new = open_snapshot(str(tmp_path / "new"))
    require_own_files(new.metadata, new.location.directory)
    assert b"/state/checkpoint" not in (tmp_path / "new" / "_metadata").read_bytes()


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Location, Location]]:
    """Two buckets of an object store, which paths such as `s3://…` reach too."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "k", "secret": "s", "client_kwargs": {"endpoint_url": f"http://{host}:{port}"}}
    monkeypatch.setitem(conf, "s3", options)
    places = tuple(resolve(f"s3://{uuid.uuid4()}") for _ in range(2))
    for place in places:
        place.filesystem.mkdir(place.path)
    yield places[0], places[1]
    server.stop()


@pytest.mark.slow
def test_a_checkpoint_moves_into_another_bucket(buckets: tuple[Location, Location]) -> None:
    old, new = buckets
    old.filesystem.put(f"{INCREMENTAL.folder}/", join(old, "jobs").path, recursive=True)
    path = f"{join(old, 'jobs')}/{INCREMENTAL.path.relative_to(INCREMENTAL.folder)}"
    snapshot = open_snapshot(path, path_mapping=[f"file:{INCREMENTAL.written}={join(old, 'jobs')}"])
    assert any(isinstance(each.handle, FileStateHandle) for each in list_references(snapshot.metadata))
    convert(snapshot, str(join(new, "copy")), "keep", checksums=True)
    old.filesystem.rm(old.path, recursive=True)
    copy = open_snapshot(str(join(new, "copy")), uids=INCREMENTAL.uids)
    assert not diff_entries(INCREMENTAL.entries(), dump(copy))
    content = copy.location.metadata.filesystem.cat_file(copy.location.metadata.path)
    assert old.path.encode() not in content
    assert read_metadata(content) == copy.metadata


def test_files_of_other_allowed_directories_may_be_named(tmp_path: Path) -> None:
    # Those of a claimed checkpoint, which may be below another root.
    directory, claimed = resolve(str(tmp_path / "chk-2")), resolve(str(tmp_path / "elsewhere" / "shared"))
    for each in (directory, claimed):
        Path(each.path).mkdir(parents=True)
    metadata = refer(FileStateHandle(join(claimed, "table").url, 1))
    require_own_files(metadata, directory, {claimed})
    with pytest.raises(OutOfReachError):
        require_own_files(metadata, directory, {resolve(str(tmp_path / "shared"))})
