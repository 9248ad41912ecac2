"""Declarations: texts of every kind, and their way through operators that are renamed or taken."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest
from google.protobuf import descriptor_pb2

from state_pipelines.codecs.messages import MessageFormat
from state_pipelines.errors import MissingFileError, UsageError
from state_pipelines.metadata import compute_operator_id, format_operator_id
from state_pipelines.serializers.build import basic
from state_pipelines.snapshot import Declarations, declare
from state_pipelines.snapshot.declarations import KINDS

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = compute_operator_id("orders")
RENAMED = compute_operator_id("renamed")


def test_every_kind_is_a_field() -> None:
    assert {kind.name for kind in KINDS} == {field.name for field in fields(Declarations)} - {"texts"}


def test_messages_are_read_from_their_files(tmp_path: Path) -> None:
    descriptors, structs = tmp_path / "shop.desc", tmp_path / "orders.thrift"
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add(name="shop.proto").message_type.add(name="Order")
    descriptors.write_bytes(files.SerializeToString())
    structs.write_text("namespace java shop struct Item { 1: i32 count }")
    messages = declare({"protos": [str(descriptors)], "thrifts": [str(structs)]}).messages
    assert messages is not None
    assert messages.knows(MessageFormat.PROTOBUF, "Shop$Order")
    assert messages.knows(MessageFormat.THRIFT, "shop.Item")
    assert declare({}).messages is None


@pytest.mark.parametrize("kind", ["protos", "thrifts"])
def test_files_that_declare_no_messages_are_wrong_use(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"struct A { string \xff }")
    with pytest.raises(UsageError, match="file"):
        declare({kind: [str(file)]})


def test_the_name_of_a_spark_option() -> None:
    assert {kind.name: kind.spark_option for kind in KINDS}["key_serializers"] == "keySerializers"


def test_texts_are_parsed_and_kept() -> None:
    declared = declare({"uids": ["orders"], "key_serializers": ["orders=String"], "connectors": []})
    assert declared.uids == ("orders",)
    assert declared.key_serializers == {"orders": basic("String")}
    assert declared.texts == {"uids": ("orders",), "key_serializers": ("orders=String",)}


def test_one_string_is_split_and_blanks_are_dropped() -> None:
    kinds = {kind.name: kind for kind in KINDS}
    assert kinds["uids"].split("a, b,") == ("a", "b")
    assert kinds["key_serializers"].split("a=Map<String,Long>;b=Long;") == ("a=Map<String,Long>", "b=Long")


def test_several_files_of_classes(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("a.One: [x: int]")
    (tmp_path / "two.yaml").write_text("a.Two: [y: int]")
    classes = declare({"classes": [str(tmp_path / "one.yaml"), str(tmp_path / "two.yaml")]}).classes
    assert classes is not None
    assert set(classes.classes) == {"a.One", "a.Two"}


def test_a_file_of_classes_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="does not exist"):
        declare({"classes": [str(tmp_path / "none.yaml")]})


@pytest.mark.parametrize("text", ["orders", "=String", "orders="])
def test_a_text_without_operator_or_value(text: str) -> None:
    with pytest.raises(UsageError, match="OPERATOR=TYPE"):
        declare({"key_serializers": [text]})


def test_declarations_follow_a_renamed_operator() -> None:
    declared = Declarations(uids=("orders",), connectors={"orders": "kafka", "other": "kinesis"})
    assert declared.of_operator(ORDERS, RENAMED) == Declarations(connectors={format_operator_id(RENAMED): "kafka"})


def test_merged_declarations_hold_all_operators() -> None:
    one, other = Declarations(("a",), connectors={"a": "kafka"}), Declarations(("a", "b"), connectors={"b": "kinesis"})
    merged = one.merge(other)
    assert merged == Declarations(("a", "b"), connectors={"a": "kafka", "b": "kinesis"})


def test_the_command_line_has_every_option() -> None:
    from state_pipelines.cli.inspect import command

    options = {option for parameter in command.params for option in parameter.opts}
    assert {kind.flag for kind in KINDS} <= options
