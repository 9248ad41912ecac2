"""Changelog state with a serializer that nothing reads: its values are bytes, replayed as far as that needs no ends."""

from __future__ import annotations

import pytest

from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.changelog.changes import (
    MetadataChange,
    StateChangeOperation,
    read_metadata_change,
    write_metadata_change,
)
from state_pipelines.serializers.build import VOID_NAMESPACE, list_of, map_of
from state_pipelines.serializers.snapshot_classes import parse_declaration
from state_pipelines.serializers.state_meta_info import BackendStateType, StateMetaInfo, keyed_state
from state_pipelines.serializers.tree import Declared, Opaque
from tests.keyed.changelogs import (
    STRING,
    change,
    encode,
    in_memory,
    long,
    make_base,
    metadata,
    open_log,
    read,
    replay_one,
)
from tests.serializers.literals import utf
from tests.serializers.test_body_ends import NAME, unknown

KEY = long(3) + b"\0"
VALUE = keyed_state("purse", "VALUE", unknown(), VOID_NAMESPACE)
LIST = keyed_state("purses", "LIST", list_of(unknown()), VOID_NAMESPACE)
MAP = keyed_state("purse-by-name", "MAP", map_of(STRING, unknown()), VOID_NAMESPACE)


def count(number: int) -> bytes:
    return number.to_bytes(4, "big")


@pytest.mark.parametrize("info", [VALUE, LIST, MAP], ids=lambda info: info.name)
def test_the_end_of_the_unknown_snapshot_is_found(info: StateMetaInfo) -> None:
    written = write_metadata_change(MetadataChange(info=info, state_id=7, default_value=b"abc"))
    assert read_metadata_change(written) == MetadataChange(info=info, state_id=7, default_value=b"abc")


def test_a_declared_class_is_read() -> None:
    written = write_metadata_change(MetadataChange(info=VALUE, state_id=7))
    declared = parse_declaration(f"{NAME}(utf, i32)=Struct(f0: utf, f1: i32)")
    found = read_metadata_change(written, None, (declared,))
    assert isinstance(found.info.value_serializer, Declared)
    assert found.state_id == 7


def test_a_state_whose_snapshots_have_no_proven_end_keeps_name_and_id() -> None:
    info = keyed_state("purse", "VALUE", STRING, unknown(b"\0\0\0"))
    found = read_metadata_change(write_metadata_change(MetadataChange(info=info, state_id=9)))
    assert (found.info.name, found.info.backend_type, found.state_id) == ("purse", BackendStateType.KEY_VALUE, 9)
    assert found.info.value_serializer == STRING
    assert isinstance(found.info.namespace_serializer, Opaque)


def test_the_last_bytes_of_a_value_stay() -> None:
    changes = [change(5, StateChangeOperation.SET, KEY + text) for text in (b"old", b"new value")]
    assert replay_one(VALUE, changes) == {(5, KEY): b"new value"}


def test_values_of_the_base_stay_and_are_removed() -> None:
    other = long(4) + b"\0"
    base = make_base(VALUE, [(5, KEY, b"kept"), (5, other, b"removed")])
    log = in_memory([metadata(VALUE, 0), change(5, StateChangeOperation.CLEAR, other)])
    assert read(open_log(log, bases=[base]))["purse"] == {(5, KEY): b"kept"}


def test_elements_are_appended() -> None:
    changes = [
        change(5, StateChangeOperation.SET, KEY + count(1) + b"one"),
        change(5, StateChangeOperation.ADD_ELEMENT, KEY + b"two"),
        change(5, StateChangeOperation.ADD, KEY + count(0)),
    ]
    assert replay_one(LIST, changes) == {(5, KEY): b"one,two"}


def test_entries_of_a_map_are_put_and_removed() -> None:
    a, b = encode(STRING, "a"), encode(STRING, "b")
    changes = [
        change(5, StateChangeOperation.ADD_OR_UPDATE_ELEMENT, KEY + a + b"purse a"),
        change(5, StateChangeOperation.ADD, KEY + count(1) + b + b"\0purse b"),
        change(5, StateChangeOperation.REMOVE_ELEMENT, KEY + a),
    ]
    assert replay_one(MAP, changes) == {(5, KEY + b): b"\0purse b"}


@pytest.mark.parametrize(("info", "first"), [(LIST, b""), (MAP, utf(""))], ids=lambda each: str(each))
def test_several_values_in_one_change_have_no_known_ends(info: StateMetaInfo, first: bytes) -> None:
    changes = [change(5, StateChangeOperation.ADD, KEY + count(2) + first + b"\0one\0two")]
    with pytest.raises(UnsupportedError, match="a logged change holds several values") as caught:
        replay_one(info, changes)
    assert f"--serializer '{NAME}=LAYOUT'" in caught.value.hint
