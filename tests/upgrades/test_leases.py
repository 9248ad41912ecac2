from __future__ import annotations

import json
import socket
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from benchmarks.s3_server import S3Server, start_s3
from state_pipelines.errors import UsageError
from state_pipelines.storage import (
    join,
    list_directory,
    read_file,
    replace_file,
    resolution,
    resolve,
    use_storage_options,
)
from state_pipelines.upgrades.upgrade_records import LEASE_SECONDS, LeaseLostError, hold_lease, take_lease

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def edit(directory: Path, **values: object) -> None:
    """Change the file of the newest lease, as another process or machine would have written it."""
    file = max(directory.iterdir())
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with start_s3() as server:
        yield server


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket whose options are those of its root."""
    monkeypatch.setattr(resolution, "_registered", {})
    name = f"s3://{uuid.uuid4()}"
    use_storage_options({name: server.options})
    bucket = resolve(name)
    bucket.filesystem.mkdir(bucket.path)
    return name


@pytest.fixture(params=["local", "memory", "s3"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "local":
            return str(tmp_path / "leases")
        case "memory":
            return f"memory://{tmp_path.name}/leases"
    bucket: str = request.getfixturevalue("bucket")
    return f"{bucket}/results/_upgrades/orders"


@pytest.mark.slow
def test_a_lease_is_held_by_one(directory: str) -> None:
    location = resolve(directory)
    with hold_lease(location, "orders") as lease:
        lease.require_held()
        with pytest.raises(UsageError, match=f"under way: process .* on {socket.gethostname()}"):
            take_lease(location, "orders")
    take_lease(location, "orders").require_held()


def test_the_lease_of_a_process_that_has_ended_is_free(tmp_path: Path) -> None:
    location = resolve(str(tmp_path))
    lost = take_lease(location, "orders")
    # The same number belongs to another process now.
    edit(tmp_path, started=1)
    take_lease(location, "orders").require_held()
    with pytest.raises(LeaseLostError, match="taken over"):
        lost.require_held()


def test_a_lease_of_another_machine_ends_when_it_is_not_renewed(tmp_path: Path) -> None:
    location = resolve(str(tmp_path))
    take_lease(location, "orders", now=NOW)
    edit(tmp_path, host="elsewhere")
    just_before = NOW + timedelta(seconds=LEASE_SECONDS - 1)
    with pytest.raises(UsageError, match="on elsewhere"):
        take_lease(location, "orders", now=just_before)
    take_lease(location, "orders", now=NOW + timedelta(seconds=LEASE_SECONDS))


def test_a_renewed_lease_goes_on(tmp_path: Path) -> None:
    location = resolve(str(tmp_path))
    lease = take_lease(location, "orders", now=NOW)
    lease.renew(NOW + timedelta(seconds=60))
    edit(tmp_path, host="elsewhere")
    with pytest.raises(UsageError):
        take_lease(location, "orders", now=NOW + timedelta(seconds=LEASE_SECONDS + 59))


def test_a_released_lease_is_not_renewed(tmp_path: Path) -> None:
    lease = take_lease(resolve(str(tmp_path)), "orders", now=NOW)
    lease.release()
    lease.renew(NOW)
    assert json.loads(max(tmp_path.iterdir()).read_text())["is_released"] is True


def test_of_two_processes_that_find_a_free_lease_one_gets_it(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    location = resolve(directory)
    with monkeypatch.context() as both:
        # Neither sees the other one's file yet.
        both.setattr("state_pipelines.upgrades.upgrade_records._find_newest", lambda directory: None)
        take_lease(location, "orders")
        with pytest.raises(UsageError, match="under way"):
            take_lease(location, "orders")


@pytest.mark.slow
def test_a_lease_in_a_bucket_is_renewed_taken_over_and_lost(bucket: str) -> None:
    location = resolve(f"{bucket}/leases")
    lost = take_lease(location, "orders", now=NOW)
    lost.renew(NOW + timedelta(seconds=60))
    file = join(location, "lease-00000001.json")
    replace_file(file, json.dumps({**json.loads(read_file(file)), "host": "elsewhere"}).encode())
    with pytest.raises(UsageError, match="on elsewhere"):
        take_lease(location, "orders", now=NOW + timedelta(seconds=LEASE_SECONDS + 59))
    take_lease(location, "orders", now=NOW + timedelta(seconds=LEASE_SECONDS + 60)).require_held()
    with pytest.raises(LeaseLostError, match="taken over"):
        lost.require_held()
    assert [each.location.name for each in list_directory(location)] == ["lease-00000002.json"]


def test_leases_leave_one_file(tmp_path: Path) -> None:
    for _ in range(3):
        with hold_lease(resolve(str(tmp_path)), "orders"):
            pass
    assert [each.name for each in tmp_path.iterdir()] == ["lease-00000003.json"]
