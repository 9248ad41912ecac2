"""Once a snapshot is published, nothing fails the command: what cannot be described is said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from state_pipelines.cli import bootstrap, convert, erase, migrate, rescale
from state_pipelines.cli.migrate import trace_fields
from state_pipelines.operations.migration.steps import Rename, Set
from state_pipelines.operations.rescale.rescale import RescaleResult
from state_pipelines.serializers.text import parse
from tests.flink.harness import ORDERS
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from tests.cli.conftest import Called


def fail(*arguments: Any, **options: Any) -> None:
    raise KeyError("old[]")


def check(called: Called, target: Path, *, as_json: bool) -> None:
    assert called.code == 0, called.err
    assert "the result cannot be described (KeyError: 'old[]')" in called.err
    assert f"{target} is published and complete" in called.err
    assert (json.loads(called.out)["path"] if as_json else called.out.split()[-1]) == str(target)
    assert (target / "_metadata").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        (convert, ("--format", "heap")),
        (rescale, ("--parallelism", "1")),
        (erase, ("--key", "order-0001")),
    ],
    ids=["convert", "rescale", "erase"],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_a_summary_that_fails_does_not_fail_the_command(
    call: Callable[..., Called],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    module: ModuleType,
    arguments: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    for name in ("_show_result", "_show", "_to_json"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, fail)
    monkeypatch.setattr(RescaleResult, "to_json", fail)
    target = tmp_path / "new"
    name = module.__name__.rpartition(".")[2]
    called = call(name, orders().path, *arguments, "--out", target, *(["--json"] if as_json else []))
    check(called, target, as_json=as_json)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_summary_that_fails_does_not_fail_a_bootstrap(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, as_json: bool
) -> None:
    pq.write_table(pa.table({"customer": ["a", "b"], "cents": [1, 2]}), tmp_path / "rows.parquet")
    state = "{name: total, rows: rows.parquet, type: Long, columns: {state_key: customer, value: cents}}"
    (tmp_path / "new.yaml").write_text(
        f"operators: [{{uid: customers, key: String, parallelism: 1, states: [{state}]}}]\n"
    )
    for name in ("_show", "_to_json"):
        monkeypatch.setattr(bootstrap, name, fail)
    target = tmp_path / "new"
    called = call("bootstrap", tmp_path / "new.yaml", "--out", target, *(["--json"] if as_json else []))
    check(called, target, as_json=as_json)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_migration_is_not_failed_by_its_summary_or_report(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(migrate, "list_changes", fail)
    (tmp_path / "reports").mkdir()
    report, target = tmp_path / "reports" / "proof.json", tmp_path / "new"

    def run_and_block(*arguments: Any, **options: Any) -> Any:
        result = run(*arguments, **options)
        report.mkdir()
        return result

    run = migrate._run
    monkeypatch.setattr(migrate, "_run", run_and_block)
    revision = ORDERS / "migrations" / "0001_amount_as_double.yaml"
    called = call("migrate", orders().path, "--migration", revision, "--out", target, "--report", report)
    check(called, target, as_json=False)
    assert "the report cannot be written" in called.err


def test_fields_of_elements_are_traced() -> None:
    before = parse("Pojo<A>(lines: List<Pojo<B>(zip: Int)>, note: String)")
    after = parse("Pojo<A>(lines: List<Pojo<B>(postcode: Int)>, note: String)")
    steps = (Rename((("lines[].zip", "lines[].postcode"),)), Set("lines[].postcode", "element.postcode + 1"))
    found = trace_fields(before, after, steps)
    (line,) = [each for each in found if each.before.startswith("lines")]
    assert line.change == "lines[].zip renamed to lines[].postcode; postcode set: element.postcode + 1"
