"""Keys that real Flink reassigns with another seed than the recorded ones, in every release."""

from __future__ import annotations

import numpy as np
import pytest

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.keyed.hashing.value_hashes import make_key_hasher
from state_pipelines.keyed.key_groups import (
    assign_key_group,
    compute_default_max_parallelism,
    compute_key_group_range,
)
from tests.flink.key_groups import record_keys
from tests.keyed.key_group_lines import expressions_of, parse_recorded

pytestmark = pytest.mark.flink


def test_flink_assigns_keys_as_computed(version: str) -> None:
    recorded = parse_recorded(record_keys(version, 4711, 1000))
    layouts = LayoutContext(kryo_version=2 if version.startswith("1.") else 5)

    for name, keys in recorded.keys.items():
        if name == "Scala Float":
            continue
        hasher = make_key_hasher(keys.serializer, layouts, expressions_of(name, keys.serializer))
        codes = hasher.hash_keys(keys.records)
        np.testing.assert_array_equal(codes, keys.codes, name)
        pairs = zip(codes.tolist(), keys.limits.tolist(), strict=True)
        assert [assign_key_group(code, limit) for code, limit in pairs] == keys.records.key_groups.tolist(), name
    for parallelism, limit, subtask, start, end in recorded.ranges:
        found = compute_key_group_range(subtask, parallelism, limit)
        assert (found.start, found.end) == (start, end)
    for parallelism, expected in recorded.defaults:
        assert compute_default_max_parallelism(parallelism) == expected
