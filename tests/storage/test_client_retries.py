"""Clients of Google and Azure: few requests to a store that does not answer, none for credentials that do not exist."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import StateError, StorageError
from state_pipelines.storage import Location, locations, read_file, resolve
from state_pipelines.storage import locations as faults
from state_pipelines.storage.locations import leave_retries_to_us

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Store(ThreadingHTTPServer):
    """A server that gives each request one answer, and keeps the paths of the requests."""

    status = 503
    message = "later"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.paths: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        store: Any = self.server
        store.paths.append(self.path)
        body = store.message.encode()
        self.send_response(store.status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Metadata-Flavor", "Google")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def store() -> Iterator[Store]:
    server = Store()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, no machine of Google, and no waits."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "NO_GCE_CHECK", "GCE_METADATA_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(locations, "_PRODUCT_NAME", tmp_path / "product_name")
    monkeypatch.setattr(locations, "_METADATA_SERVER", "127.0.0.1:9")
    locations._answers.cache_clear()
    monkeypatch.setattr(faults, "_FIRST_WAIT", 0.0)


@pytest.fixture
def google(store: Store) -> Location:
    core = pytest.importorskip("gcsfs.core", reason="gcsfs is not installed")
    # The class that `gs://` stands for asks Google by gRPC for the kind of a bucket.
    filesystem = core.GCSFileSystem(token="anon", endpoint_url=f"http://{store.address}", skip_instance_cache=True)
    leave_retries_to_us(filesystem)
    return Location(filesystem, "bucket/flink/_metadata")


@pytest.fixture
def azure(store: Store) -> Location:
    blob = pytest.importorskip("azure.storage.blob.aio", reason="adlfs is not installed")
    spec = pytest.importorskip("adlfs", reason="adlfs is not installed")
    filesystem = spec.AzureBlobFileSystem(account_name="account", skip_instance_cache=True)
    filesystem.service_client = blob.BlobServiceClient(account_url=f"http://{store.address}/account")
    leave_retries_to_us(filesystem)
    return Location(filesystem, "container/flink/_metadata")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["google", "azure"])
def test_an_attempt_is_one_request(kind: str, store: Store, request: pytest.FixtureRequest) -> None:
    with pytest.raises(StorageError, match=r"\(5 attempts\)"):
        read_file(request.getfixturevalue(kind))
    assert len(store.paths) == faults.ATTEMPTS


@pytest.mark.slow
def test_streams_are_repeated_by_gcsfs(store: Store, google: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(seconds: float) -> None:
        """Repeat at once."""

    monkeypatch.setattr("gcsfs.retry.asyncio", SimpleNamespace(sleep=wait))
    with pytest.raises(Exception, match="later"):
        google.filesystem.cat_file(google.path)
    assert len(store.paths) == 6


def test_a_token_that_has_expired_is_renewed_once(store: Store, google: Location) -> None:
    store.status, store.message = 401, '{"error": {"message": "Invalid Credentials"}}'
    with pytest.raises(StorageError, match="Invalid Credentials") as caught:
        read_file(google)
    assert "docs/storage.md" in str(caught.value)
    assert len(store.paths) == 2


def test_a_refusal_is_no_error_of_the_program(store: Store, google: Location) -> None:
    store.status, store.message = 400, '{"error": {"message": "invalid bucket name"}}'
    with pytest.raises(StateError, match="invalid bucket name"):
        read_file(google)


def test_long_reasons_are_cut() -> None:
    error = OSError("no credential: " + "and another one, " * 100)
    assert len(faults.explain(error)) <= 303
    assert faults.explain(error).startswith("no credential: and another")


# Credentials of Google


def test_without_credentials_google_is_read_as_anybody() -> None:
    assert locations.choose_token({"project": "p"}) == {"project": "p", "token": "anon"}


def test_a_token_among_the_options_is_used() -> None:
    assert locations.choose_token({"token": "cloud"}) == {"token": "cloud"}


@pytest.mark.parametrize("variable", ["GOOGLE_APPLICATION_CREDENTIALS", "GCE_METADATA_HOST"])
def test_credentials_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "somewhere")
    assert locations.choose_token({}) == {}


@pytest.mark.parametrize("name", [".config/gcloud/application_default_credentials.json", ".gcs_tokens", "product_name"])
def test_credentials_of_the_machine_are_used(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("Google Compute Engine\n")
    assert locations.choose_token({}) == {}


def test_a_metadata_server_is_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_METADATA_SERVER", store.address)
    assert locations.choose_token({}) == {}
    assert locations.choose_token({}) == {}
    assert len(store.paths) == 1
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    assert locations.choose_token({}) == {"token": "anon"}


def test_a_url_of_google_resolves_without_credentials() -> None:
    pytest.importorskip("gcsfs", reason="gcsfs is not installed")
    assert resolve("gs://bucket/flink").filesystem.storage_options["token"] == "anon"
