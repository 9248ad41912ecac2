from __future__ import annotations

import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

import numpy as np
import pytest

from state_pipelines.errors import TargetExistsError, UsageError
from state_pipelines.operations.balance import (
    MOST_OPERATORS,
    Balance,
    BalanceMethod,
    KeyGroupLoads,
    OperatorBalance,
    distribute,
    draw_balance,
    measure_balance,
    render_balance,
    save_balance,
)
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def make(uid: str, m: int, p: int, new_m: int, new_p: int) -> OperatorBalance:
    random = np.random.default_rng(m)
    loads, new = (KeyGroupLoads(random.integers(0, 1000, number).tolist()) for number in (m, new_m))
    return OperatorBalance(
        "00" * 16,
        uid,
        p,
        m,
        BalanceMethod.RECORDS,
        now=distribute(loads, p, m),
        predicted=distribute(new, new_p, new_m),
    )


def read_size(png: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">ii", png[16:24])
    return int(width), int(height)


@pytest.mark.parametrize(
    ("m", "p", "new_m", "new_p"), [(128, 1, 128, 7), (32768, 500, 32768, 300), (128, 2, 1024, 500), (1, 1, 1, 1)]
)
def test_any_numbers_have_a_picture(m: int, p: int, new_m: int, new_p: int) -> None:
    balance = Balance("s3://bucket/savepoint", new_p, new_m, [make("op", m, p, new_m, new_p)], [])
    png = render_balance(balance, "png")
    assert png.startswith(b"\x89PNG")
    width, height = read_size(png)
    assert (width, 400 < height < 1000) == (1210, True)
    svg = ElementTree.fromstring(render_balance(balance, "svg"))
    texts = ["".join(each.itertext()) for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "op" in texts
    assert any(each.startswith(f"predicted: parallelism {new_p} of {new_m}") for each in texts)


def test_an_operator_without_bytes_has_a_picture() -> None:
    empty = OperatorBalance("00" * 16, "op", 2, 4, BalanceMethod.OFFSETS, now=distribute(KeyGroupLoads([0] * 4), 2, 4))
    assert b"2 without state" in render_balance(Balance("path", None, None, [empty], []))


def test_names_are_no_formulas_and_may_have_any_character() -> None:
    svg = render_balance(
        Balance("path", None, None, [make("cost in $ of $x_1^2 \N{CJK UNIFIED IDEOGRAPH-674E} <b>", 4, 2, 4, 1)], [])
    )
    assert "cost in $ of $x_1^2 \N{CJK UNIFIED IDEOGRAPH-674E} &lt;b&gt;" in svg.decode()


def test_the_largest_operators_are_drawn() -> None:
    operators = [make(f"op {number}", 2 << number, 1, 2 << number, 2) for number in range(10)]
    figure = draw_balance(Balance("path", 2, None, operators, []))
    assert len(figure.subfigs) == MOST_OPERATORS
    assert "8 of 10 operators" in figure.get_suptitle()
    assert [part.get_suptitle() for part in figure.subfigs][:2] == ["op 9", "op 8"]


def test_bars_stand_over_the_key_groups_of_their_subtasks() -> None:
    balance = measure_balance(orders().open(), operators=["orders"], parallelism=3)
    bars, cells, predicted = draw_balance(balance).subfigs[0].axes[:3]
    assert bars.get_xlim() == cells.get_xlim() == predicted.get_xlim() == (0, 128)
    corners = [np.asarray(path.vertices) for path in predicted.collections[0].get_paths()]
    assert [(each[0, 0], each[2, 0]) for each in corners] == [(0, 43), (43, 86), (86, 128)]


def test_it_is_written_once_and_by_the_name(tmp_path: Path) -> None:
    balance = Balance("path", None, None, [make("op", 4, 2, 4, 1)], [])
    save_balance(balance, str(tmp_path / "a.SVG"))
    assert b"<svg" in (tmp_path / "a.SVG").read_bytes()
    with pytest.raises(TargetExistsError):
        save_balance(balance, str(tmp_path / "a.SVG"))
    with pytest.raises(UsageError, match="neither an SVG nor a PNG"):
        save_balance(balance, str(tmp_path / "a.pdf"))


def test_nothing_measured_has_no_picture() -> None:
    with pytest.raises(UsageError, match="no keyed state that a picture could show"):
        render_balance(Balance("path", None, None, [], []))


def test_matplotlib_is_loaded_only_to_draw() -> None:
    code = "import sys, state_pipelines.cli.inspect; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
