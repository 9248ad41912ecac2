from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from fsspec.registry import _registry as registry

from benchmarks.s3_server import start_s3
from tests.docs.runner import ROOT, follow
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

CHECKPOINT = "s3://flink/checkpoints/chk-42"


def _forget_clients() -> None:
    """Forget clients of remote storages, which keep the credentials of the environment that they were made in."""
    for filesystem in {*registry.values()}:
        if filesystem.async_impl:
            filesystem.clear_instance_cache()


@contextmanager
def prepare_store(page: Path) -> Iterator[None]:
    """An S3 server with a checkpoint of the orders for a page that reads one; credentials are in the environment."""
    if CHECKPOINT not in page.read_text(encoding="utf-8"):
        yield
        return
    with start_s3() as server, pytest.MonkeyPatch.context() as patch:
        bucket, _, name = CHECKPOINT.removeprefix("s3://").partition("/")
        server.put(bucket, {f"{name}/{each.name}": each.read_bytes() for each in orders().path.iterdir()})
        patch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "k")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        _forget_clients()
        yield
        _forget_clients()


@pytest.fixture(scope="session")
def followed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Follow a page, once; gives the directory in which somebody has followed it."""
    folders: dict[Path, Path] = {}

    def make_session() -> SparkSession:
        session: SparkSession = request.getfixturevalue("spark")
        return session

    def run(page: Path) -> Path:
        if page not in folders:
            folder = tmp_path_factory.mktemp(page.stem)
            shutil.copytree(ROOT / "examples", folder / "examples")
            shutil.copytree(ROOT / "tests/data/pyflink", folder / "tests/data/pyflink")
            with prepare_store(page):
                follow(page, folder, make_session)
            folders[page] = folder
        return folders[page]

    return run
