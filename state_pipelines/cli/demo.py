"""`demo`: the orders example from end to end, in one process or, with `--cluster`, on a real local Flink."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml
from rich.text import Text

import state_pipelines
from state_pipelines.cli.check import show_group
from state_pipelines.cli.commands import ANSWER_IS_NO
from state_pipelines.cli.display import format_bytes, make_console, plural, print_table
from state_pipelines.cli.migrate import FieldChange, show_changes, trace_fields
from state_pipelines.cli.running_jobs import show_report
from state_pipelines.errors import ClusterError, UsageError, Where
from state_pipelines.flink.cluster import Submission, find_job
from state_pipelines.flink.connections import connect
from state_pipelines.flink.local_cluster import (
    compile_sources,
    explain_missing_jdk,
    install_jars,
    pack_jar,
    run_cluster,
)
from state_pipelines.flink.status import status
from state_pipelines.operations.check.check import check_migration
from state_pipelines.operations.check.check_report import group_checks
from state_pipelines.operations.inspect import inspect
from state_pipelines.operations.migration import Migration, payload_serializer, plan_value
from state_pipelines.operations.migration.history import HEAD, RevisionDirectory
from state_pipelines.operations.state_rows import compact, to_rows
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.upgrades.upgrade_reports import Result
from state_pipelines.upgrades.upgrade_run import upgrade

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from state_pipelines.dagster.testing import RunResult
    from state_pipelines.flink.cluster import FlinkCluster
    from state_pipelines.operations.check.check import MigrationCheckReport
    from state_pipelines.upgrades.upgrade_reports import UpgradeReport

_MARK = ".state-pipelines-demo"
"""File in a directory that an earlier demo filled, and that may be emptied therefore."""

_SAMPLES = 3


@dataclass(frozen=True)
class OrdersExample:
    """The orders example.

    Attributes:
        root: root of the source tree.
        savepoints: directory that holds the savepoints.
        savepoint: the one that is migrated.
        migrations: the directory of revisions.
    """

    root: Path
    savepoints: Path
    savepoint: Path
    migrations: Path


@dataclass(frozen=True)
class Home:
    """Directories that the demo writes: new savepoints, tables, and the history that the UI of Dagster shows."""

    directory: Path

    @property
    def results(self) -> Path:
        """New savepoints."""
        return self.directory / "savepoints"

    @property
    def tables(self) -> Path:
        """Tables of states."""
        return self.directory / "tables"

    @property
    def dagster(self) -> Path:
        """`DAGSTER_HOME`."""
        return self.directory / "dagster"


@click.command("demo")
@click.option("--target", metavar="DIR", help="Where results go; by default .cache/demo in the source tree.")
@click.option("--keep", is_flag=True, help="Keep the results of an earlier demo in the same location.")
@click.option("--cluster", is_flag=True, help="Upgrade the running job on a real local Flink; needs a JDK.")
@click.pass_context
def command(ctx: click.Context, *, target: str | None, keep: bool, cluster: bool) -> None:
    """Run the orders example: a savepoint of a real Flink job is shown, judged, migrated, proven and written.

    The class Order of the job has changed so that Flink refuses the old savepoint.

    With --cluster the job runs on a real Flink on this machine, is upgraded to the changed class, and comes back from a
    broken program; the jars of Flink, about 300 MB, are downloaded once.

    Exit code 0: all went well.
    """
    started = time.monotonic()
    example = find_example()
    home = prepare_home(Path(target) if target else example.root / ".cache" / "demo", keep=keep)
    console = make_console()
    if cluster:
        orders, cache = example.root / "examples" / "orders", example.root / ".cache" / "flink"
        demo = ClusterDemo(orders, cache, home.directory / "cluster", console, make_console(stderr=True))
        _end(ctx, console, started, fine=demo.run())
        return
    snapshot = open_snapshot(str(example.savepoint))
    migration = RevisionDirectory(example.migrations).get(HEAD)
    show_found(snapshot, console)
    verdict = check_migration(snapshot, migration)
    show_verdict(verdict, console)
    progress = make_console(stderr=True)
    progress.print("materialising the assets with Dagster and Spark; the first time this takes a minute or two")
    with progress.status("state_tables, compatibility_report, migrated_savepoint"):
        outcome = materialise(example, home, snapshot)
    fine = show_outcome(outcome, snapshot, migration, console)
    fine = fine and verdict.ok
    _show_ui(example, home, console)
    _end(ctx, console, started, fine=fine)


def _end(ctx: click.Context, console: Console, started: float, *, fine: bool) -> None:
    seconds = time.monotonic() - started
    console.print()
    console.print(
        f"{'all passed' if fine else 'NOT everything passed'} in {seconds:.0f} s",
        style="bold green" if fine else "bold red",
    )
    if not fine:
        ctx.exit(ANSWER_IS_NO)


def find_example() -> OrdersExample:
    """The orders example in the source tree that this package is part of.

    Raises:
        UsageError: the package is installed without the tree, or without Dagster.
    """
    root = Path(state_pipelines.__file__).resolve().parents[1]
    orders = root / "examples" / "orders"
    savepoints = orders / "savepoints"
    found = sorted((savepoints / "flink-2.2").glob("savepoint-*"))
    if not (found and (root / "assets").is_dir()):
        raise UsageError(
            "the example is not part of the installed package",
            where=Where(file=str(orders)),
            hint="Get the source tree of state-pipelines and run `make demo` in it",
        )
    return OrdersExample(root, savepoints, found[-1], orders / "migrations")


def prepare_home(directory: Path, *, keep: bool) -> Home:
    """Make the directory of the demo; remove the results of an earlier demo from it unless `keep` is set.

    Raises:
        UsageError: the directory holds something that no demo made.
    """
    home = Home(directory.resolve())
    mark = home.directory / _MARK
    try:
        if home.directory.exists() and not mark.exists() and any(home.directory.iterdir()):
            raise UsageError(
                "the directory holds files that no demo made",
                where=Where(file=str(home.directory)),
                hint="Give an empty one with --target",
            )
        for each in () if keep else (home.results, home.tables, home.dagster):
            shutil.rmtree(each, ignore_errors=True)
        for each in (home.results, home.tables, home.dagster):
            each.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise UsageError(f"cannot write: {error}", where=Where(file=str(home.directory))) from None
    return home


def materialise(example: OrdersExample, home: Home, snapshot: Snapshot) -> RunResult:
    """Run the job `migrate_snapshot` of the example for one snapshot, in this process.

    Raises:
        UsageError: Dagster or Spark is not installed.
    """
    settings = example.root / "dagster.yaml"
    if settings.exists():
        shutil.copy(settings, home.dagster)
    try:
        from state_pipelines.dagster import FlinkJob  # an extra, and large
        from state_pipelines.dagster.testing import migrate_snapshot
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the package {error.name} is not installed", hint="Install state-pipelines[dagster]"
        ) from None
    job = FlinkJob(
        name="orders",
        roots=(str(example.savepoints),),
        results=str(home.results),
        tables=str(home.tables),
        migrations=str(example.migrations),
    )
    return migrate_snapshot(job, snapshot, home=home.dagster)


def show_found(snapshot: Snapshot, console: Console) -> None:
    """Print the operators, the states and the size of the snapshot."""
    report = inspect(snapshot, count=True)
    states = [state for operator in report.operators for state in operator.states]
    entries = sum(state.entries or 0 for state in states)
    _head("What was found", console)
    console.print(f"  a {report.kind} of a Flink job: {report.path}", soft_wrap=True)
    counts = (plural(len(report.operators), "operator"), plural(len(states), "state"))
    entry = "entry" if entries == 1 else "entries"
    console.print(f"  {', '.join(counts)}, {entries:,} {entry}, {format_bytes(report.bytes)}")
    rows = []
    for operator in report.operators:
        names = ", ".join(f"{state.name} ({state.kind.lower().replace('_', ' ')})" for state in operator.states)
        rows.append((operator.uid or operator.id, f"{operator.parallelism} of {operator.max_parallelism}", names))
    print_table(console, ("operator", "parallelism", "states"), rows)


def show_verdict(report: MigrationCheckReport, console: Console) -> None:
    """Print what Flink would say, without the migration and with it."""
    _head("The verdict", console)
    for text, each in (("the old state in the new job", report.unmigrated), ("after the migration", report.migrated)):
        style = "green" if each.ok else "red"
        console.print(Text.assemble(f"  {text}: ", (str(each.verdict), style)))
        if not each.ok:
            for group in group_checks(check for check in each.checks if check.is_remarkable):
                show_group(group, console)


def show_outcome(outcome: RunResult, snapshot: Snapshot, migration: Migration, console: Console) -> bool:
    """Print what changed, which checks passed and where the new savepoint is; return whether all is fine."""
    path = outcome.metadata.get("migrated_savepoint", {}).get("path")
    if path is not None:
        _show_change(snapshot, open_snapshot(str(path)), migration, console)
    _head("The checks", console)
    rows = []
    for each in outcome.checks:
        result = Text("passed", "green") if each.passed else Text("FAILED", "red")
        rows.append((each.name, result, each.description, each.observed))
    print_table(console, ("check", "result", "what it says", "observed"), rows)
    for failure in outcome.failures:
        console.print(f"  failed: {failure}", style="red")
    _head("Where it is", console)
    tables = outcome.metadata.get("state_tables", {})
    if tables:
        console.print(f"  {plural(tables['states'], 'state')} as Parquet, {tables['dagster/row_count']:,} rows")
    if path is None:
        console.print("  there is no new savepoint", style="red")
    else:
        console.print(f"  new savepoint: {path}", style="bold", soft_wrap=True)
        console.print(f"  start the new job from it: flink run -s {shlex.quote(str(path))} …", soft_wrap=True)
    return outcome.success and path is not None and bool(outcome.checks) and all(each.passed for each in outcome.checks)


def _show_change(old: Snapshot, new: Snapshot, migration: Migration, console: Console) -> None:
    _head(f"What changed in {migration.operator} / {migration.state}", console)
    plan = plan_value(
        payload_serializer(old.operator(migration.operator).state(migration.state).info), migration.upgrade
    )
    changes = trace_fields(plan.old, plan.new, migration.upgrade)
    show_changes(changes, console)
    console.print()
    print_table(console, ("key", "before", "after"), _sample(old, new, migration, changes))


def _sample(
    old: Snapshot, new: Snapshot, migration: Migration, changes: list[FieldChange]
) -> list[tuple[str, str, str]]:
    """Return a few entries as (key, before, after), with the changed fields only."""
    before_names = [each.before.partition(":")[0] for each in changes if each.change and each.before]
    after_names = [each.after.partition(":")[0] for each in changes if each.change and each.after]
    before, after = (_read_values(each, migration) for each in (old, new))
    whole = [key for key, value in sorted(before.items()) if all(value[name] for name in before_names)]
    chosen = [key for key in whole if key in after][:_SAMPLES]
    return [
        (
            key,
            compact({name: before[key][name] for name in before_names}),
            compact({name: after[key][name] for name in after_names}),
        )
        for key in chosen
    ]


def _read_values(snapshot: Snapshot, migration: Migration) -> dict[str, dict[str, Any]]:
    state = snapshot.operator(migration.operator).state(migration.state)
    rows: list[dict[str, Any]] = [row for batch in state.batches() for row in to_rows(batch)]
    return {compact(row["state_key"]): row["value"] for row in rows if row["value"] is not None}


def _show_ui(example: OrdersExample, home: Home, console: Console) -> None:
    _head("The UI of Dagster", console)
    variables = {
        "DAGSTER_HOME": home.dagster,
        "STATE_PIPELINES_RESULTS": home.results,
        "STATE_PIPELINES_TABLES": home.tables,
    }
    program = Path(sys.executable).with_name("dagster")
    settings = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in variables.items())
    console.print(f"  cd {shlex.quote(str(example.root))}", soft_wrap=True)
    console.print(f"  {settings} {shlex.quote(str(program))} dev -w workspace.yaml", soft_wrap=True)
    console.print("  then open http://127.0.0.1:3000 and look at the asset graph")


def _head(text: str, console: Console) -> None:
    console.print()
    console.print(text, style="bold")


VERSION = "2.2.1"
"""Flink of the demo."""

MAIN = "com.acme.orders.OrdersJob"
RELEASES = ("v1", "v2", "broken")
"""Programs: the first one, one with a changed class, and one that cannot read a single order."""

_UIDS = ("orders", "revenue-per-minute", "order-counter", "pricing", "order-source", "price-source")
_SECONDS = 120
_SETTINGS = {"execution.checkpointing.interval": "1 s", "pipeline.max-parallelism": 128}


@dataclass(frozen=True)
class ClusterDemo:
    """The demo with a cluster.

    Attributes:
        example: directory of the orders example.
        cache: directory of the jars of Flink.
        directory: of everything that it writes.
        console: prints the results.
        progress: prints the steps that take long.
    """

    example: Path
    cache: Path
    directory: Path
    console: Console
    progress: Console

    def run(self) -> bool:
        """Run the demo; return whether the upgrade succeeded, and the one to the broken program was rolled back.

        Raises:
            UsageError: there is no JDK, or Flink cannot be downloaded.
            StateError: the cluster does not come up, or something else fails.
        """
        if missing := explain_missing_jdk():
            raise UsageError(
                f"`demo --cluster` compiles the job of the example, and {missing}",
                hint="Install a JDK, such as openjdk-17-jdk-headless, or leave out --cluster, which alone needs it",
            )
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.progress.print(f"Flink {VERSION}: its jars, about 300 MB, are downloaded once")
        jars = install_jars(VERSION, self.cache)
        programs = {release: self._compile(jars, release) for release in RELEASES}
        with run_cluster(jars, self.directory / "cluster", _SETTINGS) as running:
            try:
                return self._show(running.url, programs)
            finally:
                self.progress.print("the cluster is ended")

    def _compile(self, jars: Sequence[Path], release: str) -> Path:
        sources = self.example / "java"
        files = [each for name in (release, "job") for each in sorted((sources / name).rglob("*.java"))]
        classes = self.directory / "classes" / release
        classes.mkdir(parents=True)
        compile_sources(jars, files, classes)
        return pack_jar(classes, self.directory / f"orders-{release}.jar", MAIN)

    def _show(self, url: str, programs: dict[str, Path]) -> bool:
        cluster = connect({"rest": url})
        self._head("The job runs")
        self._print(f"Flink {VERSION} at {url}, {programs['v1'].name}")
        cluster.start(Submission(str(programs["v1"]), parallelism=2))
        _wait(lambda: _has_checkpoint(cluster), "a checkpoint of the job")
        job = self._describe(url, programs["v1"], programs["v2"])
        show_report(status(str(job)), self.console)

        self._head("Its class Order has changed: the plan")
        self._print(f"state-pipelines upgrade {job} --plan")
        self._list(upgrade(str(job), plan_only=True))

        self._head("The upgrade")
        self._print(f"state-pipelines upgrade {job}")
        upgraded = upgrade(str(job), report=self._report)
        self._list(upgraded)

        self._head("A broken program, and the way back")
        job = self._describe(url, programs["v2"], programs["broken"])
        self._print(f"state-pipelines upgrade {job}")
        back = upgrade(str(job), report=self._report)
        self._list(back)

        self._head("What runs now")
        show_report(status(str(job)), self.console)
        return upgraded.result is Result.UPGRADED and back.result is Result.WENT_BACK

    def _describe(self, url: str, old: Path, new: Path) -> Path:
        """Write the description of the job, as docs/upgrading.md explains it."""
        content: dict[str, Any] = {
            "name": "orders",
            "cluster": {"rest": url},
            "results": str(self.directory / "results"),
            "migrations": str(self.example / "migrations"),
            "target_release": VERSION.rpartition(".")[0],
            "uids": list(_UIDS),
            "upgrade": {
                "savepoints": (self.directory / "cluster" / "savepoints").as_uri(),
                "old": {"jar": str(old), "parallelism": 2},
                "new": {"jar": str(new), "parallelism": 2},
                "automatic": ["compatible", "migrated"],
                "watch": "60s",
            },
        }
        path = self.directory / f"{new.stem}.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return path

    def _head(self, text: str) -> None:
        self.console.print()
        self.console.print(text, style="bold")

    def _print(self, text: str) -> None:
        self.console.print(f"  {text}", soft_wrap=True, highlight=False)

    def _report(self, text: str) -> None:
        self.progress.print(f"  {text}", soft_wrap=True, highlight=False)

    def _list(self, report: UpgradeReport) -> None:
        for line in report.list_lines():
            self._print(line)


def _has_checkpoint(cluster: FlinkCluster) -> bool:
    return bool(cluster.read_checkpoints(find_job(cluster, "orders").id).completed)


def _wait(is_there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not is_there():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} is not there after {_SECONDS} s", hint="Look at the logs of the cluster")
        time.sleep(0.2)
