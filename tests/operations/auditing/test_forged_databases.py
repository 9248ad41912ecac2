"""RocksDB databases with changes whose checksums are right: every reader refuses them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import FormatError
from state_pipelines.keyed.header import KeyedHeader, write_keyed_header
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.metadata.checkpoint import SubtaskState
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    KeyGroupRange,
)
from state_pipelines.operations.auditing import audit_snapshot
from state_pipelines.operations.convert import convert
from state_pipelines.operations.dump import dump
from state_pipelines.serializers.build import VOID_NAMESPACE, basic
from state_pipelines.serializers.state_meta_info import keyed_state
from tests.rocksdb.forged_tables import MANIFEST, Listed, forge_table, write_manifest, write_table
from tests.snapshot.built import build_snapshot, operator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot
    from tests.rocksdb.databases import Pairs

NAMES = ("one", "two")
KEYS = 1000


class Forger:
    """A database of two states with a table each; tests change it.

    Attributes:
        tables: their bytes by number.
        listed: what the MANIFEST says of them, by state.
    """

    def __init__(self, tables: dict[int, bytes], rows: Pairs) -> None:
        self.rows = rows
        self.tables = dict(tables)
        bounds = rows[0][0], rows[-1][0]
        self.listed = {name: [Listed(number, 0, *bounds)] for name, number in zip(NAMES, tables, strict=True)}

    def relist(self, name: str, **changes: bytes) -> None:
        self.listed[name] = [self.listed[name][0]._replace(**changes)]  # type: ignore[arg-type]

    def write(self, path: Path) -> Snapshot:
        sized = {
            name: [each._replace(size=len(self.tables[each.number])) for each in tables]
            for name, tables in self.listed.items()
        }
        files = {f"{number:06d}.sst": data for number, data in self.tables.items()}
        others = {"CURRENT": MANIFEST.encode() + b"\n", MANIFEST: write_manifest({"default": [], **sized})}
        writer = Writer()
        states = tuple(keyed_state(name, "VALUE", basic("Long"), VOID_NAMESPACE) for name in NAMES)
        write_keyed_header(writer, KeyedHeader(key_serializer=basic("Long"), states=states))
        shared, private = (
            tuple(HandleAndLocalPath(name, ByteStreamStateHandle(name, data)) for name, data in each.items())
            for each in (files, others)
        )
        meta = ByteStreamStateHandle("meta", writer.getvalue())
        backend = "00000000-0000-0000-0000-000000000000"
        handle = IncrementalRemoteKeyedStateHandle(
            1, backend, KeyGroupRange(0, 128), meta, shared, private, sum(map(len, files.values())), "handle"
        )
        return build_snapshot(path, operator("keys", SubtaskState(0, managed_keyed_state=handle)))


@pytest.fixture(scope="module")
def rows() -> Pairs:
    groups = assign_key_groups(np.arange(KEYS, dtype=np.int32), 128).tolist()
    found = [
        (bytes([group]) + struct.pack(">q", number) + b"\0", struct.pack(">q", number))
        for number, group in enumerate(groups)
    ]
    return sorted(found)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, rows: Pairs) -> dict[int, bytes]:
    return {
        number: write_table(tmp_path_factory.mktemp(name), rows, name) for number, name in enumerate(NAMES, start=10)
    }


@pytest.fixture
def forger(tables: dict[int, bytes], rows: Pairs) -> Forger:
    return Forger(tables, rows)


def leave_out_a_block(forger: Forger) -> None:
    forger.tables[10] = forge_table(forger.tables[10], index=lambda index: [*index[:2], *index[3:]])


def leave_out_the_last_block(forger: Forger) -> None:
    forger.tables[10] = forge_table(forger.tables[10], index=lambda index: index[:-1])


def leave_out_all_blocks(forger: Forger) -> None:
    forger.tables[10] = forge_table(forger.tables[10], index=lambda _: [])


def leave_out_an_entry(forger: Forger) -> None:
    forger.tables[10] = forge_table(forger.tables[10], blocks=lambda blocks: [blocks[0][1:], *blocks[1:]])


def empty_a_block(forger: Forger) -> None:
    forger.tables[10] = forge_table(forger.tables[10], blocks=lambda blocks: [*blocks[:2], [], *blocks[3:]])


def exchange_tables(forger: Forger) -> None:
    one, two = NAMES
    forger.listed = {one: forger.listed[two], two: forger.listed[one]}


def list_a_table_twice(forger: Forger) -> None:
    forger.listed["two"] = forger.listed["one"]


def leave_out_a_table(forger: Forger) -> None:
    forger.listed["two"] = []


def overlap_tables(forger: Forger) -> None:
    forger.tables[12] = forger.tables[10]
    forger.listed["one"] *= 2
    forger.listed["one"][1] = forger.listed["one"][0]._replace(number=12)


def raise_the_smallest_key(forger: Forger) -> None:
    forger.relist("one", smallest=forger.rows[5][0])


def lower_the_largest_key(forger: Forger) -> None:
    forger.relist("one", largest=forger.rows[KEYS // 2][0])


def test_the_unchanged_database_is_read(forger: Forger, tmp_path: Path) -> None:
    forger.tables[10] = forge_table(forger.tables[10])
    snapshot = forger.write(tmp_path / "savepoint")
    assert audit_snapshot(snapshot, "whole").restorable
    assert sum(1 for _ in dump(snapshot)) == 2 * KEYS
    convert(snapshot, str(tmp_path / "new"), "canonical")


@pytest.mark.parametrize(
    "change",
    [
        leave_out_a_block,
        leave_out_the_last_block,
        leave_out_all_blocks,
        leave_out_an_entry,
        empty_a_block,
        exchange_tables,
        list_a_table_twice,
        leave_out_a_table,
        overlap_tables,
        raise_the_smallest_key,
        lower_the_largest_key,
    ],
)
def test_a_changed_database_is_refused(change: Callable[[Forger], None], forger: Forger, tmp_path: Path) -> None:
    change(forger)
    snapshot = forger.write(tmp_path / "savepoint")
    assert not audit_snapshot(snapshot, "whole").restorable
    assert any(line.get("damaged") for line in dump(snapshot))
    with pytest.raises(FormatError):
        convert(snapshot, str(tmp_path / "new"), "canonical")
    assert not (tmp_path / "new" / "_metadata").exists()
