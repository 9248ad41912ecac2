"""Messages of Protobuf by their descriptors."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2

from state_pipelines.codecs.java import MapValue
from state_pipelines.codecs.messages import MessageFormat, MessageTypes
from state_pipelines.codecs.protobuf import ProtobufTypes
from state_pipelines.errors import FormatError, UsageError

FIELD = descriptor_pb2.FieldDescriptorProto


def make_set(**options: object) -> bytes:
    """`acme/shop_order.proto` with a message Order of every kind of field."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="acme/shop_order.proto", package="acme", syntax="proto3")
    for name, value in options.items():
        setattr(file.options, name, value)
    status = file.enum_type.add(name="Status")
    status.value.add(name="OPEN", number=0)
    status.value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    order.nested_type.add(name="Item").field.add(name="sku", number=1, type=FIELD.TYPE_STRING, label=1)
    entry = order.nested_type.add(name="TotalsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FIELD.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=FIELD.TYPE_INT64, label=1)
    order.field.add(name="id", number=1, type=FIELD.TYPE_INT64, label=1)
    order.field.add(name="status", number=2, type=FIELD.TYPE_ENUM, type_name=".acme.Status", label=1)
    order.field.add(name="items", number=3, type=FIELD.TYPE_MESSAGE, type_name=".acme.Order.Item", label=3)
    order.field.add(name="totals", number=4, type=FIELD.TYPE_MESSAGE, type_name=".acme.Order.TotalsEntry", label=3)
    order.field.add(name="raw", number=5, type=FIELD.TYPE_BYTES, label=1)
    order.field.add(name="first", number=6, type=FIELD.TYPE_MESSAGE, type_name=".acme.Order.Item", label=1)
    return bytes(files.SerializeToString())


def test_a_message_has_its_fields_by_name() -> None:
    raw = bytes.fromhex("080710011a040a02783122050a016110052a0200ff")
    assert ProtobufTypes([make_set()]).decode("acme.ShopOrder$Order", raw) == {
        "id": 7,
        "status": "PAID",
        "items": [{"sku": "x1"}],
        "totals": MapValue("java.util.Map", (("a", 5),)),
        "raw": b"\0\xff",
        "first": None,
    }


def test_unknown_constants_are_numbers() -> None:
    assert ProtobufTypes([make_set()]).decode("acme.ShopOrder$Order", bytes.fromhex("1009"))["status"] == 9


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "acme.ShopOrder$Order"),
        ({"java_package": "com.acme"}, "com.acme.ShopOrder$Order"),
        ({"java_outer_classname": "Orders"}, "acme.Orders$Order"),
        ({"java_multiple_files": True, "java_package": "com.acme"}, "com.acme.Order"),
    ],
)
def test_java_classes_are_named_as_protoc_names_them(options: dict[str, object], name: str) -> None:
    types = MessageTypes(protobuf=(make_set(**options),))
    assert types.knows(MessageFormat.PROTOBUF, name)
    assert types.knows(MessageFormat.PROTOBUF, f"{name}$Item")


def test_an_outer_class_does_not_take_the_name_of_a_message() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add(name="order.proto").message_type.add(name="Order")
    assert [*ProtobufTypes([files.SerializeToString()]).classes] == ["OrderOuterClass$Order"]


def test_bytes_of_another_message_are_refused() -> None:
    with pytest.raises(FormatError, match=r"are not a message acme\.Order"):
        ProtobufTypes([make_set()]).decode("acme.ShopOrder$Order", b"\x08")


def test_a_file_that_is_no_descriptor_set_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="not a FileDescriptorSet"):
        ProtobufTypes([b"syntax = 'proto3';"])


def test_imports_belong_to_the_set() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add(name="a.proto", dependency=["b.proto"])
    with pytest.raises(UsageError, match=r"lacks b\.proto, which a\.proto imports"):
        ProtobufTypes([files.SerializeToString()])


@pytest.mark.parametrize(
    ("sound", "damaged"), [(b".acme.Status", b".acme.Stawus"), (b"shop_order", b"shop\xff\xfeder")]
)
def test_descriptors_that_are_not_valid_are_refused(sound: bytes, damaged: bytes) -> None:
    with pytest.raises(UsageError, match=r"the descriptor set of Protobuf is not valid|is not a FileDescriptorSet"):
        ProtobufTypes([make_set().replace(sound, damaged)])


@pytest.mark.parametrize("repeated", [True, False])
def test_a_map_whose_entries_are_not_described_is_refused(*, repeated: bool) -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(make_set())
    (entry,) = (
        each
        for file in files.file
        for message in file.message_type
        for each in message.nested_type
        if each.options.map_entry
    )
    (field,) = (
        each
        for file in files.file
        for message in file.message_type
        for each in message.field
        if each.type_name.endswith(f".{entry.name}")
    )
    if repeated:
        entry.field[1].name = "other"
    else:
        field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    types = ProtobufTypes([files.SerializeToString()])
    with pytest.raises(UsageError, match="is a map without entries"):
        types.decode("acme.ShopOrder$Order", bytes.fromhex("0807"))
