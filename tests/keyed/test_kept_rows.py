"""Rows of tables that cannot be decoded: their bytes and a reason stand beside the others, and are written back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from state_pipelines.binary.data_views import Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.kryo import load_classes
from state_pipelines.codecs.scalar import write_value
from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.record_layout import KeyedLayout
from state_pipelines.keyed.state_table import KeyedTable, RecordEncoder, TableOptions
from state_pipelines.serializers import build, tree
from state_pipelines.serializers.tree import StateKind

I32, I64 = lay.Primitive(lay.PrimitiveKind.I32), lay.Primitive(lay.PrimitiveKind.I64)
CLASSES = load_classes("final shop.Point: [x: int, y: int]")
POINT = lay.Dynamic(tree.Kryo(type_class="shop.Point"), 5, CLASSES)
# A class by name, a reference mark, and two zig-zag numbers (1 and 2).
KNOWN = b"\x01\x00shop.Poin\xf4\x01\x02\x04"
UNKNOWN = KNOWN.replace(b"Poin", b"Unkn")
BASE = lay.PojoObject("a.Base", (("x", I32),))
LISTED = lay.PojoObject(
    "a.Base", (("x", I32),), (lay.PojoVariant("a.Sub", None, lay.PojoObject("a.Sub", (("x", I32),))),)
)
VOID = lay.Constant(b"\0")


@dataclass(frozen=True)
class Records:
    """Records of one key group, as `KeyedRecords` has them."""

    key_groups: np.ndarray
    data: np.ndarray
    key_starts: np.ndarray
    key_ends: np.ndarray
    value_starts: np.ndarray
    value_ends: np.ndarray
    offset: int = 0
    file: str = "f"

    def __len__(self) -> int:
        return len(self.key_groups)


def keyed(value: lay.Layout, state_type: str = "VALUE", *, key: lay.Layout = I32, ttl: bool = False) -> KeyedLayout:
    fields = lay.Struct((("state_key", key), ("state_namespace", VOID)))
    return KeyedLayout(fields, value, StateKind(state_type), ttl, build.basic("Int"), 128)


def records(values: list[bytes], keys: list[bytes] | None = None) -> Records:
    keys = keys or [row.to_bytes(4, "big") + b"\0" for row in range(len(values))]
    pieces = [each for pair in zip(keys, values, strict=True) for each in pair]
    ends = np.cumsum([len(each) for each in pieces], dtype=np.int64)
    starts = ends - np.array([len(each) for each in pieces], np.int64)
    data = np.frombuffer(b"".join(pieces), np.uint8)
    groups = np.zeros(len(values), np.int32)
    return Records(groups, data, starts[::2], ends[::2], starts[1::2], ends[1::2])


def written(layout: lay.Layout, value: object) -> bytes:
    writer = Writer()
    write_value(layout, writer, value)
    return writer.getvalue()


def batch(layout: KeyedLayout, found: Records, *columns: str, flatten: bool = True) -> pa.RecordBatch:
    table = KeyedTable(layout, TableOptions(columns=columns or None, flatten=flatten))
    made = table.make_batch(found, 0)  # type: ignore[arg-type]
    made.validate(full=True)
    assert made.schema == table.schema
    return made


def test_kryo_rows_that_cannot_be_decoded_keep_their_bytes() -> None:
    made = batch(keyed(POINT), records([KNOWN, UNKNOWN, b"\0"]))
    assert made.schema.names[4:] == ["value", "value_bytes", "reason"]
    assert made.column("value").to_pylist() == [{"x": 1, "y": 2}, None, None]
    assert made.column("value_bytes").to_pylist() == [None, UNKNOWN, None]
    reasons = made.column("reason").to_pylist()
    assert "shop.Unknt" in reasons[1]
    assert reasons[::2] == [None, None]


def test_without_the_reason_among_the_columns_they_are_an_error() -> None:
    with pytest.raises(UnsupportedError, match=r"record 1: .*shop.Unknt"):
        batch(keyed(POINT), records([KNOWN, UNKNOWN]), "state_key", "value")


def test_columns_that_do_not_need_the_values_are_read_without_them() -> None:
    assert batch(keyed(POINT), records([KNOWN, UNKNOWN]), "state_key").column("state_key").to_pylist() == [0, 1]


def test_the_bytes_are_written_back_as_they_were() -> None:
    layout = keyed(POINT)
    found = records([UNKNOWN, KNOWN, UNKNOWN, b"\0"])
    (rows,) = RecordEncoder(layout, "s").encode([batch(layout, found).drop_columns(["key_group"])])
    assert rows.values.data.tobytes() == UNKNOWN + KNOWN + UNKNOWN + b"\0"
    assert list(np.diff(rows.values.stops)) == [len(KNOWN), len(UNKNOWN), 1]


def test_the_last_access_of_such_a_row_is_null() -> None:
    layout = keyed(lay.Struct((("last_access", I64), ("value", POINT))), ttl=True)
    values = [bytes(7) + b"\x05" + each for each in (KNOWN, UNKNOWN)]
    made = batch(layout, records(values))
    assert made.column("ttl_last_access").cast(pa.int64()).to_pylist() == [5, None]
    assert made.column("value_bytes").to_pylist() == [None, values[1]]


def test_a_list_that_cannot_be_decoded_is_one_row() -> None:
    layout = keyed(lay.Delimited(POINT), "LIST")
    values = [KNOWN + b"," + KNOWN, UNKNOWN, b"", KNOWN]
    made = batch(layout, records(values))
    assert made.column("state_key").to_pylist() == [0, 0, 1, 3]
    assert made.column("list_index").to_pylist() == [0, 1, None, 0]
    assert [each is None for each in made.column("list_value").to_pylist()] == [False, False, True, False]
    assert made.column("value_bytes").to_pylist() == [None, None, UNKNOWN, None]
    whole = batch(layout, records(values), flatten=False)
    assert [each if each is None else len(each) for each in whole.column("value").to_pylist()] == [2, None, 0, 1]


def test_keys_that_cannot_be_decoded_keep_their_bytes_too() -> None:
    layout = keyed(I32, key=POINT)
    keys = [KNOWN + b"\0", UNKNOWN + b"\0"]
    made = batch(layout, records([bytes(4)] * 2, keys))
    assert made.column("state_key").to_pylist() == [{"x": 1, "y": 2}, None]
    assert made.column("key_bytes").to_pylist() == [None, keys[1]]
    assert made.column("value").to_pylist() == [0, 0]


def test_pojos_have_these_columns_when_they_are_asked_for() -> None:
    values = [written(LISTED, {"class": name, "x": row}) for row, name in enumerate(("a.Base", "a.Sub", "a.Base"))]
    found = records(values)
    assert KeyedTable(keyed(BASE), TableOptions()).schema.names[4:] == ["value"]
    with pytest.raises(UnsupportedError, match="`reason` and `value_bytes`"):
        batch(keyed(BASE), found)
    made = batch(keyed(BASE), found, "value", "value_bytes", "reason")
    assert made.column("value").to_pylist() == [{"x": 0}, None, {"x": 2}]
    assert made.column("value_bytes").to_pylist() == [None, values[1], None]
    assert "does not list" in made.column("reason")[1].as_py()
