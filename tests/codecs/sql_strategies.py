"""Random SQL types, random values of them as the scalar codec has them, and what stands for them in Arrow."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from state_pipelines.codecs.binary_rows import BinaryRowValue, TimestampValue
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import LogicalType

INTEGERS = {
    "TINYINT": 8,
    "SMALLINT": 16,
    "INTEGER": 32,
    "BIGINT": 64,
    "DATE": 32,
    "INTERVAL_YEAR_MONTH": 32,
    "INTERVAL_DAY_TIME": 64,
}
TIMESTAMPS = ("TIMESTAMP_WITHOUT_TIME_ZONE", "TIMESTAMP_WITH_LOCAL_TIME_ZONE")
DAY = 86_400_000
PLAIN = (*INTEGERS, "BOOLEAN", "FLOAT", "DOUBLE", "VARCHAR", "CHAR", "VARBINARY", "BINARY", "RAW", "NULL")


def leaf_types() -> st.SearchStrategy[LogicalType]:
    return st.one_of(
        st.sampled_from((*PLAIN, "TIME_WITHOUT_TIME_ZONE")).map(lambda root: LogicalType(root=root)),
        st.builds(
            lambda precision, scale: LogicalType(root="DECIMAL", length=precision, scale=min(precision, scale)),
            st.integers(1, 38),
            st.integers(0, 38),
        ),
        st.builds(LogicalType, root=st.sampled_from(TIMESTAMPS), length=st.sampled_from((None, 0, 3, 4, 6, 7, 9))),
    )


def can_be_key(of: LogicalType) -> bool:
    return can_be_key(of.children[0]) if of.root == "DISTINCT_TYPE" else of.root != "NULL"


def sql_types(depth: int = 2) -> st.SearchStrategy[LogicalType]:
    if depth == 0:
        return leaf_types()
    inner = sql_types(depth - 1)
    keys = inner.filter(can_be_key)
    rows = st.lists(inner, max_size=4).map(tuple)
    return st.one_of(
        leaf_types(),
        st.builds(lambda of: LogicalType(root="ARRAY", children=(of,)), inner),
        st.builds(lambda key, value: LogicalType(root="MAP", children=(key, value)), keys, inner),
        st.builds(lambda key: LogicalType(root="MULTISET", children=(key,)), keys),
        st.builds(lambda of: LogicalType(root="DISTINCT_TYPE", children=(of,)), inner),
        st.builds(
            lambda types: LogicalType(
                root="ROW", children=types, names=tuple(f"c{index}" for index in range(len(types)))
            ),
            rows,
        ),
    )


def row_serializers() -> st.SearchStrategy[tree.RowData]:
    # 60 fields: the bit set takes two words.
    types = st.lists(sql_types(), max_size=5) | st.lists(leaf_types(), min_size=57, max_size=60)
    return types.map(lambda each: tree.RowData(snapshot_class="R", snapshot_version=3, types=tuple(each), fields=()))


def draw_sql(draw: st.DrawFn, of: LogicalType, *, null: bool = True) -> Any:
    if of.root == "NULL" or (null and draw(st.integers(0, 3)) == 0):
        return None
    bits = INTEGERS.get(of.root)
    if bits is not None:
        return draw(st.integers(-(1 << bits - 1), (1 << bits - 1) - 1))
    match of.root:
        case "BOOLEAN":
            return draw(st.booleans())
        case "FLOAT":
            return draw(st.floats(width=32, allow_nan=False))
        case "DOUBLE":
            return draw(st.floats(allow_nan=False))
        case "VARCHAR" | "CHAR":
            return draw(st.text(max_size=12))
        case "VARBINARY" | "BINARY" | "RAW":
            return draw(st.binary(max_size=20))
        case "TIME_WITHOUT_TIME_ZONE":
            return draw(st.integers(0, DAY - 1))
        case "DECIMAL":
            limit = 10 ** (of.length or 10) - 1
            unscaled = draw(st.integers(-limit, limit))
            digits = Decimal(abs(unscaled)).as_tuple().digits
            return Decimal((int(unscaled < 0), digits, -(of.scale or 0)))
        case "TIMESTAMP_WITHOUT_TIME_ZONE" | "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
            precision = 6 if of.length is None else of.length
            millis = draw(st.integers(-9_000_000_000_000, 9_000_000_000_000))
            nanos = draw(st.integers(0, 999)) * 1000 if precision > 3 else 0
            return TimestampValue(millis, nanos + (draw(st.integers(0, 999)) if precision > 6 else 0))
        case "DISTINCT_TYPE":
            return draw_sql(draw, of.children[0], null=False)
        case "ARRAY":
            return [draw_sql(draw, of.children[0]) for _ in range(draw(st.integers(0, 3)))]
        case "MAP":
            pairs = range(draw(st.integers(0, 3)))
            return [(draw_sql(draw, of.children[0], null=False), draw_sql(draw, of.children[1])) for _ in pairs]
        case "MULTISET":
            keys = [draw_sql(draw, of.children[0], null=False) for _ in range(draw(st.integers(0, 3)))]
            return [(key, draw(st.integers(1, 9))) for key in keys]
        case "ROW":
            return BinaryRowValue("+I", tuple(draw_sql(draw, each) for each in of.children))
    raise NotImplementedError(of.root)  # A new type needs a case above.


def draw_row(draw: st.DrawFn, types: tuple[LogicalType, ...]) -> BinaryRowValue:
    kind = draw(st.sampled_from(("+I", "-U", "+U", "-D")))
    return BinaryRowValue(kind, tuple(draw_sql(draw, each) for each in types))


def sql_to_arrow(of: LogicalType, value: Any) -> Any:
    """A value of the scalar codec as `pyarrow.array` takes it."""
    if value is None:
        return None
    match of.root:
        case "TIME_WITHOUT_TIME_ZONE":
            return value * 1_000_000
        case "TIMESTAMP_WITHOUT_TIME_ZONE" | "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
            precision = 6 if of.length is None else of.length
            if precision <= 3:
                return value.millis
            per_milli = 1000 if precision <= 6 else 1_000_000
            return value.millis * per_milli + value.nano_of_milli // (1_000_000 // per_milli)
        case "DISTINCT_TYPE":
            return sql_to_arrow(of.children[0], value)
        case "ARRAY":
            return [sql_to_arrow(of.children[0], each) for each in value]
        case "MAP":
            return [(sql_to_arrow(of.children[0], key), sql_to_arrow(of.children[1], item)) for key, item in value]
        case "MULTISET":
            return [(sql_to_arrow(of.children[0], key), item) for key, item in value]
        case "ROW":
            return {f"c{index}": sql_to_arrow(each, value.fields[index]) for index, each in enumerate(of.children)}
    return value


def row_to_arrow(types: tuple[LogicalType, ...], row: BinaryRowValue) -> dict[str, Any]:
    fields = {f"f{index}": sql_to_arrow(of, row.fields[index]) for index, of in enumerate(types)}
    return {"row_kind": row.kind, **fields}
