from __future__ import annotations

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError, NotFoundError, UnknownSerializerError, UsageError
from state_pipelines.serializers import build
from state_pipelines.serializers.state_meta_info import (
    BackendStateType,
    StateMetaInfo,
    broadcast_state,
    keyed_state,
    operator_list,
    priority_queue,
    read_state_meta_info,
    read_state_meta_infos,
    write_state_meta_info,
    write_state_meta_infos,
)
from tests.serializers.literals import LONG_CLASS, STRING_CLASS, UNKNOWN_CLASS, i32, outer, utf

LONG, STRING = build.basic("Long"), build.basic("String")
VOID_CLASS = "org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot"

VALUE_STATE = (
    utf("state-name")
    + i32(0)
    + i32(1)
    + utf("KEYED_STATE_TYPE")
    + utf("VALUE")
    + i32(2)
    + utf("VALUE_SERIALIZER")
    + outer(LONG_CLASS, 3)
    + utf("NAMESPACE_SERIALIZER")
    + outer(VOID_CLASS, 3)
)
BROADCAST_STATE = (
    utf("rules")
    + i32(2)
    + i32(1)
    + utf("OPERATOR_STATE_DISTRIBUTION_MODE")
    + utf("BROADCAST")
    + i32(2)
    + utf("VALUE_SERIALIZER")
    + outer(STRING_CLASS, 3)
    + utf("KEY_SERIALIZER")
    + outer(LONG_CLASS, 3)
)
QUEUE = utf("_timer_state/event_t") + i32(3) + i32(0) + i32(1) + utf("VALUE_SERIALIZER") + outer(LONG_CLASS, 3)

INFOS = {
    "keyed": (VALUE_STATE, keyed_state("state-name", "VALUE", LONG, build.VOID_NAMESPACE)),
    "broadcast": (BROADCAST_STATE, broadcast_state("rules", LONG, STRING)),
    "priority queue": (QUEUE, priority_queue("_timer_state/event_t", LONG)),
}


@pytest.mark.parametrize(("data", "info"), INFOS.values(), ids=INFOS)
def test_meta_info_is_read(data: bytes, info: StateMetaInfo) -> None:
    reader = Reader(data)
    assert read_state_meta_info(reader) == info
    assert reader.remaining == 0


@pytest.mark.parametrize(("data", "info"), INFOS.values(), ids=INFOS)
def test_meta_info_is_written(data: bytes, info: StateMetaInfo) -> None:
    writer = Writer()
    write_state_meta_info(writer, info)
    assert writer.getvalue() == data


def test_the_order_of_serializers_is_kept() -> None:
    value, namespace = ("VALUE_SERIALIZER", LONG), ("NAMESPACE_SERIALIZER", build.VOID_NAMESPACE)
    info = StateMetaInfo(name="s", backend_type=BackendStateType.KEY_VALUE, options=(), serializers=(namespace, value))
    writer = Writer()
    write_state_meta_info(writer, info)
    assert read_state_meta_info(Reader(writer.getvalue())) == info


def test_properties_of_keyed_state() -> None:
    info = keyed_state("s", "VALUE", LONG, build.VOID_NAMESPACE)
    assert (info.state_type, info.value_serializer, info.namespace_serializer) == ("VALUE", LONG, build.VOID_NAMESPACE)


def test_keyed_state_has_no_distribution_mode() -> None:
    assert keyed_state("s", "VALUE", LONG, build.VOID_NAMESPACE).distribution_mode is None


def test_properties_of_operator_state() -> None:
    info = operator_list("s", LONG, "UNION")
    assert (info.state_type, info.distribution_mode, info.element) == (None, "UNION", LONG)


def test_properties_of_broadcast_state() -> None:
    info = broadcast_state("s", STRING, LONG)
    assert (info.key_serializer, info.value_serializer) == (STRING, LONG)


def test_the_element_of_list_state_is_inside_the_list() -> None:
    assert keyed_state("s", "LIST", build.list_of(LONG), build.VOID_NAMESPACE).element == LONG


def test_the_element_of_a_priority_queue_is_the_timer() -> None:
    timer = build.timer(STRING, build.VOID_NAMESPACE)
    assert priority_queue("q", timer).element == timer


def test_list_state_of_the_asynchronous_api_stores_the_bare_element() -> None:
    info = StateMetaInfo(
        name="s",
        backend_type=BackendStateType.KEY_VALUE_V2,
        options=(("KEYED_STATE_TYPE", "LIST"),),
        serializers=(("VALUE_SERIALIZER", LONG),),
    )
    assert info.element == LONG


def test_map_state_has_no_element() -> None:
    with pytest.raises(UsageError, match=r"a MAP state has no elements \[state s\]"):
        _ = keyed_state("s", "MAP", build.map_of(LONG, LONG), build.VOID_NAMESPACE).element


def test_a_serializer_that_is_not_stored_is_named() -> None:
    with pytest.raises(NotFoundError, match=r"stores no NAMESPACE_SERIALIZER \(stored: VALUE_SERIALIZER\) \[state q\]"):
        _ = priority_queue("q", LONG).namespace_serializer


def test_an_unknown_serializer_names_state_and_class() -> None:
    data = utf("my state") + i32(3) + i32(0) + i32(1) + utf("VALUE_SERIALIZER") + outer(UNKNOWN_CLASS, 1)
    with pytest.raises(UnknownSerializerError, match=rf"{UNKNOWN_CLASS} \[file f, offset \d+, state my state\]"):
        read_state_meta_info(Reader(data, "f"))


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FormatError, match="5 is not a kind of state"):
        read_state_meta_info(Reader(utf("s") + i32(5) + bytes(8)))


def test_several_meta_infos_round_trip() -> None:
    infos = tuple(info for _, info in INFOS.values())
    writer = Writer()
    write_state_meta_infos(writer, infos)
    assert writer.getvalue() == b"\0\3" + VALUE_STATE + BROADCAST_STATE + QUEUE
    assert read_state_meta_infos(Reader(writer.getvalue())) == infos


@pytest.mark.parametrize("count", ["ffff", "7fff"])
def test_a_count_that_cannot_fit_is_refused(count: str) -> None:
    with pytest.raises(FormatError, match="states do not fit"):
        read_state_meta_infos(Reader(bytes.fromhex(count) + VALUE_STATE))
