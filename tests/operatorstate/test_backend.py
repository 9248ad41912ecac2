from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_pipelines import operatorstate
from state_pipelines.binary.data_views import Writer
from state_pipelines.binary.snappy_frames import STREAM_ID, compress_chunks, iter_chunks
from state_pipelines.codecs.programs import Encoded, compile_layout, encode_array
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import FormatError, NotFoundError, StateError, UnsupportedError, UsageError
from state_pipelines.metadata.checkpoint import read_metadata
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    EmptySegmentFileStateHandle,
    FileMergingOperatorStreamStateHandle,
    OperatorStateHandle,
    OperatorStateMetaInfo,
    OperatorStateMode,
    OperatorStreamStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.metadata.streams import StateStream
from state_pipelines.operatorstate import (
    OperatorHeader,
    OperatorStateFile,
    gather_elements,
    open_operator_state,
    read_broadcast_state,
    read_list_state,
    read_operator_file,
    read_raw_partitions,
    write_operator_file,
    write_operator_header,
    write_raw_partitions,
)
from state_pipelines.serializers.build import basic, pojo
from state_pipelines.serializers.state_meta_info import broadcast_state, operator_list
from state_pipelines.serializers.tree import ClassBound, ClassBoundKind
from state_pipelines.snapshot.snapshot_files import FIRST_VERSION_OF_FLINK_2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark import ParameterSet

    from state_pipelines.serializers.tree import Serializer

CONTEXT = LayoutContext()
NAMES = operator_list("names", basic("String"))
COUNTS = operator_list("counts", basic("Long"), "UNION")
RULES = broadcast_state("rules", basic("Long"), basic("String"))
HEADER = OperatorHeader(lists=(NAMES, COUNTS), broadcasts=(RULES,))


def make_handle(*states: OperatorStateMetaInfo) -> OperatorStreamStateHandle:
    return OperatorStreamStateHandle(states, ByteStreamStateHandle("f", b""))


def lies_at(
    name: str, *offsets: int, mode: OperatorStateMode = OperatorStateMode.SPLIT_DISTRIBUTE
) -> OperatorStateMetaInfo:
    return OperatorStateMetaInfo(name, mode, offsets)


def make_header(header: OperatorHeader) -> bytes:
    writer = Writer()
    write_operator_header(writer, header)
    return writer.getvalue()


def encode(serializer: Serializer, values: list[object]) -> Encoded:
    program = compile_layout(derive_layout(serializer, CONTEXT))
    return encode_array(program, pa.array(values, program.type))


def spans(file: OperatorStateFile, state: str) -> list[bytes]:
    data, starts, ends = file.elements(state)
    return [data[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]


START = len(make_header(HEADER))
# Two names, one count, a map of one entry.
PAYLOAD = b"\x02a" + b"\x03bc" + bytes.fromhex("0000000000000007") + bytes.fromhex("00000001 0000000000000005 0278")
STATES = (
    lies_at("names", START, START + 2),
    lies_at("counts", START + 5, mode=OperatorStateMode.UNION),
    lies_at("rules", START + 13, mode=OperatorStateMode.BROADCAST),
)
FILE = make_header(HEADER) + PAYLOAD
LISTS = {"names": encode(basic("String"), ["a", "bc"]), "counts": encode(basic("Long"), [7])}
BROADCASTS = {"rules": (1, bytes.fromhex("0000000000000005 0278"))}

COMPRESSED = replace(HEADER, compressed=True)
CHUNKS = [compress_chunks(PAYLOAD[start:end]) for start, end in ((0, 2), (2, 5), (5, 13), (13, 27))]
COMPRESSED_FILE = make_header(COMPRESSED) + STREAM_ID + b"".join(CHUNKS)
POSITIONS = [START + len(STREAM_ID) + sum(map(len, CHUNKS[:index])) for index in range(4)]
COMPRESSED_STATES = (
    lies_at("names", *POSITIONS[:2]),
    lies_at("counts", POSITIONS[2], mode=OperatorStateMode.UNION),
    lies_at("rules", POSITIONS[3], mode=OperatorStateMode.BROADCAST),
)

FORMS = pytest.mark.parametrize(
    ("data", "states", "header"),
    [(FILE, STATES, HEADER), (COMPRESSED_FILE, COMPRESSED_STATES, COMPRESSED)],
    ids=["plain", "compressed"],
)


@FORMS
def test_elements_are_found(data: bytes, states: tuple[OperatorStateMetaInfo, ...], header: OperatorHeader) -> None:
    file = read_operator_file(data, make_handle(*states), "f")
    assert file.header == header
    assert spans(file, "names") == [b"\x02a", b"\x03bc"]
    assert spans(file, "counts") == [bytes.fromhex("0000000000000007")]
    raw, start, end, count = file.broadcast("rules")
    assert (raw[start:end].tobytes(), count) == (bytes.fromhex("0000000000000005 0278"), 1)


@FORMS
def test_states_are_read_as_arrow_arrays(
    data: bytes, states: tuple[OperatorStateMetaInfo, ...], header: OperatorHeader
) -> None:
    file = read_operator_file(data, make_handle(*states), "f")
    assert read_list_state(file, NAMES, CONTEXT).to_pylist() == ["a", "bc"]
    assert read_list_state(file, COUNTS, CONTEXT).to_pylist() == [7]
    keys, values = read_broadcast_state(file, RULES, CONTEXT)
    assert (keys.to_pylist(), values.to_pylist()) == ([5], ["x"])


@FORMS
def test_a_file_is_written(data: bytes, states: tuple[OperatorStateMetaInfo, ...], header: OperatorHeader) -> None:
    assert write_operator_file(header, LISTS, BROADCASTS) == (data, states)


@FORMS
def test_elements_are_in_the_order_of_the_file(
    data: bytes, states: tuple[OperatorStateMetaInfo, ...], header: OperatorHeader
) -> None:
    names, counts, rules = states
    backwards = replace(names, offsets=names.offsets[::-1])
    file = read_operator_file(data, make_handle(rules, counts, names), "f")
    assert read_list_state(file, NAMES, CONTEXT).to_pylist() == ["a", "bc"]
    with pytest.raises(FormatError, match="elements are not in the order of the file"):
        read_operator_file(data, make_handle(rules, counts, backwards), "f")


def test_lists_of_another_handle_are_none_of_this_one() -> None:
    for lists in ((), (lies_at("names"), lies_at("counts", mode=OperatorStateMode.UNION))):
        file = read_operator_file(FILE, make_handle(*lists, STATES[2]), "f", shared=(*STATES, *lists))
        assert read_list_state(file, NAMES, CONTEXT).to_pylist() == []
        assert read_list_state(file, COUNTS, CONTEXT).to_pylist() == []
        assert [each.to_pylist() for each in read_broadcast_state(file, RULES, CONTEXT)] == [[5], ["x"]]


def test_a_list_without_elements_is_kept() -> None:
    header = OperatorHeader(lists=(NAMES,))
    data, states = write_operator_file(header, {"names": encode(basic("String"), [])}, {})
    assert states == (lies_at("names"),)
    assert spans(read_operator_file(data, make_handle(*states), "f"), "names") == []


@pytest.mark.parametrize("compressed", [False, True])
def test_elements_may_have_no_bytes(compressed: bool) -> None:
    nothing = operator_list("nothing", basic("NullValue"))
    header = OperatorHeader(lists=(nothing, NAMES), compressed=compressed)
    empty = Encoded(np.zeros(0, np.uint8), np.zeros(3, np.int64))
    data, states = write_operator_file(header, {"nothing": empty, "names": LISTS["names"]}, {})
    file = read_operator_file(data, make_handle(*states[::-1]), "f")
    assert spans(file, "nothing") == [b"", b"", b""]
    assert read_list_state(file, nothing, CONTEXT).to_pylist() == [None, None, None]
    assert spans(file, "names") == [b"\x02a", b"\x03bc"]


def test_an_element_of_several_chunks_is_read_whole() -> None:
    header = OperatorHeader(lists=(NAMES,), compressed=True)
    text = "long text " * 20_000
    data, states = write_operator_file(header, {"names": encode(basic("String"), [text, "b"])}, {})
    file = read_operator_file(data, make_handle(*states), "f")
    assert read_list_state(file, NAMES, CONTEXT).to_pylist() == [text, "b"]


def test_file_merging_may_leave_no_file() -> None:
    handle = FileMergingOperatorStreamStateHandle((), "file:/t", "file:/s", True, EmptySegmentFileStateHandle())
    file = read_operator_file(b"", handle, "an empty segment")
    assert (file.header.lists, file.header.broadcasts) == ((), ())


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8"))),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1)),
    st.dictionaries(st.integers(-(1 << 63), (1 << 63) - 1), st.text("aé漢😀")),
    st.booleans(),
)
def test_what_is_written_is_read(names: list[str], counts: list[int], rules: dict[int, str], compressed: bool) -> None:
    entries = encode(RULES.key_serializer, list(rules)), encode(RULES.value_serializer, list(rules.values()))
    pairs = [
        each.data[start:stop].tobytes()
        for start_stop in zip(*(zip(each.starts, each.stops, strict=True) for each in entries), strict=True)
        for each, (start, stop) in zip(entries, start_stop, strict=True)
    ]
    lists = {"names": encode(basic("String"), list(names)), "counts": encode(basic("Long"), list(counts))}
    header = replace(HEADER, compressed=compressed)
    data, states = write_operator_file(header, lists, {"rules": (len(rules), b"".join(pairs))})
    file = read_operator_file(data, make_handle(*states), "f")
    assert read_list_state(file, NAMES, CONTEXT).to_pylist() == names
    assert read_list_state(file, COUNTS, CONTEXT).to_pylist() == counts
    keys, values = read_broadcast_state(file, RULES, CONTEXT)
    assert dict(zip(keys.to_pylist(), values.to_pylist(), strict=True)) == rules


@pytest.mark.parametrize("gap", [0, 3])
def test_elements_are_gathered(gap: int) -> None:
    data = np.frombuffer(b"..abc" + b"." * gap + b"de.", np.uint8)
    gathered = gather_elements(data, np.array([2, 5 + gap]), np.array([5, 7 + gap]))
    assert gathered.data.tobytes() == b"abcde"
    assert gathered.stops.tolist() == [3, 5]


def test_elements_in_another_order_are_gathered() -> None:
    gathered = gather_elements(np.frombuffer(b"abcde", np.uint8), np.array([3, 0]), np.array([5, 3]))
    assert gathered.data.tobytes() == b"deabc"


def test_no_elements_are_gathered() -> None:
    gathered = gather_elements(np.frombuffer(b"abc", np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert (len(gathered.data), len(gathered.stops)) == (0, 0)


WRONG_HANDLES = {
    "before the payload": ((lies_at("names", START - 1),), rf"offset of {START - 1} is outside .* state names"),
    "behind the end": ((lies_at("names", len(FILE) + 1),), r"is outside the payload"),
    "negative": ((lies_at("names", -1),), "is outside the payload"),
    "unknown": ((lies_at("ages", START),), r"names a state that its file does not have \[file f, state ages\]"),
    "two broadcasts": (
        (lies_at("rules", START, START + 2, mode=OperatorStateMode.BROADCAST),),
        "a broadcast state has one offset, not 2",
    ),
    "another kind": ((lies_at("rules", START),), "the handle says .* SPLIT_DISTRIBUTE, but the file says BROADCAST"),
    "a gap after the header": (STATES[1:], rf"bytes {START} to {START + 5}, after the header, belong to no element"),
    "no list elements": ((lies_at("names"), STATES[2]), rf"bytes {START} to {START + 13}, after the header"),
    "twice": ((*STATES, STATES[0]), "elements of this state in this file are listed in two handles, or twice in one"),
    "no broadcast": ((lies_at("rules", mode=OperatorStateMode.BROADCAST),), "a broadcast state has one offset, not 0"),
}


@pytest.mark.parametrize(("states", "message"), WRONG_HANDLES.values(), ids=WRONG_HANDLES)
def test_a_handle_that_does_not_fit_its_file_is_refused(
    states: tuple[OperatorStateMetaInfo, ...], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        read_operator_file(FILE, make_handle(*states), "f")


def test_a_compressed_element_must_begin_with_a_chunk() -> None:
    with pytest.raises(FormatError, match=rf"does not begin with a chunk \[file f, offset {POSITIONS[1] + 1}"):
        read_operator_file(
            COMPRESSED_FILE, make_handle(lies_at("names", POSITIONS[0], POSITIONS[1] + 1), COMPRESSED_STATES[2]), "f"
        )


def test_a_compressed_file_must_have_a_framed_stream() -> None:
    with pytest.raises(FormatError, match=rf"no snappy framed stream follows .*\[file f, offset {START}\]"):
        read_operator_file(
            make_header(COMPRESSED) + PAYLOAD,
            make_handle(lies_at("rules", START, mode=OperatorStateMode.BROADCAST)),
            "f",
        )


@pytest.mark.parametrize("second", [START, START + 1])
def test_elements_that_overlap_are_refused(second: int) -> None:
    file = read_operator_file(FILE, make_handle(lies_at("names", START, second), *STATES[1:]), "f")
    with pytest.raises(FormatError, match=r"record 0: .* \[file f, offset \d+, state names"):
        read_list_state(file, NAMES, CONTEXT)


def test_bytes_that_are_left_over_are_refused() -> None:
    file = read_operator_file(FILE + b"\0", make_handle(*STATES), "f")
    with pytest.raises(FormatError, match=rf"1 bytes are left over .*\[file f, offset {len(FILE)}, state rules\]"):
        read_broadcast_state(file, RULES, CONTEXT)


LEFT_OUT = {
    "first element": (0, lies_at("names", START + 2), "bytes .* belong to no element"),
    "last element": (0, lies_at("names", START), "record 0"),
    "all of a later state": (1, lies_at("counts", mode=OperatorStateMode.UNION), "record 1"),
}


@pytest.mark.parametrize(("index", "left", "message"), LEFT_OUT.values(), ids=LEFT_OUT)
@pytest.mark.parametrize("compressed", [False, True])
def test_elements_that_a_handle_leaves_out_are_noticed(
    index: int, left: OperatorStateMetaInfo, message: str, compressed: bool
) -> None:
    places = dict(zip((START, START + 2, START + 5, START + 13), POSITIONS, strict=True))
    states = [*(COMPRESSED_STATES if compressed else STATES)]
    states[index] = replace(left, offsets=tuple(places[each] for each in left.offsets)) if compressed else left
    with pytest.raises(FormatError, match=message):
        read_list_state(
            read_operator_file(COMPRESSED_FILE if compressed else FILE, make_handle(*states), "f"), NAMES, CONTEXT
        )


@pytest.mark.parametrize("compressed", [False, True])
def test_broadcast_state_may_be_named_alone_but_not_left_out(compressed: bool) -> None:
    data, states = (COMPRESSED_FILE, COMPRESSED_STATES) if compressed else (FILE, STATES)
    with pytest.raises(FormatError, match=r"a broadcast state that its handle does not name .* state rules"):
        read_operator_file(data, make_handle(*states[:2]), "f")
    alone = read_operator_file(data, make_handle(states[2]), "f", shared=states)
    assert alone.elements("names")[1].tolist() == []
    keys, values = read_broadcast_state(alone, RULES, CONTEXT)
    assert (keys.to_pylist(), values.to_pylist()) == ([5], ["x"])


def test_errors_in_a_compressed_file_name_the_chunk() -> None:
    chunk = compress_chunks(b"\x04ab")
    data = make_header(COMPRESSED) + STREAM_ID + CHUNKS[0] + chunk
    rules = lies_at("rules", len(data), mode=OperatorStateMode.BROADCAST)
    file = read_operator_file(data + CHUNKS[3], make_handle(lies_at("names", *POSITIONS[:2]), rules), "f")
    with pytest.raises(FormatError, match=rf"record 1.*\[file f, offset {POSITIONS[1]}, state names"):
        read_list_state(file, NAMES, CONTEXT)


@pytest.mark.parametrize("count", ["7fffffff", "ffffffff", "00000003", "00"])
def test_a_number_of_entries_that_does_not_fit_is_refused(count: str) -> None:
    data = make_header(HEADER) + bytes.fromhex(count) + (b"\0" * 20 if len(count) > 2 else b"")
    file = read_operator_file(data, make_handle(lies_at("rules", START, mode=OperatorStateMode.BROADCAST)), "f")
    with pytest.raises(FormatError, match=r"entries do not fit in .*\[file f, offset \d+, state rules"):
        read_broadcast_state(file, RULES, CONTEXT)


@pytest.mark.slow
def test_a_damaged_file_gives_state_errors() -> None:
    for data, states in ((FILE, STATES), (COMPRESSED_FILE, COMPRESSED_STATES)):
        for size in range(len(data)):
            with pytest.raises(StateError):
                read_broadcast_state(read_operator_file(data[:size], make_handle(*states), "f"), RULES, CONTEXT)


def test_elements_without_a_columnar_form_keep_their_bytes() -> None:
    name = "org.apache.flink.api.java.typeutils.runtime.ValueSerializer$ValueSerializerSnapshot"
    info = operator_list(
        "objects", ClassBound(snapshot_class=name, snapshot_version=2, kind=ClassBoundKind.VALUE, type_class="a.B")
    )
    data, states = write_operator_file(
        OperatorHeader(lists=(info,)), {"objects": Encoded(np.frombuffer(b"ab", np.uint8), np.array([1, 2]))}, {}
    )
    file = read_operator_file(data, make_handle(*states), "f")
    with pytest.raises(UnsupportedError, match=r"no Arrow type.*state objects"):
        read_list_state(file, info, CONTEXT)
    assert spans(file, "objects") == [b"a", b"b"]


def test_a_state_that_the_file_does_not_have_is_not_found() -> None:
    file = read_operator_file(FILE, make_handle(*STATES), "f")
    with pytest.raises(NotFoundError, match=r"no list state 'rules' \(there are: names, counts\)"):
        file.elements("rules")
    with pytest.raises(NotFoundError, match=r"no broadcast state 'names' \(there are: rules\)"):
        file.broadcast("names")


def test_the_states_of_the_header_must_be_given() -> None:
    with pytest.raises(UsageError, match="list states of the header are names, counts, but the states given are names"):
        write_operator_file(HEADER, {"names": LISTS["names"]}, BROADCASTS)
    with pytest.raises(UsageError, match="broadcast states of the header are rules, but the states given are none"):
        write_operator_file(HEADER, LISTS, {})


def test_raw_partitions_are_read_and_written() -> None:
    partitions = [b"ab", b"", b"cde"]
    data, states = write_raw_partitions(partitions)
    assert (data, states) == (b"abcde", (lies_at("_default_", 0, 2, 2),))
    raw, starts, ends = read_raw_partitions(data, make_handle(*states), "f")
    assert [raw[start:end].tobytes() for start, end in zip(starts, ends, strict=True)] == partitions


def test_no_raw_partitions_are_none() -> None:
    assert write_raw_partitions([]) == (b"", (lies_at("_default_"),))
    assert len(read_raw_partitions(b"", make_handle(), "f")[1]) == 0


def test_a_raw_partition_outside_the_stream_is_refused() -> None:
    with pytest.raises(FormatError, match=r"offset of 3 is outside .*\[file f, offset 3, state _default_\]"):
        read_raw_partitions(b"ab", make_handle(lies_at("_default_", 3)), "f")


def test_a_pojo_keeps_the_path_to_a_bad_field() -> None:
    info = operator_list("places", pojo("com.acme.Place", {"number": basic("Int")}))
    header = OperatorHeader(lists=(info,))
    data = make_header(header) + bytes.fromhex("02 00 0000")
    file = read_operator_file(data, make_handle(lies_at("places", len(make_header(header)))), "f")
    with pytest.raises(FormatError, match=r"state places, at .*number"):
        read_list_state(file, info, CONTEXT)


FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
ROOT = Path(__file__).resolve().parents[2]


UNSET = "FLINK_STATE_FIXTURES is unset: it names the directory with files that Flink wrote"


def snapshots() -> list[Path | ParameterSet]:
    own = sorted([*ROOT.glob("tests/data/**/_metadata"), *ROOT.glob("examples/orders/savepoints/**/_metadata")])
    if not FIXTURES:
        return [*own, pytest.param(ROOT, marks=pytest.mark.skip(reason=UNSET))]
    return [*own, *sorted(Path(FIXTURES).rglob("_metadata"))]


def operator_files(path: Path) -> Iterator[tuple[bytes, OperatorStateHandle]]:
    """The operator state files of a snapshot that are inside it or beside it, and their handles."""
    for operator in read_metadata(path.read_bytes(), str(path)).operator_states:
        for subtask in operator.subtasks:
            handle = subtask.managed_operator_state
            match handle.delegate if handle else None:
                case ByteStreamStateHandle(data=data) if handle:
                    yield data, handle
                case RelativeFileStateHandle(relative_path=name) if handle:
                    yield (path.parent / name).read_bytes(), handle


def rewrite(file: OperatorStateFile) -> tuple[bytes, dict[str, OperatorStateMetaInfo]]:
    broadcasts = {}
    for info in file.header.broadcasts:
        data, start, end, count = file.broadcast(info.name)
        broadcasts[info.name] = (count, data[start:end].tobytes())
    lists = {info.name: gather_elements(*file.elements(info.name)) for info in file.header.lists}
    written, states = write_operator_file(file.header, lists, broadcasts)
    return written, {state.state_name: state for state in states}


@pytest.mark.parametrize("path", snapshots(), ids=str)
def test_plain_files_that_flink_wrote_are_written_byte_for_byte(path: Path) -> None:
    for data, handle in operator_files(path):
        file = read_operator_file(data, handle, str(path))
        if not file.header.compressed:
            assert rewrite(file) == (data, {state.state_name: state for state in handle.states})


@pytest.mark.parametrize("path", snapshots(), ids=str)
def test_compressed_files_that_flink_wrote_are_written_chunk_for_chunk(path: Path) -> None:
    # The same bytes may be compressed in several ways; Flink's library and ours do not choose the same everywhere.
    for data, handle in operator_files(path):
        file = read_operator_file(data, handle, str(path))
        if file.header.compressed:
            written, states = rewrite(file)
            start = len(make_header(file.header))
            assert written[:start] == data[:start]
            theirs, ours = (list(iter_chunks(each, start)) for each in (data, written))
            assert [chunk.data for chunk in ours] == [chunk.data for chunk in theirs]
            moved = {old.start: new.start for old, new in zip(theirs, ours, strict=True)}
            for state in handle.states:
                assert states[state.state_name].offsets == tuple(moved[offset] for offset in state.offsets)


@pytest.mark.parametrize("path", snapshots(), ids=str)
def test_elements_that_flink_wrote_use_up_their_bytes(path: Path) -> None:
    version = read_metadata(path.read_bytes(), str(path)).version
    context = LayoutContext(5 if version >= FIRST_VERSION_OF_FLINK_2 else 2)
    for data, handle in operator_files(path):
        file = read_operator_file(data, handle, str(path))
        for info in (*file.header.lists, *file.header.broadcasts):
            read = read_list_state if info in file.header.lists else read_broadcast_state
            try:
                read(file, info, context)
            except UnsupportedError:
                continue


@pytest.mark.parametrize("compressed", [False, True])
def test_the_offsets_of_a_file_are_checked_once(monkeypatch: pytest.MonkeyPatch, compressed: bool) -> None:
    data, states = (COMPRESSED_FILE, COMPRESSED_STATES) if compressed else (FILE, STATES)
    calls: list[str] = []
    order_offsets = operatorstate.order_offsets

    def order(*given: Any) -> Any:
        calls.append(given[-1])
        return order_offsets(*given)

    monkeypatch.setattr(operatorstate, "order_offsets", order)
    unread = open_operator_state(StateStream("f", len(data), data=data), make_handle(*states))
    for _ in range(3):
        file = unread.read()
        assert read_list_state(file, NAMES, CONTEXT).to_pylist() == ["a", "bc"]
        assert read_broadcast_state(file, RULES, CONTEXT)[0].to_pylist() == [5]
    assert calls == ["f"]
    sent = pickle.loads(pickle.dumps(unread))
    assert read_list_state(sent.read(), NAMES, CONTEXT).to_pylist() == ["a", "bc"]
