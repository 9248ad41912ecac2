"""Metadata of assets and checks: tables, lists of texts, and checks that expect none of something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import dagster as dg

from state_pipelines.snapshot.representation import escape_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Cell: TypeAlias = str | int | float | bool | None

_TEN_SECONDS = 10
_CENT = 0.01


_WIDE = 6
"""Number of columns of a table beyond which the UI cuts it at the right."""

_NUMBERS = ("int", "float")


def make_table(
    columns: Sequence[dg.TableColumn], rows: Iterable[Sequence[Cell]], *, identity: int = 2
) -> dg.TableMetadataValue:
    """Make a table; each row has the values of the columns, in their order.

    A wide table shows numbers before texts, because the UI cuts it at the right.

    Args:
        columns: the columns.
        rows: values by row.
        identity: number of leading columns that name a row; they stay the first ones.
    """
    names = [each.name for each in columns]
    records = [dg.TableRecord(dict(zip(names, row, strict=True))) for row in rows]
    shown = list(columns)
    if len(columns) > _WIDE:
        shown[identity:] = sorted(shown[identity:], key=lambda column: column.type not in _NUMBERS)
    return dg.MetadataValue.table(records, dg.TableSchema(shown))


def list_texts(texts: Iterable[str], bullet: str = "-") -> dg.MarkdownMetadataValue:
    """Make a list of texts in Markdown, which shows them as they are."""
    return dg.MetadataValue.md("\n".join(f"{bullet} {escape_markdown(text)}" for text in texts))


def expect_none(name: str, observed: int, details: Mapping[str, Any] | None = None) -> dg.AssetCheckResult:
    """Return the result of a check that warns when it observes anything.

    Args:
        name: of the check.
        observed: number of what it observes.
        details: further metadata.
    """
    return dg.AssetCheckResult(
        check_name=name,
        passed=not observed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"expected": 0, "observed": observed, **(details or {})},
    )


def round_seconds(seconds: float) -> float:
    """Round a duration for people: to hundredths of a second, of more than ten seconds to tenths."""
    return round(seconds, 1 if seconds >= _TEN_SECONDS else 2)


def round_money(amount: float) -> float:
    """Round an amount of money for people: to two decimals, or to two digits where that would be nothing."""
    if abs(amount) >= _CENT or not amount:
        return round(amount, 2)
    return float(f"{amount:.1e}")
