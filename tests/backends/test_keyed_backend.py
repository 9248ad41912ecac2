from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.backends.entry_store import HeapStore
from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.keyed.digests import RecordDigest
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.keyed.keyed_file import digest_states
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, list_of, map_of, timer, tuple_of
from state_pipelines.serializers.state_meta_info import keyed_state, operator_list, priority_queue
from tests.snapshots import LARGE, OWN, Case

if TYPE_CHECKING:
    from state_pipelines.snapshot import Operator

LAYOUTS = LayoutContext()
STRING, LONG = basic("String"), basic("Long")
VALUE = keyed_state("value", "VALUE", LONG, VOID_NAMESPACE)
ALL = KeyGroupRange(0, 128)


def make_backend(key_groups: KeyGroupRange = ALL) -> KeyedStateBackend:
    return KeyedStateBackend(HeapStore(1), STRING, key_groups, 128, LAYOUTS)


def test_a_state_is_registered_once() -> None:
    backend = make_backend()
    assert backend.register(VALUE) is backend.register(VALUE)
    assert backend.states == (VALUE,)


def test_only_keyed_state_is_registered() -> None:
    backend = make_backend()
    with pytest.raises(UsageError):
        backend.register(operator_list("offsets", LONG))
    with pytest.raises(UsageError):
        backend.register(priority_queue("timers", timer(STRING, VOID_NAMESPACE)))
    with pytest.raises(UsageError):
        backend.register_timers(VALUE)
    assert backend.states == ()


def test_methods_of_other_kinds_are_refused() -> None:
    backend = make_backend()
    backend.set_current_key("a")
    value = backend.register(VALUE)
    entries = backend.register(keyed_state("map", "MAP", map_of(STRING, LONG), VOID_NAMESPACE))
    for call in (
        lambda: value.append([1]),
        lambda: value.get_entry("x"),
        lambda: value.put_entry("x", 1),
        lambda: value.entries(),
        lambda: entries.append([1]),
    ):
        with pytest.raises(UsageError, match="Register it as"):
            call()


def test_elements_without_bytes_are_refused() -> None:
    backend = make_backend()
    backend.set_current_key("a")
    table = backend.register(keyed_state("list", "LIST", list_of(tuple_of(basic("NullValue"))), VOID_NAMESPACE))
    with pytest.raises(UnsupportedError, match="no bytes"):
        table.append([{"f0": None}])


def test_state_is_restored_before_it_is_registered() -> None:
    backend = make_backend()
    source = make_backend().as_file()
    backend.register(VALUE)
    with pytest.raises(UsageError, match="before"):
        backend.restore([source])


def test_another_max_parallelism_is_refused() -> None:
    other = KeyedStateBackend(HeapStore(2), STRING, KeyGroupRange(0, 256), 256, LAYOUTS)
    with pytest.raises(UsageError, match="256 key groups"):
        make_backend().restore([other.as_file()])


def sum_digests(parts: list[dict[str, RecordDigest]]) -> dict[str, RecordDigest]:
    total: dict[str, RecordDigest] = {}
    for part in parts:
        for name, digest in part.items():
            total[name] = total.get(name, RecordDigest()) + digest
    return total


def restore_operator(operator: Operator, parallelism: int) -> list[KeyedStateBackend]:
    files = [file for _, file in operator.keyed_files]
    context = operator.record_context
    key = files[0].header.key_serializer
    backends = []
    for subtask in range(parallelism):
        groups = compute_key_group_range(subtask, parallelism, operator.max_parallelism)
        backend = KeyedStateBackend(HeapStore(context.prefix), key, groups, operator.max_parallelism, context.layouts)
        backend.restore([file for file in files if file.key_groups.intersect(groups)])
        backends.append(backend)
    return backends


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "parallelism"), [(case, (1, 3)[number % 2]) for number, case in enumerate([*OWN, *LARGE])], ids=str
)
def test_records_of_real_snapshots_are_kept(case: Case, parallelism: int) -> None:
    restored = 0
    for operator in case.open_told().operators:
        if not operator.keyed_files:
            continue
        backends = restore_operator(operator, parallelism)
        everything = KeyGroupRange(0, operator.max_parallelism)
        before = sum_digests([digest_states(file, everything) for _, file in operator.keyed_files])
        after = sum_digests([digest_states(each.as_file(), each.key_groups) for each in backends])
        assert after == before
        restored += sum(digest.records for digest in after.values())
    # All records of a drained snapshot are in flight.
    assert restored or case.drained
