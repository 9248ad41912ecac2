"""Readers of files that people write."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.operations.bootstrap.parquet_rows import load_bootstrap
from state_pipelines.operations.jobs.flink_config import load_flink_config
from state_pipelines.operations.jobs.job_files import load_job
from state_pipelines.operations.requests import RequestFile
from state_pipelines.serializers.python_types import parse_python_declaration
from state_pipelines.storage import resolve
from tests.operations.test_jobfile import COMPLETE, FLINK_2, OLD, schema
from tests.robustness.byte_readers import ByteReader

if TYPE_CHECKING:
    from collections.abc import Callable

_DIRECTORIES: list[tempfile.TemporaryDirectory[str]] = []

REQUESTS = (
    b"{operation: migrate, snapshot: chk-7, from_revision: '0003'}",
    b"operation: rescale\nsnapshot: latest\nparallelism: 6\nfiles: link\n",
    b"{operation: convert, snapshot: latest, format: rocksdb, compress: true, in_flight: drop}",
    b"operation: retain\npolicy:\n  keep: {last: 3}\n",
    b"{operation: verify, snapshot: latest, depth: whole}",
)
BOOTSTRAP = b"""
operators:
  - uid: customers
    key: String
    parallelism: 2
    max_parallelism: 256
    states:
      - {name: total, rows: rows.parquet, type: Long}
      - name: orders
        kind: MAP
        rows: orders.parquet
        type: "Map<String, Long>"
"""
JOB = b"""
complete: false
classes:
  com.acme.Place: {zip: String}
operators:
  orders:
    parallelism: 4
    key: String
    states:
      order: {kind: VALUE, type: "com.acme.Place", ttl: "on"}
      history: {kind: LIST, element: String}
      quantities: {kind: MAP, key: String, value: Long}
"""
CONFIG = b"""
state:
  backend: {type: rocksdb, incremental: true}
execution:
  checkpointing:
    interval: 10 min
    num-retained: 3
    dir: s3://bucket/checkpoints
"""
TYPES = (
    b"ROW<n BIGINT, s STRING>",
    b"Types.ROW_NAMED(['n', 's'], [Types.LONG(), Types.STRING()])",
    b"MapState<TUPLE<INT, STRING>, ROW<sku STRING, amount INT>>",
    b"ListStateDescriptor('name', Types.LIST(Types.SQL_TIMESTAMP()))",
)


def _make_file(name: str) -> Path:
    """A file in a directory that goes with this process."""
    directory = tempfile.TemporaryDirectory(prefix="robustness-")
    _DIRECTORIES.append(directory)
    return Path(directory.name, name)


def _read_file(name: str, seeds: tuple[bytes, ...], load: Callable[[Path], object]) -> ByteReader:
    file = _make_file(name)

    def read(data: bytes) -> None:
        file.write_bytes(data)
        load(file)

    return ByteReader(seeds, read, True)


def make_request_reader() -> ByteReader:
    """Request files of Dagster."""
    return _read_file("request.yaml", REQUESTS, lambda file: RequestFile(resolve(str(file)), "0" * 12).read())


def make_bootstrap_reader() -> ByteReader:
    """YAML files of bootstraps."""
    return _read_file("bootstrap.yaml", (BOOTSTRAP,), lambda file: load_bootstrap(str(file)))


def make_job_reader() -> ByteReader:
    """YAML files that describe jobs."""

    file = _make_file("job.yaml")
    file.with_name("offer.avsc").write_text(schema("a"))

    def read(data: bytes) -> None:
        file.write_bytes(data)
        load_job(file, OLD, FLINK_2)

    return ByteReader((JOB, COMPLETE.encode()), read, True)


def make_config_reader() -> ByteReader:
    """Configuration files of Flink."""
    flat = b"state.backend.type: rocksdb\nexecution.checkpointing.interval: 10 min\n"
    return _read_file("config.yaml", (CONFIG, flat), lambda file: load_flink_config(str(file)))


def make_python_type_reader() -> ByteReader:
    """Types of PyFlink's states."""
    return ByteReader(TYPES, lambda data: parse_python_declaration(data.decode(errors="replace")), True)


TEXT_READERS: dict[str, Callable[[], ByteReader]] = {
    "requests": make_request_reader,
    "bootstrap-files": make_bootstrap_reader,
    "job-files": make_job_reader,
    "flink-configs": make_config_reader,
    "python-types": make_python_type_reader,
}
"""By name: makes the reader."""
