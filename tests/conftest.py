from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fsspec.registry import _registry as registry
from hypothesis import settings

from state_pipelines.storage import locations
from state_pipelines.storage import locations as faults
from tests.flink import sampling
from tests.flink.harness import VERSIONS
from tests.quick import split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# Without a deadline: how long one example takes says nothing about it. In CI the examples are the same each time.
settings.register_profile("tests", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("tests")

# A process of the tests holds a million objects that stay; by default the collector walks through them each second.
gc.set_threshold(10_000, 20, 20)

_MEMORY_OF_A_PROCESS = 4 << 30

QUICK_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"}
"""Options of sessions for small data: Java's second compiler takes more time than its faster code saves."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare which tests drive real Flink; `tests/flink/conftest.py` chooses them."""
    group = parser.getgroup("flink", "tests that drive real Flink")
    group.addoption(
        "--flink-release",
        action="append",
        choices=VERSIONS,
        default=[],
        help="Run all tests of this release and a sample of the others; may be repeated.",
    )
    group.addoption(
        "--flink-sample",
        type=int,
        default=None,
        metavar="N",
        help="Run one in N tests of every test function that is not slow, at least one: the releases take turns within "
        "a function, and a hash of its name says which one begins, so that each gets about a third; with "
        f"--flink-release of the other releases, where the default is {sampling.SAMPLE}. Without either option all "
        "tests run.",
    )
    chosen = parser.getgroup("quick", "the quick tests and all others")
    chosen.addoption("--quick", action="store_true", help="Run the quick tests only (tests/quick.py).")
    chosen.addoption("--not-quick", action="store_true", help="Run all tests but the quick ones.")
    parser.addoption(
        "--flink-job",
        action="append",
        default=[],
        help="Run all Dagster jobs of this Flink job of assets/defs in the suite `deployment`; may be repeated. "
        "Default: six different ones of `upgrade`.",
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which tests of real Flink were asked for."""
    whole, sample = config.getoption("flink_release"), config.getoption("flink_sample")
    return [sampling.describe(whole, sample or sampling.SAMPLE)] if whole or sample else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the tests that drove each release of Flink."""
    properties = (dict(report.user_properties) for report in terminalreporter.stats.get("passed", []))
    counts = Counter(str(each[sampling.RELEASE]) for each in properties if sampling.RELEASE in each)
    if counts:
        text = ", ".join(f"{count} of {release}" for release, count in sorted(counts.items()))
        terminalreporter.write_line(f"real Flink, tests passed: {text}")
    if terminalreporter.config.getoption("quick"):
        terminalreporter.write_line(
            "Not run: tests that are slow, most tests of Spark and Dagster, and all snapshots in turn (make test-all); "
            "real Flink (make test-flink); the browser and the deployment (.ci/run)"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what uses Spark, and choose the quick tests or all others."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
    quick, others = split(items)
    if config.getoption("quick"):
        items[:] = quick
        config.hook.pytest_deselected(items=others)
    elif config.getoption("not_quick"):
        items[:] = others
        config.hook.pytest_deselected(items=quick)


def pytest_xdist_auto_num_workers() -> int:
    """Return one process per core for `-n auto`, but not more than the memory has room for: each may start Spark."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // _MEMORY_OF_A_PROCESS))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The Spark session of this process."""
    from state_pipelines.spark.session import create_session

    session = create_session("tests", cores=2, memory="1g", conf=QUICK_START)
    yield session
    session.stop()


@pytest.fixture(scope="module", autouse=True)
def leave_no_table() -> Iterator[None]:
    """Fail where a module leaves a table or view in the session, which all modules of a process share."""
    yield
    if "pyspark" in sys.modules:
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is not None:
            assert [each.name for each in session.catalog.listTables()] == []


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The directory with snapshots that Flink wrote and that are too large to be kept beside the tests."""
    path = os.environ.get("FLINK_STATE_FIXTURES")
    if not path:
        pytest.skip("FLINK_STATE_FIXTURES is unset: it names the directory with snapshots that Flink wrote")
    return Path(path)


@pytest.fixture(scope="session")
def wild() -> Path:
    """The directory with snapshots of other projects' jobs."""
    path = os.environ.get("FLINK_STATE_WILD")
    if not path:
        pytest.skip("FLINK_STATE_WILD is unset: it names the directory with snapshots of other projects' jobs")
    return Path(path)


@pytest.fixture(scope="session")
def wild2() -> Path:
    """The directory with a second collection of snapshots of other projects' jobs."""
    path = os.environ.get("FLINK_STATE_WILD2")
    if not path:
        pytest.skip("FLINK_STATE_WILD2 is unset: it names the second directory with snapshots of other projects' jobs")
    return Path(path)


@pytest.fixture
def no_storages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave no credentials, no server that would be asked for them, and no store that answers; nothing waits."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr(locations, "_PRODUCT_NAME", tmp_path / "none")
    if find_spec("gcsfs") is not None:
        from gcsfs.core import GCSFileSystem

        # The class that `gs://` stands for asks Google by gRPC for the kind of a bucket.
        monkeypatch.setitem(registry, "gs", GCSFileSystem)
    monkeypatch.setattr(faults, "_FIRST_WAIT", 0.0)
