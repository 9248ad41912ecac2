"""Operator state by its stored bytes: where elements end, and what a digest takes in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml

from state_pipelines.binary.snappy_frames import STREAM_ID, compress_chunks
from state_pipelines.errors import FormatError, UsageError
from state_pipelines.metadata import write_metadata
from state_pipelines.metadata.handles import ByteStreamStateHandle, OperatorStateMetaInfo, OperatorStateMode
from state_pipelines.metadata.streams import StateStream
from state_pipelines.operations.convert import convert
from state_pipelines.operations.rescale import parse_request, plan_rescale, rescale
from state_pipelines.operations.rescale.rescale_proof import StoredElements
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import resolve
from tests.snapshots import OWN, RESCALING

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.snapshot import Snapshot

SPLIT, BROADCAST = OperatorStateMode.SPLIT_DISTRIBUTE, OperatorStateMode.BROADCAST


def make(data: bytes, *states: OperatorStateMetaInfo, named: tuple[OperatorStateMetaInfo, ...] = ()) -> StoredElements:
    stream = StateStream("stream", len(data), data=data)
    return StoredElements(0, stream, states, named or states, None)


def measure(found: dict[str, RecordDigest]) -> dict[str, tuple[int, int]]:
    return {name: (digest.records, digest.bytes) for name, digest in found.items()}


def test_an_element_ends_where_the_next_of_any_state_begins() -> None:
    lists, _, forms = make(
        b"headaaabbccccd", OperatorStateMetaInfo("x", SPLIT, (4, 9)), OperatorStateMetaInfo("y", SPLIT, (7, 13))
    ).digest()
    assert measure(lists) == {"x": (2, 3 + 4), "y": (2, 2 + 1)}
    assert forms == {"x": b"head", "y": b"head"}


def test_elements_that_a_handle_leaves_out_do_not_belong_to_the_one_before() -> None:
    whole = OperatorStateMetaInfo("x", SPLIT, (4, 7, 9))
    left = replace(whole, offsets=(4, 9))
    alone = make(b"headaaaccd", left, named=(whole,)).digest()[0]
    other = make(b"headaaad", OperatorStateMetaInfo("x", SPLIT, (4, 7))).digest()[0]
    assert measure(alone) == {"x": (2, 4)}
    assert alone == other


def test_the_order_of_elements_is_no_matter_but_their_bytes_are() -> None:
    first = make(b"aaabb", OperatorStateMetaInfo("x", SPLIT, (0, 3))).digest()[0]
    turned = make(b"bbaaa", OperatorStateMetaInfo("x", SPLIT, (0, 2))).digest()[0]
    changed = make(b"aaabc", OperatorStateMetaInfo("x", SPLIT, (0, 3))).digest()[0]
    assert first == turned
    assert first != changed


def test_of_elements_at_one_position_the_last_has_the_bytes() -> None:
    lists, _, _ = make(
        b"aabb", OperatorStateMetaInfo("x", SPLIT, (0, 2, 2)), OperatorStateMetaInfo("y", SPLIT, (2,))
    ).digest()
    assert measure(lists) == {"x": (3, 2), "y": (1, 2)}


@pytest.mark.parametrize("compressed", [False, True])
def test_a_broadcast_state_counts_its_entries(compressed: bool) -> None:
    header = b"head" + STREAM_ID * compressed
    pairs = (3).to_bytes(4, "big") + b"k1v1k2v2k3v3"
    stored = compress_chunks(pairs) if compressed else pairs
    _, copies, _ = make(header + stored, OperatorStateMetaInfo("rules", BROADCAST, (len(header),))).digest()
    assert measure(copies) == {"rules": (3, len(stored))}


@pytest.mark.parametrize("offset", [-1, 5])
def test_an_offset_outside_the_stream_is_refused(offset: int) -> None:
    with pytest.raises(FormatError, match=f"an element at {offset} is outside its stream of 4 bytes"):
        make(b"data", OperatorStateMetaInfo("x", SPLIT, (offset,))).digest()


@pytest.fixture
def unreadable(tmp_path: Path) -> tuple[Snapshot, str]:
    """A snapshot with a list state of an unknown serializer, and the uid of its operator."""
    case = next(each for each in RESCALING if each.version.startswith("2.2") and each.case == "canonical")
    snapshot = case.open_told()
    operator = next(each for each in snapshot.operators if len(each.operator_states) > 1)
    subtasks = []
    for subtask in operator.metadata.subtasks:
        handle = subtask.managed_operator_state
        assert handle is not None
        stream = snapshot.handles.open_stream(handle.delegate)
        assert stream.location is not None
        data = stream.location.filesystem.cat_file(stream.location.path)
        data = data.replace(b"org.apache.flink.api.common", b"com.acme.flink.api.commonnn")
        handle = replace(handle, delegate=ByteStreamStateHandle(str(subtask.index), data))  # type: ignore[arg-type]
        subtasks.append(replace(subtask, managed_operator_state=handle))
    edited = replace(operator.metadata, subtasks=tuple(subtasks))
    metadata = replace(snapshot.metadata, operator_states=(edited,))
    (tmp_path / "unreadable").mkdir()
    (tmp_path / "unreadable" / "_metadata").write_bytes(write_metadata(metadata))
    return open_snapshot(str(tmp_path / "unreadable")), operator.label


@pytest.mark.parametrize("mode", [FileMode.COPY, FileMode.REFERENCE])
@pytest.mark.parametrize("content", [{"parallelism": 1}, {"parallelism": 5}, {"max_parallelism": 251}], ids=str)
def test_state_of_unknown_serializers_is_rescaled_by_its_bytes(
    unreadable: tuple[Snapshot, str], content: dict[str, int], mode: FileMode, tmp_path: Path
) -> None:
    snapshot, _ = unreadable
    result = rescale(snapshot, str(tmp_path / "new"), parse_request(content), files=mode)
    assert result.proof is not None
    assert result.proof.ok
    assert sum(row.after.records for row in result.states) > 0
    assert open_snapshot(result.path).operators[0].parallelism == content.get(
        "parallelism", snapshot.operators[0].parallelism
    )


def test_equal_elements_of_merged_snapshots_are_noted(tmp_path: Path) -> None:
    snapshot = next(each for each in OWN if each.name == "types-2.2-heap").open()
    convert(snapshot, str(tmp_path / "copy"), "canonical")
    request = parse_request({"merge": {"with": [str(tmp_path / "copy")], "on_equal": "first"}})
    plan = plan_rescale(snapshot, resolve(str(tmp_path / "new")), request)
    assert any("have the same elements in SourceReaderState" in each for each in plan.notes), plan.notes


@pytest.mark.parametrize("request_of", ["merge: {{with: ['{}']}}", "take: {{other: {{from: '{}', operator: record}}}}"])
def test_a_target_inside_of_another_snapshot_is_refused(request_of: str, tmp_path: Path) -> None:
    snapshot = RESCALING[0].open()
    convert(snapshot, str(tmp_path / "copy"), "canonical")
    request = parse_request(yaml.safe_load(request_of.format(tmp_path / "copy")))
    with pytest.raises(UsageError, match="the target is inside the snapshot"):
        plan_rescale(snapshot, resolve(str(tmp_path / "copy" / "new")), request)
