from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.test_damaged_files import cut_header
from tests.operations.comparing.test_diff import write_totals
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from state_pipelines.snapshot import Snapshot

UID = "<img src=x onerror=alert(1)>"
STATE = "<b>total & 'more'"


class _Tags(HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def parse(html: str) -> _Tags:
    found = _Tags()
    found.feed(html)
    found.close()
    return found


@pytest.fixture
def hostile(tmp_path: Path) -> Snapshot:
    """A snapshot whose names are HTML."""
    return write_totals(tmp_path / "hostile", {"a": 1, "b": 2}, operator=UID, name=STATE)


def test_a_snapshot_is_one_line_with_kind_operators_size_and_path() -> None:
    snapshot = orders().open()
    pattern = r"<Snapshot savepoint \d+, \d+ operators, [\d.]+ (B|KiB|MiB), (?P<path>.*)>"
    found = re.fullmatch(pattern, repr(snapshot))
    assert found is not None
    assert found["path"] == snapshot.path


def test_an_operator_is_one_line_with_uid_and_parallelism() -> None:
    operator = orders().open().operator("orders")
    numbers = f"parallelism {operator.parallelism} of {operator.max_parallelism}"
    assert re.fullmatch(rf"<Operator orders( \(.*\))?, {numbers}>", repr(operator))


def test_a_state_is_one_line_with_name_and_operator() -> None:
    state = orders().open().operator("orders").state("order")
    assert re.fullmatch(r"<State order of orders, \d+ subtasks?>", repr(state))


def test_the_table_of_a_snapshot_lists_its_operators() -> None:
    snapshot = orders().open()
    text = parse(snapshot._repr_html_()).text
    assert [each.label for each in snapshot.operators if each.label not in text] == []


def test_the_table_of_an_operator_lists_its_states() -> None:
    operator = orders().open().operator("orders")
    text = parse(operator._repr_html_()).text
    assert [state.name for state in operator.states if state.name not in text] == []


def test_the_table_of_a_state_lists_its_columns() -> None:
    state = orders().open().operator("orders").state("order")
    text = parse(state._repr_html_()).text
    assert [name for name in state.schema.names if name not in text] == []


def test_names_from_a_snapshot_are_text_and_never_tags(hostile: Snapshot) -> None:
    operator = hostile.operator(UID)
    pages = [parse(each._repr_html_()) for each in (hostile, operator, operator.state(STATE))]
    assert [page.tags for page in pages] == [{"table", "caption", "tr", "th", "td"}] * 3
    assert [UID in page.text for page in pages] == [True, True, True]
    assert STATE in pages[1].text


def test_state_that_cannot_be_read_is_a_row_with_its_error(tmp_path: Path) -> None:
    snapshot = write_totals(tmp_path / "damaged", {"a": 1, "b": 2})
    file = Path(snapshot.operators[0].keyed_files[0][1].name)
    cut_header(file)
    again = snapshot.with_declarations(snapshot.declarations)
    assert file.name in parse(again.operators[0]._repr_html_()).text
