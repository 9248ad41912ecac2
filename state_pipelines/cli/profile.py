"""`inspect --balance` and `--profile`, which read state; all else of `inspect` comes from `_metadata`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.cli.display import crop, format_bytes, indent, make_table, plural, print_table, shorten_classes
from state_pipelines.errors import UsageError
from state_pipelines.operations.profiling import EVERY_STATE, Quantity
from state_pipelines.operations.retention.policy import parse_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from rich.console import Console

    from state_pipelines.operations.balance import Balance, HotKeyLoad, OperatorBalance, StateDistribution, SubtaskLoad
    from state_pipelines.operations.profiling import ColumnProfile, OperatorProfile, Profile, StateProfile, TtlOutlook

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
    """Print for people how keyed state is distributed over key groups and subtasks (`measure_balance`)."""
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
    """Draw key groups as columns of up to `width` characters, each as high as the largest of its key groups.

    A key group without state is a dot.
    """
    width = min(width, len(loads))
    bounds = [len(loads) * each // width for each in range(width + 1)]
    cells = [max(loads[bounds[each] : bounds[each + 1]]) for each in range(width)]
    largest = max(cells) or 1
    return "".join(_HEIGHTS[(len(_HEIGHTS) * cell - 1) // largest] if cell else "·" for cell in cells)


def draw_borders(each: StateDistribution, width: int = WIDTH) -> str:
    """Mark the first key group of each subtask below the columns of `draw_key_groups`."""
    width = min(width, each.max_parallelism)
    line = [" "] * width
    for subtask in each.subtasks:
        line[subtask.key_groups[0] * width // each.max_parallelism] = "╵"
    return "".join(line).rstrip()


def draw_bar(value: int, largest: int, width: int = _BAR) -> str:
    """Draw a bar of up to `width` characters; a value above 0 has at least an eighth of a character."""
    eighths = -(-value * 8 * width // largest) if largest else 0
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")


def _format(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


_SHOWN_COLUMNS = 40
_SHOWN_KEYS = 5
_PROFILED_KEY = 40


def parse_ttl(texts: Sequence[str]) -> dict[str, timedelta]:
    """Parse times to live from texts `DURATION` (all states) or `STATE=DURATION`.

    Raises:
        UsageError: a text is malformed, or two texts are for the same state.
    """
    found: dict[str, timedelta] = {}
    for text in texts:
        name, _, duration = text.rpartition("=")
        if name in found:
            raise UsageError(f"--ttl is given twice for {name or 'all states'}")
        found[name or EVERY_STATE] = parse_duration(duration, "--ttl")
    return found


def show_profile(profile: Profile, console: Console) -> None:
    """Print a profile for people."""
    console.print("profile", style="bold")
    lines = [f"{profile.entries:,} entries", format_bytes(profile.bytes)]
    if profile.expired is not None:
        lines.append(f"{profile.expired:,} expired")
    console.print(f"  {', '.join(lines)}, ages at {profile.at}")
    for operator in profile.operators:
        if operator.states or operator.errors:
            console.print()
            _show_profile(operator, console)


def _show_profile(operator: OperatorProfile, console: Console) -> None:
    console.print(operator.label, style="bold cyan")
    for error in operator.errors:
        console.print(f"  cannot be read: {error}", style="red")
    if operator.balance is not None:
        _show_balance(operator.balance, console)
    for state in operator.states:
        _show_state(state, console)


def _show_balance(balance: OperatorBalance, console: Console) -> None:
    if balance.error:
        console.print(f"  sizes and keys cannot be measured: {balance.error}", style="red")
    if balance.now is not None:
        idle = f", {plural(len(balance.now.idle), 'subtask')} without state" if balance.now.idle else ""
        console.print(f"  the largest subtask has {balance.now.imbalance:.2f} times the mean{idle}")
    if balance.most_bytes:
        rows = []
        for each in balance.most_bytes[:_SHOWN_KEYS]:
            key = "".join(sign if sign.isprintable() else "�" for sign in each.key)
            numbers = (str(each.subtask), format_bytes(each.bytes), f"{each.share:.1%}", f"{each.records:,}")
            rows.append((crop(key, _PROFILED_KEY), *numbers))
        columns = ("largest key", "subtask", "bytes", "share of subtask", "records")
        print_table(console, columns, rows, right=_PROFILED_NUMBERS)


_PROFILED_NUMBERS = (
    "subtask",
    "bytes",
    "share of subtask",
    "records",
    "null",
    "default",
    "min",
    "max",
    "mean",
    "entries",
)


def _show_state(state: StateProfile, console: Console) -> None:
    lines = [state.kind]
    if state.entries is not None:
        lines.append(plural(state.entries, "entry") if state.entries == 1 else f"{state.entries:,} entries")
    if state.keys is not None:
        lines.append(plural(state.keys, "key"))
    if state.bytes is not None:
        lines.append(format_bytes(state.bytes))
    if state.mean_bytes is not None:
        lines.append(f"{state.mean_bytes:,.0f} B per entry")
    console.print(f"  {state.name}: {', '.join(lines)}")
    types = [("key", state.key), ("namespace", state.namespace), ("value", state.value)]
    shown = [f"{name} {shorten_classes(text)}" for name, text in types if text and text != "VoidNamespace"]
    if shown:
        console.print(indent(crop(", ".join(shown), 120)), style="dim")
    if state.error:
        console.print(f"    cannot be read: {state.error}", style="red")
    if state.undecoded:
        console.print(f"    profiled as bytes: {state.undecoded}", style="yellow")
    if state.failed:
        console.print(f"    {state.failed:,} cannot be decoded: {state.failure}", style="yellow")
    if state.columns and state.entries:
        _show_columns(state.columns, console)
    if state.omitted:
        console.print(f"    and {plural(state.omitted, 'column')} more, which are not profiled", style="dim")
    if state.ttl is not None:
        _show_ttl(state.ttl, console)


def _show_columns(columns: Sequence[ColumnProfile], console: Console) -> None:
    table = make_table("column", "type", "null", "default", "", "min", "max", "mean", right=_PROFILED_NUMBERS)
    for each in columns[:_SHOWN_COLUMNS]:
        table.add_row(
            crop(each.column, 48),
            crop(each.type, 24),
            f"{each.null_ratio:.1%}",
            "" if each.default_ratio is None else f"{each.default_ratio:.1%}",
            each.measured if each.measured is Quantity.LENGTH else "",
            *(_format_number(number) for number in (each.minimum, each.maximum, each.mean)),
        )
    console.print(indent(indent(table)))
    if len(columns) > _SHOWN_COLUMNS:
        rest = plural(len(columns) - _SHOWN_COLUMNS, "column")
        console.print(f"    and {rest} more; --json gives them", style="dim")


def _show_ttl(outlook: TtlOutlook, console: Console) -> None:
    if not outlook.entries:
        return
    console.print(f"    last access: {outlook.oldest} to {outlook.newest}")
    _show_histogram("entries by age", outlook.by_age, console)
    if outlook.expired is None or outlook.expiring is None:
        console.print("    --ttl [STATE=]DURATION tells when they expire", style="dim")
        return
    console.print(f"    expired: {outlook.expired:,} ({outlook.expired_ratio:.1%})")
    _show_histogram("entries that expire within", outlook.expiring, console)


def _show_histogram(title: str, counts: Mapping[str, int], console: Console) -> None:
    filled = {name: count for name, count in counts.items() if count}
    if not filled:
        return
    rows = [(name, f"{count:,}", draw_bar(count, max(filled.values()))) for name, count in filled.items()]
    print_table(console, (title, "entries", ""), rows, right=("entries",), depth=2)


def _format_number(number: float | str | None) -> str:
    if number is None or isinstance(number, str):
        return number or ""
    return f"{number:,}" if isinstance(number, int) else f"{number:,.4g}"
