"""A table as text, no wider than a page or the terminal."""

import shutil
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

WIDEST = 120
NAMES = 32
"""The first column gets so much at least, if it has that long a name."""
NARROWEST = 40
"""Beside such a name, a column of numbers needs some room."""
HEADS = 24
"""A head is wrapped here where that saves room."""


def room() -> int:
    """Columns of the terminal that stdout is, 40 to 120; 120 where it is none."""
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((WIDEST, 1)).columns))


def as_text(rows: Sequence[Sequence[str]], width: int = WIDEST) -> str:
    """Lay out rows of cells, heads first, names first, in lines of at most `width` columns.

    What is too long is wrapped; columns for which there is no room follow in a table of their own.
    """
    names, *columns = zip(*rows, strict=True)
    longest = max(map(len, names))
    least = min(longest, NAMES)
    sizes = [max(map(len, column)) for column in columns]
    if longest + sum(size + 2 for size in sizes) > width:
        most = width - least - 2
        sizes = [min(most, max(min(HEADS, len(head)), *map(len, cells))) for head, *cells in columns]
    tables: list[str] = []
    first = 0
    while first < len(columns):
        last = first + 1
        while last < len(columns) and least + sum(size + 2 for size in sizes[first : last + 1]) <= width:
            last += 1
        some = sizes[first:last]
        left = min(longest, width - sum(size + 2 for size in some))
        tables.append(_table([names, *columns[first:last]], [left, *some]))
        first = last
    return "\n\n".join(tables)


def _table(columns: Sequence[Sequence[str]], sizes: Sequence[int]) -> str:
    lines: list[str] = []
    for row in zip(*columns, strict=True):
        cells = [textwrap.wrap(cell, size, subsequent_indent="  ") for cell, size in zip(row, sizes, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            lines.append("  ".join(map(str.ljust, parts, sizes)).rstrip())
    return "\n".join(lines)
