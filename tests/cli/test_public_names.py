from __future__ import annotations

import ast
import json
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pyarrow as pa
import pytest

import state_pipelines as sp
from state_pipelines.cli.commands import COMMANDS, main
from state_pipelines.cli.inspect import command as inspect_command
from state_pipelines.errors import FormatError, UsageError
from tests.cli.test_damaged_files import cut_header
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = str(orders().path)

# Commands that work on files beside snapshots, or set up this machine, have no counterpart in Python.
ONLY_COMMANDS = {"history", "current", "revision", "init", "prepare", "demo"}
OTHER_NAMES = {"retain": "plan_retention"}


def _list_imports_for_type_checkers() -> dict[str, str]:
    """Name and definition of all imports under `TYPE_CHECKING` in the package."""
    tree = ast.parse(Path(str(sp.__file__)).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    (imports,) = ([each for each in block.body if isinstance(each, ast.ImportFrom)] for block in blocks)
    return {name.asname or name.name: f"{each.module}.{name.name}" for each in imports for name in each.names}


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, state_pipelines; print(sorted(each for each in sys.modules if each.startswith('state_pip')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['state_pipelines']\n"


def test_every_command_has_a_function_of_its_name() -> None:
    wanted = {OTHER_NAMES.get(name, name) for name in set(COMMANDS) - ONLY_COMMANDS}
    assert wanted - set(sp.__all__) == set()


def test_balance_and_profile_are_options_of_inspect_and_functions() -> None:
    options = {option for each in inspect_command.params for option in each.opts}
    assert {"--balance", "--profile"} <= options
    assert {"balance", "profile"} <= set(sp.__all__)


def test_options_of_read_are_arguments_of_the_function() -> None:
    of_the_command = {"path", "limit", "as_json", "parquet", "strict", "storage_options", "debug"}
    command = main.get_command(click.Context(main), "read")
    assert command is not None
    names = {each.name for each in command.params if each.name not in of_the_command}
    declared = {"path_mapping", *(each.name for each in command.params if each.multiple)}
    assert names - declared - set(signature(sp.read).parameters) == set()


@pytest.mark.parametrize("name", sorted(set(sp.__all__) - {"__version__", "errors", "spark"}))
def test_a_name_is_the_object_that_type_checkers_see(name: str) -> None:
    module, _, attribute = _list_imports_for_type_checkers()[name].rpartition(".")
    assert getattr(sp, name) is getattr(sys.modules[module], attribute)


@pytest.mark.parametrize(
    "name", ["balance", "check", "convert", "diff", "dump", "erase", "inspect", "migrate", "profile", "read", "rescale"]
)
def test_operations_take_a_snapshot_or_its_path(name: str) -> None:
    first = next(iter(signature(getattr(sp, name)).parameters.values()))
    assert first.annotation == "Snapshot | str"


@pytest.mark.slow
def test_a_snapshot_is_converted(tmp_path: Path) -> None:
    result = sp.convert(PATH, str(tmp_path / "new"), format="rocksdb")
    rows = sp.open_snapshot(result.path).operator("orders").state("order").to_arrow().num_rows
    assert (result.path, rows) == (str(tmp_path / "new"), 200)


def test_every_public_name_is_there() -> None:
    assert [name for name in sp.__all__ if not hasattr(sp, name)] == []


def test_dir_lists_the_public_names() -> None:
    names = [name for name in dir(sp) if not name.startswith("_")]
    assert names == sorted(name for name in sp.__all__ if not name.startswith("_"))


def test_a_snapshot_is_opened() -> None:
    snapshot = sp.open_snapshot(PATH)
    assert snapshot.operator("orders").state("order").to_arrow().num_rows == 200


def test_a_path_is_inspected() -> None:
    report = sp.inspect(PATH)
    assert "order" in [state.name for operator in report.operators for state in operator.states]


def test_a_path_is_dumped() -> None:
    lines = [*sp.dump(PATH, operator="orders", state="order")]
    assert len([json.dumps(line) for line in lines]) == 200


def test_the_balance_of_a_path_is_measured() -> None:
    assert "orders" in [operator.label for operator in sp.balance(PATH, parallelism=3).operators]


def test_read_gives_the_rows_of_a_state() -> None:
    state = sp.open_snapshot(PATH).operator("orders").state("order")
    assert sp.read(PATH, "orders", "order").to_arrow().equals(state.to_arrow())


def test_read_selects_columns_key_groups_and_a_key() -> None:
    table = sp.read(PATH, "orders", "order", columns=["key_group", "state_key"]).to_arrow()
    first = table.to_pylist()[0]
    group = f"{first['key_group']}-{first['key_group']}"
    found = sp.read(
        PATH, "orders", "order", columns=["key_group", "state_key"], key_groups=group, key=first["state_key"]
    )
    assert found.to_arrow().to_pylist() == [first]


def test_read_without_a_state_gives_all_keyed_states() -> None:
    operator = sp.open_snapshot(PATH).operator("orders")
    assert sp.read(PATH, "orders").to_arrow().equals(operator.to_arrow())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sp.read(PATH, "orders", flatten=True), "flatten is for one state"),
        (lambda: sp.read(PATH, "orders", "order", states=["order"]), "states and timers are for the table of all"),
    ],
)
def test_read_refuses_options_that_contradict_each_other(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


def test_read_raises_for_damaged_files_after_the_rows_of_the_others(tmp_path: Path) -> None:
    sp.convert(PATH, str(tmp_path / "new"))
    snapshot = sp.open_snapshot(str(tmp_path / "new"))
    whole = sp.read(snapshot, "orders", "order").to_arrow().num_rows
    cut_header(Path(snapshot.operator("orders").keyed_files[0][1].name))
    rows = sp.read(str(tmp_path / "new"), "orders", "order")
    assert 0 < sum(len(batch) for batch in rows.batches) < whole
    assert [type(error) for error in rows.errors] == [FormatError]
    with pytest.raises(FormatError):
        sp.read(str(tmp_path / "new"), "orders", "order").to_arrow()
    with pytest.raises((pa.ArrowInvalid, OSError)):
        pa.table(sp.read(str(tmp_path / "new"), "orders", "order"))


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="no attribute 'restore'"):
        _ = sp.restore
