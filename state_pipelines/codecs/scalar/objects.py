"""Scalar codec of values of several shapes: `Either`, tagged values and POJOs with subclasses."""

from __future__ import annotations

from enum import IntEnum

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.scalar.dispatch import expect_fields, read, read_fields, write, write_fields
from state_pipelines.codecs.scalar.leaves import Value, expect
from state_pipelines.errors import UnsupportedError, ValueRangeError, Where


class _Pojo(IntEnum):
    """The flag byte of a POJO (`PojoSerializer`)."""

    NULL = 1
    EXACT = 2
    BY_NAME = 4
    REGISTERED = 8


@read.register
def _(layout: lay.Choice, reader: Reader, tail: bool) -> Value:
    is_left = reader.bool()
    side = "left" if is_left else "right"
    chosen = read_fields(((side, layout.left if is_left else layout.right),), reader, tail)
    return {"is_left": is_left, "left": None, "right": None, **chosen}


@write.register
def _(layout: lay.Choice, writer: Writer, value: Value) -> None:
    sides = (("left", layout.left), ("right", layout.right))
    is_left = expect(expect_fields(sides, value, "is_left").get("is_left"), bool, "a value of is_left")
    if value["right" if is_left else "left"] is not None:
        raise ValueRangeError("both sides of an Either have a value")
    writer.bool(is_left)
    write_fields(sides[:1] if is_left else sides[1:], writer, value)


@read.register
def _(layout: lay.Tagged, reader: Reader, tail: bool) -> Value:
    start, tag = reader.position, reader.u8() if layout.width == 1 else reader.i32()
    for each, name, child in layout.cases:
        if each == tag:
            return {"case": name, "value": read_fields(((name, child),), reader, tail)[name]}
    raise reader.error(f"{tag} is not a known tag", start)


@write.register
def _(layout: lay.Tagged, writer: Writer, value: Value) -> None:
    case = expect(value, dict, "a dict of case and value").get("case")
    for tag, name, child in layout.cases:
        if name == case and value.keys() == {"case", "value"}:
            if layout.width == 1:
                writer.u8(tag)
            else:
                writer.i32(tag)
            write_fields(((name, child),), writer, {name: value["value"]})
            return
    raise ValueRangeError(f"{case!r:.80} is not one of {', '.join(name for _, name, _ in layout.cases)}")


@read.register
def _(layout: lay.PojoObject, reader: Reader, tail: bool) -> Value:
    start, flag = reader.position, reader.u8()
    match flag:
        case _Pojo.NULL:
            return None
        case _Pojo.EXACT:
            optional = tuple((name, lay.Optional(child)) for name, child in layout.fields)
            return {"class": layout.class_name, **read_fields(optional, reader, tail)}
        case _Pojo.REGISTERED:
            tag = reader.u8()
            variant = next((each for each in layout.variants if each.tag == tag), None)
            what = f"registered subclass {tag}"
        case _Pojo.BY_NAME:
            name = reader.utf()
            variant = next((each for each in layout.variants if each.tag is None and each.class_name == name), None)
            what = f"class {name}"
        case _:
            raise reader.error(f"{flag} is not a flag of a POJO", start)
    if variant is None:
        raise UnsupportedError(
            f"an object is of {what}, which the serializer of {layout.class_name} does not list",
            where=Where(file=reader.name, offset=start),
            hint="Declare the class (`--classes`); a snapshot of the RocksDB backend lists every class that occurs",
        )
    value = read(variant.layout, reader, tail)
    if value is None:
        raise reader.error(f"an object of {what} is null", start)
    return value


@write.register
def _(layout: lay.PojoObject, writer: Writer, value: Value) -> None:
    if value is None:
        writer.u8(_Pojo.NULL)
        return
    own = value.get("class") or layout.class_name if isinstance(value, dict) else None
    name = own or getattr(value, "class_name", None)
    if name == layout.class_name:
        expect_fields(layout.fields, value, "class")
        writer.u8(_Pojo.EXACT)
        write_fields(tuple((each, lay.Optional(child)) for each, child in layout.fields), writer, value)
        return
    variant = next((each for each in layout.variants if each.class_name == name), None)
    if variant is None:
        raise ValueRangeError(f"{value!r:.80} is not an object of {layout.class_name} or a subclass that is listed")
    if variant.tag is None:
        writer.u8(_Pojo.BY_NAME)
        writer.utf(variant.class_name)
    else:
        writer.u8(_Pojo.REGISTERED)
        writer.u8(variant.tag)
    write(variant.layout, writer, value)
