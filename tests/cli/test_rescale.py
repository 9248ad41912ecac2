from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.operations.dump import dump
from state_pipelines.snapshot import open_snapshot
from tests.operations.rescaling.test_rescaling import gather

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Called

    Call = Callable[..., Called]

Entry = dict[str, Any]


def entries(path: Path) -> list[Entry]:
    return list(dump(open_snapshot(str(path))))


def list_keys(path: Path) -> list[str]:
    """Keys of the operator `orders`."""
    return sorted({line["key"] for line in entries(path) if line["op"] == "orders"})


def write_keys(path: Path, keys: list[str]) -> Path:
    path.write_text("".join(json.dumps(key) + "\n" for key in keys))
    return path


@pytest.mark.slow
def test_other_subtasks_and_key_groups_hold_the_same(call: Call, savepoint: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    called = call("rescale", savepoint, "--out", new, "--parallelism", 3, "--max-parallelism", 1024)
    assert called.code == 0
    assert called.out.endswith(f"1,398 entries of 13 states, none lost, doubled or changed\nnew snapshot: {new}\n")
    assert any(line.split()[:7] == ["orders", "2", "→", "3", "128", "→", "1024"] for line in called.out.splitlines())
    assert {(each.parallelism, each.max_parallelism) for each in open_snapshot(str(new)).operators} == {(3, 1024)}
    assert gather(entries(new)) == gather(entries(savepoint))


@pytest.mark.slow
def test_numbers_may_be_those_of_one_operator(call: Call, savepoint: Path, tmp_path: Path) -> None:
    numbers = ("--parallelism", "orders=4", "--max-parallelism", "orders=512", "--parallelism", "1")
    called = call("rescale", savepoint, "--out", tmp_path / "new", *numbers)
    assert called.code == 0
    new = open_snapshot(str(tmp_path / "new"))
    assert (new.operator("orders").parallelism, new.operator("orders").max_parallelism) == (4, 512)
    others = {(each.parallelism, each.max_parallelism) for each in new.operators if each.label != "orders"}
    assert others == {(1, 128)}
    assert gather(entries(tmp_path / "new")) == gather(entries(savepoint))


def test_json_tells_what_was_done(call: Call, savepoint: Path, tmp_path: Path) -> None:
    told = call("rescale", savepoint, "--out", tmp_path / "new", "--parallelism", "3", "--json").json
    assert (told["path"], told["proven"], told["dropped"]) == (str(tmp_path / "new"), True, [])
    (orders,) = (each for each in told["operators"] if each["operator"] == "orders")
    assert (orders["parallelism"], orders["max_parallelism"]) == ([2, 3], [128, 128])
    assert orders["keyed_state"] == "ranges of bytes"
    assert sum(each["entries"] for each in told["states"]) == 1398


@pytest.mark.parametrize("out", [True, False])
def test_a_dry_run_writes_nothing(call: Call, savepoint: Path, tmp_path: Path, out: bool) -> None:
    target = ("--out", tmp_path / "new") if out else ()
    called = call("rescale", savepoint, *target, "--parallelism", "3", "--dry-run")
    assert called.code == 0
    assert "2 → 3" in called.out
    assert called.out.endswith("nothing was written (--dry-run)\n")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_as_json(call: Call, savepoint: Path) -> None:
    told = call("rescale", savepoint, "--parallelism", "3", "--dry-run", "--json").json
    assert told["path"] is None
    assert {tuple(each["parallelism"]) for each in told["operators"]} == {(2, 3), (1, 3)}


@pytest.mark.slow
def test_operators_and_states_go_and_get_names(call: Call, savepoint: Path, tmp_path: Path) -> None:
    edits = ("--rename", "orders=orders-v2", "--drop-operator", "pricing", "--drop-state", "orders=history")
    called = call("rescale", savepoint, "--out", tmp_path / "new", *edits)
    assert called.code == 0
    assert "orders → orders-v2" in called.out
    kept = [
        line | ({"op": "orders-v2"} if line["op"] == "orders" else {})
        for line in entries(savepoint)
        if line["op"] != "pricing" and (line["op"], line.get("state")) != ("orders", "history")
    ]
    assert gather(entries(tmp_path / "new")) == gather(kept)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--keep-keys", "--drop-keys"])
def test_a_file_says_which_keys_stay(call: Call, savepoint: Path, tmp_path: Path, option: str) -> None:
    keys = list_keys(savepoint)
    file = write_keys(tmp_path / "keys.jsonl", keys[:3])
    assert call("rescale", savepoint, "--out", tmp_path / "new", option, f"orders={file}").code == 0
    assert list_keys(tmp_path / "new") == (keys[:3] if option == "--keep-keys" else keys[3:])


@pytest.mark.slow
def test_an_operator_comes_from_another_snapshot(call: Call, savepoint: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    call("rescale", savepoint, "--out", first, "--drop-operator", "orders")
    assert call("rescale", first, "--out", tmp_path / "new", "--take", f"orders={savepoint}").code == 0
    assert gather(entries(tmp_path / "new")) == gather(entries(savepoint))


@pytest.fixture
def regions(call: Call, savepoint: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The operator `orders`, its first 120 keys in one snapshot and its last 120 in another one."""
    others = {line["op"] for line in entries(savepoint)} - {"orders"}
    drops = [text for uid in sorted(others) for text in ("--drop-operator", uid)]
    keys = list_keys(savepoint)
    made = []
    for name, chosen in (("eu", keys[:120]), ("us", keys[-120:])):
        file = write_keys(tmp_path / f"{name}.jsonl", chosen)
        assert call("rescale", savepoint, "--out", tmp_path / name, *drops, "--keep-keys", f"orders={file}").code == 0
        made.append(tmp_path / name)
    return made[0], made[1]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["first", "last"])
def test_two_snapshots_become_one(call: Call, savepoint: Path, regions: tuple[Path, Path], rule: str) -> None:
    eu, us = regions
    new = eu.with_name("new")
    assert call("rescale", eu, "--out", new, "--merge", us, "--on-equal", rule).code == 0
    assert gather(entries(new)) == gather(line for line in entries(savepoint) if line["op"] == "orders")


def test_keys_of_both_without_a_rule_are_an_answer(call: Call, regions: tuple[Path, Path]) -> None:
    eu, us = regions
    called = call("rescale", eu, "--out", eu.with_name("new"), "--merge", us)
    assert (called.code, called.out) == (1, "")
    assert "more than one snapshot has the key" in called.err
    assert not eu.with_name("new").exists()


def test_files_are_linked(call: Call, savepoint: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    call("convert", savepoint, "--out", old, "--format", "keep")
    told = call("rescale", old, "--out", tmp_path / "new", "--rename", "orders=o", "--files", "link", "--json").json
    assert told["files_taken"] > 0
    numbers = [{each.stat().st_ino for each in path.iterdir()} for path in (old, tmp_path / "new")]
    assert len(numbers[0] & numbers[1]) == told["files_taken"]


@pytest.mark.slow
def test_what_is_not_proven_is_said(call: Call, savepoint: Path, tmp_path: Path) -> None:
    arguments = ("rescale", savepoint, "--parallelism", "3", "--no-proof")
    assert "not proven (--no-proof)" in call(*arguments, "--out", tmp_path / "new").out
    assert call(*arguments, "--out", tmp_path / "other", "--json").json["proven"] is False
    assert gather(entries(tmp_path / "new")) == gather(entries(savepoint))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dry-run"], "the request changes nothing"),
        (["--parallelism", "3"], "needs a directory"),
        (["--parallelism", "many", "--dry-run"], "does not have the form [OPERATOR=]N"),
        (["--rename", "orders", "--dry-run"], "does not have the form OPERATOR=UID"),
        (["--key-hash", "orders=hash", "--dry-run"], "does not have the form OPERATOR:CLASS"),
        (["--keep-keys", "orders=none.jsonl", "--dry-run"], "the keys cannot be read"),
        (["--drop-operator", "orders", "--rename", "orders=o", "--dry-run"], "nothing else can be asked of it"),
        (["--parallelism", "129", "--dry-run"], "does not go with a max parallelism of 128"),
        (["--rename", "nobody=o", "--dry-run"], "has no operator nobody"),
    ],
)
def test_wrong_use_is_refused(call: Call, savepoint: Path, arguments: list[str], message: str) -> None:
    called = call("rescale", savepoint, *arguments)
    assert (called.code, called.out) == (2, "")
    assert message in called.err


def test_what_is_there_is_not_overwritten(call: Call, savepoint: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    assert call("rescale", savepoint, "--out", tmp_path, "--parallelism", "3").code == 2
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


class TestOptionsOnTopOfAFile:
    """What a file asks for, and options that add to it, as `--dry-run` tells it."""

    @pytest.fixture
    def plan(self, call: Call, savepoint: Path, tmp_path: Path) -> Callable[..., Called]:
        def run(text: str, *options: object) -> Called:
            (tmp_path / "request.yaml").write_text(text)
            request = ("--request", tmp_path / "request.yaml")
            return call("rescale", savepoint, *request, "--dry-run", "--json", *options)

        return run

    @pytest.mark.parametrize("text", ["operators:\n", "", "operators: {orders: }\n"])
    def test_nothing_behind_a_name_counts_as_nothing(self, plan: Call, text: str) -> None:
        assert {"orders-v2"} < {
            each["operator"] for each in plan(text, "--rename", "orders=orders-v2").json["operators"]
        }

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("operators: [a]", "operators is not a mapping but ['a']"),
            ("operators: {orders: 3}", "operators.orders is not a mapping but 3"),
            ("operators: {orders: {key_hash: text}}", "operators.orders.key_hash is not a mapping"),
            ("merge: [/x]", "merge is not a mapping but ['/x']"),
            ("merge: {with: 3}", "with of merge is not a list but 3"),
            ("take: text", "take is not a mapping"),
        ],
    )
    def test_a_wrong_file_is_told_with_its_name(self, plan: Call, tmp_path: Path, text: str, message: str) -> None:
        called = plan(text, "--rename", "orders=o", "--drop-state", "orders=history", "--merge", "/y")
        assert called.code == 2
        assert message in called.err
        assert str(tmp_path / "request.yaml") in called.err

    @pytest.mark.parametrize("text", ["merge: ['{}']", "merge: {{with: {{a: '{}'}}}}", "operators: ['{}']"])
    def test_a_wrong_file_shows_no_password(self, plan: Call, text: str) -> None:
        # Its end is beyond the text that errors show.
        called = plan(text.format(f"s3://user:SECRET{'x' * 60}@bucket/x"), "--merge", "/y")
        assert called.code == 2
        assert "SECRET" not in called.err

    @pytest.mark.slow
    @pytest.mark.parametrize("given", ["history", "[history]"])
    def test_a_state_is_dropped_beside_that_of_the_file(
        self, call: Call, savepoint: Path, tmp_path: Path, given: str
    ) -> None:
        file = tmp_path / "request.yaml"
        file.write_text(f"operators: {{orders: {{drop_states: {given}}}}}")
        arguments = ("--request", file, "--out", tmp_path / "new", "--drop-state", "orders=quantities")
        assert call("rescale", savepoint, *arguments).code == 0
        left = {line.get("state") for line in entries(tmp_path / "new") if line["op"] == "orders"}
        assert {"last-seen", "order"} <= left
        assert left.isdisjoint({"history", "quantities"})

    @pytest.mark.slow
    @pytest.mark.parametrize("form", ["{}", "[{}]"])
    def test_a_snapshot_is_merged_beside_that_of_the_file(
        self, call: Call, savepoint: Path, regions: tuple[Path, Path], form: str
    ) -> None:
        eu, us = regions
        file = eu.with_name("request.yaml")
        file.write_text(f"merge: {{on_equal: first, with: {form.format(us)}}}")
        few = eu.with_name("few")
        keys = write_keys(eu.with_name("few.jsonl"), list_keys(eu)[:5])
        call("rescale", eu, "--out", few, "--keep-keys", f"orders={keys}")
        assert call("rescale", few, "--out", eu.with_name("new"), "--request", file, "--merge", eu).code == 0
        wanted = [line for line in entries(savepoint) if line["op"] == "orders"]
        assert gather(entries(eu.with_name("new"))) == gather(wanted)

    def test_a_mapping_of_several_operators_gets_the_option_for_one(self, plan: Call) -> None:
        text = "operators: {orders: &both {parallelism: 4}, pricing: *both}"
        told = plan(text, "--parallelism", "orders=5").json["operators"]
        assert {
            each["operator"]: each["parallelism"][1] for each in told if each["operator"] in ("orders", "pricing")
        } == {
            "orders": 5,
            "pricing": 4,
        }

    def test_a_name_may_be_a_number(self, plan: Call) -> None:
        called = plan("operators: {7: {parallelism: 3}}", "--max-parallelism", "7=256")
        assert called.code == 2
        assert "has no operator 7" in called.err
