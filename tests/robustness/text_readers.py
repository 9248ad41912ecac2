"""Readers of files that people write, and of the bytes of connectors."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.codecs.layout_context import LayoutContext
from state_pipelines.connectors.connector_state import AmbiguousState
from state_pipelines.connectors.detection import detect, read_coordinator
from state_pipelines.connectors.registry import list_codecs
from state_pipelines.errors import StateError
from state_pipelines.operations.bootstrap.bootstrap_files import load_bootstrap
from state_pipelines.operations.jobs.flink_config import load_flink_config
from state_pipelines.operations.jobs.job_files import load_job
from state_pipelines.operations.requests import RequestFile
from state_pipelines.serializers.python_types import parse_python_declaration
from state_pipelines.storage import resolve
from tests.connectors.vectors import BYTES, DATA, RELEASES, wrap
from tests.operations.test_jobfile import COMPLETE, FLINK_2, OLD, schema
from tests.robustness.byte_readers import ByteReader

if TYPE_CHECKING:
    from collections.abc import Callable

_DIRECTORIES: list[tempfile.TemporaryDirectory[str]] = []

REQUESTS = (
    b"{operation: migrate, snapshot: chk-7, from_revision: 0003}",
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

    def load(file: Path) -> None:
        file.with_name("offer.avsc").write_text(schema("a"))
        load_job(file, OLD, FLINK_2)

    return _read_file("job.yaml", (JOB, COMPLETE.encode()), load)


def make_config_reader() -> ByteReader:
    """Configuration files of Flink."""
    flat = b"state.backend.type: rocksdb\nexecution.checkpointing.interval: 10 min\n"
    return _read_file("config.yaml", (CONFIG, flat), lambda file: load_flink_config(str(file)))


def make_python_type_reader() -> ByteReader:
    """Types of PyFlink's states."""
    return ByteReader(TYPES, lambda data: parse_python_declaration(data.decode(errors="replace")), True)


def make_connector_reader() -> ByteReader:
    """Elements and enumerators of connectors, as Flink wrote them: each kind of reader sees all of them."""
    lines = [line for release in RELEASES for line in (DATA / f"flink-{release}.txt").read_text().splitlines()]
    # Committables stand in a list of their own.
    seeds = sorted({bytes.fromhex(line.split()[1]) for line in lines if not line.startswith("commit-")})
    states = {name: codec for codec in list_codecs() for name in codec.state_names}

    def read(data: bytes) -> None:
        element = wrap(data)
        refused: StateError | None = None
        was_read = False
        for name in states:
            found = detect(name, BYTES, [element])
            if found is not None and not isinstance(found, AmbiguousState):
                found.to_batch()
        for codec in list_codecs():
            if not codec.accepts(BYTES):
                continue
            try:
                # Only elements of list state are arrays with a length in front.
                given = data if codec.kind == "enumerator" else element
                value = codec.read(given, BYTES, LayoutContext())
            except StateError as error:
                refused = error
                continue
            was_read = True
            tuple(codec.rows(value))
            codec.write(value, BYTES, LayoutContext())
        read_coordinator(b"\0\0\0\1" + data)
        if refused is not None and not was_read:
            raise refused

    return ByteReader(tuple(seeds), read)


TEXT_READERS: dict[str, Callable[[], ByteReader]] = {
    "requests": make_request_reader,
    "bootstrap-files": make_bootstrap_reader,
    "job-files": make_job_reader,
    "flink-configs": make_config_reader,
    "python-types": make_python_type_reader,
    "connectors": make_connector_reader,
}
"""By name: makes the reader."""
