"""Arrow arrays in the exact type of a layout."""

from __future__ import annotations

import pyarrow as pa
import pytest

from state_pipelines.codecs.arrow_coercion import conform
from state_pipelines.errors import ValueRangeError


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array([300]), pa.int8()),
        (pa.array(["x"]), pa.int64()),
        (pa.array([{"a": 1}]), pa.int64()),
        (pa.array([[1]]), pa.string()),
        (pa.array([True]), pa.timestamp("ms")),
    ],
    ids=["value too large", "text", "struct", "list", "no cast"],
)
def test_what_arrow_does_not_cast_is_named(array: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(ValueRangeError, match=r"does not fit .*\[at value\.f0\]"):
        conform(array, target, "value.f0")
