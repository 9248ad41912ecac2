"""`demo --cluster`, as a user runs it."""

from __future__ import annotations

import re
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from state_pipelines.cli.commands import CommandGroup
from state_pipelines.errors import UsageError
from state_pipelines.flink import local_cluster
from state_pipelines.snapshot import open_snapshot

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.flink
def test_the_demo_upgrades_a_running_job_and_comes_back(tmp_path: Path) -> None:
    target = tmp_path / "demo"
    result = CliRunner().invoke(
        CommandGroup("state-pipelines"), ["demo", "--cluster", "--target", str(target)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    for words in (
        "orders  RUNNING",
        "orders runs the new program",
        "orders runs the old program again",
        "no price service is configured",
        "the cluster is ended",
        "all passed",
    ):
        assert words in result.output
    (migrated,) = (target / "cluster" / "results").glob("upgrade-*")
    rows = open_snapshot(str(migrated), uids=["orders"]).operator("orders").state("order").to_arrow().to_pylist()
    assert {"customerId", "priority"} <= rows[0]["value"].keys()
    # Nothing of the cluster goes on.
    url = re.search(r"http://127\.0\.0\.1:\d+", result.output)
    assert url is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url[0].rpartition(":")[2])), timeout=5)


def test_without_a_jdk_the_demo_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    result = CliRunner().invoke(
        CommandGroup("state-pipelines"), ["demo", "--cluster", "--target", str(tmp_path / "demo")]
    )
    assert result.exit_code == 2
    assert "needs a JDK 17 or newer: there is no javac" in result.output


def test_without_a_network_the_download_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(UsageError, match=r"Flink 9\.9\.9 cannot be downloaded") as caught:
        local_cluster.install_jars("9.9.9", tmp_path)
    assert "pip can download apache-flink-libraries==9.9.9" in caught.value.hint
    assert not list(tmp_path.glob("9.9.9/lib"))
