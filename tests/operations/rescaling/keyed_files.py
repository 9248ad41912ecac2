"""Small canonical files with a state of every kind, String keys, and what lies in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.keyed.canonical import CanonicalFile, open_canonical
from state_pipelines.keyed.hashing import hash_codes
from state_pipelines.keyed.hashing.value_hashes import KeyHasher
from state_pipelines.keyed.header import KeyedHeader
from state_pipelines.keyed.key_groups import assign_key_group
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.metadata.streams import StateStream
from state_pipelines.serializers.build import VOID_NAMESPACE, timer
from state_pipelines.serializers.state_meta_info import keyed_state, priority_queue
from state_pipelines.serializers.text import parse
from state_pipelines.storage import create_file
from tests.keyed.canonical_files import make_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.storage import Location

STRING = parse("String")
TOTAL, ITEMS, COUNTS, TIMERS = range(4)
HEADER = KeyedHeader(
    key_serializer=STRING,
    states=(
        keyed_state("total", "VALUE", parse("Long"), VOID_NAMESPACE),
        keyed_state("items", "LIST", parse("List<Long>"), VOID_NAMESPACE),
        keyed_state("counts", "MAP", parse("Map<String, Long>"), VOID_NAMESPACE),
        priority_queue("_timer_state/event_user-timers", timer(STRING, VOID_NAMESPACE)),
    ),
)


@dataclass(frozen=True, order=True)
class Record:
    state: int
    user_key: str
    key: bytes
    value: bytes


@dataclass(frozen=True)
class Hasher(KeyHasher):
    """Knows the keys of one serializer, without its kernel."""

    key_serializer: Serializer = STRING
    layouts: LayoutContext = field(default_factory=LayoutContext)

    @property
    def has_kernel(self) -> bool:
        return False

    def hash_keys(self, records: KeyedRecords, *, skip: int = 0) -> npt.NDArray[np.int32]:
        assert not skip
        columns = plan_columns(derive_layout(self.key_serializer, self.layouts))
        keys = columns.decode(records.data, records.key_starts, records.key_ends, exact=False).array
        return hash_codes(self.key_serializer, keys)


def text(value: str) -> bytes:
    assert value.isascii()
    assert len(value) < 127
    return bytes([len(value) + 1]) + value.encode()


def value(key: str, number: int) -> Record:
    return Record(TOTAL, key, text(key) + b"\0", number.to_bytes(8, "big"))


def items(key: str, *numbers: int) -> Record:
    return Record(ITEMS, key, text(key) + b"\0", b",".join(number.to_bytes(8, "big") for number in numbers))


def count(key: str, name: str, number: int | None) -> Record:
    raw = b"\1" if number is None else b"\0" + number.to_bytes(8, "big")
    return Record(COUNTS, key, text(key) + b"\0" + text(name), raw)


def alarm(key: str, time: int) -> Record:
    return Record(TIMERS, key, ((1 << 63) + time).to_bytes(8, "big") + text(key) + b"\0", b"")


def group_of(key: str, max_parallelism: int) -> int:
    code = 0
    for unit in key.encode():
        code = (31 * code + unit) & 0xFFFFFFFF
    return assign_key_group(code, max_parallelism)


def context(max_parallelism: int) -> RecordContext:
    return RecordContext(max_parallelism, LayoutContext())


def write(
    place: Location,
    max_parallelism: int,
    records: Iterable[Record],
    header: KeyedHeader = HEADER,
    key_groups: KeyGroupRange | None = None,
) -> CanonicalFile:
    key_groups = key_groups or KeyGroupRange(0, max_parallelism)
    found: dict[tuple[int, int], list[tuple[bytes, bytes]]] = {}
    for each in records:
        found.setdefault((group_of(each.user_key, max_parallelism), each.state), []).append((each.key, each.value))
    runs = [(key_group, state, run) for (key_group, state), run in sorted(found.items()) if key_group in key_groups]
    data, offsets = make_file(header, key_groups, context(max_parallelism).prefix, runs)
    with create_file(place) as output:
        output.write(data)
    return reopen(place, key_groups, len(data), offsets, max_parallelism)


def reopen(
    place: Location, key_groups: KeyGroupRange, size: int, offsets: tuple[int, ...], max_parallelism: int
) -> CanonicalFile:
    stream = StateStream(str(place), size, location=place)
    return open_canonical(stream, key_groups, offsets, context(max_parallelism))


Content = list[tuple[str, int, bytes, bytes]]


def read(files: Iterable[KeyedFile], max_parallelism: int) -> Content:
    """(state, key group, key, value) of every record, sorted."""
    content = []
    for file in files:
        for state, records in file.scan(range(len(file.header.states))):
            raw = records.data.tobytes()
            spans = (records.key_starts, records.key_ends, records.value_starts, records.value_ends)
            for key_group, start, end, value_start, value_end in zip(
                records.key_groups.tolist(), *(each.tolist() for each in spans), strict=True
            ):
                content.append((file.header.states[state].name, key_group, raw[start:end], raw[value_start:value_end]))
    return sorted(content)


def expect(records: Iterable[Record], max_parallelism: int, header: KeyedHeader = HEADER) -> Content:
    return sorted(
        (header.states[each.state].name, group_of(each.user_key, max_parallelism), each.key, each.value)
        for each in records
    )


KEYS = st.text("abcdefgh", min_size=0, max_size=4)
NUMBERS = st.integers(0, 1 << 40)


def _unique(records: list[Record]) -> list[Record]:
    return list({(each.state, each.key): each for each in records}.values())


RECORDS = st.lists(
    st.one_of(
        st.builds(value, KEYS, NUMBERS),
        st.builds(lambda key, numbers: items(key, *numbers), KEYS, st.lists(NUMBERS, min_size=1, max_size=4)),
        st.builds(count, KEYS, KEYS, NUMBERS | st.none()),
        st.builds(alarm, KEYS, NUMBERS),
    ),
    max_size=40,
).map(_unique)
