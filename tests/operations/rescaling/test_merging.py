from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_pipelines.errors import FormatError, IncompatibleError, UnsupportedError, UsageError
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.rescale.records import Collect, Gather, InputFiles, Shuffle
from state_pipelines.operations.rescale.snapshot_merge import MergeRule, align_headers, check_operator_headers
from state_pipelines.operatorstate import OperatorHeader
from state_pipelines.serializers.build import TIME_WINDOW, VOID_NAMESPACE
from state_pipelines.serializers.state_meta_info import BackendStateType, keyed_state, operator_list, unread_state
from state_pipelines.serializers.text import parse
from state_pipelines.serializers.tree import Opaque, Pojo, PojoSubclass
from state_pipelines.storage import join, resolve
from tests.operations.rescaling.keyed_files import (
    HEADER,
    RECORDS,
    STRING,
    TIMERS,
    Hasher,
    Record,
    alarm,
    context,
    count,
    expect,
    group_of,
    items,
    read,
    reopen,
    value,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.keyed.canonical import CanonicalFile
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.operations.write.keyed_rewrite import WrittenFile
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.storage import Location

    Merge = Callable[[list[list[Record]], MergeRule, Location], tuple[WrittenFile, CanonicalFile]]

OLD, NEW = 16, 300
ALL = tuple((each, each) for each in range(4))


@pytest.fixture
def place(tmp_path: Path) -> Location:
    return resolve(str(tmp_path))


def write_all(snapshots: list[list[Record]], place: Location) -> list[KeyedFile]:
    return [write(join(place, f"old-{number}"), OLD, records) for number, records in enumerate(snapshots)]


def merge_in_place(
    snapshots: list[list[Record]], rule: MergeRule, place: Location
) -> tuple[WrittenFile, CanonicalFile]:
    sources = tuple(InputFiles((file,), (ALL,)) for file in write_all(snapshots, place))
    key_groups, target = KeyGroupRange(0, OLD), join(place, "new")
    written = Collect("op", 0, HEADER, key_groups, sources, context(OLD), target, rule, batch=300).run()
    return written, reopen(target, key_groups, written.size, written.offsets, OLD)


def merge_and_move(
    snapshots: list[list[Record]], rule: MergeRule, place: Location
) -> tuple[WrittenFile, CanonicalFile]:
    sources = []
    for number, file in enumerate(write_all(snapshots, place)):
        target = join(place, f"spill-{number}")
        sources.append((Shuffle("op", file, ALL, NEW, target, Hasher(), block=400).run(),))
    key_groups, target = KeyGroupRange(0, NEW), join(place, "new")
    piece = Gather("op", 0, HEADER, key_groups, tuple(sources), context(NEW), target, rule, Hasher(), batch=300)
    written = piece.run()
    return written, reopen(target, key_groups, written.size, written.offsets, NEW)


WAYS = [(merge_in_place, OLD), (merge_and_move, NEW)]


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    snapshots=st.lists(RECORDS, min_size=1, max_size=3),
    rule=st.sampled_from([MergeRule.FIRST, MergeRule.LAST]),
    way=st.sampled_from(WAYS),
)
def test_one_record_of_each_key_stays(snapshots: list[list[Record]], rule: MergeRule, way: tuple[Merge, int]) -> None:
    merge, max_parallelism = way
    kept: dict[tuple[int, bytes], Record] = {}
    for records in snapshots if rule is MergeRule.LAST else reversed(snapshots):
        kept |= {(each.state, each.key): each for each in records}
    with tempfile.TemporaryDirectory() as directory:
        written, file = merge(snapshots, rule, resolve(directory))
        assert read([file], max_parallelism) == expect(kept.values(), max_parallelism)
    twice = sum(map(len, snapshots)) - len(kept)
    assert sum(each.records for each in written.duplicates.values()) == twice
    assert sum(count for _, count in written.records) == len(kept)


@pytest.mark.parametrize(("merge", "max_parallelism"), WAYS, ids=["in place", "moved"])
@pytest.mark.parametrize(
    ("state", "make"),
    [
        ("total", lambda number: value("twice", number)),
        ("items", lambda number: items("twice", number)),
        ("counts", lambda number: count("twice", "entry", number)),
    ],
)
def test_key_of_two_snapshots_is_refused(
    state: str, make: Callable[[int], Record], merge: Merge, max_parallelism: int, place: Location
) -> None:
    others = [value(f"k{number}", number) for number in range(40)]
    key_group = group_of("twice", max_parallelism)
    with pytest.raises(IncompatibleError, match=f"the key 'twice' .key group {key_group} of state {state}") as error:
        merge([[make(1), *others[:20]], [make(2), *others[20:]]], MergeRule.ERROR, place)
    assert (error.value.where.operator, error.value.where.state) == ("op", state)


@pytest.mark.parametrize(("merge", "max_parallelism"), WAYS, ids=["in place", "moved"])
def test_timers_are_a_set_and_entries_of_maps_are_apart(merge: Merge, max_parallelism: int, place: Location) -> None:
    left = [alarm("a", 7), alarm("a", 8), count("a", "x", 1)]
    right = [alarm("a", 8), alarm("b", 8), count("a", "y", None)]
    written, file = merge([left, right], MergeRule.ERROR, place)
    assert read([file], max_parallelism) == expect({*left, *right}, max_parallelism)
    assert {name: each.records for name, each in written.duplicates.items()} == {HEADER.states[TIMERS].name: 1}


def test_bytes_behind_the_null_of_a_map_do_not_count(place: Location) -> None:
    padded = replace(count("a", "x", None), value=b"\1\0\0")
    written, file = merge_and_move([[padded], [count("a", "x", 4)]], MergeRule.FIRST, place)
    assert read([file], NEW) == expect([padded], NEW)
    assert (written.states["counts"].bytes, written.duplicates["counts"].bytes) == (2 + 1 + 2 + 1, 2 + 1 + 2 + 9)


def test_key_twice_in_one_snapshot_is_refused_whatever_the_rule(place: Location) -> None:
    with pytest.raises(FormatError, match="one snapshot has this key twice: 'a'"):
        merge_in_place([[value("a", 1), value("a", 2)], [value("a", 3)]], MergeRule.FIRST, place)


def test_states_are_aligned_by_name() -> None:
    names = [info.name for info in HEADER.states]
    other = replace(HEADER, compressed=True, states=(HEADER.states[2], keyed("more"), HEADER.states[0]))
    header, pairs = align_headers([HEADER, other], dropped=["items"])
    assert [info.name for info in header.states] == [names[0], names[2], names[3], "more"]
    assert pairs == (((0, 0), (2, 1), (3, 2)), ((0, 1), (1, 3), (2, 0)))
    assert not header.compressed


def keyed(name: str, state_type: str = "VALUE", value: str = "Long") -> StateMetaInfo:
    return keyed_state(name, state_type, parse(value), VOID_NAMESPACE)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (keyed("total", value="Int"), r"serializers \(value serializer\) of the snapshots differ: Long and Int"),
        (keyed("total", "REDUCING"), "kinds of state of the snapshots differ: KEY_VALUE VALUE and KEY_VALUE REDUCING"),
        (
            keyed_state("total", "VALUE", parse("Long"), TIME_WINDOW),
            r"serializers \(namespace serializer\) of the snapshots differ: VoidNamespace and TimeWindow",
        ),
    ],
)
def test_state_of_another_form_is_refused(changed: StateMetaInfo, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as error:
        align_headers([HEADER, replace(HEADER, states=(changed,))])
    assert error.value.where.state == "total"
    assert "Migrate one of the snapshots first" in error.value.hint


def test_keys_of_another_form_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="keys of the snapshots differ: String and Long"):
        align_headers([HEADER, KeyedHeader(key_serializer=parse("Long"), states=())])


def test_other_version_of_a_serializer_is_told_apart() -> None:
    old = replace(STRING, snapshot_version=2)
    message = r"keys of the snapshots differ: String with \S+ version 2 and String with \S+ version 3"
    with pytest.raises(UnsupportedError, match=message):
        align_headers([replace(HEADER, key_serializer=old), HEADER])


OPEN = Opaque(snapshot_class="com.acme.P", snapshot_version=1, unknown_class="com.acme.P", raw=None)
PARTIAL = replace(
    HEADER,
    states=(HEADER.states[0], unread_state("_unread_state_1", BackendStateType.KEY_VALUE, OPEN)),
    raw=b"12345one",
)


def test_headers_that_are_read_in_part_are_aligned_when_they_are_stored_alike() -> None:
    header, pairs = align_headers([PARTIAL, replace(PARTIAL, compressed=True, raw=b"54321one")], dropped=["other"])
    assert header == PARTIAL
    assert pairs == 2 * (((0, 0), (1, 1)),)


@pytest.mark.parametrize(
    "headers",
    [
        [PARTIAL, replace(PARTIAL, raw=b"12345two")],
        [PARTIAL, replace(PARTIAL, states=PARTIAL.states[::-1])],
        [PARTIAL, HEADER],
        [HEADER, PARTIAL],
        # Changelog state has no header of its own.
        [replace(PARTIAL, raw=b"")],
    ],
    ids=["bytes", "order", "second", "first", "changelog"],
)
def test_other_headers_that_are_read_in_part_are_refused(headers: list[KeyedHeader]) -> None:
    files = ["one", "two"][: len(headers)]
    with pytest.raises(UnsupportedError, match=r"read only up to the snapshot of com.acme.P, whose end") as error:
        align_headers(headers, files=files)
    assert error.value.where.state == "_unread_state_1"
    assert error.value.where.file == ("two" if headers[0] is HEADER else "one")
    assert "--serializer 'com.acme.P=LAYOUT'" in error.value.hint


def test_no_state_is_dropped_from_a_header_that_is_read_in_part() -> None:
    with pytest.raises(UnsupportedError, match="no state can be dropped from it"):
        align_headers([PARTIAL], dropped=["total"])


def test_operator_headers_that_are_read_in_part_must_be_stored_alike() -> None:
    unread = OperatorHeader(lists=(unread_state("a", BackendStateType.OPERATOR, OPEN, "UNION"),), raw=b"one")
    check_operator_headers([unread, unread], (), ["one", "two"])
    for other in (replace(unread, raw=b"two"), OperatorHeader(lists=(operator_list("a", parse("Long")),))):
        with pytest.raises(UnsupportedError, match="files with another header cannot be joined with it") as error:
            check_operator_headers([other, unread], (), ["one", "two"])
        assert error.value.where.state == "a"


def test_operator_headers_may_differ_in_the_subclasses_that_each_has_met() -> None:
    pojo = parse("Pojo<com.acme.Event>(name: String)")
    assert isinstance(pojo, Pojo)
    met = replace(pojo, non_registered=(PojoSubclass(class_name="com.acme.Click", serializer=pojo),))
    headers = [OperatorHeader(lists=(operator_list("a", each),)) for each in (pojo, met)]
    check_operator_headers(headers, (), ["one", "two"])


def test_nothing_to_align() -> None:
    with pytest.raises(UsageError, match="no headers"):
        align_headers([])
