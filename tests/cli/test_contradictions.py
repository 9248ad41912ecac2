"""Options that contradict each other, or have no effect without another one: refused, by name, before any work.

Each option of each command is in a rule of its command, in a case below, or in the list of those that go with all
others.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from state_pipelines.cli.commands import COMMANDS, load_command
from state_pipelines.cli.options import SNAPSHOT_FLAGS, Excludes, Needs, Rule
from tests.cli.test_wrong_use import require_wrong_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Called

CALLS: dict[str, tuple[str, ...]] = {
    "inspect": ("@SNAPSHOT",),
    "read": ("@SNAPSHOT",),
    "dump": ("@SNAPSHOT",),
    "diff": ("@SNAPSHOT", "@SNAPSHOT"),
    "check": ("@SNAPSHOT", "--target", "2.3"),
    "migrate": ("@SNAPSHOT", "--out", "@OUT"),
    "history": ("@DIRECTORY",),
    "current": ("@DIRECTORY", "@SNAPSHOT"),
    "revision": ("@DIRECTORY", "-m", "text"),
    "bootstrap": ("@FILE", "--out", "@OUT"),
    "convert": ("@SNAPSHOT", "--out", "@OUT"),
    "rescale": ("@SNAPSHOT",),
    "erase": (),
    "retain": ("@DIRECTORY",),
    "verify": ("@SNAPSHOT",),
    "status": ("http://127.0.0.1:1",),
    "rehearse": ("JOB.yaml",),
    "upgrade": ("JOB.yaml",),
    "savepoint": ("JOB.yaml",),
    "init": ("name",),
    "prepare": (),
    "demo": (),
}
"""By command: what it cannot be called without."""

CASES: dict[str, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    "inspect": (
        (("--to-parallelism", "200", "--to-max-parallelism", "100"), ("--to-parallelism", "--to-max-parallelism")),
        (("--ttl", "1d", "--ttl", "2d"), ("--ttl",)),
        (("--plot", "@OUT/balance.txt"), ("balance.txt",)),
    ),
    "dump": ((("--in-flight", "--state", "prices"), ("--in-flight", "--state prices")),),
    "check": ((("@COPY", "--type", "orders/x=Long"), ("--type",)),),
    "migrate": (((), ("--migrations", "--migration")), (("--migration", "@FILE", "--out", "@INSIDE"), ("@INSIDE",))),
    "revision": (
        (("--autogenerate",), ("--autogenerate", "OLD")),
        (("@SNAPSHOT", "--autogenerate", "--from", "base", "--target-release", "2.3"), ("--from base", "@DIRECTORY")),
    ),
    "bootstrap": ((("--base", "@SNAPSHOT", "--out", "@INSIDE"), ("@INSIDE",)),),
    "convert": (
        (("--out", "@SNAPSHOT"), ("@SNAPSHOT",)),
        (("--out", "@INSIDE"), ("@INSIDE",)),
        (("--out", "@LINK/new"), ("@LINK/new",)),
        (("--move", "--discard-partial"), ("--discard-partial", "--apply")),
    ),
    "rescale": (
        (("--parallelism", "2"), ("--out", "--dry-run")),
        (("--out", "@OUT"), ("parallelism",)),
        (("--out", "@INSIDE", "--parallelism", "2"), ("@INSIDE",)),
        (("--out", "@OUT", "--parallelism", "200", "--max-parallelism", "100"), ("parallelism of 200",)),
        (("--out", "@OUT", "--parallelism", "2", "--parallelism", "3"), ("--parallelism", "all operators")),
        (("--out", "@OUT", "--parallelism", "orders=2", "--parallelism", "orders=3"), ("--parallelism", "orders")),
        (("--out", "@OUT", "--max-parallelism", "2", "--max-parallelism", "3"), ("--max-parallelism",)),
        (("--out", "@OUT", "--rename", "orders=x", "--rename", "orders=y"), ("--rename", "orders")),
        (("--out", "@OUT", "--rename", "orders=x", "--drop-operator", "orders"), ("orders", "dropped")),
        (("--out", "@OUT", "--rename", "orders=x", "--operator-id", f"orders={'0' * 32}"), ("orders", "not both")),
        (("--out", "@OUT", "--take-operator", "orders=x"), ("take.orders", "'from'")),
        (("--out", "@OUT", "--drop-state", "orders=order", "--drop-operator", "orders"), ("orders", "dropped")),
        (("--out", "@OUT", "--keep-keys", "orders=@KEYS", "--drop-keys", "orders=@KEYS"), ("keep_keys", "drop_keys")),
        (("--out", "@OUT", "--keep-keys", "orders=@KEYS", "--keep-keys", "orders=@KEYS"), ("--keep-keys", "orders")),
        (("--out", "@OUT", "--drop-keys", "orders=@KEYS", "--drop-keys", "orders=@KEYS"), ("--drop-keys", "orders")),
        (("--out", "@OUT", "--key-hash", "o:C=objects(a)", "--key-hash", "o:C=objects(b)"), ("--key-hash", "o:C")),
        (("--out", "@OUT", "--take", "orders=@COPY", "--take", "orders=@SNAPSHOT"), ("--take", "orders")),
        (("--out", "@OUT", "--take", "orders=@COPY"), ("orders",)),
        (("--out", "@OUT", "--merge", "@SNAPSHOT"), ("@SNAPSHOT",)),
        (("--out", "@OUT", "--on-equal", "first", "--parallelism", "2"), ("--on-equal", "--merge")),
    ),
    "erase": (
        (("@SNAPSHOT",), ("--key",)),
        (("--key", "a"), ("SNAPSHOT", "--root")),
        (("@SNAPSHOT", "--key", "order-0129", "--out", "@INSIDE"), ("@INSIDE",)),
    ),
    "retain": (
        (("--pin", "a", "--unpin", "a"), ("--pin", "--unpin")),
        (("--currency", "EUR"), ("--currency", "--price")),
    ),
}
"""By command: options that are no rule because their values decide, and what the error names."""

SHARED = {*SNAPSHOT_FLAGS, "--storage-options", "--json", "--strict", "--debug", "--processes", "--scratch"}
FREE = {
    "inspect": {"--count", "--balance", "--profile"},
    "read": set(),
    "dump": {"--operator", "--raw"},
    "diff": {"--operator", "--state"},
    "check": {
        *("--job-classes", "--avro", "--target-release", "--backend", "--allow-non-restored-state", "--scan"),
        *("--row-names", "--draft", "--rename-request"),
    },
    "migrate": {"--allow-sql", "--allow-python", "--discard-partial"},
    "history": {"--allow-python"},
    "current": {"--allow-python"},
    "revision": {"--message", "--allow-python"},
    "bootstrap": {"--format", "--flink-version", "--no-proof"},
    "convert": {"--in-flight"},
    "rescale": {"--request", "--files", "--union-limit", "--allow-idle-sources", "--no-proof"},
    "erase": {"--root", "--also"},
    "retain": {"--policy", "--equal-scheme", "--equal-authority"},
    "verify": {"--depth", "--search", "--drill"},
    "status": {"--job", "--operators"},
    "rehearse": {"--allow-python", "--allow-sql"},
    "upgrade": {"--allow-python", "--allow-sql"},
    "savepoint": set(),
    "sql": set(),
    "init": {"--root", "--results", "--out"},
    "prepare": {"--again"},
    "demo": {"--target", "--keep", "--cluster"},
}
"""By command: options that go with all others, and have their effect."""


def list_rules(name: str) -> tuple[Rule, ...]:
    return getattr(load_command(name), "rules", ())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_considered(name: str) -> None:
    known = {*SHARED, *FREE[name]}
    for rule in list_rules(name):
        known |= {rule.option, *rule.others} if isinstance(rule, Excludes) else {*rule.options, *rule.others}
    known |= {text for arguments, _ in CASES.get(name, ()) for text in arguments}
    options = [each for each in load_command(name).params if isinstance(each, click.Option)]
    assert [each.opts for each in options if known.isdisjoint(each.opts)] == []
    # Nor are there rules and lists for what is not there.
    there = {each for option in load_command(name).params for each in (*option.opts, option.human_readable_name)}
    named = {each for rule in list_rules(name) for each in rule.others} | FREE[name]
    assert named <= there


def _combine(rule: Rule) -> Iterator[tuple[str, ...]]:
    if isinstance(rule, Needs):
        yield from ((option,) for option in rule.options)
    else:
        yield from ((rule.option, other) for other in rule.others)


def _broken_rules() -> list[tuple[str, tuple[str, ...], Rule]]:
    return [(name, names, rule) for name in COMMANDS for rule in list_rules(name) for names in _combine(rule)]


def _write(command: click.Command, name: str, values: tuple[str, ...]) -> list[str]:
    """An option with a value that it can have."""
    found = next(each for each in command.params if name in (*each.opts, each.human_readable_name))
    if isinstance(found, click.Argument):
        return ["nowhere"]
    assert isinstance(found, click.Option)
    if found.is_flag:
        return [name]
    if values:
        return [name, values[0]]
    kind = found.type
    if isinstance(kind, click.Choice):
        return [name, kind.choices[0]]
    return [name, "1d" if kind.name == "duration" else "1"]


@pytest.mark.parametrize(
    ("name", "names", "rule"), _broken_rules(), ids=lambda each: " ".join(each) if isinstance(each, tuple) else None
)
def test_a_broken_rule_is_named(
    call: Callable[..., Called], tmp_path: Path, name: str, names: tuple[str, ...], rule: Rule
) -> None:
    command = load_command(name)
    values = rule.values if isinstance(rule, Excludes) else ()
    options = [text for each in names for text in _write(command, each, values if each == names[-1] else ())]
    called = call(name, *(each.replace("@", f"{tmp_path}/") for each in CALLS[name]), *options)
    require_wrong_use(called, *names, *(rule.others[:1] if isinstance(rule, Needs) else ()))
    assert list(tmp_path.iterdir()) == []


def _cases() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return [(name, arguments, named) for name, cases in CASES.items() for arguments, named in cases]


@pytest.mark.parametrize(("name", "arguments", "named"), _cases())
def test_a_contradiction_is_named(
    call: Callable[..., Called],
    tmp_path: Path,
    savepoint: Path,
    name: str,
    arguments: tuple[str, ...],
    named: tuple[str, ...],
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(savepoint, copy)
    (tmp_path / "link").symlink_to(copy)
    (tmp_path / "keys").write_text('"order-0129"\n')
    pq.write_table(pa.table({"key": ["a"], "value": [1]}), tmp_path / "rows.parquet")
    (tmp_path / "file").write_text(_FILES.get(name, ""))
    places = {
        "@SNAPSHOT": copy,
        "@COPY": savepoint,
        "@INSIDE": copy / "new",
        "@LINK": tmp_path / "link",
        "@OUT": tmp_path / "out",
        "@DIRECTORY": tmp_path / "directory",
        "@FILE": tmp_path / "file",
        "@KEYS": tmp_path / "keys",
    }

    def fill(text: str) -> str:
        for word, place in places.items():
            text = text.replace(word, str(place))
        return text

    before = sorted(each.name for each in copy.iterdir())
    given = [*CALLS[name], *arguments]
    called = call(name, *map(fill, given))
    require_wrong_use(called, *map(fill, named))
    assert sorted(each.name for each in copy.iterdir()) == before
    assert not (tmp_path / "out").exists()
    # A dry run refuses the same with the same words.
    if (
        "--dry-run" in {text for option in load_command(name).params for text in option.opts}
        and "--dry-run" not in named
    ):
        rehearsed = call(name, *map(fill, given), "--dry-run")
        assert rehearsed.code == 2
        if "--discard-partial" not in given:
            assert rehearsed.err == called.err


_FILES = {
    "migrate": "revision: '1'\noperator: orders\nstate: order\ndescription: x\nupgrade:\n  - drop: note\n",
    "bootstrap": "operators: [{uid: new, key: String, states: [{name: s, rows: rows.parquet}]}]\n",
}


ACCEPTED = {
    "convert": (("--format", "heap"), ("--format", "keep", "--files", "link"), ("--move", "--files", "link")),
    "rescale": (("--parallelism", "3"), ("--drop-operator", "orders", "--no-proof"), ("--rename", "orders=x")),
}


@pytest.mark.parametrize(("name", "options"), [(name, each) for name, cases in ACCEPTED.items() for each in cases])
def test_a_dry_run_accepts_what_the_run_accepts(
    call: Callable[..., Called], tmp_path: Path, savepoint: Path, name: str, options: tuple[str, ...]
) -> None:
    copy, target = tmp_path / "copy", tmp_path / "out"
    shutil.copytree(savepoint, copy)
    assert call(name, copy, "--out", target, *options, "--dry-run").code == 0
    assert not target.exists()
    assert call(name, copy, "--out", target, *options, *(["--apply"] if "--move" in options else [])).code == 0
    assert target.exists()
