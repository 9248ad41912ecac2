from __future__ import annotations

import os
from pathlib import Path

import pytest

from state_pipelines.errors import FormatError, OutOfReachError, UsageError
from state_pipelines.storage import Location, PathMapping, join, parse_path_mapping, resolve
from state_pipelines.storage.resolution import locate_named

JOB = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory of checkpoints, with a file at every path that a test names, and a secret beside it."""
    for name in (
        f"root/{JOB}/chk-7/own",
        f"root/{JOB}/chk-7/deep/own",
        f"root/{JOB}/chk-6/private",
        f"root/{JOB}/shared/a",
        f"root/{JOB}/taskowned/b",
        f"root/{JOB}/dstl/c/d",
        f"root/{JOB}/other/e",
        f"root/{JOB}/f",
        f"root/{OTHER}/shared/a",
        f"root/{OTHER}/chk-1/a",
        f"root/{OTHER}/a",
        "root/savepoint-012345-0123456789ab/a",
        "secret",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content")
    return tmp_path / "root"


def absolute(path: Path | str, directory: Location, *roots: Path | str, rules: tuple[tuple[str, str], ...] = ()) -> str:
    mapping = PathMapping(rules, tuple(map(str, roots)))
    return locate_named(str(path), directory, mapping, relative=False, handle="FileStateHandle").path


def relative(path: str, directory: Location) -> str:
    return locate_named(path, directory, PathMapping(), relative=True, handle="RelativeFileStateHandle").path


@pytest.fixture
def checkpoint(root: Path) -> Location:
    return resolve(str(root / JOB / "chk-7"))


@pytest.mark.parametrize(
    "name",
    [
        *(f"{JOB}/{path}" for path in ("chk-7/own", "chk-7/deep/own", "chk-6/private", "shared/a", "dstl/c/d")),
        f"{JOB}/taskowned/b",
        f"{OTHER}/shared/a",
        f"{OTHER}/chk-1/a",
    ],
)
@pytest.mark.parametrize("form", ["file:{}", "file://{}", "{}"])
def test_checkpoints_may_name_what_flink_lets_them_share(
    root: Path, checkpoint: Location, name: str, form: str
) -> None:
    assert absolute(form.format(root / name), checkpoint) == str(root / name)


@pytest.mark.parametrize(
    "name",
    [
        *(f"{JOB}/{path}" for path in ("other/e", "f", "chk-7/../other/e", "../../secret")),
        *(f"{OTHER}/a", "savepoint-012345-0123456789ab/a", "../secret"),
    ],
)
def test_checkpoints_may_name_nothing_else(root: Path, checkpoint: Location, name: str) -> None:
    with pytest.raises(OutOfReachError, match=r"a FileStateHandle names a file outside .*secret|/[aef]\]"):
        absolute(f"{root}/{name}", checkpoint)


@pytest.mark.parametrize("name", [f"{JOB}/shared/a", f"{JOB}/chk-7/own", "../secret"])
def test_savepoints_may_name_their_own_files_only(root: Path, name: str) -> None:
    savepoint = resolve(str(root / "savepoint-012345-0123456789ab"))
    assert absolute(root / savepoint.name / "a", savepoint)
    with pytest.raises(OutOfReachError, match=r"--allow-root DIR"):
        absolute(f"{root}/{name}", savepoint)


def test_jobs_beside_it_count_only_where_directories_have_the_names_of_jobs(root: Path) -> None:
    (root / JOB).rename(root / "copied")
    with pytest.raises(OutOfReachError):
        absolute(root / OTHER / "shared" / "a", resolve(str(root / "copied" / "chk-7")))


def test_a_refusal_names_path_handle_and_options(root: Path, checkpoint: Location) -> None:
    with pytest.raises(OutOfReachError) as caught:
        absolute("file:/etc/passwd", checkpoint)
    assert str(caught.value) == (
        "a FileStateHandle names a file outside the directories that this snapshot may name [file file:/etc/passwd]. "
        "If its files were moved, give their new location with --map FROM=TO; if you trust the snapshot, allow a "
        "directory above the file with --allow-root DIR"
    )


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "{}/"])
def test_allowed_roots_may_be_named(root: Path, checkpoint: Location, form: str) -> None:
    assert absolute(root.parent / "secret", checkpoint, form.format(root.parent)) == str(root.parent / "secret")


def test_a_root_is_a_directory_and_not_the_beginning_of_a_name(root: Path, checkpoint: Location) -> None:
    with pytest.raises(OutOfReachError):
        absolute(root.parent / "secret", checkpoint, root.parent / "sec")


def test_targets_of_mappings_are_allowed(root: Path, checkpoint: Location) -> None:
    found = absolute("hdfs://nn/flink/secret", checkpoint, rules=(("hdfs://nn/flink", str(root.parent)),))
    assert found == str(root.parent / "secret")


def test_a_mapping_does_not_lead_out_of_its_target(root: Path, checkpoint: Location) -> None:
    with pytest.raises(OutOfReachError):
        absolute("hdfs://nn/flink/../secret", checkpoint, rules=(("hdfs://nn/flink", str(root)),))


@pytest.mark.parametrize("link", ["file", "directory"])
def test_links_are_followed_first(root: Path, checkpoint: Location, link: str) -> None:
    own = Path(checkpoint.path)
    if link == "file":
        (own / "link").symlink_to(root.parent / "secret")
        name = "link"
    else:
        (own / "up").symlink_to(root.parent)
        name = "up/secret"
    with pytest.raises(OutOfReachError):
        relative(name, checkpoint)
    with pytest.raises(OutOfReachError):
        absolute(own / name, checkpoint)
    assert absolute(own / name, checkpoint, root.parent) == str(own / name)


def test_a_directory_that_becomes_a_link_is_looked_at_again(root: Path, checkpoint: Location) -> None:
    shared = root / JOB / "shared"
    assert absolute(shared / "a", checkpoint)
    shared.rename(root / JOB / "before")
    elsewhere = root.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a").write_bytes(b"secret")
    shared.symlink_to(elsewhere)
    with pytest.raises(OutOfReachError):
        absolute(shared / "a", checkpoint)


def test_a_snapshot_that_is_reached_through_a_link_names_its_own_files(root: Path, checkpoint: Location) -> None:
    (root / "latest").symlink_to(checkpoint.path)
    latest = resolve(str(root / "latest"))
    assert relative("own", latest)
    assert absolute(root / JOB / "chk-7" / "own", latest)
    assert absolute(root / JOB / "shared" / "a", latest)


def test_devices_and_pipes_are_no_files(root: Path, checkpoint: Location) -> None:
    os.mkfifo(f"{checkpoint.path}/pipe")
    with pytest.raises(OutOfReachError, match="a device or pipe"):
        relative("pipe", checkpoint)
    with pytest.raises(OutOfReachError, match="a device or pipe"):
        absolute("/dev/zero", checkpoint, "/")


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "deep/../../secret", "", "a\0b"])
def test_relative_paths_stay_below_the_snapshot(checkpoint: Location, path: str) -> None:
    with pytest.raises(FormatError):
        relative(path, checkpoint)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9/a", "https://host/a", "ftp://host/a", "github://org:repo@main/a", "s3://bucket/a"],
)
def test_no_other_storage_is_spoken_to(checkpoint: Location, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    from state_pipelines.storage import resolution

    def refuse(path: str) -> Location:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(resolution, "resolve", refuse)
    with pytest.raises(OutOfReachError):
        absolute(url, checkpoint, "/")


def test_data_in_a_path_is_no_file() -> None:
    with pytest.raises(OutOfReachError):
        absolute("data:,secret", resolve("memory://flink/chk-1"), "/")


def test_another_storage_is_reached_through_an_allowed_root(checkpoint: Location) -> None:
    assert absolute("memory://flink/shared/a", checkpoint, "memory://flink/shared") == "/flink/shared/a"
    for url in ("memory://flink/other/a", "memory://flink/shared/../other/a", "memory://flink/shared/%2e%2e/other/a"):
        with pytest.raises(OutOfReachError):
            absolute(url, checkpoint, "memory://flink/shared")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (f"memory://flink/{JOB}/shared/a", True),
        (f"memory:///flink/{JOB}/chk-7/a", True),
        (f"memory://flink/{OTHER}/taskowned/a", True),
        (f"memory://flink/{JOB}/chk-7/../../secret", False),
        (f"memory://flink/{JOB}/chk-7/%2E%2E/%2e%2e/secret", False),
        ("memory://flink/secret", False),
        (f"memory://other/{JOB}/shared/a", False),
    ],
)
def test_on_object_stores_paths_decide(path: str, allowed: bool) -> None:
    checkpoint = join(resolve("memory://flink"), JOB, "chk-7")
    if allowed:
        assert absolute(path, checkpoint)
    else:
        with pytest.raises(OutOfReachError):
            absolute(path, checkpoint)


def test_chains_of_file_systems_are_no_paths_of_flink(checkpoint: Location) -> None:
    with pytest.raises(FormatError, match=r"not one of Flink's"):
        absolute("simplecache::http://127.0.0.1/a", checkpoint, "/")


@pytest.mark.parametrize(
    "path",
    [
        "http://host:99999/s/a",
        "https://user:pass/word@host/s/a",
        "http://host:x/s/a",
        "http://[::1/s/a",
        "hdfs://h:x/a",
    ],
)
@pytest.mark.parametrize("directory", ["http://host/s", "memory://s"])
def test_urls_that_no_client_takes_are_no_paths_of_flink(directory: str, path: str) -> None:
    with pytest.raises(FormatError, match=r"not one of Flink's") as caught:
        absolute(path, resolve(directory))
    assert "pass" not in str(caught.value)
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("name", ["a\ud800", "\udfff"])
def test_halves_of_characters_are_in_no_path(checkpoint: Location, name: str) -> None:
    for directory in (checkpoint, resolve("memory://flink")):
        with pytest.raises(FormatError, match=r"not one of Flink's"):
            relative(name, directory)


def test_local_names_that_are_not_utf_8_may_be_named(checkpoint: Location) -> None:
    name = os.fsdecode(b"a\xff")
    Path(checkpoint.path, name).write_bytes(b"")
    assert relative(name, checkpoint) == f"{checkpoint.path}/{name}"


@pytest.mark.parametrize("url", ["http://host:99999/a", "https://user:pass/word@host/a", "webhdfs://host:x/a"])
def test_roots_and_mappings_have_valid_hosts(url: str) -> None:
    with pytest.raises(UsageError, match="host or port of the URL is not valid") as caught:
        PathMapping().allow([url])
    assert "word" not in str(caught.value)
    with pytest.raises(UsageError, match="host or port of the URL is not valid") as caught:
        parse_path_mapping([f"/old={url}"])
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("root", ["", " "])
def test_an_empty_root_is_not_the_working_directory(root: str) -> None:
    with pytest.raises(UsageError, match="an allowed root is empty"):
        PathMapping().allow([root])


@pytest.mark.parametrize("form", ["~", "~/root", "file://~/root", "{}"])
def test_a_home_directory_may_be_a_root(
    root: Path, checkpoint: Location, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("HOME", str(root.parent))
    secret = root / "savepoint-012345-0123456789ab" / "a"
    assert absolute(secret, checkpoint, form.format(root)) == str(secret)


@pytest.mark.parametrize(
    "path", ["..?x/secret", "..#x/secret", "%2e%2e?x/secret", "..;x/secret", "..%3fx/secret", "..%5csecret"]
)
def test_servers_of_http_do_not_lead_out_of_the_snapshot(path: str) -> None:
    with pytest.raises(FormatError, match="does not stay below"):
        relative(path, resolve("http://localhost/savepoint"))
