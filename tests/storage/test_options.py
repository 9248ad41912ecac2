from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from fsspec.registry import _registry as registry

from state_pipelines.errors import UsageError
from state_pipelines.operations.local_processes import Processes
from state_pipelines.storage import load_storage_options, resolution, resolve, use_storage_options
from state_pipelines.storage.locations import Threads
from state_pipelines.storage.resolution import VARIABLE, find_storage_options

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolution, "_registered", {})
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("s3://bucket/orders", {"key": "orders"}),
        ("s3://bucket/orders/job/chk-1", {"key": "orders"}),
        ("s3a://bucket/orders/chk-1", {"key": "orders"}),
        ("s3n://bucket/orders/", {"key": "orders"}),
        ("s3://bucket/orders-2/chk-1", {"key": "bucket"}),
        ("s3://bucket", {"key": "bucket"}),
        ("s3://other/orders", {}),
        ("gs://bucket/orders", {}),
    ],
)
def test_the_longest_root_decides(path: str, found: dict[str, Any]) -> None:
    use_storage_options({"s3://bucket": {"key": "bucket"}, "s3a://bucket/orders/": {"key": "orders"}})
    assert find_storage_options(path) == found


def test_a_location_has_the_options_of_its_root() -> None:
    use_storage_options({"memory://a": {"listings_expiry_time": 7}})
    assert resolve("memory://a/b").filesystem.storage_options == {"listings_expiry_time": 7}
    assert resolve("memory://c/b").filesystem.storage_options == {}


def test_options_of_a_call_are_added() -> None:
    use_storage_options({"memory://a": {"listings_expiry_time": 7, "max_paths": 1}})
    found = resolve("memory://a/b", max_paths=2).filesystem.storage_options
    assert found == {"listings_expiry_time": 7, "max_paths": 2}


def test_environment_variables_are_replaced_at_any_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_SECRET", "s3cret")
    use_storage_options({"s3://b": {"secret": "${ORDERS_SECRET}", "client_kwargs": {"a": ["x-${ORDERS_SECRET}", 1]}}})
    assert find_storage_options("s3://b/c") == {"secret": "s3cret", "client_kwargs": {"a": ["x-s3cret", 1]}}


def test_a_variable_that_is_not_set_is_named() -> None:
    use_storage_options({"s3://b": {"secret": "${NOT_SET_HERE}"}})
    with pytest.raises(UsageError, match="NOT_SET_HERE is not set"):
        resolve("s3://b/c")


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "storage.yaml"
    file.write_text("s3://bucket/orders:\n  endpoint_url: http://store:9000\n")
    monkeypatch.setenv(VARIABLE, str(file))
    assert find_storage_options("s3://bucket/orders/a") == {"endpoint_url": "http://store:9000"}


def test_options_are_read_from_json() -> None:
    assert load_storage_options('{"s3://b": {"anon": true}}') == {"s3://b": {"anon": True}}


@pytest.mark.parametrize("text", ['{"s3://b": 1}', '{"s3://b": {"key"', "{1: {}}"])
def test_other_texts_are_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(UsageError, match="storage options") as caught:
        load_storage_options(text)
    assert text not in str(caught.value)


def test_a_missing_file_of_options_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read.*storage\.yaml"):
        load_storage_options(str(tmp_path / "storage.yaml"))


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    monkeypatch.delitem(registry, "gs", raising=False)
    with pytest.raises(UsageError, match=r"pip install 'state-pipelines\[gcs\]'"):
        resolve("gs://bucket/a")


def test_options_that_the_storage_refuses_are_wrong_use() -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    with pytest.raises(UsageError, match="cannot reach"):
        resolve("s3://bucket/a", key="a", username="b")


@pytest.mark.parametrize("path", ["/data/copy:/chk-1", "file:/data/chk-1", "file:///data/chk-1", "/data/chk-1"])
def test_only_a_scheme_at_the_beginning_is_one(path: str) -> None:
    use_storage_options({"/data": {"auto_mkdir": True}})
    assert find_storage_options(path) == {"auto_mkdir": True}


@pytest.mark.parametrize(
    "text",
    [
        "s3://b: {key: AK, secret: hunter2}",
        "s3://b:\n  key: AK\n  secret: hunter2\n",
        '{"s3://b": {"key": "AK", "secret": "hunter2"}}',
    ],
)
def test_options_are_a_text_in_place_of_a_file(text: str) -> None:
    assert load_storage_options(text) == {"s3://b": {"key": "AK", "secret": "hunter2"}}


@pytest.mark.parametrize(
    "text",
    ["s3://b: {key: AK, secret: hunter2", "hunter2: hunter2", "key: hunter2\nsecret: hunter2", "{hunter2}", "hunter2:"],
)
def test_a_text_that_is_no_options_is_not_quoted(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_storage_options(text)
    assert "hunter2" not in str(caught.value)


def test_options_of_one_root_twice() -> None:
    with pytest.raises(UsageError, match="a key is there twice, in lines 1 and 2") as error:
        load_storage_options('{"s3://b": {"key": "first"},\n "s3://b": {"key": "other"}}')
    assert "first" not in str(error.value)


def test_options_of_a_block_precede_those_of_the_process_also_in_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    use_storage_options({"s3://scoped": {"key": "process"}, "s3://other": {"key": "process"}})

    def find(root: str) -> object:
        return find_storage_options(f"{root}/a").get("key")

    with resolution.scoped_storage_options({"s3a://scoped/": {"key": "block"}}), Threads(1) as threads:
        assert threads.submit(find, "s3://scoped").result() == "block"
        assert list(threads.map(find, ["s3://scoped", "s3://other"])) == ["block", "process"]
        with resolution.scoped_storage_options({"s3://scoped/deep": {"key": "inner"}}, processes=True):
            # Those of another job do not hold.
            assert (find("s3://scoped"), find("s3://scoped/deep")) == ("process", "inner")
            assert load_storage_options(os.environ[VARIABLE]) == {"s3://scoped/deep": {"key": "inner"}}
        assert VARIABLE not in os.environ
        assert find("s3://scoped") == "block"
        assert resolution.list_storage_options()["s3://scoped"] == {"key": "block"}
    assert find("s3://scoped") == "process"
    with pytest.raises(UsageError, match="are not a mapping"), resolution.scoped_storage_options({"s3://b": "key"}):  # type: ignore[dict-item]
        pass


class _Find:
    def run(self) -> object:
        return find_storage_options("s3://scoped-there/a").get("key")


@pytest.mark.slow
def test_options_of_a_block_reach_local_processes() -> None:
    with resolution.scoped_storage_options({"s3://scoped-there": {"key": "block"}}), Processes(2) as processes:
        assert processes.run([_Find(), _Find()], "finding options") == ["block", "block"]
