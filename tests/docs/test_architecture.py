"""What the page about the architecture names exists."""

from __future__ import annotations

import ast
import pkgutil
import re
import sys
from typing import TYPE_CHECKING

import pytest

import state_pipelines as sp
from state_pipelines.keyed import sections
from tests.docs.runner import ROOT

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`((?!java\.)(?:\w+\.)+\w+)`", PAGE)))
WALKS = re.findall(r"^\| (\d+) \| `([\w.]+)` \|", PAGE, re.MULTILINE)
LONGEST = 10
MIGRATION, CHECK = 20, 15
"""Largest numbers of modules on the way of a migrated byte and of a verdict."""
ORDERS = ROOT / "examples/orders/savepoints"
PACKAGES = sorted((ROOT / "state_pipelines").rglob("__init__.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_exists(name: str) -> None:
    assert pkgutil.resolve_name(f"state_pipelines.{name}") is not None


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.parent.name)
def test_a_package_lists_modules_that_exist(package: Path) -> None:
    listed = re.findall(r"The modules: (.*)", ast.get_docstring(ast.parse(package.read_text())) or "", re.DOTALL)
    names = {name for text in listed for name in re.findall(r"`(\w+)`", text)}
    assert names <= {each.stem for each in package.parent.iterdir()}


def test_some_packages_list_their_modules() -> None:
    assert sum("The modules: " in each.read_text() for each in PACKAGES) > 1


def test_no_walk_takes_more_than_ten_calls() -> None:
    assert len(WALKS) > LONGEST
    assert max(int(number) for number, _ in WALKS) <= LONGEST


def find_walk(*titles: str) -> list[str]:
    pages = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    found = [each for title in titles for each in pages if each.startswith(title)]
    assert len(found) == len(titles)
    return [name for each in found for name in re.findall(r"^\| \d+ \| `([\w.]+)` \|", each, re.MULTILINE)]


def find_modules(walk: list[str]) -> set[str]:
    return {re.sub(r"(\.[A-Z]\w*)?\.\w+$", "", name) for name in walk}


def test_walks_touch_few_modules() -> None:
    assert 0 < len(find_modules(find_walk("One byte from a file", "One migrated record"))) <= MIGRATION
    assert 0 < len(find_modules(find_walk("One verdict of"))) <= CHECK


def test_a_check_takes_the_walk() -> None:
    walk = find_walk("One verdict of")
    codes = {pkgutil.resolve_name(f"state_pipelines.{name}").__code__: name for name in walk}
    seen: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in codes:
            seen.setdefault(codes[frame.f_code])

    paths = [str(next((ORDERS / release).glob("savepoint-*"))) for release in ("flink-1.20", "flink-2.2")]
    # Headers that other tests have read are not read again.
    sections._parse_header.cache_clear()
    sys.setprofile(note)
    try:
        sp.check(*paths)
    finally:
        sys.setprofile(None)
    assert set(walk) - seen.keys() == set()
