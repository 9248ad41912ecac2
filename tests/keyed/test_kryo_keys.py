"""Keys of a class such as Object: the class that Kryo stores with each key gives its hash."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import state_pipelines as sp
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.keyed.hashing.value_hashes import make_key_hasher
from state_pipelines.operations.dump import dump
from state_pipelines.serializers.tree import Kryo
from state_pipelines.snapshot import open_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

OBJECT = Kryo(type_class="java.lang.Object")
KEYS: list[tuple[str, Any, int]] = [
    ("java.lang.Long", -1, 0),
    ("java.lang.Integer", -1, -1),
    ("java.lang.String", "ab", 97 * 31 + 98),
    ("java.lang.Long", 1 << 32, 1),
    ("java.lang.Boolean", True, 1231),
]
"""Class, value and hashCode of keys."""


def encode(class_name: str, value: Any, layouts: LayoutContext) -> bytes:
    columns = plan_columns(derive_layout(replace(OBJECT, type_class=class_name), layouts))
    return columns.encode(pa.array([value], columns.type)).data.tobytes()


def hash_keys(keys: list[bytes], layouts: LayoutContext) -> npt.NDArray[np.int32]:
    ends = np.cumsum([len(each) for each in keys])
    data = np.frombuffer(b"".join(keys) + b"rest", np.uint8)
    starts = np.concatenate([[0], ends[:-1]])
    # Records end after their keys.
    return make_key_hasher(OBJECT, layouts).hash_spans(data, starts, np.minimum(ends + 4, len(data)))


@pytest.mark.parametrize("version", [2, 5])
def test_the_class_of_each_key_gives_its_hash(version: int) -> None:
    layouts = LayoutContext(kryo_version=version)
    keys = [encode(name, value, layouts) for name, value, _ in KEYS]
    assert hash_keys(keys, layouts).tolist() == [code for _, _, code in KEYS]


def test_a_class_without_a_known_hash_is_refused_by_its_own_name() -> None:
    # A class by its name, whose last character is marked.
    key = b"\x01\x00com.acme.Ke" + bytes([ord("y") | 0x80])
    with pytest.raises(UnsupportedError, match=r"the hashCode of com.acme.Key, which Kryo.* in a migration"):
        hash_keys([key], LayoutContext())


def test_null_is_no_key() -> None:
    with pytest.raises(FormatError, match="a key is null"):
        hash_keys([b"\0"], LayoutContext())


def test_scala_savepoints_get_other_key_groups(wild2: Path, tmp_path: Path) -> None:
    (old,) = (wild2 / "apache+flink/scala").glob("*flink1.20*")
    sp.rescale(str(old), str(tmp_path / "new"), max_parallelism=64)
    lines = [[{**line, "kg": 0} for line in dump(open_snapshot(str(each)))] for each in (old, tmp_path / "new")]
    assert sorted(map(str, lines[0])) == sorted(map(str, lines[1]))
