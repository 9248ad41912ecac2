from __future__ import annotations

from typing import Any

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.storage import locations, resolve, use_storage_options
from state_pipelines.storage import resolution as storage_options
from state_pipelines.storage.locations import explain, hide_option_values
from state_pipelines.storage.resolution import find_storage_options

AZURE = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNO+cqFl/qUwJ==;"
    "BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;"
)


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_known", set())
    monkeypatch.setattr(storage_options, "_registered", {})


@pytest.mark.parametrize(
    ("options", "text", "shown"),
    [
        ({"secret": "wJalr/xUtn"}, "key wJalr/xUtn, wjalr/xutn, wJalr%2FxUtn", "key …, …, …"),
        (
            {"connection_string": "AccountName=S3CR3T AccountKey S3CR3T"},
            "host s3cr3t accountkey s3cr3t.blob",
            "host ….blob",
        ),
        ({"connection_string": AZURE}, "no devstoreaccount1 at 127.0.0.1:10000 Eby8vdM02xNO+cqFl/qUwJ==", None),
        ({"proxy": "S3CR3T"}, "S3CR3T", "…"),
        ({"proxy": "http://u:pw S3CR3T@proxy.example:80"}, "no S3CR3T at proxy.example:80", "no … at proxy.example:80"),
        ({"client_kwargs": {"endpoint_url": "S3CR3T"}}, "Invalid endpoint: S3CR3T", "Invalid endpoint: …"),
        (
            {"client_kwargs": {"endpoint_url": "user:S3CR3T@minio:9000"}},
            "no user:S3CR3T@minio:9000 at minio:9000",
            "no … at minio:9000",
        ),
        ({"account_host": "https://h.example/x?sv=1&sig=S3CR3T"}, "sv=1 S3CR3T h.example", "sv=1 … h.example"),
        ({"client_kwargs": {"headers": {"X-Key": ["S3CR3T"]}}}, "S3CR3T", "…"),
        ({"endpoint_url": "http://127.0.0.1:9000"}, "no http://127.0.0.1:9000/b", None),
        ({"endpoint_url": "minio_1:9000"}, "no minio_1:9000", None),
        ({"endpoint_url": "http://[::1]:9000/base"}, "no http://[::1]:9000/base/b", None),
        ({"key": "AKIAIOSFODNN", "secret": "short", "profile": "orders"}, "AKIAIOSFODNN short orders", None),
        ({"token": "google_default"}, "google_default", None),
        ({"token": "/creds/file.json"}, "no /creds/file.json", None),
    ],
)
def test_values_that_may_be_secret_are_hidden(options: dict[str, Any], text: str, shown: str | None) -> None:
    wanted = text.replace("Eby8vdM02xNO+cqFl/qUwJ==", "…") if shown is None else shown
    assert hide_option_values(text, options) == wanted
    use_storage_options({"s3://hidden": options})
    find_storage_options("s3://hidden/a")
    assert hide_option_values(text) == wanted
    assert explain(ValueError(text)) == wanted


def test_values_of_variables_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN_HERE", "S3CR3T")
    use_storage_options({"s3://b": {"secret": "${HIDDEN_HERE}"}})
    find_storage_options("s3://b/c")
    assert hide_option_values("no S3CR3T") == "no …"


def test_options_of_a_wrong_type_do_not_show_secrets() -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    with pytest.raises(UsageError, match="cannot reach") as caught:
        resolve("s3://bucket/a", config_kwargs="text", secret="S3CR3T")
    assert "S3CR3T" not in str(caught.value)
