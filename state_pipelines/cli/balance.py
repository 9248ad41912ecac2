"""Charts of keyed state by key group and subtask, in the width of a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.cli.display import crop, format_bytes, indent, make_table, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from state_pipelines.operations.balance import (
        Balance,
        HotKeyLoad,
        OperatorBalance,
        StateDistribution,
        SubtaskLoad,
    )

WIDTH = 64
"""Cells of a line of key groups."""

MOST_SUBTASKS = 16
"""Subtasks that are listed; of more, the largest ones that hold anything."""

_BAR = 20
_KEY = 28
_SHOWN = 5
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def show_balance(balance: Balance, console: Console) -> None:
    """Print a balance for people."""
    console.print("key groups and subtasks", style="bold")
    for conflict in balance.conflicts:
        console.print(f"  {conflict}", style="yellow")
    if not balance.operators:
        console.print("  no operator has keyed state")
    for operator in balance.operators:
        console.print()
        _show_operator(operator, console)


def _show_operator(operator: OperatorBalance, console: Console) -> None:
    console.print(operator.label, style="bold cyan")
    if operator.error:
        console.print(f"  cannot be read: {operator.error}", style="red")
    for note in operator.notes:
        console.print(f"  {note}", style="dim")
    if operator.now is not None:
        _show_distribution("now", operator.now, console)
    if operator.predicted is not None:
        _show_distribution("predicted", operator.predicted, console)
    if operator.unpredicted:
        console.print(f"  {operator.unpredicted}", style="yellow")
    for line in operator.advice:
        console.print(f"  {line}", style="yellow")
    if operator.hottest_key_groups:
        table = make_table("hottest key group", "subtask", "bytes", "share", "records", "keys", right=_NUMBERS)
        for each in operator.hottest_key_groups[:_SHOWN]:
            table.add_row(
                str(each.key_group),
                str(each.subtask),
                format_bytes(each.bytes),
                f"{each.share:.1%}",
                _format(each.records),
                _format(each.keys),
            )
        console.print(indent(table))
    _show_keys("key with most bytes", operator.most_bytes, console)
    if [each.key for each in operator.most_records[:_SHOWN]] != [each.key for each in operator.most_bytes[:_SHOWN]]:
        _show_keys("key with most records", operator.most_records, console)


_NUMBERS = ("hottest key group", "key group", "subtask", "bytes", "share", "records", "keys")


def _show_distribution(name: str, each: StateDistribution, console: Console) -> None:
    lines = [
        f"parallelism {each.parallelism} of {each.max_parallelism}",
        format_bytes(each.bytes),
        f"the largest subtask has {each.imbalance:.2f} times the mean",
    ]
    if each.idle:
        lines.append(f"{plural(len(each.idle), 'subtask')} without state")
    console.print(f"  {name}: {', '.join(lines)}")
    console.print(f"  {draw_key_groups(each.loads.bytes)}", style="green")
    if each.parallelism <= WIDTH:
        console.print(f"  {draw_borders(each)}", style="dim")
    table = make_table("subtask", "key groups", "bytes", "", "records", "keys", right=_NUMBERS)
    largest = max(subtask.bytes for subtask in each.subtasks)
    listed = _choose(each.subtasks)
    for subtask in listed:
        first, last = subtask.key_groups
        table.add_row(
            str(subtask.subtask),
            f"{first}-{last}",
            format_bytes(subtask.bytes),
            draw_bar(subtask.bytes, largest),
            _format(subtask.records),
            _format(subtask.keys),
        )
    console.print(indent(table))
    if len(listed) < each.parallelism:
        rest = each.parallelism - len(listed)
        console.print(f"    and {plural(rest, 'smaller subtask')}; --json and --plot give them", style="dim")


def _choose(subtasks: Sequence[SubtaskLoad]) -> Sequence[SubtaskLoad]:
    if len(subtasks) <= MOST_SUBTASKS:
        return subtasks
    filled = [each for each in subtasks if each.bytes]
    return sorted(filled, key=lambda each: (-each.bytes, each.subtask))[:MOST_SUBTASKS]


def _show_keys(title: str, keys: Sequence[HotKeyLoad], console: Console) -> None:
    if not keys:
        return
    table = make_table(title, "key group", "subtask", "bytes", "share", "records", right=_NUMBERS)
    for each in keys[:_SHOWN]:
        table.add_row(
            crop("".join(sign if sign.isprintable() else "�" for sign in each.key), _KEY),
            str(each.key_group),
            str(each.subtask),
            format_bytes(each.bytes),
            f"{each.share:.1%}",
            f"{each.records:,}",
        )
    console.print(indent(table))


def draw_key_groups(loads: Sequence[int], width: int = WIDTH) -> str:
    """Key groups as columns of up to `width` characters, each as high as the largest of its key groups.

    A key group without state is a dot.
    """
    width = min(width, len(loads))
    bounds = [len(loads) * each // width for each in range(width + 1)]
    cells = [max(loads[bounds[each] : bounds[each + 1]]) for each in range(width)]
    largest = max(cells) or 1
    return "".join(_HEIGHTS[(len(_HEIGHTS) * cell - 1) // largest] if cell else "·" for cell in cells)


def draw_borders(each: StateDistribution, width: int = WIDTH) -> str:
    """Draw the begin of each subtask below the columns of `draw_key_groups`."""
    width = min(width, each.max_parallelism)
    line = [" "] * width
    for subtask in each.subtasks:
        line[subtask.key_groups[0] * width // each.max_parallelism] = "╵"
    return "".join(line).rstrip()


def draw_bar(value: int, largest: int, width: int = _BAR) -> str:
    """A bar of up to `width` characters; what is not nothing has at least an eighth of one."""
    eighths = -(-value * 8 * width // largest) if largest else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _format(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
