"""Every command with wrong options and with storages that cannot be reached: a few lines, and exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from state_pipelines.cli.commands import COMMANDS, load_command
from state_pipelines.storage import locations
from state_pipelines.storage import resolution as storage_options
from state_pipelines.storage.resolution import has_valid_host
from tests.snapshot.built import build_snapshot, list_operator
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Called

pytestmark = pytest.mark.usefixtures("no_storages")

SNAPSHOTS: dict[str, tuple[str, ...]] = {
    "inspect": ("URL",),
    "read": ("URL",),
    "dump": ("URL",),
    "verify": ("URL",),
    "check": ("URL", "--target", "2.3"),
    "diff": ("URL", "URL"),
    "convert": ("URL", "--out", "OUT"),
    "rescale": ("URL", "--parallelism", "2", "--out", "OUT"),
    "erase": ("URL", "--key", "a", "--out", "OUT"),
    "retain": ("ROOT",),
}
"""By command: arguments with which it opens a snapshot."""

URLS = {
    "s3://no-such-bucket/flink/chk-1": "credentials",
    "ftp://127.0.0.1:9/flink/chk-1": "127.0.0.1:9",
    "gs://no-such-bucket/flink/chk-1": "gs://no-such-bucket",
    "hdfs://nowhere:9/flink/chk-1": "hdfs",
    "abfs://container@account/flink/chk-1": "abfs",
    "nonsense://host/flink/chk-1": "nonsense",
    "/no/such/directory": "/no/such/directory",
}
"""Unreachable locations, and the text that the error names."""


def require_wrong_use(called: Called, *named: str) -> None:
    """Exit code 2 with one to four lines that name something."""
    assert called.code == 2, called.out + called.err
    lines = called.err.strip().splitlines()
    assert 1 <= len(lines) <= 4, called.err
    assert "Traceback" not in called.err
    for each in named:
        assert each in called.err


@pytest.mark.slow
@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("command", SNAPSHOTS)
def test_a_storage_that_cannot_be_reached_is_named(
    call: Callable[..., Called], tmp_path: Path, command: str, url: str
) -> None:
    places = {"URL": url, "ROOT": url.removesuffix("/chk-1"), "OUT": str(tmp_path / "out")}
    called = call(command, *(places.get(each, each) for each in SNAPSHOTS[command]))
    require_wrong_use(called, URLS[url])
    assert not (tmp_path / "out").exists()


SECRETS = (
    "s3://AKIA:SEC/RET@bucket/x",
    "gs://AKIA:SEC/RET@bucket/x",
    "s3://SECRET@bucket/x",
    "https://u:SEC/RET@127.0.0.1:9/x",
    "abfss://u:SEC/RET@account/x",
    "ftp://u:SEC/RET@127.0.0.1:9/x",
    "webhdfs://u:SEC/RET@127.0.0.1:9/x",
    "hdfs://SECRET@127.0.0.1:9/x",
)
"""URLs with a password, or a token in place of a user."""


@pytest.mark.parametrize("url", SECRETS)
@pytest.mark.parametrize("command", SNAPSHOTS)
def test_the_error_about_a_url_does_not_show_its_secret(
    call: Callable[..., Called], tmp_path: Path, command: str, url: str
) -> None:
    places = {"URL": url, "ROOT": url.removesuffix("/chk-1"), "OUT": str(tmp_path / "out")}
    called = call(command, *(places.get(each, each) for each in SNAPSHOTS[command]))
    require_wrong_use(called, f"{url.partition('://')[0]}://")
    assert "SEC" not in called.err
    assert "RET" not in called.err


@pytest.mark.parametrize("url", ["http://h:99999/x", "http://h:port/x", "https://[::1/x", *SECRETS])
@pytest.mark.parametrize("command", ["convert", "rescale"])
def test_a_target_that_no_client_takes_is_named(
    call: Callable[..., Called], savepoint: Path, command: str, url: str
) -> None:
    places = {"URL": str(savepoint), "OUT": url}
    called = call(command, *(places.get(each, each) for each in SNAPSHOTS[command]))
    require_wrong_use(called, url.partition("SEC")[0].partition("u:")[0].partition("AKIA")[0])
    assert "SEC" not in called.err
    assert "RET" not in called.err


@pytest.mark.parametrize("option", ["--allow-root", "--map"])
def test_a_root_that_no_client_takes_is_named(call: Callable[..., Called], savepoint: Path, option: str) -> None:
    url = "https://u:SEC/RET@127.0.0.1:9/x"
    called = call("inspect", savepoint, option, url if option == "--allow-root" else f"/old={url}")
    require_wrong_use(called, "host or port", "https://…@127.0.0.1:9/x")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_does_not_exist_is_named(call: Callable[..., Called], command: str) -> None:
    require_wrong_use(call(command, "--no-such-option"), "--no-such-option")


def _typed_options() -> list[tuple[str, str]]:
    found = []
    for name in COMMANDS:
        for parameter in load_command(name).params:
            is_typed = isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType | click.Choice)
            if isinstance(parameter, click.Option) and is_typed and not parameter.is_flag and not parameter.count:
                found.append((name, max(parameter.opts, key=len)))
    return found


@pytest.mark.parametrize(("command", "option"), _typed_options())
def test_a_value_of_another_type_is_named(call: Callable[..., Called], command: str, option: str) -> None:
    require_wrong_use(call(command, option, "not-a-value"), option)


def _required() -> list[str]:
    return [name for name in COMMANDS if any(each.required for each in load_command(name).params)]


@pytest.mark.parametrize("command", _required())
def test_what_is_missing_is_named(call: Callable[..., Called], command: str) -> None:
    require_wrong_use(call(command), "Missing")


WRONG_OPTIONS = {
    "endpoint": ("s3://b", {"client_kwargs": {"endpoint_url": "S3CR3T"}}),
    "endpoint without a scheme": ("s3://b", {"client_kwargs": {"endpoint_url": "user:S3CR3T@minio:9000"}}),
    "settings that are no mapping": ("s3://b", {"client_kwargs": "S3CR3T"}),
    "unknown setting": ("s3://b", {"client_kwargs": {"S3CR3T": 1}}),
    "unknown setting of botocore": ("s3://b", {"config_kwargs": {"S3CR3T": 1}}),
    "token that is a list": ("s3://b", {"token": ["S3CR3T"]}),
    "unknown option": ("http://127.0.0.1:1", {"S3CR3T": 1}),
    "time-out": ("http://127.0.0.1:1", {"timeout": "S3CR3T"}),
    "proxy": ("http://127.0.0.1:1", {"proxy": "S3CR3T"}),
    "connection string": ("abfs://c", {"connection_string": "AccountName=S3CR3T AccountKey S3CR3T"}),
    "account key": ("abfs://c", {"account_name": "a", "account_key": "no base64 S3CR3T!"}),
}
"""Root and options that no client takes, or that lead nowhere."""


@pytest.mark.parametrize("case", WRONG_OPTIONS)
def test_storage_options_that_no_client_takes_are_named_without_their_values(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    root, options = WRONG_OPTIONS[case]
    pytest.importorskip({"s3": "s3fs", "http": "aiohttp", "abfs": "adlfs"}[root.partition("://")[0]])
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.0)
    monkeypatch.setattr(storage_options, "_registered", {})
    monkeypatch.delenv(storage_options.VARIABLE, raising=False)
    file = tmp_path / "storage.yaml"
    file.write_text(json.dumps({root: options}))
    called = call("inspect", f"{root}/x", "--storage-options", file)
    require_wrong_use(called, f"{root}/x", "storage")
    assert "s3cr3t" not in called.err.lower()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("simplecache::http://u:S3CR3T@h:99999/x", "host or port"),
        ("zip://a::simplecache::ftp://u:S3CR3T@h:port/x", "host or port"),
        ("simplecache::s3://AKIA:S3CR3T@bucket/x", "must not contain a user or a password"),
    ],
)
def test_the_last_url_of_a_chain_is_checked(call: Callable[..., Called], url: str, named: str) -> None:
    called = call("inspect", url)
    require_wrong_use(called, named)
    assert "S3CR3T" not in called.err


def test_addresses_with_two_colons_are_no_chain() -> None:
    assert has_valid_host("http://[::1]:9000/x")
    assert has_valid_host("simplecache::http://[::1]:9000/x")
    assert not has_valid_host("https://[::1/x")


@pytest.mark.parametrize("blank", [" ", "\t", "\u00a0", "\u2028"])
@pytest.mark.parametrize("scheme", ["http", "hdfs", "ftp"])
def test_a_password_with_a_blank_is_not_shown(call: Callable[..., Called], scheme: str, blank: str) -> None:
    called = call("inspect", f"{scheme}://u:SEC{blank}RET@127.0.0.1:1/x")
    require_wrong_use(called, f"{scheme}://…@127.0.0.1:1")
    assert "SEC" not in called.err
    assert "RET" not in called.err


def test_an_empty_path_is_not_the_working_directory(
    call: Callable[..., Called], savepoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    require_wrong_use(call("convert", savepoint, "--out", ""), "the path is empty")
    require_wrong_use(call("inspect", ""), "the path is empty")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "dump"])
def test_a_full_output_is_said_in_one_line(savepoint: Path, command: str) -> None:
    arguments = [sys.executable, "-m", "state_pipelines", command, str(savepoint)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: the output cannot be written: no space is left\n")


@pytest.mark.slow
def test_a_terminal_of_ascii_shows_escapes(tmp_path: Path) -> None:
    snapshot = build_snapshot(tmp_path, list_operator("straße", "größe", [b"\0\0\0\0"]), uids=["straße"])
    arguments = [sys.executable, "-m", "state_pipelines", "inspect", snapshot.path, "--uid", "straße"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert r"gr\xf6\xdfe" in done.stdout


@pytest.mark.parametrize("text", ["0-99999999999", "32768", "1" * 6000])
def test_key_groups_that_flink_cannot_have_are_named(call: Callable[..., Called], savepoint: Path, text: str) -> None:
    called = call("read", savepoint, "--operator", "orders", "--state", "order", "--key-groups", text)
    require_wrong_use(called, "key group")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--uid", ""), "no uid"),
        (("--uid", " orders"), "no uid"),
        (("--map", "a=b=c"), "has 2 `=`"),
        (("--map", "/a=b=c"), "has 2 `=`"),
        (("--map", "a=/b"), "'a' is no absolute path"),
        (("--connector", "orders=kaffka"), "there is no connector kaffka. There are beam, "),
    ],
    ids=" ".join,
)
def test_options_that_could_not_mean_anything(
    call: Callable[..., Called], options: tuple[str, ...], named: str
) -> None:
    require_wrong_use(call("inspect", orders().path, *options), named)


@pytest.mark.parametrize("url", ["file://", "file:", "s3:/", "s3://", "s3:///a", "gs://", "hdfs://", "abfs:/"])
def test_a_url_that_names_nothing(call: Callable[..., Called], url: str) -> None:
    require_wrong_use(call("inspect", url), "the URL names no directory")


def test_a_directory_without_revisions(call: Callable[..., Called], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    called = call("migrate", orders().path, "--migrations", tmp_path / "empty", "--out", tmp_path / "new")
    require_wrong_use(called, "the directory has no revisions", str(tmp_path / "empty"))


def test_storage_options_in_place_of_their_file_are_not_shown(call: Callable[..., Called]) -> None:
    text = f"s3://b: {{key: AK, secret: {'hunter2' * 50}}}"
    assert call("inspect", orders().path, "--storage-options", text).code == 0
    called = call("inspect", orders().path, "--storage-options", text[:-1])
    require_wrong_use(called, "neither YAML nor JSON")
    assert "hunter2" not in called.err + called.out
