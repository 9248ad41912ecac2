"""Headers with snapshots that nothing reads: where their bodies end, as far as that can be proven."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import FormatError, UnsupportedError, UsageError
from state_pipelines.keyed.header import (
    KeyedHeader,
    name_states,
    read_keyed_header,
    settle_keyed_header,
    write_keyed_header,
)
from state_pipelines.operatorstate import settle_operator_header
from state_pipelines.serializers.build import VOID_NAMESPACE, basic, list_of, map_of
from state_pipelines.serializers.registry import write_nested
from state_pipelines.serializers.snapshot_classes import (
    ADAPTER_VERSION,
    MAX_WORK,
    DeclaredSerializer,
    OpenBodyError,
    parse_declaration,
    read_settled,
)
from state_pipelines.serializers.state_meta_info import (
    BackendStateType,
    StateMetaInfo,
    broadcast_state,
    keyed_state,
    operator_list,
    write_state_meta_infos,
)
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import Declared, Opaque, Serializer
from tests.serializers.literals import utf

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader

NAME = "com.acme.PurseSerializer$PurseSnapshot"
BODY = utf("cents of EUR") + bytes.fromhex("00000002")


def unknown(body: bytes = BODY, name: str = NAME, version: int = 4) -> Opaque:
    return Opaque(snapshot_class=name, snapshot_version=version, unknown_class=name, raw=body)


def header(*states: StateMetaInfo, key: Serializer | None = None) -> bytes:
    writer = Writer()
    write_keyed_header(writer, KeyedHeader(key_serializer=key or basic("String"), states=states))
    return writer.getvalue()


def value(name: str, serializer: Serializer) -> StateMetaInfo:
    return keyed_state(name, "VALUE", serializer, VOID_NAMESPACE)


def settle(data: bytes, *declared: DeclaredSerializer) -> KeyedHeader:
    found, end = settle_keyed_header(data, "f", len(data), declared)
    assert end == len(data)
    return found


def rewrite(found: KeyedHeader) -> bytes:
    writer = Writer()
    write_keyed_header(writer, found)
    return writer.getvalue()


@pytest.mark.parametrize("body", [b"", BODY, b"\0" * 40, bytes(range(256))], ids=["empty", "text", "zeros", "all"])
def test_the_body_of_a_value_ends_where_the_next_serializer_begins(body: bytes) -> None:
    data = header(value("a", basic("Long")), value("b", unknown(body)), value("c", basic("Int")))
    found = settle(data)
    assert [(info.name, info.value_serializer) for info in found.states] == [
        ("a", basic("Long")),
        ("b", unknown(body)),
        ("c", basic("Int")),
    ]
    assert (rewrite(found), found.raw) == (data, b"")


def test_the_last_serializer_of_the_header_ends_with_it() -> None:
    last = keyed_state("a", "VALUE", basic("Long"), unknown())
    assert settle(header(last)).states == (last,)


def test_the_body_of_the_key_serializer_ends_before_the_number_of_states() -> None:
    data = header(value("a", basic("Long")), value("b", basic("Int")), key=unknown())
    found = settle(data)
    assert found.key_serializer == unknown()
    assert [info.name for info in found.states] == ["a", "b"]


def test_an_unknown_serializer_nested_in_a_known_one() -> None:
    found = settle(header(value("a", list_of(unknown())), value("b", map_of(basic("String"), unknown()))))
    texts = [describe(info.value_serializer) for info in found.states]
    assert texts == [f"List<Opaque<{NAME}>>", f"Map<String, Opaque<{NAME}>>"]


def test_several_unknown_serializers() -> None:
    states = [value(f"state-{number}", unknown(BODY + bytes([number]))) for number in range(30)]
    assert settle(header(*states)).states == tuple(states)


def test_a_config_snapshot_begins_with_its_java_object() -> None:
    """The names in a Java object look like those of snapshots that are nested."""
    names = utf("com.acme.Coder") + b"\0" * 8
    body = bytes.fromhex("00000001") + len(names).to_bytes(4, "big") + names + bytes.fromhex("00000001")
    adapter = unknown(body, version=ADAPTER_VERSION)
    found = settle(header(value("a", map_of(adapter, basic("String"))), value("b", basic("Int"))))
    assert describe(found.states[0].value_serializer) == f"Map<Opaque<{NAME}>, String>"


def test_nested_snapshots_that_can_be_split_in_two_ways_are_taken_as_a_whole() -> None:
    """The body holds what looks like the next nested snapshot."""
    body = utf("com.acme.Other") + bytes.fromhex("00000001")
    data = header(value("a", map_of(unknown(body), unknown(b"xyz"))), value("b", basic("Int")))
    found = settle(data)
    first = found.states[0].value_serializer
    assert isinstance(first, Opaque)
    assert first.snapshot_class.endswith("MapSerializerSnapshot")
    assert "cannot be separated" in first.reason
    assert found.states[1] == value("b", basic("Int"))
    assert rewrite(found) == data


def test_a_header_that_can_be_split_in_two_ways_is_left_open() -> None:
    """The body holds the begin of another state, one of whose options could take all bytes up to the end."""
    last = StateMetaInfo(name="b", backend_type=BackendStateType.KEY_VALUE, options=(), serializers=())
    size = len(header(last)) - len(header()) - 4
    body = utf("fake") + bytes(4) + bytes.fromhex("00000001") + utf("option") + size.to_bytes(2, "big")
    data = header(keyed_state("a", "VALUE", basic("Long"), unknown(body)), last)
    found = settle(data)
    assert [info.name for info in found.states] == ["a", "_unread_state_1"]
    assert found.raw == data
    assert rewrite(found) == data
    (stand_in, _) = found.states[1].serializers
    assert isinstance(stand_in[1], Opaque)
    assert "whose end is not known" in stand_in[1].reason


@pytest.mark.slow
def test_a_search_for_ends_is_given_up_after_a_bounded_number_of_bytes() -> None:
    """Each of some thousand texts in two bodies could be the class of the next nested snapshot."""
    body = utf("com.acme.Coder") * 2_000
    data = header(value("a", map_of(unknown(body), unknown(body))))
    read = 0

    def parse(reader: Reader) -> KeyedHeader:
        nonlocal read
        try:
            return read_keyed_header(reader)
        finally:
            read += reader.position

    with pytest.raises(OpenBodyError):
        read_settled(parse, data, "f", end=len(data))
    assert MAX_WORK // 2 < read < MAX_WORK + 2 * len(data)


def test_states_after_an_open_body_are_stand_ins() -> None:
    data = header(value("a", basic("Long")), value("b", unknown()), value("c", basic("Int")))
    found, end = settle_keyed_header(data, "f", None)
    assert end == -1
    assert [info.name for info in found.states] == ["a", "b", "_unread_state_2"]
    assert found.states[0] == value("a", basic("Long"))


def test_states_of_a_database_are_named_in_the_order_of_their_ids() -> None:
    """The order of the column families of a database is another one where somebody has changed it."""
    types = {"b": unknown(utf("c") + utf("d"))}
    data = header(*(value(name, types.get(name, basic("Int"))) for name in "abdc"))
    found, _ = settle_keyed_header(data, "f", None)
    for names in (["a", "b", "c", "d"], ["d", "c", "b", "a"]):
        assert [info.name for info in name_states(found, names, "f").states] == ["a", "b", "d", "c"]


def test_states_whose_order_the_header_does_not_tell_are_refused() -> None:
    data = header(value("a", unknown(utf("c") + bytes(4))), value("b", basic("Int")), value("c", basic("Int")))
    found, _ = settle_keyed_header(data, "f", None)
    assert [info.name for info in found.states][1:] == ["_unread_state_1", "_unread_state_2"]
    for names in (["b", "c"], ["b", "other"]):
        with pytest.raises(UnsupportedError, match=r"does not tell the order .* \[file f\]"):
            name_states(found, names, "f")


def test_of_a_key_serializer_without_end_nothing_is_known() -> None:
    with pytest.raises(OpenBodyError, match="no reader is registered"):
        settle_keyed_header(header(value("a", basic("Long")), key=unknown()), "f", None)


def test_damage_is_not_taken_for_an_unknown_serializer() -> None:
    with pytest.raises(FormatError):
        settle(header(value("a", basic("Long")))[:-1])


def test_another_version_of_a_known_class_is_unknown_too() -> None:
    (found,) = settle(header(value("a", basic("Long")))[:-1] + b"\x63").states
    assert isinstance(found.namespace_serializer, Opaque)
    assert "version 99" in found.namespace_serializer.reason


def write_operator(lists: tuple[StateMetaInfo, ...], broadcasts: tuple[StateMetaInfo, ...]) -> bytes:
    writer = Writer()
    writer.i32(6)
    writer.bool(False)
    write_state_meta_infos(writer, lists)
    write_state_meta_infos(writer, broadcasts)
    return writer.getvalue()


def test_operator_state_is_settled_before_its_broadcast_states() -> None:
    lists = (operator_list("a", unknown()), operator_list("b", unknown(b"")))
    broadcasts = (broadcast_state("c", basic("Int"), unknown()),)
    data = write_operator(lists, broadcasts)
    found, end = settle_operator_header(data, "f", len(data), {})
    assert (found.lists, found.broadcasts, end) == (lists, broadcasts, len(data))


def test_names_and_modes_of_unread_operator_states_come_from_the_metadata() -> None:
    data = write_operator((operator_list("a", unknown(b"")),), ()) + b"\xff"
    modes = {"a": "SPLIT_DISTRIBUTE", "b": "UNION", "c": "BROADCAST"}
    found, _ = settle_operator_header(data, "f", len(data), modes)
    assert [(info.name, info.distribution_mode) for info in (*found.lists, *found.broadcasts)] == [*modes.items()]
    assert found.raw == data


DATA = header(value("a", unknown()), value("b", basic("Int")))


@pytest.mark.parametrize(
    "text", [f"{NAME}=Struct(f0: utf, f1: i32)", f"{NAME}(utf, i32)=i64", f"{NAME}(bytes(18))=List(Map(utf, i8))"]
)
def test_a_declared_class_is_a_node_of_its_own(text: str) -> None:
    node = settle(DATA, parse_declaration(text)).states[0].value_serializer
    assert isinstance(node, Declared)
    assert (node.raw, node.layout) == (BODY, text.partition("=")[2])


def test_the_body_of_a_declared_class_is_empty_unless_it_must_not_be() -> None:
    data = header(value("a", map_of(unknown(b""), unknown(b""))))
    (found,) = settle(data, parse_declaration(f"{NAME}=i64")).states
    assert [type(each) for each in found.value_serializer.nested] == [Declared, Declared]


def test_a_declared_body_with_a_nested_snapshot() -> None:
    writer = Writer()
    writer.utf("label")
    write_nested(writer, basic("Long"))
    data = header(value("a", unknown(writer.getvalue())))
    (found,) = settle(data, parse_declaration(f"{NAME}(utf, snapshot)=Struct(x: nested0)")).states
    assert found.value_serializer.nested == (basic("Long"),)
    assert rewrite(settle(data, parse_declaration(f"{NAME}(utf, snapshot)=nested0"))) == data


def test_a_declared_body_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(FormatError):
        settle(DATA, parse_declaration(f"{NAME}(utf)=i64"))


@pytest.mark.parametrize("text", ["", "a.B", "=i32", "a.B=", "a.B(x)=i32", "a/B=i32", "a.B(bytes(x))=i32"])
def test_a_text_that_is_no_declaration(text: str) -> None:
    with pytest.raises(UsageError):
        parse_declaration(text)
