"""A report in a terminal: sections of aligned rows, with what matters bright and what explains it dim.

Owns widths and colours; click takes the colours away where the output is no terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from tapetum.core.footprint import shown_bytes

_LABEL = 16  # columns of what a row is called
_GAP = "  "
_BAR = 40  # columns of a whole


def title(text: str, note: str, *, is_good: bool) -> None:
    """The first line: what was looked at, and what came out."""
    mark = click.style("✓" if is_good else "✗", fg="green" if is_good else "red", bold=True)
    click.echo(f"\n{mark} {click.style(text, bold=True)}{_GAP}{click.style(note, dim=True)}")


def section(name: str) -> None:
    click.echo(f"\n{click.style(name, fg='cyan', bold=True)}")


def row(label: str, value: str, note: str = "") -> None:
    """One fact; the note behind it is dim."""
    tail = f"{_GAP}{click.style(note, dim=True)}" if note else ""
    click.echo(f"{_GAP}{click.style(label.ljust(_LABEL), dim=True)}{value}{tail}")


def fault(label: str, value: str) -> None:
    row(label, click.style(value, fg="yellow"))


def share(label: str, size: int, start: int, whole: int, note: str = "") -> None:
    """One part of a whole in bytes, as a bar that begins where the part before it ended."""
    first, last = (round(_BAR * min(at, whole) / whole) for at in (start, start + size))
    bar = click.style(" " * first + "█" * (last - first), fg="cyan") + " " * (_BAR - last)
    row(label, f"{shown_bytes(size):>8}{_GAP}{bar}", note)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as what is in them: the first to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    click.echo(click.style(_line(heads, widths), dim=True))
    for cells in rows:
        click.echo(_line(cells, widths))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.rjust(width) if index else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return _GAP + first.ljust(_LABEL) + "   ".join(rest)
